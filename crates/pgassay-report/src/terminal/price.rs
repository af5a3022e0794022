//! What variants take besides time, one sentence for each comparison where it differs.

use pgassay_record::run::Run;

use super::differences::title;
use super::style::{Style, heading};
use super::table::wrap;
use crate::outline::ThroughputUnit;
use crate::price::{rows, sentence};

/// Comparisons that get a sentence; the page has a table of all.
const LINES: usize = 5;

/// The section; empty if variants differ in time only.
pub(super) fn section(run: &Run, style: Style) -> String {
    let comparisons = run.comparisons.iter();
    let priced: Vec<_> = comparisons
        .map(|it| (it, rows(run, it)))
        .filter(|(_, rows)| !rows.is_empty())
        .collect();
    if priced.is_empty() {
        return String::new();
    }
    let what = format!(
        "memory per backend (PSS without shared memory); WAL, temporary files and blocks per {}",
        ThroughputUnit::of(run).one()
    );
    let mut out = heading("PRICE", &what, style);
    for (comparison, rows) in priced.iter().take(LINES) {
        let text = format!("{}: {}", title(run, comparison), sentence(rows));
        out.push_str(&wrap(&text, style.columns(), "  ", "    "));
    }
    if priced.len() > LINES {
        let text = match priced.len() - LINES {
            1 => "1 more comparison differs; see the HTML report.".to_owned(),
            more => format!("{more} more comparisons differ; see the HTML report."),
        };
        out.push_str(&wrap(&text, style.columns(), "  ", "    "));
    }
    out
}
