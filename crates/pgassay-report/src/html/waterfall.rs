//! The cost waterfall: from the cost of a transaction under the baseline to its cost under the variant,
//! step by step, in µs of server CPU time or in instructions. The steps add up to the difference; all
//! differences within noise form one gray step, unless there are no others.

use maud::{Markup, html};
use pgassay_account::cost_row::{Change, CostRow};

use super::scale::{Scale, percent, tick_label};
use crate::number;
use crate::outline::plus_minus_us;

/// More steps than this are summed into one.
const STEPS_MAX: usize = 12;
/// If no step exceeds noise, this many are shown all the same.
const NOISE_STEPS: usize = 5;
/// Totals that differ by less than this share are shown on an axis that does not start at zero.
const ZOOM_BELOW: f64 = 0.15;

/// The unit of a chart, and how to print its figures.
#[derive(Clone, Copy)]
pub(super) struct AxisUnit<'a> {
    /// Printed after a total.
    pub name: &'static str,
    /// Printed at the axis.
    pub per_transaction: &'a str,
    /// Prints a figure.
    pub figure: fn(f64) -> String,
    /// Prints a difference with its sign.
    pub signed: fn(f64) -> String,
}

/// Server CPU time.
pub(super) const MICROS: AxisUnit<'static> = AxisUnit {
    name: "µs",
    per_transaction: "µs/tx",
    figure: number::micros,
    signed: number::signed_micros,
};

/// A part of a difference.
#[derive(Debug, Clone)]
pub(super) struct DifferencePart {
    /// Its name.
    pub name: String,
    /// How much more it costs under the variant.
    pub difference: f64,
    /// The bounds of the difference's interval; `None` if it is exact.
    pub interval: Option<[f64; 2]>,
    /// Half the interval's width, for the text.
    pub plus_minus: Option<f64>,
    /// Whether it exceeds noise.
    pub resolved: bool,
}

impl From<&CostRow> for DifferencePart {
    fn from(row: &CostRow) -> Self {
        Self {
            name: row.name.clone(),
            difference: row.difference_us,
            interval: Some([row.low_us, row.high_us]),
            plus_minus: plus_minus_us(row),
            resolved: row.change != Change::Inconclusive,
        }
    }
}

/// A step of the waterfall.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WaterfallStep {
    /// Its name.
    pub name: String,
    /// Its start.
    pub from: f64,
    /// Its end, where the next step starts.
    pub to: f64,
    /// The interval of the end; `None` for sums of parts and for exact parts.
    pub interval: Option<[f64; 2]>,
    /// Half the interval's width, for the text.
    pub plus_minus: Option<f64>,
    /// Whether it exceeds noise.
    pub resolved: bool,
}

/// The steps from baseline to variant: savings, largest first; added costs; the others; the noise.
pub(super) fn steps([baseline, variant]: [f64; 2], parts: &[DifferencePart]) -> Vec<WaterfallStep> {
    let mut resolved: Vec<&DifferencePart> = parts.iter().filter(|part| part.resolved).collect();
    resolved.sort_by(|a, b| b.difference.abs().total_cmp(&a.difference.abs()));
    let (shown, beyond) = resolved.split_at(resolved.len().min(STEPS_MAX));
    let mut shown = shown.to_vec();
    shown.sort_by(|a, b| a.difference.total_cmp(&b.difference));
    // Decreases, then increases, both with the largest first.
    let falls = shown.partition_point(|part| part.difference < 0.0);
    shown[falls..].reverse();
    let mut steps: Vec<WaterfallStep> = Vec::new();
    let at = |steps: &[WaterfallStep]| steps.last().map_or(baseline, |step| step.to);
    let mut step =
        |name: String, difference: f64, part: Option<&DifferencePart>, resolved: bool| {
            let from = at(&steps);
            steps.push(WaterfallStep {
                name,
                from,
                to: from + difference,
                interval: part.and_then(|part| Some(part.interval?.map(|end| from + end))),
                plus_minus: part.and_then(|part| part.plus_minus),
                resolved,
            });
        };
    for part in shown {
        step(part.name.clone(), part.difference, Some(part), true);
    }
    if !beyond.is_empty() {
        let sum = beyond.iter().map(|part| part.difference).sum();
        step(format!("{} more", beyond.len()), sum, None, true);
    }
    let mut noise: Vec<&DifferencePart> = parts.iter().filter(|part| !part.resolved).collect();
    if resolved.is_empty() {
        // One gray step would show nothing.
        noise.sort_by(|a, b| b.difference.abs().total_cmp(&a.difference.abs()));
        let named = if noise.len() <= NOISE_STEPS + 1 {
            noise.len()
        } else {
            NOISE_STEPS
        };
        for part in noise.drain(..named) {
            step(part.name.clone(), part.difference, Some(part), false);
        }
    }
    if !noise.is_empty() {
        let sum = noise.iter().map(|part| part.difference).sum();
        let rows = number::count(noise.len() as u64, "row");
        step(format!("noise ({rows})"), sum, None, false);
    }
    // Whatever the rows miss of the exact total is a step of its own.
    let sum_of_parts: f64 = parts.iter().map(|part| part.difference).sum();
    let missing = variant - baseline - sum_of_parts;
    if missing.abs() >= 0.005 {
        step("not allocated".to_owned(), missing, None, false);
    }
    steps
}

