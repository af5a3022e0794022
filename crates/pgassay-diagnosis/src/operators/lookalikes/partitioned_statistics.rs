//! Partitioned tables that were never analyzed.

use pgassay_record::activity::TableActivity;
use pgassay_record::finding::Confidence;

use super::build::{ExampleServer, relation, table};
use super::{Edge, LiveCase, case, edge, of_id};

const JOIN: &str = "select c.name, sum(o.total) from orders o join customer c on c.id = o.customer group by c.name";
const OF_ONE: &str = "select total from orders where id = $1";

/// A server with two partitions of a table, of which one has so many rows, and this statement with its load.
fn partitioned(lacks_statistics: bool, rows: f64, text: &str, load: f64) -> ExampleServer {
    let part = |name: &str, rows: f64| TableActivity {
        estimated_rows: Some(rows),
        live_rows: rows as u64,
        partition_of: Some(relation("orders")),
        parent_lacks_statistics: lacks_statistics,
        ..table(name)
    };
    ExampleServer::new()
        .load(text, "", load)
        .table(part("orders_2025", rows))
        .table(part("orders_2026", 0.0))
}

pub(super) fn cases() -> Vec<LiveCase> {
    vec![
        case(
            "stale-statistics",
            "table public.orders",
            "joins with a partitioned table that a job analyzes, beyond what autovacuum does",
            partitioned(true, 1e6, JOIN, 1.0),
            partitioned(false, 1e6, JOIN, 1.0),
        ),
        case(
            "stale-statistics",
            "table public.orders",
            "lookups in a partitioned table that was never analyzed: each is planned with the statistics of its partition",
            partitioned(true, 1e6, JOIN, 1.0),
            partitioned(true, 1e6, OF_ONE, 1.0),
        ),
    ]
}

pub(super) fn edges() -> Vec<Edge> {
    vec![
        edge(
            "stale-statistics",
            |load| partitioned(true, 1e6, JOIN, load),
            0.06,
            0.05,
        ),
        edge(
            "stale-statistics",
            |rows| partitioned(true, rows, JOIN, 1.0),
            1000.0,
            999.0,
        ),
    ]
}

#[test]
fn a_partitioned_table_without_statistics_is_a_hint_to_analyze_it() {
    let found = |text: &str| {
        let server = partitioned(true, 1e6, text, 1.0);
        of_id("stale-statistics", &server.activity)
    };
    // Regression: these counted as grouping.
    for of_one in [
        "select total from orders where note is distinct from $1",
        "select percentile_cont($1) within group (order by total) from orders where id = $2",
    ] {
        assert!(found(of_one).is_empty(), "{of_one}");
    }
    let join = found(JOIN).remove(0);
    assert_eq!(join.confidence, Confidence::Hint);
    assert_eq!(join.fix_sql.as_deref(), Some("analyze public.orders"));
    assert_eq!(found("select distinct state from orders").len(), 1);
    for other in [
        "insert into orders select * from staging",
        "select count(*) from orders where id = $1",
        "select c.name from customer c join lines l on l.c = c.id",
    ] {
        assert_eq!(found(other), [], "{other}");
    }
}
