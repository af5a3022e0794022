//! Servers with tables and indexes that need attention.

use pgassay_record::activity::{
    IndexActivity, StatementCounters, TableActivity, UncoveredForeignKey,
};
use pgassay_record::finding::Confidence;

use super::build::{ExampleServer, WINDOW_US, calls, index, relation, table, unused_index};
use super::{Edge, LiveCase, case, edge};

pub(super) const BY_CUSTOMER: &str = "select * from orders where customer = $1 and at > $2";
const PART_OF_KEY: &str = "delete from customer where id = $1";

pub(super) fn cases() -> Vec<LiveCase> {
    [of_indexes(), of_tables()].into_iter().flatten().collect()
}

/// A statement that scans `orders` this often, reading 1,000,000 rows and keeping these.
pub(super) fn scanned(
    text: &str,
    scans: u64,
    counters: Option<StatementCounters>,
) -> ExampleServer {
    let orders = TableActivity {
        sequential_scans: scans,
        sequential_rows: scans * 1_000_000,
        ..table("orders")
    };
    let server = ExampleServer::new()
        .load(text, "", 2.0)
        .executed(text, scans, 1)
        .table(orders);
    match counters {
        Some(counters) => server.counted(text, counters),
        None => server,
    }
}

/// Deletes of `customer`, each of which scans `orders`, with this many rows per scan.
pub(super) fn deleting(rows: f64) -> ExampleServer {
    let orders = TableActivity {
        sequential_scans: 100,
        sequential_rows: (100.0 * rows) as u64,
        ..table("orders")
    };
    let key = UncoveredForeignKey {
        constraint: "orders_customer_fkey".to_owned(),
        table: relation("orders"),
        columns: vec!["customer".to_owned()],
        referenced: relation("customer"),
        referenced_columns: vec!["id".to_owned()],
        referenced_writes: 100,
        referenced_deleted: 100,
        referenced_moved: 0,
        size_bytes: 100_000_000,
    };
    ExampleServer::new()
        .load(PART_OF_KEY, "", 1.0)
        .table(orders)
        .catalog(|it| it.uncovered_foreign_keys.push(key))
}

/// Updates of `customer`, of which this many rows were not HOT, with scans of all of `orders`.
pub(super) fn updating(text: &str, moved: u64) -> ExampleServer {
    let server = deleting(1e6).without_load();
    server.load(text, "", 1.0).catalog(|it| {
        let key = &mut it.uncovered_foreign_keys[0];
        (key.referenced_deleted, key.referenced_moved) = (0, moved);
    })
}

pub(super) fn by_customer() -> IndexActivity {
    index("orders_customer_at_idx", &["customer", "at"])
}

fn redundant(size_bytes: f64) -> ExampleServer {
    ExampleServer::new()
        .table(table("orders"))
        .index(IndexActivity {
            redundant_with: Some(relation("orders_customer_at_idx")),
            size_bytes: size_bytes as u64,
            ..index("orders_customer_idx", &["customer"])
        })
}

fn invalid(is_being_built: bool) -> ExampleServer {
    ExampleServer::new()
        .table(table("orders"))
        .index(IndexActivity {
            is_valid: false,
            is_being_built,
            ..index("orders_note_idx", &["note"])
        })
}

fn gin(limit: f64) -> ExampleServer {
    let orders = TableActivity {
        inserted: 10_000,
        ..table("orders")
    };
    ExampleServer::new().table(orders).index(IndexActivity {
        method: "gin".to_owned(),
        pending_list_limit_bytes: Some(limit as u64),
        ..index("orders_words_idx", &["words"])
    })
}

