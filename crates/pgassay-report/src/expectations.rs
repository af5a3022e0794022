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

/// `1.332 [1.290, 1.375] vs 1.2 (plain, 1 client); …`, the two sides of the check: the readings that do not meet the expectation;
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

/// How a figure of several conditions is computed.
pub(crate) const MEANS: &str =
    "Where a row covers several conditions, the figure of this run is their geometric mean.";

/// The heading of this run's figures in the table of the source's, with the condition if there is only one.
pub(crate) fn this_run(run: &Run) -> String {
    match run.plan.conditions.len() {
        1 => format!("this run ({})", condition_title(run, 0)),
        _ => "this run".to_owned(),
    }
}

/// A figure with separated thousands, as those of its interval are.
fn grouped(value: &str) -> String {
    match value.parse::<f64>() {
        Ok(figure) if figure.abs() >= 1000.0 => number::whole(figure),
        _ => value.to_owned(),
    }
}

/// A bound of an interval. Those of very few pairs can have any size.
fn bound(value: f64) -> String {
    if value.abs() < 1e12 {
        number::plain(value)
    } else {
        format!("{value:.0e}")
    }
}

fn one(run: &Run, reading: &Reading) -> String {
    let is_open = reading.outcome() == CheckOutcome::Inconclusive;
    let condition = condition_title(run, reading.condition);
    // A check of figures has a number on the right, one of the largest difference a name.
    if reading.right.parse::<f64>().is_err() {
        let noise = if is_open {
            ", its lead over the next row within noise"
        } else {
            ""
        };
        return format!(
            "largest CPU difference: {}; expected: {} ({condition}{noise})",
            reading.left, reading.right
        );
    }
    let side = |value: &str, interval: Option<[f64; 2]>| {
        let value = grouped(value);
        match interval {
            Some([low, high]) => format!("{value}\u{a0}[{}, {}]", bound(low), bound(high)),
            None => value,
        }
    };
    let without = reading.left_interval.is_none() && reading.right_interval.is_none();
    format!(
        "{}, against\u{a0}{} ({condition}{})",
        side(&reading.left, reading.left_interval),
        side(&reading.right, reading.right_interval),
        if without && is_open {
            ", no interval"
        } else {
            ""
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_separated_thousands_as_its_interval_has() {
        assert_eq!(grouped("1284358"), "1,284,358");
        assert_eq!(grouped("0.034"), "0.034");
        assert_eq!(grouped("plan"), "plan");
    }

    #[test]
    fn the_bound_of_an_interval_of_two_pairs_does_not_fill_a_line() {
        assert_eq!(bound(2_241_273.0), "2,241,273");
        assert_eq!(bound(7.9e44), "8e44");
    }
}
