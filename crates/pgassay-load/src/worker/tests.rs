//! The loop on a driver with its own clock: a server that answers each request after a fixed time,
//! so that every figure is known in advance.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use pgassay_script::{
    ParseOptions, ParsedScript, QueryProtocol, Seeding, VariableNames, Variables,
};
use pgassay_wire::conninfo::Target;
use pgassay_wire::{Login, Session};

use super::*;
use crate::client::ClientRun;
use crate::client_options::{
    FailedTry, FailedTryFate, FailureKind, OnAbort, Transaction, TransactionOutcome,
};
use crate::config::{ClientPoolConfig, WeightedScript};

mod aborts;
mod failures;
mod rates;

/// The server's time for a request.
const SERVICE_NS: u64 = 1_000;

/// A server for all clients, on a clock that advances only while waiting.
#[derive(Default)]
struct Mock {
    now_ns: u64,
    /// What each reading of the clock takes, and how many there were.
    reading_ns: u64,
    readings: std::cell::Cell<u64>,
    /// Answers by arrival time.
    answers: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    sequence: u64,
    /// What each client has sent.
    heard: Vec<Vec<u8>>,
    /// The text of every simple query, by client.
    said: Vec<Vec<Vec<u8>>>,
    /// Requests to fail with a serialization failure, by number from 1.
    failing: Vec<u64>,
    /// The statements that each client has prepared.
    prepared: Vec<(usize, Vec<u8>)>,
    requests: u64,
    /// Maximum bytes per send; the rest is blocked until the next wait.
    send_max: Option<usize>,
    writable: Vec<usize>,
    /// The client whose connection ends after its first answer.
    closing: Option<usize>,
    /// Clients whose connection was closed, and when.
    closed: Vec<(usize, u64)>,
    /// The last answer that arrived.
    received: Vec<u8>,
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[tag][..], &length.to_be_bytes(), body].concat()
}

impl Mock {
    /// Answers a complete simple query or a group that ends with Sync.
    fn answer(&mut self, client: usize) {
        let heard = std::mem::take(&mut self.heard[client]);
        let (mut rest, mut answer) = (&heard[..], Vec::new());
        let mut skips_to_sync = false;
        while let Some((&tag, after)) = rest.split_first() {
            let Some(length) = after
                .first_chunk::<4>()
                .map(|l| u32::from_be_bytes(*l) as usize)
            else {
                break;
            };
            if after.len() < length {
                break;
            }
            rest = &after[length..];
            let mut texts = after[4..length].split(|&byte| byte == 0);
            match tag {
                b'S' => {
                    skips_to_sync = false;
                    answer.extend(message(b'Z', b"I"));
                }
                _ if skips_to_sync => {}
                b'Q' => {
                    self.requests += 1;
                    self.said.resize_with(self.heard.len(), Vec::new);
                    self.said[client].push(after[..length].to_vec());
                    if self.failing.contains(&self.requests) {
                        answer.extend(message(b'E', b"SERROR\0C40001\0Mserialize\0\0"));
                    } else {
                        answer.extend(message(b'C', b"SELECT 1\0"));
                    }
                    answer.extend(message(b'Z', b"I"));
                }
                b'B' => {
                    let name = texts.nth(1).unwrap().to_vec();
                    skips_to_sync = !name.is_empty() && !self.prepared.contains(&(client, name));
                    answer.extend(if skips_to_sync {
                        message(b'E', b"SERROR\0C26000\0Munknown statement\0\0")
                    } else {
                        message(b'2', b"")
                    });
                }
                b'D' => answer.extend(message(b'n', b"")),
                b'E' => {
                    self.requests += 1;
                    skips_to_sync = self.failing.contains(&self.requests);
                    answer.extend(if skips_to_sync {
                        message(b'E', b"SERROR\0C40001\0Mserialize\0\0")
                    } else {
                        message(b'C', b"SELECT 1\0")
                    });
                }
                b'P' => {
                    let name = texts.next().unwrap().to_vec();
                    self.prepared.push((client, name));
                    answer.extend(message(b'1', b""));
                }
                b'X' => {}
                _ => panic!("unexpected message {tag}"),
            }
        }
        self.heard[client] = rest.to_vec();
        if !answer.is_empty() {
            self.sequence += 1;
            self.answers
                .insert((self.now_ns + SERVICE_NS, self.sequence), (client, answer));
        }
    }
}