fn of_indexes() -> Vec<LiveCase> {
    let mut required = unused_index(40.0);
    let catalog = required.activity.catalog.as_mut().expect("a catalog");
    catalog.indexes[0].is_required = true;
    vec![
        case(
            "missing-index",
            "table public.orders",
            "a report that reads a whole table once, and keeps most of it",
            scanned(BY_CUSTOMER, 20, Some(calls(20, 30.0))),
            scanned(
                "select sum(total) from orders where at > $1",
                1,
                Some(calls(1, 1.0)),
            ),
        ),
        case(
            "index-not-used",
            "table public.orders",
            "a filter on an indexed column that keeps a tenth of the rows",
            scanned(BY_CUSTOMER, 20, Some(calls(20, 30.0))).index(by_customer()),
            scanned(BY_CUSTOMER, 20, Some(calls(20, 100_000.0))).index(by_customer()),
        ),
        case(
            "foreign-key-index",
            "table public.orders",
            "updates of referenced rows that leave the key alone, so that nothing is checked",
            deleting(1e6),
            updating("update customer set name = $1 where id = $2", 100),
        ),
        case(
            "unused-index",
            "index public.orders_note_idx",
            "an index that no query uses because it enforces a constraint",
            unused_index(40.0),
            required,
        ),
        case(
            "redundant-index",
            "index public.orders_customer_idx",
            "two indexes that begin with the same column, each of which serves scans that the other cannot",
            redundant(10e6),
            ExampleServer::new()
                .table(table("orders"))
                .index(index("orders_customer_idx", &["customer", "note"])),
        ),
        case(
            "invalid-index",
            "index public.orders_note_idx",
            "an index that is being built concurrently",
            invalid(false),
            invalid(true),
        ),
        case(
            "gin-pending-list",
            "index public.orders_words_idx",
            "a GIN index with the default limit of its pending list",
            gin(64e6),
            gin(4_194_304.0),
        ),
    ]
}

const READ: &str = "select * from orders o join item i on i.order_id = o.id";

/// `orders` as changed, and a statement that reads it with this load.
pub(super) fn read_with(load: f64, orders: TableActivity) -> ExampleServer {
    ExampleServer::new().load(READ, "", load).table(orders)
}

pub(super) fn modified(rows: f64, per_s: f64) -> TableActivity {
    TableActivity {
        modified_since_analyze: rows as u64,
        inserted: (per_s * WINDOW_US / 1e6) as u64,
        ..table("orders")
    }
}

pub(super) fn dead(rows: f64, per_s: f64) -> TableActivity {
    TableActivity {
        dead_rows: rows as u64,
        updated: (per_s * WINDOW_US / 1e6) as u64,
        ..table("orders")
    }
}

fn disabled(dead_rows: f64) -> ExampleServer {
    ExampleServer::new().table(TableActivity {
        autovacuum_enabled: false,
        ..dead(dead_rows, 100.0)
    })
}

pub(super) fn aged(age: f64) -> ExampleServer {
    ExampleServer::new().catalog(|it| {
        it.ages[0].age = age as u64;
        it.ages[0].left = 2_144_483_647 - age as u64;
    })
}

fn of_tables() -> Vec<LiveCase> {
    vec![
        case(
            "stale-statistics",
            "table public.orders",
            "a bulk load at a high rate: autovacuum analyzes the table within a minute",
            read_with(1.0, modified(900_000.0, 100.0)),
            read_with(1.0, modified(900_000.0, 50_000.0)),
        ),
        case(
            "dead-rows",
            "table public.orders",
            "many updates of a small table: dead rows beyond the threshold, which the next autovacuum removes",
            ExampleServer::new().table(dead(900_000.0, 100.0)),
            ExampleServer::new().table(dead(900_000.0, 50_000.0)),
        ),
        case(
            "dead-rows",
            "table public.orders",
            "a single update of many rows, whose dead rows a vacuum is removing",
            being_vacuumed(50_000.0),
            being_vacuumed(0.0),
        ),
        case(
            "autovacuum-disabled",
            "table public.orders",
            "a queue table without autovacuum that a job vacuums: no more dead rows than the threshold",
            disabled(900_000.0),
            disabled(9000.0),
        ),
        case(
            "wraparound",
            "database shop",
            "a database whose age has just reached autovacuum_freeze_max_age: vacuums begin there",
            aged(600e6),
            aged(201e6),
        ),
    ]
}

pub(super) fn edges() -> Vec<Edge> {
    let mut all = edges_of_indexes();
    all.extend(edges_of_tables());
    all
}

