//! Who blocks whom, and what sessions wait for each other for.

use std::collections::BTreeSet;

use pgassay_record::activity::{
    BlockedSession, BlockingEpisode, EndingSignal, LockTarget, RootBlocker,
};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::ending::{
    REPLICATED, STALLED_WAL, end_at_client, end_session, is_concurrent, rewrites_at_once,
    risk_of_cancel, state_of, unknown_state, waiting,
};
use super::live_view::{LiveView, statement_name};
use super::names;
use super::recovery_locks;
use super::session_settings::RoleInDatabase;
use super::signature::OperatorSignature;
use super::wait_meanings::{MEANINGS, WaitMeaning};

/// A blocker that has been there for less is over before anyone can end it.
pub(super) const ACTIONABLE_US: f64 = 1e6;
/// A session that has waited this long is worth a finding on a server of any size, on which it may be
/// a small share of the load.
const LONG_WAIT_US: f64 = 10e6;
/// Contention that costs less of the load is part of running in parallel.
const CONTENTION_MIN: f64 = 0.15;
/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[
    OperatorSignature {
        id: "idle-blocker",
        title: "A session that is idle in a transaction blocks others",
        manual: "Client Connection Defaults: idle_in_transaction_session_timeout",
        detect: idle_blocker,
    },
    OperatorSignature {
        id: "long-blocker",
        title: "A session blocks others for a long time",
        manual: "Explicit Locking",
        detect: long_blocker,
    },
    OperatorSignature {
        id: "wraparound-vacuum-blocks",
        title: "An anti-wraparound autovacuum blocks others",
        manual: "Routine Vacuuming: Preventing Transaction ID Wraparound Failures",
        detect: wraparound_vacuum,
    },
    OperatorSignature {
        id: "ddl-queue",
        title: "A command that waits for a strong lock blocks those behind it",
        manual: "Explicit Locking: Table-Level Locks",
        detect: ddl_queue,
    },
    OperatorSignature {
        id: "lock-contention",
        title: "Sessions contend for an internal lock",
        manual: "Monitoring Database Activity: Wait Events",
        detect: lock_contention,
    },
];

pub(super) fn is_idle_in_transaction(state: &str) -> bool {
    state.starts_with("idle in transaction")
}

/// The longest wait of the sessions behind a root.
pub(super) fn longest_us(episode: &BlockingEpisode) -> f64 {
    let waits = episode.blocked.iter().map(|it| it.waited_us);
    waits.fold(0.0, f64::max)
}

/// A detection of a root blocker, with what all of them have in common.
fn blocker(view: &LiveView<'_>, episode: &BlockingEpisode) -> Detection {
    let root = &episode.root;
    let waiting = episode.waited_us / view.activity.window_us.max(f64::MIN_POSITIVE);
    let (kind, name) = match (&root.gid, root.pid) {
        (Some(gid), _) => (ObjectKind::PreparedTransaction, gid.clone()),
        (None, pid) => {
            let pid = pid.map_or_else(String::new, |pid| pid.to_string());
            (ObjectKind::Session, pid)
        }
    };
    let detection = Detection::of(kind, name).fingerprint(root.fingerprint.as_deref());
    let detection = weighed(view, episode, detection);
    let first = episode.blocked.first();
    let waits = if episode.is_lasting {
        "waits"
    } else {
        "waited"
    };
    detection
        .load("sessions waiting for it, on average", waiting)
        .figure(
            "most sessions waiting at once",
            episode.blocked.len() as f64,
            FactUnit::Count,
        )
        .with(unknown_state(root), Detection::state)
        .figure(&state_of(root), root.state_age_us, FactUnit::Micros)
        .with(root.transaction_age_us, |it, age| {
            it.figure("age of its transaction", age, FactUnit::Micros)
        })
        .with(root.holds.as_ref(), |it, hold| {
            let relation = names::relation(&hold.relation);
            let is_held = episode.is_lasting || is_root_still_there(view, episode);
            let holds = if is_held { "holds" } else { "held" };
            it.state(format!("{holds} {} on {relation}", hold.mode))
        })
        .context(origin(root))
        .with(root.statement.as_ref(), |it, statement| {
            let last = if root.state.starts_with("idle") {
                "last "
            } else {
                ""
            };
            it.context(format!("its {last}statement: {statement}"))
        })
        .with(
            first.and_then(|it| it.statement.as_ref()),
            |it, statement| it.context(format!("the first that {waits}: {statement}")),
        )
        .with(
            Some(longest_us(episode)).filter(|us| *us > 0.0),
            |it, us| it.figure("longest wait", us, FactUnit::Micros),
        )
}

