//! The page: one file that needs no network, no server and, but for the flame graph, no script.
//!
//! From the top: the question and its answer; a forest plot; where the difference in cost lies; what
//! was counted; where the response time goes; the curves against concurrency; flame graphs of A, B
//! and their difference; the pairs as they
//! ran; all figures; and what anyone needs to repeat the study. Charts are SVG made here. `maud`
//! escapes every value; the only raw parts are this crate's own style sheet and script, and JSON
//! in which no character can end its element.

mod belief;
mod counted;
mod curves;
mod findings;
mod flame;
mod forest;
mod instructions;
mod ledger;
mod observation;
mod pairs;
mod provenance;
mod scale;
mod statements;
mod tables;
mod tail;
mod waterfall;

pub use instructions::counted_html;
pub use observation::observation_html;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use pgassay_core::comparison::{Comparison, CostDifference};
use pgassay_core::run::{Run, WarningKind};

use crate::outline::{Unit, baseline_name, condition_title, explained, plus_minus, variant_name};
use crate::{calibration, number, sentence};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The run as one HTML page.
pub fn html(run: &Run) -> String {
    let main = html! {
        (warnings(run))
        @if !run.comparisons.is_empty() { (forest::section(run)) }
        (findings::section(&run.findings, |finding| sentence::place(run, finding)))
        (findings::remedies(run))
        (belief::section(run))
        (cost(run))
        (instructions::section(run))
        (ledger::section(run))
        (statements::section(run))
        (curves::section(run))
        (flame::section(run))
        (pairs::section(run))
        (counted::section(run))
        (tables::section(run))
        (provenance::section(run))
    };
    let footer = html! {
        "Made by pgassay " (run.pgassay) " from " code { (run.id) "/run.json" }
        ". This page is one file and fetches nothing."
    };
    page(&run.pgassay, &run.study_name, &opening(run), &main, &footer)
}

/// A whole page of these parts.
fn page(version: &str, title: &str, opening: &Markup, main: &Markup, footer: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content={ "pgassay " (version) };
                title { (title) " · pgassay" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (opening)
                main { (main) }
                footer { (footer) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    let allowed = |c: char| matches!(c, '\n' | '\t') || !c.is_control();
    // A control character is not allowed in a page, escaped or not; a name may hold one.
    page.into_string()
        .chars()
        .map(|c| if allowed(c) { c } else { '\u{fffd}' })
        .collect()
}

/// Question and answer, before anything that explains them.
fn opening(run: &Run) -> Markup {
    html! {
        header {
            p.kicker { "pgassay · " (run.study_name) " · " (number::moment(run.started_us)) }
            h1 { (run.study.question) }
            @for answer in sentence::answers(run) {
                p class={
                    "answer " (answer.verdict.map_or("mixed", sentence::verdict_word))
                } { (answer.text) }
            }
            @if run.comparisons.is_empty() {
                p.answer.mixed {
                    "No verdict: nothing was compared. The figures below are descriptive only."
                }
            }
            p.faint { (sentence::what_was_run(run)) }
            @if let Some(found) = calibration::calibration(run) {
                p.faint { (found) }
            }
        }
    }
}

/// What limits belief stands above the figures, not below them.
fn warnings(run: &Run) -> Markup {
    // The caller's own warning says more, where there is one.
    let told = run
        .warnings
        .iter()
        .any(|it| it.kind == WarningKind::Incomplete);
    let unfinished = !run.complete && !told;
    let limits: Vec<_> = run
        .checks
        .iter()
        .filter(|check| check.limits.is_some())
        .collect();
    html! {
        @if unfinished || !run.warnings.is_empty() || !limits.is_empty() {
            section #warnings {
                h2 { "Before you believe it" }
                ul {
                    @if unfinished { li { "The run ended before all trials were done." } }
                    @for warning in &run.warnings { li { (warning.message) } }
                    @for check in limits {
                        li {
                            (sentence::limit(check).unwrap_or_default())
                            @if let Some(mend) = &check.mend { "; to mend it: " code { (mend) } }
                        }
                    }
                }
            }
        }
    }
}

/// An account per comparison, folded away but for the one that tells the most.
fn cost(run: &Run) -> Markup {
    let mut told: Vec<(&Comparison, &CostDifference)> = run
        .comparisons
        .iter()
        .filter_map(|it| it.cost.as_ref().map(|cost| (it, cost)))
        .collect();
    let open = explained(run);
    let unit = Unit::of(run);
    // What tells the most stands first and open; the others keep the study's order.
    told.sort_by_key(|(comparison, _)| open != Some(*comparison));
    html! {
        @if !told.is_empty() {
            section #cost {
                h2 { "Where the difference lies" }
                p.lead {
                    "Server CPU time in µs per " (unit.one()) ", from " (baseline_name(run))
                    " at the top to the variant at the bottom. Totals are exact; samples divide "
                    "them. " span.key.down { "Costs less" } ", " span.key.up { "costs more" } ", "
                    span.key.noise { "cannot be told from noise" } "; thin lines are intervals."
                }
                @for (comparison, cost) in told {
                    (account(run, comparison, cost, open == Some(comparison)))
                }
                @if let Some(quality) = sentence::profile_quality(run) {
                    p.faint { "Profile: " (quality) }
                }
                @if let Some(watching) = sentence::cost_of_watching(run) { p.faint { (watching) } }
                @if let Some(cut) = sentence::cut_by_ends(run) { p.faint { (cut) } }
            }
        }
    }
}

/// Waterfalls, functions, and the way to the flame graph of one comparison.
fn account(run: &Run, comparison: &Comparison, cost: &CostDifference, open: bool) -> Markup {
    let variant = variant_name(run, comparison.variant);
    let names = [baseline_name(run), variant];
    html! {
        details open[open] {
            summary {
                b { (variant) } ", " (condition_title(run, comparison.condition)) ": "
                span.figure {
                    (number::signed_micros(cost.total.difference_us))
                    " ±" (plus_minus(&cost.total)) " µs/" (Unit::of(run).short())
                }
            }
            div.charts.wide {
                @if !cost.phases.is_empty() {
                    (waterfall::chart("phase", &cost.total, &cost.phases, names))
                }
                @if !cost.subsystems.is_empty() {
                    (waterfall::chart("subsystem", &cost.total, &cost.subsystems, names))
                }
                @if cost.phases.is_empty() && cost.subsystems.is_empty() {
                    (waterfall::chart("function", &cost.total, &cost.functions, names))
                }
            }
            (tables::functions(cost, names))
            p { a.to-flame href="#flame" data-condition=(comparison.condition)
                data-variant=(comparison.variant) { "See its flame graph" } }
        }
    }
}