fn edges_of_indexes() -> Vec<Edge> {
    let kept = |rows: f64| scanned(BY_CUSTOMER, 20, Some(calls(20, rows)));
    let per_scan = |rows: f64| {
        let server = scanned(BY_CUSTOMER, 20, Some(calls(20, 1.0)));
        server.catalog(|it| it.tables[0].sequential_rows = 20 * rows as u64)
    };
    let often = |scans: f64| scanned(BY_CUSTOMER, scans as u64, Some(calls(scans as u64, 1.0)));
    let sizes = |bytes: f64| {
        let server = unused_index(40.0);
        server.catalog(|it| it.indexes[0].size_bytes = bytes as u64)
    };
    vec![
        edge("missing-index", kept, 100_000.0, 100_001.0),
        edge("missing-index", per_scan, 1000.0, 999.0),
        edge(
            "index-not-used",
            |rows| kept(rows).index(by_customer()),
            10_000.0,
            10_001.0,
        ),
        edge("missing-index", often, 3.0, 2.0),
        edge("foreign-key-index", deleting, 1000.0, 999.0),
        edge("unused-index", unused_index, 1.0, 0.9),
        edge("unused-index", sizes, 65_536.0, 57_344.0),
        edge("redundant-index", redundant, 65_536.0, 57_344.0),
        edge("invalid-index", |it| invalid(it < 0.0), 1.0, -1.0),
        edge("gin-pending-list", gin, 4_194_305.0, 4_194_304.0),
        edge(
            "stale-statistics",
            |rows| read_with(1.0, modified(rows, 100.0)),
            200_101.0,
            200_100.0,
        ),
        edge(
            "stale-statistics",
            |load| read_with(load, modified(9e5, 100.0)),
            0.06,
            0.05,
        ),
        edge(
            "stale-statistics",
            |per_s| read_with(1.0, modified(9e5, per_s)),
            2666.0,
            2667.0,
        ),
    ]
}

fn edges_of_tables() -> Vec<Edge> {
    let days = |per_s: f64| aged(202e6).catalog(|it| it.ages[0].consumed_per_s = per_s);
    // Regression: with the lowest limit, each busy server had the finding between two visits of autovacuum.
    let lowest = |age: f64| {
        aged(age).catalog(|it| {
            it.ages[0].freeze_max_age = 100_000;
            it.ages[0].consumed_per_s = 1000.0;
        })
    };
    let multixacts =
        |age: f64| ExampleServer::new().catalog(|it| it.ages[0].multixact_age = age as u64);
    let never = |rows: f64| {
        read_with(
            1.0,
            TableActivity {
                age: 40_000_000,
                has_statistics: false,
                analyzed_ago_us: None,
                estimated_rows: None,
                live_rows: rows as u64,
                ..table("orders")
            },
        )
    };
    // Regression: a table that was created a moment ago lacked statistics. 100 transactions begin per second.
    let created = |seconds: f64| {
        let mut orders = modified(900_000.0, 0.0);
        (orders.has_statistics, orders.analyzed_ago_us) = (false, None);
        orders.age = (seconds * 100.0) as u64;
        read_with(1.0, orders)
    };
    // No writes now: the changes may have come a moment ago.
    let analyzed = |us: f64| {
        let mut orders = modified(900_000.0, 0.0);
        orders.analyzed_ago_us = Some(us);
        read_with(1.0, orders)
    };
    let since = |us: f64| {
        let mut orders = dead(900_000.0, 100.0);
        orders.vacuumed_ago_us = Some(us);
        ExampleServer::new().table(orders)
    };
    vec![
        edge("stale-statistics", analyzed, 300e6, 299e6),
        edge("stale-statistics", never, 1000.0, 999.0),
        edge("stale-statistics", created, 300.0, 299.0),
        edge(
            "dead-rows",
            |rows| ExampleServer::new().table(dead(rows, 100.0)),
            400_101.0,
            400_100.0,
        ),
        edge(
            "dead-rows",
            |per_s| ExampleServer::new().table(dead(9e5, per_s)),
            2333.0,
            2334.0,
        ),
        edge("dead-rows", since, 300e6, 299e6),
        edge("autovacuum-disabled", disabled, 200_051.0, 200_050.0),
        edge("wraparound", aged, 250e6, 249e6),
        edge("wraparound", days, 3400.0, 3100.0),
        edge("wraparound", lowest, 400_000.0, 399_000.0),
        edge("wraparound", multixacts, 800e6, 799e6),
    ]
}

pub(super) fn first(id: &str, server: &ExampleServer) -> pgassay_record::finding::Finding {
    super::of_id(id, &server.activity).remove(0)
}