/// With what all wait for it; a long wait counts also if it is a small share of the load.
pub(super) fn weighed(
    view: &LiveView<'_>,
    episode: &BlockingEpisode,
    detection: Detection,
) -> Detection {
    let waited_us = episode.waited_us * share_of_root(episode);
    let waiting = waited_us / view.activity.window_us.max(f64::MIN_POSITIVE);
    if longest_us(episode) < LONG_WAIT_US || waiting >= view.noticeable() {
        detection.saved(waiting)
    } else {
        detection.urgent(8)
    }
}

/// The share of the waits that is the root's to end. Behind a statement that only reads, all but the first wait for the
/// command that needs a strong lock: to cancel that frees them as well, and nothing that was read is lost.
fn share_of_root(episode: &BlockingEpisode) -> f64 {
    let us = |it: &BlockedSession| it.waited_us;
    let whole_us: f64 = episode.blocked.iter().map(us).sum();
    if !only_reads(episode) || is_idle_in_transaction(&episode.root.state) || whole_us <= 0.0 {
        return 1.0;
    }
    directly_blocked(episode).map(us).sum::<f64>() / whole_us
}

fn directly_blocked(episode: &BlockingEpisode) -> impl Iterator<Item = &BlockedSession> {
    let blocked = episode.blocked.iter();
    blocked.filter(|it| Some(it.blocked_by) == episode.root.pid)
}

/// Whether those that wait for the root are serializable, read-only and deferrable.
fn awaits_safe_snapshot(episode: &BlockingEpisode) -> bool {
    directly_blocked(episode).any(|it| it.waits_for.kind == LockTarget::SAFE_SNAPSHOT)
}

/// Whether others wait for a lock of the root that conflicts with none but an `AccessExclusiveLock`.
fn only_reads(episode: &BlockingEpisode) -> bool {
    let hold = episode.root.holds.as_ref();
    let is_weak = hold.is_some_and(|it| it.mode == "AccessShareLock");
    is_weak && directly_blocked(episode).all(|it| it.waits_for.kind == "relation")
}

/// `user app (psql, 10.0.0.7)`.
pub(super) fn origin(root: &RootBlocker) -> String {
    let of: Vec<&str> = [&root.application, &root.client]
        .into_iter()
        .filter(|it| !it.is_empty())
        .map(String::as_str)
        .collect();
    match (root.user.is_empty(), of.is_empty()) {
        (true, true) => String::new(),
        (true, false) => of.join(", "),
        (false, true) => format!("user {}", root.user),
        (false, false) => format!("user {} ({})", root.user, of.join(", ")),
    }
}

/// Whose episodes are long enough to act on, and cost something.
pub(super) fn weighty<'a>(view: &LiveView<'a>) -> impl Iterator<Item = &'a BlockingEpisode> {
    view.activity
        .blocking
        .iter()
        .filter(|it| it.waited_us > 0.0 && !it.blocked.is_empty())
}

