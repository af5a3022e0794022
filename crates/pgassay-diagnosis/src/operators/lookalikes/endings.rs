//! Sessions that a cancel would not end, as blockers and as holders of the horizon.

use pgassay_record::activity::{
    ActivityWait, BlockedSession, HorizonHolder, HorizonKind, LockTarget, RootBlocker,
};
use pgassay_record::finding::Finding;

use super::build::{ExampleServer, blocked, blocking, episode, queued, root};
use super::sessions::{horizon, kept_back};
use super::{findings as findings_of, of_id};

fn wait(kind: &str, name: &str) -> ActivityWait {
    ActivityWait {
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

/// A session in this state and wait that blocks eight others, and one that holds the horizon.
fn findings(state: &str, wait: Option<ActivityWait>) -> [Finding; 2] {
    let blocker = RootBlocker {
        wait: wait.clone(),
        ..root(state, 30e6)
    };
    let eight = (1..=8).map(|pid| blocked(pid, 20e6)).collect();
    let holder = HorizonHolder {
        state: state.to_owned(),
        wait,
        ..horizon(HorizonKind::Session, "4711", "web, active")
    };
    let only = |id, server: &ExampleServer| of_id(id, &server.activity).remove(0);
    [
        only("long-blocker", &blocking(episode(blocker, eight))),
        only("horizon-session", &kept_back(holder, 20e6)),
    ]
}

fn sql(found: &Finding) -> &str {
    found.fix_sql.as_deref().unwrap_or_default()
}

#[test]
fn a_session_that_waits_for_a_synchronous_standby_is_not_canceled() {
    for found in findings("active", Some(wait("IPC", "SyncRep"))) {
        assert!(!sql(&found).contains("_backend("), "{found:#?}");
        let fix = &found.suggested_fix;
        assert!(fix.contains("see synchronous-standby"), "{fix}");
        assert!(fix.contains("committed without replication"), "{fix}");
        let risk = found.risk.unwrap_or_default();
        assert!(!risk.contains("rolled back"), "{risk}");
    }
}

/// Regression: behind a disk that stalled, the session in its commit was to be canceled, which has no effect.
#[test]
fn a_session_that_waits_for_the_disk_of_the_wal_is_not_canceled() {
    let found = findings("active", Some(wait("IO", "WalSync")));
    for found in found {
        assert_eq!(sql(&found), "", "{found:#?}");
        let fix = &found.suggested_fix;
        assert!(fix.contains("why the disk of pg_wal stalls"), "{fix}");
    }
}

/// Regression: a busy session that held an advisory lock of the session was to be canceled, which keeps the lock.
#[test]
fn a_cancel_does_not_release_an_advisory_lock_of_the_session() {
    let fix = |kind: &str| {
        let mut waiting = blocked(1, 20e6);
        waiting.waits_for.kind = kind.to_owned();
        let server = blocking(episode(root("active", 30e6), vec![waiting]));
        let found = of_id("long-blocker", &server.activity).remove(0);
        assert_eq!(sql(&found), "select pg_cancel_backend(4711)");
        found.suggested_fix
    };
    let at_advisory = fix("advisory");
    assert!(
        at_advisory.contains("pg_terminate_backend(4711) does"),
        "{at_advisory}"
    );
    let at_row = fix("transactionid");
    assert!(!at_row.contains("pg_terminate_backend"), "{at_row}");
}

/// Regression: VACUUM FULL was to commit in batches.
#[test]
fn a_command_that_rebuilds_a_table_is_to_run_when_it_is_not_used() {
    let is_rebuilt = |statement: &str| {
        let holder = RootBlocker {
            statement: Some(statement.to_owned()),
            ..root("active", 30e6)
        };
        let eight = (1..=8).map(|pid| blocked(pid, 20e6)).collect();
        let found = of_id("long-blocker", &blocking(episode(holder, eight)).activity).remove(0);
        let fix = found.suggested_fix;
        assert_ne!(
            fix.contains("is rebuilt"),
            fix.contains("in batches"),
            "{fix}"
        );
        fix.contains("is rebuilt")
    };
    for statement in [
        "vacuum full orders",
        "VACUUM (VERBOSE, FULL) orders",
        "cluster orders",
        "reindex table orders",
    ] {
        assert!(is_rebuilt(statement), "{statement}");
    }
    for statement in ["vacuum orders", "update vacuum set full_name = $1"] {
        assert!(!is_rebuilt(statement), "{statement}");
    }
}

#[test]
fn a_session_that_waits_for_its_client_is_terminated_since_a_cancel_has_no_effect() {
    for name in ["ClientWrite", "ClientRead"] {
        for found in findings("active", Some(wait("Client", name))) {
            assert_eq!(sql(&found), "select pg_terminate_backend(4711)");
            let fix = &found.suggested_fix;
            assert!(fix.contains("pg_cancel_backend has no effect"), "{fix}");
            let risk = found.risk.unwrap_or_default();
            assert!(risk.contains("connection is closed"), "{risk}");
        }
    }
}

#[test]
fn a_session_without_a_known_state_may_not_heed_the_cancel() {
    for state in ["disabled", "unknown"] {
        for found in findings(state, None) {
            assert_eq!(sql(&found), "select pg_cancel_backend(4711)");
            let fix = &found.suggested_fix;
            assert!(fix.contains("a cancel has no effect"), "{fix}");
        }
    }
}

#[test]
fn a_session_that_works_is_canceled() {
    for found in findings("active", Some(wait("IO", "DataFileRead"))) {
        assert_eq!(sql(&found), "select pg_cancel_backend(4711)");
        let fix = &found.suggested_fix;
        assert!(!fix.contains("no effect"), "{fix}");
    }
}

/// The state is that of the server, not a word of the statement.
#[test]
fn a_statement_about_idle_transactions_is_not_an_idle_transaction() {
    let detail = "web, active: select * from log where line = 'idle in transaction'";
    let holder = HorizonHolder {
        state: "active".to_owned(),
        ..horizon(HorizonKind::Session, "4711", detail)
    };
    let found = of_id("horizon-session", &kept_back(holder, 20e6).activity);
    assert_eq!(sql(&found[0]), "select pg_cancel_backend(4711)");
}

/// Regression: where a report, an ALTER TABLE behind it and readers behind that waited, to cancel the report came first,
/// with advice for transactions that write.
#[test]
fn a_command_behind_a_reader_is_canceled_before_the_reader() {
    let readers = (2..=5).map(|pid| queued(pid, 1, "AccessShareLock", 19e6));
    let waiting: Vec<_> = [queued(1, 4711, "AccessExclusiveLock", 20e6)]
        .into_iter()
        .chain(readers)
        .collect();
    let found = |mode: &str| {
        let mut reader = root("active", 30e6);
        if let Some(hold) = &mut reader.holds {
            hold.mode = mode.to_owned();
        }
        let found = findings_of(&blocking(episode(reader, waiting.clone())).activity);
        let fixes = found.into_iter().filter(|it| it.fix_sql.is_some());
        let fixes: Vec<_> = fixes.map(|it| (it.id, it.suggested_fix)).collect();
        fixes
    };
    let [(first, _), (second, fix), ..] = &found("AccessShareLock")[..] else {
        panic!("two findings");
    };
    assert_eq!((&first[..], &second[..]), ("ddl-queue", "long-blocker"));
    assert!(!fix.contains("commit in batches"), "{fix}");
    // A writer blocks others as well.
    let [(first, fix), ..] = &found("RowExclusiveLock")[..] else {
        panic!("two findings");
    };
    assert_eq!(&first[..], "long-blocker");
    assert!(fix.contains("commit in batches"), "{fix}");
}

/// Regression: behind CREATE INDEX CONCURRENTLY, the suggestion was to use CREATE INDEX CONCURRENTLY.
#[test]
fn a_concurrent_build_that_is_canceled_leaves_an_invalid_index() {
    let found = |statement: &str| {
        let blocker = RootBlocker {
            statement: Some(statement.to_owned()),
            ..root("active", 30e6)
        };
        let server = blocking(episode(blocker, vec![blocked(1, 20e6)]));
        let found = of_id("long-blocker", &server.activity).remove(0);
        (found.risk.unwrap_or_default(), found.suggested_fix)
    };
    let (risk, fix) = found("CREATE INDEX CONCURRENTLY i ON orders (note)");
    assert!(risk.contains("invalid"), "{risk}");
    assert!(!fix.contains("CREATE INDEX CONCURRENTLY"), "{fix}");
    let (risk, fix) = found("create index i on orders (note)");
    assert!(!risk.contains("invalid"), "{risk}");
    assert!(fix.contains("CREATE INDEX CONCURRENTLY"), "{fix}");
}

/// Regression: with `track_activities` off, a session that blocked others for minutes was no finding.
#[test]
fn a_blocker_that_is_not_tracked_is_found_by_how_long_it_has_blocked() {
    let found = |age_us: f64| {
        let holder = RootBlocker {
            transaction_age_us: None,
            statement: None,
            ..root("disabled", age_us)
        };
        let waiting = (1..=8).map(|pid| blocked(pid, age_us)).collect();
        of_id("long-blocker", &blocking(episode(holder, waiting)).activity)
    };
    let long = found(12e6).remove(0);
    let has = |words: &str| long.evidence.iter().any(|it| it.what.contains(words));
    assert!(has("track_activities off"), "{:?}", long.evidence);
    assert!(found(0.5e6).is_empty());
}

#[test]
fn a_transaction_that_delays_a_safe_snapshot_is_not_to_lock_less() {
    let deferred = BlockedSession {
        waits_for: LockTarget {
            kind: LockTarget::SAFE_SNAPSHOT.to_owned(),
            ..LockTarget::default()
        },
        ..blocked(1, 20e6)
    };
    let server = blocking(episode(root("active", 30e6), vec![deferred]));
    let found = of_id("long-blocker", &server.activity).remove(0);
    assert!(found.suggested_fix.contains("DEFERRABLE"), "{found:?}");
}
