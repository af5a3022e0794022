//! A live server in its DBA's terms: the load over time, statements, waits, blockers, tables and
//! indexes, and what watching cost.

mod bars;
mod blocking;
mod catalog;
mod load;
mod timeline;

use maud::{Markup, html};
use pgassay_record::activity::Activity;
use pgassay_record::observation::Observation;

use crate::activity::{cost, headline, limitations, ready_but_idle};
use crate::sentence;

/// The answer, in two or three sentences, and what the load leaves out.
pub(super) fn answer(observation: &Observation, activity: &Activity) -> Markup {
    html! {
        p.answer { (headline(activity)) }
        @if let Some(more) = ready_but_idle(observation) { p { (more) } }
    }
}

/// The sections, in order; those without rows are empty.
pub(super) fn sections(observation: &Observation, activity: &Activity) -> Markup {
    html! {
        (timeline::section(activity))
        (load::statements(observation, activity))
        (blocking::section(activity))
        (blocking::idle_holders(activity))
        (load::waits(observation, activity))
        (load::names(activity))
        @if let Some(catalog) = &activity.catalog {
            (catalog::tables(activity, catalog))
            (catalog::indexes(catalog))
            (catalog::server(catalog))
        }
        (watching(activity))
    }
}

/// What watching cost, and what is missing.
fn watching(activity: &Activity) -> Markup {
    let missing: Vec<_> = limitations(activity)
        .filter_map(|check| Some((sentence::limit(check)?, check.fix.as_ref())))
        .collect();
    html! {
        section #watching {
            h2 { "Overhead of watching" }
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
