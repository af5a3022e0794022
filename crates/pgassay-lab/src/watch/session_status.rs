//! Whether a session is active, or waits for work.

use pgassay_profile::{SessionReading, SessionState};
use pgassay_record::activity::SessionStatus;

/// Processes of the server that are no sessions (`backend_type` in `pg_stat_activity`, 10 to 18).
const OWN_PROCESSES: [&str; 12] = [
    "archiver",
    "autovacuum launcher",
    "background writer",
    "checkpointer",
    "io worker",
    "logical replication launcher",
    "slotsync worker",
    "standalone backend",
    "startup",
    "walreceiver",
    "walsummarizer",
    "walwriter",
];

/// What a session does; `None` if it is idle or waits for work. `kind` is the class of its wait.
pub(super) fn status(reading: &SessionReading, kind: &str, major: &str) -> Option<SessionStatus> {
    let backend_type = reading.identity.backend_type.as_str();
    // The launcher of logical replication in 10, which has no wait event with track_activities off.
    let is_launcher =
        major == "10" && backend_type == "background worker" && reading.identity.database == 0;
    let waits_for_work = match reading.state {
        SessionState::Idle | SessionState::Hidden | SessionState::Disabled => true,
        SessionState::IdleInTransaction => return Some(SessionStatus::IdleInTransaction),
        SessionState::IdleInAbortedTransaction => {
            return Some(SessionStatus::IdleInAbortedTransaction);
        }
        // A WAL sender is active as long as it lives; 9.6 has no wait events for it.
        SessionState::Active if backend_type == "walsender" => {
            matches!(kind, "Activity" | "Client") || major == "9.6"
        }
        SessionState::Active => kind == "Activity",
        // The load of the server's own processes is that of no statement. The startup process of a standby may
        // wait for a session's lock.
        SessionState::None if is_launcher || OWN_PROCESSES.contains(&backend_type) => {
            kind != "Lock"
        }
        // A backend that starts may wait for its client's password. Workers of extensions, such as the
        // collector of pg_wait_sampling, never report a state, and wait for work in their own class.
        SessionState::None => matches!(kind, "Activity" | "Timeout" | "Client" | "Extension"),
    };
    (!waits_for_work).then_some(SessionStatus::Active)
}
