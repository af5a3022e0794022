//! Suggested fixes that would have done harm, or nothing.

use pgassay_record::activity::{
    BlockedSession, HorizonHolder, HorizonKind, IndexActivity, LoadMark, LoadMarkKind, RootBlocker,
    SlotState, TableActivity,
};
use pgassay_record::finding::{Confidence, Finding};

use super::build::{
    DAY_US, ExampleServer, blocked, blocking, calls, episode, queued, relation, root, table,
    unused_index,
};
use super::catalog::{BY_CUSTOMER, dead, first, scanned};
use super::statements::{committing, planned, sorted};

/// Regression: to sort or to serve an expression, an index of a partitioned table was to be created without a word on
/// the writes that wait for it; in version 10 the statement fails.
#[test]
fn an_index_of_a_partitioned_table_blocks_writes_and_cannot_be_created_in_version_10() {
    let of = |text: &str, major: &str| {
        let mut server = scanned(text, 20, Some(calls(20, 10.0)));
        let catalog = server.activity.catalog.as_mut().expect("a catalog");
        let mut part = catalog.tables.remove(0);
        part.partition_of = Some(relation("orders"));
        part.relation = relation("orders_2026");
        catalog.tables.push(part);
        let mut found = crate::diagnose_activity(&server.activity, Some(major));
        found.retain(|it| it.id == "missing-index");
        found.remove(0)
    };
    for text in [
        BY_CUSTOMER,
        "select id from orders order by at desc limit $1",
        "select * from orders where lower(note) = $1",
        "select * from orders where note::text = $1",
    ] {
        let found = of(text, "11");
        let sql = found.fix_sql.expect("a statement");
        assert!(sql.starts_with("create index on public.orders ("), "{sql}");
        let risk = found.risk.expect("a risk");
        assert!(risk.contains("all writes"), "{text}: {risk}");
        assert!(found.suggested_fix.contains("CONCURRENTLY first"), "{text}");
        let old = of(text, "10");
        assert_eq!(old.fix_sql, None, "{text}");
        assert!(old.suggested_fix.contains("on each partition"), "{text}");
    }
}

/// Regression: 14.0 to 14.3 leave rows out of indexes that they build concurrently.
#[test]
fn an_index_is_built_concurrently_after_an_update_from_14_3() {
    let fix = |version: &str| {
        let version = ("server_version_num".to_owned(), version.to_owned());
        let server = scanned(BY_CUSTOMER, 20, Some(calls(20, 30.0)));
        let server = server.catalog(|it| it.settings.push(version));
        first("missing-index", &server).suggested_fix
    };
    assert!(fix("140003").starts_with("Update the server to 14.4"));
    for version in ["130023", "140004", "180000"] {
        assert!(fix(version).starts_with("Create an index"), "{version}");
    }
}

/// Regression: `synchronous_commit = off` also gives up waiting for the standby, so that a failover loses commits.
#[test]
fn commits_with_synchronous_standbys_are_not_made_asynchronous() {
    let of = |standbys: &str| {
        let setting = ("synchronous_standby_names".to_owned(), standbys.to_owned());
        let server = committing("IO:WalSync", 3.0, 500);
        let found = first(
            "slow-wal-sync",
            &server.catalog(|it| it.settings.push(setting)),
        );
        (found.fix_sql, found.risk.expect("a risk"))
    };
    let (sql, risk) = of("ANY 1 (a, b)");
    assert_eq!(sql, None);
    assert!(risk.contains("failover"), "{risk}");
    assert_eq!(
        of("").0.as_deref(),
        Some("alter role web set synchronous_commit = off")
    );
}

