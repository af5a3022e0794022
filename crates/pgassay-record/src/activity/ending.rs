//! Which signal ends what a session does.

use super::ActivityWait;

/// The signal with which an administrator ends a session's transaction. pgassay never sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndingSignal {
    /// `pg_cancel_backend`: its statement fails.
    Cancel,
    /// The same; but its state is hidden or not tracked, and if it is idle, a cancel has no effect.
    CancelIfBusy,
    /// The same; but others wait for an advisory lock of it, which a cancel does not release if it took the lock for
    /// the session.
    CancelAtAdvisory,
    /// `pg_terminate_backend`: it is idle, so that there is no statement to cancel.
    Terminate,
    /// `pg_terminate_backend`: it waits for its client in the middle of a statement, and heeds no cancel
    /// until the client goes on. PostgreSQL's `src/backend/tcop/postgres.c`, `ProcessClientReadInterrupt`
    /// and `ProcessClientWriteInterrupt`.
    TerminateAtClient,
    /// None: it has committed and waits for a synchronous standby. A signal ends only the wait, without an
    /// error. PostgreSQL's `src/backend/replication/syncrep.c`, `SyncRepWaitForLSN`.
    Committed,
    /// None: it waits for the disk of the WAL, mostly in its commit, and heeds no signal until the write is done.
    /// PostgreSQL's `src/backend/access/transam/xact.c`, `CommitTransaction`, holds off interrupts.
    WritingWal,
    /// None: it applies what a publisher has committed. After an error, such as a cancel, it starts again and applies
    /// the same transaction, or disables the subscription (`disable_on_error`, from version 15).
    Replicating,
}

impl EndingSignal {
    /// How the `state` of a worker of logical replication begins (from version 11).
    pub(super) const REPLICATION: &str = "logical replication ";

    /// For a session in this state of `pg_stat_activity`, with its wait; the state is empty or `unknown` if
    /// it is hidden.
    pub fn of(state: &str, wait: Option<&ActivityWait>) -> Self {
        let wait = wait.map_or(("", ""), |it| (it.kind.as_str(), it.name.as_str()));
        match (state, wait) {
            _ if state.starts_with("idle") => Self::Terminate,
            (_, ("IPC", "SyncRep")) => Self::Committed,
            (
                _,
                ("IO", "WALSync" | "WalSync" | "WALWrite" | "WalWrite")
                | ("LWLock" | "LWLockNamed", "WALWrite" | "WALWriteLock"),
            ) => Self::WritingWal,
            _ if state.starts_with(Self::REPLICATION) => Self::Replicating,
            (_, ("Client", "ClientRead" | "ClientWrite")) => Self::TerminateAtClient,
            ("" | "unknown" | "disabled", _) => Self::CancelIfBusy,
            _ => Self::Cancel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(state: &str, kind: &str, name: &str) -> EndingSignal {
        let wait = ActivityWait {
            kind: kind.to_owned(),
            name: name.to_owned(),
        };
        EndingSignal::of(state, Some(&wait))
    }

    #[test]
    fn only_a_statement_that_heeds_a_cancel_is_canceled() {
        assert_eq!(EndingSignal::of("active", None), EndingSignal::Cancel);
        assert_eq!(of("active", "IO", "DataFileRead"), EndingSignal::Cancel);
        assert_eq!(of("active", "IPC", "SyncRep"), EndingSignal::Committed);
        // Regression: a subscription's worker was to be canceled, and began again.
        let worker = EndingSignal::of("logical replication apply worker", None);
        assert_eq!(worker, EndingSignal::Replicating);
        for (kind, name) in [
            ("IO", "WalSync"),
            ("IO", "WALWrite"),
            ("LWLock", "WALWrite"),
        ] {
            assert_eq!(of("active", kind, name), EndingSignal::WritingWal, "{name}");
        }
        for name in ["ClientRead", "ClientWrite"] {
            let signal = of("active", "Client", name);
            assert_eq!(signal, EndingSignal::TerminateAtClient, "{name}");
            // Idle or not, it heeds no cancel.
            let signal = of("disabled", "Client", name);
            assert_eq!(signal, EndingSignal::TerminateAtClient, "{name}");
        }
        for state in [
            "idle",
            "idle in transaction",
            "idle in transaction (aborted)",
        ] {
            let signal = of(state, "Client", "ClientRead");
            assert_eq!(signal, EndingSignal::Terminate, "{state}");
        }
        for state in ["", "unknown", "disabled"] {
            let signal = EndingSignal::of(state, None);
            assert_eq!(signal, EndingSignal::CancelIfBusy, "{state}");
        }
    }
}
