//! All verdicts at a glance: one row per condition, one column per variant.

use pgassay_record::run::Run;

use super::style::Style;
use super::table::{Alignment, NAME_WIDTH, Table, cell, inked, wrap};
use super::variant_names::short_names;
use crate::outline::{comparison, condition_title};
use crate::{number, sentence};

/// The matrix with its key; empty if there are fewer than [`sentence::MATRIX_CELLS_MIN`] comparisons or a
/// single condition, or if it does not fit.
pub(super) fn section(run: &Run, style: Style) -> String {
    if !sentence::has_matrix(run) {
        return String::new();
    }
    let variants = 1..run.plan.variants.len();
    let mut alignments = vec![Alignment::Left];
    alignments.extend(variants.clone().map(|_| Alignment::Left));
    let mut table = Table::new(&alignments);
    let names = short_names(&run.plan.variants, NAME_WIDTH);
    let titles = names.into_iter().skip(1).map(cell);
    table.row([cell("")].into_iter().chain(titles).collect());
    for condition in 0..run.plan.conditions.len() {
        let mut row = vec![cell(condition_title(run, condition))];
        row.extend(variants.clone().map(|variant| {
            comparison(run, condition, variant).map_or_else(
                || cell(""),
                |it| {
                    let mark = sentence::verdict_mark(it.verdict);
                    let text = format!("{mark} {}", number::ratio(it.tps.ratio));
                    inked(text, super::answer::ink(it.verdict))
                },
            )
        }));
        table.row(row);
    }
    if table.width() > style.columns() {
        return String::new();
    }
    let key = wrap(&sentence::matrix_key(run), style.columns(), "  ", "  ");
    format!("{}{key}", table.render(style.color))
}
