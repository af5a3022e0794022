//! The result of a gate: the deciding sentence, Markdown, `JUnit`, and the annotations of `GitHub`.

mod junit;

use std::fmt::Write;

use pgassay_account::comparison::{GateAnswer, GatedComparison};

pub use junit::junit;

use crate::number;

/// `GitHub` drops a step's summary above 1 MiB, and limits a comment to 65,536 characters.
const MARKDOWN_ROWS_MAX: usize = 200;

/// A comparison of a gate, with its names.
#[derive(Debug, Clone, PartialEq)]
pub struct GateResult {
    /// The variant.
    pub variant: String,
    /// The baseline.
    pub baseline: String,
    /// The condition's title.
    pub condition: String,
    /// What was measured, and the answer.
    pub compared: GatedComparison,
}

/// The answer of a gate with all its comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateOutcome {
    /// Every variant passes.
    Pass,
    /// At least one variant is slower than the limit.
    Regression,
    /// No variant is surely slower than the limit, but not every one is surely on its near side.
    CannotTell,
}

impl GateOutcome {
    /// The outcome of these comparisons.
    pub fn of(results: &[GateResult]) -> Self {
        let any = |wanted| results.iter().any(|it| it.compared.answer == wanted);
        if any(GateAnswer::Regression) {
            Self::Regression
        } else if any(GateAnswer::CannotTell) || results.is_empty() {
            Self::CannotTell
        } else {
            Self::Pass
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Regression => "regression",
            Self::CannotTell => "cannot tell",
        }
    }
}

/// The sentence that decides: of the slowest comparison with the outcome.
pub fn deciding_sentence(results: &[GateResult], limit_percent: f64) -> String {
    let outcome = GateOutcome::of(results);
    let wanted = match outcome {
        GateOutcome::Pass => GateAnswer::Pass,
        GateOutcome::Regression => GateAnswer::Regression,
        GateOutcome::CannotTell => GateAnswer::CannotTell,
    };
    let deciding = results.iter().filter(|it| it.compared.answer == wanted);
    let ratio = |it: &GateResult| it.compared.ratio.unwrap_or(f64::INFINITY);
    let Some(worst) = deciding
        .clone()
        .min_by(|a, b| ratio(a).total_cmp(&ratio(b)))
    else {
        return "cannot tell: there is no complete comparison".to_owned();
    };
    let what = match outcome {
        GateOutcome::Pass => "is not slower than",
        GateOutcome::Regression => "is slower than",
        GateOutcome::CannotTell => "may be slower than",
    };
    let others = match (outcome, deciding.count()) {
        (_, 1) => String::new(),
        (GateOutcome::Pass, all) => format!(" This is the slowest of {all} comparisons."),
        (_, many) => format!(" {many} of {} comparisons have this answer.", results.len()),
    };
    format!(
        "{}: {} {what} {} by more than {limit_percent}% with {}: throughput {}.{others}",
        outcome.word(),
        worst.variant,
        worst.baseline,
        worst.condition,
        figures(&worst.compared),
    )
}

/// `×0.912 [0.893, 0.931] (8 pairs)`.
fn figures(compared: &GatedComparison) -> String {
    let pairs = number::count(compared.pairs as u64, "pair");
    match (compared.ratio, compared.interval) {
        (Some(ratio), Some(interval)) => format!(
            "{} {} ({pairs})",
            number::ratio(ratio),
            number::interval(interval.low, interval.high)
        ),
        (Some(ratio), None) => format!(
            "{} (unstable: intervals of different analyses contradict each other; {pairs})",
            number::ratio(ratio)
        ),
        (None, _) => format!("not analyzed ({pairs})"),
    }
}

fn answer_word(answer: GateAnswer) -> &'static str {
    match answer {
        GateAnswer::Pass => "pass",
        GateAnswer::Regression => "regression",
        GateAnswer::CannotTell => "cannot tell",
    }
}

/// The deciding sentence and a table, for a pull request, a summary or a mail.
pub fn markdown(results: &[GateResult], sentence: &str) -> String {
    let mut text = format!(
        "<!-- pgassay gate -->\n**{}**\n\n| variant | condition | throughput | answer |\n|---|---|--:|---|\n",
        in_markdown(sentence)
    );
    for result in results.iter().take(MARKDOWN_ROWS_MAX) {
        _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            in_markdown(&result.variant),
            in_markdown(&result.condition),
            figures(&result.compared),
            answer_word(result.compared.answer),
        );
    }
    if let Some(more) = results
        .len()
        .checked_sub(MARKDOWN_ROWS_MAX)
        .filter(|it| *it > 0)
    {
        _ = writeln!(text, "\n{more} more comparisons are not shown.");
    }
    text
}

/// Names may contain anything; a table's cell must not end early, and markup must not apply.
pub(crate) fn in_markdown(text: &str) -> String {
    let mut escaped = String::new();
    for c in crate::printable(text).chars() {
        match c {
            '\n' | '\t' => escaped.push(' '),
            '\\' | '|' | '`' | '*' | '_' | '[' | ']' | '<' | '>' => {
                escaped.push('\\');
                escaped.push(c);
            }
            _ => escaped.push(c),
        }
    }
    escaped
}

/// A workflow command that annotates the job with the deciding sentence (`GitHub` Actions, "Workflow commands").
pub fn annotation(outcome: GateOutcome, sentence: &str) -> String {
    let level = match outcome {
        GateOutcome::Pass => "notice",
        GateOutcome::Regression => "error",
        GateOutcome::CannotTell => "warning",
    };
    let escaped = sentence
        .replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A");
    format!("::{level} title=pgassay gate::{escaped}")
}

#[cfg(test)]
mod tests;
