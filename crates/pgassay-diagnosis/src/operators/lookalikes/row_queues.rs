//! Queues for rows next to sessions that hold other rows.

use pgassay_record::activity::BlockedSession;

use super::build::{ExampleServer, blocked, episode, root};
use super::sessions::{UPDATE, row_queue};

/// Regression: a session idle in a transaction blocked two others, and a queue for another row, of three sessions on
/// average, had no finding: that session was taken for the cause of all waits.
#[test]
fn a_queue_for_another_row_than_the_blockers_is_a_finding() {
    let behind = |fingerprint: &str| {
        let two = |pid| BlockedSession {
            fingerprint: Some(fingerprint.to_owned()),
            ..blocked(pid, 10e6)
        };
        episode(root("idle in transaction", 12e6), [1, 2].map(two).into())
    };
    let queue = |own: f64| {
        let server = row_queue(3).load(UPDATE, "Lock:transactionid", own - 3.0);
        server.load(
            "update orders set paid = $1 where id = $2",
            "Lock:transactionid",
            2.0,
        )
    };
    let found = |server: ExampleServer| {
        let found = super::of_id("row-lock-queue", &server.activity);
        let saved: Vec<f64> = found.iter().filter_map(|it| it.saved_sessions).collect();
        saved
    };
    let fingerprint = queue(3.0).activity.statements[1].fingerprint.clone();
    let other = found(queue(3.0).blocking(behind("ff")));
    assert!(
        other.len() == 1 && (other[0] - 3.0).abs() < 1e-9,
        "{other:?}"
    );
    // The same statement, of whose 5 waiting sessions the blocker explains 2.
    let same = found(queue(5.0).blocking(behind(&fingerprint)));
    assert!(same.len() == 1 && (same[0] - 3.0).abs() < 1e-9, "{same:?}");
}

/// Regression: "mean length of the queue that a waiting session is in: 0".
#[test]
fn a_queue_that_no_reading_saw_has_no_length() {
    let facts = |tuple: f64| {
        let server = ExampleServer::new().load(UPDATE, "Lock:transactionid", 0.4);
        let server = server.load(UPDATE, "Lock:tuple", tuple);
        let found = super::of_id("row-lock-queue", &server.activity).remove(0);
        let facts = found.evidence.iter();
        let lengths = facts.filter(|it| it.what.starts_with("mean length"));
        lengths.count()
    };
    assert_eq!(facts(0.4), 0);
    assert_eq!(facts(4.0), 1);
}

/// Regression: of five sessions behind an idle one, four of the queue's statement had waited for 15 minutes, and nearly
/// all of the waits in the window of 10 s were taken for theirs.
#[test]
fn waits_that_began_before_the_window_count_for_its_length() {
    let server = row_queue(3).load(UPDATE, "Lock:transactionid", 0.6);
    let fingerprint = server.activity.statements[1].fingerprint.clone();
    let waiter = |pid, own: &str, waited_us| BlockedSession {
        fingerprint: Some(own.to_owned()),
        ..blocked(pid, waited_us)
    };
    let behind = vec![waiter(1, &fingerprint, 900e6), waiter(2, "ff", 10e6)];
    let server = server.blocking(episode(root("idle in transaction", 12e6), behind));
    let found = super::of_id("row-lock-queue", &server.activity);
    let saved: Vec<f64> = found.iter().filter_map(|it| it.saved_sessions).collect();
    assert!(
        saved.len() == 1 && (saved[0] - 2.6).abs() < 1e-9,
        "{saved:?}"
    );
}
