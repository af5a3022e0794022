//! The minimum detectable effect (MDE) of a run.
//!
//! All figures are on the log scale (0.01 is about 1%). Half-width = t(1−α/2, n−1)·s/√n. Before a run,
//! the MDE for a given power = (t(1−α/2, n−1) + t(power, n−1))·s/√n, the usual approximation of the
//! non-central t, where s is the standard deviation between pairs.
//!
//! After a run, s is an estimate from few pairs, and the approximation is poor at the strict levels of
//! many comparisons. [`DetectableFactors`] gives the MDE of another run like this one: the effect with a
//! power of 0.8, averaged over the distribution of s. Its range corresponds to the 80% interval of the
//! true standard deviation (chi-square).
//!
//! Invariant: fewer than two pairs detect nothing, so the MDE is infinite.

use crate::distribution::{
    chi_density, chi_square_quantile, normal_below, t_quantile, variance_ratio_quantile,
};
use crate::error::{StatsError, check_positive, check_probability};

/// The largest number of pairs that [`pairs_needed`] considers.
pub const PAIRS_MAX: usize = 100_000;

/// Expected half-width of the interval of ln(B/A) with `pairs` pairs.
pub fn half_width_log(pair_sd_log: f64, pairs: usize, level: f64) -> Result<f64, StatsError> {
    check_probability("the confidence level", level)?;
    Ok(scaled(pair_sd_log, pairs, |df| {
        t_quantile(f64::midpoint(1.0, level), df)
    }))
}

/// The smallest |ln(B/A)| that a two-sided test at `alpha` detects with probability `power`.
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

/// Confidence level of the range of a minimum detectable effect.
const RANGE_LEVEL: f64 = 0.8;
/// Beyond this critical t, the noise of the mean is negligible compared with that of s.
const STRICT_T: f64 = 20.0;
/// Points of the quadrature over s/σ.
const POINTS: usize = 64;

/// A minimum detectable effect: |ln(B/A)|.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Detectable {
    /// The effect that another run like this one detects with the given power, on average.
    pub effect_log: f64,
    /// The effect if the standard deviation is at the lower end of its 80% interval.
    pub low_log: f64,
    /// The effect if it is at the upper end.
    pub high_log: f64,
}

/// Minimum detectable effects in units of the standard error s/√n; they depend only on the number of
/// units, the level and the power.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DetectableFactors {
    units: usize,
    effect: f64,
    low: f64,
    high: f64,
}

impl DetectableFactors {
    /// For a two-sided t-test of `units` at `alpha` that detects an effect with probability `power`; `None`
    /// for fewer than two units.
    pub fn new(units: usize, alpha: f64, power: f64) -> Result<Option<Self>, StatsError> {
        check_probability("alpha", alpha)?;
        check_probability("the power", power)?;
        if units < 2 {
            return Ok(None);
        }
        let df = (units - 1) as f64;
        let critical = t_quantile(1.0 - alpha / 2.0, df);
        let s = DeviationPoints::new(df);
        let tail = (1.0 - RANGE_LEVEL) / 2.0;
        let known = root(power, critical, |effect| s.power_if_known(effect, critical));
        let effect = if critical > STRICT_T {
            critical * variance_ratio_quantile(power, df).sqrt()
        } else {
            root(power, known, |factor| {
                s.power_if_estimated(factor, critical)
            })
        };
        Ok(Some(Self {
            units,
            effect,
            low: known * (df / chi_square_quantile(1.0 - tail, df)).sqrt(),
            high: known * (df / chi_square_quantile(tail, df)).sqrt(),
        }))
    }

    /// The minimum detectable effect for units with this standard deviation.
    pub fn of(&self, unit_sd_log: f64) -> Detectable {
        let std_err = unit_sd_log / (self.units as f64).sqrt();
        Detectable {
            effect_log: self.effect * std_err,
            low_log: self.low * std_err,
            high_log: self.high * std_err,
        }
    }
}

/// The distribution of s/σ as points with weights that add up to 1.
struct DeviationPoints {
    points: Vec<(f64, f64)>,
}

impl DeviationPoints {
    fn new(df: f64) -> Self {
        let reach = 9.0 / (2.0 * df).sqrt();
        let (low, high) = ((1.0 - reach).max(0.0), 1.0 + reach);
        let step = (high - low) / POINTS as f64;
        // Midpoints, because with one degree of freedom the density is not 0 at 0.
        let points: Vec<(f64, f64)> = (0..POINTS)
            .map(|index| low + (index as f64 + 0.5) * step)
            .map(|s| (s, chi_density(s, df)))
            .collect();
        let whole: f64 = points.iter().map(|(_, density)| density).sum();
        Self {
            points: points.iter().map(|(s, it)| (*s, it / whole)).collect(),
        }
    }

    /// P(Z + effect > critical·s/σ), for an effect in units of the true standard error.
    fn power_if_known(&self, effect: f64, critical: f64) -> f64 {
        let of_point = |(s, weight): &(f64, f64)| weight * normal_below(effect - critical * s);
        self.points.iter().map(of_point).sum()
    }

