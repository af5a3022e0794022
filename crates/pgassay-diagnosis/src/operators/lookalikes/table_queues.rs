//! Sessions that wait for a table that commands lock again and again.

use pgassay_record::activity::BlockingEpisode;

use super::build::{ExampleServer, WINDOW_US, episode, queued, relation, root};
use super::{Edge, LiveCase, case, edge, of_id};

/// A queue for `orders` behind a transaction of this age, of sessions that wait for this lock.
fn queue(transaction_us: f64, mode: &str) -> BlockingEpisode {
    let mut root = root("active", 1000.0);
    root.transaction_age_us = Some(transaction_us);
    root.statement = Some("commit".to_owned());
    let waiters = (20..23).map(|pid| queued(pid, 4711, mode, 50_000.0));
    episode(root, waiters.collect())
}

/// Average sessions that wait for a table, of 10 that are active, and ten queues that were seen.
fn waiting(load: f64, transaction_us: f64, mode: &str) -> ExampleServer {
    let server = ExampleServer::new().without_load();
    let server = server.load("truncate orders", "Lock:relation", load);
    let server = server.load("select $1", "", 10.0 - load);
    (0..10).fold(server, |server, _| {
        server.blocking(queue(transaction_us, mode))
    })
}

const STRONG: &str = "AccessExclusiveLock";

pub(super) fn cases() -> Vec<LiveCase> {
    vec![case(
        "table-lock-queue",
        "table public.orders",
        "sessions that wait behind one transaction that holds a strong lock for seconds",
        waiting(5.0, 60_000.0, STRONG),
        long(),
    )]
}

/// All wait for one transaction.
fn long() -> ExampleServer {
    let mut server = waiting(5.0, 60_000.0, STRONG);
    let mut one = queue(5e6, STRONG);
    one.waited_us = 5.0 * WINDOW_US;
    server.activity.blocking = vec![one];
    server
}

pub(super) fn edges() -> Vec<Edge> {
    vec![edge(
        "table-lock-queue",
        |load| waiting(load, 60_000.0, STRONG),
        1.6,
        1.4,
    )]
}

/// Regression: sessions that took turns to TRUNCATE a table had only the mechanism, without the table.
#[test]
fn a_table_that_is_locked_again_and_again_is_named_with_the_command() {
    let found = of_id("table-lock-queue", &waiting(5.0, 60_000.0, STRONG).activity).remove(0);
    assert_eq!(found.saved_sessions, Some(5.0));
    let command = found
        .evidence
        .iter()
        .find(|it| it.context)
        .expect("a command");
    assert_eq!(
        command.what,
        "mostly by: alter table orders add column note text"
    );
    // Without a strong lock, it is not known what they wait for.
    let mut weak = waiting(5.0, 60_000.0, "AccessShareLock");
    for episode in &mut weak.activity.blocking {
        episode.root.holds = None;
    }
    assert_eq!(of_id("table-lock-queue", &weak.activity), []);
    assert_eq!(
        weak.activity.blocking[0].blocked[0].waits_for.relation,
        Some(relation("orders"))
    );
}
