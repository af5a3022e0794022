//! Server and kernel statistics per transaction: where variants differ, and all of them.

use maud::{Markup, html};
use pgassay_account::comparison::Comparison;
use pgassay_account::counters;
use pgassay_record::run::Run;

use crate::outline::{baseline_name, condition_title, differing, point, variant_name, yields};
use crate::{number, sentence};

/// The section; empty without statistics.
pub(super) fn section(run: &Run) -> Markup {
    let counted = run.points.iter().any(|point| !point.counters.is_empty());
    html! {
        @if counted {
            section #statistics {
                h2 { "Server and kernel statistics per transaction" }
                p.faint {
                    "Counters from PostgreSQL’s statistics views and the kernel over whole trials, "
                    "divided by the number of transactions. A counter differs if the interval of its "
                    "difference, corrected for the number of counters, excludes 0 and the difference "
                    "is more than 1%. Names that begin with pg_stat are those in PostgreSQL’s manual."
                }
                @if let Some(entries) = sentence::log_entries(run) { p { (entries) } }
                @for comparison in &run.comparisons {
                    @if !differing(comparison).is_empty() { (differences(run, comparison)) }
                }
                details {
                    summary { "All counters, by condition and variant" }
                    (figures(run))
                }
            }
        }
    }
}

fn differences(run: &Run, comparison: &Comparison) -> Markup {
    html! {
        div.scroll { table {
            caption {
                (variant_name(run, comparison.variant)) " vs " (baseline_name(run, comparison.variant)) ", "
                (condition_title(run, comparison.condition))
                @let yields = yields(run, comparison);
                @if !yields.is_empty() { ", per transaction" (yields) }
            }
            thead { tr {
                th scope="col" { "counter" }
                th.n scope="col" { (baseline_name(run, comparison.variant)) }
                th.n scope="col" { (variant_name(run, comparison.variant)) }
                th.n scope="col" { "difference" }
                th.n scope="col" { "±" }
            } }
            tbody {
                @for row in differing(comparison) {
                    @let unit = counters::unit(&row.name);
                    tr {
                        td { (title(&row.name)) }
                        td.n { (number::counter_value(row.baseline, unit)) }
                        td.n { (number::counter_value(row.variant, unit)) }
                        td.n { (number::signed_counter_value(row.difference, unit)) }
                        td.n.faint { (number::counter_value((row.high - row.low) / 2.0, unit)) }
                    }
                }
            }
        } }
    }
}

/// A counter's title, with the manual's name as a tooltip if they differ.
fn title(name: &str) -> Markup {
    let title = counters::title(name);
    html! {
        @if title == name { code { (name) } }
        @else { span title=(name) { (title) } }
    }
}

/// All counters of every point, except those that are zero everywhere.
fn figures(run: &Run) -> Markup {
    let mut names: Vec<&str> = run
        .points
        .iter()
        .flat_map(|point| &point.counters)
        .filter(|it| it.per_transaction > 0.0)
        .map(|it| it.name.as_str())
        .collect();
    names.sort_by_key(|name| (counters::rank(name), *name));
    names.dedup();
    html! {
        @for condition in 0..run.plan.conditions.len() {
            div.scroll { table {
                caption { (condition_title(run, condition)) }
                thead { tr {
                    th scope="col" { "counter" }
                    @for variant in &run.plan.variants { th.n scope="col" { (variant) } }
                } }
                tbody {
                    @for name in &names {
                        tr {
                            td { code { (name) } }
                            @for variant in 0..run.plan.variants.len() {
                                td.n { (figure(run, condition, variant, name)) }
                            }
                        }
                    }
                }
            } }
        }
    }
}

/// A counter's value with the standard deviation over trials, if there is one.
fn figure(run: &Run, condition: usize, variant: usize, name: &str) -> Markup {
    let found = point(run, condition, variant)
        .and_then(|point| point.counters.iter().find(|it| it.name == name));
    let unit = counters::unit(name);
    html! {
        @if let Some(it) = found {
            (number::counter_value(it.per_transaction, unit))
            @if it.spread > 0.0 {
                " " span.faint { "SD " (number::counter_value(it.spread, unit)) }
            }
        }
    }
}