/// Regression: a gigabyte of `work_mem` was to be set for a whole database, or for a role with many sessions.
#[test]
fn much_work_mem_is_for_the_transaction_alone() {
    let of = |server: &ExampleServer| {
        let found = first("temp-spill", server);
        (found.fix_sql, found.suggested_fix)
    };
    let (sql, fix) = of(&sorted(1.0, 8000));
    assert_eq!(sql, None);
    assert!(fix.contains("set local work_mem = '256MB'"), "{fix}");
    let of_role = Some("alter role web set work_mem = '128MB'".to_owned());
    assert_eq!(of(&sorted(1.0, 4000)).0, of_role);
    let mut many = sorted(1.0, 4000);
    let session = many.activity.sessions[0].clone();
    many.activity.sessions.extend(vec![session; 8]);
    assert_eq!(of(&many).0, None);
    let of_database = ExampleServer::new().catalog(|it| {
        it.databases[0].temp_files = 1000;
        it.databases[0].temp_bytes = 8_000_000_000;
    });
    let (sql, fix) = of(&of_database);
    assert_eq!(sql, None);
    assert!(fix.contains("set local work_mem = '32MB'"), "{fix}");
}

/// Regression: generic plans were to be forced on all statements of a role, for one that is perhaps not even prepared.
#[test]
fn generic_plans_are_not_forced_on_a_role() {
    let found = first("planning-time", &planned(400.0, 100.0));
    assert_eq!(found.fix_sql, None);
    assert!(found.suggested_fix.contains("not for the role"));
}

/// Regression: behind an anti-wraparound vacuum, the session with the longest wait was to be canceled: a reader.
#[test]
fn the_command_that_waits_for_the_vacuum_is_canceled_and_no_reader_behind_it() {
    let sql = |blocked: Vec<BlockedSession>| {
        let vacuum = RootBlocker {
            prevents_wraparound: true,
            ..root("autovacuum worker", 60e6)
        };
        first(
            "wraparound-vacuum-blocks",
            &blocking(episode(vacuum, blocked)),
        )
        .fix_sql
    };
    let ddl = || queued(20, 4711, "AccessExclusiveLock", 6e6);
    let reader = |behind| queued(7, behind, "AccessShareLock", 9e6);
    let cancel = Some("select pg_cancel_backend(20)".to_owned());
    assert_eq!(sql(vec![reader(20), ddl()]), cancel);
    assert_eq!(sql(vec![blocked(1, 9e6), ddl()]), cancel);
    assert_eq!(
        sql(vec![queued(7, 4711, "ShareUpdateExclusiveLock", 9e6)]),
        None
    );
}

/// Regression: failover slots of a standby, which the primary keeps there, were to be dropped: that fails.
#[test]
fn a_slot_that_a_standby_copies_is_not_dropped_there() {
    let server = |is_synced| {
        let slot = SlotState {
            name: "sub".to_owned(),
            kind: "logical".to_owned(),
            retained_bytes: Some(1 << 33),
            wal_status: Some("extended".to_owned()),
            inactive_us: Some(DAY_US),
            is_synced,
            ..SlotState::default()
        };
        let holder = HorizonHolder {
            kind: HorizonKind::SlotCatalog,
            name: "sub".to_owned(),
            age: 150_000_000,
            has_oldest_id: false,
            lasting_us: None,
            database: None,
            detail: String::new(),
            state: String::new(),
            wait: None,
        };
        ExampleServer::new().catalog(|it| {
            it.is_standby = true;
            it.slots.push(slot);
            it.horizon.push(holder);
        })
    };
    for id in ["slot-wal", "slot-horizon"] {
        let copy = first(id, &server(true));
        assert_eq!(copy.fix_sql, None, "{id}");
        assert!(copy.suggested_fix.contains("on the primary"), "{id}");
        let own = first(id, &server(false)).fix_sql.expect("a statement");
        assert_eq!(own, "select pg_drop_replication_slot('sub')", "{id}");
    }
}

fn with_unused(change: impl FnOnce(&mut IndexActivity)) -> Finding {
    let server = unused_index(40.0).catalog(|it| change(&mut it.indexes[0]));
    first("unused-index", &server)
}