/// Whether the root of an episode is still idle in its transaction, or prepared, at the end of the window, although no
/// session waits for it anymore: those that did may have had a timeout.
pub(super) fn is_root_still_there(view: &LiveView<'_>, episode: &BlockingEpisode) -> bool {
    let age_us = |it: &RootBlocker| it.transaction_age_us.unwrap_or(it.state_age_us);
    let root = &episode.root;
    // A transaction that began later is another one.
    let by_now_us = age_us(root) + view.activity.window_us - episode.last_seen_us;
    let holders = view.activity.idle_lock_holders.iter();
    let mut holders = holders.map(|it| &it.holder);
    holders.any(|it| {
        (it.pid, &it.gid) == (root.pid, &root.gid) && age_us(it) + ACTIONABLE_US >= by_now_us
    })
}

fn is_idle_blocker(episode: &BlockingEpisode) -> bool {
    let root = &episode.root;
    // A root that was busy a moment ago is between two statements of a transaction, and those who
    // wait have waited for several such roots in turn.
    root.gid.is_none()
        && is_idle_in_transaction(&root.state)
        && root.state_age_us >= (0.5 * longest_us(episode)).max(0.1 * ACTIONABLE_US)
}

fn idle_blocker(view: &LiveView<'_>) -> Vec<Detection> {
    let blocked = weighty(view).filter(|it| is_idle_blocker(it));
    blocked
        .map(|episode| {
            let root = &episode.root;
            let limit = limit_idle_transactions(view, root);
            let detection = blocker(view, episode).risk(
                "Its transaction is rolled back, and its application gets an error at its next \
                 statement.",
            );
            if episode.is_lasting || is_root_still_there(view, episode) {
                let end = if episode.is_lasting {
                    "End the session."
                } else {
                    "No session waits for it now, but it still holds its locks: end it."
                };
                detection
                    .fix(format!(
                        "{end} Then find out why the application pauses inside a transaction, and limit it: {}.",
                        words_of_limit(limit.as_deref())
                    ))
                    .sql(format!(
                        "select pg_terminate_backend({})",
                        root.pid.unwrap_or(0)
                    ))
            } else {
                let detection = detection.fix(
                    "No session waits for it anymore. Find out why the application pauses inside a transaction, \
                     and limit such pauses.",
                );
                let Some(limit) = limit else {
                    return detection.risk("No change on the server, only in the application.");
                };
                detection
                    .sql(limit)
                    .risk(
                        "New sessions of this role that are idle in a transaction for over a minute are \
                         disconnected, and their transactions rolled back.",
                    )
            }
        })
        .collect()
}

/// The statement that limits pauses in transactions of a session's user; `None` if they are limited to as
/// little already.
pub(super) fn limit_idle_transactions(view: &LiveView<'_>, root: &RootBlocker) -> Option<String> {
    const NAME: &str = "idle_in_transaction_session_timeout";
    let known = |name| Some(name).filter(|it: &&str| !it.is_empty());
    let role = RoleInDatabase {
        user: known(&*root.user),
        database: known(&*root.database),
    };
    let now_us = role.value(view, NAME).and_then(names::micros);
    if now_us.is_some_and(|us| us > 0.0 && us <= 60e6) {
        return None;
    }
    if role.user.is_none() {
        return Some(format!("alter system set {NAME} = '1min'"));
    }
    Some(role.command(view, NAME, "'1min'"))
}

/// What [`limit_idle_transactions`] suggests, in a sentence.
pub(super) fn words_of_limit(limit: Option<&str>) -> &str {
    limit.unwrap_or("idle_in_transaction_session_timeout is a minute or less already")
}

fn is_long_blocker(episode: &BlockingEpisode) -> bool {
    let root = &episode.root;
    // An autovacuum worker that does not prevent wraparound yields by itself, and recovery cannot be
    // ended.
    root.gid.is_none()
        && !root.prevents_wraparound
        && !root.gives_way()
        && !root.is_recovery()
        && !root.is_deadlocked
        && !is_idle_in_transaction(&root.state)
        && root.transaction_age_us.unwrap_or(root.state_age_us) >= ACTIONABLE_US
        && root.transaction_age_us.unwrap_or(root.state_age_us) >= 0.5 * longest_us(episode)
}

