//! What variants take besides time: a table for each comparison where it differs.

use maud::{Markup, html};
use pgassay_account::comparison::Comparison;
use pgassay_record::run::Run;

use crate::outline::{ThroughputUnit, baseline_name, condition_title, variant_name};
use crate::price::{PriceRow, rows};

/// The section; empty if variants differ in time only.
pub(super) fn section(run: &Run) -> Markup {
    let comparisons = run.comparisons.iter();
    let priced: Vec<(&Comparison, Vec<PriceRow>)> = comparisons
        .map(|it| (it, rows(run, it)))
        .filter(|(_, rows)| !rows.is_empty())
        .collect();
    html! {
        @if !priced.is_empty() {
            section #price {
                h2 { "Memory and volumes" }
                p.faint {
                    "Memory is the largest peak of the proportional set size (PSS) of any backend since it "
                    "connected, without shared memory and parallel workers. Volumes are per "
                    (ThroughputUnit::of(run).one()) ". Only figures that differ are listed."
                }
                @for (comparison, rows) in &priced { (table(run, comparison, rows)) }
            }
        }
    }
}

fn table(run: &Run, comparison: &Comparison, rows: &[PriceRow]) -> Markup {
    html! {
        div.scroll { table {
            caption {
                (variant_name(run, comparison.variant)) " vs " (baseline_name(run, comparison.variant)) ", "
                (condition_title(run, comparison.condition))
            }
            thead { tr {
                th {}
                th.n scope="col" { (baseline_name(run, comparison.variant)) }
                th.n scope="col" { (variant_name(run, comparison.variant)) }
            } }
            tbody {
                @for row in rows {
                    tr {
                        td { (row.title) }
                        td.n { (row.before) }
                        td.n { (row.after) }
                    }
                }
            }
        } }
    }
}
