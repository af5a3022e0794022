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

/// The first two sentences of a suggested fix.
pub(crate) fn first_sentences(text: &str) -> &str {
    let mut stops = text.match_indices(". ").map(|(at, _)| at);
    stops.nth(1).map_or(text, |at| &text[..=at])
}
