//! Replay of WAL on a standby.

use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::live_view::LiveView;
use super::signature::OperatorSignature;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[OperatorSignature {
    id: "paused-replay",
    title: "Replay of WAL is paused on this standby",
    manual: "System Administration Functions: Recovery Control Functions",
    detect: paused_replay,
}];

/// Who may pause replay: any user with the right to; recovery at its target (`recovery_target_action`); and from 14 on
/// a change of the primary's settings (`RecoveryRequiresIntParameter`, access/transam/xlogrecovery.c).
fn paused_replay(view: &LiveView<'_>) -> Vec<Detection> {
    let replay = view.catalog.replay.as_ref().filter(|it| it.is_paused);
    let resume = match view.major {
        10.. => "select pg_wal_replay_resume()",
        _ => "select pg_xlog_replay_resume()",
    };
    let found = replay.map(|replay| {
        Detection::of(ObjectKind::Server, "")
            .urgent(6)
            .state("its queries see the data as of the pause")
            .with(replay.behind_us, |it, us| {
                it.figure("time since the last replayed transaction", us, FactUnit::Micros)
            })
            .with(replay.waiting_bytes, |it, bytes| {
                it.figure("WAL received and not replayed", bytes as f64, FactUnit::Bytes)
            })
            .fix(
                "Find out who paused it, and why; then resume it. Until then WAL fills the standby's disk, and a \
                 failover must first replay it. The server's log says whether recovery paused at its target, or \
                 (from PostgreSQL 14 on) because a setting such as max_connections is lower than the primary's: then \
                 raise the setting here and restart the standby.",
            )
            .sql(resume)
            .risk(
                "At a recovery target, resuming ends recovery: the server is then a primary. After a pause for a \
                 setting that is too low, resuming shuts the server down.",
            )
    });
    found.into_iter().collect()
}
