//! Whose scans those of a table are.

use pgassay_record::activity::StatementCounters;
use pgassay_record::finding::Confidence;

use super::build::{calls, index, table};
use super::catalog::{BY_CUSTOMER, first, scanned};
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
