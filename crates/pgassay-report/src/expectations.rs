//! Text for the outcome of an expectation.

use pgassay_record::expectation::{CheckOutcome, ExpectationOutcome, Reading};
use pgassay_record::run::Run;

use crate::number;
use crate::outline::condition_title;

/// Readings listed one by one.
const READINGS_MAX: usize = 4;

/// The word for an outcome.
pub(crate) fn word(it: &ExpectationOutcome) -> &'static str {
    match it.outcome() {
        Some(CheckOutcome::Met) => "met",
        Some(CheckOutcome::NotMet) => "not met",
        Some(CheckOutcome::Inconclusive) => "inconclusive",
        None => "not measured",
    }
}

/// `1.332 [1.290, 1.375] vs 1.2 (plain, 1 client); …`: the readings that do not meet the expectation;
/// if there are none, the inconclusive ones; else all.
pub(crate) fn readings(run: &Run, it: &ExpectationOutcome) -> String {
    let Some(outcome) = it.outcome() else {
        return "not measured in this run".to_owned();
    };
    let of_outcome = |reading: &&Reading| reading.outcome() == outcome;
    let decisive: Vec<&Reading> = it.readings.iter().filter(of_outcome).collect();
    let mut parts: Vec<String> = decisive
        .iter()
        .take(READINGS_MAX)
        .map(|reading| one(run, reading))
        .collect();
    if decisive.len() > READINGS_MAX {
        parts.push(format!("{} more", decisive.len() - READINGS_MAX));
    }
    let met = it
        .readings
        .iter()
        .filter(|it| it.outcome() == CheckOutcome::Met);
    if outcome != CheckOutcome::Met {
        match met.count() {
            0 => {}
            count => parts.push(format!(
                "met in {}",
                number::count(count as u64, "other condition")
            )),
        }
    }
    parts.join("; ")
}

fn one(run: &Run, reading: &Reading) -> String {
    let is_open = reading.outcome() == CheckOutcome::Inconclusive;
    let condition = condition_title(run, reading.condition);
    // A check of figures has a number on the right, one of the largest difference a name.
    if reading.right.parse::<f64>().is_err() {
        let noise = if is_open { ", within noise" } else { "" };
        return format!(
            "largest CPU difference in {}, expected in {} ({condition}{noise})",
            reading.left, reading.right
        );
    }
    let side = |value: &str, interval: Option<[f64; 2]>| match interval {
        Some([low, high]) => {
            format!(
                "{value}\u{a0}[{}, {}]",
                number::plain(low),
                number::plain(high)
            )
        }
        None => value.to_owned(),
    };
    let without = reading.left_interval.is_none() && reading.right_interval.is_none();
    format!(
        "{} vs {} ({condition}{})",
        side(&reading.left, reading.left_interval),
        side(&reading.right, reading.right_interval),
        if without && is_open {
            ", no interval"
        } else {
            ""
        }
    )
}
