//! Server and kernel statistics per transaction that differ between variants: the most informative
//! comparison, the most informative counters first.

use pgassay_core::comparison::Comparison;
use pgassay_core::counters;
use pgassay_core::run::Run;

use super::table::{Alignment, Table, TextStyle, cell, cut, inked, visible, wrap};
use super::{Style, heading};
use crate::number;
use crate::outline::{
    baseline_name, condition_title, differing, explained, most_differing_counters, variant_name,
};

/// The page shows the other rows.
const ROWS: usize = 8;
const NAME_WIDTH_MAX: usize = 44;

/// The section; empty if no counter differs.
pub(super) fn section(run: &Run, style: Style) -> String {
    let main_comparison = explained(run);
    let main_comparison = main_comparison.filter(|it| !differing(it).is_empty());
    let Some(shown) = main_comparison.or_else(|| most_differing_counters(run)) else {
        return String::new();
    };
    let title = format!(
        "server and kernel statistics per transaction: {} vs {}, {}",
        variant_name(run, shown.variant),
        baseline_name(run),
        condition_title(run, shown.condition)
    );
    let mut out = heading("STATISTICS", &title, style);
    out.push_str(&table(run, shown, style).render(style.color));
    let others = differing(shown).len().saturating_sub(ROWS);
    if others > 0 {
        let text = format!(
            "{} more differ; see the HTML report.",
            number::whole(others as f64)
        );
        out.push_str(&wrap(&text, style.columns(), "  ", "  "));
    }
    out
}

fn table(run: &Run, shown: &Comparison, style: Style) -> Table {
    let title_width = if style.columns() < 90 { 10 } else { 14 };
    let name_width = NAME_WIDTH_MAX.min(style.columns().saturating_sub(32 + 2 * title_width));
    let mut table = Table::new(&[
        Alignment::Left,
        Alignment::Right,
        Alignment::Right,
        Alignment::Right,
        Alignment::Right,
    ]);
    let titles = [
        "",
        &visible(baseline_name(run)),
        &visible(variant_name(run, shown.variant)),
        "difference",
        "±",
    ];
    table.row(
        titles
            .map(|title| inked(cut(title, title_width), TextStyle::Faint))
            .to_vec(),
    );
    for row in differing(shown).into_iter().take(ROWS) {
        let unit = counters::unit(&row.name);
        let half = (row.high - row.low) / 2.0;
        table.row(vec![
            cell(cut(&visible(counters::title(&row.name)), name_width)),
            cell(number::counter_value(row.baseline, unit)),
            cell(number::counter_value(row.variant, unit)),
            cell(number::signed_counter_value(row.difference, unit)),
            inked(number::counter_value(half, unit), TextStyle::Faint),
        ]);
    }
    table
}
