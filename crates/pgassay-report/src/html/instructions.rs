//! Counted instructions: a table beside the time, then waterfalls and functions of every difference.

use maud::{Markup, html};
use pgassay_core::instructions::{
    Difference, FunctionChange, InstructionCosts, VariantCount, VariantDifference, Verdict,
};
use pgassay_core::run::Run;

use super::waterfall::{Part, Unit};
use super::{flame, page, waterfall};
use crate::instructions::{self, Row, change, doubt, figure, signed};
use crate::number;

/// More functions than this are summed in the last row.
const FUNCTIONS_MAX: usize = 25;
/// With more comparisons than this only the first stands open.
const OPEN_MAX: usize = 2;

const INSTRUCTIONS: Unit = Unit {
    name: "",
    per_transaction: "instructions/tx",
    figure,
    signed,
};

/// The section of a run that was counted too.
pub(super) fn section(run: &Run) -> Markup {
    html! {
        @if let Some(costs) = &run.instructions { (counted(costs, Some(run))) }
    }
}

/// The page of counts alone.
pub fn counted_html(costs: &InstructionCosts, version: &str) -> String {
    let title = &costs.counts.question;
    let opening = html! {
        header {
            p.kicker { "pgassay count" }
            h1 { (title) }
        }
    };
    let main = html! { (counted(costs, None)) (flame::counted(costs)) };
    let footer =
        html! { "Made by pgassay " (version) ". This page is one file and fetches nothing." };
    page(version, title, &opening, &main, &footer)
}

fn counted(costs: &InstructionCosts, run: Option<&Run>) -> Markup {
    let rows = instructions::rows(costs, run);
    let told = || {
        let all = costs.differences.iter();
        all.filter(|it| it.difference.verdict != Verdict::NoDifference)
    };
    let is_open = told().count() <= OPEN_MAX;
    html! {
        section #instructions {
            h2 { "Instructions per transaction" }
            p.lead {
                (instructions::how(costs))
                " It is the cost of the work, not the time: the kernel, waiting, cache misses and "
                "other clients are not in it. Flame graphs of it come from a round of their own, so "
                "their sums differ from the table's by what repeating changes."
            }
            @for what in &costs.counts.left_out { p.faint { "Left out: " (what) "." } }
            (table(&rows))
            @for (at, told) in told().enumerate() {
                (account(costs, told, flame_place(costs, told, run), is_open || at == 0))
            }
        }
    }
}

/// Where the flame graph has a comparison: its condition and variant. Counted conditions stand
/// behind those of the plan.
fn flame_place(
    costs: &InstructionCosts,
    told: &VariantDifference,
    run: Option<&Run>,
) -> Option<[usize; 2]> {
    let before = run.map_or(0, |run| run.plan.conditions.len());
    let conditions = &costs.counts.conditions;
    let at = conditions
        .iter()
        .position(|it| it.title == told.condition)?;
    let variants = &conditions[at].variants;
    let variant = variants.iter().position(|it| it.name == told.variant)?;
    variants[variant]
        .tree
        .is_some()
        .then_some([before + at, variant])
}

