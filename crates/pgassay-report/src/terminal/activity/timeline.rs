//! The load over time: one line per stretch, with what happened in it.

use pgassay_record::activity::{Activity, LoadMarkKind};

use super::super::style::{Style, heading};
use super::super::table::{Alignment, Table, TextStyle, cell, cut, inked, visible};
use super::legend::legend;
use crate::activity::{ClassLoads, TimeStretch, load, stretches};
use crate::number;

const LINES_MAX: usize = 20;
const BAR_WIDTH: usize = 28;
/// With the other columns, a line fits 60 columns without marks.
const MARKS_WIDTH_MIN: usize = 16;

/// The section; empty without a time axis.
pub(super) fn section(activity: &Activity, style: Style) -> String {
    let found = stretches(activity, LINES_MAX);
    if found.is_empty() {
        return String::new();
    }
    let highest = found.iter().map(|it| it.loads.total()).fold(0.0, f64::max);
    let mut table = Table::new(&[
        Alignment::Right,
        Alignment::Right,
        Alignment::Left,
        Alignment::Right,
        Alignment::Left,
    ]);
    let has_rates = found.iter().any(|it| it.transactions_per_s.is_some());
    let headings = [
        "from",
        "active",
        "",
        if has_rates { "tx/s" } else { "" },
        "",
    ];
    table.row(headings.map(|it| inked(it, TextStyle::Faint)).into());
    // Those of a snapshot of `top` begin anywhere.
    let is_whole = |us: f64| (us / 1e6 - (us / 1e6).round()).abs() < 0.1;
    let places = usize::from(!found.iter().all(|it| is_whole(it.start_us)));
    for stretch in &found {
        let is_stalled = stretch
            .marks
            .iter()
            .any(|it| it.kind == LoadMarkKind::Stall);
        let tps = stretch
            .transactions_per_s
            .map_or_else(String::new, number::tps);
        table.row(vec![
            cell(format!(
                "{}\u{a0}s",
                number::decimals(stretch.start_us / 1e6, places)
            )),
            cell(load(stretch.loads.total())),
            cell(bar(&stretch.loads, highest)),
            inked(
                tps,
                if is_stalled {
                    TextStyle::Bad
                } else {
                    TextStyle::Plain
                },
            ),
            inked(marks(stretch, style), TextStyle::Caution),
        ]);
    }
    let why = format!(
        "average active sessions by wait class: {}",
        legend(found.iter().map(|it| &it.loads))
    );
    // Without any load there is no legend.
    let why = why.trim_end_matches(": ");
    heading("LOAD OVER TIME", why, style) + &table.render(style.color)
}

fn bar(loads: &ClassLoads, highest: f64) -> String {
    loads.letters(highest, BAR_WIDTH)
}

/// What happened in a stretch, cut to what is left of the line.
fn marks(stretch: &TimeStretch<'_>, style: Style) -> String {
    let texts: Vec<&str> = stretch.marks.iter().map(|it| &*it.text).collect();
    let used = 2 + 7 + 2 + 6 + 2 + BAR_WIDTH + 2 + 7 + 2;
    let left = style.columns().saturating_sub(used);
    if left < MARKS_WIDTH_MIN && !texts.is_empty() {
        return "!".to_owned();
    }
    cut(&visible(&texts.join("; ")), left)
}
