//! Drivers: socket I/O and the clock of a client thread.
//!
//! One driver serves one thread. The worker takes one arrival at a time and reads its bytes in the
//! driver's buffer. There are three drivers: [`EpollDriver`], [`UringDriver`], and a deterministic
//! one with its own clock for tests (`worker::tests`). Connections are opened, kept and closed with
//! epoll. [`Io`] hands them to `io_uring` for the length of a run, because a ring belongs to the
//! thread that created it.
//!
//! # Invariants
//! - Sockets are in blocking mode, and every call requests non-blocking behavior itself: `io_uring`
//!   gives up immediately on non-blocking sockets.
//! - A failed send is not reported as an error. It shows up as the end of its connection, after the
//!   server's last message, which explains the failure better.

mod epoll;
mod uring;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

pub(crate) use epoll::EpollDriver;
pub(crate) use uring::{UringDriver, explain, probe};

/// An event on a connection.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// This many bytes were read; [`Driver::received`] returns them until the next call.
    Bytes { client: usize, count: usize },
    /// A blocked send can continue.
    Writable { client: usize },
    /// The connection ended, with or without an error.
    Closed {
        client: usize,
        error: Option<io::Error>,
    },
}

/// Properties of a driver's waits, for the account of client thread delays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchTraits {
    /// A wait that returns this many arrivals may have left more.
    pub max: usize,
    /// A wait that takes longer than this, excluding run-queue wait, has slept.
    pub work_ns: u64,
}

/// Socket I/O and the clock.
pub(crate) trait Driver {
    /// Returns `CLOCK_MONOTONIC` in ns.
    fn now_ns(&self) -> u64;
    /// Queues bytes to be sent by the next wait at the latest, and returns how many were taken. If
    /// not all were, an [`Arrival::Writable`] follows when there is room. For a client without a
    /// connection the bytes are discarded.
    fn send(&mut self, client: usize, bytes: &[u8]) -> io::Result<usize>;
    /// Waits until something arrives, at most until this time.
    fn wait(&mut self, until_ns: u64) -> io::Result<()>;
    /// Returns the next arrival of the last wait.
    fn next(&mut self) -> io::Result<Option<Arrival>>;
    /// Returns the properties of the driver's waits.
    fn harvests(&self) -> BatchTraits {
        BatchTraits {
            max: usize::MAX,
            work_ns: 0,
        }
    }
    /// Returns the bytes of the last arrival.
    fn received(&self, client: usize, count: usize) -> &[u8];
    /// Closes a connection after sending what is queued; it causes no further arrivals.
    fn close(&mut self, client: usize);
    /// Gives a client another connected, blocking socket; closes the previous one if it is open.
    fn replace(&mut self, client: usize, fd: OwnedFd) -> io::Result<()>;
}

/// A connection while it moves between drivers.
pub(crate) struct DriverConnection {
    fd: OwnedFd,
    /// Bytes that were read but not processed.
    early: Vec<u8>,
}

/// The current driver of a client thread.
pub(crate) enum Io {
    Epoll(EpollDriver),
    Uring(Box<UringDriver>),
}

impl Io {
    /// Switches to `io_uring` on the calling thread. After an error, the epoll driver is unchanged.
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

    /// Switches back to epoll; must be called on the thread that called [`Self::begin_uring`].
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

    fn harvests(&self) -> BatchTraits {
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

/// Sends without waiting, until all is sent or the kernel takes no more; returns the number of
/// bytes sent.
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

/// send(2) as a bare system call. The C library's wrapper is a cancellation point, which costs
/// about 100 of the 2400 user-space instructions of a transaction.
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

/// recv(2) as a bare system call.
#[inline]
fn raw_receive(fd: RawFd, buffer: &mut [u8]) -> libc::c_long {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: pointer and length are those of a mutable slice; no address is requested.
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

/// Shuts down both directions of a failed connection, so that its end arrives.
fn shut_down(fd: &OwnedFd) {
    // SAFETY: the descriptor is open. An error means that the connection is already gone.
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
