//! What the sessions of a live server did in a window, in a DBA's terms: statements, sessions, waits,
//! relations, and time.
//!
//! Every table of load is a sum over the same [`LoadCell`]s, so two tables cannot disagree. Load is
//! time per time: the time of sessions that were active, or idle in a transaction, over the length of
//! the window ("average active sessions", as in Performance Insights). It is never a share of samples.
//!
//! Invariant: data that is not available is `None`, absent, or listed in [`Activity::unavailable`]; it
//! is never estimated, except autovacuum's part of the transactions.

mod blocking;
mod catalog;
mod ending;
mod load;
mod wait;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use blocking::{
    BlockedSession, BlockingEpisode, IdleLockHolder, LockTarget, RootBlocker, SessionHold,
};
pub use catalog::{
    ArchiverState, CatalogActivity, CheckpointActivity, ConnectionUse, DatabaseActivity,
    DatabaseAge, HorizonHolder, HorizonKind, IndexActivity, RelationName, ReplayState, RoleSetting,
    SlotState, TableActivity, UncoveredForeignKey,
};
pub use ending::EndingSignal;
pub use load::{LoadBy, LoadRow};
pub use wait::ActivityWait;

use pgassay_model::check::Check;

/// The sessions' activity in a window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Activity {
    /// Where the sessions' status comes from.
    pub source: ActivitySource,
    /// How often all sessions were read.
    pub sweeps: u64,
    /// Length of the window, in microseconds.
    pub window_us: f64,
    /// Time between the two readings of `pg_stat_statements`, in microseconds; `None` if it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters_us: Option<f64>,
    /// Transactions that were seen and ended: the least number that did.
    #[serde(default)]
    pub transactions_seen: u64,
    /// About how many transactions that ended were autovacuum's, by the tables that it processed in the connection's
    /// database; [`LoadInterval::transactions_per_s`] has none of them. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autovacuum_transactions: Option<f64>,
    /// The processors of the server's machine; `None` if it is another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<u32>,
    /// Sessions that were active or in a transaction at any reading, except pgassay's own. Beyond
    /// [`Activity::SESSIONS_MAX`] sessions, one entry with PID 0 stands for the rest; also if there are too many
    /// combinations of sessions and statements.
    pub sessions: Vec<ActivitySession>,
    /// Their statements; one entry for each normalized text.
    pub statements: Vec<ActivityStatement>,
    /// Their wait events. The first is the empty one: on a CPU, or in its run queue.
    pub waits: Vec<ActivityWait>,
    /// The relations whose locks they waited for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relations: Vec<RelationName>,
    /// The sessions' time.
    pub cells: Vec<LoadCell>,
    /// The same time by second.
    pub timeline: Vec<LoadInterval>,
    /// What happened, on the same time axis.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<LoadMark>,
    /// Sessions that blocked others, longest total wait first; those that are over too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocking: Vec<BlockingEpisode>,
    /// Idle transactions that hold locks and do not block others yet, at the last reading; oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle_lock_holders: Vec<IdleLockHolder>,
    /// Tables, indexes and the server's state, from its views; `None` without a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog: Option<CatalogActivity>,
    /// What is missing, why, and how to get it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unavailable: Vec<Check>,
    /// What watching cost.
    pub cost: WatchCost,
}

