//! The relay's thread: accepts, connects, and forwards.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;

use crate::direction::{Forwarded, RelayDirection};
use crate::poller::{Poller, minimize_timer_slack, now_ns};

/// The number of the listener. Each connection has two numbers, starting at 2.
const LISTENER: u64 = 0;
/// The longest wait: the thread must notice when the relay is dropped.
const WAIT_NS: u64 = 50_000_000;
/// Time limit for connecting to the target, which is on loopback.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const BUFFER: usize = 64 << 10;

/// Why a relay cannot start.
#[derive(Debug, Error)]
pub enum RelayError {
    /// No loopback port or no thread is available.
    #[error("cannot start the loopback relay: {source}")]
    Start {
        /// The system's error.
        source: io::Error,
    },
}

/// How late pieces left since the relay started.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Lateness {
    /// Pieces forwarded in both directions.
    pub pieces: u64,
    /// Mean delay beyond the due time.
    pub mean_us: f64,
    /// Maximum delay beyond the due time.
    pub max_us: f64,
}

impl Lateness {
    /// How late the pieces of both relays left.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        let pieces = self.pieces + other.pieces;
        let sum_us = |it: Self| it.mean_us * it.pieces as f64;
        Self {
            pieces,
            mean_us: (sum_us(self) + sum_us(other)) / pieces.max(1) as f64,
            max_us: self.max_us.max(other.max_us),
        }
    }
}

#[derive(Default)]
struct RelayState {
    stop: AtomicBool,
    pieces: AtomicU64,
    late_sum_ns: AtomicU64,
    late_max_ns: AtomicU64,
}

/// A running relay. Dropping it ends it.
pub struct Relay {
    address: SocketAddr,
    delay: Duration,
    shared: Arc<RelayState>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay to `to` that adds `delay` to each round trip, half of it each way.
    ///
    /// # Errors
    /// No loopback port or no thread is available.
    pub fn start(to: SocketAddr, delay: Duration) -> Result<Self, RelayError> {
        let failed = |source| RelayError::Start { source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let poller = Poller::new().map_err(failed)?;
        poller.add(&listener, LISTENER).map_err(failed)?;
        let shared = Arc::new(RelayState::default());
        let mut work = RelayLoop {
            listener,
            to,
            one_way_ns: (delay / 2).as_nanos() as u64,
            poller,
            connections: BTreeMap::new(),
            next: 1,
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || work.run())
            .map_err(failed)?;
        Ok(Self {
            address,
            delay,
            shared,
            thread: Some(thread),
        })
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The delay added to a round trip.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// How late pieces left until now.
    pub fn lateness(&self) -> Lateness {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed) as f64;
        let pieces = self.shared.pieces.load(Ordering::Relaxed);
        Lateness {
            pieces,
            mean_us: of(&self.shared.late_sum_ns) / 1e3 / pieces.max(1) as f64,
            max_us: of(&self.shared.late_max_ns) / 1e3,
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, it has ended already.
            thread.join().ok();
        }
    }
}

/// A client's connection and the relay's connection to the target.
struct RelayedConnection {
    /// To the client, to the server.
    sockets: [TcpStream; 2],
    /// From the client, from the server.
    directions: [RelayDirection; 2],
}

struct RelayLoop {
    listener: TcpListener,
    to: SocketAddr,
    one_way_ns: u64,
    poller: Poller,
    connections: BTreeMap<u64, RelayedConnection>,
    next: u64,
    shared: Arc<RelayState>,
}

impl RelayLoop {
    fn run(&mut self) {
        minimize_timer_slack();
        let mut buffer = vec![0; BUFFER];
        let mut numbers = Vec::new();
        while !self.shared.stop.load(Ordering::Relaxed) {
            let timeout_ns = self.next_due_ns().saturating_sub(now_ns()).min(WAIT_NS);
            numbers.clear();
            match self.poller.wait(timeout_ns) {
                Ok(found) => numbers.extend(found),
                // The relay cannot work without polling. Its clients see closed connections.
                Err(_) => return,
            }
            for &(number, is_ending) in &numbers {
                if number == LISTENER {
                    self.accept();
                } else if let Some(connection) = self.connections.get_mut(&(number / 2)) {
                    let side = (number % 2) as usize;
                    let due_ns = now_ns() + self.one_way_ns;
                    if is_ending {
                        connection.directions[side].announce_end();
                    }
                    connection.read(side, &mut buffer, due_ns);
                    // The socket may have become writable.
                    connection.directions[1 - side].is_blocked = false;
                }
            }
            self.forward(&mut buffer);
        }
    }

    fn next_due_ns(&self) -> u64 {
        let directions = self.connections.values().flat_map(|it| &it.directions);
        directions
            .filter_map(RelayDirection::due_ns)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Accepts all pending clients. If the server cannot be reached, the client's connection is
    /// closed.
    fn accept(&mut self) {
        while let Ok((client, _)) = self.listener.accept() {
            let Ok(server) = TcpStream::connect_timeout(&self.to, CONNECT_TIMEOUT) else {
                continue;
            };
            let sockets = [client, server];
            let number = self.next;
            self.next += 1;
            let prepared = sockets.iter().zip(0..).try_for_each(|(socket, side)| {
                socket.set_nonblocking(true)?;
                // Send each piece at once instead of waiting for more.
                socket.set_nodelay(true)?;
                self.poller.add(socket, number * 2 + side)
            });
            if prepared.is_ok() {
                let directions = <[RelayDirection; 2]>::default();
                let connection = RelayedConnection {
                    sockets,
                    directions,
                };
                self.connections.insert(number, connection);
            }
        }
    }

    /// Forwards all due pieces and drops connections that have ended.
    fn forward(&mut self, buffer: &mut [u8]) {
        let mut passed = Forwarded::default();
        let one_way_ns = self.one_way_ns;
        self.connections.retain(|_, connection| {
            let is_open = connection.forward(&mut passed, buffer, one_way_ns);
            if !is_open {
                for socket in &connection.sockets {
                    // The socket may be closed already.
                    socket.shutdown(Shutdown::Both).ok();
                }
            }
            is_open
        });
        let shared = &self.shared;
        shared.pieces.fetch_add(passed.pieces, Ordering::Relaxed);
        shared
            .late_sum_ns
            .fetch_add(passed.late_sum_ns, Ordering::Relaxed);
        shared
            .late_max_ns
            .fetch_max(passed.late_max_ns, Ordering::Relaxed);
    }
}

impl RelayedConnection {
    fn read(&mut self, side: usize, buffer: &mut [u8], due_ns: u64) {
        self.directions[side].read(&mut self.sockets[side], buffer, due_ns);
    }

    /// Forwards all due pieces. Returns false when the connection has ended.
    fn forward(&mut self, passed: &mut Forwarded, buffer: &mut [u8], one_way_ns: u64) -> bool {
        for side in 0..2 {
            let had_room = self.directions[side].has_room();
            let to = &mut self.sockets[1 - side];
            if self.directions[side].forward(to, now_ns(), passed).is_err() {
                return false;
            }
            // epoll does not announce again what was not read because the buffer was full.
            if !had_room && self.directions[side].has_room() {
                self.read(side, buffer, now_ns() + one_way_ns);
            }
        }
        !self.directions.iter().all(RelayDirection::is_done)
    }
}

#[cfg(test)]
mod tests;
