//! The strongest findings: what happens, the evidence, the suggested fix. The page has all of them.

use std::fmt::Write as _;

use pgassay_record::finding::{Confidence, Finding};
use pgassay_record::run::Run;

use super::answer;
use super::style::{Style, heading};
use super::table::{TextStyle, paint, wrap};
use crate::{facts, number, sentence};

/// The page shows the other findings.
const SHOWN_MAX: usize = 3;
const FACTS_MAX: usize = 3;
const INDENT: &str = "              ";

/// The section of a run; empty without findings.
pub(super) fn section(run: &Run, style: Style) -> String {
    list(&run.findings, style, |finding| {
        let name = sentence::point_name(run, finding);
        match finding.difference_us {
            Some(_) => format!("{} µs/tx in {name}", sentence::weight(finding)),
            None => name,
        }
    })
}

/// The results of the suggested fixes that were run.
pub(super) fn fixes_tried(run: &Run, style: Style) -> String {
    let Some(tried) = &run.fix_trials else {
        return String::new();
    };
    let explanation = "suggested fixes, benchmarked as additional variants of the same study";
    let mut out = heading("FIXES TRIED", explanation, style);
    for answer in sentence::answers(tried) {
        out.push_str(&wrap(&answer.text, style.columns(), "→ ", "  "));
    }
    out.push_str(&answer::section(tried, style));
    out
}

/// The section of a live server.
pub(super) fn observed(findings: &[Finding], style: Style) -> String {
    list(findings, style, sentence::object)
}

fn list(findings: &[Finding], style: Style, place: impl Fn(&Finding) -> String) -> String {
    let mut strongest: Vec<&Finding> = Vec::new();
    for finding in findings {
        if !strongest.iter().any(|it| it.id == finding.id) {
            strongest.push(finding);
        }
    }
    if strongest.is_empty() {
        return String::new();
    }
    let mut out = heading(
        "FINDINGS",
        "known causes of lost time, by confidence and cost",
        style,
    );
    for finding in strongest.iter().take(SHOWN_MAX) {
        let elsewhere = findings.iter().filter(|it| it.id == finding.id).count() - 1;
        let fix = sentence::cause_of(findings, finding);
        let fix = fix.unwrap_or_else(|| suggested(finding));
        out.push_str(&one(finding, &place(finding), elsewhere, &fix, style));
    }
    if let Some(rest) = strongest.get(SHOWN_MAX..).filter(|rest| !rest.is_empty()) {
        let titles: Vec<&str> = rest.iter().map(|it| it.title.as_str()).collect();
        let text = format!("Also: {}. See the HTML report.", titles.join("; "));
        let text = wrap(&text, style.columns(), "  ", "  ");
        out.push_str(&paint(text.trim_end(), TextStyle::Faint, style.color));
        out.push('\n');
    }
    out
}

fn suggested(finding: &Finding) -> String {
    format!(
        "Suggested fix: {}",
        sentence::first_sentences(&finding.suggested_fix)
    )
}