fn long_blocker(view: &LiveView<'_>) -> Vec<Detection> {
    let blocked = weighty(view).filter(|it| is_long_blocker(it));
    blocked
        .map(|episode| {
            let root = &episode.root;
            let detection = blocker(view, episode).with(root.wait.as_ref(), waiting);
            if root.state == "idle" {
                return idle_holder(detection, episode);
            }
            let shorter = if awaits_safe_snapshot(episode) {
                "keep serializable transactions that may write short: one that is DEFERRABLE waits until those that \
                 were open when it began have ended. Without DEFERRABLE it begins at once, and may fail."
            } else if only_reads(episode) {
                "run commands that need a strong lock with a short lock_timeout (set lock_timeout = '2s') until they \
                 get it: an ordinary reader blocks only those, and the sessions that queue behind them."
            } else if is_concurrent(root.statement.as_deref()) {
                "run such commands when the table is little used."
            } else if rewrites_at_once(root.statement.as_deref()) {
                "run such commands when the table is not used: they hold the lock until the whole table or index is \
                 rebuilt. VACUUM without FULL and REINDEX CONCURRENTLY (12 and later) let others work."
            } else {
                "shorten the transaction: commit in batches, take the lock last, and use commands that lock \
                 less, such as CREATE INDEX CONCURRENTLY."
            };
            if episode.is_lasting {
                let words = format!("Let it end or cancel it. Then {shorter}");
                let pid = root.pid.unwrap_or(0).to_string();
                let risk = risk_of_cancel(root.statement.as_deref());
                let signal = episode.ending_signal();
                if root.is_unknown() && signal == EndingSignal::TerminateAtClient {
                    return end_at_client(detection, &pid);
                }
                end_session(detection, &pid, signal, &words, &risk)
            } else if root.ending_signal() == EndingSignal::WritingWal {
                detection
                    .fix(format!("No session waits for it anymore. {STALLED_WAL}"))
                    .risk("None; it only reads.")
            } else if root.ending_signal() == EndingSignal::Replicating {
                detection.fix(REPLICATED).risk("None.")
            } else {
                detection
                    .fix(format!(
                        "No session waits for it anymore. So that it does not happen again, {shorter}"
                    ))
                    .risk("No change on the server, only in the application.")
            }
        })
        .collect()
}

/// A lock that outlives its transaction is an advisory lock of the session.
fn idle_holder(detection: Detection, episode: &BlockingEpisode) -> Detection {
    let only_until_commit = "pg_advisory_xact_lock releases the lock at the end of the transaction; behind a \
                             pooler in transaction mode, only that works.";
    if episode.is_lasting {
        let pid = episode.root.pid.unwrap_or(0);
        detection
            .fix(format!(
                "The session is idle: it holds an advisory lock that it took for the session. End the session, \
                 or let it release the lock with pg_advisory_unlock. {only_until_commit}"
            ))
            .sql(format!("select pg_terminate_backend({pid})"))
            .risk("Its connection is closed; it has no transaction that would be rolled back.")
    } else {
        detection
            .fix(format!(
                "No session waits for it anymore. It was idle, and held an advisory lock that it took for the session. \
                 {only_until_commit}"
            ))
            .risk("No change on the server, only in the application.")
    }
}

fn wraparound_vacuum(view: &LiveView<'_>) -> Vec<Detection> {
    let blocked = weighty(view).filter(|it| it.root.prevents_wraparound);
    blocked
        .map(|episode| {
            let detection = blocker(view, episode)
                .fix(
                    "Let it finish: it does not yield to others, and begins again if it is canceled. \
                     Cancel the command that waits for the strong lock, and repeat it later with \
                     lock_timeout.",
                )
                .risk(CANCELED);
            // Those behind this command wait for it.
            let mut directly = directly_blocked(episode);
            let strong = directly
                .find(|it| it.waits_for.kind == "relation" && is_strong(&it.waits_for.mode));
            detection.with(strong.filter(|_| episode.is_lasting), |it, command| {
                it.sql(format!("select pg_cancel_backend({})", command.pid))
            })
        })
        .collect()
}

