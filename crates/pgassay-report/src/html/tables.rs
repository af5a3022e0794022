//! The figures as tables.

use maud::{Markup, html};
use pgassay_account::comparison::{Comparison, CostDifference, Ratio};
use pgassay_account::cost_row::{Change, CostRow};
use pgassay_record::run::Run;

use crate::outline::{
    ThroughputUnit, baseline_of_all, condition_title, per_transaction, plus_minus, point, top_rows,
    variant_name,
};
use crate::{number, reliability, sentence};

/// More functions than this are summed in the last row.
const FUNCTIONS_MAX: usize = 25;

/// The figures of every point and every ratio.
pub(super) fn section(run: &Run) -> Markup {
    html! {
        section #figures {
            h2 { "Figures" }
            (points(run))
            @if !run.comparisons.is_empty() {
                p {
                    "Ratios are geometric means over the pairs. The percentiles above are those of all transactions "
                    "of all timed trials together, so the quotient of two of them can differ from their ratio, even in "
                    "direction."
                }
                (ratios(run))
            }
        }
    }
}

/// The figures of every point.
fn points(run: &Run) -> Markup {
    let unit = ThroughputUnit::of(run);
    html! {
        div.scroll { table {
            caption {
                "Every point (a variant under a condition). Transaction latency in ms, CPU time in µs per "
                (unit.one()) "."
            }
            thead { tr {
                th scope="col" { "condition" } th scope="col" { "variant" }
                @for title in ["trials", unit.rate(), "mean", "p50", "p95", "p99", "max", "server CPU",
                    "server run queue", "client CPU (total)"] {
                    th.n scope="col" { (title) }
                }
            } }
            tbody {
                @for condition in 0..run.plan.conditions.len() {
                    @for variant in 0..run.plan.variants.len() {
                        @if let Some(it) = point(run, condition, variant) {
                            tr.first[variant == 0] {
                                td { @if variant == 0 { (condition_title(run, condition)) } }
                                td {
                                    (variant_name(run, variant))
                                    @if it.client_limited > 0.0 {
                                        span.caution { " the load generator was the bottleneck in "
                                            (number::percent(it.client_limited)) " of trials" }
                                    }
                                }
                                td.n { (it.trials) }
                                td.n { (number::tps(it.tps * per_transaction(run, it))) }
                                @for latency_us in [it.latency_mean_us, it.latency_p50_us,
                                    it.latency_p95_us, it.latency_p99_us, it.latency_max_us] {
                                    td.n { (number::millis(latency_us)) }
                                }
                                @for cpu_us in [it.server_cpu_us, it.server_run_queue_us,
                                    Some(it.client_cpu_us)] {
                                    td.n { @if let Some(cpu_us) = cpu_us {
                                        (number::micros(cpu_us / per_transaction(run, it)))
                                    } }
                                }
                            }
                        }
                    }
                }
            }
        } }
    }
}

/// All ratios with intervals. Verdicts use throughput only.
pub(super) fn ratios(run: &Run) -> Markup {
    let unit = ThroughputUnit::of(run);
    html! {
        div.scroll { table {
            caption {
                "Ratios to " (baseline_of_all(run))
                @if let Some(levels) = sentence::levels(run) { ", with " (levels) " confidence intervals" }
                ". Throughput above 1 is better; for latency and server CPU time, below 1 is better."
            }
            thead { tr {
                th scope="col" { "condition" } th scope="col" { "variant" }
                @for title in [unit.rate(), "mean", "p50", "p95", "p99", "server CPU"] {
                    th.n scope="col" { (title) }
                }
            } }
            tbody {
                @for it in &run.comparisons {
                    tr {
                        td { (condition_title(run, it.condition)) }
                        td { (variant_name(run, it.variant)) }
                        @for ratio in figures(it) {
                            td.n { @match ratio {
                                Some(ratio) if it.has_interval() => (sentence::ratio_in_words(ratio)),
                                Some(ratio) => (number::ratio(ratio.ratio)),
                                None => "–",
                            } }
                        }
                    }
                }
            }
        } }
    }
}

/// The ratios in the order of the table's columns.
fn figures(it: &Comparison) -> [Option<&Ratio>; 6] {
    [
        Some(&it.tps),
        Some(&it.latency_mean),
        Some(&it.latency_p50),
        Some(&it.latency_p95),
        Some(&it.latency_p99),
        it.server_cpu.as_ref(),
    ]
}

/// The functions of one comparison by self time per unit, marked added, increased, decreased or removed.
pub(super) fn functions(
    cost: &CostDifference,
    names: [&str; 2],
    unit: &str,
    totals: Option<&str>,
) -> Markup {
    let top = top_rows(&cost.functions, FUNCTIONS_MAX, false);
    let largest_us = top.largest_us().max(f64::MIN_POSITIVE);
    let [baseline_us, variant_us, difference_us] = top.rest_us;
    html! {
        div.scroll { table.functions {
            caption {
                "By function, self time only, µs per " (unit) ". " (reliability::noise_of_functions(cost))
                @if let Some(note) = reliability::naming(cost) { " " (note) }
                @if let Some(note) = totals { " " (note) }
            }
            thead { tr {
                th scope="col" { "" } th scope="col" { "function" }
                th.n scope="col" { (names[0]) } th.n scope="col" { (names[1]) }
                th.n scope="col" { "difference" } th.n scope="col" { "±" }
                th scope="col" { span.hidden { "size" } }
            } }
            tbody {
                @for row in &top.shown { (function(row, largest_us)) }
                @if top.left_out > 0 {
                    tr.rest {
                        td {} td { (top.left_out) " more, including those within noise" }
                        td.n { (number::micros(baseline_us)) } td.n { (number::micros(variant_us)) }
                        td.n { (number::signed_micros(difference_us)) } td {} td {}
                    }
                }
            }
        } }
    }
}

/// A row with a bar relative to the largest difference.
fn function(row: &CostRow, largest_us: f64) -> Markup {
    let share = (row.difference_us.abs() / largest_us * 100.0).clamp(0.0, 100.0);
    let class = match row.change {
        Change::Added | Change::Increased => "up",
        Change::Decreased | Change::Removed => "down",
        Change::Inconclusive => "noise",
    };
    html! {
        tr {
            td { span class={ "change " (class) } { (sentence::change_word(row.change)) } }
            td.function {
                code { (row.name) }
                @if !row.object.is_empty() && row.object != "postgres" {
                    " " span.faint { (row.object) }
                }
            }
            td.n { (number::micros(row.baseline_us)) }
            td.n { (number::micros(row.variant_us)) }
            td.n { (number::signed_micros(row.difference_us)) }
            td.n.faint { (plus_minus(row)) }
            td.bar { div class=(class) style=(format!("width:{share:.1}%")) {} }
        }
    }
}
