//! Throughput and latency against the number of clients.
//!
//! The ribbon of a variant is the interval of its ratio to the baseline times the baseline's value.
//! The baseline has none, since only pairs have intervals.

use std::fmt::Write as _;

use maud::{Markup, html};
use pgassay_account::comparison::{Comparison, PointSummary, Ratio};
use pgassay_record::run::Run;

use super::scale::{Scale, px, tick_label};
use crate::number;
use crate::outline::{Group, clients, comparison, groups, point, variant_name};

const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 38.0;
/// Above this ratio between the largest and the smallest value an axis is logarithmic.
const LOG_ABOVE: f64 = 6.0;

/// A quantity drawn over the number of clients.
struct Quantity {
    title: &'static str,
    unit: &'static str,
    of_point: fn(&PointSummary) -> f64,
    of_pair: fn(&Comparison) -> &Ratio,
    from_zero: bool,
}

const QUANTITIES: [Quantity; 3] = [
    Quantity {
        title: "Throughput, transactions per second",
        unit: "tps",
        of_point: |point| point.tps,
        of_pair: |comparison| &comparison.tps,
        from_zero: true,
    },
    Quantity {
        title: "Mean latency, ms",
        unit: "ms",
        of_point: |point| point.latency_mean_us / 1000.0,
        of_pair: |comparison| &comparison.latency_mean,
        from_zero: false,
    },
    Quantity {
        title: "Latency, 99th percentile, ms",
        unit: "ms",
        of_point: |point| point.latency_p99_us / 1000.0,
        of_pair: |comparison| &comparison.latency_p99,
        from_zero: false,
    },
];

/// A variant's values: clients, value, and the bounds of its interval.
type Curve = Vec<(f64, f64, Option<[f64; 2]>)>;

/// A row of charts per group of conditions; empty if no variant ran with two numbers of clients.
pub(super) fn section(run: &Run) -> Markup {
    let groups: Vec<Group<'_>> = groups(run)
        .into_iter()
        .filter(|group| has_curve(run, group))
        .collect();
    html! {
        @if !groups.is_empty() {
            section #curves {
                h2 { "Throughput and latency by number of clients" }
                p.lead {
                    "Shaded bands: the confidence interval of the ratio to the baseline, times the "
                    "baseline’s value. The axis of clients is logarithmic, as is that of latency if "
                    "its range is wide."
                }
                (legend(run))
                @for group in &groups {
                    @if !group.label.is_empty() { h3 { (group.label) } }
                    div.charts {
                        @for quantity in &QUANTITIES { (chart(run, group, quantity)) }
                    }
                }
            }
        }
    }
}

/// Whether any variant was measured with two numbers of clients, as a curve requires.
fn has_curve(run: &Run, group: &Group<'_>) -> bool {
    (0..run.plan.variants.len()).any(|variant| {
        let measured = |condition: &&usize| point(run, **condition, variant).is_some();
        group.conditions.iter().filter(measured).count() > 1
    })
}

/// Names with their line and marker, in HTML so that they wrap.
fn legend(run: &Run) -> Markup {
    html! {
        p.legend {
            @for (variant, name) in run.plan.variants.iter().enumerate() {
                span {
                    svg width="34" height="12" aria-hidden="true" class={ "v" (variant % 7) } {
                        line.curve x1="1" x2="33" y1="6" y2="6" {}
                        (marker(variant, 17.0, 6.0))
                    }
                    (name)
                }
            }
        }
    }
}

