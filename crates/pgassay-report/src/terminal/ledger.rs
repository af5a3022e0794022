//! Where the difference in response time lies: one comparison in full, the others in one line each.

use pgassay_account::comparison::Comparison;
use pgassay_account::cost_row::CostRow;
use pgassay_account::ledger::{Ledger, LedgerDifference, LedgerRow, Part};
use pgassay_record::run::Run;

use super::differences::{self, CostStyle, DifferenceTable};
use super::style::{Style, heading};
use super::table::{TextStyle, cut, inked, paint, visible, wrap};
use crate::ledger::{
    background, explanation, failed_checks, group_name, ledger, nature_word, response_times,
    tier_of_run,
};
use crate::outline::{
    compared_variants, condition_title, explained_ledger, variant_name, with_margin, yields,
};
use crate::{number, tail};

/// Rows of the full account, and rows named in a line.
const ROWS: usize = 9;
const ROWS_IN_LINE: usize = 3;
/// Comparisons that get a line; the page has all of them.
const LINES: usize = 6;

/// The section; empty if no comparison has a ledger.
pub(super) fn section(run: &Run, style: Style) -> String {
    let Some(main_comparison) = explained_ledger(run) else {
        return String::new();
    };
    let Some(difference) = &main_comparison.ledger else {
        return String::new();
    };
    let title = format!(
        "where the response time goes, µs per transaction{}: {}",
        yields(run, main_comparison),
        differences::title(run, main_comparison)
    );
    let mut out = heading("LEDGER", &title, style);
    let ledgers = compared_variants(run, main_comparison)
        .map(|variant| ledger(run, main_comparison.condition, variant));
    let shown: Vec<&Ledger> = ledgers.into_iter().flatten().collect();
    let tier = wrap(&tier_of_run(run, &shown), style.columns(), "  ", "    ");
    out.push_str(&(paint(tier.trim_end(), TextStyle::Faint, style.color) + "\n"));
    out.push_str(&table(run, main_comparison, difference, style).render(true, style));
    out.push_str(&notes(run, main_comparison, difference, style));
    out.push_str(&others(run, main_comparison, style));
    out
}

fn table(
    run: &Run,
    main_comparison: &Comparison,
    difference: &LedgerDifference,
    style: Style,
) -> DifferenceTable {
    let mut table = DifferenceTable::new(run, main_comparison, ["kind", ""], style);
    let (shown, rest) = split(&difference.groups);
    let largest_us = shown
        .first()
        .map_or(0.0, |row| row.cost.difference_us.abs());
    let name_width = style.columns().saturating_sub(56).min(34);
    for row in shown {
        let name = group_name(row.part, &row.cost.name);
        let name = cut(&visible(&name), name_width);
        line(
            &mut table,
            nature_word(row.nature),
            &name,
            &row.cost,
            largest_us,
        );
    }
    if !rest.is_empty() {
        let sum = |of: fn(&CostRow) -> f64| rest.iter().map(|row| of(&row.cost)).sum::<f64>();
        let sums = [
            sum(|row| row.baseline_us),
            sum(|row| row.variant_us),
            sum(|row| row.difference_us),
        ];
        table.rest(&format!("{} more rows", rest.len()), sums);
    }
    line(&mut table, "", "response time", &difference.response, 0.0);
    let between = &difference.between_transactions;
    if number::micros(between.baseline_us.max(between.variant_us)) != "0.00" {
        let name = cut("+ between transactions", name_width);
        line(&mut table, "", &name, between, 0.0);
    }
    table
}

/// The rows that are shown, and those that are summed into one.
fn split(groups: &[LedgerRow]) -> (&[LedgerRow], &[LedgerRow]) {
    // Showing one more row takes no more room than a sum of that one row.
    let shown = if groups.len() <= ROWS + 1 {
        groups.len()
    } else {
        ROWS
    };
    groups.split_at(shown)
}

fn line(table: &mut DifferenceTable, mark: &str, name: &str, row: &CostRow, largest_us: f64) {
    let style = CostStyle {
        largest_us,
        difference: differences::ink(row.change),
    };
    table.cost(inked(mark, TextStyle::Faint), name, row, style);
}

