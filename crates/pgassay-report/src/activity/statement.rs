//! Statements in words: their text, executions and mean time.

use std::collections::BTreeSet;

use pgassay_record::activity::{Activity, ActivityStatement, LoadCell, LoadRow, SessionStatus};

use super::{age, size};
use crate::number;

/// Text on one line: every run of white space is one space.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A statement's text on one line; its fingerprint if the text is hidden.
pub fn statement_text(activity: &Activity, statement: Option<u32>) -> String {
    let found = statement.and_then(|it| activity.statements.get(it as usize));
    let Some(statement) = found else {
        return without_statement(activity);
    };
    match &statement.text {
        Some(text) if statement.is_cut => one_line(text) + " …",
        Some(text) => one_line(text),
        None => format!("(statement {})", statement.fingerprint),
    }
}

/// Whose load has no statement. Some processes never have one, such as those that apply changes for a subscription,
/// and, before 18, parallel workers.
fn without_statement(activity: &Activity) -> String {
    let cells = activity.cells.iter().filter(|it| it.statement.is_none());
    let kind = |cell: &LoadCell| match activity.sessions.get(cell.session as usize) {
        Some(session) if session.backend_type != "client backend" => session.backend_type.as_str(),
        _ => "",
    };
    let kinds: BTreeSet<&str> = cells.map(kind).collect();
    if kinds.is_empty() || kinds.contains("") {
        return "(unknown statement)".to_owned();
    }
    format!("({})", kinds.into_iter().collect::<Vec<_>>().join(", "))
}

/// How often a statement was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executions {
    /// By `pg_stat_statements`.
    Exact(u64),
    /// By samples: a lower bound.
    AtLeast(u64),
}

impl Executions {
    /// As printed: a bound is marked. None was seen of a statement that only parallel workers show.
    pub fn text(self) -> String {
        match self {
            Self::Exact(calls) => number::whole(calls as f64),
            Self::AtLeast(0) => String::new(),
            Self::AtLeast(seen) => format!("≥ {}", number::whole(seen as f64)),
        }
    }
}

/// How often a statement was executed in the window.
pub fn executions(statement: &ActivityStatement) -> Executions {
    match statement.counters {
        Some(counters) if counters.calls > 0 => Executions::Exact(counters.calls),
        _ => Executions::AtLeast(statement.executions_seen),
    }
}

/// What `pg_stat_statements` counted of each call, in words: rows, shared and temporary blocks, and WAL; `None`
/// without counters.
pub(crate) fn per_call(statement: &ActivityStatement) -> Option<String> {
    let counted = statement.counters.filter(|it| it.calls > 0)?;
    let each = |count: u64| count as f64 / counted.calls as f64;
    let parts = [
        (counted.rows, "rows"),
        (counted.shared_hit, "blocks hit"),
        (counted.shared_read, "blocks read"),
        (counted.temp_read, "temp blocks read"),
        (counted.temp_written, "temp blocks written"),
    ];
    // Less would be printed as zero.
    let seen = parts.into_iter().filter(|(count, _)| each(*count) >= 0.001);
    let words = seen.map(|(count, what)| format!("{} {what}", number::plain(each(count))));
    let wal = counted.wal_bytes.map(|it| each(it) as u64);
    let wal = wal.filter(|it| *it > 0).map(|it| size(it) + " of WAL");
    let words: Vec<String> = words.chain(wal).collect();
    (!words.is_empty()).then(|| format!("per call: {}", words.join(", ")))
}

/// The load of sessions that waited for a lock of which no relation is known: it has none, such as an advisory lock, or
/// the wait was between two readings of the locks.
pub(crate) fn other_locks(activity: &Activity) -> f64 {
    activity.load_of(|cell| {
        let wait = activity.waits.get(cell.wait as usize);
        cell.state == SessionStatus::Active
            && cell.relation.is_none()
            && wait.is_some_and(|it| it.kind == "Lock")
    })
}

/// A longer time between the readings of counters than this multiple of the window, or a shorter one than its inverse,
/// is another time.
const SAME_TIME_MAX: f64 = 1.2;

/// What calls were counted over, in words, if it is not the window: a snapshot of `pgassay top` may have older counters.
pub fn counted_over(activity: &Activity) -> Option<String> {
    let counters_us = activity.counters_us?;
    let is_other = is_other_time(counters_us, activity.window_us);
    is_other.then(|| format!("pg_stat_statements counted over {}.", age(counters_us)))
}

/// The time in which scans and writes of tables were counted, in words: a snapshot of `pgassay top` may have older and
/// longer counts.
pub fn tables_counted(activity: &Activity) -> String {
    let counted_us = activity.catalog.as_ref().map(|it| it.window_us);
    let other_us = counted_us.filter(|us| is_other_time(*us, activity.window_us));
    other_us.map_or_else(
        || "in the window".to_owned(),
        |us| format!("over {}", age(us)),
    )
}

fn is_other_time(counted_us: f64, window_us: f64) -> bool {
    let ratio = counted_us / window_us.max(f64::MIN_POSITIVE);
    !(1.0 / SAME_TIME_MAX..=SAME_TIME_MAX).contains(&ratio)
}