impl Driver for Mock {
    fn now_ns(&self) -> u64 {
        self.readings.set(self.readings.get() + 1);
        self.now_ns + self.readings.get() * self.reading_ns
    }

    fn send(&mut self, client: usize, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.send_max.unwrap_or(usize::MAX));
        self.heard[client].extend_from_slice(&bytes[..count]);
        if count < bytes.len() {
            self.writable.push(client);
        }
        self.answer(client);
        Ok(count)
    }

    fn wait(&mut self, until_ns: u64) -> io::Result<()> {
        let next_ns = self
            .answers
            .first_key_value()
            .map_or(u64::MAX, |((due_ns, _), _)| *due_ns);
        if self.writable.is_empty() {
            self.now_ns = next_ns.min(until_ns).max(self.now_ns);
        }
        Ok(())
    }

    fn next(&mut self) -> io::Result<Option<Arrival>> {
        if let Some(client) = self.writable.pop() {
            return Ok(Some(Arrival::Writable { client }));
        }
        if let Some(client) = self.closing
            && self.said.get(client).is_some_and(|said| !said.is_empty())
            && !self.answers.values().any(|(of, _)| *of == client)
        {
            self.closing = None;
            return Ok(Some(Arrival::Closed {
                client,
                error: None,
            }));
        }
        let Some(entry) = self.answers.first_entry() else {
            return Ok(None);
        };
        if entry.key().0 > self.now_ns {
            return Ok(None);
        }
        let (client, answer) = entry.remove();
        let count = answer.len();
        self.received = answer;
        Ok(Some(Arrival::Bytes { client, count }))
    }

    fn close(&mut self, client: usize) {
        self.closed.push((client, self.now_ns));
        self.heard[client].clear();
        self.answers.retain(|_, (of, _)| *of != client);
    }

    fn replace(&mut self, _client: usize, _fd: std::os::fd::OwnedFd) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn received(&self, _client: usize, count: usize) -> &[u8] {
        &self.received[..count]
    }
}

struct Bench {
    worker: Worker<Mock>,
    program: Program,
    options: ClientOptions,
    starts: Vec<u64>,
}

impl Bench {
    fn new(clients: usize, protocol: QueryProtocol, scripts: &[(&str, u64)]) -> Self {
        let mut names = VariableNames::new();
        let options = ParseOptions {
            protocol,
            ..ParseOptions::default()
        };
        let scripts: Vec<_> = scripts
            .iter()
            .map(|(text, weight)| WeightedScript {
                script: Arc::new(ParsedScript::parse("test", text, &options, &mut names).unwrap()),
                weight: *weight,
            })
            .collect();
        let names = Arc::new(names);
        let target = Target::unix("/nowhere", 1, "me", "me");
        let first = Arc::clone(&scripts[0].script);
        let config = ClientPoolConfig {
            scripts,
            protocol,
            ..ClientPoolConfig::new(target, first, Arc::clone(&names))
        };
        let program = Program::new(&config).unwrap();
        let seeding = Seeding::new(1, clients, 1, false);
        let clients: Vec<_> = (0..clients)
            .map(|id| {
                let variables = Variables::new(&names);
                let run = ClientRun::new(id as u32, &program, variables, seeding.clients[id]);
                Client {
                    session: signed_in(),
                    run,
                }
            })
            .collect();
        let mut driver = Mock {
            heard: vec![Vec::new(); clients.len()],
            ..Mock::default()
        };
        driver.now_ns = 1;
        let mut worker = Worker::new(driver, clients, &program, seeding.threads[0].choose);
        worker.recorder.reset(1, u64::MAX);
        Self {
            worker,
            program,
            options: ClientOptions::default(),
            starts: Vec::new(),
        }
    }

    fn run(
        &mut self,
        window_ns: std::ops::Range<u64>,
        counted: Option<u64>,
        stop: bool,
    ) -> Result<u32, LoadError> {
        let stop = AtomicBool::new(stop);
        let options = self.options.clone();
        let shared = WorkerShared {
            program: &self.program,
            limits: Limits::default(),
            end_ns: AtomicU64::new(window_ns.end),
            stopped_ns: AtomicU64::new(0),
            transactions_per_client: counted,
            stop: &stop,
            failed: AtomicBool::new(false),
            options: &options,
            connector: None,
            starts: &self.starts,
            straddling: AtomicUsize::new(self.starts.len()),
        };
        self.worker.recorder.reset(window_ns.start, window_ns.end);
        let begin_ns = self.worker.driver.now_ns;
        self.worker.run(begin_ns, &shared)
    }

