//! Text for the results of A/A comparisons.

use pgassay_account::calibration::CalibrationSummary;
use pgassay_model::plan::Plan;
use pgassay_record::run::{Run, Warning, WarningKind};

/// A sentence for each variant that is measured exactly as what it is compared with.
pub fn identical_variants(plan: &Plan) -> Vec<String> {
    let sentence = |[baseline, variant]: [usize; 2]| {
        format!(
            "Variants \"{}\" and \"{}\" are identical: this is an A/A comparison, and any difference is noise.",
            plan.variants[baseline], plan.variants[variant]
        )
    };
    plan.repeated_variants().into_iter().map(sentence).collect()
}

/// Whether a variant is what it is compared with, so that a verdict would be about noise.
pub(crate) fn is_repeated(run: &Run, variant: usize) -> bool {
    let is_same = |it: &Warning| {
        matches!(it.kind, WarningKind::SameSettings | WarningKind::SameBuild)
            && it.variant.as_ref() == run.plan.variants.get(variant)
    };
    let repeated = run.plan.repeated_variants();
    repeated.iter().any(|[_, it]| *it == variant) || run.warnings.iter().any(is_same)
}

/// Notes about A/A comparisons: which of this run are some, and the results of those on this machine, if there were any.
pub(crate) fn notes(run: &Run) -> Vec<String> {
    let mut notes = identical_variants(&run.plan);
    notes.extend(calibration(run));
    notes
}

/// The result of the A/A comparisons on this machine, if there were any.
fn calibration(run: &Run) -> Option<String> {
    let found = run.calibration.as_ref()?;
    Some(format!(
        "A/A tests on this machine: {}; at most 5% is expected.",
        false_positives(found)
    ))
}

/// The false-positive rate with its interval: `9 of 200 comparisons differed, 4.5% (95% CI 2.1% to
/// 8.4%)`.
pub fn false_positives(found: &CalibrationSummary) -> String {
    let (different, all) = (found.false_positives, found.comparisons);
    let share = 100.0 * f64::from(different) / f64::from(all.max(1));
    format!(
        "{different} of {all} comparisons differed, {share:.1}% (95% CI {:.1}% to {:.1}%)",
        found.low * 100.0,
        found.high * 100.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_false_positives_has_its_interval() {
        let found = CalibrationSummary {
            comparisons: 200,
            false_positives: 9,
            low: 0.0207,
            high: 0.0837,
            ended_us: 0,
        };
        assert_eq!(
            false_positives(&found),
            "9 of 200 comparisons differed, 4.5% (95% CI 2.1% to 8.4%)"
        );
    }
}