/// The chart of the rows of a difference in time. `unit` is what the time is per, such as `tx`.
pub(super) fn chart(
    kind: &str,
    unit: &str,
    total: &CostRow,
    rows: &[CostRow],
    names: [&str; 2],
) -> Markup {
    let parts: Vec<DifferencePart> = rows.iter().map(DifferencePart::from).collect();
    let totals = [total.baseline_us, total.variant_us];
    let unit = AxisUnit {
        per_transaction: &format!("µs/{unit}"),
        ..MICROS
    };
    drawing(kind, unit, names, totals, &parts)
}

/// A chart from the first total to the second.
pub(super) fn drawing(
    kind: &str,
    unit: AxisUnit<'_>,
    names: [&str; 2],
    totals: [f64; 2],
    parts: &[DifferencePart],
) -> Markup {
    let steps = steps(totals, parts);
    let (scale, zoomed) = scale(totals, &steps);
    html! {
        figure {
            figcaption {
                "By " (kind)
                @if zoomed { span.faint { " · the axis does not start at zero" } }
            }
            div.waterfall {
                (whole(names[0], totals[0], scale, unit))
                @for step in &steps { (row(step, scale, unit)) }
                (whole(names[1], totals[1], scale, unit))
                (axis(scale, unit))
            }
        }
    }
}

/// The axis, and whether it excludes zero, so that small differences between large totals stay visible.
/// The lengths of the totals' bars are then not comparable, and the chart says so.
fn scale(totals: [f64; 2], steps: &[WaterfallStep]) -> (Scale, bool) {
    let ends = || {
        let ends = steps.iter().flat_map(|step| {
            let [low, high] = step.interval.unwrap_or([step.to; 2]);
            [step.from, step.to, low, high]
        });
        ends.chain(totals).filter(|end| end.is_finite())
    };
    let high = ends().fold(0.0, f64::max);
    let low = ends().fold(high, f64::min);
    if high > 0.0 && (high - low) / high < ZOOM_BELOW {
        let air = (high - low) * 0.15;
        (Scale::linear((low - air).max(0.0), high + air), true)
    } else {
        (Scale::linear(0.0, high * 1.03), false)
    }
}

/// The bar of a total: the start or the end of the waterfall.
fn whole(name: &str, value: f64, scale: Scale, unit: AxisUnit<'_>) -> Markup {
    html! {
        div.row.whole {
            span.name { (name) }
            svg height="22" aria-hidden="true" {
                rect.whole x="0" y="3" height="16" width=(percent(scale.place(value))) {}
            }
            span.figure {
                ((unit.figure)(value)) " " (unit.name)
            }
        }
    }
}

/// A step, joined by a thin line to the end of the one above.
fn row(step: &WaterfallStep, scale: Scale, unit: AxisUnit<'_>) -> Markup {
    let (from, to) = (scale.place(step.from), scale.place(step.to));
    let difference = step.to - step.from;
    let class = match () {
        () if !step.resolved => "noise",
        () if difference > 0.0 => "up",
        () => "down",
    };
    html! {
        div.row {
            span.name { (step.name) }
            svg height="22" aria-hidden="true" {
                line.joint x1=(percent(from)) x2=(percent(from)) y1="-3" y2="3" {}
                rect class=(class) x=(percent(from.min(to))) y="3" height="16"
                    width=(percent((to - from).abs().max(0.002))) {}
                @if let Some([low, high]) = step.interval {
                    line.ci x1=(percent(scale.place(low))) x2=(percent(scale.place(high)))
                        y1="11" y2="11" {}
                }
            }
            span.figure {
                ((unit.signed)(difference))
                @if let Some(half) = step.plus_minus { span.pm { " ±" ((unit.figure)(half)) } }
            }
        }
    }
}

