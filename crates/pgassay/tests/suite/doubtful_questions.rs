//! `pgassay compare`: questions whose answer is about something else than what the user has in mind.

use pgassay_record::run::{Run, Warning, WarningKind};
use pgassay_test_support::{Scratch, collapse_whitespace};

const ORDERS: &str = "create table orders (id int primary key, customer int, note text); \
                      insert into orders select i, i / 50, 'x' from generate_series(1, 5000) i; \
                      vacuum analyze orders";
/// Short trials: what is found here does not depend on times.
const SHORT: [&str; 5] = ["--length", "1s", "--pairs", "2", "--no-profile"];

fn compared(scratch: &Scratch, more: &[&str]) -> Run {
    let mut args = vec!["compare", "--setup", ORDERS, "--json"];
    args.extend(SHORT);
    args.extend(more);
    serde_json::from_str(&scratch.ok(&args)).expect("the result is JSON")
}

fn of_kind(run: &Run, kind: WarningKind) -> Vec<&Warning> {
    run.warnings.iter().filter(|it| it.kind == kind).collect()
}

/// Regression: a DELETE whose warm-up removed all its rows was compared as 126 times as slow as `select 1`, without a
/// word; so were other writes that find nothing after their first execution.
#[test]
fn a_write_that_used_itself_up_in_the_warm_up_is_not_measured_without_a_word() {
    let scratch = Scratch::new(crate::PROGRAM);
    let delete = "delete from orders where customer = 1";
    let update = "update orders set note = 'y' where note <> 'y'";
    let run = compared(&scratch, &[delete, update]);
    let found = of_kind(&run, WarningKind::RowsUnchanged);
    assert_eq!(found.len(), 1, "{:?}", run.warnings);
    let message = &found[0].message;
    for expected in [
        "executes DELETE, but changed no rows in 4 of 4 trials",
        "executes UPDATE, but changed no rows in 4 of 4 trials",
        "put BEGIN before and ROLLBACK after it",
    ] {
        assert!(message.contains(expected), "{message}");
    }
    let mut args = vec!["compare", "--setup", ORDERS, delete, "select 1"];
    args.extend(SHORT);
    let text = collapse_whitespace(&scratch.ok(&args));
    let [warning, details] = ["executes DELETE, but changed", "ANSWER"].map(|it| text.find(it));
    assert!(
        warning.is_some() && warning < details,
        "next to the verdict: {text}"
    );
}

#[test]
fn writes_that_change_rows_have_no_such_warning() {
    let scratch = Scratch::new(crate::PROGRAM);
    let upsert = "insert into orders values (1, 1, 'x') on conflict (id) do update set note = 'x'";
    let undone = "begin;\ndelete from orders where customer = 1;\nrollback;";
    let run = compared(&scratch, &[upsert, undone, "select 1"]);
    assert!(
        of_kind(&run, WarningKind::RowsUnchanged).is_empty(),
        "{:?}",
        run.warnings
    );
    let mut args = vec!["compare", "-b", "tpcb-like", "--json", "--vs", "prepared"];
    args.extend(SHORT);
    // Up to 14, statistics are late.
    args.extend(["--servers", "12"]);
    let run: Run = serde_json::from_str(&scratch.ok(&args)).expect("the result is JSON");
    assert!(
        of_kind(&run, WarningKind::RowsUnchanged).is_empty(),
        "{:?}",
        run.warnings
    );
}
