//! All findings: each with its points, the evidence for and against it, and the suggested fix.

use maud::{Markup, html};
use pgassay_record::finding::Finding;
use pgassay_record::run::Run;

use super::tables;
use crate::{facts, number, sentence};

/// Rows of a finding above those that a click shows: the most certain and expensive ones.
const ROWS_SHOWN: usize = 5;

/// The section; empty without findings. `position` names the point or comparison of a finding.
pub(super) fn section(findings: &[Finding], position: impl Fn(&Finding) -> String) -> Markup {
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
                    "Known causes of lost time, by confidence and cost. Confirmed: the suggested fix was "
                    "run, throughput rose and the cause shrank. Correlated: two variants differ in this "
                    "cause beyond noise, and throughput changed in the expected direction; this does not "
                    "prove causation. Likely: at least two independent sources measured it and no "
                    "evidence contradicts it. Hint: a single source."
                }
                @for (number, id) in ids.iter().enumerate() {
                    @let same: Vec<&Finding> = findings.iter().filter(|it| it.id == *id).collect();
                    (one(findings, &same, number < 3, &position))
                }
            }
        }
    }
}

/// The results of the suggested fixes that were run.
pub(super) fn fixes_tried(run: &Run) -> Markup {
    html! {
        @if let Some(tried) = &run.fix_trials {
            section #fixes {
                h2 { "Suggested fixes tried" }
                p.faint {
                    "The findings' suggested fixes, benchmarked as additional variants of the same "
                    "study, interleaved with the affected variant."
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
    position: &impl Fn(&Finding) -> String,
) -> Markup {
    let Some(first) = same.first() else {
        return html! {};
    };
    html! {
        details open[open] {
            summary {
                b { (first.title) } ", "
                (sentence::confidence_word(first)) ", "
                @if first.object.is_none() {
                    span.figure { (number::percent(first.share)) " of response time" }
                } @else if let Some(saved) = first.saved_sessions {
                    span.figure {
                        (number::decimals(saved, 2)) " of the active sessions, "
                        (number::percent(first.share))
                    }
                }
            }
            @let (first_rows, more) = same.split_at(same.len().min(ROWS_SHOWN));
            (table(first_rows, position))
            @if !more.is_empty() {
                details {
                    summary { (more.len()) " more" }
                    (table(more, position))
                }
            }
            @if let Some(cause) = sentence::cause_of(findings, first) { p { (cause) } }
            p { "Suggested fix: " (first.suggested_fix) }
            @for sql in same.iter().filter_map(|it| it.fix_sql.as_ref()) {
                pre { code { (sql) ";" } }
            }
            @if let Some(risk) = &first.risk { p { "Risk: " (risk) } }
            @let tries: Vec<&str> = same
                .iter()
                .flat_map(|it| &it.fix_variants)
                .map(|it| it.name.as_str())
                .collect();
            p.faint {
                "PostgreSQL manual: " (first.manual) "."
                @if let Some(name) = tries.first() {
                    " " code { "pgassay run … --try-fixes" } " benchmarks " code { (name) }
                    " as an additional variant."
                }
            }
        }
    }
}

fn table(findings: &[&Finding], position: &impl Fn(&Finding) -> String) -> Markup {
    html! {
            div.scroll { table {
                thead { tr {
                    th scope="col" { "where" } th scope="col" { "confidence" }
                    th.n scope="col" { "µs/tx" } th.n scope="col" { "of response time" }
                    th scope="col" { "evidence" } th scope="col" { "evidence against" }
                } }
                tbody {
                    @for finding in findings {
                        tr {
                            @let object = sentence::object(finding);
                            td { (if object.is_empty() { position(finding) } else { object }) }
                            td { (sentence::confidence_word(finding)) }
                            td.n { (sentence::weight(finding)) }
                            td.n { (number::percent(finding.share)) }
                            td {
                                @if let Some(tried) = sentence::fix_result(finding) { (tried) "; " }
                                (facts::in_words(finding, usize::MAX))
                            }
                            td { (finding.evidence_against.join("; ")) }
                        }
                    }
                }
            } }
    }
}
