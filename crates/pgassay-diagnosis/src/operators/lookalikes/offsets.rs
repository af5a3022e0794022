//! Statements that skip rows.

use pgassay_record::activity::StatementCounters;
use pgassay_record::finding::Confidence;

use super::build::{ExampleServer, calls, index, table};
use super::{Edge, LiveCase, case, edge, of_id};

const PAGE: &str = "select id, total from orders order by at limit $1 offset $2";

/// A server that executes this 100 times a second by an index, with so many blocks and rows per execution.
fn paging(text: &str, blocks: f64, rows: Option<f64>) -> ExampleServer {
    let mut orders = table("orders");
    orders.index_scans = 1000;
    orders.blocks_hit = (1000.0 * blocks) as u64;
    let server = ExampleServer::new()
        .load(text, "", 1.0)
        .table(orders)
        .index(index("orders_at_idx", &["at"]));
    match rows {
        Some(rows) => server.counted(
            text,
            StatementCounters {
                shared_hit: (1000.0 * blocks) as u64,
                ..calls(1000, rows)
            },
        ),
        None => server,
    }
}

pub(super) fn cases() -> Vec<LiveCase> {
    vec![case(
        "large-offset",
        "table public.orders",
        "the first pages of a list: a block or two for each row that is returned",
        paging(PAGE, 700.0, Some(20.0)),
        paging(PAGE, 40.0, Some(20.0)),
    )]
}

pub(super) fn edges() -> Vec<Edge> {
    vec![
        edge(
            "large-offset",
            |blocks| paging(PAGE, blocks, Some(2.0)),
            101.0,
            99.0,
        ),
        edge(
            "large-offset",
            |rows| paging(PAGE, 1000.0, Some(rows)),
            99.0,
            101.0,
        ),
        edge(
            "large-offset",
            |blocks| paging(PAGE, blocks, None),
            1001.0,
            999.0,
        ),
    ]
}

#[test]
fn rows_that_are_skipped_are_certain_only_if_counted_and_without_a_condition() {
    let of = |text: &str, rows| of_id("large-offset", &paging(text, 2000.0, rows).activity);
    assert_eq!(of(PAGE, Some(20.0))[0].confidence, Confidence::Likely);
    assert_eq!(of(PAGE, None)[0].confidence, Confidence::Hint);
    let filtered = "select id from orders where state = $3 order by at limit $1 offset $2";
    assert_eq!(of(filtered, Some(20.0))[0].confidence, Confidence::Hint);
    for other in [
        "select id from orders order by at limit $1",
        "select state, count(*) from orders group by state order by at limit $1 offset $2",
        "select id from orders o join lines l on l.o = o.id order by at limit $1 offset $2",
        "select id from (select id from orders order by at) o order by id limit $1 offset $2",
    ] {
        assert_eq!(of(other, Some(20.0)), [], "{other}");
    }
}
