//! Locks of the primary that a standby replays. Its startup process holds them, and waits for them; nothing
//! on the standby can end it.

use pgassay_record::activity::BlockingEpisode;
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::live_view::LiveView;
use super::locks::{ACTIONABLE_US, longest_us, weighed, weighty};
use super::names;
use super::signature::OperatorSignature;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[OperatorSignature {
    id: "recovery-blocks",
    title: "Recovery holds a lock of the primary and blocks sessions on this standby",
    manual: "High Availability: Handling Query Conflicts",
    detect: recovery_blocks,
}];

/// The startup process in a sentence.
pub(super) fn process(pid: u32) -> String {
    format!("the startup process {pid}, which replays the primary's WAL,")
}

fn recovery_blocks(view: &LiveView<'_>) -> Vec<Detection> {
    let blocked = weighty(view).filter(|it| it.root.is_recovery());
    blocked
        .filter(|it| longest_us(it) >= ACTIONABLE_US)
        .map(|it| of_episode(view, it))
        .collect()
}

fn of_episode(view: &LiveView<'_>, episode: &BlockingEpisode) -> Detection {
    let waiting = episode.waited_us / view.activity.window_us.max(f64::MIN_POSITIVE);
    let hold = episode.root.holds.as_ref();
    let detection = match hold {
        Some(hold) => Detection::of(ObjectKind::Table, names::relation(&hold.relation)),
        None => Detection::of(ObjectKind::Server, ""),
    };
    let first = episode.blocked.first();
    let mode = hold.map_or("a lock", |it| it.mode.as_str());
    weighed(view, episode, detection)
        .fingerprint(first.and_then(|it| it.fingerprint.as_deref()))
        .load("sessions waiting for it, on average", waiting)
        .figure(
            "most sessions waiting at once",
            episode.blocked.len() as f64,
            FactUnit::Count,
        )
        .figure("longest wait", longest_us(episode), FactUnit::Micros)
        .state(format!(
            "{} holds {mode}",
            process(episode.root.pid.unwrap_or(0))
        ))
        .with(
            first.and_then(|it| it.statement.as_ref()),
            |it, statement| it.context(format!("the first that waits: {statement}")),
        )
        .fix(
            "On the primary, commit or end the transaction that holds this lock; pg_locks shows it there. If it \
             has ended, the standby is behind, and the waits end when recovery reaches its commit. Recovery \
             itself cannot be ended. Keep such transactions short: DDL, LOCK TABLE, and a VACUUM that truncates \
             the table (vacuum_truncate, from PostgreSQL 12 on) take this lock.",
        )
        .risk("None on this standby; a transaction that is ended on the primary is rolled back.")
}

/// What to do about a queue behind the startup process.
pub(super) fn queue_fix(detection: Detection) -> Detection {
    detection
        .fix(
            "End the session that it waits for, or let it wait: after max_standby_streaming_delay, recovery \
             cancels what is in its way. Recovery itself cannot be ended. All that come after it queue behind \
             it, even if they only read. On the primary, run DDL when the standby has no long queries.",
        )
        .risk("The session in its way gets an error, and must repeat its query.")
}