/// Ticks in the unit per transaction.
fn axis(scale: Scale, unit: AxisUnit<'_>) -> Markup {
    let ticks = scale.ticks(5);
    html! {
        div.row.axis aria-hidden="true" {
            span {}
            svg height="18" {
                @for tick in &ticks {
                    line.grid x1=(percent(scale.place(*tick))) x2=(percent(scale.place(*tick))) y2="4" {}
                    text x=(percent(scale.place(*tick))) y="15" text-anchor=(anchor(scale.place(*tick))) {
                        (tick_label(*tick, &ticks))
                    }
                }
            }
            span.figure.faint { (unit.per_transaction) }
        }
    }
}

/// Where a tick's label is: left of one next to the right end, where the unit follows.
fn anchor(place: f64) -> &'static str {
    if place > LABELS_CENTERED_MAX {
        "end"
    } else {
        "middle"
    }
}

/// A label in the middle of a tick further to the right would overlap the unit.
const LABELS_CENTERED_MAX: f64 = 0.92;

#[cfg(test)]
mod tests {
    use super::*;

    fn row_of(name: &str, baseline_us: f64, variant_us: f64, change: Change) -> CostRow {
        CostRow {
            name: name.to_owned(),
            object: String::new(),
            baseline_us,
            variant_us,
            difference_us: variant_us - baseline_us,
            low_us: variant_us - baseline_us - 0.1,
            high_us: variant_us - baseline_us + 0.1,
            change,
        }
    }

    #[test]
    fn the_steps_lead_from_the_baseline_to_the_variant() {
        let rows = [
            row_of("bind", 0.0, 2.0, Change::Added),
            row_of("parse", 5.0, 0.0, Change::Removed),
            row_of("plan", 9.0, 0.0, Change::Removed),
            row_of("commit", 1.0, 1.05, Change::Inconclusive),
        ];
        let steps = steps([15.0, 3.05], &rows.each_ref().map(DifferencePart::from));
        let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["plan", "parse", "bind", "noise (1\u{a0}row)"]);
        assert!((steps[0].from - 15.0).abs() < 1e-9);
        for pair in steps.windows(2) {
            assert!((pair[0].to - pair[1].from).abs() < 1e-9);
        }
        assert!((steps[3].to - 3.05).abs() < 1e-9);
    }

    /// Regression: the chart of a difference of −25.35 µs was one step, "noise (11 rows)".
    #[test]
    fn if_all_rows_are_within_noise_the_largest_are_still_named() {
        let row = |at: u32| {
            let name = format!("row {at}");
            row_of(&name, f64::from(at), 0.0, Change::Inconclusive)
        };
        let names = |rows: u32| {
            let parts: Vec<_> = (1..=rows)
                .map(|at| DifferencePart::from(&row(at)))
                .collect();
            let total = f64::from(rows * (rows + 1) / 2);
            let steps = steps([total, 0.0], &parts);
            assert!(steps.iter().all(|step| !step.resolved));
            assert!(steps.last().unwrap().to.abs() < 1e-9);
            steps.into_iter().map(|step| step.name).collect::<Vec<_>>()
        };
        assert_eq!(names(7)[..2], ["row 7", "row 6"]);
        assert_eq!(names(7).last().unwrap(), "noise (2\u{a0}rows)");
        assert_eq!(names(6).len(), 6);
    }

    /// Regression: the axis had a fourth cell in a grid of three columns, a stray unit below the chart.
    #[test]
    fn the_axis_names_its_unit_once() {
        let page = axis(Scale::linear(0.0, 10.0), MICROS).into_string();
        assert_eq!(page.matches("µs").count(), 1, "{page}");
    }

    #[test]
    fn unallocated_cost_is_a_separate_step() {
        let rows = [row_of("plan", 9.0, 0.0, Change::Removed)];
        let steps = steps([15.0, 5.0], &rows.each_ref().map(DifferencePart::from));
        assert_eq!(steps[1].name, "not allocated");
        assert!((steps[1].to - 5.0).abs() < 1e-9 && !steps[1].resolved);
    }
}
