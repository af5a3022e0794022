//! Estimates B/A from pairs of neighboring trials.
//!
//! Each pair gives y = ln(B/A); the mean of y with Student's t-interval becomes a ratio with an
//! interval. Pairs, because drift of the machine affects both trials of a pair equally; logarithms,
//! because effects multiply, and B/A and A/B must give consistent results.
//!
//! Pairs on the same server start share its memory layout, so with enough server starts the unit is the
//! server start instead of the pair ([`crate::unit`]).
//!
//! Figures have a finite resolution: a rate from an integer count has steps of one transaction per
//! client. If the pairs vary by more than half a step, rounding behaves like noise and is part of their
//! standard deviation (Widrow and Kollár, "Quantization noise", 2008). Otherwise the same error repeats in
//! every pair, which no interval from pairs can show. In that case the interval is widened by the steps,
//! which bound the error ([`Estimate::below_resolution`]).
//!
//! Invariants: a single pair has no interval ([`PairComparison::Descriptive`]); the interval and the p-value
//! use the same t, so the interval excludes 1 exactly if the p-value is ≤ α; no interval has zero width.
//! Sources: Kalibera and Jones, "Rigorous benchmarking in reasonable time" (2013); Bulej et
//! al., "Duet benchmarking" (ICPE 2020).

use crate::distribution::{t_quantile, t_two_sided};
use crate::error::{StatsError, check_probability};
use crate::rank::{self, RankCheck};
use crate::unit::{UnitOfIndependence, units};

/// Minimum relative step of any figure: a microsecond clock in a window of a second.
pub(crate) const STEP_MIN: f64 = 1e-6;

/// One figure (tps, a latency, a cost per transaction) of two neighboring trials.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    /// The baseline's figure (A), positive, in any unit.
    pub baseline: f64,
    /// The variant's figure (B), in the same unit.
    pub variant: f64,
}

/// A confidence interval, in the unit of its figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Confidence level, for example 0.95.
    pub level: f64,
}

impl Interval {
    /// Whether the interval contains `value`, including its ends.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Whether both ends say something about a ratio: an interval from units that do not vary reaches from 0 to
    /// infinity.
    pub fn is_bounded(&self) -> bool {
        self.low > 0.0 && self.high.is_finite()
    }

    /// The value in the interval that is nearest to `value`. The mean of the last analysis can lie outside the
    /// intersection of all intervals so far.
    pub fn clamped(&self, value: f64) -> f64 {
        value.max(self.low).min(self.high)
    }
}

/// B/A from at least two pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// B/A: the geometric mean of the pairs' ratios.
    pub ratio: f64,
    /// Interval of the ratio.
    pub interval: Interval,
    /// Number of pairs.
    pub pairs: usize,
    /// Standard deviation of ln(B/A) between pairs (0.01 is about 1%).
    pub pair_sd_log: f64,
    /// Unit of analysis: pairs or server starts.
    pub unit: UnitOfIndependence,
    /// Number of units; the interval has one degree of freedom less.
    pub units: usize,
    /// Standard deviation of ln(B/A) between units.
    pub unit_sd_log: f64,
    /// Number of server starts among the pairs.
    pub boots: usize,
    /// Standard error of the mean of ln(B/A).
    pub std_err_log: f64,
    /// How far the interval of ln(B/A) was widened at each end for the resolution of the figures; 0 if
    /// rounding is part of the pairs' noise.
    pub widened_log: f64,
    /// Two-sided p-value of the t-test against a ratio of 1, including the widening.
    pub p_value: f64,
    /// The rank check of the estimate.
    pub rank: RankCheck,
}

impl Estimate {
    /// Whether the interval excludes a ratio of 1.
    pub fn excludes_one(&self) -> bool {
        !self.interval.contains(1.0)
    }

    /// Whether the pairs vary by less than the resolution of the figures.
    pub fn below_resolution(&self) -> bool {
        self.widened_log > 0.0
    }

    /// Whether all pairs are equal, so that their noise is unknown.
    pub fn is_constant(&self) -> bool {
        self.pair_sd_log <= STEP_MIN
    }

