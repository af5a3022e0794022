//! All findings: each with its points, the evidence for and against it, and the suggested fix.

use maud::{Markup, html};
use pgassay_record::finding::Finding;
use pgassay_record::run::Run;

use super::tables;
use crate::{number, sentence};

/// Rows of a finding above those that a click shows: the most certain and expensive ones.
const ROWS_SHOWN: usize = 5;

/// The section; empty without findings. `position` names the point or comparison of a finding.
pub(super) fn section(findings: &[Finding], position: impl Fn(&Finding) -> String) -> Markup {
    let shown: Vec<&Finding> = findings.iter().collect();
    of_causes(findings, &shown, position)
}

/// Some of the findings, by cause.
fn of_causes(
    findings: &[Finding],
    shown: &[&Finding],
    position: impl Fn(&Finding) -> String,
) -> Markup {
    let mut ids: Vec<&str> = Vec::new();
    for finding in shown {
        if !ids.contains(&finding.id.as_str()) {
            ids.push(&finding.id);
        }
    }
    html! {
        @if !shown.is_empty() {
            section #findings {
                h2 { "Findings" }
                p.faint {
                    "Known causes of lost time, most certain first, then by cost. Confirmed: the suggested fix was "
                    "run, throughput rose and the cause shrank. Correlated: two variants differ in this "
                    "cause beyond noise, and throughput changed in the expected direction; this does not "
                    "prove causation. Likely: at least two independent sources measured it and no "
                    "evidence contradicts it. Hint: a single source, or there is evidence against it."
                }
                @for (number, id) in ids.iter().enumerate() {
                    (one(findings, &of_cause(shown, id, &position), number < 3, &position))
                }
            }
        }
    }
}

/// The findings of a cause. A difference within noise is shown as one of its points, so it has no row if that has one.
fn of_cause<'a>(
    shown: &[&'a Finding],
    id: &str,
    position: &impl Fn(&Finding) -> String,
) -> Vec<&'a Finding> {
    let of_noise = |it: &Finding| it.difference_us.is_some() && !sentence::is_difference(it);
    let same: Vec<&Finding> = shown.iter().copied().filter(|it| it.id == id).collect();
    let others = same.iter().filter(|it| !of_noise(it));
    let places: Vec<String> = others.map(|it| position(it)).collect();
    let is_row = |it: &&Finding| !of_noise(it) || !places.contains(&position(it));
    same.iter().copied().filter(is_row).collect()
}

/// The findings of a live server: what concerns objects that a DBA can act on, then the others.
pub(super) fn observed(findings: &[Finding], position: impl Fn(&Finding) -> String) -> Markup {
    let (operators, others): (Vec<&Finding>, Vec<&Finding>) =
        findings.iter().partition(|it| it.object.is_some());
    html! {
        @if !operators.is_empty() {
            section #operator-findings {
                h2 { "What to act on" }
                p.faint {
                    "Ranked by the load that a fix could save, at most. pgassay does not run the "
                    "fixes."
                }
                @for (at, finding) in operators.iter().enumerate() {
                    (of_object(findings, finding, at < 3))
                }
            }
        }
        (of_causes(findings, &others, position))
    }
}

fn of_object(findings: &[Finding], finding: &Finding, open: bool) -> Markup {
    let facts = |is_context: bool| {
        let facts = finding
            .evidence
            .iter()
            .filter(move |it| it.context == is_context);
        facts.map(sentence::fact)
    };
    html! {
        details open[open] {
            summary {
                b { (finding.title) } ": "
                @if let Some(object) = &finding.object { (object) }
                ", " (sentence::confidence_word(finding))
                @if let Some(gain) = sentence::gain(finding) { ", " span.figure { (gain) } }
            }
            ul {
                @for fact in facts(false) { li { (fact) } }
                @for fact in facts(true) { li.faint { (fact) } }
                @for against in &finding.evidence_against { li { "against it: " (against) } }
            }
            @if let Some(cause) = sentence::cause_of(findings, finding) { p { (cause) } }
            p { "Suggested fix: " (finding.suggested_fix) }
            @if let Some(sql) = sentence::fix_sql(finding) { pre { (sql) } }
            @if let Some(risk) = &finding.risk { p { b { "Risk: " } (risk) } }
            p.faint { "PostgreSQL manual: " (finding.manual) "." }
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

/// The findings that are as certain as the first, which is the most certain one.
fn as_certain<'a>(same: &[&'a Finding]) -> impl Iterator<Item = &'a Finding> {
    let first = same.first().map(|it| it.confidence);
    let same = same.iter().copied();
    same.filter(move |it| Some(it.confidence) == first)
}

