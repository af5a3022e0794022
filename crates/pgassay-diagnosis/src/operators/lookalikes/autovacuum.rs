//! What tables that autovacuum should visit are said to need.

use pgassay_record::activity::{LoadMark, LoadMarkKind, TableActivity};

use super::build::{ExampleServer, table};
use super::catalog::aged;
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

/// Regression: "vacuum public.orders", which an anti-wraparound autovacuum was vacuuming: it would have waited for that,
/// and the fix asked why autovacuum had not come.
#[test]
fn a_table_that_is_being_vacuumed_is_not_to_be_vacuumed() {
    let orders = TableActivity {
        age: 600_000_000,
        ..table("orders")
    };
    let fix = |length_us: Option<f64>| {
        let mut server = aged(600e6).table(orders.clone());
        server
            .activity
            .marks
            .extend(length_us.map(|length_us| LoadMark {
                at_us: 0.0,
                length_us,
                kind: LoadMarkKind::Vacuum,
                text: "autovacuum of public.orders".to_owned(),
                count: None,
            }));
        let found = of_id("wraparound", &server.activity).remove(0);
        (found.suggested_fix, found.fix_sql)
    };
    let (words, sql) = fix(Some(0.0));
    assert!(
        words.starts_with("Let the vacuum of public.orders finish"),
        "{words}"
    );
    assert_eq!(sql, None);
    for over in [Some(1e6), None] {
        assert_eq!(fix(over).1.as_deref(), Some("vacuum public.orders"));
    }
}

/// Regression: a vacuum that had run for three hours was not found in a window of 10 s, in which few rows were changed.
#[test]
fn a_vacuum_since_before_the_window_that_is_far_behind_is_throttled() {
    let found = |at_us: f64, dead_rows: u64, live_rows: u64| {
        let orders = TableActivity {
            dead_rows,
            live_rows,
            ..table("orders")
        };
        let mut server = ExampleServer::new().table(orders);
        server.activity.marks.push(LoadMark {
            at_us,
            length_us: 0.0,
            kind: LoadMarkKind::Vacuum,
            text: "autovacuum of public.orders".to_owned(),
            count: None,
        });
        of_id("dead-rows", &server.activity).len()
    };
    assert_eq!(found(0.0, 3_000_000, 1_000_000), 1);
    assert_eq!(found(1e5, 3_000_000, 1_000_000), 0);
    // A single update, of all rows and of a part of them.
    assert_eq!(found(0.0, 1_000_000, 1_000_000), 0);
    assert_eq!(found(0.0, 3_000_000, 9_000_000), 0);
}

/// Regression: a vacuum that had run for an hour was not found in a window of 10 s, if there were fewer dead rows than
/// live ones.
#[test]
fn a_vacuum_that_has_run_for_long_is_throttled_however_short_the_window() {
    let found = |autovacuum_us: Option<f64>| {
        let orders = TableActivity {
            dead_rows: 500_000,
            autovacuum_us,
            ..table("orders")
        };
        let server = ExampleServer::new().table(orders).autovacuum_of_orders();
        of_id("dead-rows", &server.activity).len()
    };
    assert_eq!(found(Some(3600e6)), 1);
    assert_eq!(found(Some(60e6)), 0);
    assert_eq!(found(None), 0);
}