    /// The interval at another confidence `confidence_level`.
    pub fn interval_at(&self, level: f64) -> Interval {
        let quantile = t_quantile(f64::midpoint(1.0, level), (self.units - 1) as f64);
        let half_width = quantile * self.std_err_log + self.widened_log;
        let mean = self.ratio.ln();
        Interval {
            low: (mean - half_width).exp(),
            high: (mean + half_width).exp(),
            level,
        }
    }

    /// The smallest α at which the interval lies within ±`margin_log` (two one-sided tests).
    pub(crate) fn equivalence_p_value(&self, margin_log: f64) -> f64 {
        let room = margin_log - self.ratio.ln().abs() - self.widened_log;
        if room <= 0.0 {
            return 1.0;
        }
        p_value_of_mean(room, self.std_err_log, (self.units - 1) as f64)
    }
}

/// The comparison of pairs: a single pair gives a ratio without uncertainty.
#[derive(Debug, Clone, PartialEq)]
pub enum PairComparison {
    /// One pair: descriptive only.
    Descriptive {
        /// B/A of the only pair.
        ratio: f64,
    },
    /// Two pairs or more.
    Estimated(Estimate),
}

impl PairComparison {
    /// B/A, with or without uncertainty.
    pub fn ratio(&self) -> f64 {
        match self {
            Self::Descriptive { ratio } => *ratio,
            Self::Estimated(estimate) => estimate.ratio,
        }
    }

    /// The estimate; `None` for a single pair.
    pub fn estimate(&self) -> Option<&Estimate> {
        match self {
            Self::Descriptive { .. } => None,
            Self::Estimated(estimate) => Some(estimate),
        }
    }
}

/// Server starts and resolution of the pairs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PairContext<'a> {
    /// The server start of each pair; empty if all ran on the same one.
    pub boots: &'a [u32],
    /// Resolution of the baseline's and the variant's figures, relative to them.
    pub steps: [f64; 2],
}

/// Compares `pairs` on one server start, with exact figures, at the confidence `confidence_level` (0.95).
pub fn compare(pairs: &[Pair], level: f64) -> Result<PairComparison, StatsError> {
    compare_in_context(pairs, PairContext::default(), level)
}

/// Compares `pairs` at the confidence `confidence_level` (0.95), given their `background`.
pub fn compare_in_context(
    pairs: &[Pair],
    background: PairContext<'_>,
    level: f64,
) -> Result<PairComparison, StatsError> {
    check_probability("the confidence level", level)?;
    let log_ratios = log_ratios(pairs)?;
    if let [only] = log_ratios[..] {
        return Ok(PairComparison::Descriptive { ratio: only.exp() });
    }
    let (_, pair_sd_log) = mean_and_sd(&log_ratios);
    let grouped = units(&log_ratios, background.boots);
    let (mean, unit_sd_log) = mean_and_sd(&grouped.log_ratios);
    let count = grouped.log_ratios.len();
    let std_err_log = unit_sd_log / (count as f64).sqrt();
    let widened_log = widening(pair_sd_log, background.steps);
    let mut estimate = Estimate {
        ratio: mean.exp(),
        interval: Interval {
            low: 0.0,
            high: 0.0,
            level,
        },
        pairs: log_ratios.len(),
        pair_sd_log,
        unit: grouped.unit,
        units: count,
        unit_sd_log,
        boots: grouped.boots,
        std_err_log,
        widened_log,
        p_value: p_value_of_mean(
            (mean.abs() - widened_log).max(0.0),
            std_err_log,
            (count - 1) as f64,
        ),
        rank: rank::RankCheck::none(),
    };
    estimate.interval = estimate.interval_at(level);
    estimate.rank = rank::check(&grouped.log_ratios, &estimate, 1.0 - level);
    Ok(PairComparison::Estimated(estimate))
}

/// Bound on the error of ln(B/A) from rounding that repeats in every pair; 0 if the pairs vary enough for
/// rounding to act as noise.
///
/// A pair has two figures, whose steps combine like independent errors. With a standard deviation of half
/// a step, the remaining bias from rounding is 0.2% of the step.
pub(crate) fn widening(pair_sd_log: f64, steps: [f64; 2]) -> f64 {
    let [of_baseline, of_variant] = steps.map(|step| step.max(STEP_MIN));
    if pair_sd_log >= of_baseline.hypot(of_variant) / 2.0 {
        0.0
    } else {
        of_baseline + of_variant
    }
}

