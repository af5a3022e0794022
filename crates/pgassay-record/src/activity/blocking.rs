//! Who blocks whom.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ActivityWait, EndingSignal, RelationName};

/// A session (or a prepared transaction) that blocks others and does not wait, with all that wait behind it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlockingEpisode {
    /// The root.
    pub root: RootBlocker,
    /// The blocked sessions at the reading with the most of them, or in a snapshot of `top`, if it still was there, at
    /// the last reading; each after the one that blocks it.
    pub blocked: Vec<BlockedSession>,
    /// First reading, in microseconds since the window's start.
    pub first_seen_us: f64,
    /// Last reading, likewise.
    pub last_seen_us: f64,
    /// It was still there at the last reading.
    pub is_lasting: bool,
    /// The blocked sessions' waiting time within the window, in microseconds.
    pub waited_us: f64,
    /// The statement that would end it. pgassay never runs it.
    pub ended_by: String,
}

/// The root of a blocking tree.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RootBlocker {
    /// The backend's PID; `None` for a prepared transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The prepared transaction's identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<String>,
    /// Database.
    pub database: String,
    /// User.
    pub user: String,
    /// `application_name`.
    pub application: String,
    /// Client address, or `local`.
    pub client: String,
    /// `state`, such as `idle in transaction`; `prepared transaction`; `recovery`, which is the startup process of a
    /// standby; or the `backend_type` of an autovacuum worker, a worker of logical replication, or another process
    /// without a state.
    pub state: String,
    /// Time in this state, in microseconds.
    pub state_age_us: f64,
    /// What it waits for, other than its client's next statement; `None` if nothing or unknown, as before
    /// version 10 for all but locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<ActivityWait>,
    /// Age of its transaction, in microseconds; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction_age_us: Option<f64>,
    /// Its current or last statement, normalized; `None` with `--no-text` or if it is hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement: Option<String>,
    /// The statement's fingerprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Its strongest granted relation lock that others wait for, or else its strongest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<SessionHold>,
    /// It is an autovacuum worker that prevents wraparound, and does not yield to others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prevents_wraparound: bool,
    /// It waits itself, for one of those behind it. Of such a cycle, the one that has waited longest stands for the
    /// root. The server ends one of its transactions after `deadlock_timeout`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_deadlocked: bool,
}

/// A transaction that has lasted for less, in microseconds, usually ends before anyone could end it.
const SHORT_US: f64 = 1e6;

impl BlockingEpisode {
    /// Whether it still blocks, and long enough to consider ending it: sessions that change the same row take turns
    /// as root. The server ends a deadlock by itself.
    pub fn is_worth_ending(&self) -> bool {
        // A root that just committed is read without a transaction.
        let age_us = self
            .root
            .transaction_age_us
            .unwrap_or(self.root.state_age_us);
        let is_short = age_us < SHORT_US;
        let waits_are_short = self.blocked.iter().all(|it| it.waited_us < SHORT_US);
        self.is_lasting && !(is_short && waits_are_short) && !self.root.is_deadlocked
    }

    /// The signal that ends the root, if it is a session of a client.
    pub fn ending_signal(&self) -> EndingSignal {
        self.root.ending_signal_for(&self.blocked)
    }
}

impl RootBlocker {
    /// The `state` of a standby's startup process. It holds the locks that it replays.
    pub const RECOVERY: &str = "recovery";
    /// The `state` of a session that is hidden from the user who asks.
    pub const UNKNOWN: &str = "unknown";
    /// The `state` of a session with `track_activities` off.
    pub const UNTRACKED: &str = "disabled";
    /// The `state` of an autovacuum worker.
    pub const AUTOVACUUM: &str = "autovacuum worker";
    /// How the `state` of a worker of logical replication begins (from version 11).
    pub const REPLICATION: &str = EndingSignal::REPLICATION;

    /// Its state and its statement are not known, nor since when it is in that state: then
    /// [`Self::state_age_us`] says for how long at least it has blocked others: the longest wait directly behind it for
    /// its transaction, or for another lock since a reading found it as the blocker.
    pub fn is_unknown(&self) -> bool {
        self.state == Self::UNKNOWN || self.state == Self::UNTRACKED
    }

