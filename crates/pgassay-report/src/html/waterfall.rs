//! The cost waterfall: from the baseline's server CPU time per transaction to the variant's, step
//! by step, in µs. The steps add up to the difference; what cannot be told from noise is one grey
//! step of its own.

use maud::{Markup, html};
use pgassay_core::comparison::{Change, CostDifference, CostRow};

use super::scale::{Scale, percent, tick_label};
use crate::number;
use crate::outline::plus_minus_us;

/// More steps than this are summed into one.
const STEPS_MAX: usize = 12;
/// Totals that differ by less than this share are shown on an axis that does not start at zero.
const ZOOM_BELOW: f64 = 0.15;

/// A step of the waterfall.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    /// What it is.
    pub name: String,
    /// Where it starts and ends, in µs per transaction.
    pub from_us: f64,
    /// The end; the next step starts here.
    pub to_us: f64,
    /// The interval of the difference; `None` for sums of rows.
    pub interval_us: Option<[f64; 2]>,
    /// Half the interval's width, for the text.
    pub plus_minus_us: Option<f64>,
    /// Whether it is told from noise.
    pub resolved: bool,
}

/// The steps from baseline to variant: savings, largest first; added costs; the rest; the noise.
pub(super) fn steps(total: &CostRow, rows: &[CostRow]) -> Vec<Step> {
    let mut resolved: Vec<&CostRow> = rows
        .iter()
        .filter(|row| row.change != Change::Unresolved)
        .collect();
    resolved.sort_by(|a, b| b.difference_us.abs().total_cmp(&a.difference_us.abs()));
    let (shown, beyond) = resolved.split_at(resolved.len().min(STEPS_MAX));
    let mut shown = shown.to_vec();
    shown.sort_by(|a, b| a.difference_us.total_cmp(&b.difference_us));
    // Falls by size, then rises by size: both lists of a reader's attention start with the largest.
    let falls = shown.partition_point(|row| row.difference_us < 0.0);
    shown[falls..].reverse();
    let mut steps: Vec<Step> = Vec::new();
    let at = |steps: &[Step]| steps.last().map_or(total.baseline_us, |step| step.to_us);
    let mut step = |name: String, difference_us: f64, row: Option<&CostRow>, resolved: bool| {
        let from_us = at(&steps);
        steps.push(Step {
            name,
            from_us,
            to_us: from_us + difference_us,
            interval_us: row.map(|row| [from_us + row.low_us, from_us + row.high_us]),
            plus_minus_us: row.map(plus_minus_us),
            resolved,
        });
    };
    for row in shown {
        step(row.name.clone(), row.difference_us, Some(row), true);
    }
    if !beyond.is_empty() {
        let sum = beyond.iter().map(|row| row.difference_us).sum();
        step(format!("{} more", beyond.len()), sum, None, true);
    }
    let noise: Vec<&CostRow> = rows
        .iter()
        .filter(|row| row.change == Change::Unresolved)
        .collect();
    if !noise.is_empty() {
        let sum = noise.iter().map(|row| row.difference_us).sum();
        step(format!("unresolved ({})", noise.len()), sum, None, false);
    }
    // Whatever separates the rows from the exact total is shown, not swallowed.
    let parts: f64 = rows.iter().map(|row| row.difference_us).sum();
    let missing = total.variant_us - total.baseline_us - parts;
    if missing.abs() >= 0.005 {
        step("not allocated".to_owned(), missing, None, false);
    }
    steps
}

/// The chart of one list of rows.
pub(super) fn chart(
    kind: &str,
    cost: &CostDifference,
    rows: &[CostRow],
    names: [&str; 2],
) -> Markup {
    let steps = steps(&cost.total, rows);
    let (scale, zoomed) = scale(&cost.total, &steps);
    html! {
        figure {
            figcaption {
                "By " (kind)
                @if zoomed { span.faint { " · the axis does not start at zero" } }
            }
            div.waterfall {
                (whole(names[0], cost.total.baseline_us, scale))
                @for step in &steps { (row(step, scale)) }
                (whole(names[1], cost.total.variant_us, scale))
                (axis(scale))
            }
        }
    }
}

