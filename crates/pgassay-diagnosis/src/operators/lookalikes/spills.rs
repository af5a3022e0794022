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

/// Regression: an INSERT of 150,000 rows of `generate_series`, which stores 2 MB of them, was to get more `work_mem`.
#[test]
fn a_few_megabytes_of_temporary_files_in_seconds_of_work_are_no_finding() {
    let text = "insert into log select g from generate_series($1, $2) g";
    let found = |wait: &str, bytes: u64| {
        let counters = StatementCounters {
            temp_written: bytes / 8192,
            temp_read: bytes / 8192,
            ..calls(4, 150_000.0)
        };
        let server = ExampleServer::new().load(text, wait, 1.0);
        of_id("temp-spill", &server.counted(text, counters).activity)
    };
    // In 9 s of execution.
    assert_eq!(found("", 20 << 20), []);
    let large = found("", 60 << 20);
    assert_eq!(large.len(), 1);
    assert!(large[0].suggested_fix.contains("a function in FROM"));
    assert_eq!(found("IO:BufFileWrite", 4 << 20).len(), 1);
}

/// Regression: a NOT IN whose subquery was stored and read for each row was ranked by its few waits for the file.
#[test]
fn stored_rows_that_are_read_again_and_again_are_all_of_the_load() {
    let text = "select count(*) from t1 where a not in (select a from t2) and a < $1";
    let saved = |rereads: u64| {
        let counters = StatementCounters {
            temp_written: 20_000,
            temp_read: 20_000 * rereads,
            ..calls(10, 1.0)
        };
        let server = ExampleServer::new().load(text, "", 2.0);
        let server = server.counted(text, counters);
        of_id("temp-spill", &server.activity)[0].saved_sessions
    };
    assert_eq!(saved(100), Some(2.0));
    assert_eq!(saved(1), None);
}
