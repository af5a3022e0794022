//! Ledgers: a bar for every point's response time, and for each comparison the waterfall from the
//! baseline's response time to the variant's, with its rows and consistency checks.

use maud::{Markup, html};
use pgassay_account::comparison::Comparison;
use pgassay_account::cost_row::CostRow;
use pgassay_account::ledger::{Ledger, LedgerDifference, LedgerRow, Nature, Part};
use pgassay_record::run::Run;

use super::scale::{Scale, percent};
use super::{tail, waterfall};
use crate::ledger::{
    background, checks, explanation, group_name, ledger, nature_word, response_times, row_name,
    tier_of_run,
};
use crate::number;
use crate::outline::{
    baseline_name, compared_variants, condition_title, explained_ledger, plus_minus, variant_name,
    with_margin, yields,
};

/// More rows than this are summed in the last one.
const ROWS_MAX: usize = 25;

/// The section; empty if no point has a ledger.
pub(super) fn section(run: &Run) -> Markup {
    let open = explained_ledger(run);
    let mut accounts: Vec<(&Comparison, &LedgerDifference)> = run
        .comparisons
        .iter()
        .filter_map(|it| it.ledger.as_ref().map(|ledger| (it, ledger)))
        .collect();
    accounts.sort_by_key(|(comparison, _)| open != Some(*comparison));
    html! {
        @if !run.ledgers.is_empty() {
            section #ledger {
                h2 { "Where the response time goes" }
                p.lead {
                    "The time of all backends, divided by the number of transactions. Every µs of a "
                    "transaction is on CPU, in a run queue, blocked inside the server, or with the "
                    "client, so the rows add up to the response time. " b { "Service" }
                    " is work by a CPU or a device. " b { "Queueing" }
                    " is waiting behind other work, and decreases when that work does. "
                    b { "Client CPU" } " is counted only while the server waits for its client."
                }
                p.faint { (tier_of_run(run, &run.ledgers.iter().collect::<Vec<_>>())) "." }
                (bars(run))
                @for (comparison, difference) in accounts {
                    (account(run, comparison, difference, open == Some(comparison)))
                }
                @if run.comparisons.iter().all(|it| it.ledger.is_none()) {
                    @for ledger in &run.ledgers { p.faint { (checks(run, ledger)) } }
                    (tail::table(run, &run.ledgers.iter().collect::<Vec<_>>()))
                }
            }
        }
    }
}

/// CSS class and name of the segments of a bar.
const KINDS: [(&str, &str); 5] = [
    ("cpu", "on CPU"),
    ("queue", "run queue"),
    ("blocked", "blocked in the server"),
    ("client", "client"),
    ("noise", "unexplained"),
];

fn kind(part: Part) -> Option<usize> {
    match part {
        // Running also includes time in the run queue.
        Part::OnCpu | Part::Running => Some(0),
        Part::RunQueue => Some(1),
        Part::Blocked => Some(2),
        Part::Client => Some(3),
        Part::Unexplained => Some(4),
        Part::Between => None,
    }
}

/// A bar for each point, by condition.
fn bars(run: &Run) -> Markup {
    html! {
        figure {
            figcaption {
                "Mean response time, µs: "
                @for (class, name) in KINDS { span class={ "key part-" (class) } { (name) } " " }
            }
            div.waterfall {
                @for condition in 0..run.plan.conditions.len() {
                    (bars_of(run, condition))
                }
            }
        }
    }
}

fn bars_of(run: &Run, condition: usize) -> Markup {
    let ledgers: Vec<&Ledger> = run
        .ledgers
        .iter()
        .filter(|it| it.condition == condition)
        .collect();
    let longest_us = ledgers.iter().map(|it| it.response_us).fold(0.0, f64::max);
    let scale = Scale::linear(0.0, longest_us.max(f64::MIN_POSITIVE) * 1.03);
    html! {
        @if !ledgers.is_empty() { h3 { (condition_title(run, condition)) } }
        @for ledger in ledgers {
            div.row {
                span.name { (variant_name(run, ledger.variant)) }
                svg height="22" role="img" aria-label=(aria_label(ledger)) {
                    @for (class, title, from_us, us) in segments(ledger) {
                        rect class={ "part-" (class) } x=(percent(scale.place(from_us))) y="3"
                            height="16" width=(percent(scale.place(us))) {
                            title { (title) }
                        }
                    }
                }
                span.figure { (number::micros(ledger.response_us)) " µs" }
            }
        }
    }
}