/// The risk of `pg_cancel_backend`.
const CANCELED: &str = "The canceled command fails, its transaction is rolled back, and all of that transaction \
                        must be repeated.";

/// Table locks that DDL takes and that conflict with ordinary statements (manual, "Explicit Locking",
/// table of conflicting lock modes).
pub(super) fn is_strong(mode: &str) -> bool {
    matches!(
        mode,
        "ShareLock" | "ShareRowExclusiveLock" | "ExclusiveLock" | "AccessExclusiveLock"
    )
}

/// The sessions behind this one, directly and indirectly.
fn behind(episode: &BlockingEpisode, pid: u32) -> Vec<&BlockedSession> {
    let mut pids = BTreeSet::from([pid]);
    let mut found = Vec::new();
    // Each session comes after the one that blocks it.
    for session in &episode.blocked {
        if session.pid != pid && pids.contains(&session.blocked_by) {
            pids.insert(session.pid);
            found.push(session);
        }
    }
    found
}

fn ddl_queue(view: &LiveView<'_>) -> Vec<Detection> {
    let mut found = Vec::new();
    // The command gets its lock from an autovacuum that gives way.
    for episode in weighty(view).filter(|it| !it.root.gives_way()) {
        let whole_us: f64 = episode.blocked.iter().map(|it| it.waited_us).sum();
        let queued = episode
            .blocked
            .iter()
            .filter(|it| it.waits_for.kind == "relation" && is_strong(&it.waits_for.mode));
        for ddl in queued {
            let after = behind(episode, ddl.pid);
            let after_us: f64 = after.iter().map(|it| it.waited_us).sum();
            if after.is_empty() || ddl.waited_us < 0.1 * ACTIONABLE_US {
                continue;
            }
            let part = after_us / whole_us.max(f64::MIN_POSITIVE);
            let waited = episode.waited_us * part / view.activity.window_us.max(1.0);
            found.push(queue_behind(view, episode, ddl, after.len(), waited));
        }
    }
    found
}

fn queue_behind(
    view: &LiveView<'_>,
    episode: &BlockingEpisode,
    ddl: &BlockedSession,
    behind: usize,
    waited: f64,
) -> Detection {
    let table = ddl.waits_for.relation.as_ref().map(names::relation);
    let detection = match &table {
        Some(table) => Detection::of(ObjectKind::Table, table.clone()),
        None => Detection::of(ObjectKind::Session, ddl.pid.to_string()),
    };
    let detection = if ddl.waited_us >= LONG_WAIT_US && waited < view.noticeable() {
        detection.urgent(8)
    } else {
        detection.saved(waited)
    };
    let root = match (&episode.root.gid, episode.root.pid) {
        (Some(gid), _) => format!("prepared transaction {gid}"),
        (None, Some(pid)) if episode.root.is_recovery() => recovery_locks::process(pid),
        (None, Some(pid)) if episode.root.is_unknown() => {
            format!("session {pid}, whose state is not known")
        }
        (None, Some(pid)) => format!("session {pid}, {}", episode.root.state),
        (None, None) => episode.root.state.clone(),
    };
    let waits = if episode.is_lasting {
        "waits"
    } else {
        "waited"
    };
    let waiter = if ddl.is_recovery {
        recovery_locks::process(ddl.pid)
    } else {
        format!("session {}", ddl.pid)
    };
    let detection = detection
        .fingerprint(ddl.fingerprint.as_deref())
        .load("average sessions that wait behind it", waited)
        .figure(
            "most sessions behind it at once",
            behind as f64,
            FactUnit::Count,
        )
        .state(format!("{waiter} {waits} for {}", ddl.waits_for.mode))
        .figure("its wait", ddl.waited_us, FactUnit::Micros)
        .state(format!("it {waits} for {root}"))
        .with(ddl.statement.as_ref(), |it, statement| {
            it.context(format!("its statement: {statement}"))
        });
    if ddl.is_recovery {
        return recovery_locks::queue_fix(detection);
    }
    let detection = detection
        .fix(
            "Cancel the command, and repeat it with a short lock_timeout (set lock_timeout = '2s') \
             until it gets its lock. All that come after a waiting command queue behind it, even if \
             they only read.",
        )
        .risk(CANCELED);
    if episode.is_lasting {
        detection.sql(format!("select pg_cancel_backend({})", ddl.pid))
    } else {
        detection
            .sql("set lock_timeout = '2s' -- in the session that runs the command")
            .risk("The command fails if it does not get its lock in time, and must be repeated.")
    }
}