/// The axis, and whether it leaves out zero: small differences between large totals would vanish,
/// but then the bars of the totals no longer compare by length, and the chart says so.
fn scale(total: &CostRow, steps: &[Step]) -> (Scale, bool) {
    let ends = || {
        let ends = steps.iter().flat_map(|step| {
            let [low, high] = step.interval_us.unwrap_or([step.to_us; 2]);
            [step.from_us, step.to_us, low, high]
        });
        ends.chain([total.baseline_us, total.variant_us])
            .filter(|end| end.is_finite())
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

/// The bar of a total: where the waterfall starts, or where it ends.
fn whole(name: &str, value_us: f64, scale: Scale) -> Markup {
    html! {
        div.row.whole {
            span.name { (name) }
            svg height="22" aria-hidden="true" {
                rect.whole x="0" y="3" height="16" width=(percent(scale.place(value_us))) {}
            }
            span.figure {
                (number::micros(value_us)) " µs"
            }
        }
    }
}

/// A step, joined to the one above by a thin line at the place where that one ended.
fn row(step: &Step, scale: Scale) -> Markup {
    let (from, to) = (scale.place(step.from_us), scale.place(step.to_us));
    let difference_us = step.to_us - step.from_us;
    let class = match () {
        () if !step.resolved => "noise",
        () if difference_us > 0.0 => "up",
        () => "down",
    };
    html! {
        div.row {
            span.name { (step.name) }
            svg height="22" aria-hidden="true" {
                line.joint x1=(percent(from)) x2=(percent(from)) y1="-3" y2="3" {}
                rect class=(class) x=(percent(from.min(to))) y="3" height="16"
                    width=(percent((to - from).abs().max(0.002))) {}
                @if let Some([low, high]) = step.interval_us {
                    line.ci x1=(percent(scale.place(low))) x2=(percent(scale.place(high)))
                        y1="11" y2="11" {}
                }
            }
            span.figure {
                (number::signed_micros(difference_us))
                @if let Some(half) = step.plus_minus_us { span.pm { " ±" (number::micros(half)) } }
            }
        }
    }
}

/// Ticks in µs per transaction.
fn axis(scale: Scale) -> Markup {
    let ticks = scale.ticks(5);
    html! {
        div.row.axis aria-hidden="true" {
            span {}
            svg height="18" {
                @for tick in &ticks {
                    line.grid x1=(percent(scale.place(*tick))) x2=(percent(scale.place(*tick))) y2="4" {}
                    text x=(percent(scale.place(*tick))) y="15" text-anchor="middle" {
                        (tick_label(*tick, &ticks))
                    }
                }
            }
            span.figure.faint { "µs/tx" }
        }
    }
}

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
            row_of("bind", 0.0, 2.0, Change::New),
            row_of("parse", 5.0, 0.0, Change::Gone),
            row_of("plan", 9.0, 0.0, Change::Gone),
            row_of("commit", 1.0, 1.05, Change::Unresolved),
        ];
        let total = row_of("total", 15.0, 3.05, Change::Down);
        let steps = steps(&total, &rows);
        let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["plan", "parse", "bind", "unresolved (1)"]);
        assert!((steps[0].from_us - 15.0).abs() < 1e-9);
        for pair in steps.windows(2) {
            assert!((pair[0].to_us - pair[1].from_us).abs() < 1e-9);
        }
        assert!((steps[3].to_us - 3.05).abs() < 1e-9);
    }

    #[test]
    fn what_the_rows_leave_out_is_a_step_of_its_own() {
        let rows = [row_of("plan", 9.0, 0.0, Change::Gone)];
        let total = row_of("total", 15.0, 5.0, Change::Down);
        let steps = steps(&total, &rows);
        assert_eq!(steps[1].name, "not allocated");
        assert!((steps[1].to_us - 5.0).abs() < 1e-9 && !steps[1].resolved);
    }
}
