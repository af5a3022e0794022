//! What a live server does, in its DBA's terms: blockers, load by statement and by everything else,
//! tables and indexes, the time axis, and what watching cost.

mod blocking;
mod catalog;
mod legend;
mod load;
mod timeline;

use pgassay_record::activity::Activity;
use pgassay_record::observation::Observation;

use super::style::{Style, heading};
use super::table::{TextStyle, paint, wrap};
use crate::activity::{cost, headline, limitations, ready_but_idle};
use crate::sentence;

/// The answer, in two or three sentences, and what the load leaves out.
pub(super) fn answer(observation: &Observation, activity: &Activity, style: Style) -> String {
    let text = wrap(&headline(activity), style.columns(), "→ ", "  ");
    let answer = paint(text.trim_end(), TextStyle::Strong, style.color) + "\n";
    let more = ready_but_idle(observation);
    answer + &more.map_or_else(String::new, |it| wrap(&it, style.columns(), "  ", "  "))
}

/// The sections, in order; those without rows are empty.
pub(super) fn sections(
    observation: &Observation,
    activity: &Activity,
    style: Style,
) -> Vec<String> {
    let mut found = vec![
        blocking::section(activity, style),
        blocking::idle_holders(activity, style),
        load::statements(observation, activity, style),
        load::waits(observation, activity, style),
        load::by_names(activity, style),
        timeline::section(activity, style),
    ];
    if let Some(catalog) = &activity.catalog {
        found.push(catalog::tables(activity, catalog, style));
        found.push(catalog::indexes(catalog, style));
        found.push(catalog::server(catalog, style));
    }
    found.push(watching(activity, style));
    found
}

/// What watching cost, and what is missing.
fn watching(activity: &Activity, style: Style) -> String {
    let mut out = heading("OVERHEAD", "of watching, on the server's machine", style);
    out.push_str(&wrap(&cost(activity), style.columns(), "  ", "  "));
    for check in limitations(activity) {
        let Some(limit) = sentence::limit(check) else {
            continue;
        };
        let fix = check.fix.as_ref().map(|it| format!("; to fix it: {it}"));
        let text = limit + &fix.unwrap_or_default();
        let text = wrap(&text, style.columns(), "  ! ", "    ");
        out.push_str(&(paint(text.trim_end(), TextStyle::Caution, style.color) + "\n"));
    }
    out
}
