//! What `pg_stat_statements` counted for a statement, line by line.

use pgassay_account::counters::CounterUnit;
use pgassay_record::activity::{Activity, ActivityStatement};

use super::{age, size};
use crate::number;

/// Calls, rows, blocks, temporary blocks and WAL; nothing without counters.
pub fn counter_lines(activity: &Activity, statement: &ActivityStatement) -> Vec<String> {
    let Some(counters) = &statement.counters else {
        return Vec::new();
    };
    let seconds = activity.counters_s();
    let over = format!("pg_stat_statements, over {}: ", age(seconds * 1e6));
    if counters.calls == 0 {
        return vec![over + "no execution ended"];
    }
    let calls = counters.calls as f64;
    let each = |all: u64| number::counter_value(all as f64 / calls, CounterUnit::Count);
    let planning = counters.planning_us;
    let planning =
        planning.map_or_else(String::new, |us| format!(", planning {}", age(us / calls)));
    let mut lines = vec![
        format!(
            "{over}{}, {} each{planning}",
            number::count(counters.calls, "call"),
            age(counters.execution_us / calls)
        ),
        format!(
            "  per call: {} rows; blocks {} hit, {} read, {} dirtied",
            each(counters.rows),
            each(counters.shared_hit),
            each(counters.shared_read),
            each(counters.shared_dirtied)
        ),
        format!(
            "  per call: temporary blocks {} read, {} written",
            each(counters.temp_read),
            each(counters.temp_written)
        ),
    ];
    lines.extend(counters.wal_bytes.map(|bytes| {
        let of = |part: f64| size((bytes as f64 / part) as u64);
        format!("  WAL {} per call, {}/s in all", of(calls), of(seconds))
    }));
    lines
}

#[cfg(test)]
mod tests {
    use pgassay_record::activity::StatementCounters;

    use super::*;

    #[test]
    fn blocks_and_wal_are_those_of_an_execution() {
        let activity = Activity {
            counters_us: Some(4e6),
            ..Activity::default()
        };
        let mut statement = ActivityStatement::default();
        assert!(counter_lines(&activity, &statement).is_empty());
        statement.counters = Some(StatementCounters {
            calls: 100,
            execution_us: 9e6,
            rows: 1200,
            shared_hit: 123_400,
            shared_read: 50,
            temp_written: 250,
            wal_bytes: Some(4 << 20),
            ..StatementCounters::default()
        });
        let lines = |statement: &ActivityStatement| -> Vec<String> {
            let lines = counter_lines(&activity, statement).into_iter();
            lines.map(|it| it.replace('\u{a0}', " ")).collect()
        };
        assert_eq!(
            lines(&statement),
            [
                "pg_stat_statements, over 4.0 s: 100 calls, 90 ms each",
                "  per call: 12.0 rows; blocks 1,234 hit, 0.500 read, 0 dirtied",
                "  per call: temporary blocks 0 read, 2.50 written",
                "  WAL 41 kB per call, 1,024 kB/s in all",
            ]
        );
        statement.counters = Some(StatementCounters::default());
        let none = ["pg_stat_statements, over 4.0 s: no execution ended"];
        assert_eq!(lines(&statement), none);
    }
}
