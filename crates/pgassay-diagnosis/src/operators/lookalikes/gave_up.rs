//! Sessions that waited for others and gave up, by a timeout or because the root ended.

use pgassay_record::activity::{BlockingEpisode, IdleLockHolder, RootBlocker};
use pgassay_record::finding::Finding;

use super::build::{WINDOW_US, blocked, blocking, episode, root};
use super::of_id;

/// Half of the window before its end.
const SINCE_US: f64 = WINDOW_US / 2.0;

/// The finding of an episode that was last seen in the middle of the window; at its end, the root's session or prepared
/// transaction is idle in a transaction of this age, or there is none.
fn found(id: &str, root: &RootBlocker, idle_us: Option<f64>) -> Option<Finding> {
    let waiting = (1..=8).map(|pid| blocked(pid, 11e6)).collect();
    let over = BlockingEpisode {
        is_lasting: false,
        last_seen_us: WINDOW_US - SINCE_US,
        ..episode(root.clone(), waiting)
    };
    let mut server = blocking(over);
    let holder = |age_us| IdleLockHolder {
        holder: RootBlocker {
            state_age_us: age_us,
            transaction_age_us: Some(age_us),
            ..root.clone()
        },
        ended_by: String::new(),
    };
    server
        .activity
        .idle_lock_holders
        .extend(idle_us.map(holder));
    of_id(id, &server.activity).into_iter().next()
}

fn sql(found: Option<Finding>) -> String {
    found
        .and_then(|it| it.fix_sql)
        .unwrap_or_else(|| "none".to_owned())
}

/// Regression: "It has ended", of a session that was still idle in its transaction. Only those that waited for it had
/// run into their `lock_timeout`.
#[test]
fn a_blocker_whose_waiters_had_a_timeout_is_still_there() {
    let idle = root("idle in transaction", 12e6);
    let age_us = idle.transaction_age_us.unwrap_or(12e6) + SINCE_US;
    let there = found("idle-blocker", &idle, Some(age_us));
    let words = there.as_ref().map(|it| it.suggested_fix.as_str());
    assert!(
        words.is_some_and(
            |it| it.starts_with("No session waits for it now, but it still holds its locks")
        ),
        "{words:?}"
    );
    assert_eq!(sql(there), "select pg_terminate_backend(4711)");
    let limit = "alter role web set idle_in_transaction_session_timeout = '1min'";
    // The session has begun another transaction.
    for over in [Some(SINCE_US), None] {
        assert_eq!(sql(found("idle-blocker", &idle, over)), limit);
    }
}

/// Regression: of one that was active, nothing shows that it has ended.
#[test]
fn a_busy_blocker_without_waiters_need_not_have_ended() {
    let busy = root("active", 12e6);
    let words = found("long-blocker", &busy, None).map(|it| it.suggested_fix);
    assert!(
        words
            .as_ref()
            .is_some_and(|it| it.starts_with("No session waits for it anymore. So that")),
        "{words:?}"
    );
}

/// Regression: seven sessions waited for two prepared transactions until their `statement_timeout`, and there was
/// no finding.
#[test]
fn a_prepared_transaction_that_blocked_others_is_found() {
    let prepared = |age_us| RootBlocker {
        pid: None,
        gid: Some("tx-1".to_owned()),
        transaction_age_us: Some(age_us),
        ..root("prepared transaction", age_us)
    };
    let of_age = |age_us: f64, now_us: Option<f64>| {
        let it = found("prepared-transaction", &prepared(age_us), now_us);
        it.map(|it| it.suggested_fix.chars().take(12).collect::<String>())
    };
    assert_eq!(
        of_age(12e6, Some(12e6 + SINCE_US)).as_deref(),
        Some("Ask its tran")
    );
    assert_eq!(of_age(12e6, None).as_deref(), Some("No session w"));
    assert_eq!(of_age(0.9e6, None), None);
}
