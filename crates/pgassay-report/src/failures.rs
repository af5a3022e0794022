//! Comparisons of variants whose transactions failed unequally.

use pgassay_account::comparison::Comparison;
use pgassay_model::trial::{FAILED_DIFFERENCE_MAX, failed_share};
use pgassay_record::run::Run;

use crate::number;
use crate::outline::{baseline_name, condition_title};

/// The shares of the transactions that failed: the variant's, and its baseline's.
pub(crate) fn shares(run: &Run, comparison: &Comparison) -> [f64; 2] {
    let baseline = run.plan.baseline_of(comparison.variant);
    [comparison.variant, baseline]
        .map(|variant| failed_share(&run.trials, comparison.condition, variant))
}

/// What to add to the answer on a variant, whose comparisons these are, if shares of failed transactions differ.
pub(crate) fn caution(run: &Run, comparisons: &[&Comparison]) -> Option<String> {
    let difference = |[now, before]: [f64; 2]| (now - before).abs();
    let all = comparisons.iter().map(|it| (*it, shares(run, it)));
    let differing: Vec<_> = all
        .filter(|(_, shares)| difference(*shares) > FAILED_DIFFERENCE_MAX)
        .collect();
    let greatest = differing
        .iter()
        .max_by(|(_, a), (_, b)| difference(*a).total_cmp(&difference(*b)));
    let (comparison, [now, before]) = greatest?;
    let place = match (comparisons.len(), differing.len()) {
        (1, _) => String::new(),
        (_, 1) => format!("with {}, ", condition_title(run, comparison.condition)),
        (_, conditions) => format!(
            "in {conditions} conditions, transactions failed unequally: with {}, ",
            condition_title(run, comparison.condition)
        ),
    };
    Some(format!(
        "But {place}{} of its transactions failed, and {} of those of {}: throughput and latency are those of the \
         successful ones only.",
        share(*now),
        share(*before),
        baseline_name(run, comparison.variant)
    ))
}

fn share(share: f64) -> String {
    if share > 0.0 {
        number::percent(share)
    } else {
        "none".to_owned()
    }
}