/// One quantity of one group. The drawing scales with the page, so positions are in its own units.
fn chart(run: &Run, group: &Group<'_>, quantity: &Quantity) -> Markup {
    let curves: Vec<Curve> = (0..run.plan.variants.len())
        .map(|variant| curve(run, group, variant, quantity))
        .collect();
    let (x, y) = scales(&curves, quantity);
    let across = |clients: f64| LEFT + x.place(clients) * (WIDTH - LEFT - RIGHT);
    let up = |value: f64| HEIGHT - BOTTOM - y.place(value) * (HEIGHT - TOP - BOTTOM);
    let mut at: Vec<f64> = group
        .conditions
        .iter()
        .map(|it| f64::from(clients(run, *it)))
        .collect();
    at.sort_by(f64::total_cmp);
    let ticks = y.ticks(5);
    html! {
        figure {
            figcaption { (quantity.title) }
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
                aria-label={ (quantity.title) ", " (group.label) } {
                @for tick in &ticks {
                    line.grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(px(up(*tick))) y2=(px(up(*tick))) {}
                    text x=(LEFT - 6.0) y=(px(up(*tick) + 4.0)) text-anchor="end" {
                        (tick_label(*tick, &ticks))
                    }
                }
                @for clients in &at {
                    text x=(px(across(*clients))) y=(HEIGHT - BOTTOM + 16.0) text-anchor="middle" {
                        (clients)
                    }
                }
                text.faint x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 5.0) text-anchor="middle" {
                    "clients"
                }
                @for (variant, curve) in curves.iter().enumerate() {
                    g class={ "v" (variant % 7) } {
                        (ribbon(curve, &across, &up))
                        polyline.curve points=(path(curve, &across, &up)) {}
                        @for (clients, value, _) in curve {
                            g {
                                title { (title(run, variant, *clients, *value, quantity.unit)) }
                                (marker(variant, across(*clients), up(*value)))
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The tooltip of a marker.
fn title(run: &Run, variant: usize, clients: f64, value: f64, unit: &str) -> String {
    format!(
        "{}, {}: {} {unit}",
        variant_name(run, variant),
        number::count(clients as u64, "client"),
        number::micros(value)
    )
}

/// A variant's points by number of clients; a condition that was not measured is left out.
fn curve(run: &Run, group: &Group<'_>, variant: usize, quantity: &Quantity) -> Curve {
    let mut curve: Curve = group
        .conditions
        .iter()
        .filter_map(|condition| {
            let of = |variant| point(run, *condition, variant).map(quantity.of_point);
            let value = of(variant)?;
            let ends = comparison(run, *condition, variant)
                .zip(of(0))
                .map(|(pair, baseline)| {
                    let ratio = (quantity.of_pair)(pair);
                    [baseline * ratio.low, baseline * ratio.high]
                });
            Some((f64::from(clients(run, *condition)), value, ends))
        })
        .collect();
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    curve
}

/// Axes that contain every value and every bound of an interval.
fn scales(curves: &[Curve], quantity: &Quantity) -> (Scale, Scale) {
    let mut x = [f64::INFINITY, 0.0_f64];
    let mut y = [f64::INFINITY, 0.0_f64];
    for (clients, value, ends) in curves.iter().flatten() {
        x = [x[0].min(*clients), x[1].max(*clients)];
        let [low, high] = ends.unwrap_or([*value; 2]);
        y = [y[0].min(*value).min(low), y[1].max(*value).max(high)];
    }
    let y = if !quantity.from_zero && y[1] / y[0] > LOG_ABOVE {
        Scale::log(y[0] / 1.3, y[1] * 1.3)
    } else {
        Scale::linear(0.0, y[1] * 1.08)
    };
    // Some room left and right of the outermost points.
    (Scale::log(x[0] / 1.15, x[1] * 1.15), y)
}

/// The area between the bounds of the intervals: along the upper ones, then back along the lower.
fn ribbon(curve: &Curve, across: &dyn Fn(f64) -> f64, up: &dyn Fn(f64) -> f64) -> Markup {
    let ends: Vec<(f64, [f64; 2])> = curve
        .iter()
        .filter_map(|(clients, _, ends)| ends.map(|ends| (*clients, ends)))
        .collect();
    let mut points = String::new();
    for (clients, [_, high]) in &ends {
        _ = write!(points, "{},{} ", px(across(*clients)), px(up(*high)));
    }
    for (clients, [low, _]) in ends.iter().rev() {
        _ = write!(points, "{},{} ", px(across(*clients)), px(up(*low)));
    }
    html! {
        @if ends.len() > 1 { polygon.ribbon points=(points.trim_end()) {} }
    }
}

/// The points of the line in SVG's syntax.
fn path(curve: &Curve, across: &dyn Fn(f64) -> f64, up: &dyn Fn(f64) -> f64) -> String {
    let points: Vec<String> = curve
        .iter()
        .map(|(clients, value, _)| format!("{},{}", px(across(*clients)), px(up(*value))))
        .collect();
    points.join(" ")
}

/// A variant's marker: variants differ in shape as well as in color.
fn marker(variant: usize, x: f64, y: f64) -> Markup {
    html! {
        @match variant % 3 {
            0 => circle.mark cx=(px(x)) cy=(px(y)) r="4" {},
            1 => rect.mark x=(px(x - 3.6)) y=(px(y - 3.6)) width="7.2" height="7.2" {},
            _ => path.mark d=(format!("M{} {}l4.8 8.4h-9.6z", px(x), px(y - 5.2))) {},
        }
    }
}
