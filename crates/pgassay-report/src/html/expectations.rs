//! The source's figures, the study's expectations, and the functions that the study watches.

use maud::{Markup, html};
use pgassay_record::expectation::CheckOutcome;
use pgassay_record::run::Run;

use crate::outline::{condition_title, variant_name};
use crate::{expectations, number};

/// The section; empty if the study has none of these.
pub(super) fn section(run: &Run) -> Markup {
    html! {
        @if run.reference.is_some() || !run.expectations.is_empty() || !run.watched_functions.is_empty() {
            section #expectations {
                h2 { "Expected vs measured" }
                (reference(run))
                (expectations(run))
                (watched(run))
            }
        }
    }
}

fn reference(run: &Run) -> Markup {
    let (Some(found), Some(reference)) = (&run.reference, &run.study.reference) else {
        return html! {};
    };
    let figure = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number::plain);
    let ratio = |value: Option<f64>| value.map_or_else(String::new, number::ratio);
    let base = reference.base.as_deref();
    html! {
        div.scroll { table {
            caption {
                "Source: " (reference.source) "."
                @if let Some(base) = base { " × is the ratio to \"" (base) "\" of the same column." }
            }
            thead { tr {
                th scope="col" { "" }
                @for title in ["source", "", &expectations::this_run(run), "", "run ÷ source"] {
                    th.n scope="col" { (title) }
                }
            } }
            tbody {
                @for row in &found.rows {
                    tr {
                        td { (row.name) }
                        td.n { (figure(row.published)) }
                        td.n.faint { (ratio(row.published_ratio)) }
                        td.n { (figure(row.measured)) }
                        td.n { (ratio(row.measured_ratio)) }
                        td.n.faint { (ratio(row.measured.zip(row.published).map(|(is, was)| is / was))) }
                    }
                }
            }
        } }
        @if run.plan.conditions.len() > 1 { p.faint { (expectations::MEANS) } }
        @if let Some(differs) = &reference.differs { p { (differs) } }
    }
}

fn expectations(run: &Run) -> Markup {
    html! {
        @if !run.expectations.is_empty() {
            div.scroll { table {
                caption {
                    "The study's expectations and the measured figures. Met: the whole interval meets the "
                    "expectation. Not met: the whole interval misses it. Otherwise inconclusive."
                }
                tbody {
                    @for it in &run.expectations {
                        tr {
                            td { @match it.outcome() {
                                Some(CheckOutcome::Met) => span.change.down { (expectations::word(it)) },
                                Some(CheckOutcome::NotMet) => span.change.up { (expectations::word(it)) },
                                _ => span.change.noise { (expectations::word(it)) },
                            } }
                            td { (it.that) br; code.faint { (it.check) } }
                            td { (expectations::readings(run, it)) }
                        }
                    }
                }
            } }
        }
    }
}

fn watched(run: &Run) -> Markup {
    let points = || run.plan.points.iter().enumerate();
    let has_any = |index: usize| {
        let mut shares = run
            .watched_functions
            .iter()
            .filter_map(|it| *it.shares.get(index)?);
        shares.any(|share| share > 0.0)
    };
    html! {
        @if points().any(|(index, _)| has_any(index)) {
            div.scroll { table {
                caption {
                    "Percent of the server's CPU time in a function and its callees, as in "
                    code { "perf report --children" } "."
                }
                thead { tr {
                    th scope="col" { "condition" } th scope="col" { "variant" }
                    @for it in &run.watched_functions { th.n scope="col" { code { (it.name) } } }
                } }
                tbody {
                    @for (index, point) in points().filter(|(index, _)| has_any(*index)) {
                        tr {
                            td { (condition_title(run, point.condition)) }
                            td { (variant_name(run, point.variant)) }
                            @for it in &run.watched_functions {
                                td.n { @match it.shares.get(index).copied().flatten() {
                                    Some(share) => (number::decimals(share, 1)),
                                    None => "–",
                                } }
                            }
                        }
                    }
                }
            } }
        }
    }
}
