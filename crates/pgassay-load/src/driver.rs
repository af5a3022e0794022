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
mod interface;
mod system_calls;
mod uring;

use std::io;
use std::os::fd::OwnedFd;

pub(crate) use epoll::EpollDriver;
pub(crate) use interface::{Arrival, BatchTraits, Driver, DriverConnection};
pub(crate) use uring::{UringDriver, explain, probe};

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
        let mut epoll = EpollDriver::new()?;
        let adopted = epoll.adopt(uring.take_connections()?);
        *self = Self::Epoll(epoll);
        adopted
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
    fn check(&mut self) -> io::Result<bool> {
        match self {
            Self::Epoll(driver) => driver.check(),
            Self::Uring(driver) => driver.check(),
        }
    }

    #[inline]
    fn next(&mut self) -> io::Result<Option<Arrival>> {
        match self {
            Self::Epoll(driver) => driver.next(),
            Self::Uring(driver) => driver.next(),
        }
    }

    #[inline]
    fn upcoming(&self, after: usize) -> Option<usize> {
        match self {
            Self::Epoll(driver) => driver.upcoming(after),
            Self::Uring(driver) => driver.upcoming(after),
        }
    }

    fn batch_traits(&self) -> BatchTraits {
        match self {
            Self::Epoll(driver) => driver.batch_traits(),
            Self::Uring(driver) => driver.batch_traits(),
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

#[cfg(test)]
mod tests;
