//! Measurement quality, warnings and limitations, with how to fix them.

use pgassay_core::run::{Run, WarningKind};

use super::table::{Ink, paint, wrap};
use super::{Style, heading};
use crate::sentence;

/// The section; empty without notes, which is rare.
pub(super) fn section(run: &Run, style: Style) -> String {
    let width = style.columns();
    let mut out = String::new();
    if let Some(quality) = sentence::profile_quality(run) {
        out.push_str(&wrap(&quality, width, "  profile   ", "            "));
    }
    if let Some(watching) = sentence::cost_of_watching(run) {
        out.push_str(&wrap(&watching, width, "  overhead  ", "            "));
    }
    if let Some(cut) = sentence::cut_by_ends(run) {
        out.push_str(&wrap(&cut, width, "  length    ", "            "));
    }
    if let Some(entries) = sentence::log_entries(run) {
        out.push_str(&wrap(&entries, width, "  log       ", "            "));
    }
    for relay in &run.relays {
        out.push_str(&wrap(
            &sentence::relay(relay),
            width,
            "  relay     ",
            "            ",
        ));
    }
    let mut warnings = String::new();
    // The caller's own warning is more specific, if there is one.
    let told = run
        .warnings
        .iter()
        .any(|it| it.kind == WarningKind::Incomplete);
    if !run.complete && !told {
        warnings.push_str(&warning(
            "The run ended before all trials were completed.",
            style,
        ));
    }
    for it in &run.warnings {
        warnings.push_str(&warning(&it.message, style));
    }
    for check in &run.checks {
        let Some(limit) = sentence::limit(check) else {
            continue;
        };
        let mend = check
            .mend
            .as_ref()
            .map(|mend| format!("; to fix it: {mend}"));
        let text = limit + &mend.unwrap_or_default();
        warnings.push_str(&warning(&text, style));
    }
    out.push_str(&warnings);
    if out.is_empty() {
        return out;
    }
    heading("NOTES", "", style) + &out
}

/// A warning, marked with `!` so that it stands out without color.
fn warning(text: &str, style: Style) -> String {
    let text = wrap(text, style.columns(), "  ! ", "    ");
    paint(text.trim_end(), Ink::Caution, style.color) + "\n"
}
