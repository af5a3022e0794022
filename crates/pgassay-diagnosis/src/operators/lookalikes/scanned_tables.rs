//! Whose scans those of a table are.

use pgassay_record::activity::{StatementCounters, TableActivity};
use pgassay_record::finding::{Confidence, Finding};

use super::build::{ExampleServer, calls, index, table};
use super::catalog::{BY_CUSTOMER, deleting, first, modified, read_with, scanned};
use super::of_id;

/// Regression: a join by primary key had the finding that belongs to a count of all rows.
#[test]
fn a_statement_that_reads_too_few_blocks_for_a_scan_lacks_no_index() {
    let few = StatementCounters {
        shared_hit: 140,
        ..calls(20, 30.0)
    };
    let found = of_id(
        "missing-index",
        &scanned(BY_CUSTOMER, 20, Some(few)).activity,
    );
    assert_eq!(found.len(), 0);
}

/// Regression: scans of partitions were those of no statement.
#[test]
fn a_missing_index_of_partitions_is_one_of_the_partitioned_table() {
    let mut server = scanned(BY_CUSTOMER, 20, Some(calls(20, 30.0)));
    let catalog = server.activity.catalog.as_mut().expect("a catalog");
    let whole = catalog.tables.remove(0);
    for name in ["orders_2025", "orders_2026"] {
        let mut part = table(name);
        part.sequential_scans = 20;
        part.sequential_rows = 20 * 500_000;
        part.live_rows = 500_000;
        part.size_bytes = whole.size_bytes / 2;
        part.partition_of = Some(whole.relation.clone());
        catalog.tables.push(part);
    }
    let found = first("missing-index", &server);
    assert_eq!(
        found.fix_sql.as_deref(),
        Some("create index on public.orders (customer, at)")
    );
    // An index of a partition serves it.
    let mut existing = index("orders_2025_idx", &["customer", "at"]);
    existing.table = server.activity.catalog.as_ref().expect("a catalog").tables[0]
        .relation
        .clone();
    let served = server.index(existing);
    assert_eq!(of_id("missing-index", &served.activity).len(), 0);
}

/// Regression: partitions of fewer than 1000 rows each hid that the statement reads all of them.
#[test]
fn a_missing_index_of_many_small_partitions_is_found() {
    let found = |text: &str, executions: u64, rows: u64| {
        let mut server = scanned(text, executions, Some(calls(executions, 1.0)));
        let catalog = server.activity.catalog.as_mut().expect("a catalog");
        let whole = catalog.tables.remove(0);
        for number in 0..100 {
            let mut part = table(&format!("orders_{number}"));
            part.sequential_scans = 2000 / 100;
            part.sequential_rows = part.sequential_scans * rows;
            (part.live_rows, part.size_bytes) = (rows, rows * 100);
            part.partition_of = Some(whole.relation.clone());
            catalog.tables.push(part);
        }
        of_id("missing-index", &server.activity)
    };
    let whole = found(BY_CUSTOMER, 20, 500);
    assert_eq!(whole.len(), 1);
    let per_scan = whole[0]
        .evidence
        .iter()
        .find(|it| it.what == "rows read per scan");
    assert_eq!(per_scan.and_then(|it| it.value), Some(50_000.0));
    // Each execution reads one partition, or all of them have a few rows.
    assert_eq!(found(BY_CUSTOMER, 2000, 500), []);
    assert_eq!(found(BY_CUSTOMER, 20, 50), []);
}

/// Regression: a statement of a function that only parallel workers show had no finding.
#[test]
fn a_statement_that_only_parallel_workers_show_lacks_an_index() {
    let found = |text: &str, is_worker: bool| {
        let mut server = scanned(text, 20, None).executed(text, 0, 0);
        if is_worker {
            let session = server.activity.sessions.last_mut().expect("a session");
            session.backend_type = "parallel worker".to_owned();
        }
        server = server.load("select totals($1)", "", 1.0);
        of_id("missing-index", &server.activity)
    };
    let nested = found(BY_CUSTOMER, true);
    assert_eq!(nested.len(), 1);
    assert_eq!(nested[0].confidence, Confidence::Hint);
    let sql = "create index concurrently on public.orders (customer, at)";
    assert_eq!(nested[0].fix_sql.as_deref(), Some(sql));
    let joined = "select * from orders o join customer c on c.id = o.customer where c.name = $1";
    let with_join = found(joined, true);
    assert_eq!(with_join.len(), 1);
    assert!(with_join[0].suggested_fix.contains("EXPLAIN"));
    // A client's own execution is counted, and a sum of all rows needs no index.
    assert_eq!(found(BY_CUSTOMER, false), []);
    assert_eq!(found("select sum(total) from orders", true).len(), 0);
}

