//! What moves bytes between sessions and sockets, and tells the time.
//!
//! One driver serves one thread. The worker asks for arrivals one at a time and looks at their
//! bytes where the driver has read them. Three drivers exist: [`EpollDriver`], [`UringDriver`],
//! and a deterministic one for tests with a clock of its own (`worker::tests`). Connections are
//! opened, kept and closed on epoll; [`Io`] hands them to `io_uring` for the length of a run, since
//! a ring belongs to the thread that made it.
//!
//! # Invariants
//! - Sockets are blocking ones, and every call says that it will not wait: `io_uring` gives up at
//!   once on sockets that are non-blocking themselves.
//! - A send that fails is no error. It shows as the end of its connection, after what the server
//!   said last, which tells more than the failure does.

mod epoll;
mod uring;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

pub(crate) use epoll::EpollDriver;
pub(crate) use uring::{UringDriver, explain, probe};

/// What happened on a connection.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// So many bytes were read; [`Driver::received`] has them until the next call.
    Bytes { client: usize, count: usize },
    /// A send that was blocked can go on.
    Writable { client: usize },
    /// The connection ended, with an error or in order.
    Closed {
        client: usize,
        error: Option<io::Error>,
    },
}

/// What a driver's waits are like, for those who tell what was waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Harvests {
    /// A wait that finds so many arrivals may have left some over.
    pub max: usize,
    /// A wait that lasts longer than this, waiting for a processor left out, has slept.
    pub work_ns: u64,
}

/// Moves bytes and tells the time.
pub(crate) trait Driver {
    /// The monotonic clock, in ns.
    fn now_ns(&self) -> u64;
    /// Takes bytes to be sent by the next wait at the latest, and tells how many. If that is not
    /// all, an [`Arrival::Writable`] follows when there is room. A client without a connection is
    /// told nothing.
    fn send(&mut self, client: usize, bytes: &[u8]) -> io::Result<usize>;
    /// Waits until something arrives, at most until this moment.
    fn wait(&mut self, until_ns: u64) -> io::Result<()>;
    /// The next arrival of what the last wait found.
    fn next(&mut self) -> io::Result<Option<Arrival>>;
    /// What its waits are like.
    fn harvests(&self) -> Harvests {
        Harvests {
            max: usize::MAX,
            work_ns: 0,
        }
    }
    /// The bytes of the arrival that was taken last.
    fn received(&self, client: usize, count: usize) -> &[u8];
    /// Closes a connection after what was given to be sent; nothing arrives from it any more.
    fn close(&mut self, client: usize);
    /// Gives a client another connection, connected and blocking; an open one is closed.
    fn replace(&mut self, client: usize, fd: OwnedFd) -> io::Result<()>;
}

/// A connection on its way from one driver to another.
pub(crate) struct Connection {
    fd: OwnedFd,
    /// What had been read but not looked at.
    early: Vec<u8>,
}

/// The driver of a thread of the load, whichever it is at the time.
pub(crate) enum Io {
    Epoll(EpollDriver),
    Uring(Box<UringDriver>),
}

impl Io {
    /// Goes over to `io_uring`, for the calling thread only; after an error all is as before.
    pub fn begin_uring(&mut self) -> io::Result<()> {
        let Self::Epoll(epoll) = self else {
            return Ok(());
        };
        let mut uring = Box::new(UringDriver::new(epoll.clients())?);
        if let Err(error) = uring.adopt(epoll.take_connections()) {
            epoll.adopt(uring.take_connections()?)?;
            return Err(error);
        }
        *self = Self::Uring(uring);
        Ok(())
    }

    /// Goes back to epoll; to be called on the thread that went over.
    pub fn end_uring(&mut self) -> io::Result<()> {
        let Self::Uring(uring) = self else {
            return Ok(());
        };
        let connections = uring.take_connections()?;
        let mut epoll = EpollDriver::new()?;
        epoll.adopt(connections)?;
        *self = Self::Epoll(epoll);
        Ok(())
    }

    /// Whether a client has a connection.
    pub fn is_open(&self, client: usize) -> bool {
        match self {
            Self::Epoll(driver) => driver.is_open(client),
            Self::Uring(driver) => driver.is_open(client),
        }
    }
}

impl Driver for Io {
    #[inline]
    fn now_ns(&self) -> u64 {
        crate::clock::monotonic_ns()
    }

    #[inline]
    fn send(&mut self, client: usize, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Epoll(driver) => driver.send(client, bytes),
            Self::Uring(driver) => driver.send(client, bytes),
        }
    }

    #[inline]
    fn wait(&mut self, until_ns: u64) -> io::Result<()> {
        match self {
            Self::Epoll(driver) => driver.wait(until_ns),
            Self::Uring(driver) => driver.wait(until_ns),
        }
    }

    #[inline]
    fn next(&mut self) -> io::Result<Option<Arrival>> {
        match self {
            Self::Epoll(driver) => driver.next(),
            Self::Uring(driver) => driver.next(),
        }
    }

    fn harvests(&self) -> Harvests {
        match self {
            Self::Epoll(driver) => driver.harvests(),
            Self::Uring(driver) => driver.harvests(),
        }
    }

    #[inline]
    fn received(&self, client: usize, count: usize) -> &[u8] {
        match self {
            Self::Epoll(driver) => driver.received(client, count),
            Self::Uring(driver) => driver.received(client, count),
        }
    }

    fn close(&mut self, client: usize) {
        match self {
            Self::Epoll(driver) => driver.close(client),
            Self::Uring(driver) => driver.close(client),
        }
    }

    fn replace(&mut self, client: usize, fd: OwnedFd) -> io::Result<()> {
        match self {
            Self::Epoll(driver) => driver.replace(client, fd),
            Self::Uring(driver) => driver.replace(client, fd),
        }
    }
}

/// Sends without waiting until all is sent or the kernel takes no more; how much went.
fn send_now(fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        let count = raw_send(fd.as_raw_fd(), &bytes[sent..]);
        if count >= 0 {
            sent += count as usize;
            continue;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => break,
            _ => return Err(error),
        }
    }
    Ok(sent)
}

/// send(2) as a bare system call. The C library's is a point of cancellation, which costs about
/// 100 of the 2400 instructions that a transaction executes outside the kernel.
#[inline]
fn raw_send(fd: RawFd, bytes: &[u8]) -> libc::c_long {
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: pointer and length are those of a slice; there is no address.
    unsafe {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        libc::syscall(
            libc::SYS_sendto,
            fd,
            bytes.as_ptr(),
            bytes.len(),
            flags,
            none,
            0_usize,
        )
    }
}

/// recv(2), likewise.
#[inline]
fn raw_receive(fd: RawFd, buffer: &mut [u8]) -> libc::c_long {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: pointer and length are those of a slice that is lent for writing; no address is
    // wanted.
    unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            fd,
            buffer.as_mut_ptr(),
            buffer.len(),
            libc::MSG_DONTWAIT,
            none,
            none,
        )
    }
}

/// Ends both directions of a connection that failed, so that its end arrives.
fn shut_down(fd: &OwnedFd) {
    // SAFETY: the descriptor is open. An error means that there is no connection any more.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

#[cfg(test)]
mod tests;
