//! The reader of the server's views, beside the readings of sessions.

use std::collections::BTreeMap;

use anyhow::Result;
use pgassay_model::check::Check;
use pgassay_record::activity::{Activity, BlockingEpisode, StatementCounters};

/// What reads the server's views during a watch.
pub(super) trait ViewWatch: Send {
    /// Once a second at most: who blocks these sessions. `at_us` is the time since the window's start.
    fn tick(&mut self, at_us: f64, lock_waiters: &[u32]) -> Result<()>;

    /// The blocking episodes so far.
    fn blocking(&self) -> Vec<BlockingEpisode>;

    /// The backend that serves it.
    fn own_pid(&self) -> u32;

    /// Takes the last reading.
    fn finish(self: Box<Self>) -> ViewResult;
}

/// What the views say.
#[derive(Default)]
pub(super) struct ViewResult {
    /// What goes into the activity: catalog, blocking and marks.
    pub activity: Activity,
    /// Differences of `pg_stat_statements` by query ID.
    pub counters: BTreeMap<i64, StatementCounters>,
    pub unavailable: Vec<Check>,
    pub statements_sent: u64,
}
