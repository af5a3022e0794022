//! Deadlocks that sessions wait for.

use super::findings;
use super::sessions::row_waits;

/// The findings of a server on which sessions queue for rows, with so many deadlocks in the window of 10 s, of which
/// no reading saw one; and what they would give back.
fn queued_with(deadlocks: u64) -> Vec<(String, Option<f64>)> {
    let server = row_waits(3.0, 5.0).catalog(|it| it.databases[0].deadlocks = deadlocks);
    let found = findings(&server.activity).into_iter();
    let lock = |id: &str| matches!(id, "deadlocks" | "row-lock-queue");
    let its = found.filter(|it| lock(&it.id));
    its.map(|it| (it.id, it.saved_sessions)).collect()
}

#[test]
fn deadlocks_that_last_most_of_the_time_are_the_cause_of_the_queue_for_rows() {
    let found = queued_with(25);
    assert_eq!(found, [("deadlocks".to_owned(), Some(5.0))]);
}

/// Regression: a deadlock each second, of two sessions, was taken for the cause of all waits for locks.
#[test]
fn deadlocks_of_two_sessions_do_not_explain_a_queue_of_others_for_a_row() {
    let found = queued_with(10);
    let ids: Vec<&str> = found.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["row-lock-queue", "deadlocks"]);
}

#[test]
fn a_deadlock_now_and_then_does_not_explain_a_queue_for_rows() {
    let found = queued_with(4);
    let ids: Vec<&str> = found.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["row-lock-queue", "deadlocks"]);
    let saved: f64 = found[1].1.expect("a load");
    assert!((saved - 0.8).abs() < 1e-9, "{saved}");
}

/// Regression: `log_lock_waits` was to be set on where it was on.
#[test]
fn waits_for_locks_that_are_logged_are_not_to_be_logged_again() {
    let found = |value: Option<&str>| {
        let logged = value.map(|it| ("log_lock_waits".to_owned(), it.to_owned()));
        let server = row_waits(3.0, 5.0).catalog(|it| {
            it.databases[0].deadlocks = 25;
            it.settings.extend(logged);
        });
        super::of_id("deadlocks", &server.activity).remove(0)
    };
    for value in [None, Some("off")] {
        let sql = found(value).fix_sql;
        assert_eq!(sql.as_deref(), Some("alter system set log_lock_waits = on"));
    }
    let logged = found(Some("on"));
    assert_eq!(logged.fix_sql, None);
    assert!(!logged.suggested_fix.contains("log them"), "{logged:?}");
}