/// Fewer executions than this for each session that executed it at a time may not have ended.
const EXECUTIONS_PER_SESSION_MIN: f64 = 3.0;
/// `pg_stat_statements` leaves out the flush of a commit, and executions that failed: if sessions spent more than this
/// multiple of its time, theirs is the better figure.
const TIME_COUNTED_MAX: f64 = 2.0;
/// Less session time, in microseconds, rests on a few readings.
const SPENT_US_MIN: f64 = 250e3;

/// The mean time of an execution, in microseconds, and whether it is only an upper bound; `None`
/// if too few executions were seen.
pub fn mean(activity: &Activity, row: &LoadRow) -> Option<(f64, bool)> {
    let statement = activity.statements.get(row.index? as usize)?;
    // Workers are busy at the same time as the session that executes the statement.
    let executing = row.load - row.of_workers;
    match (executions(statement), statement.counters) {
        (Executions::Exact(calls), Some(counters)) => {
            let counted_us = counters.execution_us + counters.planning_us.unwrap_or(0.0);
            let spent_us = executing * activity.counters_s() * 1e6;
            let is_all = spent_us <= TIME_COUNTED_MAX * counted_us.max(SPENT_US_MIN);
            Some(if is_all {
                (counters.execution_us / calls as f64, false)
            } else {
                (spent_us / calls as f64, true)
            })
        }
        (Executions::AtLeast(seen), _)
            if seen as f64 >= EXECUTIONS_PER_SESSION_MIN * executing.ceil() && seen > 0 =>
        {
            Some((executing * activity.window_us / seen as f64, true))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use pgassay_record::activity::{ActivitySession, LoadBy, StatementCounters};

    use super::*;

    /// Regression: blocks, WAL and temporary files were on the page only.
    #[test]
    fn counters_are_those_of_each_call() {
        let counters = StatementCounters {
            calls: 200,
            rows: 50,
            shared_hit: 1_000_000,
            temp_written: 100,
            wal_bytes: Some(48_000),
            ..StatementCounters::default()
        };
        let text = |counters| {
            let statement = ActivityStatement {
                counters,
                ..ActivityStatement::default()
            };
            per_call(&statement).map(|it| it.replace('\u{a0}', " "))
        };
        let expected =
            "per call: 0.250 rows, 5,000 blocks hit, 0.500 temp blocks written, 240 B of WAL";
        assert_eq!(text(Some(counters)).as_deref(), Some(expected));
        assert_eq!(text(Some(StatementCounters::default())), None);
        assert_eq!(text(None), None);
    }

    /// Regression: a statement that only parallel workers show had "≥ 0" calls.
    #[test]
    fn a_bound_of_no_executions_is_not_printed() {
        assert_eq!(Executions::AtLeast(0).text(), "");
        assert_eq!(Executions::AtLeast(2).text(), "≥ 2");
        assert_eq!(Executions::Exact(2).text(), "2");
    }

    /// Regression: the worker of a subscription was an "(unknown statement)".
    #[test]
    fn load_without_a_statement_is_that_of_its_processes() {
        let named = |kinds: &[&str]| {
            let session = |kind: &&str| ActivitySession {
                backend_type: (*kind).to_owned(),
                ..ActivitySession::default()
            };
            let sessions: Vec<ActivitySession> = kinds.iter().map(session).collect();
            let cells = (0..sessions.len()).map(|session| LoadCell {
                session: session as u32,
                statement: None,
                state: SessionStatus::Active,
                wait: 0,
                relation: None,
                time_us: 1e6,
                samples: 1,
            });
            let activity = Activity {
                cells: cells.collect(),
                sessions,
                ..Activity::default()
            };
            statement_text(&activity, None)
        };
        let apply = "logical replication apply worker";
        assert_eq!(named(&[apply, apply]), format!("({apply})"));
        assert_eq!(
            named(&["parallel worker", "autovacuum worker"]),
            "(autovacuum worker, parallel worker)"
        );
        assert_eq!(named(&[apply, "client backend"]), "(unknown statement)");
        assert_eq!(named(&[]), "(unknown statement)");
    }

    /// Regression: a statement with two parallel workers took "≤ 2.3 s"; `pg_stat_statements` said 0.8 s.
    #[test]
    fn the_mean_time_of_a_statement_is_not_that_of_its_parallel_workers_too() {
        let counters = StatementCounters {
            calls: 15,
            execution_us: 12e6,
            ..StatementCounters::default()
        };
        let session = |kind: &str| ActivitySession {
            backend_type: kind.to_owned(),
            ..ActivitySession::default()
        };
        let cell = |session, time_us| LoadCell {
            session,
            statement: Some(0),
            state: SessionStatus::Active,
            wait: 0,
            relation: None,
            time_us,
            samples: 100,
        };
        let mut activity = Activity {
            window_us: 15e6,
            sessions: vec![session("client backend"), session("parallel worker")],
            statements: vec![ActivityStatement {
                executions_seen: 10,
                counters: Some(counters),
                ..ActivityStatement::default()
            }],
            cells: vec![cell(0, 12e6), cell(1, 22e6)],
            ..Activity::default()
        };
        let mean_of = |activity: &Activity| {
            let rows = activity.load_by(LoadBy::Statement);
            let (us, is_bound) = mean(activity, &rows[0]).unwrap();
            (age(us).replace('\u{a0}', " "), is_bound)
        };
        assert_eq!(mean_of(&activity), ("800 ms".to_owned(), false));
        activity.statements[0].counters = None;
        assert_eq!(mean_of(&activity), ("1.2 s".to_owned(), true));
    }
}
