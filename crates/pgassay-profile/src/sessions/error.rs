//! Why the sessions' status entries cannot be read.

use std::io;

use pgassay_wire::ExchangeError;

use crate::perf::error::NotPermitted;
use crate::waits::reader::WaitError;

/// Why the sessions' status entries cannot be read from memory.
#[derive(Debug, thiserror::Error)]
pub enum SessionsError {
    /// The kernel does not let this user read the server's memory.
    #[error("{0}")]
    NotPermitted(NotPermitted),
    /// No offset, or more than one, held the known value of a field.
    #[error("the server's session status has an unknown layout: {places} candidates for {field}")]
    AmbiguousField {
        /// The field.
        field: &'static str,
        /// The number of candidates.
        places: usize,
    },
    /// The entry of our own connection was not found in shared memory.
    #[error("the session status of our own connection was not found in the server's memory")]
    NoEntry,
    /// The learned layout does not reproduce what the server says of a second connection.
    #[error("the session status in memory differs from pg_stat_activity in {field}")]
    Unconfirmed {
        /// The field that differs.
        field: &'static str,
    },
    /// `pg_stat_activity` does not show a field of our own connection.
    #[error("pg_stat_activity does not show {field} of our own connection")]
    Unknown {
        /// The field.
        field: &'static str,
    },
    /// `track_activities` is off, so nothing can be learned.
    #[error("track_activities is off: the server does not record what sessions do")]
    TrackingOff,
    /// A connection used for learning failed.
    #[error("the layout of the server's session status cannot be learned")]
    Exchange(#[from] ExchangeError),
    /// A process cannot be read.
    #[error("the session status cannot be read from process {pid}")]
    Unreadable {
        /// The process.
        pid: u32,
        /// The kernel's error.
        source: io::Error,
    },
}

impl SessionsError {
    pub(super) fn unreadable(pid: u32) -> impl Fn(io::Error) -> Self {
        move |source| {
            if source.kind() == io::ErrorKind::PermissionDenied {
                let program = std::env::current_exe().ok();
                Self::NotPermitted(NotPermitted::reading_memory(pid, program))
            } else {
                Self::Unreadable { pid, source }
            }
        }
    }
}

/// Finding variables fails as for wait events.
impl From<WaitError> for SessionsError {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::NotPermitted(refusal) => Self::NotPermitted(refusal),
            WaitError::Unreadable { pid, source } => Self::Unreadable { pid, source },
            WaitError::Exchange(error) => Self::Exchange(error),
            _ => Self::NoEntry,
        }
    }
}
