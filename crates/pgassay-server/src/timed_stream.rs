//! A Unix or TCP socket that limits the time of a whole answer.
//!
//! A limit on each read is not enough: a server that sends a notice now and then would never exceed
//! it.

use std::cell::{Cell, OnceCell};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection::Stream;
use crate::socket_closer::SocketCloser;

/// How often a wait asks whether it is to end.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Returns an error if a wait for the server that began at this moment is to end before its time limit.
pub type WaitCheck = Arc<dyn Fn(Instant) -> io::Result<()> + Send + Sync>;

enum AnySocket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl AnySocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

/// A blocking socket with a deadline. `flush` ends a request; the answer to it must be complete
/// within the limit, as [`pgassay_wire::Exchange`] uses it.
pub struct TimedStream {
    socket: AnySocket,
    limit: Cell<Option<Duration>>,
    until: Cell<Option<Instant>>,
    /// Asked during each wait.
    check: OnceCell<WaitCheck>,
}

impl TimedStream {
    /// A Unix socket; all operations until [`Self::set_limit`] end by `until`.
    pub fn unix(socket: UnixStream, until: Option<Instant>) -> Self {
        Self::new(AnySocket::Unix(socket), until)
    }

    /// A TCP socket, as [`Self::unix`].
    pub fn tcp(socket: TcpStream, until: Option<Instant>) -> Self {
        Self::new(AnySocket::Tcp(socket), until)
    }

    fn new(socket: AnySocket, until: Option<Instant>) -> Self {
        Self {
            socket,
            limit: Cell::new(None),
            until: Cell::new(until),
            check: OnceCell::new(),
        }
    }

    /// Ends each wait for the server once `check` returns an error. Only the first call has an effect.
    pub fn end_waits(&self, check: WaitCheck) {
        _ = self.check.set(check);
    }

    /// Limits the time of each answer, and removes the current deadline.
    ///
    /// # Errors
    /// The socket does not accept the limit.
    pub fn set_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        self.limit.set(limit);
        self.until.set(limit.map(|limit| Instant::now() + limit));
        self.set_timeout(limit)
    }

    fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match &self.socket {
            AnySocket::Unix(stream) => {
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)
            }
            AnySocket::Tcp(stream) => {
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)
            }
        }
    }

    /// Limits the next operation to the time left before the deadline.
    fn limit_to_deadline(&self) -> io::Result<()> {
        match self.time_left()? {
            None => Ok(()),
            left => self.set_timeout(left),
        }
    }

    /// The time left before the deadline, if there is one.
    fn time_left(&self) -> io::Result<Option<Duration>> {
        let Some(until) = self.until.get() else {
            return Ok(None);
        };
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }

    /// Reads in short waits, with `check` before each.
    fn read_checked(&mut self, check: &WaitCheck, buffer: &mut [u8]) -> io::Result<usize> {
        let began = Instant::now();
        loop {
            check(began)?;
            let left = self.time_left()?;
            self.set_timeout(Some(left.map_or(ASK_EVERY, |left| left.min(ASK_EVERY))))?;
            match self.socket.read(buffer) {
                Err(error) if is_timeout(&error) => {}
                ended => return ended,
            }
        }
    }
}

/// A read that times out fails with one of two error kinds.
fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

impl Stream for TimedStream {
    fn set_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        Self::set_limit(self, limit)
    }

    fn closer(&self) -> io::Result<SocketCloser> {
        Ok(match &self.socket {
            AnySocket::Unix(stream) => SocketCloser::Unix(stream.try_clone()?),
            AnySocket::Tcp(stream) => SocketCloser::Tcp(stream.try_clone()?),
        })
    }
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(check) = self.check.get().cloned() {
            return self.read_checked(&check, buffer);
        }
        self.limit_to_deadline()?;
        self.socket.read(buffer)
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Between two answers the old deadline means nothing: a request has the whole limit.
        if let Some(limit) = self.limit.get() {
            self.set_timeout(Some(limit))?;
        } else {
            self.limit_to_deadline()?;
        }
        match &mut self.socket {
            AnySocket::Unix(stream) => stream.write(bytes),
            AnySocket::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(limit) = self.limit.get() {
            self.until.set(Some(Instant::now() + limit));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A peer that sends a byte every 20 ms for 5 s, unless the other end closes.
    fn dribbling() -> UnixStream {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            for _ in 0..250 {
                if theirs.write_all(b"N").is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        ours
    }

    fn read_until_error(stream: &mut TimedStream) -> io::ErrorKind {
        let mut buffer = [0; 16];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return io::ErrorKind::UnexpectedEof,
                Ok(_) => {}
                Err(error) => return error.kind(),
            }
        }
    }

    #[test]
    fn bytes_now_and_then_do_not_extend_the_limit_of_an_answer() {
        let mut stream = TimedStream::unix(dribbling(), None);
        stream.set_limit(Some(Duration::from_millis(100))).unwrap();
        for _ in 0..2 {
            // The second request has the whole limit again.
            std::thread::sleep(Duration::from_millis(150));
            stream.write_all(b"Q").unwrap();
            stream.flush().unwrap();
            let mut one = [0; 1];
            stream.read_exact(&mut one).unwrap();
            let failed = read_until_error(&mut stream);
            assert!(
                matches!(failed, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock),
                "{failed:?}"
            );
        }
    }

    #[test]
    fn a_check_ends_a_wait_without_a_limit_and_not_an_answer() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut stream = TimedStream::unix(ours, None);
        let ends = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&ends);
        stream.end_waits(Arc::new(move |_| {
            if asked.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Ok(())
        }));
        let answering = std::thread::spawn(move || {
            std::thread::sleep(3 * ASK_EVERY);
            theirs.write_all(b"N").unwrap();
            std::thread::sleep(3 * ASK_EVERY);
            ends.store(true, Ordering::Relaxed);
            theirs
        });
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 1);
        let failed = read_until_error(&mut stream);
        assert_eq!(failed, io::ErrorKind::ConnectionAborted);
        drop(answering.join().unwrap());
    }

    #[test]
    fn a_check_leaves_the_limit_of_an_answer() {
        let mut stream = TimedStream::unix(dribbling(), None);
        stream.end_waits(Arc::new(|_| Ok(())));
        stream.set_limit(Some(Duration::from_millis(100))).unwrap();
        stream.flush().unwrap();
        assert_eq!(read_until_error(&mut stream), io::ErrorKind::TimedOut);
    }

    #[test]
    fn bytes_now_and_then_do_not_extend_the_limit_of_signing_in() {
        let until = Instant::now() + Duration::from_millis(100);
        let mut stream = TimedStream::unix(dribbling(), Some(until));
        stream.flush().unwrap();
        let failed = read_until_error(&mut stream);
        assert!(
            matches!(failed, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock),
            "{failed:?}"
        );
    }
}