    /// It is a standby's startup process, which no session can cancel or terminate.
    pub fn is_recovery(&self) -> bool {
        self.state == Self::RECOVERY
    }

    /// It is an autovacuum worker that a session which waits for it cancels after `deadlock_timeout`.
    pub fn gives_way(&self) -> bool {
        self.state == Self::AUTOVACUUM && !self.prevents_wraparound
    }

    /// The signal that ends its transaction, if it is a session of a client.
    pub fn ending_signal(&self) -> EndingSignal {
        EndingSignal::of(&self.state, self.wait.as_ref())
    }

    /// The same, if these wait behind it. An advisory lock may belong to the session, not to its transaction: the
    /// server does not say which.
    pub fn ending_signal_for(&self, blocked: &[BlockedSession]) -> EndingSignal {
        let mut directly = blocked.iter().filter(|it| it.depth == 1);
        let awaits_advisory = directly.any(|it| it.waits_for.kind == "advisory");
        match self.ending_signal() {
            EndingSignal::Cancel if awaits_advisory => EndingSignal::CancelAtAdvisory,
            signal => signal,
        }
    }
}

/// A transaction that is idle, or prepared, and holds locks on rows or stronger ones, but does not block
/// others yet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IdleLockHolder {
    /// The session or prepared transaction, with its strongest lock.
    pub holder: RootBlocker,
    /// The statement that would end it. pgassay never runs it.
    pub ended_by: String,
}

/// A granted lock on a relation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionHold {
    /// Its mode, such as `RowExclusiveLock`.
    pub mode: String,
    /// The relation.
    pub relation: RelationName,
}

/// A session that waits for a lock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlockedSession {
    /// The backend's PID.
    pub pid: u32,
    /// The session in front of it: the PID of the root or of an earlier entry; 0 for a prepared
    /// transaction.
    pub blocked_by: u32,
    /// Its depth in the tree; 1 is directly behind the root.
    pub depth: u32,
    /// User.
    pub user: String,
    /// `application_name`.
    pub application: String,
    /// Its statement, normalized; `None` with `--no-text` or if it is hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement: Option<String>,
    /// The statement's fingerprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// It is a standby's startup process, which waits to replay a lock of the primary.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_recovery: bool,
    /// What it waits for.
    pub waits_for: LockTarget,
    /// How long it has waited, in microseconds.
    pub waited_us: f64,
}

/// A lock that a session waits for, as in `pg_locks`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LockTarget {
    /// `locktype`, such as `transactionid`.
    pub kind: String,
    /// `mode`.
    pub mode: String,
    /// Its relation. For a row lock it is the relation of the row, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relation: Option<RelationName>,
}

impl LockTarget {
    /// The `kind` of what a serializable, read-only and deferrable transaction waits for, which is no lock: the end of
    /// the transactions that could make its snapshot unsafe. It has no `mode`.
    pub const SAFE_SNAPSHOT: &str = "safe snapshot";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn episode(root: RootBlocker, waited_us: f64) -> BlockingEpisode {
        let blocked = BlockedSession {
            depth: 1,
            waited_us,
            ..BlockedSession::default()
        };
        BlockingEpisode {
            root,
            blocked: vec![blocked],
            first_seen_us: 0.0,
            last_seen_us: 1e6,
            is_lasting: true,
            waited_us,
            ended_by: "select pg_terminate_backend(4711);".to_owned(),
        }
    }

    /// Regression: in a queue for a row that moved on, the session in front had just committed, and it was to be
    /// terminated.
    #[test]
    fn a_session_that_committed_a_moment_ago_is_not_worth_ending() {
        let idle = |state_age_us| RootBlocker {
            pid: Some(4711),
            state: "idle".to_owned(),
            state_age_us,
            ..RootBlocker::default()
        };
        assert!(!episode(idle(1e3), 5e3).is_worth_ending());
        // It holds an advisory lock of the session.
        assert!(episode(idle(1e3), 1e6).is_worth_ending());
        assert!(episode(idle(1e6), 5e3).is_worth_ending());
    }
}
