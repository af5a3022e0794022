//! The strongest findings: what happens, the evidence, the suggested fix. The page has all of them.

use std::collections::BTreeMap;

use pgassay_record::finding::{Confidence, Finding};
use pgassay_record::run::Run;

use super::answer;
use super::style::{Style, heading};
use super::table::{TextStyle, paint, wrap};
use crate::{number, sentence};

/// The page shows the other findings.
const SHOWN_MAX: usize = 3;
const OPERATORS_SHOWN_MAX: usize = 6;
const FACTS_MAX: usize = 3;
const INDENT: &str = "              ";

/// The section of a run; empty without findings.
pub(super) fn section(run: &Run, style: Style) -> String {
    let shown: Vec<&Finding> = run.findings.iter().collect();
    let why = "known causes of lost time, most certain first. Confirmed: a fix was run and helped; correlated: it \
               differs between variants, and throughput changed accordingly; likely: measured by two sources; hint: by \
               one source, or there is evidence against it";
    list(&run.findings, &shown, why, style, Some(run))
}

/// Where a finding of a run is, and its cost if it compares two points. Empty for a live server.
fn place(run: Option<&Run>, finding: &Finding) -> String {
    let Some(run) = run else {
        return String::new();
    };
    let name = sentence::point_name(run, finding);
    match finding.difference_us {
        Some(_) => format!("{} µs/tx in {name}", sentence::weight(finding)),
        None => name,
    }
}

/// The other findings with the cause of this one, one for each place. A difference is no further point that has
/// the cause: it may be that the variant does not have it.
fn other_cases<'a>(
    findings: &'a [Finding],
    shown: &Finding,
    run: Option<&Run>,
) -> Vec<&'a Finding> {
    let Some(run) = run else {
        return Vec::new();
    };
    let mut places = vec![sentence::point_name(run, shown)];
    let is_case = |it: &&Finding| {
        it.id == shown.id && sentence::is_difference(it) == sentence::is_difference(shown)
    };
    let mut cases = Vec::new();
    for it in findings.iter().filter(is_case) {
        let place = sentence::point_name(run, it);
        if !places.contains(&place) {
            places.push(place);
            cases.push(it);
        }
    }
    cases
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

/// The section of a live server: first what concerns objects that a DBA can act on.
pub(super) fn observed(findings: &[Finding], style: Style) -> String {
    let (operators, others): (Vec<&Finding>, Vec<&Finding>) =
        findings.iter().partition(|it| it.object.is_some());
    let mut out = String::new();
    let (shown, rest) = operators.split_at(operators.len().min(OPERATORS_SHOWN_MAX));
    if !shown.is_empty() {
        let why =
            "what to do first, by the load that it would save; pgassay does not run the fixes";
        out.push_str(&heading("ACTIONS", why, style));
        for (at, finding) in shown.iter().enumerate() {
            let is_known = shown[..at].iter().any(|it| is_covered(finding, it));
            out.push_str(&of_object(findings, finding, is_known, style));
        }
        out.push_str(&not_shown(rest, style));
    }
    let why = if out.is_empty() {
        "known causes of lost time, most certain first"
    } else {
        "in the server's internals (locks, WAL, buffers), most certain first"
    };
    if !out.is_empty() && !others.is_empty() {
        out.push('\n');
    }
    out + &list(findings, &others, why, style, None)
}

/// Whether the words of an earlier finding say what to do about this one, maybe with other SQL.
fn is_covered(finding: &Finding, earlier: &Finding) -> bool {
    let has_fix = finding.fix_sql.is_some() || finding.suggested_fix == earlier.suggested_fix;
    finding.id == earlier.id && has_fix
}

/// A finding about an object: its name, the evidence, the fix with its SQL, and the risk. Fix and risk
/// are not repeated for another object with the same cause.
fn of_object(findings: &[Finding], finding: &Finding, is_known: bool, style: Style) -> String {
    let columns = style.columns();
    let object = finding.object.as_ref().map(ToString::to_string);
    let gain = sentence::gain(finding).map_or_else(String::new, |gain| format!("; {gain}"));
    let title = format!("{}: {}{gain}", finding.title, object.unwrap_or_default());
    let mut out = entry(finding, &title, style);
    let facts = with_first_caveat(finding, sentence::facts(finding, FACTS_MAX));
    out.push_str(&wrap(&facts, columns, INDENT, INDENT));
    let fix = cause_or_fix(findings, finding, || suggested(finding));
    let next = format!("{INDENT}  ");
    if !is_known {
        out.push_str(&wrap(&format!("→ {fix}"), columns, INDENT, &next));
    }
    if let Some(sql) = sentence::fix_sql(finding) {
        let sql = wrap(&sql, columns, &next, &next);
        out.push_str(&(paint(sql.trim_end(), TextStyle::Strong, style.color) + "\n"));
    }
    if let Some(risk) = finding.risk.as_ref().filter(|_| !is_known) {
        let risk = wrap(&format!("Risk: {risk}"), columns, &next, &next);
        out.push_str(&(paint(risk.trim_end(), TextStyle::Faint, style.color) + "\n"));
    }
    out
}

