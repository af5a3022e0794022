//! Holders of the xmin horizon in this database and in others.

use pgassay_record::activity::{ActivityWait, HorizonHolder, HorizonKind, RootBlocker};
use pgassay_record::finding::Finding;

use super::build::{ExampleServer, blocked, episode, root};
use super::catalog::{aged, dead};
use super::of_id;
use super::sessions::{horizon, kept_back, slot};

fn elsewhere(holder: HorizonHolder) -> HorizonHolder {
    HorizonHolder {
        database: Some("other".to_owned()),
        ..holder
    }
}

fn names(found: &[Finding]) -> Vec<&str> {
    let objects = found.iter().filter_map(|it| it.object.as_ref());
    objects.map(|it| it.name.as_str()).collect()
}

fn also(server: ExampleServer, holder: HorizonHolder) -> ExampleServer {
    server.catalog(|it| {
        it.horizon.push(holder);
        it.horizon.sort_by_key(|it| std::cmp::Reverse(it.age));
    })
}

#[test]
fn an_older_snapshot_of_another_database_does_not_excuse_the_one_of_this_database() {
    for kind in [HorizonKind::Session, HorizonKind::PreparedTransaction] {
        let older = HorizonHolder {
            age: 1_000_000,
            ..elsewhere(horizon(kind, "4712", ""))
        };
        let server = kept_back(horizon(HorizonKind::Session, "4711", ""), 20e6);
        let found = of_id("horizon-session", &also(server, older).activity);
        assert_eq!(names(&found), ["4711"], "{kind:?}");
    }
    // A slot counts for all databases.
    let slot = HorizonHolder {
        age: 1_000_000,
        ..horizon(HorizonKind::Slot, "replica", "")
    };
    let server = kept_back(horizon(HorizonKind::Session, "4711", ""), 20e6);
    let server = also(server, slot);
    assert_eq!(of_id("horizon-session", &server.activity), []);
    assert_eq!(names(&of_id("slot-horizon", &server.activity)), ["replica"]);
}

#[test]
fn a_snapshot_of_another_database_does_not_explain_dead_rows_here() {
    for kind in [HorizonKind::Session, HorizonKind::PreparedTransaction] {
        let server = kept_back(elsewhere(horizon(kind, "4711", "")), 20e6);
        assert_eq!(of_id("horizon-session", &server.activity), []);
        assert_eq!(of_id("prepared-transaction", &server.activity), []);
    }
}

#[test]
fn dead_rows_are_reported_despite_a_snapshot_of_another_database() {
    let late = || ExampleServer::new().table(dead(600_000.0, 100.0));
    assert_eq!(of_id("dead-rows", &late().activity).len(), 1);
    let long = |holder| HorizonHolder {
        lasting_us: Some(3600e6),
        ..holder
    };
    let session = || long(horizon(HorizonKind::Session, "4711", ""));
    let other = also(late(), elsewhere(session()));
    assert_eq!(of_id("dead-rows", &other.activity).len(), 1);
    let own = also(late(), session());
    assert_eq!(of_id("dead-rows", &own.activity), []);
    // A transaction that writes there is seen as running by each snapshot taken here.
    let short = HorizonHolder {
        lasting_us: Some(1e6),
        ..horizon(HorizonKind::Session, "4712", "")
    };
    let seen = also(other, short);
    assert_eq!(of_id("dead-rows", &seen.activity), []);
}

#[test]
fn wraparound_does_not_name_a_snapshot_of_another_database() {
    let old = |holder| HorizonHolder {
        age: 290_000_000,
        ..holder
    };
    let session = || old(horizon(HorizonKind::Session, "4711", ""));
    let states = |server: ExampleServer| {
        let found = of_id("wraparound", &server.activity);
        let facts = found[0].evidence.iter();
        let causes = facts.filter(|it| it.what.contains("prevents freezing"));
        causes.map(|it| it.what.clone()).collect::<Vec<_>>()
    };
    let aged = || aged(300e6);
    assert_eq!(
        states(also(aged(), session())),
        ["4711 prevents freezing, see its finding"]
    );
    let server = also(aged(), elsewhere(session()));
    let found = of_id("horizon-session", &server.activity);
    let of_its = |it: &&Finding| {
        it.evidence
            .iter()
            .any(|it| it.what.contains("of database other "))
    };
    assert!(found.iter().any(|it| of_its(&it)), "{found:#?}");
    assert_eq!(states(server), [""; 0]);
}