    /// The same for an effect in units of the standard error estimated by another run.
    fn power_if_estimated(&self, factor: f64, critical: f64) -> f64 {
        let of_point =
            |(s, weight): &(f64, f64)| weight * self.power_if_known(factor * s, critical);
        self.points.iter().map(of_point).sum()
    }
}

/// The positive number at which an increasing function reaches `wanted`; the search begins near `start`.
fn root(wanted: f64, start: f64, of: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, start.max(0.1));
    while of(high) < wanted && high < 1e6 {
        low = high;
        high *= 1.5;
    }
    for _ in 0..24 {
        let middle = f64::midpoint(low, high);
        if of(middle) < wanted {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// Minimum number of pairs to detect an effect of `effect_log`; `None` above [`PAIRS_MAX`].
pub fn pairs_needed(
    pair_sd_log: f64,
    effect_log: f64,
    alpha: f64,
    power: f64,
) -> Result<Option<usize>, StatsError> {
    check_positive("the effect", effect_log.abs())?;
    detectable_log(pair_sd_log, 2, alpha, power)?;
    let enough = |pairs: usize| {
        scaled(pair_sd_log, pairs, |df| {
            t_quantile(1.0 - alpha / 2.0, df) + t_quantile(power, df)
        }) <= effect_log.abs()
    };
    if !enough(PAIRS_MAX) {
        return Ok(None);
    }
    // The detectable effect decreases with every pair, so a binary search finds the boundary.
    let (mut too_few, mut sufficient) = (1, PAIRS_MAX);
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

fn scaled(pair_sd_log: f64, pairs: usize, quantiles: impl Fn(f64) -> f64) -> f64 {
    if pairs < 2 {
        return f64::INFINITY;
    }
    quantiles((pairs - 1) as f64) * pair_sd_log / (pairs as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::mean_and_sd;
    use crate::random::SplitMix64;
    use crate::sampling::normal;

    #[test]
    fn the_mde_table_of_the_design_is_reproduced() {
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
                let found = 100.0 * detectable_log(pair_sd / 100.0, pairs, 0.05, 0.8).unwrap();
                assert!(
                    (found - mde).abs() < tolerance,
                    "{pair_sd} {pairs}: {found}"
                );
            }
        }
    }

    #[test]
    fn factors_are_those_of_the_non_central_t() {
        // The effects at which the non-central t with 5 and 23 degrees of freedom has a power of 80%.
        for (units, expected) in [(6, 3.514), (24, 2.929)] {
            let factors = DetectableFactors::new(units, 0.05, 0.8).unwrap().unwrap();
            let df = (units - 1) as f64;
            let known = factors.high * (chi_square_quantile(0.1, df) / df).sqrt();
            assert!((known - expected).abs() < 0.01, "{units}: {known}");
            assert!(factors.effect > known && factors.low < factors.effect);
            assert!(factors.effect < factors.high, "{factors:?}");
        }
        assert_eq!(DetectableFactors::new(1, 0.05, 0.8).unwrap(), None);
    }

    #[test]
    fn the_power_at_the_reported_mde_is_80_percent_at_any_level() {
        let mut stream = SplitMix64::new(64);
        for (units, alpha) in [
            (3, 0.05),
            (6, 0.05),
            (6, 0.05 / 3.0),
            (6, 0.05 / 18.0),
            (24, 0.05 / 27.0),
        ] {
            let critical = t_quantile(1.0 - alpha / 2.0, (units - 1) as f64);
            let factors = DetectableFactors::new(units, alpha, 0.8).unwrap().unwrap();
            let (mut found, mut without_level, mut in_range, runs) = (0, 0, 0, 8_000);
            // The effect for the true standard deviation.
            let truth = factors.of(1.0).high_log
                * (chi_square_quantile(0.1, (units - 1) as f64) / (units - 1) as f64).sqrt();
            for _ in 0..runs {
                let mut run = || -> (f64, f64) {
                    let values: Vec<f64> = (0..units).map(|_| normal(&mut stream)).collect();
                    mean_and_sd(&values)
                };
                // One run reports the MDE, another one like it tests for an effect of that size.
                let ((_, printed_sd), (mean, sd)) = (run(), run());
                let printed = factors.of(printed_sd);
                let is_significant =
                    |effect: f64| (mean + effect) * (units as f64).sqrt() / sd > critical;
                found += u32::from(is_significant(printed.effect_log));
                let old = detectable_log(printed_sd, units, 0.05, 0.8).unwrap();
                without_level += u32::from(is_significant(old));
                in_range += u32::from((printed.low_log..=printed.high_log).contains(&truth));
            }
            let share = |count: u32| f64::from(count) / f64::from(runs);
            assert!(
                (share(found) - 0.8).abs() < 0.015,
                "{units} {alpha}: {}",
                share(found)
            );
            assert!((share(in_range) - 0.8).abs() < 0.02, "{}", share(in_range));
            if alpha < 0.02 {
                assert!(share(without_level) < 0.7, "{}", share(without_level));
            }
        }
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
