//! The load over time, stacked by wait class, with a line at the number of processors.

use maud::{Markup, html};
use pgassay_record::activity::{Activity, LoadMark, LoadMarkKind};

use super::super::scale::{Scale, px, tick_label};
use super::bars::{legend, words};
use crate::activity::{ClassLoads, TimeStretch, WaitClass, age, load, stretches};
use crate::number;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 38.0;
/// More columns than these are joined: they would be thinner than three pixels.
const COLUMNS_MAX: usize = 300;

/// The section; empty without a time axis.
pub(super) fn section(activity: &Activity) -> Markup {
    let found = stretches(activity, COLUMNS_MAX);
    let loads: Vec<ClassLoads> = found.iter().map(|it| it.loads).collect();
    html! {
        @if !found.is_empty() {
            section #load-over-time {
                h2 { "Load over time" }
                p.lead {
                    "Average active sessions by wait class."
                    @if activity.processors.is_some() {
                        " The dashed line is the number of CPUs: CPU load above it waits in the "
                        "run queue."
                    }
                }
                (legend(&loads))
                (chart(activity, &found))
                (marks(activity))
            }
        }
    }
}

fn chart(activity: &Activity, found: &[TimeStretch<'_>]) -> Markup {
    let highest = found.iter().map(|it| it.loads.total()).fold(0.0, f64::max);
    let processors = activity.processors.map(f64::from);
    // A line far above the load would flatten it.
    let processors = processors.filter(|count| *count <= highest * 3.0);
    let end_us = found
        .iter()
        .map(|it| it.start_us + it.length_us)
        .fold(0.0, f64::max);
    let x = Scale::linear(0.0, end_us / 1e6);
    let y = Scale::linear(0.0, highest.max(processors.unwrap_or(0.0)) * 1.04);
    let across = |us: f64| LEFT + x.place(us / 1e6) * (WIDTH - LEFT - RIGHT);
    let up = |sessions: f64| HEIGHT - BOTTOM - y.place(sessions) * (HEIGHT - TOP - BOTTOM);
    let (x_ticks, y_ticks) = (x.ticks(10), y.ticks(5));
    html! {
        div.scroll.chart {
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
                aria-label="Average active sessions over time, by wait class" {
                @for tick in &y_ticks {
                    line.grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(px(up(*tick))) y2=(px(up(*tick))) {}
                    text x=(LEFT - 6.0) y=(px(up(*tick) + 4.0)) text-anchor="end" {
                        (tick_label(*tick, &y_ticks))
                    }
                }
                @for tick in &x_ticks {
                    text x=(px(across(tick * 1e6))) y=(HEIGHT - BOTTOM + 16.0)
                        text-anchor="middle" { (tick_label(*tick, &x_ticks)) }
                }
                text.faint x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 4.0) text-anchor="middle" {
                    "seconds"
                }
                @for stretch in found { (column(stretch, &across, &up)) }
                @if let Some(count) = processors {
                    line.processors x1=(LEFT) x2=(WIDTH - RIGHT) y1=(px(up(count)))
                        y2=(px(up(count))) {
                        title { (number::count(count as u64, "CPU")) }
                    }
                }
                @for (mark, x, label) in flags(&activity.marks, &across) { (flag(mark, x, &label)) }
            }
        }
    }
}

/// One stretch: a rectangle per class, stacked.
fn column(
    stretch: &TimeStretch<'_>,
    across: &impl Fn(f64) -> f64,
    up: &impl Fn(f64) -> f64,
) -> Markup {
    let left = across(stretch.start_us);
    let width = across(stretch.start_us + stretch.length_us) - left;
    let mut below = 0.0;
    let parts: Vec<(WaitClass, f64, f64)> = WaitClass::ALL
        .into_iter()
        .zip(stretch.loads.0)
        .filter(|(_, load)| *load > 0.0)
        .map(|(class, load)| {
            let (bottom, top) = (up(below), up(below + load));
            below += load;
            (class, top, bottom - top)
        })
        .collect();
    let tps = stretch.transactions_per_s.map_or_else(String::new, |it| {
        format!("; {} transactions/s", number::tps(it))
    });
    let idle = load(stretch.idle_in_transaction);
    html! {
        g {
            title {
                (age(stretch.start_us)) ": " (load(stretch.loads.total())) " active: "
                (words(&stretch.loads)) "; " (idle) " idle in a transaction" (tps)
            }
            @for (class, top, height) in parts {
                rect class=(class.css()) x=(px(left)) y=(px(top)) width=(px(width))
                    height=(px(height)) {}
            }
        }
    }
}

/// The width of a mark's number.
const LABEL_WIDTH: f64 = 14.0;

/// The marks in order, each with its position, and its number and the position of that, so that no
/// number hides another.
fn flags<'a>(
    marks: &'a [LoadMark],
    across: &impl Fn(f64) -> f64,
) -> Vec<(&'a LoadMark, f64, (usize, f64))> {
    let mut free_from = 0.0;
    let flags = marks.iter().zip(1..);
    flags
        .map(|(mark, number)| {
            let x = across(mark.at_us);
            let label = f64::max(x, free_from);
            free_from = label + LABEL_WIDTH;
            (mark, x, (number, label))
        })
        .collect()
}

/// A mark's number above the chart; the list below says what it was.
fn flag(mark: &LoadMark, x: f64, (number, label): &(usize, f64)) -> Markup {
    html! {
        g.flag {
            title { (mark.text) }
            line x1=(px(x)) x2=(px(x)) y1=(TOP - 4.0) y2=(HEIGHT - BOTTOM) {}
            text x=(px(*label)) y=(TOP - 8.0) text-anchor="middle" { (number) }
        }
    }
}

fn marks(activity: &Activity) -> Markup {
    let kind = |kind| match kind {
        LoadMarkKind::Stall => "stall",
        LoadMarkKind::Checkpoint => "checkpoint",
        LoadMarkKind::Vacuum => "vacuum or analyze",
        LoadMarkKind::LockStorm => "lock storm",
        LoadMarkKind::LogError => "log",
    };
    html! {
        @if !activity.marks.is_empty() {
            ol.marks {
                @for mark in &activity.marks {
                    li {
                        span.faint { (age(mark.at_us)) ", " (kind(mark.kind)) ": " } (mark.text)
                        @if mark.length_us > 0.0 { span.faint { ", " (age(mark.length_us)) } }
                    }
                }
            }
        }
    }
}
