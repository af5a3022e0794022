//! What findings about indexes must not conclude from counters that are young, or count something else.

use pgassay_record::activity::IndexActivity;
use pgassay_record::finding::{Confidence, Fact, Finding};

use super::build::{ExampleServer, calls, index, table, unused_index};
use super::catalog::{BY_CUSTOMER, scanned, updating};

fn unused(server: &ExampleServer) -> Finding {
    super::of_id("unused-index", &server.activity).remove(0)
}

#[test]
fn an_update_of_another_table_that_reads_referenced_rows_changes_no_key() {
    let found = |text: &str| {
        let server = updating(text, 100);
        super::of_id("foreign-key-index", &server.activity).len()
    };
    assert_eq!(
        found("update invoice set id = $1 from customer where customer.name = $2"),
        0
    );
    assert_eq!(found("update only public.customer c set id = $1"), 1);
}

#[test]
fn updates_that_may_set_the_key_to_the_same_value_are_only_a_hint() {
    let of = |deleted: u64| {
        let server = updating("update customer set id = $1, name = $2", 100)
            .catalog(|it| it.uncovered_foreign_keys[0].referenced_deleted = deleted);
        super::of_id("foreign-key-index", &server.activity).remove(0)
    };
    assert_eq!(of(0).confidence, Confidence::Hint);
    assert_eq!(of(1).confidence, Confidence::Likely);
}

#[test]
fn an_unused_index_of_unknown_age_is_only_a_hint() {
    assert_eq!(unused(&unused_index(40.0)).confidence, Confidence::Likely);
    let without_age = unused_index(40.0).catalog(|it| it.indexes[0].definition_age = None);
    let without_rate = unused_index(40.0).catalog(|it| it.ages[0].consumed_per_s = 0.0);
    for server in [without_age, without_rate] {
        let found = unused(&server);
        assert_eq!(found.confidence, Confidence::Hint);
        let against = found.evidence_against.concat();
        assert!(against.contains("age of the index is unknown"), "{against}");
    }
}

#[test]
fn an_uptime_is_not_the_age_of_the_statistics() {
    let server = unused_index(40.0).catalog(|it| it.statistics_age_us = None);
    assert_eq!(unused(&server).confidence, Confidence::Hint);
}

#[test]
fn an_unused_index_is_never_found_on_a_standby() {
    let standby = unused_index(40.0).catalog(|it| it.is_standby = true);
    assert_eq!(super::of_id("unused-index", &standby.activity), []);
}

#[test]
fn no_index_is_to_be_created_where_the_list_of_indexes_is_cut() {
    let cut =
        scanned(BY_CUSTOMER, 20, Some(calls(20, 30.0))).catalog(|it| it.indexes_are_cut = true);
    let found = super::of_id("missing-index", &cut.activity).remove(0);
    assert_eq!(found.fix_sql, None);
    assert_eq!(found.confidence, Confidence::Hint);
    let fix = &found.suggested_fix;
    assert!(
        fix.contains("indexes of public.orders in pg_indexes"),
        "{fix}"
    );
}

#[test]
fn an_index_that_is_being_built_is_not_missing() {
    let found = |is_being_built| {
        let invalid = IndexActivity {
            is_valid: false,
            is_being_built,
            ..index("orders_customer", &["customer"])
        };
        let server = scanned(BY_CUSTOMER, 20, Some(calls(20, 30.0))).index(invalid);
        super::of_id("missing-index", &server.activity).len()
    };
    assert_eq!([found(true), found(false)], [0, 1]);
}

/// Regression: a cast, a function or LIKE on an indexed column had no finding, or one that asked for the columns of an
/// index that exists.
#[test]
fn a_condition_that_the_index_on_its_column_cannot_serve_has_its_own_fix() {
    let of = |condition: &str, existing: IndexActivity| {
        let text = format!("select * from orders where {condition}");
        let server = scanned(&text, 20, Some(calls(20, 30.0))).index(existing);
        super::of_id("missing-index", &server.activity)
    };
    let on_note = || index("orders_note_idx", &["note"]);
    for (condition, fix, sql) in [
        ("note::text = $1", "without the cast", None),
        (
            "lower(note) = $1",
            "on the expression lower(note)",
            Some("create index concurrently on public.orders (lower(note))"),
        ),
        (
            "note like $1",
            "pg_trgm",
            Some("create index concurrently on public.orders using gin (note gin_trgm_ops)"),
        ),
        // Regression: a B-tree with text_pattern_ops was suggested for patterns that ignore case.
        (
            "note ilike $1",
            "A B-tree serves no pattern that ignores case",
            Some("create index concurrently on public.orders using gin (note gin_trgm_ops)"),
        ),
    ] {
        let found = of(condition, on_note());
        assert_eq!(found.len(), 1, "{condition}");
        assert!(found[0].suggested_fix.contains(fix), "{found:?}");
        assert_eq!(found[0].fix_sql.as_deref(), sql);
        let says = |it: &Fact| it.what.contains("cannot serve this condition");
        assert!(found[0].evidence.iter().any(says), "{found:?}");
        // Without an index on the column, there is nothing to say of one.
        let found = of(condition, index("orders_at_idx", &["at"]));
        assert!(!found[0].evidence.iter().any(says), "{found:?}");
    }
    // Indexes that do serve it.
    let on_lower = index("orders_lower_idx", &["expression"]);
    assert_eq!(of("lower(note) = $1", on_lower), []);
    let trigrams = IndexActivity {
        method: "gin".to_owned(),
        ..on_note()
    };
    assert_eq!(of("note like $1", trigrams), []);
}