/// The server counts at least this share of the transactions that were seen, or not all sessions report theirs.
const TRANSACTIONS_REPORTED_MIN: f64 = 0.5;
/// Likewise, of those that `pg_stat_statements` counted.
const TRANSACTIONS_COUNTED_MIN: f64 = 0.85;

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Activity {
    /// Sessions with an entry of their own. A server where every transaction has its own connection
    /// would otherwise fill memory.
    pub const SESSIONS_MAX: usize = 20_000;

    /// What [`ActivityStatement::counters`] were counted over, in seconds, above 0.
    pub fn counters_s(&self) -> f64 {
        let us = self.counters_us.filter(|us| *us > 0.0);
        (us.unwrap_or(self.window_us) / 1e6).max(f64::MIN_POSITIVE)
    }

    /// Whether this may be the number of transactions that ended. A session whose transactions use no table, such as
    /// `select 1`, does not report them to the server's statistics before it ends or uses one (pgstat.c,
    /// `pgstat_report_stat`, 9.6 to 18). Others report theirs up to a second late.
    pub fn is_transaction_count(&self, counted: f64) -> bool {
        counted >= TRANSACTIONS_REPORTED_MIN * self.transactions_seen as f64
            && self.is_transaction_rate(counted * 1e6 / self.window_us.max(f64::MIN_POSITIVE))
    }

    /// The same for a number per second, by what `pg_stat_statements` counted.
    pub fn is_transaction_rate(&self, per_s: f64) -> bool {
        per_s >= TRANSACTIONS_COUNTED_MIN * self.transactions_min_per_s()
    }

    /// Transactions per second that ended at least, by the calls of statements.
    pub fn transactions_min_per_s(&self) -> f64 {
        let counted = self.statements.iter().map(|it| it.transactions_min);
        let counted = counted.fold(0, u64::saturating_add);
        counted as f64 / self.counters_s()
    }

    // Names of entries of [`Activity::unavailable`], without which a list would seem empty.

    /// Sessions of other users that the server does not show.
    pub const HIDDEN_SESSIONS: &str = "hidden sessions";
    /// Sessions that do not show what they do.
    pub const DISABLED_SESSIONS: &str = "track_activities";
    /// The rights of the connection's user.
    pub const PRIVILEGES: &str = "privileges";
    /// All that the server's views say.
    pub const VIEWS: &str = "views";
    /// The connection that reads them was lost.
    pub const CATALOG_CONNECTION: &str = "catalog connection";
    /// The server's answers, while there are none.
    pub const ANSWERS: &str = "answers";
    /// Who blocks whom.
    pub const BLOCKING: &str = "blocking sessions";
    /// Tables and what is read and written in them.
    pub const TABLES: &str = "tables";
    /// The number of transactions.
    pub const TRANSACTIONS: &str = "transactions";

    /// The value of an entry about a query that failed.
    pub const NOT_READ: &str = "not read";
    /// The value of such an entry if it was missing for a part of the window.
    pub const AT_TIMES: &str = "missing at times";
}

/// Where the sessions' status comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActivitySource {
    /// The server's shared memory.
    Memory,
    /// The view `pg_stat_activity`.
    #[default]
    PgStatActivity,
}

/// One session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActivitySession {
    /// The backend's PID.
    pub pid: u32,
    /// When the backend started, in microseconds since 1970.
    pub started_us: i64,
    /// `backend_type`, such as `client backend` or `autovacuum worker`.
    pub backend_type: String,
    /// Its database; empty if it has none.
    pub database: String,
    /// Its user; empty if it has none.
    pub user: String,
    /// `application_name`.
    pub application: String,
    /// The client's address; `local` for a Unix-domain socket; empty if it has no client.
    pub client: String,
}

/// A statement, by its normalized text: constants are `$n`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ActivityStatement {
    /// A hash of the normalized text, in hexadecimal: equal on every server.
    pub fingerprint: String,
    /// The server's `query_id`, if it computes one (from version 14).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_id: Option<i64>,
    /// The normalized text; `None` with `--no-text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The server had cut the text at `track_activity_query_size`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
    /// Distinct executions that were seen: a lower bound of its calls.
    pub executions_seen: u64,
    /// The largest number of its executions seen in one transaction of one session.
    pub executions_seen_in_transaction_max: u64,
    /// Transactions that its counted executions ended, at least: its calls if it is a `COMMIT`, or if all executions that
    /// were seen were whole transactions, and otherwise 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub transactions_min: u64,
    /// Differences of `pg_stat_statements` over [`Activity::counters_us`]; `None` without the extension, or if none are known to be its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<StatementCounters>,
    /// The column of the observation's profile with its CPU samples; `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_column: Option<u32>,
}

