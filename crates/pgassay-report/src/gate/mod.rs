//! The result of a gate: the deciding sentence, Markdown, `JUnit`, and the annotations of `GitHub`.

mod junit;
mod result;
mod sentence;
mod summary;

use std::fmt::Write;

use pgassay_account::comparison::Inconclusive;
use pgassay_record::run::Run;

use crate::outline;
use crate::outlook::{self, Undecided};

pub use junit::{JunitSuite, junit};
pub use result::{GateLimit, GateNames, GateResult, GateVerdict};
pub use sentence::deciding_sentence;
pub use summary::summary;

/// Why a comparison of a gate ended before its last unit: `The comparison ended after 8 of at most 12 server starts,
/// because …`. `None` if it did not, or has no intervals that agree.
pub fn early_end(run: &Run, condition: usize, variant: usize) -> Option<String> {
    let comparison = outline::comparison(run, condition, variant)?;
    let is_stable = comparison.inconclusive_reason != Some(Inconclusive::Unstable);
    let basis = comparison.basis.filter(|_| run.complete && is_stable)?;
    // With plain spaces, since logs and JSON are searched.
    outlook::early_end(Undecided::One, run, basis).map(|it| it.replace('\u{a0}', " "))
}

/// `GitHub` limits a comment to 65,536 characters, and drops a step's summary above 1 MiB.
const MARKDOWN_BYTES_MAX: usize = 60_000;

/// The deciding sentence and a table, for a pull request, a summary or an email.
pub fn markdown(results: &[GateResult], sentence: &str) -> String {
    let mut text = format!(
        "<!-- pgassay gate -->\n**{}**\n\n| variant | condition | measured | verdict |\n|---|---|---|---|\n",
        in_markdown(sentence)
    );
    for (number, result) in results.iter().enumerate() {
        let row = format!(
            "| {} | {} | {} | {} |\n",
            in_markdown(&result.names.variant),
            in_markdown(&result.names.condition),
            in_markdown(&result.figures),
            result.answer(),
        );
        if text.len() + row.len() > MARKDOWN_BYTES_MAX {
            _ = match results.len() - number {
                1 => writeln!(text, "\n1 more comparison is not shown."),
                more => writeln!(text, "\n{more} more comparisons are not shown."),
            };
            break;
        }
        text.push_str(&row);
    }
    text
}

/// Names may contain anything; a table's cell must not end early, and markup must not apply. Nor may a name notify
/// people or link to elsewhere: `GitHub` recognizes `@name`, `#12`, `GH-12` and addresses in what the markup has become,
/// so that only a character in between, here a word joiner, prevents it.
pub(crate) fn in_markdown(text: &str) -> String {
    const JOINER: char = '\u{2060}';
    let mut escaped = String::new();
    for c in crate::printable(text).chars() {
        let begins_link = match c {
            '-' => ends_with_word(&escaped, "gh"),
            '.' => ends_with_word(&escaped, "www"),
            '/' => escaped.ends_with(':'),
            _ => false,
        };
        if begins_link {
            escaped.push(JOINER);
        }
        match c {
            '\n' | '\t' => escaped.push(' '),
            '\\' | '|' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '~' | '$' => {
                escaped.push('\\');
                escaped.push(c);
            }
            '&' => escaped.push_str("&amp;"),
            '@' | '#' => escaped.extend([c, JOINER]),
            _ => escaped.push(c),
        }
    }
    escaped
}

/// Whether a text ends with a word, in any case.
fn ends_with_word(text: &str, word: &str) -> bool {
    let bytes = text.as_bytes();
    let Some((before, last)) = bytes.split_at_checked(bytes.len().wrapping_sub(word.len())) else {
        return false;
    };
    let is_inside = before.last().is_some_and(u8::is_ascii_alphanumeric);
    last.eq_ignore_ascii_case(word.as_bytes()) && !is_inside
}

/// How an annotation is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnnotationLevel {
    /// Red.
    Error,
    /// Yellow.
    Warning,
}

/// A workflow command that annotates the job with the deciding sentence (`GitHub` Actions, "Workflow commands").
pub fn annotation(level: AnnotationLevel, sentence: &str) -> String {
    let level = match level {
        AnnotationLevel::Error => "error",
        AnnotationLevel::Warning => "warning",
    };
    let escaped = sentence
        .replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A");
    format!("::{level} title=pgassay gate::{escaped}")
}

#[cfg(test)]
mod tests;
