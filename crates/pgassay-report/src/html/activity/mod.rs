//! A live server in its DBA's terms: the load over time, statements, waits, blockers, tables and
//! indexes, and what watching cost.

mod blocking;
mod catalog;
mod load;
mod timeline;

use maud::{Markup, html};
use pgassay_record::activity::Activity;
use pgassay_record::observation::Observation;

use crate::activity::{ClassLoads, WaitClass, cost, headline};
use crate::sentence;

/// The answer, in two or three sentences.
pub(super) fn answer(activity: &Activity) -> Markup {
    html! { p.answer { (headline(activity)) } }
}

/// The sections, in order; those without rows are empty.
pub(super) fn sections(observation: &Observation, activity: &Activity) -> Markup {
    html! {
        (timeline::section(activity))
        (load::statements(observation, activity))
        (blocking::section(activity))
        (blocking::idle_holders(activity))
        (load::waits(activity))
        (load::names(activity))
        @if let Some(catalog) = &activity.catalog {
            (catalog::tables(catalog))
            (catalog::indexes(catalog))
            (catalog::server(catalog))
        }
        (watching(activity))
    }
}

/// What watching cost, and what is missing.
fn watching(activity: &Activity) -> Markup {
    let missing = activity.unavailable.iter();
    let missing: Vec<_> = missing
        .filter_map(|check| Some((sentence::limit(check)?, check.fix.as_ref())))
        .collect();
    html! {
        section #watching {
            h2 { "Cost of watching" }
            p { (cost(activity)) "." }
            @if !missing.is_empty() {
                ul {
                    @for (limit, fix) in missing {
                        li {
                            (limit)
                            @if let Some(fix) = fix { "; to fix it: " code { (fix) } }
                        }
                    }
                }
            }
        }
    }
}

/// The classes that occur, with their colors.
fn legend(loads: &[ClassLoads]) -> Markup {
    let is_seen = |class: &WaitClass| loads.iter().any(|it| it.0[*class as usize] > 0.0);
    html! {
        p.legend {
            @for class in WaitClass::ALL.into_iter().filter(is_seen) {
                span {
                    svg.swatch width="12" height="12" viewBox="0 0 12 12" aria-hidden="true" {
                        rect class=(class.css()) width="12" height="12" {}
                    }
                    (class.title())
                }
            }
        }
    }
}

/// A bar of these loads, on a scale where `whole` fills the cell.
fn bar(loads: &ClassLoads, whole: f64) -> Markup {
    let scale = 100.0 / whole.max(f64::MIN_POSITIVE);
    let mut left = 0.0;
    let parts: Vec<(WaitClass, f64, f64)> = WaitClass::ALL
        .into_iter()
        .zip(loads.0)
        .filter(|(_, load)| *load > 0.0)
        .map(|(class, load)| {
            let part = (class, left, load * scale);
            left += load * scale;
            part
        })
        .collect();
    html! {
        svg.bar viewBox="0 0 100 8" preserveAspectRatio="none" role="img"
            aria-label=(words(loads)) {
            @for (class, x, width) in parts {
                rect class=(class.css()) x=(format!("{x:.2}")) width=(format!("{width:.2}"))
                    height="8" {
                    title { (class.title()) " " (crate::activity::load(loads.0[class as usize])) }
                }
            }
        }
    }
}

/// `lock 4.83, CPU 1.37`.
fn words(loads: &ClassLoads) -> String {
    let seen = WaitClass::ALL.into_iter().zip(loads.0);
    let seen = seen.filter(|(_, load)| *load > 0.0);
    seen.map(|(class, load)| format!("{} {}", class.title(), crate::activity::load(load)))
        .collect::<Vec<_>>()
        .join(", ")
}
