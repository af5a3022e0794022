//! Text for the latency of each statement, the same in the terminal and on the page.

use pgassay_model::statement::{ScriptStatements, StatementLatency};
use pgassay_model::wording::counted;
use pgassay_record::run::Run;

use crate::number;
use crate::outline::{explained_ledger, variant_name};

/// Executions below which a 99th percentile is not shown.
const PERCENTILE_FROM: u64 = 100;

/// The statements of one condition: the one that the cost and response-time accounts show, else the
/// first with any. Variants with one statement per transaction have none.
pub(crate) fn shown(run: &Run) -> Vec<&ScriptStatements> {
    let of = |condition: usize| -> Vec<&ScriptStatements> {
        let all = run.statements.iter();
        all.filter(|it| it.condition == condition && it.statements.iter().any(is_timed))
            .collect()
    };
    let explained = explained_ledger(run).map(|it| of(it.condition));
    let first = run.statements.first().map(|it| of(it.condition));
    let explained = explained.filter(|found| !found.is_empty());
    explained.or(first).unwrap_or_default()
}

fn is_timed(statement: &StatementLatency) -> bool {
    statement.timed > 0
}

/// The variant's name, and the script's if it differs.
pub(crate) fn name(run: &Run, it: &ScriptStatements) -> String {
    let variant = variant_name(run, it.variant);
    if variant == it.script {
        variant.to_owned()
    } else {
        format!("{variant}, {}", it.script)
    }
}

/// `50 statements in a pipeline; time from send to the first result 0.110 ms, …`, then the statements outside
/// of the pipeline, if there are any.
pub(crate) fn sentence(it: &ScriptStatements) -> String {
    let parts = [in_pipeline(it), in_sequence(it)];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn ends_pipeline(statement: &StatementLatency) -> bool {
    statement.text.starts_with("\\endpipeline")
}

fn in_pipeline(it: &ScriptStatements) -> Option<String> {
    let all: Vec<&StatementLatency> = it.statements.iter().filter(|it| it.in_pipeline).collect();
    let last_line = all.last()?.line;
    let pipelined: Vec<&StatementLatency> = it.pipelined().collect();
    let to_results = match pipelined[..] {
        [first, .., last] => {
            let middle = pipelined.len() / 2;
            let between = match pipelined.len() {
                ..5 => String::new(),
                _ => format!(", to the middle one {}", figures(pipelined[middle])),
            };
            format!(
                "; time from send to the first result {}{between}, to the last {}",
                figures(first),
                figures(last)
            )
        }
        // Only some executions are timed, in a short run perhaps none.
        _ => String::new(),
    };
    let mut later = it.statements.iter().filter(|it| it.line > last_line);
    let whole = later.find(|it| ends_pipeline(it) && is_timed(it));
    let whole = whole.map_or_else(String::new, |it| {
        format!("; entire pipeline {}", figures(it))
    });
    // A branch of the script may skip some.
    let count = if pipelined.len() < 2 {
        all.len()
    } else {
        pipelined.len()
    };
    let count = counted(count, "statement");
    Some(format!("{count} in a pipeline{to_results}{whole}"))
}

fn in_sequence(it: &ScriptStatements) -> Option<String> {
    let is_alone = |it: &&StatementLatency| is_timed(it) && !it.in_pipeline && !ends_pipeline(it);
    let timed: Vec<&StatementLatency> = it.statements.iter().filter(is_alone).collect();
    let slowest = timed
        .iter()
        .max_by(|a, b| a.mean_us.total_cmp(&b.mean_us))?;
    let mean_us = timed.iter().map(|it| it.mean_us).sum::<f64>() / timed.len() as f64;
    Some(format!(
        "{} in sequence, mean {}; slowest: line {}, {}: {}",
        counted(timed.len(), "statement"),
        millis(mean_us),
        slowest.line,
        figures(slowest),
        slowest.text
    ))
}

/// `0.110 ms (p99 0.912)`; without p99 for few executions, where it would be the maximum.
fn figures(it: &StatementLatency) -> String {
    let mean = millis(it.mean_us);
    if it.timed < PERCENTILE_FROM {
        return mean;
    }
    format!("{mean} (p99\u{a0}{})", number::millis(it.p99_us))
}

fn millis(us: f64) -> String {
    format!("{}\u{a0}ms", number::millis(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(line: u32, text: &str, in_pipeline: bool, timed: u64) -> StatementLatency {
        StatementLatency {
            line,
            text: text.to_owned(),
            in_pipeline,
            timed,
            mean_us: if timed == 0 {
                0.0
            } else {
                1000.0 * f64::from(line)
            },
            p50_us: 0.0,
            p99_us: 0.0,
        }
    }

    /// Regression: `\endpipeline` was "line 9" of "3 statements in sequence" if no statement in the pipeline was
    /// timed, and the statements before it were left out if some were.
    #[test]
    fn a_pipeline_is_separate_from_the_statements_before_it() {
        let of = |timed: u64| {
            let script = ScriptStatements {
                condition: 0,
                variant: 0,
                script: "w".to_owned(),
                statements: vec![
                    statement(2, "select 1;", false, 50),
                    statement(4, "update t;", true, timed),
                    statement(5, "select 2;", true, timed),
                    statement(6, "\\endpipeline", false, 50),
                ],
            };
            sentence(&script).replace('\u{a0}', " ")
        };
        let alone =
            "; 1 statement in sequence, mean 2.000 ms; slowest: line 2, 2.000 ms: select 1;";
        let pipeline = "2 statements in a pipeline; ";
        let whole = "entire pipeline 6.000 ms";
        assert_eq!(of(0), format!("{pipeline}{whole}{alone}"));
        let results = "time from send to the first result 4.000 ms, to the last 5.000 ms; ";
        assert_eq!(of(9), format!("{pipeline}{results}{whole}{alone}"));
    }
}
