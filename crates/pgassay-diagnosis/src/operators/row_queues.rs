//! Sessions that wait for each other's rows, and not for a single session that holds them.

use pgassay_record::activity::{BlockedSession, LoadCell, RootBlocker, SessionStatus};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::deadlocks;
use super::detection::Detection;
use super::live_view::{LiveView, StatementLoad, statement_name};
use super::locks::{ACTIONABLE_US, weighty};
use super::names;
use super::signature::OperatorSignature;
use super::transaction_waits::waits_for_all;

/// Sessions that wait for rows, as a share of the load: fewer are part of running in parallel …
const ROW_WAITS_MIN: f64 = 0.2;
/// … if they queue: a waiting session sees at least so many waiting behind the same root, itself
/// included. Sessions that meet in pairs by chance see one.
const QUEUE_MIN: f64 = 1.5;
/// Or at least this share of the waits is for `tuple` locks, which only those take who come after
/// another that waits. (Most of a queue waits for the transaction itself: each new version of the row is
/// waited for anew.)
const TUPLE_SHARE_MIN: f64 = 0.25;

/// From this share of a statement's waits on, a single session or deadlocks may be the cause of all of them, unless
/// another queue was seen.
const KNOWN_MAX: f64 = 0.5;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[OperatorSignature {
    id: "row-lock-queue",
    title: "Sessions queue for the same rows",
    manual: "Explicit Locking: Row-Level Locks",
    detect: row_lock_queue,
}];

/// Average sessions of a statement that wait for rows.
fn row_waits(load: &StatementLoad) -> f64 {
    if waits_for_all(&load.tokens) {
        return 0.0;
    }
    load.waiting(|kind, name| kind == "Lock" && matches!(name, "transactionid" | "tuple"))
}

fn row_lock_queue(view: &LiveView<'_>) -> Vec<Detection> {
    let deadlocked = deadlocks::waiting(view);
    let mut found = Vec::new();
    for (statement, load) in view.heavy_statements() {
        let all = row_waits(load);
        // What one session or deadlocks cause has a finding already.
        let known = behind_a_blocker(view, &statement.fingerprint).min(all);
        let waiting = all - known;
        let queued = load.waiting(|kind, name| kind == "Lock" && name == "tuple");
        let seen = queue_seen(view, &statement.fingerprint);
        let mostly_known = known + deadlocked >= KNOWN_MAX * all;
        // The last waits of a session behind a blocker may not have been seen: that they are many is then no
        // evidence of another queue.
        let queues = if mostly_known {
            seen >= QUEUE_MIN && deadlocked < KNOWN_MAX * all
        } else {
            seen.max(waiting / possible_roots(view)) >= QUEUE_MIN || queued >= TUPLE_SHARE_MIN * all
        };
        let enough = waiting >= ROW_WAITS_MIN * view.active && queues;
        if !enough {
            continue;
        }
        let queue = seen.max(waiting / possible_roots(view));
        let table = load.relations.first().filter(|_| load.relations.len() == 1);
        let detection = match table {
            Some(table) => {
                let name = names::identifier(&table.name);
                let schema = table.schema.as_deref().map(names::identifier);
                let name = schema.map_or(name.clone(), |schema| format!("{schema}.{name}"));
                Detection::of(ObjectKind::Table, name)
            }
            None => Detection::of(ObjectKind::Statement, statement_name(statement)),
        };
        found.push(
            detection
                .statement(Some(statement))
                .saved(waiting)
                .load("average sessions of one statement that wait for rows", waiting)
                // Without one that was seen, the waits for tuple locks show it.
                .with(Some(queue).filter(|it| *it >= 1.0), |it, queue| {
                    let what = "mean length of the queue that a waiting session is in";
                    it.figure(what, queue, FactUnit::Count)
                })
                .sampled(
                    "of these waits are for a tuple lock",
                    queued / all,
                    FactUnit::Share,
                )
                .with(rows_of(view, load), |it, (what, rows)| {
                    it.counter(what, rows, FactUnit::PerSecond)
                })
                .context(format!("the statement: {}", statement_name(statement)))
                .fix(
                    "Make the transactions that change this row shorter: change it last, right before \
                     COMMIT, and send both in one round trip. Or spread it over several rows and add \
                     them up when reading; take work from a queue with FOR UPDATE SKIP LOCKED.",
                )
                .risk("No change on the server, only in the application."),
        );
    }
    found
}

