//! Redis clients, for comparisons with PostgreSQL. They measure rates and latencies only.
//!
//! A transaction is a list of commands that are all sent before the client waits for the first
//! reply (a pipeline, as in `redis-benchmark -P`; with one command, a plain request). One thread
//! and one event loop drive all clients, as for PostgreSQL. Source: the Redis serialization
//! protocol (RESP2). Requests are arrays of bulk strings; the transaction is complete when as many
//! replies were read as commands were sent. An error reply ends the run.
//!
//! Nested replies (arrays) are not supported; counters do not need them.

mod connecting;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock;
use crate::config::RunLength;
use crate::driver::{Arrival, Driver, EpollDriver};
use crate::measurement::{
    ClientTime, Instants, IoUsed, Measurement, Reconnecting, ScriptMeasurement, TimerLag,
    is_client_limited,
};
use crate::recorder::latency_histogram;
use crate::thread_usage::{ThreadUsage, UsageStart};
use crate::timing;

/// Maximum interval between checks of the stop flag.
const STOP_NS: u64 = 50_000_000;
/// Longer lines are not replies.
const LINE_MAX_BYTES: usize = 64 << 10;
/// Time limit for the replies of a transaction.
const REPLY_NS: u64 = 10_000_000_000;

/// Errors of Redis clients.
#[derive(Debug, thiserror::Error)]
pub enum RedisError {
    /// A connection attempt failed.
    #[error("cannot connect to Redis at {address}: {source}")]
    Connect {
        /// The server's address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The connection ended, or a system call failed.
    #[error("connection to Redis lost: {source}")]
    Lost {
        /// The system's error.
        source: io::Error,
    },
    /// Redis reported an error.
    #[error("Redis returned an error: {words}")]
    Refused {
        /// The error message.
        words: String,
    },
    /// The reply is of an unsupported kind.
    #[error("unsupported reply from Redis: \"{words}\"")]
    Unknown {
        /// The line.
        words: String,
    },
    /// No reply arrived in time.
    #[error("no answer from Redis for 10s")]
    Unanswered,
    /// The stop flag was set.
    #[error("stopped")]
    Stopped,
}

/// Connected clients, idle between runs.
pub struct RedisClientPool {
    driver: EpollDriver,
    clients: Vec<RedisClient>,
    /// The commands of a transaction as they are sent, and their number.
    request: Vec<u8>,
    commands: usize,
    script: String,
    stop: Arc<AtomicBool>,
    /// Each client's start in ns after the beginning of the run; empty if all begin together.
    starts: Vec<u64>,
    /// Time limit for the replies of a transaction.
    reply_ns: u64,
}

/// One connection.
#[derive(Default)]
struct RedisClient {
    /// Bytes of the request that were sent.
    sent: usize,
    /// Outstanding replies; 0 between transactions.
    awaited: usize,
    began_ns: u64,
    /// The beginning of an incomplete line.
    line: Vec<u8>,
    /// Remaining bytes of a bulk string, including its line end.
    skip: usize,
    transactions: u64,
}

/// Counters of a run.
struct RedisCounters {
    window: (u64, u64),
    latency_ns: hdrhistogram::Histogram<u64>,
    total: u64,
    settle: u64,
    in_transaction_ns: u64,
    /// Transactions, each counted by the share of its duration in the window.
    credited: f64,
    last_end_ns: u64,
}

impl RedisClientPool {
    /// Connects. `address` is a socket's path or `host:port`; `script` holds one command per line. Setting `stop`
    /// ends this, and later each run, within 50 ms.
    pub fn connect(
        address: &str,
        clients: u32,
        script: (&str, &str),
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, RedisError> {
        let failed = |source| RedisError::Connect {
            address: address.to_owned(),
            source,
        };
        let mut driver = EpollDriver::new().map_err(failed)?;
        for fd in connecting::open(address, clients, stop)? {
            driver.add(fd).map_err(failed)?;
        }
        let (name, text) = script;
        let commands: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .filter(|words: &Vec<&str>| !words.is_empty())
            .collect();
        Ok(Self {
            driver,
            clients: (0..clients).map(|_| RedisClient::default()).collect(),
            request: commands.iter().flat_map(|words| encoded(words)).collect(),
            commands: commands.len(),
            script: name.to_owned(),
            stop: Arc::clone(stop),
            starts: Vec::new(),
            reply_ns: REPLY_NS,
        })
    }

    /// Spreads the clients' starts over this time, at moments that the seed determines.
    pub fn spread_starts(&mut self, spread: Duration, seed: u64) {
        self.starts = timing::starts(self.clients.len(), spread, seed);
    }

    /// Runs all clients for a window, without a break through settling and measuring. The last
    /// transactions end before it returns.
    pub fn run(&mut self, window: &RunLength) -> Result<Measurement, RedisError> {
        let begin_ns = clock::monotonic_ns();
        let (window_begin_ns, window_end_ns) = match *window {
            RunLength::Timed { settle, measure } => {
                let from = begin_ns + settle.as_nanos() as u64;
                (from, from + measure.as_nanos() as u64)
            }
            // Studies always measure a window.
            RunLength::Whole { .. } | RunLength::Counted { .. } => (begin_ns, begin_ns),
        };
        let mut counts = RedisCounters {
            window: (window_begin_ns, window_end_ns),
            latency_ns: latency_histogram(),
            total: 0,
            settle: 0,
            in_transaction_ns: 0,
            credited: 0.0,
            last_end_ns: begin_ns,
        };
        let usage_start = UsageStart::now();
        self.drive(begin_ns, &mut counts)?;
        let usage = usage_start.usage(begin_ns);
        Ok(self.measurement(begin_ns, counts, usage))
    }

    fn drive(&mut self, begin_ns: u64, counts: &mut RedisCounters) -> Result<(), RedisError> {
        let lost = |source| RedisError::Lost { source };
        let mut unconnected: Vec<(u64, usize)> = (0..self.clients.len())
            .map(|client| {
                let start_ns = self.starts.get(client).copied().unwrap_or(0);
                (begin_ns + start_ns, client)
            })
            .collect();
        unconnected.sort_unstable_by(|one, other| other.cmp(one));
        self.clients.iter_mut().for_each(|it| it.transactions = 0);
        let mut open = self.clients.len();
        let (mut checked_ns, limit_ns) = (begin_ns, self.reply_ns);
        while open > 0 {
            if self.stop.load(Ordering::Relaxed) {
                return Err(RedisError::Stopped);
            }
            while let Some((due_ns, client)) = unconnected.last().copied()
                && due_ns <= clock::monotonic_ns()
            {
                unconnected.pop();
                self.begin(client, clock::monotonic_ns())?;
            }
            let next_ns = unconnected.last().map_or(u64::MAX, |(due_ns, _)| *due_ns);
            self.driver
                .wait(next_ns.min(clock::monotonic_ns() + STOP_NS))
                .map_err(lost)?;
            while let Some(arrival) = self.driver.next().map_err(lost)? {
                match arrival {
                    Arrival::Writable { client } => self.send(client)?,
                    Arrival::Closed { error, .. } => {
                        let end = || io::Error::from(io::ErrorKind::UnexpectedEof);
                        return Err(lost(error.unwrap_or_else(end)));
                    }
                    Arrival::Bytes { client, count } => {
                        let replies =
                            self.clients[client].replies(self.driver.received(client, count))?;
                        if replies == 0 || self.clients[client].awaited > 0 {
                            continue;
                        }
                        let now_ns = clock::monotonic_ns();
                        counts.end(&mut self.clients[client], now_ns);
                        if now_ns < counts.window.1 {
                            self.begin(client, now_ns)?;
                        } else {
                            open -= 1;
                        }
                    }
                }
            }
            let now_ns = clock::monotonic_ns();
            let is_late =
                |it: &RedisClient| it.awaited > 0 && now_ns.saturating_sub(it.began_ns) > limit_ns;
            if now_ns > checked_ns + STOP_NS {
                checked_ns = now_ns;
                if self.clients.iter().any(is_late) {
                    return Err(RedisError::Unanswered);
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, client: usize, now_ns: u64) -> Result<(), RedisError> {
        let it = &mut self.clients[client];
        (it.sent, it.awaited, it.began_ns) = (0, self.commands, now_ns);
        self.send(client)
    }

    fn send(&mut self, client: usize) -> Result<(), RedisError> {
        let rest = &self.request[self.clients[client].sent..];
        let sent = self.driver.send(client, rest);
        self.clients[client].sent += sent.map_err(|source| RedisError::Lost { source })?;
        Ok(())
    }

    fn measurement(&self, begin_ns: u64, counts: RedisCounters, usage: ThreadUsage) -> Measurement {
        let (window_begin_ns, window_end_ns) = counts.window;
        let window_us = (window_end_ns - window_begin_ns) / 1000;
        let of_clients: Vec<u64> = self.clients.iter().map(|it| it.transactions).collect();
        let in_transaction_us = counts.in_transaction_ns / 1000;
        let all_us = window_us * of_clients.len() as u64;
        let threads = vec![usage];
        Measurement {
            instants: Instants {
                begin_ns,
                window_begin_ns,
                window_end_ns,
                idle_ns: counts.last_end_ns.max(window_end_ns),
            },
            window_us,
            transactions: of_clients.iter().sum(),
            credited_transactions: counts.credited,
            transactions_total: counts.total,
            settle_transactions: counts.settle,
            failed: 0,
            failed_total: 0,
            failed_us: 0,
            since_begin_ns: None,
            scripts: vec![ScriptMeasurement {
                name: self.script.as_str().into(),
                weight: 1,
                transactions: counts.latency_ns.len(),
                failed: 0,
                latency_ns: counts.latency_ns.clone(),
            }],
            latency_ns: counts.latency_ns,
            clients: of_clients,
            time: ClientTime {
                in_transaction_us,
                asleep_us: 0,
                between_us: all_us.saturating_sub(in_transaction_us),
                thread_busy_us: None,
                client_run_queue_us: None,
                possible_thread_busy_us: None,
                possible_run_queue_us: None,
            },
            client_limited: is_client_limited(&threads),
            threads,
            timer_lag: TimerLag::default(),
            interrupted: false,
            unfinished: 0,
            aborted: 0,
            skipped: 0,
            unserved: 0,
            commands: Vec::new(),
            reconnecting: Reconnecting::default(),
            openings: None,
            io: IoUsed::default(),
        }
    }
}

impl RedisCounters {
    fn end(&mut self, client: &mut RedisClient, now_ns: u64) {
        let (from_ns, to_ns) = self.window;
        self.total += 1;
        self.last_end_ns = now_ns;
        let inside = now_ns
            .min(to_ns)
            .saturating_sub(client.began_ns.max(from_ns));
        self.in_transaction_ns += inside;
        let duration_ns = now_ns.saturating_sub(client.began_ns).max(1);
        self.credited += inside as f64 / duration_ns as f64;
        if now_ns < from_ns {
            self.settle += 1;
        } else if now_ns < to_ns {
            client.transactions += 1;
            self.latency_ns
                .saturating_record((now_ns - client.began_ns).max(1));
        }
    }
}

impl RedisClient {
    /// Processes received bytes; returns the number of replies they complete.
    fn replies(&mut self, mut bytes: &[u8]) -> Result<usize, RedisError> {
        let before = self.awaited;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                self.awaited -= usize::from(self.skip == 0);
                continue;
            }
            if self.line.len() + bytes.len() > LINE_MAX_BYTES && !bytes.contains(&b'\n') {
                let start = String::from_utf8_lossy(&self.line[..self.line.len().min(100)]);
                return Err(RedisError::Unknown {
                    words: format!("{start}…"),
                });
            }
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                self.line.extend_from_slice(bytes);
                break;
            };
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = String::from_utf8_lossy(&self.line).trim_end().to_owned();
            self.line.clear();
            let (kind, rest) = line.split_at(line.chars().next().map_or(0, char::len_utf8));
            match (kind, rest.parse::<i64>()) {
                ("-", _) => return Err(RedisError::Refused { words: rest.into() }),
                ("+", _) | (":", Ok(_)) | ("$", Ok(-1)) if self.awaited > 0 => self.awaited -= 1,
                ("$", Ok(length)) if length >= 0 && self.awaited > 0 => {
                    self.skip = (length as usize).saturating_add(2);
                }
                _ => return Err(RedisError::Unknown { words: line }),
            }
        }
        Ok(before - self.awaited)
    }
}

/// Encodes a command as an array of bulk strings.
fn encoded(words: &[&str]) -> Vec<u8> {
    let parts = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let parts: String = parts.collect();
    format!("*{}\r\n{parts}", words.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        assert_eq!(encoded(&["INCR", "k"]), b"*2\r\n$4\r\nINCR\r\n$1\r\nk\r\n");
    }

    #[test]
    fn split_replies_are_counted() {
        let bytes = b":17\r\n+OK\r\n$5\r\nab\r\nc\r\n$-1\r\n";
        for cut in 0..bytes.len() {
            let mut client = RedisClient {
                awaited: 4,
                ..RedisClient::default()
            };
            let (first, second) = bytes.split_at(cut);
            let found = client.replies(first).unwrap() + client.replies(second).unwrap();
            assert_eq!((found, client.awaited), (4, 0), "cut at {cut}");
        }
    }

    #[test]
    fn error_reply_or_unknown_reply_ends_the_run() {
        for (bytes, words) in [
            (&b"-ERR unknown command\r\n"[..], "ERR unknown command"),
            (b"HTTP/1.1 400\r\n", "unsupported reply"),
        ] {
            let mut client = RedisClient {
                awaited: 1,
                ..RedisClient::default()
            };
            let error = client.replies(bytes).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut client = RedisClient {
            awaited: 1,
            ..RedisClient::default()
        };
        let error = (0..100).find_map(|_| client.replies(&[b'+'; 4096]).err());
        let message = error.unwrap().to_string();
        assert!(message.contains("unsupported reply"), "{message}");
        assert!(message.len() < 1000 && client.line.len() <= LINE_MAX_BYTES);
    }

    /// Every byte of the reply arrives before the time limit, and the last one never.
    #[test]
    fn bytes_now_and_then_do_not_extend_the_time_limit() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut sent = socket.write_all(b"$1000000\r\n");
            // 20 s, unless the client closes.
            for _ in 0..1000 {
                if sent.is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
                sent = socket.write_all(b"x");
            }
        });
        let stop = Arc::new(AtomicBool::new(false));
        let mut pool = RedisClientPool::connect(&address, 1, ("get", "GET k\n"), &stop).unwrap();
        pool.reply_ns = 200_000_000;
        let window = RunLength::Timed {
            settle: Duration::ZERO,
            measure: Duration::from_millis(50),
        };
        let error = pool.run(&window).unwrap_err();
        assert!(matches!(error, RedisError::Unanswered), "{error}");
    }