/// ln(B/A) of each pair.
pub fn log_ratios(pairs: &[Pair]) -> Result<Vec<f64>, StatsError> {
    if pairs.is_empty() {
        return Err(StatsError::NoPairs);
    }
    let usable = |figure: f64| figure > 0.0 && figure.is_finite();
    pairs
        .iter()
        .enumerate()
        .map(|(index, &Pair { baseline, variant })| {
            if usable(baseline) && usable(variant) {
                Ok(variant.ln() - baseline.ln())
            } else {
                Err(StatsError::NotPositive {
                    index,
                    baseline,
                    variant,
                })
            }
        })
        .collect()
}

/// Mean and sample standard deviation (n − 1); the deviation of one value is 0.
pub(crate) fn mean_and_sd(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

/// Correlation between neighboring values, such as ln(B/A) of pairs in the order in which they ran; `None` for fewer
/// than four values or constant ones. Independent values give less than 1.96/√n in absolute value in 95% of cases.
///
/// Source: Bartlett, "On the theoretical specification and sampling properties of autocorrelated time-series" (1946).
pub fn lag_one_correlation(values: &[f64]) -> Option<f64> {
    let (mean, sd) = mean_and_sd(values);
    if values.len() < 4 || sd <= STEP_MIN {
        return None;
    }
    let products = values.windows(2);
    let sum: f64 = products.map(|it| (it[0] - mean) * (it[1] - mean)).sum();
    Some(sum / (sd * sd * (values.len() - 1) as f64))
}

/// Two-sided p-value of `mean` against 0; 0 for identical pairs that differ from 1.
fn p_value_of_mean(mean: f64, std_err: f64, df: f64) -> f64 {
    if std_err > 0.0 {
        t_two_sided(mean / std_err, df)
    } else if mean.abs() > 0.0 {
        0.0
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;
    use crate::rank::RankAgreement;
    use crate::sampling::normal;

    #[test]
    fn neighboring_values_show_their_correlation() {
        assert_eq!(lag_one_correlation(&[0.1, 0.2, 0.3]), None);
        assert_eq!(lag_one_correlation(&[0.1; 12]), None);
        let alternating = [0.01, 0.01, -0.01, -0.01].repeat(12);
        // Of 47 products 24 are +1 and 23 are −1; the squares are 48.
        let found = lag_one_correlation(&alternating).unwrap();
        assert!((found - 1.0 / 48.0).abs() < 1e-9, "{found}");
    }

    fn pairs_of(ratios: &[f64]) -> Vec<Pair> {
        ratios
            .iter()
            .map(|ratio| Pair {
                baseline: 200.0,
                variant: 200.0 * ratio,
            })
            .collect()
    }

    fn estimate_of(pairs: &[Pair], level: f64) -> Estimate {
        compare(pairs, level).unwrap().estimate().unwrap().clone()
    }

    #[test]
    fn the_interval_is_that_of_a_textbook_t_test() {
        // R: t.test(log(c(1.10, 1.12, 1.08, 1.11, 1.09))) → mean 0.095155, se 0.0064…, df 4.
        let estimate = estimate_of(&pairs_of(&[1.10, 1.12, 1.08, 1.11, 1.09]), 0.95);
        let logs: Vec<f64> = [1.10f64, 1.12, 1.08, 1.11, 1.09]
            .iter()
            .map(|r| r.ln())
            .collect();
        let mean = logs.iter().sum::<f64>() / 5.0;
        let sd = (logs.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / 4.0).sqrt();
        let half = 2.776_445 * sd / 5f64.sqrt();
        assert!((estimate.ratio - mean.exp()).abs() < 1e-12);
        assert!((estimate.interval.low - (mean - half).exp()).abs() < 1e-7);
        assert!((estimate.interval.high - (mean + half).exp()).abs() < 1e-7);
        assert!(estimate.excludes_one() && estimate.p_value < 1e-3);
        assert_eq!(estimate.rank.agreement, RankAgreement::Agrees);
        let four = estimate_of(&pairs_of(&[1.10, 1.12, 1.08, 1.11]), 0.95);
        assert_eq!(four.rank.agreement, RankAgreement::TooFewPairs);
    }

    #[test]
    fn swapping_the_sides_inverts_the_ratio() {
        let pairs = pairs_of(&[1.02, 0.97, 1.05, 1.01, 1.00, 1.04]);
        let swapped: Vec<Pair> = pairs
            .iter()
            .map(|p| Pair {
                baseline: p.variant,
                variant: p.baseline,
            })
            .collect();
        let (forth, back) = (estimate_of(&pairs, 0.95), estimate_of(&swapped, 0.95));
        assert!((forth.ratio * back.ratio - 1.0).abs() < 1e-12);
        assert!((forth.interval.low * back.interval.high - 1.0).abs() < 1e-12);
        assert!((forth.p_value - back.p_value).abs() < 1e-12);
    }

    #[test]
    fn one_pair_is_descriptive_and_none_is_an_error() {
        assert_eq!(compare(&pairs_of(&[1.5]), 0.95).unwrap().estimate(), None);
        assert!((compare(&pairs_of(&[1.5]), 0.95).unwrap().ratio() - 1.5).abs() < 1e-12);
        assert_eq!(compare(&[], 0.95), Err(StatsError::NoPairs));
        let bad = compare(
            &[
                Pair {
                    baseline: 1.0,
                    variant: 1.0,
                },
                Pair {
                    baseline: 0.0,
                    variant: 3.0,
                },
            ],
            0.95,
        );
        assert!(matches!(bad, Err(StatsError::NotPositive { index: 1, .. })));
        assert!(compare(&pairs_of(&[1.0, 1.1]), 1.0).is_err());
    }

    #[test]
    fn identical_pairs_have_no_interval_of_width_zero() {
        let same = estimate_of(&pairs_of(&[1.0, 1.0, 1.0]), 0.95);
        assert!(!same.excludes_one() && same.p_value >= 1.0);
        assert!(same.below_resolution() && same.interval.low < 1.0 && same.interval.high > 1.0);
        // Ten transactions per client on either side give a resolution of one tenth.
        let background = PairContext {
            boots: &[],
            steps: [0.1, 0.1],
        };
        let found = compare_in_context(&pairs_of(&[0.9; 6]), background, 0.95).unwrap();
        let found = found.estimate().unwrap();
        assert!(found.below_resolution() && found.interval.contains(0.916));
        assert!((found.interval.high / 0.9 - 0.2f64.exp()).abs() < 1e-9);
        // Pairs that vary by more than half a step need no widening.
        let noisy = pairs_of(&[0.9, 1.1, 1.0, 0.85, 1.15, 0.95]);
        let found = compare_in_context(&noisy, background, 0.95).unwrap();
        assert!(!found.estimate().unwrap().below_resolution());
    }

    #[test]
    fn an_outlier_makes_ranks_disagree() {
        let mut ratios = vec![1.02; 11];
        for (index, ratio) in ratios.iter_mut().enumerate() {
            *ratio += 0.0005 * index as f64;
        }
        let clean = estimate_of(&pairs_of(&ratios), 0.95);
        assert_eq!(clean.rank.agreement, RankAgreement::Agrees);
        ratios.push(0.5);
        let spoilt = estimate_of(&pairs_of(&ratios), 0.95);
        assert_eq!(spoilt.rank.agreement, RankAgreement::Disagrees);
        assert!((spoilt.rank.ratio - 1.02).abs() < 0.01);
    }

    #[test]
    fn intervals_of_five_pairs_have_nominal_coverage() {
        let mut stream = SplitMix64::new(5);
        let (simulations, truth) = (10_000, 1.03f64);
        let covered = (0..simulations)
            .filter(|_| {
                let pairs: Vec<Pair> = (0..5)
                    .map(|_| Pair {
                        baseline: 1.0,
                        variant: truth * (0.014 * normal(&mut stream)).exp(),
                    })
                    .collect();
                estimate_of(&pairs, 0.95).interval.contains(truth)
            })
            .count();
        let share = covered as f64 / f64::from(simulations);
        assert!((0.943..=0.957).contains(&share), "{share}");
    }
}
