//! What a run can detect, told before it is run.
//!
//! All figures are on the log scale (.01 is about 1 %). Half-width = t(1−α/2, n−1)·s/√n; the
//! smallest effect found with a wanted power = (t(1−α/2, n−1) + t(power, n−1))·s/√n, the usual
//! approximation of the non-central t, with s the standard deviation between pairs.
//!
//! Invariant: fewer than two pairs detect nothing, so the answer is infinite, never a guess.

use crate::distribution::{normal_quantile, t_quantile};
use crate::error::{StatsError, check_positive, check_probability};

/// The largest number of pairs that [`pairs_needed`] considers.
pub const MOST_PAIRS: usize = 100_000;

/// Expected half-width of the interval of ln(B/A) from `pairs` pairs.
pub fn half_width_log(pair_sd_log: f64, pairs: usize, level: f64) -> Result<f64, StatsError> {
    check_probability("the confidence level", level)?;
    Ok(scaled(pair_sd_log, pairs, |df| {
        t_quantile(f64::midpoint(1.0, level), df)
    }))
}

/// The smallest |ln(B/A)| that a two-sided test at `alpha` finds with probability `power`.
pub fn detectable_log(
    pair_sd_log: f64,
    pairs: usize,
    alpha: f64,
    power: f64,
) -> Result<f64, StatsError> {
    check_probability("alpha", alpha)?;
    check_probability("the power", power)?;
    Ok(scaled(pair_sd_log, pairs, |df| {
        t_quantile(1.0 - alpha / 2.0, df) + t_quantile(power, df)
    }))
}

/// MDE80: the smallest |ln(B/A)| found with 80 % power at α = 5 %.
pub fn mde80_log(pair_sd_log: f64, pairs: usize) -> f64 {
    scaled(pair_sd_log, pairs, |df| {
        t_quantile(0.975, df) + t_quantile(0.8, df)
    })
}

/// The fewest pairs that find an effect of `effect_log`; `None` above [`MOST_PAIRS`].
pub fn pairs_needed(
    pair_sd_log: f64,
    effect_log: f64,
    alpha: f64,
    power: f64,
) -> Result<Option<usize>, StatsError> {
    check_positive("the wanted effect", effect_log.abs())?;
    detectable_log(pair_sd_log, 2, alpha, power)?;
    let enough = |pairs: usize| {
        scaled(pair_sd_log, pairs, |df| {
            t_quantile(1.0 - alpha / 2.0, df) + t_quantile(power, df)
        }) <= effect_log.abs()
    };
    if !enough(MOST_PAIRS) {
        return Ok(None);
    }
    // What is detectable shrinks with every pair, so the boundary is found by halving.
    let (mut too_few, mut sufficient) = (1, MOST_PAIRS);
    while sufficient - too_few > 1 {
        let middle = usize::midpoint(too_few, sufficient);
        if enough(middle) {
            sufficient = middle;
        } else {
            too_few = middle;
        }
    }
    Ok(Some(sufficient))
}

/// The smallest |ln(B/A)| of a function's cost that `samples` per variant find, by counting
/// noise alone (no noise between trials), with a two-sided test at `alpha`.
pub fn detectable_by_samples_log(samples: u64, alpha: f64, power: f64) -> Result<f64, StatsError> {
    check_probability("alpha", alpha)?;
    check_probability("the power", power)?;
    check_positive("the number of samples", samples as f64)?;
    Ok(
        (normal_quantile(1.0 - alpha / 2.0) + normal_quantile(power))
            * (2.0 / samples as f64).sqrt(),
    )
}

fn scaled(pair_sd_log: f64, pairs: usize, quantiles: impl Fn(f64) -> f64) -> f64 {
    if pairs < 2 {
        return f64::INFINITY;
    }
    quantiles((pairs - 1) as f64) * pair_sd_log / (pairs as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_design_is_met() {
        // Pair SD in %, then (half-width, MDE80) in % at 6, 12, 24 and 48 pairs.
        let table = [
            (
                0.5,
                [(0.52, 0.71), (0.32, 0.44), (0.21, 0.30), (0.15, 0.21)],
            ),
            (
                1.0,
                [(1.05, 1.42), (0.64, 0.89), (0.42, 0.60), (0.29, 0.41)],
            ),
            (2.0, [(2.1, 2.9), (1.3, 1.8), (0.84, 1.2), (0.58, 0.83)]),
            (5.0, [(5.3, 7.1), (3.2, 4.4), (2.1, 3.0), (1.5, 2.1)]),
        ];
        for (pair_sd, row) in table {
            for (pairs, (half_width, mde)) in [6, 12, 24, 48].into_iter().zip(row) {
                let tolerance = if pair_sd < 2.0 || half_width < 1.0 {
                    0.0065
                } else {
                    0.065
                };
                let found = 100.0 * half_width_log(pair_sd / 100.0, pairs, 0.95).unwrap();
                assert!(
                    (found - half_width).abs() < tolerance,
                    "{pair_sd} {pairs}: {found}"
                );
                let tolerance = if pair_sd < 2.0 || mde < 1.0 {
                    0.0065
                } else {
                    0.065
                };
                let found = 100.0 * mde80_log(pair_sd / 100.0, pairs);
                assert!(
                    (found - mde).abs() < tolerance,
                    "{pair_sd} {pairs}: {found}"
                );
            }
        }
    }

    #[test]
    fn the_table_of_functions_is_met() {
        // Samples, half-width of ln(ratio) in %, MDE in % of one test.
        for (samples, half_width, mde) in [
            (400, 13.9, 19.8),
            (2_500, 5.5, 7.9),
            (10_000, 2.8, 4.0),
            (40_000, 1.4, 2.0),
        ] {
            let found = 100.0 * detectable_by_samples_log(samples, 0.05, 0.8).unwrap();
            assert!((found - mde).abs() < 0.06, "{samples}: {found}");
            let found = 100.0 * normal_quantile(0.975) * (2.0 / samples as f64).sqrt();
            assert!((found - half_width).abs() < 0.06, "{samples}: {found}");
        }
        // Inside 300 functions of which three move, BH works at α = 3/300 of 5 %.
        let found = 100.0 * detectable_by_samples_log(400, 0.05 * 3.0 / 300.0, 0.8).unwrap();
        assert!((found - 30.7).abs() < 0.3, "{found}");
    }

    #[test]
    fn pairs_needed_is_the_first_number_that_suffices() {
        let needed = pairs_needed(0.02, 0.01, 0.05, 0.8).unwrap().unwrap();
        assert!(detectable_log(0.02, needed, 0.05, 0.8).unwrap() <= 0.01);
        assert!(detectable_log(0.02, needed - 1, 0.05, 0.8).unwrap() > 0.01);
        assert_eq!(pairs_needed(0.5, 1e-5, 0.05, 0.8).unwrap(), None);
        assert!(half_width_log(0.01, 1, 0.95).unwrap().is_infinite());
    }
}