/// Regression: an index on a table that was never vacuumed or analyzed was left out, because its size was unknown.
#[test]
fn an_unused_index_of_unknown_size_is_found_by_the_rows_of_its_table() {
    let found = |rows: u64, columns: &[&str]| -> Vec<Finding> {
        let mut server = unused_index(40.0);
        let catalog = server.activity.catalog.as_mut().expect("a catalog");
        catalog.tables[0].live_rows = rows;
        catalog.indexes[0].size_bytes = 0;
        catalog.indexes[0].columns = columns.iter().map(|it| (*it).to_owned()).collect();
        super::of_id("unused-index", &server.activity)
    };
    let of_many = found(1_000_000, &["note"]);
    assert_eq!(of_many.len(), 1);
    let mut evidence = of_many[0].evidence.iter();
    assert!(
        evidence.any(|it| it.what.contains("its size by the table's rows, at least")),
        "{of_many:?}"
    );
    assert_eq!(found(1000, &["note"]), []);
    // How many rows a partial index has is not known.
    assert_eq!(found(1_000_000, &["note", "where expression"]), []);
}

/// Regression: a terminal shows the first three facts, and the name of the other index was the fourth.
#[test]
fn what_makes_an_index_redundant_is_among_the_first_facts() {
    let by = super::build::relation("orders_customer_at_idx");
    let server = ExampleServer::new()
        .table(super::build::table("orders"))
        .index(IndexActivity {
            redundant_with: Some(by),
            size_bytes: 10_000_000,
            ..index("orders_customer_idx", &["customer"])
        });
    let found = super::of_id("redundant-index", &server.activity).remove(0);
    let is_named = |it: &Fact| it.what.contains("orders_customer_at_idx serves every scan");
    assert!(found.evidence[..3].iter().any(is_named), "{found:?}");
}

/// Regression: a statement that reads a whole table although an index fits its filter had no finding.
#[test]
fn an_index_that_fits_and_is_not_used_is_named_with_the_reason_if_the_text_has_it() {
    let of = |text: &str, existing: IndexActivity| {
        let server = scanned(text, 20, Some(calls(20, 30.0))).index(existing);
        super::of_id("index-not-used", &server.activity)
    };
    let on_id = || index("orders_pkey", &["id"]);
    let found = of("select * from orders where id = $1::numeric", on_id());
    assert_eq!(found[0].confidence, Confidence::Likely);
    let says = |it: &Fact| it.what.contains("casts a value to numeric");
    assert!(found[0].evidence.iter().any(says), "{found:?}");
    let by_id = "select * from orders where id = $1";
    let found = of(by_id, on_id());
    assert_eq!(found[0].confidence, Confidence::Hint);
    // It may not fit, or not yet.
    let partial = index("orders_open", &["id", "where expression"]);
    assert_eq!(of(by_id, partial), []);
    let building = IndexActivity {
        is_being_built: true,
        ..on_id()
    };
    assert_eq!(of(by_id, building), []);
    let other = "select * from orders where id = $1 and note <> $2";
    assert_eq!(of(other, on_id()), []);
    // How many rows it keeps is unknown.
    let unknown = scanned(by_id, 20, None).index(on_id());
    assert_eq!(super::of_id("index-not-used", &unknown.activity), []);
}

/// Regression: without `pg_stat_statements`, a primary key that a value of type numeric does not use had no finding.
#[test]
fn a_unique_index_that_is_not_used_needs_no_counted_rows() {
    let primary = |columns: &[&str]| IndexActivity {
        is_required: true,
        ..index("orders_pkey", columns)
    };
    let of = |condition: &str, existing: IndexActivity| {
        let text = format!("select note from orders where {condition}");
        let server = scanned(&text, 20, None).index(existing);
        super::of_id("index-not-used", &server.activity)
    };
    let found = of("id = $1", primary(&["id"]));
    assert_eq!(found[0].confidence, Confidence::Hint);
    let says = |it: &Fact| it.what.contains("at most one row");
    assert!(found[0].evidence.iter().any(says), "{found:?}");
    assert_eq!(of("id in ($1, $2)", primary(&["id"])), []);
    assert_eq!(of("id = any ($1)", primary(&["id"])), []);
    assert_eq!(of("id > $1", primary(&["id"])), []);
    assert_eq!(of("id = $1", primary(&["id", "line"])), []);
    assert_eq!(of("id = $1", index("orders_id", &["id"])), []);
}

