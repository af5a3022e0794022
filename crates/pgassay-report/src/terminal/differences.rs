//! The table of a comparison: a row's figures for baseline and variant, their difference, and its error.

use pgassay_account::comparison::Comparison;
use pgassay_account::cost_row::{Change, CostRow};
use pgassay_record::run::Run;

use super::style::Style;
use super::table::{Alignment, Cell, Table, TextStyle, bar, cell, cut, inked};
use super::variant_names::short_names;
use crate::number;
use crate::outline::{baseline_name, compared_variants, condition_title, plus_minus, variant_name};

const MARK_COLUMN: usize = 0;
/// Left out if the table does not fit.
const BAR_COLUMN: usize = 6;
const BAR_WIDTH: usize = 16;

/// The columns: mark, name, baseline, variant, difference, ±, bar.
pub(super) struct DifferenceTable {
    table: Table,
    columns: usize,
}

impl DifferenceTable {
    /// A table with a row of titles; `[mark, names]` are those of the first two columns.
    pub(super) fn new(
        run: &Run,
        comparison: &Comparison,
        [mark, names]: [&str; 2],
        style: Style,
    ) -> Self {
        let mut sides = vec![Alignment::Left, Alignment::Left];
        sides.extend([Alignment::Right; 4]);
        sides.push(Alignment::Left);
        let mut table = Table::new(&sides);
        let width = title_width(style);
        let short = short_names(&run.plan.variants, width);
        let [baseline, variant] =
            compared_variants(run, comparison).map(|it| short.get(it).map_or("?", String::as_str));
        let titles = [mark, names, baseline, variant, "difference", "±", ""];
        table.row(
            titles
                .map(|title| inked(cut(title, width), TextStyle::Faint))
                .to_vec(),
        );
        Self {
            table,
            columns: style.columns(),
        }
    }

    /// Adds a title over the names that follow.
    pub(super) fn subtitle(&mut self, title: &str) {
        let mut cells = vec![cell(""); 7];
        cells[1] = inked(title, TextStyle::Faint);
        self.table.row(cells);
    }

    /// Adds a row: its name, the figures of baseline and variant, the difference and its error.
    pub(super) fn row(&mut self, name: &str, figures: [String; 2], difference: [String; 2]) {
        let [baseline, variant] = figures.map(cell);
        let [difference, error] = difference;
        self.table.row(vec![
            cell(""),
            cell(name),
            baseline,
            variant,
            cell(difference),
            inked(error, TextStyle::Faint),
            cell(""),
        ]);
    }

    /// Adds a row of a cost, with a bar relative to the largest difference.
    pub(super) fn cost(&mut self, mark: Cell, name: &str, row: &CostRow, style: CostStyle) {
        let share = if style.largest_us > 0.0 {
            row.difference_us.abs() / style.largest_us
        } else {
            0.0
        };
        self.table.row(vec![
            mark,
            cell(name),
            cell(number::micros(row.baseline_us)),
            cell(number::micros(row.variant_us)),
            inked(number::signed_micros(row.difference_us), style.difference),
            inked(plus_minus(row), TextStyle::Faint),
            inked(bar(share, BAR_WIDTH), ink(row.change)),
        ]);
    }

    /// Adds a row with the sums of the rows that are not shown.
    pub(super) fn rest(&mut self, name: &str, [baseline_us, variant_us, difference_us]: [f64; 3]) {
        self.table.row(vec![
            cell(""),
            inked(name, TextStyle::Faint),
            cell(number::micros(baseline_us)),
            cell(number::micros(variant_us)),
            cell(number::signed_micros(difference_us)),
            cell(""),
            cell(""),
        ]);
    }

    /// The table's lines, without bars if they do not fit.
    pub(super) fn render(mut self, has_marks: bool, style: Style) -> String {
        if self.table.width() > self.columns {
            self.table.remove_column(BAR_COLUMN);
        }
        if !has_marks {
            self.table.remove_column(MARK_COLUMN);
        }
        self.table.render(style.color)
    }
}

/// The appearance of a cost's row.
#[derive(Debug, Clone, Copy)]
pub(super) struct CostStyle {
    /// The largest difference of the rows with bars; 0 for no bar.
    pub(super) largest_us: f64,
    /// The color of the difference.
    pub(super) difference: TextStyle,
}

/// The color of a change.
pub(super) fn ink(change: Change) -> TextStyle {
    match change {
        Change::Added | Change::Increased => TextStyle::Bad,
        Change::Decreased | Change::Removed => TextStyle::Good,
        Change::Inconclusive => TextStyle::Faint,
    }
}

/// The width of the columns with the variants' names.
pub(super) fn title_width(style: Style) -> usize {
    if style.columns() < 90 { 10 } else { 14 }
}

/// `prepared vs simple, 1 client`.
pub(super) fn title(run: &Run, comparison: &Comparison) -> String {
    format!(
        "{} vs {}, {}",
        variant_name(run, comparison.variant),
        baseline_name(run, comparison.variant),
        condition_title(run, comparison.condition)
    )
}
