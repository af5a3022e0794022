//! Server and kernel statistics per transaction that differ between variants: the most informative
//! comparison, the most informative counters first.

use pgassay_account::comparison::Comparison;
use pgassay_account::counters;
use pgassay_record::run::Run;

use super::differences::{self, DifferenceTable};
use super::style::{Style, heading};
use super::table::{cut, visible, wrap};
use crate::number;
use crate::outline::{differing, explained, most_differing_counters, yields};

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
        "server and kernel statistics per transaction{}: {}",
        yields(run, shown),
        differences::title(run, shown)
    );
    let mut out = heading("STATISTICS", &title, style);
    out.push_str(&table(run, shown, style).render(false, style));
    let others = differing(shown).len().saturating_sub(ROWS);
    if others > 0 {
        let text = match others {
            1 => "1 more figure differs; see the HTML report.".to_owned(),
            _ => format!(
                "{} more figures differ; see the HTML report.",
                number::whole(others as f64)
            ),
        };
        out.push_str(&wrap(&text, style.columns(), "  ", "  "));
    }
    out
}

fn table(run: &Run, shown: &Comparison, style: Style) -> DifferenceTable {
    let others = 32 + 2 * differences::title_width(style);
    let name_width = NAME_WIDTH_MAX.min(style.columns().saturating_sub(others));
    let mut table = DifferenceTable::new(run, shown, ["", ""], style);
    for row in differing(shown).into_iter().take(ROWS) {
        let unit = counters::unit(&row.name);
        let half = (row.high - row.low) / 2.0;
        table.row(
            &cut(&visible(counters::title(&row.name)), name_width),
            [row.baseline, row.variant].map(|figure| number::counter_value(figure, unit)),
            [
                number::signed_counter_value(row.difference, unit),
                number::counter_value(half, unit),
            ],
        );
    }
    table
}