#[test]
fn an_autovacuum_that_holds_the_horizon_is_not_to_be_ended() {
    let detail = "autovacuum worker, active: autovacuum: ANALYZE public.orders";
    let server = kept_back(horizon(HorizonKind::Session, "4711", detail), 20e6);
    let found = of_id("horizon-session", &server.activity);
    assert_eq!(names(&found), ["4711"]);
    assert_eq!(found[0].fix_sql, None, "{found:?}");
}

/// Regression: an ANALYZE of seconds, or an update that waited for a lock as long, ranked first.
#[test]
fn a_statement_of_seconds_does_not_hold_back_vacuum() {
    let lasting = |state: &str, us: f64| HorizonHolder {
        state: state.to_owned(),
        lasting_us: Some(us),
        ..horizon(HorizonKind::Session, "4711", "")
    };
    let found = |holder| of_id("horizon-session", &kept_back(holder, 2e6).activity).len();
    assert_eq!(found(lasting("active", 30e6)), 0);
    assert_eq!(found(lasting("active", 90e6)), 1);
    assert_eq!(found(lasting("idle in transaction", 30e6)), 1);
    let server = kept_back(lasting("active", 30e6), 2e6);
    let server = server.catalog(|it| {
        it.settings
            .push(("autovacuum_naptime".to_owned(), "15 s".to_owned()));
    });
    assert_eq!(of_id("horizon-session", &server.activity).len(), 1);
}

#[test]
fn sessions_that_wait_for_the_holder_are_not_to_be_canceled_for_its_horizon() {
    let lasting = |name: &str, us: f64| HorizonHolder {
        lasting_us: Some(us),
        ..horizon(HorizonKind::Session, name, "")
    };
    let waiting = |name: &str, us: f64| HorizonHolder {
        wait: Some(ActivityWait {
            kind: "Lock".to_owned(),
            name: "tuple".to_owned(),
        }),
        ..lasting(name, us)
    };
    let server = kept_back(lasting("4711", 120e6), 20e6);
    let server = also(server, lasting("4712", 110e6));
    let server = also(also(server, waiting("4713", 119e6)), waiting("4714", 130e6));
    let found = of_id("horizon-session", &server.activity);
    assert_eq!(names(&found), ["4711"]);
    // The same behind a prepared transaction.
    let prepared = horizon(HorizonKind::PreparedTransaction, "tx-1", "");
    let server = also(kept_back(waiting("4713", 130e6), 20e6), prepared);
    assert_eq!(of_id("horizon-session", &server.activity), []);
    // A snapshot of another age does not depend on it.
    let own = HorizonHolder {
        age: 11_999,
        ..waiting("4713", 110e6)
    };
    let server = also(kept_back(lasting("4711", 120e6), 20e6), own);
    let found = of_id("horizon-session", &server.activity);
    assert_eq!(names(&found), ["4711", "4713"]);
}

#[test]
fn a_prepared_transaction_that_holds_the_horizon_is_ranked_by_the_sessions_that_it_blocks() {
    let prepared = RootBlocker {
        pid: None,
        gid: Some("tx-1".to_owned()),
        ..root("prepared transaction", 30e6)
    };
    let holder = horizon(HorizonKind::PreparedTransaction, "tx-1", "");
    let server = kept_back(holder, 20e6).blocking(episode(prepared, vec![blocked(1, 9e6)]));
    let found = of_id("prepared-transaction", &server.activity);
    assert_eq!(names(&found), ["tx-1"]);
    assert_eq!(found[0].saved_sessions, Some(0.9));
    let facts = &found[0].evidence;
    let has = |what: &str| facts.iter().any(|it| it.what == what);
    assert!(has("dead rows that VACUUM could not remove"), "{facts:?}");
    assert!(has("sessions waiting for it, on average"), "{facts:?}");
}

