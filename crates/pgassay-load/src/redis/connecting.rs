//! Opening the connections to Redis: each within a time limit, and until the stop flag is set.
//!
//! Resolving a name and connecting cannot be interrupted, so another thread does both. After a stop it is left
//! alone: it ends with its current attempt, or with the process.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::RedisError;
use crate::socket;

/// Time limit of each connection.
const LIMIT: Duration = Duration::from_secs(10);
/// How often the stop flag is checked.
const POLL: Duration = Duration::from_millis(20);
/// Delay before retrying when the server's connection queue is full.
const RETRY: Duration = Duration::from_millis(2);

/// Opens this many connections. `address` is a socket's path or `host:port`.
pub(super) fn open(
    address: &str,
    clients: u32,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<OwnedFd>, RedisError> {
    open_within(LIMIT, address, clients, stop)
}

fn open_within(
    limit: Duration,
    address: &str,
    clients: u32,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<OwnedFd>, RedisError> {
    let failed = |source| RedisError::Connect {
        address: address.to_owned(),
        source,
    };
    let (sender, opened) = sync_channel(1);
    let (of_thread, stop_of_thread) = (address.to_owned(), Arc::clone(stop));
    let each = move || {
        for _ in 0..clients {
            let one = open_one(&of_thread, limit, &stop_of_thread);
            // After an error or a stop, there is no receiver.
            if sender.send(one).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().spawn(each).map_err(failed)?;
    let next = |_| next(&opened, limit, stop)?.map_err(failed);
    (0..clients).map(next).collect()
}

/// The thread's next connection. The limit is for what has none in the thread: resolving a name.
fn next(
    opened: &Receiver<io::Result<OwnedFd>>,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<io::Result<OwnedFd>, RedisError> {
    // The thread's own error says more.
    let until = Instant::now() + limit + 5 * POLL;
    loop {
        match opened.recv_timeout(POLL) {
            Ok(Ok(opened)) => return Ok(Ok(opened)),
            // The thread sees a stop too.
            Ok(Err(_)) | Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                return Err(RedisError::Stopped);
            }
            Ok(Err(error)) => return Ok(Err(error)),
            Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
            Err(RecvTimeoutError::Timeout) => return Ok(Err(timed_out(limit))),
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(Err(io::Error::other("connecting ended early")));
            }
        }
    }
}

fn timed_out(limit: Duration) -> io::Error {
    let words = format!("not connected within {} s", limit.as_secs_f64());
    io::Error::new(io::ErrorKind::TimedOut, words)
}

fn open_one(address: &str, limit: Duration, stop: &AtomicBool) -> io::Result<OwnedFd> {
    let until = Instant::now() + limit;
    if !address.contains('/') {
        return open_tcp(address.to_socket_addrs()?, limit, until);
    }
    loop {
        match socket::open_path(Path::new(address)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            opened => return opened,
        }
        // The server's connection queue is full.
        if stop.load(Ordering::Relaxed) || Instant::now() > until {
            return Err(timed_out(limit));
        }
        thread::sleep(RETRY);
    }
}

/// The first address that accepts a connection.
fn open_tcp(
    addresses: impl Iterator<Item = SocketAddr>,
    limit: Duration,
    until: Instant,
) -> io::Result<OwnedFd> {
    let mut error = io::Error::new(io::ErrorKind::NotFound, "no such address");
    for address in addresses {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                return Ok(socket.into());
            }
            Err(failed) if failed.kind() == io::ErrorKind::TimedOut => error = timed_out(limit),
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A socket whose connection queue is full, and what keeps it so.
    fn full(directory: &Path) -> (String, UnixListener, Vec<OwnedFd>) {
        let path = directory.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        // SAFETY: the descriptor is open; listening again only makes the queue shorter.
        let shortened = unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 0) };
        assert_eq!(shortened, 0);
        let mut queued = Vec::new();
        while let Ok(fd) = socket::open_path(&path) {
            queued.push(fd);
        }
        (path.to_str().unwrap().to_owned(), listener, queued)
    }

    /// Regression: it waited forever.
    #[test]
    fn a_full_queue_of_redis_ends_at_the_time_limit() {
        let directory = tempfile::tempdir().unwrap();
        let (address, _listener, _queued) = full(directory.path());
        let stop = Arc::new(AtomicBool::new(false));
        let error = open_within(Duration::from_millis(100), &address, 1, &stop).unwrap_err();
        let message = error.to_string();
        assert!(message.ends_with("not connected within 0.1 s"), "{message}");
    }

    /// Regression: the first Ctrl-C was ignored.
    #[test]
    fn a_stop_ends_waiting_for_a_full_queue_of_redis() {
        let directory = tempfile::tempdir().unwrap();
        let (address, _listener, _queued) = full(directory.path());
        let stop = Arc::new(AtomicBool::new(false));
        let setter = Arc::clone(&stop);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            setter.store(true, Ordering::Relaxed);
        });
        let error = open_within(Duration::from_mins(10), &address, 1, &stop).unwrap_err();
        assert!(matches!(error, RedisError::Stopped), "{error}");
    }

    #[test]
    fn a_queue_of_redis_that_has_room_again_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let (address, listener, queued) = full(directory.path());
        let stop = Arc::new(AtomicBool::new(false));
        thread::spawn(move || while listener.accept().is_ok() {});
        let clients = u32::try_from(queued.len()).unwrap() + 2;
        let opened = open_within(Duration::from_mins(1), &address, clients, &stop).unwrap();
        assert_eq!(opened.len(), clients as usize);
    }
}
