//! The margin that a difference must exceed: how far two variants of equal cost differ by chance.
//!
//! The only information about the noise is the spread (range) of each variant's rounds. With few rounds,
//! the spread often underestimates the noise, so it is multiplied by a factor: in units of the larger
//! spread, two medians of equal cost differ by more than this factor in 1% of counts. With several
//! comparisons, this 1% is the probability of any false difference among them (Šidák).
//!
//! The factors hold for normal noise of any size on either side. They are largest, or nearly so, if one
//! variant has no noise, because then its spread carries no information.
//!
//! Counts are not always normal: depending on the memory layout of a backend, a cost may have one of two
//! values. So a difference must always exceed the larger spread, regardless of the number of rounds. Two
//! such variants then differ falsely only if each had the same value in all of its rounds: in 3% of
//! counts with three rounds, in 0.2% with five.
//!
//! Sources: E. Lord, "The use of range in place of standard deviation in the t-test" (Biometrika, 1947),
//! for the method; Z. Šidák, "Rectangular confidence regions" (JASA, 1967). The factors were computed for
//! this file from 20 million draws for each number of rounds and ratio of noises (0, 0.1, 0.3, 0.6, 1);
//! `tests/suite/margin.rs` checks them by simulation.

/// Probability of any false difference among the compared variants.
pub const ERROR: f64 = 0.01;

/// Minimum number of rounds for a verdict. With two, the factor would be 31.
pub const ROUNDS_MIN: usize = 3;

/// Differences below half an instruction are not significant even if all repeats are identical: a
/// different settings file alone can move a hash table.
const RESOLUTION: f64 = 0.5;

/// Minimum factor, for noise with two values, whose difference never exceeds the spread.
const FACTOR_MIN: f64 = 1.0;

/// Probabilities of the columns of [`FACTORS`].
const CHANCES: [f64; 5] = [1e-2, 5e-3, 1e-3, 1e-4, 1e-5];

/// For a minimum number of rounds: by how many times the larger spread two medians differ, with each
/// probability.
const FACTORS: [(usize, [f64; 5]); 7] = [
    (3, [3.04, 4.31, 9.65, 30.7, 97.0]),
    (4, [1.39, 1.75, 2.96, 6.35, 13.9]),
    (5, [0.90, 1.08, 1.61, 2.89, 5.21]),
    (6, [0.712, 0.825, 1.145, 1.82, 2.86]),
    (7, [0.609, 0.681, 0.887, 1.30, 1.93]),
    (8, [0.543, 0.602, 0.755, 1.05, 1.46]),
    (10, [0.449, 0.497, 0.607, 0.773, 0.99]),
];

/// The margin that a difference must exceed, in the unit of the spreads; `None` with too few rounds.
/// `rounds` is the smaller of the two variants' numbers of rounds, `comparisons` the number of
/// comparisons that share the error rate.
pub fn margin(spreads: [f64; 2], rounds: usize, comparisons: usize) -> Option<f64> {
    let larger = spreads[0].max(spreads[1]);
    factor(rounds, comparisons).map(|factor| (factor * larger).max(RESOLUTION))
}

/// The margin in units of the larger spread.
pub fn factor(rounds: usize, comparisons: usize) -> Option<f64> {
    let (_, factors) = FACTORS.iter().rfind(|(least, _)| *least <= rounds)?;
    let chance = chance_each(comparisons);
    // In logarithms the factors are nearly linear: for small probabilities with slope 1 / (rounds − 1).
    // Beyond the last column, extrapolate from the last two.
    let right = CHANCES.iter().position(|it| *it <= chance);
    let right = right.unwrap_or(CHANCES.len() - 1).max(1);
    let at = |column: usize| (CHANCES[column].ln(), factors[column].ln());
    let ((x0, y0), (x1, y1)) = (at(right - 1), at(right));
    let factor = (y0 + (y1 - y0) * (chance.ln() - x0) / (x1 - x0)).exp();
    Some(factor.max(FACTOR_MIN))
}

/// The error probability for each comparison, so that the total is [`ERROR`] (Šidák).
fn chance_each(comparisons: usize) -> f64 {
    let each = 1.0 / comparisons.max(1) as f64;
    // 1 − (1 − ERROR)^each, without loss of precision.
    -(each * (-ERROR).ln_1p()).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_decrease_with_rounds_and_increase_with_comparisons() {
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
    fn the_margin_is_at_least_half_an_instruction() {
        assert_eq!(margin([0.0, 0.0], 3, 1), Some(0.5));
        assert_eq!(margin([0.0, 0.0], 2, 1), None);
    }
}
