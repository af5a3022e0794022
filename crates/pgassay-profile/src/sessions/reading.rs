//! What one reading of a session says.

use std::sync::Arc;

use crate::waits::activity::NamedWait;

/// A session and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionIdentity {
    /// The backend's PID.
    pub pid: u32,
    /// When the backend started, in microseconds since 1970. Together with the PID it is unique.
    pub started_us: i64,
    /// `backend_type` as in `pg_stat_activity`, such as `client backend`.
    pub backend_type: String,
    /// OID of its database; 0 if it has none.
    pub database: u32,
    /// OID of its user; 0 if it has none.
    pub user: u32,
    /// `application_name`.
    pub application: String,
    /// The client's address; `local` for a Unix-domain socket; empty if there is no client.
    pub client: String,
}

/// `state` in `pg_stat_activity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// It has no state: a background process, or a backend that is starting.
    None,
    /// Waits for a statement, outside of a transaction.
    Idle,
    /// Executes a statement or a function call.
    Active,
    /// Waits for a statement within a transaction.
    IdleInTransaction,
    /// Likewise, after an error.
    IdleInAbortedTransaction,
    /// `track_activities` is off.
    Disabled,
    /// It belongs to another user, and the server does not show it.
    Hidden,
}

/// What a session waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SessionWait {
    /// Nothing: it is on a CPU or in a run queue, or blocked at a place without a wait event.
    None,
    /// `wait_event_info`, as in the server's memory.
    Number(u32),
    /// A wait event by its names.
    Named(NamedWait),
}

/// One session at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionReading {
    /// Whose session it is.
    pub identity: Arc<SessionIdentity>,
    /// Its state.
    pub state: SessionState,
    /// Start of its transaction, in microseconds since 1970; `None` outside of one.
    pub transaction_started_us: Option<i64>,
    /// When its current or last statement started, likewise; 0 before the first one.
    pub activity_started_us: i64,
    /// When its state changed, likewise.
    pub state_changed_us: i64,
    /// `query_id` of its current or last statement; 0 if there is none (yet).
    pub query_id: i64,
    /// The text of its current or last statement.
    pub text: Vec<u8>,
    /// The server had no room for the whole text.
    pub is_cut: bool,
    /// What it waits for.
    pub wait: SessionWait,
}