/// Average sessions of a statement that waited behind sessions with a finding; those of unknown statements count for
/// each.
fn behind_a_blocker(view: &LiveView<'_>, fingerprint: &str) -> f64 {
    let is_its = |it: &&BlockedSession| {
        let known = it.fingerprint.as_deref();
        known.is_none_or(|it| it == fingerprint)
    };
    // Waits that began before the window count for its length.
    let us = |it: &BlockedSession| it.waited_us.min(view.activity.window_us);
    let named = weighty(view).filter(|it| has_finding(&it.root));
    let waited = named.map(|it| {
        let all_us: f64 = it.blocked.iter().map(us).sum();
        let its_us: f64 = it.blocked.iter().filter(is_its).map(us).sum();
        let share = if all_us > 0.0 { its_us / all_us } else { 1.0 };
        it.waited_us * share
    });
    waited.sum::<f64>() / view.activity.window_us.max(f64::MIN_POSITIVE)
}

/// Whether it is a root that a finding names.
fn has_finding(root: &RootBlocker) -> bool {
    root.gid.is_some() || is_actionable(root)
}

/// The mean number of sessions that wait for rows in the same queue and statement, as those in the queues
/// see it; those behind a root that a finding names do not count.
fn queue_seen(view: &LiveView<'_>, fingerprint: &str) -> f64 {
    let is_its = |it: &&BlockedSession| {
        // A lock that was granted while the server was asked has no kind.
        let is_row = matches!(&*it.waits_for.kind, "transactionid" | "tuple" | "");
        is_row && it.fingerprint.as_deref() == Some(fingerprint)
    };
    let queues = view.activity.blocking.iter();
    let queues = queues
        .filter(|it| !has_finding(&it.root))
        .map(|it| it.blocked.iter().filter(is_its).count() as f64);
    let (sum, squares) = queues.fold((0.0, 0.0), |(sum, squares), it| {
        (sum + it, squares + it * it)
    });
    if sum > 0.0 { squares / sum } else { 0.0 }
}

/// How many sessions can be the first of a queue, on average: they do not wait for a lock themselves. More sessions
/// that wait than these are in queues, even if none was seen because reading who blocks whom came too late.
fn possible_roots(view: &LiveView<'_>) -> f64 {
    let waits = |cell: &LoadCell| view.wait(cell).0 == "Lock";
    let cells = view.activity.cells.iter().filter(|cell| match cell.state {
        SessionStatus::Active => !waits(cell),
        SessionStatus::IdleInTransaction | SessionStatus::IdleInAbortedTransaction => true,
    });
    let time_us: f64 = cells.map(|cell| cell.time_us).sum();
    // A holder that is seldom seen is there nonetheless.
    (time_us / view.activity.window_us.max(f64::MIN_POSITIVE)).max(1.0)
}

/// Whether it has been there long enough to have a finding that names it.
pub(super) fn is_actionable(root: &RootBlocker) -> bool {
    let age_us = root.transaction_age_us.unwrap_or(root.state_age_us);
    !root.is_deadlocked && age_us >= ACTIONABLE_US
}

/// Rows per second that were changed in the statement's table.
fn rows_of(view: &LiveView<'_>, load: &StatementLoad) -> Option<(&'static str, f64)> {
    let tables = view.catalog.tables.iter();
    let mention = load.relations.first()?;
    let mut its = tables.filter(|it| view.is_mention_of(mention, &it.relation));
    let table = its.next()?;
    let changed = table.updated.saturating_add(table.deleted) as f64;
    (changed > 0.0).then_some(("rows changed in the table", changed / view.window_s))
}
