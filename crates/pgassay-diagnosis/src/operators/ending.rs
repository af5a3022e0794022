//! How to end what a session does, with the risk, as its state and its wait require.

use pgassay_record::activity::{ActivityWait, EndingSignal, RootBlocker};

use super::detection::Detection;

/// Suggests the signal for a session. The words are for one that is canceled: what to do besides, and what the
/// cancel costs.
pub(super) fn end_session(
    detection: Detection,
    pid: &str,
    signal: EndingSignal,
    words: &str,
    risk: &str,
) -> Detection {
    let cancel = format!("select pg_cancel_backend({pid})");
    let terminate = format!("select pg_terminate_backend({pid})");
    match signal {
        EndingSignal::Cancel => detection.fix(words).sql(cancel).risk(risk),
        EndingSignal::CancelIfBusy => detection
            .fix(format!(
                "{words} The server does not show its state: if it is idle in a transaction, a cancel has no \
                 effect, and only pg_terminate_backend({pid}) ends it."
            ))
            .sql(cancel)
            .risk(risk),
        EndingSignal::CancelAtAdvisory => detection
            .fix(format!(
                "{words} If it took the advisory lock with pg_advisory_lock, the lock belongs to the session: a \
                 cancel does not release it, and pg_terminate_backend({pid}) does."
            ))
            .sql(cancel)
            .risk(risk),
        EndingSignal::Terminate => detection.fix(words).sql(terminate).risk(TERMINATED),
        EndingSignal::TerminateAtClient => detection
            .fix(
                "Let its client go on, or end the session: in the middle of a statement it waits for its client \
                 to read the result or to send data, and until then pg_cancel_backend has no effect. Let \
                 clients read and send without pauses, and commit soon after.",
            )
            .sql(terminate)
            .risk(TERMINATED),
        EndingSignal::WritingWal => detection.fix(STALLED_WAL).risk("None; it only reads."),
        EndingSignal::Replicating => detection.fix(REPLICATING).risk("None."),
        EndingSignal::Committed => detection
            .fix(
                "Bring the synchronous standby back, see synchronous-standby: the transaction has committed on \
                 this server, and keeps its locks and its transaction ID until a standby confirms it. A cancel \
                 would not roll it back. It ends only the wait: the client gets a warning, and the transaction \
                 is committed without replication, so that a failover may lose it.",
            )
            .sql("select application_name, state, sync_state from pg_stat_replication")
            .risk("None; it only reads."),
    }
}

/// Suggests to terminate a session that waits for its client, but whose state is not known: it may execute a statement,
/// or be idle in a transaction.
pub(super) fn end_at_client(detection: Detection, pid: &str) -> Detection {
    detection
        .fix(
            "Let its client go on, or end the session: it waits for its client, so that pg_cancel_backend has no \
             effect. The server does not show its state: it may be idle in a transaction. Commit before pauses.",
        )
        .sql(format!("select pg_terminate_backend({pid})"))
        .risk(TERMINATED)
}

/// The risk of canceling this statement, if it is known. What a command that works in several transactions did
/// stays (manual, "CREATE INDEX: Building Indexes Concurrently").
pub(super) fn risk_of_cancel(statement: Option<&str>) -> String {
    let risk = "Its statement fails, and what its transaction did so far is rolled back.";
    if is_concurrent(statement) {
        format!(
            "{risk} An index that it builds or drops concurrently stays, invalid, and must be dropped."
        )
    } else {
        risk.to_owned()
    }
}

/// Whether a statement works concurrently with others already.
pub(super) fn is_concurrent(statement: Option<&str>) -> bool {
    let statement = statement.unwrap_or_default().to_ascii_lowercase();
    statement.contains("concurrently")
}

/// Whether a statement rebuilds a table or an index under a strong lock.
pub(super) fn rewrites_at_once(statement: Option<&str>) -> bool {
    let statement = statement.unwrap_or_default().to_ascii_lowercase();
    let mut words = statement
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|it| !it.is_empty());
    match words.next() {
        Some("vacuum") => words.any(|it| it == "full"),
        Some("cluster" | "reindex") => !is_concurrent(Some(&statement)),
        _ => false,
    }
}

/// The state of a root, in words before its age: `idle in transaction for`.
pub(super) fn state_of(root: &RootBlocker) -> String {
    match &*root.state {
        RootBlocker::UNTRACKED | RootBlocker::UNKNOWN => {
            "it has blocked others for at least".to_owned()
        }
        state => format!("{state} for"),
    }
}

/// Why the state of a root is not known.
pub(super) fn unknown_state(root: &RootBlocker) -> Option<&'static str> {
    match &*root.state {
        RootBlocker::UNTRACKED => Some("its state is not known: it has track_activities off"),
        RootBlocker::UNKNOWN => Some("its state is not known: the server hides it from this user"),
        _ => None,
    }
}

/// Adds what a session waits for.
pub(super) fn waiting(detection: Detection, wait: &ActivityWait) -> Detection {
    detection.state(format!("waits for {}: {}", wait.kind, wait.name))
}

/// What to do about a session that waits for the disk of the WAL.
pub(super) const STALLED_WAL: &str = "Find out why the disk of pg_wal stalls: the session waits for it, mostly in its \
     commit, and neither a cancel nor pg_terminate_backend has an effect until the write is done. Look for other \
     writers on that disk; pg_test_fsync measures it.";

/// What to do about a worker of a subscription that blocks others.
pub(super) const REPLICATING: &str = "Let it end: it applies a transaction that the publisher has committed. If it is \
     canceled or terminated, it starts again with the same transaction; with disable_on_error, the subscription is \
     disabled. Then find out why it takes long: a large transaction on the publisher, or a table whose rows it finds \
     by a sequential scan (REPLICA IDENTITY FULL without an index).";

/// What to do so that it does not block others again.
pub(super) const REPLICATED: &str = "No session waits for it anymore. It applied a transaction that the publisher has \
     committed. Find out why that took long: a large transaction on the publisher, or a table whose rows it finds by a \
     sequential scan (REPLICA IDENTITY FULL without an index).";

/// The risk of `pg_terminate_backend`.
const TERMINATED: &str =
    "Its connection is closed, its transaction is rolled back, and its application gets an error.";
