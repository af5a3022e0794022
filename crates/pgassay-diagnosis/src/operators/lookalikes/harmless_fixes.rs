//! Suggested fixes that would have done harm, or nothing.

use super::build::{calls, relation, table};
use super::catalog::{BY_CUSTOMER, first, scanned};

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