fn one(finding: &Finding, place: &str, elsewhere: usize, fix: &str, style: Style) -> String {
    let word = sentence::confidence_word(finding);
    let ink = match finding.confidence {
        Confidence::Confirmed => TextStyle::Strong,
        Confidence::Correlated | Confidence::Likely => TextStyle::Caution,
        Confidence::Hint => TextStyle::Faint,
    };
    let more = match elsewhere {
        0 => String::new(),
        1 => " (and in 1 other case)".to_owned(),
        many => format!(" (and in {} other cases)", number::whole(many as f64)),
    };
    let title = if place.is_empty() {
        finding.title.clone()
    } else {
        format!("{}: {place}{more}", finding.title)
    };
    let first = format!("  {word:<10}  ");
    let text = wrap(&title, style.columns(), &first, INDENT);
    let mut out = text.replacen(word, &paint(word, ink, style.color), 1);
    let mut evidence = facts::in_words(finding, FACTS_MAX);
    if let Some(tried) = sentence::fix_result(finding) {
        evidence = format!("{tried}; {evidence}");
    }
    if let Some(against) = finding.evidence_against.first() {
        evidence = format!("{evidence}; but {against}");
    }
    let columns = style.columns();
    out.push_str(&wrap(&evidence, columns, INDENT, INDENT));
    let (fix, under) = (format!("→ {fix}"), format!("{INDENT}  "));
    out.push_str(&wrap(&fix, columns, INDENT, &under));
    if let Some(sql) = &finding.fix_sql {
        // On one line, so that it can be copied.
        let _ = writeln!(out, "{under}{sql};");
    }
    if let Some(risk) = &finding.risk {
        out.push_str(&wrap(&format!("Risk: {risk}"), columns, &under, &under));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(text: &str) -> Finding {
        serde_json::from_str(text).expect("a finding")
    }

    const CAUSE: &str = r#"{"id": "commit-sync", "title": "Each commit waits for the disk",
        "difference_us": 900.0, "difference_interval_us": [700.0, 1100.0], "confidence": "correlated",
        "weight_us": 1200.0, "share": 0.2, "evidence": [], "suggested_fix": "Use one transaction.",
        "manual": "m"}"#;
    const QUEUE: &str = r#"{"id": "hot-row", "title": "Transactions wait for row locks",
        "difference_us": 2700.0, "confidence": "correlated", "queueing": true, "explained_by": "commit-sync",
        "weight_us": 3600.0, "share": 0.6, "evidence": [], "suggested_fix": "Spread the counter.",
        "manual": "m"}"#;

    #[test]
    fn a_queue_that_follows_from_a_service_time_advises_to_fix_that() {
        let style = Style {
            color: false,
            width: 100,
        };
        let text = observed(&[finding(CAUSE), finding(QUEUE)], style);
        let list = "Queueing that follows from \"Each commit waits for the disk\": fix that first.";
        assert!(text.contains(list), "{text}");
        assert!(!text.contains("Spread the counter"), "{text}");
        assert_eq!(text.matches("correlated").count(), 2, "{text}");
    }

    #[test]
    fn a_finding_for_operators_has_its_object_its_statement_and_its_risk() {
        let text = CAUSE.replace(
            r#""manual": "m""#,
            r#""manual": "m", "object": {"kind": "session", "name": "4711"}, "saved_sessions": 7.9,
            "fix_sql": "select pg_terminate_backend(4711)", "risk": "It is rolled back.""#,
        );
        let text = text.replace(
            r#""evidence": []"#,
            r#""evidence": [
            {"source": "waits", "what": "average sessions that wait for it", "value": 7.9,
             "unit": "sessions"},
            {"source": "catalog", "what": "idle in transaction for", "value": 12e6,
             "unit": "micros"},
            {"source": "counters", "what": "writes", "value": 40.0, "unit": "per_second"}]"#,
        );
        let text = text.replace(r#""difference_us": 900.0,"#, "");
        let style = Style {
            color: false,
            width: 100,
        };
        let printed = observed(&[finding(&text)], style).replace('\u{a0}', " ");
        for line in [
            "Each commit waits for the disk: session 4711",
            "average sessions that wait for it 7.90; idle in transaction for 12 s; writes 40.0 /s",
            "select pg_terminate_backend(4711);",
            "Risk: It is rolled back.",
        ] {
            assert!(printed.contains(line), "{line}\n{printed}");
        }
    }

    #[test]
    fn confirmed_without_a_fix_in_older_results_is_correlated() {
        let old = CAUSE.replace("correlated", "confirmed");
        assert_eq!(sentence::confidence_word(&finding(&old)), "correlated");
        let own = old.replace("\"difference_us\": 900.0,", "");
        assert_eq!(sentence::confidence_word(&finding(&own)), "confirmed");
    }
}