/// Regression: `date_trunc($1, at) = $2` had no finding, although an index on `at` was there.
#[test]
fn an_expression_of_an_indexed_column_is_named_with_what_serves_it() {
    let of = |condition: &str, existing: IndexActivity| {
        let text = format!("select note from orders where {condition}");
        let server = scanned(&text, 20, None).index(existing);
        super::of_id("missing-index", &server.activity)
    };
    let on_at = || index("orders_at_idx", &["at"]);
    let found = of("date_trunc($1, at) = $2", on_at());
    assert_eq!(found[0].confidence, Confidence::Hint);
    assert!(found[0].suggested_fix.contains("stands alone"), "{found:?}");
    let says = |it: &Fact| it.what.contains("an index begins with at");
    assert!(found[0].evidence.iter().any(says), "{found:?}");
    assert_eq!(
        of(
            "date_trunc($1, at) = $2",
            index("orders_day", &["expression"])
        ),
        []
    );
    // An inequality may keep most rows, and an index of random values serves none.
    assert_eq!(of("at + $1 > $2", on_at()), []);
    assert_eq!(of("at + $1 = random() * $2", on_at()), []);
    let found = of("$1 = any (tags)", index("orders_tags", &["tags"]));
    assert!(
        found[0].suggested_fix.contains("tags @> array"),
        "{found:?}"
    );
}

/// Regression: an index on one of two columns that are compared was taken for one that serves the filter.
#[test]
fn an_index_on_one_column_of_two_is_not_enough() {
    let of = |existing: IndexActivity| {
        let text = "select * from orders where state = $1 and customer = $2";
        let server = scanned(text, 20, Some(calls(20, 30.0))).index(existing);
        super::of_id("missing-index", &server.activity)
    };
    let found = of(index("orders_state_idx", &["state"]));
    assert_eq!(found[0].confidence, Confidence::Hint);
    assert_eq!(
        found[0].fix_sql.as_deref(),
        Some("create index concurrently on public.orders (state, customer)")
    );
    assert_eq!(of(index("orders_idx", &["customer", "state"])), []);
}

/// Regression: conditions of jsonb and arrays had no finding, or one without a fix.
#[test]
fn elements_and_keys_of_a_column_need_an_index_of_another_kind() {
    let of = |condition: &str, existing: IndexActivity| {
        let text = format!("select * from orders where {condition}");
        let server = scanned(&text, 20, Some(calls(20, 30.0))).index(existing);
        super::of_id("missing-index", &server.activity)
    };
    let on_data = || index("orders_data_idx", &["data"]);
    let gin = |column: &str| IndexActivity {
        method: "gin".to_owned(),
        ..index("orders_gin", &[column])
    };
    let found = of("data @> $1::jsonb and at is not null", on_data());
    assert_eq!(
        found[0].fix_sql.as_deref(),
        Some("create index concurrently on public.orders using gin (data)")
    );
    assert_eq!(of("data @> $1::jsonb", gin("data")), []);
    let found = of("data->>$1 = $2", gin("data"));
    assert_eq!(found[0].fix_sql, None);
    assert!(found[0].suggested_fix.contains("((data ->> 'key'))"));
    assert_eq!(of("data->>$1 = $2", index("by_key", &["expression"])), []);
    // The index on another column of the filter keeps too many rows.
    let found = of("at > $1 and data @> $2", index("orders_at_idx", &["at"]));
    assert!(found[0].suggested_fix.contains("GIN"), "{found:?}");
}

/// Regression: an index that was built after a bulk load, seconds before, was "maintained and never used", with the rows
/// of the load as the writes that maintain it.
#[test]
fn an_index_that_was_created_within_the_window_is_not_unused() {
    // At 100 transactions per second, in a window of 10 s.
    let found = |age: u64| {
        let server = unused_index(40.0).catalog(|it| it.indexes[0].definition_age = Some(age));
        super::of_id("unused-index", &server.activity).len()
    };
    assert_eq!([found(900), found(1100)], [0, 1]);
}

/// Regression: checks whether a key exists were likely to poll.
#[test]
fn a_search_for_a_key_that_does_not_exist_is_at_most_a_hint() {
    const BY_KEY: &str = "select $1 from orders where id = $2";
    let found = |text: &str, is_required: bool| {
        let unique = IndexActivity {
            is_required,
            ..index("orders_pkey", &["id"])
        };
        let server = ExampleServer::new().table(table("orders")).index(unique);
        let server = server.load(text, "", 0.3).counted(text, calls(9000, 0.0));
        super::of_id("empty-polling", &server.activity)[0].confidence
    };
    assert_eq!(found(BY_KEY, true), Confidence::Hint);
    assert_eq!(found(BY_KEY, false), Confidence::Likely);
    assert_eq!(
        found("select * from orders where id = $1 and at > $2", true),
        Confidence::Likely
    );
}
