//! What a live server's views say, over one connection that only reads.
//!
//! [`CatalogWatch::open`] takes a first reading, [`CatalogWatch::tick`] asks who blocks whom while
//! sessions wait for locks, and [`CatalogWatch::finish`] takes the last reading and the differences.
//!
//! Invariants: every transaction is read only, every query is limited to 2 s, and none takes a lock on
//! a relation of a user, behind which others could queue. A query that fails is an entry of
//! [`CatalogResult::unavailable`] and never ends the watch. Names of objects never become part of a
//! statement, except the schema of an extension, which the server quotes.

mod blocking;
mod lock_mode;
mod lock_tree;
mod locks;
mod marks;
mod reader;
mod row;
mod session_texts;

use std::collections::BTreeMap;

use anyhow::Result;
use pgassay_model::check::Check;
use pgassay_record::activity::{
    BlockingEpisode, CatalogActivity, IdleLockHolder, LoadMark, StatementCounters,
};
use pgassay_server::TimedStream;
use pgassay_wire::Exchange;

use blocking::BlockingWatch;
use marks::MarkWatch;
use reader::CatalogReader;

/// At most one reading of locks in this time, minus the jitter of a caller that ticks every second.
const TICK_US_MIN: f64 = 0.9e6;

/// What the catalog watch may keep.
#[derive(Debug, Clone, Copy)]
pub struct CatalogOptions {
    /// Texts of statements, normalized; otherwise only their fingerprints.
    pub keeps_text: bool,
}

/// A watch of a server's views.
pub struct CatalogWatch {
    reader: CatalogReader,
    blocking: BlockingWatch,
    marks: MarkWatch,
    ticked_at_us: Option<f64>,
}

/// What a watch found.
#[derive(Debug)]
pub struct CatalogResult {
    /// Tables, indexes and the server's state; `None` if the connection was lost.
    pub catalog: Option<CatalogActivity>,
    /// Who blocked whom, longest total wait first.
    pub blocking: Vec<BlockingEpisode>,
    /// Idle transactions with locks that block nobody yet, at the last reading.
    pub idle_lock_holders: Vec<IdleLockHolder>,
    /// Differences of `pg_stat_statements` by query ID.
    pub counters: BTreeMap<i64, StatementCounters>,
    /// Checkpoints, vacuums and lock storms.
    pub marks: Vec<LoadMark>,
    /// What could not be read, why, and what grants it.
    pub unavailable: Vec<Check>,
    /// The PID of the backend that served the first reading; behind a pooler others can follow.
    pub own_pid: u32,
    /// Statements sent to the server.
    pub statements_sent: u64,
}

impl CatalogWatch {
    /// Takes the first reading.
    ///
    /// # Errors
    /// The server is older than 9.6, or cannot be read at all.
    pub fn open(exchange: Exchange<TimedStream>, options: &CatalogOptions) -> Result<Self> {
        let reader = CatalogReader::open(exchange)?;
        Ok(Self {
            reader,
            blocking: BlockingWatch::new(options.keeps_text),
            marks: MarkWatch::default(),
            ticked_at_us: None,
        })
    }

    /// Asks who blocks these sessions, at most once a second. `at_us` is the time since the window's
    /// start, `lock_waiters` are the PIDs whose `wait_event_type` is `Lock`. Costs nothing if there are
    /// none.
    ///
    /// # Errors
    /// Never so far: what cannot be read becomes an entry of [`CatalogResult::unavailable`].
    #[allow(
        clippy::unnecessary_wraps,
        reason = "callers must be ready for an error that ends the watch"
    )]
    pub fn tick(&mut self, at_us: f64, lock_waiters: &[u32]) -> Result<()> {
        if self
            .ticked_at_us
            .is_some_and(|last| at_us - last < TICK_US_MIN)
        {
            return Ok(());
        }
        self.ticked_at_us = Some(at_us);
        let (waiters, behind) = self.blocking.read(&mut self.reader, at_us, lock_waiters);
        self.marks.add_waiters(at_us, waiters, behind);
        Ok(())
    }

    /// Who blocked whom so far, longest total wait first.
    pub fn blocking(&self) -> Vec<BlockingEpisode> {
        self.blocking.episodes()
    }

    /// The PID of the backend that served the first reading.
    pub fn own_pid(&self) -> u32 {
        self.reader.own_pid
    }

    /// Takes the last reading.
    pub fn finish(mut self) -> CatalogResult {
        self.reader.begin();
        let idle_lock_holders = self.blocking.idle_holders(&mut self.reader);
        self.reader.end();
        let mut unavailable = self.reader.refusals();
        if self.blocking.has_hidden {
            unavailable.push(Check {
                name: "statements of sessions".to_owned(),
                value: "hidden".to_owned(),
                limitation: Some(
                    "states and statements of other users' sessions are hidden".to_owned(),
                ),
                fix: Some(self.reader.grant()),
            });
        }
        CatalogResult {
            catalog: None,
            blocking: self.blocking.episodes(),
            idle_lock_holders,
            counters: BTreeMap::new(),
            marks: self.marks.marks(),
            unavailable,
            own_pid: self.reader.own_pid,
            statements_sent: self.reader.sent,
        }
    }
}
