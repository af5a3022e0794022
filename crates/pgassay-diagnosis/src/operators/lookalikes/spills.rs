//! Statements that write temporary files, and what helps.

use pgassay_record::activity::StatementCounters;
use pgassay_record::finding::{Confidence, Finding};

use super::build::{ExampleServer, calls};
use super::of_id;

/// With `work_mem` of 4 MB and so many bytes written per execution.
fn spilling(text: &str, bytes: u64) -> Finding {
    let counters = StatementCounters {
        temp_written: bytes / 8192 * 10,
        ..calls(10, 1e6)
    };
    let work_mem = ("work_mem".to_owned(), "4096kB".to_owned());
    let server = ExampleServer::new()
        .load(text, "IO:BuffileRead", 1.0)
        .counted(text, counters)
        .catalog(|it| it.settings.push(work_mem));
    of_id("temp-spill", &server.activity).remove(0)
}

/// Regression: more memory for a role was "likely" to help sessions that had set less of it themselves.
#[test]
fn files_that_are_smaller_than_work_mem_leave_a_doubt() {
    const SORT: &str = "select * from orders order by note";
    assert_eq!(spilling(SORT, 5 << 20).confidence, Confidence::Likely);
    let small = spilling(SORT, 280 << 10);
    assert_eq!(small.confidence, Confidence::Hint);
    assert!(small.evidence_against[0].contains("less than work_mem"));
}

/// Regression: the fix of a NOT IN whose subquery is searched for each row was an index that gives the order.
#[test]
fn a_subquery_of_not_in_that_spills_is_to_be_written_as_not_exists() {
    let text = "select count(*) from t1 where a not in (select a from t2) and a < $1";
    let found = spilling(text, 5 << 20);
    assert!(found.suggested_fix.contains("NOT EXISTS"), "{found:?}");
    assert_eq!(found.fix_sql, None);
    let list = "select * from t1 where a not in ($1, $2) order by b";
    assert!(!spilling(list, 5 << 20).suggested_fix.contains("NOT EXISTS"));
}
