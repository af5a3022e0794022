//! What a live server's views say, over one connection that only reads.
//!
//! [`CatalogWatch::open`] takes a first reading, [`CatalogWatch::tick`] asks who blocks whom while
//! sessions wait for locks, and [`CatalogWatch::finish`] takes the last reading and the differences.
//!
//! Invariants: every transaction is read only, every query is limited to 2 s, and none takes a lock on
//! a relation of a user, behind which others could queue. A query that fails is an entry of
//! [`CatalogResult::unavailable`] and never ends the watch. Names of objects never become part of a
//! statement, except the schema of an extension, which the server quotes.

mod archiver;
mod autovacuum;
mod blocking;
mod checkpoints;
mod connections;
mod counted_statements;
mod counted_texts;
mod counts;
mod databases;
mod foreign_keys;
mod horizon;
mod indexes;
mod lock_mode;
mod lock_tree;
mod locks;
mod marks;
mod other_waiters;
mod reader;
mod reading;
mod recent_rates;
mod reconnecting;
mod redundancy;
mod replay;
mod row;
mod session_texts;
mod settings;
mod silence;
mod slots;
mod statements;
mod tables;
mod transactions;

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::Result;
use pgassay_model::check::Check;
use pgassay_record::activity::{
    Activity, BlockingEpisode, CatalogActivity, IdleLockHolder, LoadMark,
};
use pgassay_server::TimedStream;
use pgassay_wire::Exchange;

use super::own_transactions::OwnTransactions;
use autovacuum::AutovacuumWatch;
pub(super) use blocking::AwaitedRelation;
use blocking::BlockingWatch;
pub use blocking::{session_ended_by, waits_within};
use counted_statements::StatementWatch;
pub use counted_statements::{CountedStatements, OwnCommits};
pub use counted_texts::{CountedText, CountedTexts};
use marks::MarkWatch;
pub use other_waiters::OtherWaiters;
use reader::CatalogReader;
use reading::CatalogReading;
pub use transactions::{
    ENDED_TRANSACTIONS, TransactionRates, autovacuum_elsewhere, counted_at, stalls,
    without_autovacuum,
};

/// At most one reading in this time, minus the jitter of a caller that ticks every second.
const READING_US_MIN: f64 = 0.9e6;
/// Time between readings of locks, as a multiple of what one takes: a server with thousands of locks
/// must not spend its time on telling them.
const LOCKS_PAUSE: f64 = 10.0;
/// How often to ask about sessions without wait events, if nothing else waits.
const UNTRACKED_PAUSE_US: f64 = 5e6;
/// The same for marks, which matter less.
const MARKS_PAUSE: f64 = 100.0;

/// What the catalog watch may keep.
#[derive(Debug, Clone, Copy)]
pub struct CatalogOptions {
    /// Texts of statements, normalized; otherwise only their fingerprints.
    pub keeps_text: bool,
}

/// A watch of a server's views.
pub struct CatalogWatch {
    reader: CatalogReader,
    keeps_text: bool,
    blocking: BlockingWatch,
    other_waiters: OtherWaiters,
    marks: MarkWatch,
    transactions: TransactionRates,
    autovacuum: AutovacuumWatch,
    /// Its transactions in the connection's database at the last [`Self::refresh`].
    autovacuum_then: u64,
    statements: StatementWatch,
    first: CatalogReading,
    /// The reading of the last [`Self::refresh`].
    refreshed: Option<CatalogReading>,
    /// Not before these times.
    next_locks_us: f64,
    next_untracked_us: f64,
    next_marks_us: f64,
    /// The last tick by both clocks.
    last_tick: (f64, Instant),
}

