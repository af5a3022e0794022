//! What is known of a live server's finding, line by line. The reports have other layouts.

use pgassay_record::finding::Finding;

use crate::sentence;

/// How sure the cause is, in a word.
pub fn finding_confidence(finding: &Finding) -> &'static str {
    sentence::confidence_word(finding)
}

/// The SQL of a finding's fix as psql takes it.
pub fn finding_sql(finding: &Finding) -> Option<String> {
    sentence::fix_sql(finding)
}

/// One of the findings in lines of any length: what to do and the risk of that, all evidence, and what is against it.
pub fn finding_lines(findings: &[Finding], finding: &Finding) -> Vec<String> {
    let object = finding.object.as_ref();
    let object = object.map_or_else(String::new, |it| format!(": {it}"));
    let gain = sentence::gain(finding);
    let gain = gain.map_or_else(String::new, |it| format!("; the fix saves at most {it}"));
    let mut lines = vec![
        format!("{}{object}", finding.title),
        format!("{}{gain}", sentence::confidence_word(finding)),
    ];
    lines.extend(sentence::cause_of(findings, finding));
    lines.push(format!("Suggested fix: {}", finding.suggested_fix));
    if let Some(sql) = sentence::fix_sql(finding) {
        lines.push(format!("  {sql}"));
        lines.push("pgassay does not run it.".to_owned());
    }
    lines.extend(finding.risk.iter().map(|it| format!("Risk: {it}")));
    lines.push("Evidence:".to_owned());
    let facts = finding.evidence.iter().map(sentence::fact);
    lines.extend(facts.map(|it| format!("  {it}")));
    let against = finding.evidence_against.iter();
    lines.extend(against.map(|it| format!("  against it: {it}")));
    lines.push(format!("PostgreSQL manual: {}.", finding.manual));
    lines
}
