//! What to watch, and how.

use std::collections::BTreeSet;

use anyhow::Result;
use pgassay_profile::LiveServer;
use pgassay_wire::Exchange;

use crate::connector::TimedStream;

/// Readings per second without a request for more or fewer.
const FREQUENCY_HZ: u32 = 40;
/// A server to watch.
pub struct WatchedServer {
    /// Its processes, if it runs on this machine.
    pub live: Option<LiveServer>,
    /// Opens a connection to it.
    pub connect: Connect,
}

/// Opens a connection.
pub type Connect = Box<dyn FnMut() -> Result<Exchange<TimedStream>> + Send>;

/// How to watch.
#[derive(Debug, Clone)]
pub struct WatchOptions {
    /// Readings of all sessions per second, on average. The views are queried at most ten times per
    /// second, and with thousands of sessions memory is read less often, too.
    pub frequency_hz: u32,
    /// Keep the statements' normalized texts, and not only their fingerprints.
    pub keeps_text: bool,
    /// Backends that serve other connections of the caller; they are left out.
    pub own_pids: BTreeSet<u32>,
    /// Keep what is needed to divide CPU samples among statements; see [`super::LiveWatch::finish_with`].
    pub keeps_readings: bool,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            frequency_hz: FREQUENCY_HZ,
            keeps_text: true,
            own_pids: BTreeSet::new(),
            keeps_readings: false,
        }
    }
}