/// What a watch found.
#[derive(Debug)]
pub struct CatalogResult {
    /// Tables, indexes and the server's state; `None` if the connection is lost.
    pub catalog: Option<CatalogActivity>,
    /// Who blocked whom, longest total wait first.
    pub blocking: Vec<BlockingEpisode>,
    /// Idle transactions with locks that do not block others yet, at the last reading.
    pub idle_lock_holders: Vec<IdleLockHolder>,
    /// Differences of `pg_stat_statements`; empty if they could not be read.
    pub statements: CountedStatements,
    /// Checkpoints, vacuums and lock storms.
    pub marks: Vec<LoadMark>,
    /// Transactions per second over time.
    pub transactions: TransactionRates,
    /// What could not be read, why, and what grants it.
    pub unavailable: Vec<Check>,
    /// The PID of the backend that served the connection's first reading; behind a pooler others can follow.
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
        let mut reader = CatalogReader::open(exchange)?;
        reader.begin();
        let marks = MarkWatch::open(&mut reader);
        let statements = StatementWatch::open(&mut reader);
        let first = CatalogReading::read(&mut reader);
        reader.end();
        Ok(Self {
            reader,
            keeps_text: options.keeps_text,
            blocking: BlockingWatch::new(options.keeps_text),
            other_waiters: OtherWaiters::default(),
            marks,
            transactions: TransactionRates::default(),
            autovacuum: AutovacuumWatch::default(),
            autovacuum_then: 0,
            statements,
            first,
            refreshed: None,
            next_locks_us: 0.0,
            next_untracked_us: 0.0,
            next_marks_us: 0.0,
            last_tick: (0.0, Instant::now()),
        })
    }

    /// Asks who blocks these sessions, at most once a second. `at_us` is the time since the window's
    /// start, `lock_waiters` are the PIDs whose `wait_event_type` is `Lock`. Of locks, nothing
    /// is asked if there are none.
    ///
    /// # Errors
    /// Never so far: what cannot be read becomes an entry of [`CatalogResult::unavailable`].
    #[allow(
        clippy::unnecessary_wraps,
        reason = "callers must be ready for an error that ends the watch"
    )]
    pub fn tick(&mut self, at_us: f64, lock_waiters: &[u32]) -> Result<()> {
        self.last_tick = (at_us, Instant::now());
        self.reader.set_moment(at_us);
        let is_due = at_us >= self.next_locks_us;
        if is_due && !self.waits_for_untracked(at_us, lock_waiters) {
            let began = Instant::now();
            let waiters = (lock_waiters, &self.other_waiters);
            let read = self.blocking.read(&mut self.reader, at_us, waiters);
            if let Some((waiters, behind)) = read {
                self.marks.add_waiters(at_us, waiters, behind);
            }
            self.next_locks_us = at_us + pause_us(began, LOCKS_PAUSE);
        }
        if at_us >= self.next_marks_us {
            let began = Instant::now();
            self.reader.begin();
            self.marks.read(&mut self.reader, at_us);
            let workers = &mut self.autovacuum;
            self.transactions.read(&mut self.reader, workers, at_us);
            self.reader.end();
            self.next_marks_us = at_us + pause_us(began, MARKS_PAUSE);
        }
        Ok(())
    }

    /// Whether there is only a session without wait events to ask about, which rarely waits. Reading the locks takes
    /// all of the server's lock partitions.
    fn waits_for_untracked(&mut self, at_us: f64, lock_waiters: &[u32]) -> bool {
        let others = &self.other_waiters;
        let is_only = lock_waiters.is_empty() && others.for_snapshots.is_empty();
        if !is_only || others.untracked.is_empty() || self.blocking.has_open() {
            return false;
        }
        let is_too_early = at_us < self.next_untracked_us;
        if !is_too_early {
            self.next_untracked_us = at_us + UNTRACKED_PAUSE_US;
        }
        is_too_early
    }

    /// Sets which sessions the next ticks ask about besides those that wait for locks.
    pub fn set_other_waiters(&mut self, others: OtherWaiters) {
        self.other_waiters = others;
    }

    /// The watch's transactions.
    pub fn own_transactions(&self) -> OwnTransactions {
        self.reader.own.clone()
    }

    /// Lets the server count the watch's transactions before this one.
    pub fn report_transactions(&mut self) {
        self.reader.begin();
        self.reader.end();
    }

    /// Statements sent to the server so far.
    pub fn statements_sent(&self) -> u64 {
        self.reader.sent
    }

    /// Leaves out transactions on another connection.
    pub fn leave_out_transactions(&mut self, own: OwnTransactions) {
        self.transactions.own_elsewhere.push(own);
    }

    /// As [`Self::tick`], also if the last one was just before: the waits since then are still missing.
    ///
    /// # Errors
    /// As [`Self::tick`].
    pub fn last_tick(&mut self, at_us: f64, lock_waiters: &[u32]) -> Result<()> {
        self.next_locks_us = 0.0;
        self.next_untracked_us = 0.0;
        self.tick(at_us, lock_waiters)
    }

    /// Who blocked whom so far, longest total wait first; of episodes that last, the sessions that wait now.
    pub fn blocking(&self) -> Vec<BlockingEpisode> {
        self.blocking.present()
    }

    /// The relations that sessions waited for at the last tick, if it read the locks.
    pub(super) fn take_awaited(&mut self) -> Vec<AwaitedRelation> {
        self.blocking.take_awaited()
    }

    /// Checkpoints, vacuums and lock storms that last, or were found to have ended since the last call.
    pub fn take_marks(&mut self) -> Vec<LoadMark> {
        self.marks.take()
    }

    /// Writes transactions per second into the timeline, which begins at `since_us` and ends now, and adds stalls.
    pub fn note_transactions(&mut self, activity: &mut Activity, since_us: f64, now_us: f64) {
        recent_rates::note(activity, &self.transactions, (since_us, now_us));
        self.transactions.prune(now_us);
    }

    /// The PID of the backend that served the connection's first reading.
    pub fn own_pid(&self) -> u32 {
        self.reader.own_pid
    }

    /// Opens the connection again with `connect`, if it was lost and a pause is over, which doubles from one
    /// second to a minute while the server refuses. Returns whether it did.
    pub fn reconnect(
        &mut self,
        connect: &mut dyn FnMut() -> Result<Exchange<TimedStream>>,
    ) -> bool {
        self.reader.reconnect(connect)
    }

    /// What cannot be read now, why, and what grants it.
    pub fn unavailable(&self) -> Vec<Check> {
        self.reader.present_refusals()
    }

    /// Whether new sessions have `track_activities` on, as far as it is known.
    pub fn tracks_activities(&mut self) -> bool {
        // Our own session may have another value.
        let sql = "select reset_val from pg_settings where name = 'track_activities'";
        self.reader.begin();
        let rows = self.reader.rows("settings", sql).unwrap_or_default();
        self.reader.end();
        rows.first().is_some_and(|row| row.text(0) == "on")
    }

    /// The statement that grants the right to see other sessions.
    pub fn grant(&self) -> String {
        self.reader.grant()
    }

    /// The server's state now, with what was counted since the last call, or since the first reading.
    /// What [`Self::finish`] returns does not depend on it. `None` if the connection is lost.
    pub fn refresh(&mut self) -> Option<CatalogActivity> {
        let reader = &mut self.reader;
        reader.begin();
        let now = CatalogReading::read(reader);
        let then = self.refreshed.as_ref().unwrap_or(&self.first);
        let mut catalog = now.activity_since(then, reader, self.keeps_text);
        let autovacuum = self.autovacuum.of_jobs();
        self.marks.note_ages(&mut catalog);
        databases::leave_out(&mut catalog, autovacuum - self.autovacuum_then);
        self.autovacuum_then = autovacuum;
        reader.end();
        if !reader.is_connected() {
            return None;
        }
        self.refreshed = Some(now);
        Some(catalog)
    }

    /// What `pg_stat_statements` counted since the last call, or since the first reading, if wanted with its texts,
    /// which the server has in a file. What [`Self::finish`] returns does not depend on it. `None` if it cannot be
    /// read.
    pub fn refresh_statements(&mut self, reads_texts: bool) -> Option<CountedStatements> {
        let reader = &mut self.reader;
        reader.begin();
        let counted = self.statements.since_last(reader, reads_texts);
        reader.end();
        counted
    }

    /// Idle transactions that hold locks on rows or stronger ones and do not block others yet.
    pub fn read_idle_holders(&mut self) -> Vec<IdleLockHolder> {
        self.reader.begin();
        let holders = self.blocking.idle_holders(&mut self.reader);
        self.reader.end();
        holders
    }

    /// Takes the last reading.
    pub fn finish(self) -> CatalogResult {
        self.finish_with(false, || false)
    }

    /// As [`Self::finish`], if wanted with the texts of `pg_stat_statements`. `is_gone` says whether the server has
    /// stopped, if the connection is lost.
    pub fn finish_with(
        mut self,
        reads_texts: bool,
        is_gone: impl FnOnce() -> bool,
    ) -> CatalogResult {
        let (last_us, last) = self.last_tick;
        let reader = &mut self.reader;
        reader.begin();
        self.marks.read(reader, last_us + micros(last));
        let workers = &mut self.autovacuum;
        self.transactions
            .read_now(reader, workers, last_us + micros(last));
        let statements = self.statements.since_first(reader, reads_texts);
        let now = CatalogReading::read(reader);
        let mut catalog = now.activity_since(&self.first, reader, self.keeps_text);
        self.marks.note_ages(&mut catalog);
        databases::leave_out(&mut catalog, self.autovacuum.of_jobs());
        let idle_lock_holders = self.blocking.idle_holders(reader);
        reader.end();
        // A lost connection alone ends no other session.
        if !reader.is_connected() && is_gone() {
            self.blocking.end_all_but(&BTreeSet::new());
        }
        CatalogResult {
            catalog: reader.is_connected().then_some(catalog),
            blocking: self.blocking.whole(),
            idle_lock_holders,
            statements: statements.unwrap_or_default(),
            marks: self.marks.marks(),
            transactions: self.transactions,
            unavailable: reader.refusals(),
            own_pid: reader.own_pid,
            statements_sent: reader.sent,
        }
    }
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

fn pause_us(began: Instant, factor: f64) -> f64 {
    (factor * micros(began)).max(READING_US_MIN)
}
