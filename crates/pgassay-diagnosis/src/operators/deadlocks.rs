//! Transactions that wait for each other.

use pgassay_record::activity::{BlockingEpisode, DatabaseActivity, SessionStatus};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::live_view::LiveView;
use super::locks::longest_us;
use super::names;
use super::signature::OperatorSignature;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[OperatorSignature {
    id: "deadlocks",
    title: "Transactions deadlock",
    manual: "Explicit Locking: Deadlocks",
    detect: deadlocks,
}];

fn deadlocks(view: &LiveView<'_>) -> Vec<Detection> {
    let is_logged = view.setting("log_lock_waits") == Some("on");
    let databases = view.catalog.databases.iter();
    databases
        .map(|it| (it, waiting_in(view, it)))
        .filter(|(it, waiting)| it.deadlocks > 0 || *waiting >= view.noticeable())
        .map(|(database, waiting)| {
            let count = database.deadlocks as f64;
            Detection::of(ObjectKind::Database, names::identifier(&database.name))
                .urgent(6)
                .extent(count)
                .with(
                    (waiting >= view.noticeable()).then_some(waiting),
                    |it, waiting| {
                        it.saved(waiting).load(
                            "average sessions that wait while transactions deadlock",
                            waiting,
                        )
                    },
                )
                .counter("deadlocks", count, FactUnit::Count)
                .counter("deadlocks", count / view.window_s, FactUnit::PerSecond)
                .context_figure(
                    "time until a deadlock is noticed (deadlock_timeout)",
                    timeout_us(view),
                    FactUnit::Micros,
                )
                .with(Some(is_logged), locked_in_one_order)
        })
        .collect()
}

/// The fix, and the setting that shows more, unless it is on.
fn locked_in_one_order(detection: Detection, is_logged: bool) -> Detection {
    let words = "Let all transactions lock rows and tables in the same order, for example by primary key; the \
                 server's log shows the statements of each deadlock. Repeat the transaction that fails with SQLSTATE \
                 40P01.";
    if is_logged {
        return detection
            .fix(words)
            .risk("No change on the server, only in the application.");
    }
    detection
        .fix(format!("{words} To see the waits before it, log them."))
        .sql("alter system set log_lock_waits = on")
        .risk("It takes effect after pg_reload_conf(), and logs one line for each wait beyond deadlock_timeout.")
}

/// Average sessions that wait because transactions deadlock.
pub(super) fn waiting(view: &LiveView<'_>) -> f64 {
    let databases = view.catalog.databases.iter();
    databases.map(|it| waiting_in(view, it)).sum()
}

/// The same of one database: those seen in a cycle or behind one; or, if it is more, the two sessions at least that each
/// counted deadlock stops for `deadlock_timeout`: who blocks whom is read too seldom to see all of them. Others that
/// wait for locks may have other causes.
fn waiting_in(view: &LiveView<'_>, database: &DatabaseActivity) -> f64 {
    let stopped_us = 2.0 * database.deadlocks as f64 * timeout_us(view);
    let stopped = stopped_us / (view.window_s * 1e6).max(f64::MIN_POSITIVE);
    let stopped = stopped.min(waiting_for_locks(view, &database.name));
    seen_in_cycles(view, &database.name).max(stopped)
}

fn timeout_us(view: &LiveView<'_>) -> f64 {
    let timeout = view.setting("deadlock_timeout").and_then(names::micros);
    timeout.unwrap_or(1e6)
}

/// Average sessions of a database that waited in a cycle, and behind one.
fn seen_in_cycles(view: &LiveView<'_>, database: &str) -> f64 {
    let episodes = view.activity.blocking.iter();
    let episodes = episodes.filter(|it| it.root.is_deadlocked && it.root.database == database);
    // The session at which a cycle is cut waits as long as the longest of the others.
    let waited_us = |it: &BlockingEpisode| it.waited_us + longest_us(it).min(it.waited_us);
    episodes.map(waited_us).sum::<f64>() / view.activity.window_us.max(f64::MIN_POSITIVE)
}

/// Average sessions of a database that wait for a heavyweight lock.
fn waiting_for_locks(view: &LiveView<'_>, database: &str) -> f64 {
    let cells = view.activity.cells.iter().filter(|cell| {
        let is_its = view.session(cell).is_some_and(|it| it.database == database);
        is_its && cell.state == SessionStatus::Active && view.wait(cell).0 == "Lock"
    });
    cells.map(|cell| cell.time_us).sum::<f64>() / view.activity.window_us.max(f64::MIN_POSITIVE)
}
