//! What became of an expectation, in words.

use pgassay_core::measure::{ExpectationOutcome, Reading};
use pgassay_core::run::Run;

use crate::outline::condition_title;

/// Readings that are told one by one.
const TOLD_MAX: usize = 4;

/// `1.332 against 1.2 (plain, 1 client); …`, and where it does not hold.
pub(crate) fn readings(run: &Run, it: &ExpectationOutcome) -> String {
    let told = |readings: &[&Reading]| -> String {
        let one = |reading: &&Reading| {
            format!(
                "{} against {} ({})",
                reading.left,
                reading.right,
                condition_title(run, reading.condition)
            )
        };
        let mut parts: Vec<String> = readings.iter().take(TOLD_MAX).map(one).collect();
        if readings.len() > TOLD_MAX {
            parts.push(format!("{} more", readings.len() - TOLD_MAX));
        }
        parts.join("; ")
    };
    let (held, failed): (Vec<&Reading>, Vec<&Reading>) =
        it.readings.iter().partition(|reading| reading.met);
    match (held.len(), failed.len()) {
        (0, 0) => "not measured in this run".to_owned(),
        (_, 0) => told(&held),
        (0, _) => told(&failed),
        (others, _) => format!("{}; met under {others} other", told(&failed)),
    }
}
