//! Instruction counts next to timed figures, one row per variant, and the functions behind differences.

use pgassay_account::instructions::{CountVerdict, VariantDifference};
use pgassay_record::run::Run;

use super::style::{Style, heading};
use super::table::{Alignment, NAME_WIDTH, Table, TextStyle, cell, inked, wrap};
use super::variant_names::short_names;
use crate::instructions::{
    InstructionRow, change, figure, method_sentence, no_verdict_reason, rows, signed,
};
use crate::number;

/// The page shows the other differences.
const EXPLAINED_MAX: usize = 3;
/// Functions named per difference.
const FUNCTIONS: usize = 4;
/// Columns left out on a narrow terminal, in this order: the ± of the difference, then the doubt.
const MAY_GO: [usize; 2] = [3, 4];

/// The section; empty without instruction counts.
pub(super) fn section(run: &Run, style: Style) -> String {
    let Some(costs) = &run.instructions else {
        return String::new();
    };
    let rows = rows(costs, Some(run));
    let timed = rows.iter().find_map(|row| row.timed);
    let timed = timed.map_or_else(String::new, |timed| {
        format!(
            " Server CPU and tps were timed with {}.",
            number::count(timed.clients.into(), "client")
        )
    });
    let mut out = heading(
        "INSTRUCTIONS",
        &format!("{}{timed}", method_sentence(costs)),
        style,
    );
    let mut table = table(&rows);
    for column in MAY_GO {
        if table.width() > style.columns() {
            table.remove_column(column);
        }
    }
    out.push_str(&table.render(style.color));
    let shown = costs
        .differences
        .iter()
        .filter(|it| it.difference.verdict == CountVerdict::Differs);
    for shown in shown.take(EXPLAINED_MAX) {
        out.push_str(&wrap(&explained(shown), style.columns(), "  ", "    "));
    }
    for what in &costs.counts.ignored {
        out.push_str(&wrap(
            &format!("Left out: {what}."),
            style.columns(),
            "  ",
            "    ",
        ));
    }
    out
}

fn table(rows: &[InstructionRow<'_>]) -> Table {
    let mut sides = vec![Alignment::Left];
    sides.extend([Alignment::Right; 4]);
    sides.push(Alignment::Left);
    sides.extend([Alignment::Right; 3]);
    let mut table = Table::new(&sides);
    let titles = [
        "",
        "count",
        "difference",
        "±",
        "change",
        "",
        "server CPU",
        "ratio",
        "tps ×",
    ];
    table.row(titles.map(|title| inked(title, TextStyle::Faint)).to_vec());
    let names: Vec<String> = rows.iter().map(|row| row.count.name.clone()).collect();
    for (row, name) in rows.iter().zip(short_names(&names, NAME_WIDTH)) {
        if row.difference.is_none() && !row.condition.is_empty() {
            table.across(cell(row.condition));
        }
        let of = |text: fn(&pgassay_account::instructions::Difference) -> String| {
            cell(row.difference.map_or_else(String::new, text))
        };
        let comparison = row.timed.and_then(|timed| timed.comparison);
        let ratio = |ratio: Option<&pgassay_account::comparison::Ratio>| {
            cell(ratio.map_or_else(String::new, |it| number::ratio(it.ratio)))
        };
        table.row(vec![
            cell(name),
            cell(figure(row.count.cost())),
            of(|it| signed(it.per_transaction)),
            of(|it| figure(it.margin)),
            of(|it| change(it.ratio)),
            inked(
                row.difference
                    .and_then(no_verdict_reason)
                    .unwrap_or_default(),
                TextStyle::Faint,
            ),
            cell(
                row.timed
                    .and_then(|it| it.point.server_cpu_us)
                    .map_or_else(String::new, number::micros),
            ),
            ratio(comparison.and_then(|it| it.server_cpu.as_ref())),
            ratio(comparison.map(|it| &it.tps)),
        ]);
    }
    table
}

/// `b vs a: +160.4: check_log_duration +86.0, …`.
fn explained(shown: &VariantDifference) -> String {
    let difference = &shown.difference;
    let per = |sum: i64| signed(difference.per_transaction_of(sum));
    let functions = difference.functions.iter();
    let mut parts: Vec<String> = functions
        .clone()
        .take(FUNCTIONS)
        .map(|row| format!("{}\u{a0}{}", row.name, per(row.instructions)))
        .collect();
    let rest: i64 = functions.skip(FUNCTIONS).map(|row| row.instructions).sum();
    parts.push(format!("rest\u{a0}{}", per(rest)));
    let condition = match shown.condition.as_str() {
        "" => String::new(),
        title => format!(", {title}"),
    };
    format!(
        "{} vs {}{condition}: {}: {}",
        shown.variant,
        shown.baseline,
        signed(difference.per_transaction),
        parts.join(", ")
    )
}