#[test]
fn a_missing_index_has_the_columns_of_the_filter() {
    let found = first(
        "missing-index",
        &scanned(BY_CUSTOMER, 20, Some(calls(20, 30.0))),
    );
    assert_eq!(
        found.fix_sql.as_deref(),
        Some("create index concurrently on public.orders (customer, at)")
    );
    assert_eq!(found.confidence, Confidence::Likely);
    assert!((found.saved_sessions.expect("a load") - 2.0).abs() < 1e-3);
    // Without pg_stat_statements, the number of rows that it keeps is unknown.
    let found = first("missing-index", &scanned(BY_CUSTOMER, 20, None));
    assert_eq!(found.confidence, Confidence::Hint);
    assert_eq!(found.evidence_against.len(), 1);
}

#[test]
fn a_missing_index_is_none_if_it_exists_or_others_scan_or_its_columns_are_unknown() {
    let counters = || Some(calls(20, 30.0));
    let found = |server: ExampleServer| super::of_id("missing-index", &server.activity);
    let with = |columns: &[&str]| {
        let existing = index("orders_idx", columns);
        let found = found(scanned(BY_CUSTOMER, 20, counters()).index(existing));
        found.first().map(|it| it.confidence)
    };
    let (likely, hint) = (Some(Confidence::Likely), Some(Confidence::Hint));
    let found_with = [
        with(&["customer", "at"]),
        with(&["customer"]),
        with(&["at"]),
        with(&["note"]),
    ];
    assert_eq!(found_with, [None, hint, hint, likely]);
    // Most executions use an index; the scans are others'.
    let others = scanned(BY_CUSTOMER, 20, Some(calls(2000, 30.0)));
    assert_eq!(found(others), []);
    let joins = "select o.* from orders o join item i on i.o = o.id where i.part = $1";
    let of_join = found(scanned(joins, 20, counters()));
    assert_eq!(of_join.len(), 1);
    assert_eq!(of_join[0].fix_sql, None);
    assert!(of_join[0].suggested_fix.contains("EXPLAIN"));
    assert_eq!(found(scanned(joins, 20, None)), []);
    // A range may keep most of the table.
    assert_eq!(
        found(scanned("select * from orders where at > $1", 20, None)),
        []
    );
    // Without a condition, all rows are wanted; OFFSET drops them afterwards.
    let pages = "select * from orders order by id offset 99999";
    assert_eq!(found(scanned(pages, 20, counters())), []);
    // Another schema's table of the same name: the scans are those of an unknown statement.
    let of_other = found(scanned(
        "select * from old.orders where customer = $1",
        20,
        counters(),
    ));
    assert!(of_other.iter().all(|it| it.statement.is_none()));
}

#[test]
fn an_unused_index_is_a_hint_while_statistics_are_young_or_standbys_exist() {
    use pgassay_record::activity::SlotState;
    let confidence = |server: &ExampleServer| first("unused-index", server).confidence;
    assert_eq!(confidence(&unused_index(40.0)), Confidence::Likely);
    let young = unused_index(40.0).catalog(|it| it.statistics_age_us = Some(3600e6));
    assert_eq!(confidence(&young), Confidence::Hint);
    let replicated = unused_index(40.0).catalog(|it| {
        it.slots.push(SlotState {
            name: "replica".to_owned(),
            kind: "physical".to_owned(),
            is_active: true,
            ..SlotState::default()
        });
    });
    let found = first("unused-index", &replicated);
    assert_eq!(found.confidence, Confidence::Hint);
    assert!(found.evidence_against[0].contains("replica"), "{found:?}");
    let sql = found.fix_sql.expect("a statement");
    assert_eq!(sql, "drop index concurrently public.orders_note_idx");
}

#[test]
fn updates_of_referenced_rows_need_an_index_only_if_they_set_the_key() {
    let found = |text: &str, moved: u64| {
        let server = updating(text, moved);
        super::of_id("foreign-key-index", &server.activity).len()
    };
    assert_eq!(found("update customer set id = $1 where id = $2", 100), 1);
    assert_eq!(found("update customer set name = $1 where id = $2", 100), 0);
    // An application may set all columns, the key to the value that it has: then updates are HOT.
    assert_eq!(found("update customer set id = $1, name = $2", 0), 0);
}

