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

/// `50 statements in a pipeline; time from send to the first result 0.110 ms, …`.
pub(crate) fn sentence(it: &ScriptStatements) -> String {
    let pipelined: Vec<&StatementLatency> = it.pipelined().collect();
    if let [first, .., last] = pipelined[..] {
        let middle = pipelined.len() / 2;
        let between = match pipelined.len() {
            ..5 => String::new(),
            _ => format!(", to the middle one {}", figures(pipelined[middle])),
        };
        let whole = it.statements.iter().find(|it| it.line > last.line);
        let whole = whole.filter(|it| it.text.starts_with("\\endpipeline"));
        let whole = whole.map_or_else(String::new, |it| {
            format!("; entire pipeline {}", figures(it))
        });
        return format!(
            "{} in a pipeline; time from send to the first result {}{between}, to the last {}{whole}",
            counted(pipelined.len(), "statement"),
            figures(first),
            figures(last)
        );
    }
    let timed: Vec<&StatementLatency> = it.statements.iter().filter(|it| is_timed(it)).collect();
    let mean_us = timed.iter().map(|it| it.mean_us).sum::<f64>() / timed.len().max(1) as f64;
    let slowest = timed.iter().max_by(|a, b| a.mean_us.total_cmp(&b.mean_us));
    let slowest = slowest.map_or_else(String::new, |it| {
        format!("; slowest: line {}, {}: {}", it.line, figures(it), it.text)
    });
    format!(
        "{} in sequence, mean {}{slowest}",
        counted(timed.len(), "statement"),
        millis(mean_us)
    )
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
