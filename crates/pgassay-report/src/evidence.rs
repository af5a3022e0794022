//! The evidence of findings in words.

use pgassay_account::counters::CounterUnit;
use pgassay_record::finding::{Fact, FactUnit, Finding};

use crate::{activity, number};

/// A finding's first facts, each with its figure.
pub(crate) fn facts(finding: &Finding, most: usize) -> String {
    let facts: Vec<String> = finding.evidence.iter().take(most).map(fact).collect();
    facts.join("; ")
}

/// One fact, with its value and unit.
pub(crate) fn fact(fact: &Fact) -> String {
    let what = &fact.what;
    let Some(value) = fact.value else {
        return what.clone();
    };
    match fact.unit {
        FactUnit::MicrosPerTransaction => format!("{what} {}\u{a0}µs/tx", number::micros(value)),
        FactUnit::PerTransaction => {
            format!(
                "{what} {}\u{a0}/tx",
                number::counter_value(value, CounterUnit::Count)
            )
        }
        FactUnit::BytesPerTransaction => {
            format!(
                "{what} {}/tx",
                number::counter_value(value, CounterUnit::Bytes)
            )
        }
        FactUnit::Share => format!("{} {what}", number::percent(value)),
        FactUnit::Sessions => format!("{what} {}", activity::load(value)),
        FactUnit::Count => format!("{what} {}", number::whole(value)),
        FactUnit::PerSecond => format!("{what} {}/s", number::plain(value)),
        FactUnit::Bytes => format!("{what} {}", activity::size(value.max(0.0) as u64)),
        FactUnit::Micros => format!("{what} {}", activity::age(value)),
        FactUnit::None => what.clone(),
    }
}

/// What the fix of a finding about an object would give back at most.
pub(crate) fn gain(finding: &Finding) -> Option<String> {
    let saved = finding.saved_sessions.filter(|it| *it > 0.0)?;
    let share = number::noise(finding.share);
    Some(format!(
        "{} sessions ({share} of the load)",
        activity::load(saved)
    ))
}

/// The SQL of a finding's fix as psql takes it: with a semicolon, before a comment at its end.
pub(crate) fn fix_sql(finding: &Finding) -> Option<String> {
    let sql = finding.fix_sql.as_deref()?;
    // A name in quotes may contain a dash, too.
    let is_comment = |it: &(&str, &str)| !it.1.contains(['\'', '"']);
    let (sql, comment) = sql
        .rsplit_once(" -- ")
        .filter(is_comment)
        .unwrap_or((sql, ""));
    let sql = sql.trim_end().trim_end_matches(';');
    Some(if comment.is_empty() {
        format!("{sql};")
    } else {
        format!("{sql}; -- {comment}")
    })
}

/// The first two sentences of a suggested fix.
pub(crate) fn first_sentences(text: &str) -> &str {
    let mut stops = text.match_indices(". ").map(|(at, _)| at);
    stops.nth(1).map_or(text, |at| &text[..=at])
}
