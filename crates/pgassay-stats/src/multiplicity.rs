//! Corrections of p-values for multiple comparisons.
//!
//! Holm (1979), "A simple sequentially rejective multiple test procedure", bounds the probability of any
//! false claim. It is used for few comparisons (variants with the baseline, rows of subsystems).
//! Benjamini and Hochberg (1995), "Controlling the false discovery rate", bounds the share of false
//! claims among all claims. It is used for hundreds of functions. Simes (1986) tests whether anything in
//! a family has changed.
//!
//! Invariants: results are in the order of the input, never below it and never above 1; a NaN p-value
//! counts as 1.

/// Holm's adjusted p-values: claim a difference if the result is ≤ α. Valid under any dependence.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let count = p_values.len();
    let mut adjusted = vec![1.0; count];
    let mut running: f64 = 0.0;
    for (rank, index) in indexes_by_size(p_values).into_iter().enumerate() {
        running = running
            .max(nan_as_one(p_values[index]) * (count - rank) as f64)
            .min(1.0);
        adjusted[index] = running;
    }
    adjusted
}

/// One test of Holm's step-down procedure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HolmStep {
    /// The α of the test; the smallest p-value gets the smallest α.
    pub alpha: f64,
    /// Whether its p-value is at most `alpha`.
    pub claimed: bool,
}

/// The levels of the tests in Holm's procedure: an interval at a test's level excludes the tested value
/// exactly if the procedure claims a difference. After the first test without a claim, all others have
/// its level.
pub fn holm_steps(p_values: &[f64], alpha: f64) -> Vec<HolmStep> {
    let mut steps = vec![
        HolmStep {
            alpha,
            claimed: false
        };
        p_values.len()
    ];
    let mut still_open = p_values.len();
    for index in indexes_by_size(p_values) {
        let held_to = alpha / still_open as f64;
        let claimed = nan_as_one(p_values[index]) <= held_to;
        steps[index] = HolmStep {
            alpha: held_to,
            claimed,
        };
        if claimed && still_open > 1 {
            still_open -= 1;
        }
    }
    steps
}

/// Benjamini and Hochberg's adjusted p-values: claim a difference if the result is ≤ the desired false
/// discovery rate. Valid for independent and positively dependent tests.
pub fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    let count = p_values.len();
    let mut adjusted = vec![1.0; count];
    let mut running: f64 = 1.0;
    for (rank, index) in indexes_by_size(p_values).into_iter().enumerate().rev() {
        running = running.min(nan_as_one(p_values[index]) * count as f64 / (rank + 1) as f64);
        adjusted[index] = running;
    }
    adjusted
}

/// Simes' p-value for "nothing in this family has changed"; 1 for an empty family.
pub fn simes(p_values: &[f64]) -> f64 {
    benjamini_hochberg(p_values).into_iter().fold(1.0, f64::min)
}

fn nan_as_one(p_value: f64) -> f64 {
    if p_value.is_nan() { 1.0 } else { p_value }
}

/// Indexes from the smallest p-value to the largest; ties keep their order.
fn indexes_by_size(p_values: &[f64]) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..p_values.len()).collect();
    positions.sort_by(|&left, &right| {
        nan_as_one(p_values[left]).total_cmp(&nan_as_one(p_values[right]))
    });
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (left, right) in found.iter().zip(expected) {
            assert!(
                (left - right).abs() < 1e-12,
                "{found:?} instead of {expected:?}"
            );
        }
    }

    #[test]
    fn holm_is_as_r_computes_it() {
        // R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm").
        near(&holm(&[0.01, 0.04, 0.03, 0.005]), &[0.03, 0.06, 0.06, 0.02]);
        near(&holm(&[]), &[]);
        near(&holm(&[0.7, f64::NAN]), &[1.0, 1.0]);
    }

    #[test]
    fn holm_tests_the_clearest_first_and_strictest() {
        let steps = |p_values: &[f64]| -> Vec<(f64, bool)> {
            let steps = holm_steps(p_values, 0.05);
            steps.iter().map(|it| (it.alpha, it.claimed)).collect()
        };
        assert_eq!(steps(&[0.5]), [(0.05, false)]);
        assert_eq!(steps(&[0.001, 0.02]), [(0.025, true), (0.05, true)]);
        assert_eq!(steps(&[0.03, 0.001]), [(0.05, true), (0.025, true)]);
        assert_eq!(steps(&[0.03, 0.04]), [(0.025, false), (0.025, false)]);
        assert_eq!(steps(&[0.02, f64::NAN]), [(0.025, true), (0.05, false)]);
        assert_eq!(steps(&[]), []);
        // Claims are those of the adjusted p-values.
        let p_values = [0.01, 0.04, 0.03, 0.005, 0.012];
        let adjusted = holm(&p_values);
        for (step, adjusted) in holm_steps(&p_values, 0.05).iter().zip(adjusted) {
            assert_eq!(step.claimed, adjusted <= 0.05);
        }
    }

    #[test]
    fn benjamini_hochberg_is_as_r_computes_it() {
        // R: p.adjust(c(0.01, 0.04, 0.03, 0.005, 0.55), "BH").
        near(
            &benjamini_hochberg(&[0.01, 0.04, 0.03, 0.005, 0.55]),
            &[0.025, 0.05, 0.05, 0.025, 0.55],
        );
        near(&benjamini_hochberg(&[0.2]), &[0.2]);
    }

    #[test]
    fn simes_is_the_least_scaled_p_value() {
        near(&[simes(&[0.04, 0.02, 0.9])], &[0.06]);
        near(&[simes(&[])], &[1.0]);
    }
}