/// One statement's differences of `pg_stat_statements`, over all users and databases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatementCounters {
    /// Executions that ended.
    pub calls: u64,
    /// Their execution time, in microseconds.
    pub execution_us: f64,
    /// Their planning time; `None` before version 13, or if `track_planning` is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planning_us: Option<f64>,
    /// Rows returned or affected.
    pub rows: u64,
    /// Shared blocks found in the buffer cache.
    pub shared_hit: u64,
    /// Shared blocks read.
    pub shared_read: u64,
    /// Shared blocks dirtied.
    pub shared_dirtied: u64,
    /// Temporary blocks read.
    pub temp_read: u64,
    /// Temporary blocks written.
    pub temp_written: u64,
    /// Bytes of WAL; `None` before version 13.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wal_bytes: Option<u64>,
}

/// The time that one session spent on one statement in one state and one wait.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadCell {
    /// Index into [`Activity::sessions`].
    pub session: u32,
    /// Index into [`Activity::statements`]; `None` if the statement is unknown. In a transaction that
    /// is idle it is the last statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement: Option<u32>,
    /// The session's state.
    pub state: SessionStatus,
    /// Index into [`Activity::waits`].
    pub wait: u32,
    /// Index into [`Activity::relations`]: the relation whose lock it waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relation: Option<u32>,
    /// The time, in microseconds.
    pub time_us: f64,
    /// The readings behind it.
    pub samples: u64,
}

/// The state of a session, as in `pg_stat_activity`. Idle sessions have no load.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    /// `active` or `fastpath function call`; also background processes that do not wait for work.
    Active,
    /// `idle in transaction`.
    IdleInTransaction,
    /// `idle in transaction (aborted)`.
    IdleInAbortedTransaction,
}

/// The load of one interval of the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadInterval {
    /// Its start, in microseconds since the window's start.
    pub start_us: f64,
    /// Its length, in microseconds.
    pub length_us: f64,
    /// Average active sessions by `wait_event_type`, in alphabetical order; an empty name is CPU and
    /// run queue.
    pub active: Vec<(String, f64)>,
    /// Average sessions idle in a transaction.
    pub idle_in_transaction: f64,
    /// Transactions that ended, per second; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transactions_per_s: Option<f64>,
}

/// Something that happened during the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadMark {
    /// When, in microseconds since the window's start.
    pub at_us: f64,
    /// Its duration; 0 if it was an instant or lasted beyond the window.
    pub length_us: f64,
    /// What it was.
    pub kind: LoadMarkKind,
    /// In words, such as `autovacuum of public.orders`.
    pub text: String,
    /// The number of errors, for those of the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

impl LoadMark {
    /// The beginnings of the server's messages with which it refuses connections because it has no free one.
    pub const REFUSALS: [&str; 2] = [
        "sorry, too many clients already",
        "remaining connection slots are reserved",
    ];

    /// Whether it is of connections that the server refused because it had no free one.
    pub fn is_refusal(&self) -> bool {
        let mut refusals = Self::REFUSALS.iter();
        self.kind == LoadMarkKind::LogError && refusals.any(|it| self.text.contains(it))
    }
}

/// Kinds of [`LoadMark`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadMarkKind {
    /// Sessions were active, but no transaction ended.
    Stall,
    /// A checkpoint.
    Checkpoint,
    /// A vacuum or analyze, also an automatic one.
    Vacuum,
    /// Several sessions waited for locks.
    LockStorm,
    /// The server's log reported an error.
    LogError,
}

/// What watching cost, on the watched machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchCost {
    /// CPU time of pgassay, in microseconds.
    pub own_cpu_us: f64,
    /// CPU time of the backends that served pgassay's connections; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_cpu_us: Option<f64>,
    /// Peak resident memory of pgassay, in bytes.
    pub peak_memory_bytes: u64,
    /// Connections to the server that pgassay held at the same time; those with which it began are closed before the
    /// window. 0 if unknown.
    #[serde(default)]
    pub connections: u32,
    /// Statements that pgassay sent to the server.
    pub statements_sent: u64,
}
