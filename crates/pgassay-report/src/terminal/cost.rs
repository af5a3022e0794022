//! Where the difference in the server's CPU time lies: the most informative comparison in full, the
//! others in one line each.

use pgassay_account::comparison::{Comparison, CostDifference};
use pgassay_account::cost_row::{Change, CostRow};
use pgassay_record::run::Run;

use super::differences::{self, CostStyle, DifferenceTable};
use super::style::{Style, heading};
use super::table::{TextStyle, cut, inked, paint, visible, wrap};
use crate::outline::{
    ThroughputUnit, coarse_rows, comparison, condition_title, explained, most_informative,
    plus_minus_us, top_rows, variant_name, with_margin, within_noise_us,
};
use crate::{number, reliability, sentence};

/// Maximum rows of the coarse account.
const COARSE_ROWS: usize = 5;
const FUNCTION_ROWS: usize = 10;
/// Longer names are cut: C++ symbols can be arbitrarily long.
const NAME_WIDTH_MAX: usize = 34;
/// The marks (`increased`) leave too little room for names on a narrower terminal.
const MARKS_FROM: usize = 80;

/// The section; empty if no comparison has an account of costs.
pub(super) fn section(run: &Run, style: Style) -> String {
    let Some(main_comparison) = explained(run) else {
        return String::new();
    };
    let Some(cost) = &main_comparison.cost else {
        return String::new();
    };
    let mut out = heading(
        "COST",
        &format!(
            "server CPU time in µs per {}: {}",
            ThroughputUnit::of(run).one(),
            differences::title(run, main_comparison)
        ),
        style,
    );
    let has_marks = style.columns() >= MARKS_FROM;
    out.push_str(&table(run, main_comparison, cost, style).render(has_marks, style));
    out.push_str(&noise_limit(run, main_comparison, cost, style));
    out.push_str(&others(run, main_comparison, style));
    out
}

/// The coarse account, its total, and the functions, in one table so that the columns line up.
fn table(
    run: &Run,
    comparison: &Comparison,
    cost: &CostDifference,
    style: Style,
) -> DifferenceTable {
    let (kind, coarse) = coarse_rows(cost);
    let has_coarse = kind != "function";
    let names = if has_coarse { kind } else { "" };
    let mut table = DifferenceTable::new(run, comparison, ["", names], style);
    if has_coarse {
        rows(&mut table, coarse, COARSE_ROWS, kind, style);
        row(&mut table, "", "total", &cost.total, 0.0, style);
        // A sum of functions of which none is shown says nothing.
        if top_rows(&cost.functions, FUNCTION_ROWS, false)
            .shown
            .is_empty()
        {
            return table;
        }
        table.subtitle("function (self)");
    }
    rows(
        &mut table,
        &cost.functions,
        FUNCTION_ROWS,
        "function",
        style,
    );
    if !has_coarse {
        row(&mut table, "", "total", &cost.total, 0.0, style);
    }
    table
}

/// The largest rows of a list, and one row with the sum of the others, so that the rows add up.
fn rows(table: &mut DifferenceTable, rows: &[CostRow], count: usize, kind: &str, style: Style) {
    let top = top_rows(rows, count, kind != "function");
    let largest_us = top.largest_us();
    for shown in &top.shown {
        let mark = sentence::change_word(shown.change);
        row(table, mark, &shown.name, shown, largest_us, style);
    }
    if top.left_out > 0 {
        table.rest(&more(top.left_out, kind), top.rest_us);
    }
}

/// The width that the other columns leave for a name.
fn name_width(style: Style) -> usize {
    let others = if style.columns() < MARKS_FROM { 46 } else { 57 };
    NAME_WIDTH_MAX.min(style.columns().saturating_sub(others))
}

/// `11 more functions`.
fn more(number: usize, kind: &str) -> String {
    format!("{number} more {kind}{}", if number == 1 { "" } else { "s" })
}

/// One row; its bar is relative to the largest difference of the list.
fn row(
    table: &mut DifferenceTable,
    mark: &str,
    name: &str,
    row: &CostRow,
    largest_us: f64,
    style: Style,
) {
    let cost_style = CostStyle {
        largest_us,
        difference: TextStyle::Plain,
    };
    let name = cut(&visible(name), name_width(style));
    table.cost(
        inked(mark, differences::ink(row.change)),
        &name,
        row,
        cost_style,
    );
}

/// The noise limit of function differences, and why some rows have no marks.
fn noise_limit(run: &Run, comparison: &Comparison, cost: &CostDifference, style: Style) -> String {
    let all = cost
        .phases
        .iter()
        .chain(&cost.subsystems)
        .chain(&cost.functions);
    let is_marked = all
        .into_iter()
        .any(|row| row.change != Change::Inconclusive);
    let of_marks = (is_marked && style.columns() >= MARKS_FROM)
        .then(|| "Marked rows differ significantly after correction for the number of rows. The ± are uncorrected, so an \
         unmarked difference can exceed its ±."
            .to_owned());
    let text = of_marks.into_iter();
    let text = text.chain([reliability::noise_of_functions(cost)]);
    let text = text.chain(reliability::naming(cost));
    let text = text.chain(reliability::other_totals(run, comparison));
    let text = text.collect::<Vec<_>>().join(" ");
    let text = wrap(&text, style.columns(), "  ", "  ");
    paint(text.trim_end(), TextStyle::Faint, style.color) + "\n"
}

/// One line for every other variant, under the condition shown in full or else the most informative.
fn others(run: &Run, shown: &Comparison, style: Style) -> String {
    let mut lines = String::new();
    for variant in (1..run.plan.variants.len()).filter(|variant| *variant != shown.variant) {
        let same = comparison(run, shown.condition, variant).filter(|it| it.cost.is_some());
        let any = || {
            most_informative(
                run,
                run.comparisons.iter().filter(|it| it.variant == variant),
            )
        };
        if let Some(other) = same.or_else(any) {
            lines.push_str(&in_a_line(run, other, style));
        }
    }
    lines
}

/// `prepared, plain, 1 client: −17.1 ±0.4 µs/tx: parse −4.3, plan −7.7, rest −5.1, rows within noise …`.
fn in_a_line(run: &Run, comparison: &Comparison, style: Style) -> String {
    let Some(cost) = &comparison.cost else {
        return String::new();
    };
    let (_, coarse) = coarse_rows(cost);
    // With a single pair, no row is known to exceed noise.
    let is_noise_known = plus_minus_us(&cost.total).is_some();
    let top = top_rows(coarse, 4, !is_noise_known);
    let mut parts: Vec<String> = top
        .shown
        .iter()
        .map(|row| {
            format!(
                "{}\u{a0}{}",
                row.name,
                number::signed_micros(row.difference_us)
            )
        })
        .collect();
    let within_noise = if is_noise_known {
        within_noise_us(coarse)
    } else {
        0.0
    };
    let beyond = top.rest_us[2] - within_noise;
    if number::signed_micros(beyond) != "0.00" {
        parts.push(format!("rest\u{a0}{}", number::signed_micros(beyond)));
    }
    if is_noise_known && parts.is_empty() {
        parts.push("no row differs significantly".to_owned());
    } else if is_noise_known {
        parts.push(format!(
            "rows\u{a0}within\u{a0}noise\u{a0}{}",
            number::signed_micros(within_noise)
        ));
    }
    let text = format!(
        "{}, {}: {} µs/{}: {}",
        variant_name(run, comparison.variant),
        condition_title(run, comparison.condition),
        with_margin(&cost.total),
        ThroughputUnit::of(run).short(),
        parts.join(", ")
    );
    wrap(&text, style.columns(), "  ", "    ")
}
