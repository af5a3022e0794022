//! What tables that autovacuum should visit are said to need.

use pgassay_record::activity::TableActivity;

use super::build::{ExampleServer, table};
use super::of_id;

/// Regression: the first facts of a table that needed an ANALYZE were that it had 0 dead rows, and their threshold.
#[test]
fn what_is_beyond_its_threshold_comes_first() {
    let facts = |dead_rows: u64, modified: u64| {
        let orders = TableActivity {
            autovacuum_enabled: false,
            inserted: 10,
            dead_rows,
            modified_since_analyze: modified,
            analyzed_ago_us: None,
            ..table("orders")
        };
        let server = ExampleServer::new().table(orders);
        let found = of_id("autovacuum-disabled", &server.activity).remove(0);
        let second = found.evidence[1].clone();
        (second.what, second.value)
    };
    let changed = "rows changed, none of them analyzed".to_owned();
    assert_eq!(facts(0, 300_000), (changed, Some(300_000.0)));
    let dead = "dead rows".to_owned();
    assert_eq!(facts(400_000, 300_000), (dead, Some(400_000.0)));
}