/// Regression: a table that a function reads from end to end was not mentioned.
#[test]
fn a_table_that_unknown_statements_scan_is_named_without_one() {
    let found = |scans| {
        let mut server = scanned("select work($1)", 20, Some(calls(20, 1.0)));
        let catalog = server.activity.catalog.as_mut().expect("a catalog");
        catalog.tables[0].sequential_scans = scans;
        catalog.tables[0].sequential_rows = scans * 1_000_000;
        of_id("missing-index", &server.activity)
    };
    let found_of_many = found(600);
    assert_eq!(found_of_many.len(), 1);
    assert_eq!(found_of_many[0].confidence, Confidence::Hint);
    assert!(found_of_many[0].suggested_fix.contains("auto_explain"));
    assert_eq!(found(2).len(), 0);
}

const TRACK_ALL: &str = "alter system set pg_stat_statements.track = 'all'";

/// A server on which 600 scans read `orders` from end to end, and nothing but this statement is executed.
fn often_scanned(text: &str) -> ExampleServer {
    let mut server = scanned(text, 600, Some(calls(600, 1.0)));
    server.activity.cells.remove(0);
    server
}

/// Regression: with `--no-text`, functions and views were given as the place of what no text could show.
#[test]
fn a_scan_is_not_said_to_be_in_functions_if_texts_are_switched_off() {
    let mut server = often_scanned(BY_CUSTOMER);
    for statement in &mut server.activity.statements {
        statement.text = None;
    }
    let found = first("missing-index", &server);
    assert_eq!(found.fix_sql, None);
    let fix = &found.suggested_fix;
    assert!(
        fix.contains("--no-text") && !fix.contains("function"),
        "{fix}"
    );
}

/// Regression: with `--no-text`, a table of 100,000 rows that was scanned twice a second was not mentioned.
#[test]
fn a_missing_index_does_not_vanish_if_texts_are_switched_off() {
    let found = |executions: u64, rows: f64, has_text: bool| {
        let mut server = scanned("select work($1)", 20, Some(calls(executions, rows)));
        let catalog = server.activity.catalog.as_mut().expect("a catalog");
        catalog.tables[0].sequential_rows = 20 * 100_000;
        for statement in &mut server.activity.statements {
            statement.text = statement.text.take().filter(|_| has_text);
        }
        of_id("missing-index", &server.activity)
    };
    let hidden = found(20, 30.0, false);
    assert_eq!(hidden.len(), 1);
    assert_eq!(hidden[0].confidence, Confidence::Hint);
    assert_eq!(found(20, 30.0, true), []);
    // It keeps most rows, or is executed much more often than the table is read.
    assert_eq!(found(20, 90_000.0, false), []);
    assert_eq!(found(2000, 30.0, false), []);
}

/// Regression: the scans of foreign key checks had a second finding, which pointed to functions.
#[test]
fn a_table_that_is_scanned_by_foreign_key_checks_has_one_finding() {
    let server = deleting(1e6);
    assert_eq!(of_id("foreign-key-index", &server.activity).len(), 1);
    assert_eq!(of_id("missing-index", &server.activity), []);
}

/// Regression: letters of other encodings than UTF-8 made a statement one that names no table.
#[test]
fn a_table_with_letters_that_could_not_be_decoded_is_found_in_the_text() {
    let mut server = scanned(
        "select * from caf\u{fffd} where ville = $1",
        20,
        Some(calls(20, 1.0)),
    );
    let catalog = server.activity.catalog.as_mut().expect("a catalog");
    catalog.tables[0].relation.name = "café".to_owned();
    let found = first("missing-index", &server);
    let sql = Some("create index concurrently on public.\"café\" (ville)");
    assert_eq!(found.fix_sql.as_deref(), sql);
    // A table that may be meant as well.
    let mut both = server;
    let catalog = both.activity.catalog.as_mut().expect("a catalog");
    let mut other = catalog.tables[0].clone();
    other.relation.name = "cafè".to_owned();
    (other.sequential_scans, other.sequential_rows) = (0, 0);
    catalog.tables.push(other);
    let found = first("missing-index", &both);
    let fix = &found.suggested_fix;
    assert!(fix.contains("cannot be decoded"), "{fix}");
    assert_eq!(found.fix_sql, None);
}

