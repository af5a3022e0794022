//! All findings: each with the points where it was seen, what speaks against it, and the remedy.

use maud::{Markup, html};
use pgassay_core::finding::Finding;
use pgassay_core::run::Run;

use super::tables;

use crate::{number, sentence};

/// The section, or nothing where nothing was found. `place` tells where a finding was made.
pub(super) fn section(findings: &[Finding], place: impl Fn(&Finding) -> String) -> Markup {
    let mut ids: Vec<&str> = Vec::new();
    for finding in findings {
        if !ids.contains(&finding.id.as_str()) {
            ids.push(&finding.id);
        }
    }
    html! {
        @if !findings.is_empty() {
            section #findings {
                h2 { "Findings" }
                p.faint {
                    "Known causes of lost time, by confidence and cost. Confirmed: its suggested fix was "
                    "run, throughput rose and the cause shrank. Moved with it: it differs between two "
                    "variants beyond noise, as throughput does, which proves no cause. Likely: at "
                    "least two independent sources measured it and nothing speaks against it. Hint: "
                    "one source alone."
                }
                @for (number, id) in ids.iter().enumerate() {
                    @let same: Vec<&Finding> = findings.iter().filter(|it| it.id == *id).collect();
                    (one(findings, &same, number < 3, &place))
                }
            }
        }
    }
}

/// What became of the remedies, where they were tried.
pub(super) fn remedies(run: &Run) -> Markup {
    html! {
        @if let Some(tried) = &run.remedies {
            section #remedies {
                h2 { "Remedies tried" }
                p.faint {
                    "What the findings advise, run as further variants of the same study, "
                    "interleaved with the variant that had the trouble."
                }
                @for answer in sentence::answers(tried) { p { (answer.text) } }
                (tables::ratios(tried))
            }
        }
    }
}

fn one(
    findings: &[Finding],
    same: &[&Finding],
    open: bool,
    place: &impl Fn(&Finding) -> String,
) -> Markup {
    let Some(first) = same.first() else {
        return html! {};
    };
    html! {
        details open[open] {
            summary {
                b { (first.title) } ", "
                (sentence::confidence_word(first)) ", "
                span.figure { (number::percent(first.share)) " of the time" }
            }
            div.scroll { table {
                thead { tr {
                    th scope="col" { "where" } th scope="col" { "confidence" }
                    th.n scope="col" { "µs/tx" } th.n scope="col" { "share" }
                    th scope="col" { "what showed it" } th scope="col" { "against it" }
                } }
                tbody {
                    @for finding in same {
                        tr {
                            td { (place(finding)) }
                            td { (sentence::confidence_word(finding)) }
                            td.n { (sentence::weight(finding)) }
                            td.n { (number::percent(finding.share)) }
                            td {
                                @if let Some(tried) = sentence::tried(finding) { (tried) "; " }
                                (sentence::facts(finding, usize::MAX))
                            }
                            td { (finding.against.join("; ")) }
                        }
                    }
                }
            } }
            @if let Some(cause) = sentence::cause_of(findings, first) { p { (cause) } }
            p { "Suggested fix: " (first.remedy) }
            @let tries: Vec<&str> = same
                .iter()
                .flat_map(|it| &it.variants)
                .map(|it| it.name.as_str())
                .collect();
            p.faint {
                "In PostgreSQL’s manual: " (first.manual) "."
                @if let Some(name) = tries.first() {
                    " " code { "pgassay run … --try-remedies" } " runs " code { (name) }
                    " as another variant."
                }
            }
        }
    }
}