    fn booked(&self) -> [u64; 3] {
        let recorder = &self.worker.recorder;
        [
            recorder.in_transaction_ns,
            recorder.asleep_ns,
            recorder.between_ns,
        ]
    }
}

fn signed_in() -> Session {
    let login = Login {
        user: "me".into(),
        ..Login::default()
    };
    let mut session = Session::start(&login).unwrap();
    let count_bytes = session.output().len();
    session.sent(count_bytes);
    let bytes = [message(b'R', &[0; 4]), message(b'Z', b"I")].concat();
    let mut input = &bytes[..];
    while session.next(&mut input).unwrap().is_some() {}
    assert!(session.is_started());
    session
}

#[test]
fn runs_follow_each_other() {
    let mut bench = Bench::new(2, QueryProtocol::Simple, &[("select 1;", 1)]);
    for _ in 0..3 {
        let begin_ns = bench.worker.driver.now_ns;
        bench.run(begin_ns..begin_ns + 5_000, None, false).unwrap();
        assert_eq!(bench.worker.recorder.transactions_total, 10);
        assert_eq!(
            bench.worker.recorder.clients,
            [4, 4],
            "the fifth ends as the window does"
        );
        assert!(bench.worker.driver.answers.is_empty(), "the server is idle");
    }
}

#[test]
fn a_count_bounds_each_client() {
    for protocol in [QueryProtocol::Simple, QueryProtocol::Extended] {
        let mut bench = Bench::new(2, protocol, &[("select 1;\nselect 2;", 1)]);
        bench.run(1..u64::MAX, Some(7), false).unwrap();
        assert_eq!(bench.worker.recorder.clients, [7, 7]);
        assert_eq!(bench.worker.recorder.last_end_ns, 1 + 14 * SERVICE_NS);
    }
}

#[test]
fn sleep_is_accounted_separately() {
    let mut bench = Bench::new(1, QueryProtocol::Simple, &[("\\sleep 3 us\nselect 1;", 1)]);
    bench.run(1..u64::MAX, Some(5), false).unwrap();
    assert_eq!(bench.booked(), [5 * SERVICE_NS, 5 * 3_000, 0]);
    // Sleep is part of a transaction's latency, as in pgbench.
    assert!(
        bench.worker.recorder.scripts[0]
            .latency_ns
            .max()
            .abs_diff(4_000)
            <= 1
    );
    assert_eq!(bench.worker.recorder.timer_lag.wakeups, 5);
}

#[test]
fn scripts_are_chosen_by_weight() {
    let scripts = [("select 1;", 1), ("select 2;", 0), ("select 3;", 3)];
    let mut bench = Bench::new(1, QueryProtocol::Simple, &scripts);
    bench.run(1..u64::MAX, Some(4000), false).unwrap();
    let scripts = &bench.worker.recorder.scripts;
    let counts: Vec<_> = scripts
        .iter()
        .map(|script| script.latency_ns.len())
        .collect();
    assert!((900..1100).contains(&counts[0]), "{counts:?}");
    assert_eq!((counts[1], counts[0] + counts[2]), (0, 4000));
}

#[test]
fn conditionals_take_their_branch() {
    let script = "\\set a 0\n\\if :a\nselect 1;\n\\elif :a = 0\nselect 2;\nselect 3;\n\\elif true\n\
                  select 4;\n\\else\nselect 5;\n\\endif\nselect 6;";
    let mut bench = Bench::new(1, QueryProtocol::Simple, &[(script, 1)]);
    bench.run(1..u64::MAX, Some(2), false).unwrap();
    assert_eq!(bench.worker.driver.requests, 2 * 3);
}

#[test]
fn scripts_without_sql_yield_to_other_clients() {
    let scripts = [("\\set a 1", 1), ("select 1;", 1)];
    let mut bench = Bench::new(4, QueryProtocol::Simple, &scripts);
    bench.run(1..u64::MAX, Some(100), false).unwrap();
    assert_eq!(bench.worker.recorder.clients, [100; 4]);
}

