//! The latency of each statement, one or two lines for every variant with several per transaction.

use pgassay_record::run::Run;

use super::style::{Style, heading};
use super::table::{visible, wrap};
use crate::outline::condition_title;
use crate::statement::{name, sentence, shown};

/// Variants that get a line; the page has a table for each.
const LINES: usize = 5;

/// The section; empty if no transaction has several statements, or none was timed.
pub(super) fn section(run: &Run, style: Style) -> String {
    let shown = shown(run);
    let Some(first) = shown.first() else {
        return String::new();
    };
    let title = format!(
        "latency as the client sees it, in profiled trials: {}",
        condition_title(run, first.condition)
    );
    let mut out = heading("STATEMENTS", &title, style);
    for it in shown.iter().take(LINES) {
        let text = visible(&format!("{}: {}", name(run, it), sentence(it)));
        out.push_str(&wrap(&text, style.columns(), "  ", "    "));
    }
    if shown.len() > LINES {
        let text = format!("See the HTML report for {} more.", shown.len() - LINES);
        out.push_str(&wrap(&text, style.columns(), "  ", "    "));
    }
    out
}