/// Class, text, start and length of each segment.
fn segments(ledger: &Ledger) -> Vec<(&'static str, String, f64, f64)> {
    let groups = ledger.groups();
    let mut at_us = 0.0;
    let mut segments = Vec::new();
    for (index, (class, _)) in KINDS.into_iter().enumerate() {
        let of_kind = || groups.iter().filter(|row| kind(row.part) == Some(index));
        let us: f64 = of_kind().map(|row| row.us).sum();
        if us > 0.0 {
            let words: Vec<String> = of_kind()
                .map(|row| {
                    let name = group_name(row.part, &row.mechanism);
                    format!("{name} {}", number::micros(row.us))
                })
                .collect();
            segments.push((class, words.join(", "), at_us, us));
            at_us += us;
        }
    }
    segments
}

/// The bar as text, for screen readers.
fn aria_label(ledger: &Ledger) -> String {
    let part = |part: Part, name: &str| {
        let us = ledger.part_us(part);
        (us > 0.0).then(|| format!("{name} {} µs", number::micros(us)))
    };
    let parts: Vec<String> = [
        part(Part::OnCpu, "on CPU"),
        part(Part::Running, "on CPU or in run queue"),
        part(Part::RunQueue, "run queue"),
        part(Part::Blocked, "blocked"),
        part(Part::Client, "client"),
        part(Part::Unexplained, "unexplained"),
    ]
    .into_iter()
    .flatten()
    .collect();
    parts.join(", ")
}

fn account(
    run: &Run,
    comparison: &Comparison,
    difference: &LedgerDifference,
    open: bool,
) -> Markup {
    let names = [
        baseline_name(run, comparison.variant),
        variant_name(run, comparison.variant),
    ];
    let groups: Vec<CostRow> = difference
        .groups
        .iter()
        .map(|row| CostRow {
            name: group_name(row.part, &row.cost.name),
            ..row.cost.clone()
        })
        .collect();
    html! {
        details open[open] {
            summary {
                b { (names[1]) } ", " (condition_title(run, comparison.condition)) ": "
                span.figure {
                    (with_margin(&difference.response)) " µs"
                }
            }
            div.charts.wide {
                (waterfall::chart("category", "tx", &difference.response, &groups, names))
            }
            p { (explanation(comparison.verdict, difference)) }
            @if open { (rows(difference, names, &yields(run, comparison))) }
            @let ledgers: Vec<&Ledger> = compared_variants(run, comparison)
                .into_iter()
                .filter_map(|variant| ledger(run, comparison.condition, variant))
                .collect();
            @if let Some(note) = response_times(run, &ledgers) { p { (note) } }
            @for ledger in &ledgers {
                p.faint {
                    (checks(run, ledger)) "."
                    @let processes = background(ledger);
                    @if !processes.is_empty() {
                        " Background processes, CPU time in µs per transaction: " (processes) "."
                    }
                }
            }
            (tail::table(run, &ledgers))
        }
    }
}

/// The rows: phases × mechanisms.
fn rows(difference: &LedgerDifference, names: [&str; 2], yields: &str) -> Markup {
    let (shown, rest) = difference
        .rows
        .split_at(difference.rows.len().min(ROWS_MAX));
    let sum = |of: fn(&CostRow) -> f64| rest.iter().map(|row| of(&row.cost)).sum::<f64>();
    html! {
        div.scroll { table {
            caption {
                "By phase · subsystem, or by wait; µs per transaction" (yields) ", largest difference first."
            }
            thead { tr {
                th scope="col" { "row" } th scope="col" { "kind" }
                th.n scope="col" { (names[0]) } th.n scope="col" { (names[1]) }
                th.n scope="col" { "difference" } th.n scope="col" { "±" }
            } }
            tbody {
                @for row in shown { (table_row(row)) }
                @if !rest.is_empty() {
                    tr.rest {
                        td { (rest.len()) " more" } td {}
                        td.n { (number::micros(sum(|row| row.baseline_us))) }
                        td.n { (number::micros(sum(|row| row.variant_us))) }
                        td.n { (number::signed_micros(sum(|row| row.difference_us))) }
                        td {}
                    }
                }
            }
        } }
    }
}

fn table_row(row: &LedgerRow) -> Markup {
    let cost = &row.cost;
    let nature = match row.nature {
        Nature::Unknown => "",
        nature => nature_word(nature),
    };
    html! {
        tr {
            td { (row_name(row)) } td.faint { (nature) }
            td.n { (number::micros(cost.baseline_us)) }
            td.n { (number::micros(cost.variant_us)) }
            td.n { (number::signed_micros(cost.difference_us)) }
            td.n.faint { (plus_minus(cost)) }
        }
    }
}
