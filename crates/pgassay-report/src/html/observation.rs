//! The page of a live server that was watched: where its CPU time goes, and its flame graph.

use maud::{Markup, html};
use pgassay_core::ledger::explained_share;
use pgassay_core::observation::{Observation, Row};

use super::{findings, flame, page};
use crate::{ledger, number, sentence};

/// More functions than this are left to the flame graph.
const FUNCTIONS_MAX: usize = 40;

/// The observation as one HTML page.
pub fn observation_html(observation: &Observation) -> String {
    let title = sentence::observed(observation);
    let opening = html! {
        header {
            p.kicker { "pgassay profile" }
            h1 { (title) }
            p.faint { (sentence::how_observed(observation)) }
        }
    };
    let main = html! {
        (limits(observation))
        (findings::section(&observation.findings, |_| sentence::observed(observation)))
        (flame::observed(observation))
        (time(observation))
        (waits(observation))
        @let (phases, subsystems) = (observation.phases(), observation.subsystems());
        @if !phases.is_empty() {
            (rows("phases", "Phases", observation, &phases))
            (rows("subsystems", "Subsystems", observation, &subsystems))
            (functions(observation))
        }
        (background(observation))
    };
    let footer = html! {
        "Made by pgassay " (observation.pgassay) ". This page is one file and fetches nothing."
    };
    page(&observation.pgassay, &title, &opening, &main, &footer)
}

/// What limits belief stands above the figures, not below them.
fn limits(observation: &Observation) -> Markup {
    let limits: Vec<_> = observation
        .limits
        .iter()
        .filter_map(|check| Some((sentence::limit(check)?, check.mend.as_ref())))
        .collect();
    html! {
        @if !limits.is_empty() {
            section #warnings {
                h2 { "Before you believe it" }
                ul {
                    @for (limit, mend) in limits {
                        li {
                            (limit)
                            @if let Some(mend) = mend { "; to mend it: " code { (mend) } }
                        }
                    }
                }
            }
        }
    }
}

/// The three exact totals; where they are not known, what the server was seen to do.
fn time(observation: &Observation) -> Markup {
    let basis = observation.basis();
    let (source, parts) = match &observation.backends {
        Some(exact) => (
            "from the kernel's exact counts",
            [
                ("on a CPU", exact.on_cpu_us),
                ("waiting for a CPU", exact.run_queue_us),
                ("blocked", observation.blocked_us()),
            ]
            .to_vec(),
        ),
        None => (
            "divided as looks at pg_stat_activity found them",
            [
                (
                    "at work or waiting for a CPU",
                    observation.backends_present_us - observation.blocked_us(),
                ),
                ("blocked", observation.blocked_us()),
            ]
            .to_vec(),
        ),
    };
    html! {
        section #time {
            h2 { "Time" }
            div.scroll { table {
                caption { "The backends' time, " (source) ", in " (basis.unit()) "." }
                tbody {
                    @for (what, us) in parts {
                        tr {
                            th scope="row" { (what) }
                            td.n { (number::micros(basis.of(us))) }
                            td.n { (share(us, observation.backends_present_us)) }
                        }
                    }
                }
            } }
            p.faint {
                (ledger::tier(
                    observation.divided_by(),
                    &[explained_share(&observation.ledger())],
                    observation.tier.as_ref(),
                )) "."
            }
        }
    }
}

/// The blocked time by its reasons.
fn waits(observation: &Observation) -> Markup {
    let (basis, blocked) = (observation.basis(), observation.blocked());
    html! {
        @if !blocked.is_empty() {
            section #blocked {
                h2 { "Blocked" }
                div.scroll { table {
                    caption {
                        "What the backends waited for, in " (basis.unit())
                        @if observation.backends.is_some() {
                            "; rows of the ledger, as shares of the exact blocked time."
                        } @else { ", as samples of pg_stat_activity found them." }
                    }
                    tbody {
                        @for row in blocked {
                            tr {
                                th scope="row" { (sentence::wait(&row)) }
                                td.n { (number::micros(basis.of(row.blocked_us))) }
                                td.n { (share(row.blocked_us, observation.blocked_us())) }
                            }
                        }
                    }
                } }
                @if let Some(waits) = &observation.waits {
                    p.faint { (sentence::waits_quality(waits, observation.window_us)) }
                }
            }
        }
    }
}

fn share(part_us: f64, whole_us: f64) -> String {
    number::percent(if whole_us > 0.0 {
        part_us / whole_us
    } else {
        0.0
    })
}

fn rows(id: &str, title: &str, observation: &Observation, rows: &[Row]) -> Markup {
    let basis = observation.basis();
    html! {
        section id=(id) {
            h2 { (title) }
            div.scroll { table {
                caption { "CPU time in " (basis.unit()) "." }
                tbody {
                    @for row in rows {
                        tr {
                            th scope="row" { (row.name) }
                            td.n { (number::micros(basis.of(row.self_us))) }
                            td.n { (share(row.self_us, observation.on_cpu_us())) }
                        }
                    }
                }
            } }
        }
    }
}

fn functions(observation: &Observation) -> Markup {
    let basis = observation.basis();
    html! {
        section #functions {
            h2 { "Functions" }
            div.scroll { table {
                caption { "The costliest in themselves; CPU time in " (basis.unit()) "." }
                thead { tr {
                    th scope="col" { "function" } th scope="col" { "object" }
                    @for title in ["itself", "share", "with callees", "samples"] {
                        th.n scope="col" { (title) }
                    }
                } }
                tbody {
                    @for row in observation.functions().iter().take(FUNCTIONS_MAX) {
                        tr {
                            th scope="row" { (row.name) } td { (row.object) }
                            td.n { (number::micros(basis.of(row.self_us))) }
                            td.n { (share(row.self_us, observation.on_cpu_us())) }
                            td.n { (number::micros(basis.of(row.children_us))) }
                            td.n { (number::whole(row.samples as f64)) }
                        }
                    }
                }
            } }
        }
    }
}

fn background(observation: &Observation) -> Markup {
    let basis = observation.basis();
    html! {
        @if !observation.background.is_empty() {
            section #background {
                h2 { "Beside the backends" }
                div.scroll { table {
                    caption {
                        "CPU of processes that serve no client, in " (basis.unit())
                        "; in no sum above."
                    }
                    tbody {
                        @for it in &observation.background {
                            tr {
                                th scope="row" { (it.role) }
                                td.n { (number::whole(it.cpu.processes.into())) }
                                td.n { (number::micros(basis.of(it.cpu.on_cpu_us))) }
                            }
                        }
                    }
                } }
            }
        }
    }
}