/// Some of the findings: the strongest of each cause. `run` is that of the findings, if there is one.
fn list(
    findings: &[Finding],
    shown: &[&Finding],
    why: &str,
    style: Style,
    run: Option<&Run>,
) -> String {
    let mut strongest: Vec<&Finding> = Vec::new();
    for &finding in shown {
        if !strongest.iter().any(|it| it.id == finding.id) {
            strongest.push(finding);
        }
    }
    if strongest.is_empty() {
        return String::new();
    }
    let mut out = heading("FINDINGS", why, style);
    for finding in strongest.iter().take(SHOWN_MAX) {
        let others = other_cases(findings, finding, run);
        let fix = cause_or_fix(findings, finding, || {
            suggested(finding) + &suggested_elsewhere(&others, finding)
        });
        let place = place(run, finding);
        let more = more_places(finding, &others);
        out.push_str(&one(finding, &place, &more, &fix, style));
    }
    let rest = strongest.get(SHOWN_MAX..).unwrap_or_default();
    out + &not_shown(rest, style)
}

/// What to do about a finding: about its cause, if that is certain, about the finding, or both.
fn cause_or_fix(findings: &[Finding], finding: &Finding, fix: impl FnOnce() -> String) -> String {
    match sentence::cause_of(findings, finding) {
        Some(cause) if sentence::is_cause_certain(finding) => cause,
        Some(cause) => format!("{cause} {}", fix()),
        None => fix(),
    }
}

/// The titles of findings for which there is no room.
fn not_shown(rest: &[&Finding], style: Style) -> String {
    let mut titles: Vec<&str> = Vec::new();
    for finding in rest {
        if !titles.contains(&&*finding.title) {
            titles.push(&finding.title);
        }
    }
    if titles.is_empty() {
        return String::new();
    }
    let text = format!("Also: {}. See the HTML report.", titles.join("; "));
    let text = wrap(&text, style.columns(), "  ", "  ");
    paint(text.trim_end(), TextStyle::Faint, style.color) + "\n"
}

fn suggested(finding: &Finding) -> String {
    sentence::advice(finding, sentence::first_sentences(&finding.suggested_fix))
}

/// How many other variants and conditions have the finding: ` (and in 2 other variants, 1 of them as hint)`.
fn more_places(shown: &Finding, others: &[&Finding]) -> String {
    let count = others.len() as u64;
    let mut words: BTreeMap<&str, usize> = BTreeMap::new();
    for it in others {
        *words.entry(sentence::confidence_word(it)).or_default() += 1;
    }
    words.remove(sentence::confidence_word(shown));
    let less_certain = words.iter().map(|(word, count)| match *count as u64 {
        all if all == others.len() as u64 => format!(", as {word}"),
        some => format!(", {some} of them as {word}"),
    });
    let less_certain: String = less_certain.collect();
    if others.iter().all(|it| it.condition == shown.condition) {
        match count {
            0 => String::new(),
            _ => format!(
                " (and in {}{less_certain})",
                number::count(count, "other variant")
            ),
        }
    } else if others.iter().all(|it| it.variant == shown.variant) {
        format!(
            " (and in {}{less_certain})",
            number::count(count, "other condition")
        )
    } else {
        let combinations = number::count(count, "other combination");
        format!(" (and in {combinations} of variant and condition{less_certain})")
    }
}

/// What is suggested instead in most of the others with another fix; empty if there are none.
fn suggested_elsewhere(others: &[&Finding], shown: &Finding) -> String {
    let mut cases: BTreeMap<String, usize> = BTreeMap::new();
    for it in others {
        let fix = sentence::first_sentences(&it.suggested_fix);
        *cases.entry(fix.to_string()).or_default() += 1;
    }
    // A fix that begins like the one shown is no other.
    let start = |fix: &str| fix.split(". ").next().map(str::to_owned);
    cases.retain(|fix, _| start(fix) != start(&shown.suggested_fix));
    let most = cases.into_iter().max_by_key(|(_, count)| *count);
    most.map_or_else(String::new, |(fix, count)| {
        format!(
            " In {} of these combinations: {fix}",
            number::whole(count as f64)
        )
    })
}