/// The largest share of response time among those: a hint is no part of what is confirmed.
fn largest_share(same: &[&Finding]) -> f64 {
    as_certain(same).map(sentence::share).fold(0.0, f64::max)
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
    let most = as_certain(same).count();
    html! {
        details open[open] {
            summary {
                b { (first.title) } " (" (sentence::confidence_word(first)) "): "
                @if most > 1 { "up to " }
                span.figure { (number::percent(largest_share(same))) " of response time" }
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
            p { (sentence::advice(first, &first.suggested_fix)) }
            // A variant of the study may have measured it, if only for some of these points.
            @let results: Vec<&str> = same
                .iter()
                .filter_map(|it| Some(it.fix_result.as_ref()?.name.as_str()))
                .collect();
            @let tries: Vec<&str> = same
                .iter()
                .flat_map(|it| &it.fix_variants)
                .map(|it| it.name.as_str())
                .filter(|it| !results.contains(it))
                .collect();
            p.faint {
                "PostgreSQL manual: " (first.manual) "."
                @if let Some(name) = tries.first() {
                    " To benchmark " code { (name) } " as an additional variant, run it again with "
                    code { "--try-fixes" } "."
                }
            }
        }
    }
}

fn table(findings: &[&Finding], position: &impl Fn(&Finding) -> String) -> Markup {
    let is_contradicted = findings.iter().any(|it| !it.evidence_against.is_empty());
    html! {
            div.scroll { table {
                thead { tr {
                    th scope="col" { "where" } th scope="col" { "confidence" }
                    th.n scope="col" { "µs/tx" } th.n scope="col" { "of response time" }
                    th scope="col" { "evidence" }
                    @if is_contradicted { th scope="col" { "evidence against" } }
                } }
                tbody {
                    @for finding in findings {
                        tr {
                            td { (position(finding)) }
                            td { (sentence::confidence_word(finding)) }
                            td.n { (sentence::weight(finding)) }
                            td.n { (number::percent(sentence::share(finding))) }
                            td.evidence {
                                @if let Some(tried) = sentence::fix_result(finding) { (tried) "; " }
                                (sentence::facts(finding, usize::MAX))
                            }
                            @if is_contradicted { td.evidence { (finding.evidence_against.join("; ")) } }
                        }
                    }
                }
            } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: "(confirmed): up to 44.4% of response time" was the share of a hint; what was confirmed had 39.0%.
    #[test]
    fn the_largest_share_is_of_findings_that_are_as_certain_as_the_heading_says() {
        let with = |confidence: &str, share: f64| -> Finding {
            let text = format!(
                r#"{{"id": "a", "title": "t", "confidence": "{confidence}", "weight_us": 1.0, "share": {share},
                    "evidence": [], "suggested_fix": "f", "manual": "m"}}"#
            );
            serde_json::from_str(&text).expect("a finding")
        };
        let all = [
            with("confirmed", 0.31),
            with("confirmed", 0.39),
            with("hint", 0.444),
        ];
        let page = section(&all, |_| "here".to_owned()).into_string();
        let heading = r#"up to <span class="figure">39.0% of response time</span>"#;
        assert!(page.contains(heading), "{page}");
        assert_eq!(page.matches("44.4%").count(), 1, "only in its row: {page}");
    }
}
