//! What each statement of a transaction takes, a line or two for every variant that has several.

use pgassay_core::run::Run;

use super::table::{visible, wrap};
use super::{Style, heading};
use crate::outline::condition_title;
use crate::statement::{name, sentence, told};

/// Variants that get a line; the page has a table of each.
const LINES: usize = 5;

/// The section, or nothing where no transaction has several statements, or none was timed.
pub(super) fn section(run: &Run, style: Style) -> String {
    let told = told(run);
    let Some(first) = told.first() else {
        return String::new();
    };
    let title = format!(
        "latency of each as its client sees it, in profiled trials: {}",
        condition_title(run, first.condition)
    );
    let mut out = heading("STATEMENTS", &title, style);
    for it in told.iter().take(LINES) {
        let text = visible(&format!("{}: {}", name(run, it), sentence(it)));
        out.push_str(&wrap(&text, style.columns(), "  ", "    "));
    }
    if told.len() > LINES {
        let text = format!("{} more are on the page.", told.len() - LINES);
        out.push_str(&wrap(&text, style.columns(), "  ", "    "));
    }
    out
}