/// Whether the rows explain the difference, the checks, background processes and the tail.
fn notes(
    run: &Run,
    main_comparison: &Comparison,
    difference: &LedgerDifference,
    style: Style,
) -> String {
    let mut lines = vec![explanation(main_comparison.verdict, difference)];
    let ledgers = compared_variants(run, main_comparison)
        .map(|variant| ledger(run, main_comparison.condition, variant));
    let ledgers: Vec<&Ledger> = ledgers.into_iter().flatten().collect();
    lines.extend(response_times(run, &ledgers));
    let failed: Vec<String> = ledgers
        .iter()
        .filter_map(|it| failed_checks(run, it))
        .collect();
    if failed.is_empty() {
        lines.push("All rows add up to their totals (the HTML report has the checks).".to_owned());
    }
    lines.extend(failed);
    for ledger in &ledgers {
        let processes = background(ledger);
        if !processes.is_empty() {
            lines.push(format!(
                "{}: background processes, CPU µs per transaction in timed trials: {processes}",
                variant_name(run, ledger.variant)
            ));
        }
    }
    lines.extend(of_waiting_server(difference).map(str::to_owned));
    lines.extend(tail::lines(run, &ledgers));
    let lines = lines
        .iter()
        .map(|line| wrap(line, style.columns(), "  ", "    "));
    let text: String = lines.collect();
    paint(text.trim_end(), TextStyle::Faint, style.color) + "\n"
}

/// What a row of the client is, if there is one: its name does not say it.
fn of_waiting_server(difference: &LedgerDifference) -> Option<&'static str> {
    let mut rows = difference.groups.iter();
    let is_client = |it: &LedgerRow| it.part == Part::Client && it.cost.name.starts_with("client");
    rows.any(is_client)
        .then_some("Client rows include only time during which the server waits for the client.")
}

/// One line for each of the other comparisons, at most [`LINES`].
fn others(run: &Run, shown: &Comparison, style: Style) -> String {
    let mut others: Vec<&Comparison> = run
        .comparisons
        .iter()
        .filter(|it| {
            it.ledger.is_some() && (it.condition, it.variant) != (shown.condition, shown.variant)
        })
        .collect();
    // The same variant under other conditions comes before other variants.
    others.sort_by_key(|it| it.variant != shown.variant);
    let mut lines = String::new();
    if !others.is_empty() {
        lines.push_str("  Other comparisons, change in response time:\n");
    }
    for other in others.iter().take(LINES) {
        lines.push_str(&in_a_line(run, other, style));
    }
    if others.len() > LINES {
        let more = number::count((others.len() - LINES) as u64, "more comparison");
        let text = format!("See the HTML report for {more}.");
        lines.push_str(&wrap(&text, style.columns(), "  ", "    "));
    }
    lines
}

/// What the reader of one line must know about its rows; empty if they explain the difference.
fn caution(difference: &LedgerDifference) -> &'static str {
    match difference.differs() {
        true if difference.explained => "",
        true => " (not explained)",
        false => " (within noise)",
    }
}

/// `prepared, 16 clients: −79.2 ±31 µs: run queue −87.6, CPU: plan −5.4, rest +13.8, …`.
fn in_a_line(run: &Run, comparison: &Comparison, style: Style) -> String {
    let Some(difference) = &comparison.ledger else {
        return String::new();
    };
    let (shown, rest) = difference
        .groups
        .split_at(difference.groups.len().min(ROWS_IN_LINE));
    let named = |name: &str, us: f64| format!("{name}\u{a0}{}", number::signed_micros(us));
    let row = |row: &LedgerRow| {
        named(
            &group_name(row.part, &row.cost.name),
            row.cost.difference_us,
        )
    };
    let is_unexplained = |row: &&LedgerRow| row.part == Part::Unexplained;
    let (unexplained, rest): (Vec<&LedgerRow>, Vec<_>) = rest.iter().partition(is_unexplained);
    let rest_us: f64 = rest.iter().map(|row| row.cost.difference_us).sum();
    let mut parts: Vec<String> = shown.iter().map(row).collect();
    parts.push(named("rest", rest_us));
    parts.extend(unexplained.into_iter().map(row));
    let text = format!(
        "{}, {}: {} µs{}: {}",
        variant_name(run, comparison.variant),
        condition_title(run, comparison.condition),
        with_margin(&difference.response),
        caution(difference),
        parts.join(", ")
    );
    wrap(&text, style.columns(), "  ", "    ")
}