/// The first lines: confidence and title.
fn entry(finding: &Finding, title: &str, style: Style) -> String {
    let word = sentence::confidence_word(finding);
    let ink = match finding.confidence {
        Confidence::Confirmed => TextStyle::Strong,
        Confidence::Correlated | Confidence::Likely => TextStyle::Caution,
        Confidence::Hint => TextStyle::Faint,
    };
    let first = format!("  {word:<10}  ");
    let text = wrap(title, style.columns(), &first, INDENT);
    text.replacen(word, &paint(word, ink, style.color), 1)
}

/// The facts, and the first evidence against the finding.
fn with_first_caveat(finding: &Finding, facts: String) -> String {
    match finding.evidence_against.first() {
        Some(against) => format!("{facts}; but {against}"),
        None => facts,
    }
}

fn one(finding: &Finding, place: &str, more: &str, fix: &str, style: Style) -> String {
    let title = if place.is_empty() {
        finding.title.clone()
    } else {
        format!("{}: {place}{more}", finding.title)
    };
    let mut out = entry(finding, &title, style);
    let mut facts = sentence::facts(finding, FACTS_MAX);
    if let Some(tried) = sentence::fix_result(finding) {
        facts = format!("{tried}; {facts}");
    }
    facts = with_first_caveat(finding, facts);
    let columns = style.columns();
    out.push_str(&wrap(&facts, columns, INDENT, INDENT));
    let fix = format!("→ {fix}");
    out.push_str(&wrap(&fix, columns, INDENT, &format!("{INDENT}  ")));
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
        let words = |queue: &str| {
            let text = observed(&[finding(CAUSE), finding(queue)], style);
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        // Inferred from two differences: it may be wrong, so the queue keeps its advice.
        let text = words(QUEUE);
        let may = "These waits may follow from \"Each commit waits for the disk\", which differs";
        assert!(text.contains(may), "{text}");
        assert!(text.contains("Spread the counter"), "{text}");
        assert_eq!(text.matches("correlated").count(), 2, "{text}");
        // Observed on a live server.
        let text = words(&QUEUE.replace("\"difference_us\": 2700.0, ", ""));
        let are = "These waits are caused by \"Each commit waits for the disk\": fix that first.";
        assert!(text.contains(are), "{text}");
        assert!(!text.contains("Spread the counter"), "{text}");
    }

    /// Regression: a confirmed finding had "and in 14 other combinations", in eight of which it was only a hint.
    #[test]
    fn less_certain_cases_are_not_counted_as_equally_certain() {
        let with = |confidence: &str| finding(&CAUSE.replace("correlated", confidence));
        let shown = with("confirmed");
        let others = [with("confirmed"), with("hint"), with("hint")];
        let text = |others: &[Finding]| more_places(&shown, &others.iter().collect::<Vec<_>>());
        let some = " (and in 3\u{a0}other variants, 2 of them as hint)";
        assert_eq!(text(&others), some);
        assert_eq!(text(&others[..1]), " (and in 1\u{a0}other variant)");
        assert_eq!(
            text(&others[1..]),
            " (and in 2\u{a0}other variants, as hint)"
        );
    }

    /// Regression: a fix was repeated for other combinations, in which only its second sentence differed.
    #[test]
    fn a_fix_that_begins_like_the_one_shown_is_not_repeated() {
        let with = |fix: &str| finding(&CAUSE.replace("Use one transaction.", fix));
        let shown = with("Use one transaction. It commits once.");
        let (alike, other) = (
            with("Use one transaction. Or a group."),
            with("Use a group."),
        );
        assert_eq!(suggested_elsewhere(&[&alike], &shown), "");
        let elsewhere = suggested_elsewhere(&[&alike, &other], &shown);
        assert_eq!(elsewhere, " In 1 of these combinations: Use a group.");
    }

    #[test]
    fn confirmed_without_a_fix_in_older_results_is_correlated() {
        let old = CAUSE.replace("correlated", "confirmed");
        assert_eq!(sentence::confidence_word(&finding(&old)), "correlated");
        let own = old.replace("\"difference_us\": 900.0,", "");
        assert_eq!(sentence::confidence_word(&finding(&own)), "confirmed");
    }
}