/// Regression: an invalid slot was said to keep 0 bytes of WAL, and to fill the disk.
#[test]
fn an_invalid_slot_keeps_nothing() {
    let server = slot("replica", "lost", 0).catalog(|it| it.slots[0].retained_bytes = None);
    let found = of_id("slot-wal", &server.activity).remove(0);
    assert_eq!(found.title, "A replication slot is invalid");
    let evidence: Vec<&str> = found.evidence.iter().map(|it| it.what.as_str()).collect();
    assert_eq!(
        evidence,
        [
            "no receiver is connected",
            "time since its receiver left",
            "wal_status lost"
        ]
    );
    let drop = "select pg_drop_replication_slot('replica')";
    assert_eq!(found.fix_sql.as_deref(), Some(drop));
}

/// Regression: of a slot that a standby with a long query uses, the advice was to start the standby, or drop the slot.
#[test]
fn a_slot_in_use_holds_the_snapshot_of_a_standby() {
    let fix = |is_active| {
        let holder = horizon(HorizonKind::Slot, "replica", "");
        let server = kept_back(holder, 20e6).catalog(|it| {
            let with_slot = slot("replica", "reserved", 0).activity.catalog;
            it.slots = with_slot.expect("a catalog").slots;
            it.slots[0].is_active = is_active;
        });
        let found = of_id("slot-horizon", &server.activity).remove(0);
        (found.suggested_fix, found.fix_sql.unwrap_or_default())
    };
    let (words, sql) = fix(true);
    assert!(
        words.starts_with("On the standby, end the long query"),
        "{words}"
    );
    assert!(
        sql.starts_with("alter system set hot_standby_feedback = off"),
        "{sql}"
    );
    let (words, sql) = fix(false);
    assert!(
        words.starts_with("Start what reads from the slot"),
        "{words}"
    );
    assert_eq!(sql, "select pg_drop_replication_slot('replica')");
}

/// Regression: after a batch DELETE and VACUUM, a standby's feedback of four seconds before was why dead rows stayed.
#[test]
fn the_feedback_of_a_standby_is_a_few_seconds_old_anyway() {
    for (kind, id) in [
        (HorizonKind::Slot, "slot-horizon"),
        (HorizonKind::Standby, "standby-horizon"),
    ] {
        // At 100 transactions per second.
        let found = |age: u64| {
            let holder = HorizonHolder {
                age,
                ..horizon(kind, "replica", "")
            };
            of_id(id, &kept_back(holder, 1e6).activity).len()
        };
        assert_eq!([found(400), found(5900), found(6100)], [0, 0, 1], "{id}");
    }
}

/// Regression: a session of the primary had written and stayed, and the advice was to end a long query on the standby,
/// which executed none: its feedback had the age of that session.
#[test]
fn the_feedback_of_a_standby_is_as_old_as_a_transaction_of_the_primary() {
    for (kind, id) in [
        (HorizonKind::Slot, "slot-horizon"),
        (HorizonKind::Standby, "standby-horizon"),
    ] {
        let found = |has_oldest_id, younger: u64| {
            let feedback = horizon(kind, "replica", "");
            let writer = HorizonHolder {
                has_oldest_id,
                age: feedback.age - younger,
                state: "idle in transaction".to_owned(),
                ..horizon(HorizonKind::Session, "4711", "web, idle in transaction")
            };
            let server = kept_back(feedback, 20e6).catalog(|it| it.horizon.push(writer));
            of_id(id, &server.activity).len()
        };
        assert_eq!(
            [found(true, 0), found(false, 0), found(true, 1)],
            [0, 1, 1],
            "{id}"
        );
    }
}
