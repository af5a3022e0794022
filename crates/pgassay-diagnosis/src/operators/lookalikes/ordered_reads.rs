//! Statements that take the first rows in the order of an index.

use pgassay_record::activity::StatementCounters;
use pgassay_record::finding::{Confidence, Fact};

use super::build::{ExampleServer, calls, index, table};
use super::catalog::scanned;
use super::of_id;

const LATEST: &str = "select total from orders where device = $1 order by id desc limit $2";

/// A server that executes this, by scans of the primary key that access so many blocks.
fn ordered(text: &str, blocks: u64, rows: f64) -> ExampleServer {
    let counters = StatementCounters {
        shared_hit: 600 * blocks,
        ..calls(600, rows)
    };
    let mut orders = table("orders");
    orders.index_scans = 600;
    let server = ExampleServer::new().load(text, "", 1.0).table(orders);
    server
        .counted(text, counters)
        .index(index("orders_pkey", &["id"]))
}

#[test]
fn the_latest_row_by_a_column_without_an_index_is_found_as_a_hint() {
    let found = of_id("missing-index", &ordered(LATEST, 40, 1.0).activity);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].confidence, Confidence::Hint);
    assert!(found[0].suggested_fix.contains("public.orders (device, …)"));
    assert_eq!(found[0].fix_sql, None);
    // Sequential scans, of which there are none, are no evidence of it.
    let is_about_scans = |it: &Fact| it.what.contains("scan");
    assert!(!found[0].evidence.iter().any(is_about_scans));
}

#[test]
fn the_latest_row_by_an_indexed_column_or_at_the_end_of_the_order_lacks_no_index() {
    let is_found = |server: ExampleServer| !of_id("missing-index", &server.activity).is_empty();
    // It finds its row at once.
    assert!(!is_found(ordered(LATEST, 4, 1.0)));
    // A page of 100 rows.
    assert!(!is_found(ordered(LATEST, 40, 100.0)));
    let served = index("orders_device_idx", &["device"]);
    assert!(!is_found(ordered(LATEST, 40, 1.0).index(served)));
    // No LIMIT: all rows that the filter keeps.
    let all = "select total from orders where device = $1 order by id desc";
    assert!(!is_found(ordered(all, 40, 1.0)));
}

/// Regression: the dead rows of a job queue, which its partial index still contains, called for an index on its state.
#[test]
fn a_job_queue_with_a_partial_index_lacks_no_index() {
    const NEXT: &str =
        "select id from orders where device = $1 order by id limit $2 for update skip locked";
    let found = |scans| {
        let mut open = index("orders_open_idx", &["id", "where expression"]);
        open.scans = scans;
        let server = ordered(NEXT, 40, 1.0).index(open);
        of_id("missing-index", &server.activity).len()
    };
    assert_eq!(found(600), 0);
    assert_eq!(found(0), 1);
}

/// Regression: the newest rows of a table without an index for their order had the saturated CPUs as the only finding.
#[test]
fn the_first_rows_of_a_whole_table_in_an_order_without_an_index_are_found() {
    let of = |text: &str, rows: Option<f64>, existing: Option<&str>| {
        let counters = rows.map(|rows| calls(20, rows));
        let mut server = scanned(text, 20, counters);
        if let Some(column) = existing {
            server = server.index(index("orders_idx", &[column]));
        }
        of_id("missing-index", &server.activity)
    };
    let newest = "select id from orders order by at desc, id limit $1";
    let found = of(newest, Some(10.0), None);
    assert_eq!(found[0].confidence, Confidence::Likely);
    assert_eq!(
        found[0].fix_sql.as_deref(),
        Some("create index concurrently on public.orders (at desc, id)")
    );
    assert_eq!(of(newest, None, None)[0].confidence, Confidence::Hint);
    assert_eq!(of(newest, Some(10.0), Some("id")).len(), 1);
    assert_eq!(of(newest, Some(10.0), Some("at")).len(), 0);
    assert_eq!(of(newest, Some(100_000.0), None).len(), 0);
    let by_key = "select id from orders order by data->>$1 limit $2";
    assert_eq!(of(by_key, Some(10.0), None)[0].fix_sql, None);
    assert_eq!(of(by_key, Some(10.0), Some("expression")).len(), 0);
    let latest = of("select max(at) from orders", None, None);
    assert_eq!(latest[0].confidence, Confidence::Likely);
    assert_eq!(
        latest[0].fix_sql.as_deref(),
        Some("create index concurrently on public.orders (at)")
    );
    assert_eq!(of("select max(at) from orders", None, Some("at")).len(), 0);
    // All rows, for a report.
    assert_eq!(
        of("select id from orders order by at", Some(10.0), None).len(),
        0
    );
}