/// Regression: statements of functions were to be counted, where the only statement reads a view.
#[test]
fn a_scan_through_a_view_is_one_of_the_statement_with_the_load() {
    let view = "select note from paid_orders where customer = $1";
    let found = first("missing-index", &often_scanned(view));
    assert_eq!(found.fix_sql, None);
    assert!(found.suggested_fix.contains("through a view"));
    let shown = found.evidence.iter().any(|it| it.what.contains(view));
    assert!(shown, "{:?}", found.evidence);
    let of_function = || often_scanned("select work($1)");
    let sql = |server: ExampleServer| first("missing-index", &server).fix_sql;
    assert_eq!(sql(of_function()).as_deref(), Some(TRACK_ALL));
    let tracked = ("pg_stat_statements.track".to_owned(), "all".to_owned());
    assert_eq!(
        sql(of_function().catalog(|it| it.settings.push(tracked))),
        None
    );
    // Several statements have the load, none of which calls a function.
    let of_many = often_scanned(view).load("select a from other_view", "", 2.0);
    assert_eq!(sql(of_many), None);
}

/// Regression: inserts whose trigger reads the whole table for each row had only "The CPUs are saturated".
#[test]
fn a_trigger_that_scans_the_table_of_its_insert_is_found() {
    let insert = "insert into orders (customer, total) values ($1, $2)";
    let found = first("missing-index", &often_scanned(insert));
    assert_eq!(found.confidence, Confidence::Hint);
    let fix = &found.suggested_fix;
    assert!(
        fix.contains("trigger") && fix.contains("inserts into the table"),
        "{fix}"
    );
    let what = |word: &str| found.evidence.iter().any(|it| it.what.contains(word));
    assert!(
        what(insert) && !what("does not name"),
        "{:?}",
        found.evidence
    );
    // What an INSERT with a query or a COPY of the table's rows reads is in their texts.
    for text in [
        "insert into archive select * from orders",
        "copy orders to stdout",
    ] {
        assert_eq!(
            of_id("missing-index", &often_scanned(text).activity),
            [],
            "{text}"
        );
    }
}

/// Regression: a job queue that read its whole table for each job had only "The CPUs are saturated".
#[test]
fn a_queue_that_reads_its_whole_table_for_the_first_row_lacks_an_index() {
    const TAKE: &str = "update orders set state = $1 where id in (select id from orders where state = $2 \
                        order by at limit $3 for update skip locked)";
    let whole = StatementCounters {
        shared_hit: 1_000_000_000,
        ..calls(20, 1.0)
    };
    let found = |text: &str, counters, rows_per_scan: u64| {
        let mut server = scanned(text, 20, Some(counters));
        let table = &mut server.activity.catalog.as_mut().expect("a catalog").tables[0];
        table.sequential_rows = table.sequential_scans * rows_per_scan;
        table.live_rows = 1_000_000;
        of_id("missing-index", &server.activity)
    };
    let of_queue = found(TAKE, whole, 1_000_000);
    assert_eq!(of_queue.len(), 1);
    assert_eq!(of_queue[0].confidence, Confidence::Hint);
    assert!(
        of_queue[0].suggested_fix.contains("EXPLAIN"),
        "{of_queue:?}"
    );
    // The scan ends early, or the statement needs all rows.
    assert_eq!(found(TAKE, whole, 100_000), []);
    let many = StatementCounters {
        rows: 20 * 500_000,
        ..whole
    };
    assert_eq!(found(TAKE, many, 1_000_000), []);
    let summary = TAKE.replace("select id", "select max(id)");
    assert_eq!(found(&summary, whole, 1_000_000), []);
    let join = TAKE.replace(
        "select id from orders",
        "select o.id from orders o join customers on true",
    );
    assert_eq!(found(&join, whole, 1_000_000), []);
}

/// Regression: `autovacuum_analyze_scale_factor` was to be lowered for a table on which autovacuum is off.
#[test]
fn the_statistics_of_a_table_without_autovacuum_need_more_than_a_lower_threshold() {
    let fix = |is_enabled: bool, on_server: &str| {
        let orders = TableActivity {
            autovacuum_enabled: is_enabled,
            ..modified(900_000.0, 100.0)
        };
        let server = read_with(1.0, orders).catalog(|it| {
            it.settings.retain(|(name, _)| name != "autovacuum");
            it.settings
                .push(("autovacuum".to_owned(), on_server.to_owned()));
        });
        first("stale-statistics", &server).suggested_fix
    };
    assert!(fix(true, "on").contains("lower autovacuum_analyze_scale_factor"));
    assert!(fix(false, "on").contains("reset autovacuum_enabled"));
    assert!(fix(true, "off").contains("off on this server"));
}