/// Counted and timed, a row a variant.
fn table(rows: &[Row<'_>]) -> Markup {
    let is_timed = rows.iter().any(|row| row.timed.is_some());
    let has_conditions = rows.iter().any(|row| !row.condition.is_empty());
    html! {
        div.scroll { table {
            caption {
                "Counted: instructions per transaction."
                @if is_timed {
                    " Timed, under the condition with the fewest clients: server CPU in µs per "
                    "transaction, throughput against the baseline."
                }
            }
            thead { tr {
                @if has_conditions { th scope="col" { "condition" } }
                th scope="col" { "variant" }
                @for title in ["instructions", "±", "difference", "±", "ratio"] {
                    th.n scope="col" { (title) }
                }
                th scope="col" { "" }
                @if is_timed {
                    @for title in ["clients", "server CPU", "CPU ratio", "tps ratio"] {
                        th.n scope="col" { (title) }
                    }
                }
            } }
            tbody { @for row in rows {
                tr.first[row.difference.is_none()] {
                    @if has_conditions { td { @if row.difference.is_none() { (row.condition) } } }
                    td { (row.count.name) }
                    td.n { (figure(row.count.cost())) }
                    td.n.faint { (figure(row.count.spread())) }
                    @match row.difference {
                        Some(difference) => {
                            td.n { (signed(difference.per_transaction)) }
                            td.n.faint { (figure(difference.repeatability)) }
                            td.n { (change(difference.ratio)) }
                            td.faint { (doubt(difference).unwrap_or_default()) }
                        }
                        None => { td {} td {} td {} td {} }
                    }
                    @if is_timed { (timed(row)) }
                }
            } }
        } }
    }
}

fn timed(row: &Row<'_>) -> Markup {
    html! {
        @match row.timed {
            Some(timed) => {
                td.n { (timed.clients) }
                td.n { @if let Some(cpu_us) = timed.point.server_cpu_us { (number::micros(cpu_us)) } }
                @for ratio in [
                    timed.comparison.and_then(|it| it.server_cpu.as_ref()),
                    timed.comparison.map(|it| &it.tps),
                ] {
                    td.n { @if let Some(ratio) = ratio { (number::ratio(ratio.ratio)) } }
                }
            }
            None => { td {} td {} td {} td {} }
        }
    }
}

/// Waterfalls and functions of one difference.
fn account(
    costs: &InstructionCosts,
    told: &VariantDifference,
    flame: Option<[usize; 2]>,
    open: bool,
) -> Markup {
    let sides = [&told.baseline, &told.variant].map(|name| {
        let mut conditions = costs.counts.conditions.iter();
        let condition = conditions.find(|it| it.title == told.condition);
        condition.and_then(|it| it.variants.iter().find(|it| it.name == *name))
    });
    let totals = sides.map(|side| side.map_or(0.0, VariantCount::cost));
    let names = [told.baseline.as_str(), told.variant.as_str()];
    let difference = &told.difference;
    let subsystems: Vec<Part> = difference
        .subsystems
        .iter()
        .map(|row| part(difference, row.name.clone(), row.instructions))
        .collect();
    let functions: Vec<Part> = difference
        .functions
        .iter()
        .filter(|row| row.instructions != 0)
        .map(|row| part(difference, row.name.clone(), row.instructions))
        .collect();
    let chart = |kind: &str, parts: &[Part]| {
        let kind = format!("{kind}, instructions per transaction");
        waterfall::drawing(&kind, INSTRUCTIONS, names, totals, parts)
    };
    html! {
        details open[open] {
            summary {
                b { (told.variant) }
                @if !told.condition.is_empty() { ", " (told.condition) }
                ": "
                span.figure {
                    (signed(difference.per_transaction)) " ±" (figure(difference.repeatability))
                    " instructions/tx"
                }
                @if let Some(doubt) = doubt(difference) { ", " (doubt) }
            }
            div.charts.wide {
                (chart("subsystem", &subsystems))
                (chart("function", &functions))
            }
            (functions_table(difference))
            @if let Some([condition, variant]) = flame {
                p { a.to-flame href="#flame" data-condition=(condition) data-variant=(variant) {
                    "See its flame graph"
                } }
            }
        }
    }
}

/// Counts are exact: nothing is below noise but the sum of all.
fn part(difference: &Difference, name: String, instructions: i64) -> Part {
    Part {
        name,
        difference: difference.per_transaction_of(instructions),
        interval: None,
        plus_minus: None,
        resolved: true,
    }
}

fn functions_table(difference: &Difference) -> Markup {
    let functions = &difference.functions;
    let (shown, others) = functions.split_at(functions.len().min(FUNCTIONS_MAX));
    let largest = shown.first().map_or(1, |row| row.instructions.abs()).max(1);
    let per = |sum: i64| signed(difference.per_transaction_of(sum));
    let rest: i64 = others.iter().map(|row| row.instructions).sum();
    html! {
        div.scroll { table.functions {
            caption { "By function, instructions per transaction. The rows add up exactly." }
            thead { tr {
                th scope="col" { "function" } th scope="col" { "subsystem" }
                th.n scope="col" { "itself" } th.n scope="col" { "with callees" }
                th scope="col" { span.hidden { "size" } }
            } }
            tbody {
                @for row in shown { (function(row, largest, per)) }
                @if !others.is_empty() {
                    tr.rest { td { (others.len()) " more" } td {} td.n { (per(rest)) } td {} td {} }
                }
                tr.rest {
                    td { "total" } td {} td.n { (per(difference.instructions)) } td {} td {}
                }
            }
        } }
    }
}

fn function(row: &FunctionChange, largest: i64, per: impl Fn(i64) -> String) -> Markup {
    let share = row.instructions.abs() as f64 / largest as f64 * 100.0;
    let class = if row.instructions > 0 { "up" } else { "down" };
    html! {
        tr {
            td {
                code { (row.name) }
                @if row.object != "postgres" { " " span.faint { (row.object) } }
            }
            td { (row.subsystem) }
            td.n { (per(row.instructions)) }
            td.n.faint { (per(row.inclusive)) }
            td.bar { div class=(class) style=(format!("width:{share:.1}%")) {} }
        }
    }
}