#[test]
fn pipelines_wait_once() {
    let script = "\\startpipeline\nselect 1;\nselect 2;\n\\syncpipeline\nselect 3;\n\\endpipeline";
    for send_max in [None, Some(1), Some(7)] {
        let mut bench = Bench::new(2, QueryProtocol::Prepared, &[(script, 1)]);
        bench.worker.driver.send_max = send_max;
        bench.run(1..u64::MAX, Some(3), false).unwrap();
        assert_eq!(bench.worker.recorder.clients, [3, 3]);
    }
}

#[test]
fn invalid_scripts_are_rejected() {
    for (protocol, script, expected) in [
        (
            QueryProtocol::Simple,
            "\\startpipeline\nselect 1;\n\\endpipeline",
            "simple query protocol",
        ),
        (
            QueryProtocol::Extended,
            "\\startpipeline\nselect 1;",
            "pipeline open",
        ),
        (
            QueryProtocol::Extended,
            "\\startpipeline\n\\startpipeline",
            "already in pipeline",
        ),
        (QueryProtocol::Extended, "\\endpipeline", "not in pipeline"),
        (
            QueryProtocol::Extended,
            "\\startpipeline\nselect 1 \\gset\n\\endpipeline",
            "\\gset",
        ),
        (
            QueryProtocol::Simple,
            "select 1 \\gset",
            "expected one row, got 0",
        ),
        (QueryProtocol::Simple, "\\set a 1/0", "division by zero"),
        (QueryProtocol::Simple, "\\shell true", "supported only by"),
    ] {
        let mut bench = Bench::new(1, protocol, &[(script, 1)]);
        let error = bench.run(1..u64::MAX, Some(1), false).unwrap_err();
        assert!(matches!(error, LoadError::Aborted { .. }));
        assert!(error.to_string().contains(expected), "{script}: {error}");
    }
}

#[test]
fn a_stopped_run_ends_its_transactions() {
    let mut bench = Bench::new(2, QueryProtocol::Simple, &[("select 1;\nselect 2;", 1)]);
    assert_eq!(bench.run(1..u64::MAX, None, true).unwrap(), 0);
    let recorder = &bench.worker.recorder;
    assert_eq!(recorder.window_end_ns, 1 + STOP_AHEAD_NS);
    assert_eq!(
        recorder.transactions_total,
        2 * STOP_AHEAD_NS / (2 * SERVICE_NS)
    );
    assert_eq!(bench.booked(), [2 * STOP_AHEAD_NS, 0, 0]);
    assert!(bench.worker.driver.answers.is_empty());
}