/// Regression: a join that filters a table by a column without an index had no finding if it ended with LIMIT.
#[test]
fn a_join_with_a_limit_lacks_an_index_on_the_columns_that_it_compares() {
    const LIMIT: &str = "order by c.name limit $3";
    let joined = |condition: &str, limit: &str| {
        format!(
            "select * from orders o join customer c on c.id = o.customer where {condition} {limit}"
        )
    };
    let found = |text: &str, columns: &[&str]| {
        let server = scanned(text, 20, Some(calls(20, 10.0)));
        let server = server.index(index("orders_idx", columns));
        of_id("missing-index", &server.activity)
    };
    let limited = found(&joined("o.state = $1 and c.name > $2", LIMIT), &["id"]);
    assert_eq!(limited.len(), 1);
    assert_eq!(limited[0].confidence, Confidence::Hint);
    assert_eq!(limited[0].fix_sql, None);
    let compares = |it: &Finding| {
        it.evidence
            .iter()
            .any(|it| it.what.contains("column state"))
    };
    assert!(compares(&limited[0]), "{limited:?}");
    // Without LIMIT, the rows are counted.
    let whole = found(&joined("o.state = $1", ""), &["id"]);
    assert_eq!(whole[0].confidence, Confidence::Likely);
    assert!(compares(&whole[0]), "{whole:?}");
    // An index exists, or it filters the other table.
    assert_eq!(found(&joined("o.state = $1", LIMIT), &["state"]), []);
    assert_eq!(found(&joined("c.name = $1", LIMIT), &["id"]), []);
    // A range may keep most rows.
    assert_eq!(found(&joined("o.total > $1", LIMIT), &["id"]), []);
}

/// Regression: of a parallel scan that three processes shared, each third was taken for a scan of the table.
#[test]
fn the_processes_of_a_parallel_scan_read_the_table_once() {
    let found = |workers: f64, rows: f64| {
        let mut server = scanned(BY_CUSTOMER, 60, Some(calls(20, rows)));
        server = server.executed(BY_CUSTOMER, 20, 1);
        if workers > 0.0 {
            server = server.load(BY_CUSTOMER, "", workers);
            let session = server.activity.sessions.last_mut().expect("a session");
            session.backend_type = "parallel worker".to_owned();
        }
        let catalog = server.activity.catalog.as_mut().expect("a catalog");
        catalog.tables[0].sequential_rows = 20 * 1_000_000;
        of_id("missing-index", &server.activity)
    };
    // A tenth of the third that each process reads is less than a tenth of the table.
    let shared = found(3.0, 90_000.0);
    assert_eq!(shared.len(), 1);
    let per_scan = shared[0]
        .evidence
        .iter()
        .find(|it| it.what == "rows read per scan");
    assert_eq!(per_scan.and_then(|it| it.value), Some(1e6));
    assert_eq!(found(0.0, 90_000.0), []);
    assert_eq!(found(3.0, 110_000.0), []);
}

/// Regression: a subquery with an aggregate that reads a table for each row of another had no finding.
#[test]
fn a_subquery_that_scans_a_table_for_each_row_lacks_an_index() {
    const FOR_EACH: &str = "select c.id, (select max(o.total) from orders o where o.customer = c.id) from customer c \
                            where c.id between $1 and $2";
    const TWICE: &str = "select (select sum(total) from orders where at > $1), (select sum(total) from orders where at > $2)";
    let found = |text: &str, scans: u64| {
        // A scan takes 12,000 blocks.
        let counters = StatementCounters {
            shared_hit: 20 * scans * 12_207,
            ..calls(20, 3.0)
        };
        let server = scanned(text, 20 * scans, Some(counters)).executed(text, 20, 1);
        of_id("missing-index", &server.activity)
    };
    let each = found(FOR_EACH, 3);
    assert_eq!(each.len(), 1);
    assert_eq!(each[0].confidence, Confidence::Hint);
    let scans = each[0]
        .evidence
        .iter()
        .find(|it| it.what.contains("for each row"));
    assert_eq!(scans.and_then(|it| it.value), Some(3.0));
    // It names the table as often as it reads it.
    assert_eq!(found(FOR_EACH, 1), []);
    assert_eq!(found(TWICE, 2), []);
}