    /// The server answers every command with a number; it counts the bytes that begin commands.
    #[test]
    fn a_run_counts_transactions_and_their_time() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = socket.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..count]);
                let commands = text.matches('*').count();
                socket
                    .write_all(":1\r\n".repeat(commands).as_bytes())
                    .unwrap();
            }
        });
        let stop = Arc::new(AtomicBool::new(false));
        let script = ("incr", "INCR k\nINCR k\n");
        let mut pool = RedisClientPool::connect(&address, 1, script, &stop).unwrap();
        let window = RunLength::Timed {
            settle: Duration::from_millis(5),
            measure: Duration::from_millis(500),
        };
        pool.spread_starts(Duration::from_millis(2), 1);
        let measured = pool.run(&window).unwrap();
        assert!(measured.transactions > 10);
        assert!(measured.transactions_total > measured.transactions);
        assert_eq!(measured.latency_ns.len(), measured.transactions);
        let time = measured.time;
        assert_eq!(time.in_transaction_us + time.between_us, measured.window_us);
        // With one client, at most one transaction counts differently at each end of the window.
        let credited = measured.credited_transactions;
        assert!((credited - measured.transactions as f64).abs() < 1.0);
        assert!(credited.fract() != 0.0, "{credited}");
        drop(pool);
        server.join().unwrap();
    }
}
