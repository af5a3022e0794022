//! The rows of the list of findings.

use pgassay_record::activity::Activity;
use pgassay_record::finding::{Finding, FindingObject, ObjectKind};
use pgassay_report::activity::{finding_confidence, load, statement_text};

use super::rows::{SortValue, TopCell, TopRow, Urgency, known, word};

/// The findings, what to do first at the top.
pub(super) fn findings(activity: &Activity, findings: &[Finding]) -> Vec<TopRow> {
    let rows = findings.iter().enumerate();
    rows.map(|(at, it)| row(activity, it, at)).collect()
}

/// What a finding is known by in later readings.
pub(super) fn key(finding: &Finding) -> String {
    let statement = finding.statement.as_deref().unwrap_or_default();
    format!("{} {} {statement}", finding.id, object(finding))
}

fn object(finding: &Finding) -> FindingObject {
    let object = finding.object.clone();
    object.unwrap_or(FindingObject {
        kind: ObjectKind::Server,
        name: String::new(),
    })
}

fn row(activity: &Activity, finding: &Finding, at: usize) -> TopRow {
    let saved = finding.saved_sessions.filter(|it| *it > 0.0);
    let statement = known(activity, finding.statement.as_deref());
    let text = statement.map(|it| statement_text(activity, Some(it)));
    let object = object(finding).to_string();
    TopRow {
        key: key(finding),
        urgency: Urgency::Calm,
        searched: format!(
            "{} {} {object} {}",
            finding.id,
            finding.title,
            text.unwrap_or_default()
        ),
        cells: vec![
            TopCell {
                // Problems that have no load yet are in the order of their urgency.
                sort: SortValue::Number(-(at as f64)),
                ..word(saved.map_or_else(String::new, load))
            },
            word(finding_confidence(finding)),
            word(&finding.title),
            word(object),
        ],
        statement,
        episode: None,
        pid: None,
    }
}