fn lock_contention(view: &LiveView<'_>) -> Vec<Detection> {
    let groups = MEANINGS.iter();
    groups
        .filter_map(|meaning| {
            let waiting = view.waiting(|kind, name| meaning.is_of(kind, name));
            let others = waiting.load - behind_named_sessions(view, meaning).min(waiting.load);
            let enough = others >= CONTENTION_MIN * view.active
                && !waiting.is_chance()
                && !follows_from_queue(view, meaning, waiting.load);
            let statement = waiting.statement;
            enough.then(|| contention(view, meaning, (waiting.load, others), statement))
        })
        .collect()
}

/// Average sessions that wait for such a lock behind a session that has a finding: to hold the lock for a shorter time
/// is then advice for that session.
fn behind_named_sessions(view: &LiveView<'_>, meaning: &WaitMeaning) -> f64 {
    let us = |it: &BlockedSession| it.waited_us.min(view.activity.window_us);
    let is_its = |it: &&BlockedSession| meaning.is_of("Lock", &it.waits_for.kind);
    // `prepared-transaction` names those that last.
    let is_prepared = |it: &BlockingEpisode| {
        it.root.gid.is_some() && (it.is_lasting || it.root.state_age_us >= ACTIONABLE_US)
    };
    let is_named =
        |it: &&BlockingEpisode| is_prepared(it) || is_idle_blocker(it) || is_long_blocker(it);
    let named = weighty(view).filter(is_named);
    let waited = named.map(|it| {
        let all_us: f64 = it.blocked.iter().map(us).sum();
        let its_us: f64 = it.blocked.iter().filter(is_its).map(us).sum();
        it.waited_us * its_us / all_us.max(f64::MIN_POSITIVE)
    });
    waited.sum::<f64>() / view.activity.window_us.max(f64::MIN_POSITIVE)
}

/// Whether it is about the shared lock table, where sessions that queue for one row or object meet whenever the lock
/// passes to the next: more fast-path slots do not help them.
fn follows_from_queue(view: &LiveView<'_>, meaning: &WaitMeaning, load: f64) -> bool {
    let is_lock_table = meaning.is_of("LWLock", "LockManager");
    is_lock_table && view.waiting(|kind, _| kind == "Lock").load >= load
}

fn contention(
    view: &LiveView<'_>,
    meaning: &WaitMeaning,
    (load, others): (f64, f64),
    statement: Option<usize>,
) -> Detection {
    let statement = statement.and_then(|index| view.activity.statements.get(index));
    let name = format!("{}:{}", meaning.kind, meaning.names[0]);
    let detection = Detection::of(ObjectKind::WaitEvent, name)
        .title(meaning.title())
        .statement(statement)
        .saved(others)
        .load("average sessions that wait", load)
        .load(
            "of which behind a session that another finding names",
            load - others,
        )
        .context(meaning.meaning)
        .with(statement, |it, statement| {
            it.context(format!("mostly in: {}", statement_name(statement)))
        })
        .fix(meaning.fix)
        .risk(meaning.risk);
    match meaning.larger {
        Some((since, name, value)) if view.major >= since && view.is_less(name, value) => {
            detection.sql(format!("alter system set {name} = '{value}'"))
        }
        _ => detection,
    }
}

/// The PIDs of root blockers.
pub(super) fn root_pids(view: &LiveView<'_>) -> BTreeSet<u32> {
    weighty(view).filter_map(|it| it.root.pid).collect()
}
