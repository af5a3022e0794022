//! The evidence of findings in words.

use pgassay_account::counters::CounterUnit;
use pgassay_record::finding::{Fact, FactUnit, Finding};

use crate::number;

/// A finding's first facts, each with its figure.
pub(crate) fn in_words(finding: &Finding, most: usize) -> String {
    let facts: Vec<String> = finding.evidence.iter().take(most).map(fact).collect();
    facts.join("; ")
}

fn fact(fact: &Fact) -> String {
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
        FactUnit::Sessions => format!("{what} {}", number::decimals(value, 2)),
        FactUnit::Count => {
            format!(
                "{what} {}",
                number::counter_value(value, CounterUnit::Count)
            )
        }
        FactUnit::PerSecond => {
            format!(
                "{what} {}\u{a0}/s",
                number::counter_value(value, CounterUnit::Count)
            )
        }
        FactUnit::Bytes => {
            format!(
                "{what} {}",
                number::counter_value(value, CounterUnit::Bytes)
            )
        }
        FactUnit::Micros => format!("{what} {}", number::age(value)),
        FactUnit::None => what.clone(),
    }
}