#[test]
fn an_unused_index_is_a_hint_if_it_is_new_or_a_standby_has_no_slot() {
    let of = |server: ExampleServer| {
        let found = first("unused-index", &server);
        (found.confidence, found.evidence_against.concat())
    };
    // 100 transactions per second.
    let aged = |days: f64| {
        let age = (days * 86_400.0 * 100.0) as u64;
        of(unused_index(40.0).catalog(|it| it.indexes[0].definition_age = Some(age)))
    };
    assert_eq!(aged(8.0).0, Confidence::Likely);
    assert_eq!(aged(6.0).0, Confidence::Hint);
    assert!(aged(6.0).1.contains("younger than 7 days"));
    let (confidence, against) =
        of(unused_index(40.0).catalog(|it| it.standbys.push("replica2".to_owned())));
    assert_eq!(confidence, Confidence::Hint);
    assert!(against.contains("check replica2"), "{against}");
}

#[test]
fn an_invalid_index_is_built_again_where_the_version_can() {
    let sql = |server: &ExampleServer, major: &str| {
        let found = crate::diagnose_activity(&server.activity, Some(major));
        found[0].fix_sql.clone().expect("a statement")
    };
    let server = invalid(false);
    assert_eq!(
        sql(&server, "12"),
        "reindex index concurrently public.orders_note_idx"
    );
    assert_eq!(
        sql(&server, "9.6"),
        "drop index concurrently public.orders_note_idx"
    );
    let leftover = invalid(false).catalog(|it| {
        it.indexes[0].relation.name = "orders_note_idx_ccnew".to_owned();
    });
    assert_eq!(
        sql(&leftover, "18"),
        "drop index concurrently public.orders_note_idx_ccnew"
    );
}

/// A table with many dead rows that autovacuum vacuums throughout the window, while so many rows per second are updated.
fn being_vacuumed(per_s: f64) -> ExampleServer {
    let server = ExampleServer::new().table(dead(900_000.0, per_s));
    server.autovacuum_of_orders()
}

#[test]
fn a_vacuum_that_runs_all_the_time_is_throttled_and_one_that_just_began_is_not() {
    let vacuumed = |at_us: f64, per_s: f64| {
        let mut server = being_vacuumed(per_s);
        server.activity.marks[0].at_us = at_us;
        super::of_id("dead-rows", &server.activity)
    };
    let found = vacuumed(0.0, 50_000.0);
    assert!(
        found[0]
            .fix_sql
            .as_ref()
            .expect("a statement")
            .contains("cost_delay")
    );
    assert_eq!(vacuumed(2e6, 50_000.0), []);
    // Regression: a single UPDATE of many rows, which autovacuum dealt with within a minute, was a finding in a window of
    // 8 s.
    assert_eq!(vacuumed(0.0, 20_006.0).len(), 1);
    assert_eq!(vacuumed(0.0, 20_004.0), []);
    assert_eq!(vacuumed(0.0, 0.0), []);
}

#[test]
fn autovacuum_off_on_the_server_is_one_finding() {
    let tables = ["a", "b", "c"].map(|name| TableActivity {
        relation: relation(name),
        autovacuum_enabled: false,
        ..dead(900_000.0, 100.0)
    });
    let server = ExampleServer::new().catalog(|it| {
        it.tables.extend(tables);
        it.settings[0].1 = "off".to_owned();
    });
    let found = super::findings(&server.activity);
    let ids: Vec<&str> = found.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["autovacuum-disabled"]);
    assert_eq!(
        found[0].fix_sql.as_deref(),
        Some("alter system set autovacuum = on")
    );
}

#[test]
fn stacks_that_empty_a_pending_list_show_it() {
    use super::super::diagnose_with;
    let server = gin(4_194_304.0);
    let evidence = crate::lookalikes::load(&[("gininsert;ginInsertCleanup", 30)], &[], &[]);
    let found = diagnose_with(&server.activity, Some("18"), Some(&evidence), None);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, "gin-pending-list");
    assert_eq!(found[0].confidence, Confidence::Hint);
}

#[test]
fn a_table_with_a_low_threshold_gets_no_higher_scale_factor() {
    let sql = |threshold: f64| {
        let orders = TableActivity {
            vacuum_threshold: threshold,
            ..dead(900_000.0, 100.0)
        };
        let server = ExampleServer::new().table(orders);
        super::of_id("dead-rows", &server.activity)
            .remove(0)
            .fix_sql
    };
    assert!(
        sql(200_050.0)
            .expect("a statement")
            .ends_with("(autovacuum_vacuum_scale_factor = 0.02)")
    );
    assert_eq!(sql(10_050.0), None);
}
