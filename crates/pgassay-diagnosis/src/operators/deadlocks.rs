//! Transactions that wait for each other.

use pgassay_record::activity::BlockingEpisode;
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
    let timeout = view.setting("deadlock_timeout").and_then(names::micros);
    let databases = view.catalog.databases.iter();
    databases
        .map(|it| (it, deadlocked(view, &it.name)))
        .filter(|(it, waiting)| it.deadlocks > 0 || *waiting >= view.noticeable())
        .map(|(database, waiting)| {
            let count = database.deadlocks as f64;
            Detection::of(ObjectKind::Database, names::identifier(&database.name))
                .urgent(6)
                .extent(count)
                .with((waiting >= view.noticeable()).then_some(waiting), |it, waiting| {
                    it.saved(waiting)
                        .load("average sessions that wait in a cycle, or behind one", waiting)
                })
                .counter("deadlocks", count, FactUnit::Count)
                .counter("deadlocks", count / view.window_s, FactUnit::PerSecond)
                .context_figure(
                    "time until a deadlock is noticed (deadlock_timeout)",
                    timeout.unwrap_or(1e6),
                    FactUnit::Micros,
                )
                .fix(
                    "Let all transactions lock rows and tables in the same order, for example by \
                     primary key; the server's log shows the statements of each deadlock. Repeat the \
                     transaction that fails with SQLSTATE 40P01. To see the waits before it, log them.",
                )
                .sql("alter system set log_lock_waits = on")
                .risk("It takes effect after pg_reload_conf(), and logs one line for each wait beyond deadlock_timeout.")
        })
        .collect()
}

/// Average sessions of a database that waited in a cycle, and behind one.
fn deadlocked(view: &LiveView<'_>, database: &str) -> f64 {
    let episodes = view.activity.blocking.iter();
    let episodes = episodes.filter(|it| it.root.is_deadlocked && it.root.database == database);
    // The session at which a cycle is cut waits as long as the longest of the others.
    let waited_us = |it: &BlockingEpisode| it.waited_us + longest_us(it).min(it.waited_us);
    episodes.map(waited_us).sum::<f64>() / view.activity.window_us.max(f64::MIN_POSITIVE)
}
