//! Measurement quality, warnings and limitations, with how to fix them.

use pgassay_record::run::{Run, WarningKind};

use super::style::{Style, heading};
use super::table::{TextStyle, paint, wrap};
use crate::reliability::is_of_question;
use crate::{limitations, sentence};

/// The section; empty without notes, which is rare.
pub(super) fn section(run: &Run, style: Style) -> String {
    let width = style.columns();
    let mut out = String::new();
    if let Some(quality) = sentence::profile_quality(run) {
        out.push_str(&wrap(&quality, width, "  profile   ", "            "));
    }
    if let Some(watching) = sentence::profiling_overhead(run) {
        out.push_str(&wrap(&watching, width, "  overhead  ", "            "));
    }
    if let Some(awake) = sentence::awake_cpus(run) {
        out.push_str(&wrap(awake, width, "  cpus      ", "            "));
    }
    if let Some(cut) = sentence::cut_off_transactions(run) {
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
    let has_warning = run
        .warnings
        .iter()
        .any(|it| it.kind == WarningKind::Incomplete);
    if !run.complete && !has_warning {
        warnings.push_str(&warning(
            "The run ended before all trials were completed.",
            style,
        ));
    }
    for it in limitations::warnings(run).filter(|it| !is_of_question(it)) {
        warnings.push_str(&warning(&it.message, style));
    }
    for (limit, fix) in limitations::limits(run) {
        let fix = fix.map(|fix| format!("; to fix it: {fix}"));
        let text = limit + &fix.unwrap_or_default();
        warnings.push_str(&warning(&text, style));
    }
    out.push_str(&warnings);
    if out.is_empty() {
        return out;
    }
    heading("NOTES", "", style) + &out
}

/// The warnings that belong next to the answer.
pub(super) fn of_question(run: &Run, style: Style) -> String {
    let warnings = run.warnings.iter().filter(|it| is_of_question(it));
    warnings.map(|it| warning(&it.message, style)).collect()
}

/// A warning, marked with `!` so that it stands out without color.
fn warning(text: &str, style: Style) -> String {
    let text = wrap(text, style.columns(), "  ! ", "    ");
    paint(text.trim_end(), TextStyle::Caution, style.color) + "\n"
}