/// Regression: the index that keeps rare deletes of referenced rows from reading a whole table was to be dropped.
#[test]
fn the_only_index_of_a_foreign_key_is_not_dropped() {
    let found = with_unused(|it| it.foreign_key = Some("note_fkey".to_owned()));
    assert_eq!(found.confidence, Confidence::Hint);
    assert_eq!(found.fix_sql, None);
    assert!(found.suggested_fix.contains("note_fkey"));
}

/// Regression: an index that no plan scans may still give the planner statistics of its expression.
#[test]
fn an_index_on_an_expression_has_statistics_that_go_with_it() {
    let risk = |column: &str| {
        let found = with_unused(|it| it.columns = vec![column.to_owned()]);
        found.risk.expect("a risk")
    };
    assert!(risk("expression").contains("statistics of the expression"));
    assert!(!risk("note").contains("statistics"));
}

/// Regression: without the right to see others' states, none of 95 connections was idle.
#[test]
fn idle_connections_are_not_counted_if_states_are_hidden() {
    let facts = |idle: Option<u32>| {
        let server = ExampleServer::new().catalog(|it| {
            let connections = it.connections.as_mut().expect("connections");
            (connections.used, connections.idle) = (95, idle);
        });
        let found = first("connections-exhausted", &server);
        found
            .evidence
            .into_iter()
            .map(|it| it.what)
            .collect::<Vec<_>>()
    };
    let idle = "of them idle".to_owned();
    assert!(facts(Some(90)).contains(&idle) && !facts(None).contains(&idle));
}

/// Regression: a VACUUM by hand that ran for the whole window was a throttled autovacuum.
#[test]
fn a_vacuum_by_hand_is_no_throttled_autovacuum() {
    let found = |text: &str, name: &str| {
        let orders = TableActivity {
            relation: relation("orders"),
            ..dead(900_000.0, 100.0)
        };
        let mut server = ExampleServer::new().table(orders);
        server.activity.marks.push(LoadMark {
            at_us: 0.0,
            length_us: 0.0,
            kind: LoadMarkKind::Vacuum,
            text: format!("{text}{name}"),
            count: None,
        });
        let found = super::of_id("dead-rows", &server.activity);
        found
            .into_iter()
            .map(|it| it.fix_sql.unwrap_or_default())
            .collect::<Vec<_>>()
    };
    assert!(found("autovacuum of ", "public.orders")[0].contains("cost_delay"));
    assert_eq!(found("vacuum of ", "public.orders"), [""; 0]);
    // One of another table changes nothing.
    assert!(found("autovacuum of ", "old.public.orders")[0].contains("scale_factor"));
}

/// Regression: a worker of a subscription was to be canceled: it applies the same transaction again.
#[test]
fn a_worker_of_logical_replication_is_not_canceled() {
    let worker = root("logical replication apply worker", 60e6);
    let found = first(
        "long-blocker",
        &blocking(episode(worker, vec![blocked(1, 11e6)])),
    );
    assert_eq!(found.fix_sql, None);
    assert!(found.suggested_fix.contains("starts again"));
}

/// Regression: nothing said that a temporary table may be the oldest, which no VACUUM of others helps.
#[test]
fn an_old_database_may_have_a_temporary_table() {
    let fix = first("wraparound", &super::catalog::aged(600e6)).suggested_fix;
    assert!(fix.contains("relpersistence = 't'"), "{fix}");
}

/// Regression: with `fastupdate` off, a long pending list stays as it is.
#[test]
fn a_pending_list_is_emptied_after_its_limit_is_lowered() {
    let orders = TableActivity {
        inserted: 10_000,
        ..table("orders")
    };
    let words = IndexActivity {
        method: "gin".to_owned(),
        pending_list_limit_bytes: Some(64 << 20),
        ..super::build::index("orders_words_idx", &["words"])
    };
    let fix = first(
        "gin-pending-list",
        &ExampleServer::new().table(orders).index(words),
    );
    let call = "gin_clean_pending_list('public.orders_words_idx')";
    assert!(fix.suggested_fix.contains(call), "{}", fix.suggested_fix);
}