#[test]
fn a_reply_that_does_not_come_is_an_error() {
    let mut bench = Bench::new(2, QueryProtocol::Simple, &[("select 1;", 1)]);
    // The server is in the middle of another message, so it does not see the request as one.
    bench.worker.driver.heard = vec![b"nothing is complete".to_vec(), Vec::new()];
    let limits = Limits {
        reply: std::time::Duration::from_secs(2),
        ..Limits::default()
    };
    let stop = AtomicBool::new(false);
    let shared = WorkerShared {
        program: &bench.program,
        limits,
        end_ns: AtomicU64::new(1_000_000),
        stopped_ns: AtomicU64::new(0),
        transactions_per_client: None,
        stop: &stop,
        failed: AtomicBool::new(false),
        options: &ClientOptions::default(),
        connector: None,
        starts: &[],
        straddling: AtomicUsize::new(0),
    };
    let error = bench.worker.run(1, &shared).unwrap_err();
    let LoadError::Unanswered {
        client: 0, what, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert!(what.contains("select 1;"), "{error}");
}

/// Transactions; failed tries and their fate; aborted clients.
type Observed = (Vec<Transaction>, Vec<(u32, FailedTryFate)>, Vec<u32>);

/// Keeps everything it observes.
#[derive(Clone, Default)]
struct Recording(Arc<std::sync::Mutex<Observed>>);

impl Observer for Recording {
    fn transaction(&mut self, transaction: &Transaction) {
        self.0.lock().unwrap().0.push(*transaction);
    }

    fn failed_try(&mut self, failed: &FailedTry<'_>) {
        let known = (failed.tries, failed.fate);
        self.0.lock().unwrap().1.push(known);
    }

    fn aborted(&mut self, client: u32, _error: &LoadError) {
        self.0.lock().unwrap().2.push(client);
    }
}

fn observed(bench: &mut Bench) -> Recording {
    let kept = Recording::default();
    bench.worker.observer = Some(Box::new(kept.clone()));
    kept
}

#[test]
fn latency_counts_from_the_schedule() {
    let mut bench = Bench::new(1, QueryProtocol::Simple, &[("SELECT 1;", 1)]);
    let kept = observed(&mut bench);
    // A mean gap of 4 µs, and a service time of 1 µs.
    bench.worker.pace = Some((Rng::from_seed(7), 4.0));
    bench.run(1..2_000_001, None, false).unwrap();
    let transactions = &kept.0.lock().unwrap().0;
    assert!(
        (400..600).contains(&transactions.len()),
        "{}",
        transactions.len()
    );
    let latencies = |from: fn(&Transaction) -> u64| {
        let sum: u64 = transactions.iter().map(|t| t.end_ns - from(t)).sum();
        sum / transactions.len() as u64
    };
    assert_eq!(latencies(|t| t.begin_ns), SERVICE_NS);
    assert!(latencies(|t| t.scheduled_ns) > SERVICE_NS);
    assert!(transactions.iter().all(|t| t.begin_ns >= t.scheduled_ns));
    assert_eq!(bench.worker.recorder.unserved, 0);
}

#[test]
fn late_transactions_are_skipped_and_unserved_counted() {
    let mut bench = Bench::new(1, QueryProtocol::Simple, &[("SELECT 1;", 1)]);
    let kept = observed(&mut bench);
    // Twice the server's capacity.
    bench.worker.pace = Some((Rng::from_seed(7), 0.6));
    bench.run(1..1_000_001, None, false).unwrap();
    assert!(bench.worker.recorder.unserved > 100);
    bench.options.latency_limit = Some(std::time::Duration::from_micros(20));
    kept.0.lock().unwrap().0.clear();
    let begin_ns = bench.worker.driver.now_ns;
    bench
        .run(begin_ns..begin_ns + 1_000_000, None, false)
        .unwrap();
    let transactions = &kept.0.lock().unwrap().0;
    let skipped = transactions
        .iter()
        .filter(|transaction| transaction.outcome == TransactionOutcome::Skipped);
    assert_eq!(skipped.count() as u64, bench.worker.recorder.skipped);
    assert!(bench.worker.recorder.skipped > 100);
    let done = transactions
        .iter()
        .filter(|transaction| transaction.outcome == TransactionOutcome::Done);
    for transaction in done {
        assert!(transaction.begin_ns - transaction.scheduled_ns <= 20_000);
    }
}

#[test]
fn aborted_client_does_not_affect_others() {
    let text = "\\if :client_id = 1\n\\set x 1/0\n\\endif\nSELECT 1;\n";
    let mut bench = Bench::new(3, QueryProtocol::Simple, &[(text, 1)]);
    for client in &mut bench.worker.clients {
        let id = pgassay_script::ScriptValue::Int(i64::from(client.run.id));
        client.run.set_variable(VariableNames::CLIENT_ID, id);
    }
    let kept = observed(&mut bench);
    bench.options.on_abort = OnAbort::EndClient;
    bench.run(1..u64::MAX, Some(4), false).unwrap();
    let (transactions, _, aborted) = &*kept.0.lock().unwrap();
    assert_eq!((transactions.len(), &aborted[..]), (8, &[1][..]));
    assert!(
        transactions
            .iter()
            .all(|transaction| transaction.client != 1)
    );
}

#[test]
fn connection_lost_after_client_finished_is_ignored() {
    let text = "\\if :client_id = 1\n\\sleep 5 us\n\\endif\nSELECT 1;\n";
    let mut bench = Bench::new(2, QueryProtocol::Simple, &[(text, 1)]);
    for client in &mut bench.worker.clients {
        let id = pgassay_script::ScriptValue::Int(i64::from(client.run.id));
        client.run.set_variable(VariableNames::CLIENT_ID, id);
    }
    let kept = observed(&mut bench);
    bench.options.on_abort = OnAbort::EndClient;
    bench.worker.driver.closing = Some(0);
    bench.run(1..u64::MAX, Some(1), false).unwrap();
    assert_eq!(bench.worker.driver.closing, None);
    let (transactions, _, aborted) = &*kept.0.lock().unwrap();
    assert_eq!((transactions.len(), aborted.len()), (2, 0));
}
