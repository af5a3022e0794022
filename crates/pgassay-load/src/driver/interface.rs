//! What a worker may ask of a driver, and what it gets.

use std::io;
use std::os::fd::OwnedFd;

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
    /// Whether requests are sent by the next wait, not at once.
    pub sends_in_wait: bool,
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
    /// Sends what is queued, and checks for arrivals without waiting. Returns whether there are any; the
    /// next wait returns them at once.
    fn check(&mut self) -> io::Result<bool> {
        Ok(true)
    }
    /// Returns the next arrival of the last wait.
    fn next(&mut self) -> io::Result<Option<Arrival>>;
    /// Returns the client of the arrival that [`Self::next`] will return (0), or of the one after it (1). Only a guess,
    /// for prefetching: that connection may be closed meanwhile.
    fn upcoming(&self, _after: usize) -> Option<usize> {
        None
    }
    /// Returns the properties of the driver's waits.
    fn batch_traits(&self) -> BatchTraits {
        BatchTraits {
            max: usize::MAX,
            sends_in_wait: false,
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
    pub fd: OwnedFd,
    /// Bytes that were read but not processed.
    pub early: Vec<u8>,
}
