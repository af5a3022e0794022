//! The forest plot: every ratio with its interval and the equivalence margin.
//!
//! A row is a line of the page's grid with a strip of SVG in percentages, so that it works without a
//! script and at any width; all text is next to the strip, as HTML.

use maud::{Markup, html};
use pgassay_account::comparison::{Comparison, Verdict};
use pgassay_record::run::Run;

use super::prose;
use super::scale::{Scale, percent, tick_label};
use crate::outline::{
    EQUIVALENCE_MARGIN, Group, baseline_of_all, clients, comparison, groups, variant_name,
};
use crate::{number, outlook, reliability, sentence};

/// The section; the caller leaves it out if nothing was compared.
pub(super) fn section(run: &Run) -> Markup {
    let scale = scale(run);
    html! {
        section #verdicts {
            h2 { "Verdicts" }
            p.lead {
                "Throughput relative to " b { (baseline_of_all(run)) }
                @if let Some(levels) = sentence::levels(run) { ", with " (levels) " confidence intervals" }
                ". The gray band is the equivalence margin of ±2%."
            }
            div.forest role="table" aria-label="Throughput ratios" {
                @for group in groups(run) {
                    @if !group.label.is_empty() && compared(run, &group) {
                        h3 role="row" { span role="cell" { (group.label) } }
                    }
                    @for condition in group.conditions {
                        @for variant in 1..run.plan.variants.len() {
                            @if let Some(it) = comparison(run, condition, variant) {
                                (row(run, it, scale, variant == 1))
                            }
                        }
                    }
                }
                (axis(scale))
            }
            (remarks(run))
        }
    }
}

/// Whether any comparison of the group was completed: an interrupted run may lack some.
fn compared(run: &Run, group: &Group<'_>) -> bool {
    let mut conditions = run.comparisons.iter().map(|it| it.condition);
    conditions.any(|condition| group.conditions.contains(&condition))
}

/// One logarithmic axis for all rows, so that twice as fast and half as fast are equally far from 1.
/// It always contains the whole equivalence margin.
fn scale(run: &Run) -> Scale {
    let ends = run.comparisons.iter().flat_map(|it| {
        if it.has_interval() {
            [it.tps.low, it.tps.high]
        } else {
            [it.tps.ratio; 2]
        }
    });
    let (mut low, mut high) = (
        1.0 / (1.0 + 2.0 * EQUIVALENCE_MARGIN),
        1.0 + 2.0 * EQUIVALENCE_MARGIN,
    );
    for end in ends.filter(|end| end.is_finite() && *end > 0.0) {
        low = low.min(end);
        high = high.max(end);
    }
    // Some space at both ends, in proportion to the range.
    let air = (high / low).powf(0.06);
    Scale::log(low / air, high * air)
}

/// A line of the grid; only the first line of a condition shows the number of clients.
fn row(run: &Run, comparison: &Comparison, scale: Scale, first: bool) -> Markup {
    let clients = clients(run, comparison.condition);
    let word = sentence::verdict_word(comparison.verdict);
    html! {
        div.row.first[first] role="row" {
            span.clients role="cell" {
                @if first { (number::count(u64::from(clients), "client")) }
            }
            span.variant role="cell" { (variant_name(run, comparison.variant)) }
            span.strip role="presentation" { (strip(comparison, scale)) }
            span.figure role="cell" { (sentence::throughput_in_words(comparison)) }
            span role="cell" { span class={ "verdict " (word) } { (word) } (reliability::mark(comparison)) }
        }
    }
}

/// Margin, ticks, interval and ratio of one row.
fn strip(comparison: &Comparison, scale: Scale) -> Markup {
    let at = |value: f64| percent(scale.place(value));
    let tps = &comparison.tps;
    let (band_low, band_high) = (
        scale.place(1.0 - EQUIVALENCE_MARGIN),
        scale.place(1.0 + EQUIVALENCE_MARGIN),
    );
    let hollow = comparison.verdict == Verdict::Inconclusive;
    html! {
        svg height="26" aria-hidden="true" class=(sentence::verdict_word(comparison.verdict)) {
            rect.band x=(percent(band_low)) width=(percent(band_high - band_low)) height="26" {}
            (grid(scale))
            line.one x1=(at(1.0)) x2=(at(1.0)) y2="26" {}
            @if comparison.has_interval() {
                line.ci x1=(at(tps.low)) x2=(at(tps.high)) y1="13" y2="13" {}
                line.ci x1=(at(tps.low)) x2=(at(tps.low)) y1="8" y2="18" {}
                line.ci x1=(at(tps.high)) x2=(at(tps.high)) y1="8" y2="18" {}
            }
            circle.hollow[hollow] cx=(at(tps.ratio)) cy="13" r="4.5" {}
        }
    }
}

/// The ticks as lines; rows touch, so the lines run through the whole plot.
fn grid(scale: Scale) -> Markup {
    html! {
        @for tick in scale.ticks(6) {
            line.grid x1=(percent(scale.place(tick))) x2=(percent(scale.place(tick))) y2="26" {}
        }
    }
}

/// The last row of the plot: tick labels, and which direction is faster.
fn axis(scale: Scale) -> Markup {
    let ticks = scale.ticks(6);
    html! {
        div.row.axis aria-hidden="true" {
            span {} span {}
            span.strip {
                svg height="34" {
                    @for tick in &ticks {
                        text x=(percent(scale.place(*tick))) y="13" text-anchor="middle" {
                            "×" (tick_label(*tick, &ticks))
                        }
                    }
                    text.faint x="0" y="30" { "← slower" }
                    text.faint x="100%" y="30" text-anchor="end" { "faster →" }
                }
            }
        }
    }
}

/// Remarks below the plot.
fn remarks(run: &Run) -> Markup {
    html! {
        @if let Some(meaning) = outlook::inconclusive(run) {
            p { b { "Inconclusive" } ": " (prose::with_whole_options(&meaning)) }
        }
        @for note in reliability::footnotes(run) { p { (note) } }
        @if let Some(basis) = reliability::basis(run) { p { (basis) } }
    }
}
