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
//! values. Then a spread is 0, and so is any multiple of it, if a point had the same value in all of its rounds:
//! with three rounds, in a quarter of counts. So a difference must always exceed the larger spread, regardless of the
//! number of rounds, and the spread of the other points of its script ([`Family`]). What is left are counts in which
//! nearly all points have no spread: [`error_of_two_values`].
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

/// What the memory layout of a backend changes at most, as a share of a cost: 0.05% was seen.
const LAYOUT_NOISE_MAX: f64 = 1e-3;

/// The comparisons that a difference is one of: of the points of one script.
#[derive(Debug, Clone, Default)]
pub struct Family {
    /// Number of comparisons that share the error rate, of all scripts.
    pub comparisons: usize,
    /// The cost and the spread of each point of this script.
    pub points: Vec<[f64; 2]>,
}

impl Family {
    /// The spread that a point with this cost may have, judging by the others: the largest, without those of the
    /// noisiest tenth of the points. A point that costs a multiple has a multiple of the noise. What is larger than
    /// memory layout explains is a matter of that point alone: it must not hide what another one shows.
    pub fn noise(&self, cost: f64) -> f64 {
        let points = self.points.iter();
        let scaled = points.map(|[of, spread]| spread * (cost / of).min(1.0));
        let mut spreads: Vec<f64> = scaled.collect();
        spreads.sort_by(f64::total_cmp);
        let ordinary = ordinary(spreads.len());
        let usual = ordinary.checked_sub(1).map_or(0.0, |last| spreads[last]);
        usual.min(LAYOUT_NOISE_MAX * cost)
    }
}

/// How many of a script's points have no more than its usual noise. The others may be noisy for a reason that only they
/// have, such as a setting that makes a cost depend on time.
fn ordinary(points: usize) -> usize {
    points - points / 10
}

/// The margin that a difference must exceed, in the unit of the spreads; `None` with too few rounds.
/// `rounds` is the smaller of the two variants' numbers of rounds, `noise` is [`Family::noise`], and `comparisons` the
/// number of comparisons that share the error rate.
pub fn margin(spreads: [f64; 2], noise: f64, rounds: usize, comparisons: usize) -> Option<f64> {
    let larger = spreads[0].max(spreads[1]);
    let factor = factor(rounds, comparisons)?;
    Some((factor * larger).max(noise).max(RESOLUTION))
}

/// The probability of any false difference if each point has one of two values in each round, the same two for all, and
/// the first with the probability that is worst: in a count with these numbers of points per script.
pub fn error_of_two_values(rounds: usize, points: impl IntoIterator<Item = usize>) -> f64 {
    let none = points.into_iter().map(|points| {
        let of_chance = |percent: u32| two_values(rounds, points, f64::from(percent) / 100.0);
        1.0 - (1..=50).map(of_chance).fold(0.0, f64::max)
    });
    1.0 - none.product::<f64>()
}

/// The same for one script, and a probability of the first value. A difference is false if the baseline and enough
/// variants have no spread, and one of these has the other value.
fn two_values(rounds: usize, points: usize, first: f64) -> f64 {
    let Some(variants) = points.checked_sub(1) else {
        return 0.0;
    };
    let always = [first, 1.0 - first].map(|it| it.powf(rounds as f64));
    let without = always[0] + always[1];
    let mut sum = 0.0;
    // The number of ways to choose the variants that have a spread.
    let mut ways = 1.0;
    for spread in 0..=points - ordinary(points) {
        let exact = variants.saturating_sub(spread) as f64;
        let mixed = always.map(|it| it * (without.powf(exact) - it.powf(exact)));
        sum += ways * (1.0 - without).powf(spread as f64) * (mixed[0] + mixed[1]);
        ways *= exact / (spread + 1) as f64;
    }
    sum
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
        assert_eq!(margin([0.0, 0.0], 0.0, 3, 1), Some(0.5));
        assert_eq!(margin([0.0, 0.0], 0.0, 2, 1), None);
    }

    #[test]
    fn the_noise_of_a_script_is_that_of_its_points_without_the_noisiest_tenth() {
        let family = |points: &[[f64; 2]]| Family {
            comparisons: 1,
            points: points.to_vec(),
        };
        let noise = |points: &[[f64; 2]], expected: f64| {
            let found = family(points).noise(40_000.0);
            assert!((found - expected).abs() < 1e-9, "{points:?}: {found}");
        };
        noise(&[], 0.0);
        noise(&[[40_000.0, 0.0], [40_000.0, 20.0]], 20.0);
        // That of a cheaper point is no reason to expect more.
        noise(&[[40_000.0, 0.0], [4_000_000.0, 2_000.0]], 20.0);
        noise(&[[40_000.0, 0.0], [400.0, 2.0]], 2.0);
        let mut many = vec![[40_000.0, 0.0]; 20];
        (many[3][1], many[4][1], many[5][1]) = (9_000.0, 7_000.0, 5.0);
        noise(&many, 5.0);
        // Regression: one variant that varied by 2% hid differences of up to 2% of all others.
        noise(&[[40_000.0, 0.0], [40_000.0, 0.0], [40_000.0, 800.0]], 40.0);
    }

    #[test]
    fn two_values_exceed_the_error_with_three_rounds_and_one_or_two_comparisons() {
        let close = |rounds, points: &[usize], error: f64| {
            let found = error_of_two_values(rounds, points.iter().copied());
            assert!(
                (found - error).abs() < 1e-3,
                "{rounds}, {points:?}: {found}"
            );
        };
        // One of two: 2 · (1/8)². One of two in each of ten scripts: 1 − (31/32)¹⁰.
        close(3, &[2], 1.0 / 32.0);
        close(3, &[2; 10], 0.272);
        close(3, &[3], 3.0 / 64.0 / 4.0);
        close(5, &[2], 2.0 / 1024.0);
        close(3, &[1], 0.0);
        close(3, &[0], 0.0);
        for points in 4..200 {
            let error = error_of_two_values(3, [points]);
            assert!(error < ERROR / 2.0, "{points}: {error}");
        }
    }
}
