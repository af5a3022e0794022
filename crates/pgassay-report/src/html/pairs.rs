//! The pairs in the order they ran, which shows drift and outliers.

use maud::{Markup, html};
use pgassay_account::comparison::Comparison;
use pgassay_record::run::Run;

use super::scale::{Scale, px};
use crate::outline::{condition_title, variant_name};
use crate::{number, reliability};

const WIDTH: f64 = 220.0;
const HEIGHT: f64 = 78.0;
const MARGIN: f64 = 8.0;
/// The minimum range of a chart: less noise than this is not magnified.
const SPREAD_MIN: f64 = 0.015;

/// A small chart per comparison with more than one pair.
pub(super) fn section(run: &Run) -> Markup {
    let shown: Vec<&Comparison> = run
        .comparisons
        .iter()
        .filter(|it| it.tps.by_pair.len() > 1)
        .collect();
    html! {
        @if !shown.is_empty() {
            section #pairs {
                h2 { "The pairs, in the order they ran" }
                p.lead {
                    "Each dot is one pair: the throughput of the variant’s timed trials in one block, divided by "
                    "the baseline’s, all run in mirrored order. The "
                    "line is the mean, the shaded area its confidence interval. A slope means drift "
                    "that the order did not cancel; an isolated dot is an outlier."
                    @if shown.iter().any(|it| reliability::detectable(&it.tps).is_some()) {
                        " MDE: minimum detectable effect, with 80% power."
                    }
                }
                div.charts.small {
                    @for comparison in shown { (chart(run, comparison)) }
                }
            }
        }
    }
}

/// Dots in the order of the blocks. The vertical range differs between charts, so the caption states it.
fn chart(run: &Run, comparison: &Comparison) -> Markup {
    let tps = &comparison.tps;
    let spread = spread(comparison);
    let y = Scale::log(tps.ratio / (1.0 + spread), tps.ratio * (1.0 + spread));
    let up = |value: f64| MARGIN + (1.0 - y.place(value)) * (HEIGHT - 2.0 * MARGIN);
    let step = (WIDTH - 2.0 * MARGIN) / tps.by_pair.len() as f64;
    html! {
        figure {
            figcaption {
                b { (variant_name(run, comparison.variant)) } ", "
                (condition_title(run, comparison.condition)) br;
                span.faint {
                    "mean " (number::ratio(tps.ratio)) ", SD " (number::noise(tps.pair_sd))
                    @if let Some(detectable) = reliability::detectable(tps) {
                        ", " span.figure { (detectable) }
                    }
                    (reliability::mark(comparison))
                    "; " span.figure { "vertical axis ±" (number::noise(spread)) }
                }
            }
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label="pairs in order" {
                @if comparison.has_interval() {
                    rect.shade x="0" width=(WIDTH) y=(px(up(tps.high)))
                        height=(px(up(tps.low) - up(tps.high))) {}
                }
                line.mean x1="0" x2=(WIDTH) y1=(px(up(tps.ratio))) y2=(px(up(tps.ratio))) {}
                @for (at, ratio) in tps.by_pair.iter().enumerate() {
                    circle.pair cx=(px(MARGIN + (at as f64 + 0.5) * step)) cy=(px(up(*ratio))) r="3.5" {
                        title { "pair " (at + 1) ": " (number::ratio(*ratio)) }
                    }
                }
            }
        }
    }
}

/// The largest distance of a pair or an interval's bound from the mean, as a share.
fn spread(comparison: &Comparison) -> f64 {
    let tps = &comparison.tps;
    let bounds = [&tps.low, &tps.high].into_iter();
    let bounds = bounds.filter(|_| comparison.has_interval());
    let ends = tps.by_pair.iter().chain(bounds);
    let distances = ends.map(|end| (end / tps.ratio).ln().abs().exp() - 1.0);
    distances
        .filter(|it| it.is_finite())
        .fold(SPREAD_MIN, f64::max)
}
