//! How far apart two variants of the same cost come by chance: what a difference has to exceed.
//!
//! All that is known of the noise is how far each variant's rounds spread. With few rounds a spread is
//! often far too small, so it is multiplied: by a factor that two medians of the same cost come apart
//! beyond, in units of the larger spread, in 1% of counts. Where several variants are compared, this 1%
//! is the chance that any of them is told to differ and does not (Šidák).
//!
//! The factors hold for normal noise of any two sizes, whichever variant is the noisier. They are
//! largest, or nearly so, where one has none: then half the information is missing, and nobody told so.
//!
//! Counts are not always normal: where a backend's data lie may give a cost one of two values. So a
//! difference has to exceed the larger spread in any case, however many rounds there are. Then two
//! such variants are told apart only where each had one value in all of its rounds: in 3% of counts of
//! three rounds, in 0.2% of five.
//!
//! Sources: E. Lord, "The use of range in place of standard deviation in the t-test" (Biometrika, 1947),
//! for the idea; Z. Šidák, "Rectangular confidence regions" (JASA, 1967). The factors were computed for
//! this file from 20 million draws for each number of rounds and ratio of noises (0, 0.1, 0.3, 0.6, 1);
//! `tests/margin.rs` checks them with draws of its own.

/// The chance that any of the compared variants is told to differ by more than the rounds' noise, when
/// none does.
pub const ERROR: f64 = 0.01;

/// Fewer rounds give no verdict: two are as close as they happen to be, and the factor would be 31.
pub const ROUNDS_MIN: usize = 3;

/// Differences below half an instruction are not told even where repeats agree to the digit: a
/// different settings file alone may shift a hash table's place.
const RESOLUTION: f64 = 0.5;

/// For noise of two values, whose difference is no more than a spread.
const FACTOR_MIN: f64 = 1.0;

/// Chances that the columns of [`FACTORS`] are for.
const CHANCES: [f64; 5] = [1e-2, 5e-3, 1e-3, 1e-4, 1e-5];

/// For so many rounds or more: how many times the larger spread two medians come apart with each chance.
const FACTORS: [(usize, [f64; 5]); 7] = [
    (3, [3.04, 4.31, 9.65, 30.7, 97.0]),
    (4, [1.39, 1.75, 2.96, 6.35, 13.9]),
    (5, [0.90, 1.08, 1.61, 2.89, 5.21]),
    (6, [0.712, 0.825, 1.145, 1.82, 2.86]),
    (7, [0.609, 0.681, 0.887, 1.30, 1.93]),
    (8, [0.543, 0.602, 0.755, 1.05, 1.46]),
    (10, [0.449, 0.497, 0.607, 0.773, 0.99]),
];

/// What a difference has to exceed, in the unit of the spreads; `None` where rounds are too few to say.
/// `rounds` is the smaller number of the two variants', `comparisons` how many differences are told.
pub fn margin(spreads: [f64; 2], rounds: usize, comparisons: usize) -> Option<f64> {
    let larger = spreads[0].max(spreads[1]);
    factor(rounds, comparisons).map(|factor| (factor * larger).max(RESOLUTION))
}

/// How many times the larger spread a difference has to exceed.
pub fn factor(rounds: usize, comparisons: usize) -> Option<f64> {
    let (_, factors) = FACTORS.iter().rfind(|(least, _)| *least <= rounds)?;
    let chance = chance_each(comparisons);
    // Both logarithms are nearly on a line: for small chances it is one, of slope 1 / (rounds − 1).
    // Beyond the last column the last two go on.
    let right = CHANCES.iter().position(|it| *it <= chance);
    let right = right.unwrap_or(CHANCES.len() - 1).max(1);
    let at = |column: usize| (CHANCES[column].ln(), factors[column].ln());
    let ((x0, y0), (x1, y1)) = (at(right - 1), at(right));
    let factor = (y0 + (y1 - y0) * (chance.ln() - x0) / (x1 - x0)).exp();
    Some(factor.max(FACTOR_MIN))
}

/// The chance that each of so many comparisons may have, so that together they have [`ERROR`].
fn chance_each(comparisons: usize) -> f64 {
    let each = 1.0 / comparisons.max(1) as f64;
    // Not 1 − (1 − ERROR)^each: that loses the digits that matter.
    -(each * (-ERROR).ln_1p()).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_rounds_need_less_and_more_comparisons_more() {
        for comparisons in [1, 2, 3, 10, 104, 5_000] {
            let factors: Vec<f64> = (3..15).filter_map(|it| factor(it, comparisons)).collect();
            assert_eq!(factors.len(), 12);
            assert!(factors.windows(2).all(|pair| pair[0] >= pair[1]));
        }
        for rounds in 3..15 {
            let factors: Vec<f64> = [1, 2, 3, 10, 104, 5_000]
                .into_iter()
                .filter_map(|it| factor(rounds, it))
                .collect();
            assert!(
                factors.windows(2).all(|pair| pair[0] <= pair[1]),
                "{factors:?}"
            );
        }
    }

    #[test]
    fn equal_rounds_still_leave_half_an_instruction_in_doubt() {
        assert_eq!(margin([0.0, 0.0], 3, 1), Some(0.5));
        assert_eq!(margin([0.0, 0.0], 2, 1), None);
    }
}
