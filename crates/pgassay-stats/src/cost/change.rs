//! The change of one row: its size in µs, its uncertainty, and the test against no change.
//!
//! With enough samples on both sides: Var(ln cost) of a side = (1 − p)/k + cv²·Σw² (the first term is
//! 1/k for small shares p, the second cv²/n for equal trials), times the scale from the function's own
//! sum of squares, and never below the first term. So Var(ln ratio) = 1/kA + 1/kB + 2·cv²/n plus the
//! variance of the totals. The difference in µs has the variance
//! a²·Var(ln share a) + b²·Var(ln share b) + Var(b·ln total B − a·ln total A).
//!
//! All this is computed under both kinds of noise in [`crate::dispersion`]: p-values and variances are
//! means over the kinds, weighted by their probabilities for the row.
//!
//! With fewer than [`EXACT_BELOW`] samples on a side, logarithms do not work: the test is the conditional
//! beta-binomial (kB among kA + kB, given the µs per sample of each side and a share that varies beyond
//! counting noise as above). The interval of the difference combines the intervals of both sides
//! (Garwood's, for few samples) with Zou and Donner's MOVER: "Construction of confidence limits about
//! effect measures" (2008). That interval ignores the noise between trials; the test does not.

use super::difference::{Cost, CostChange};
use super::side::{VariantTotals, combined, totals_variance};
use crate::dispersion::FunctionNoise;
use crate::distribution::{
    beta_binomial_two_sided, binomial_interval, normal_quantile, poisson_interval, t_quantile,
    t_two_sided,
};
use crate::pairs::Interval;

/// With fewer samples on either side, the exact test is used.
pub const EXACT_BELOW: u64 = 20;

/// The counts of a row, with everything that determines their uncertainty.
pub(super) struct CountedRow<'a> {
    pub(super) a: &'a VariantTotals,
    pub(super) b: &'a VariantTotals,
    pub(super) count_a: u64,
    pub(super) count_b: u64,
    /// The noise of the row under each kind.
    pub(super) noise: [FunctionNoise; 2],
}

/// A change with the result of its test and the degrees of freedom of its standard error.
pub(super) struct TestedChange {
    pub(super) change: CostChange,
    pub(super) p_value: f64,
    pub(super) df: f64,
}

impl CountedRow<'_> {
    /// Tests the row and builds its intervals at `confidence_level`.
    pub(super) fn test(&self, level: f64) -> TestedChange {
        if self.count_a.min(self.count_b) < EXACT_BELOW {
            self.test_exactly(level)
        } else {
            self.test_by_logarithms(level)
        }
    }

    /// Variance of ln(share) of one side under one kind of noise, split into counting noise and the rest.
    fn share_variance(side: &VariantTotals, count: u64, noise: FunctionNoise) -> (f64, f64) {
        let share = count as f64 / side.samples as f64;
        let counting = (1.0 - share) / count as f64;
        let whole = noise.scale * (counting + noise.cv2 * side.weight_squares);
        (counting, (whole - counting).max(0.0))
    }

    /// Variance and degrees of freedom of `wb`·ln(cost B) − `wa`·ln(cost A) under one kind of noise.
    fn weighted_variance(&self, wa: f64, wb: f64, noise: FunctionNoise) -> (f64, f64) {
        let (counting_a, beyond_a) = Self::share_variance(self.a, self.count_a, noise);
        let (counting_b, beyond_b) = Self::share_variance(self.b, self.count_b, noise);
        combined(&[
            (wa * wa * counting_a + wb * wb * counting_b, f64::INFINITY),
            (wa * wa * beyond_a + wb * wb * beyond_b, noise.df),
            totals_variance(self.a, self.b, wa, wb),
        ])
    }

    /// The mean of a variance over both kinds of noise, with its degrees of freedom.
    fn over_kinds(&self, of_kind: impl Fn(FunctionNoise) -> (f64, f64)) -> (f64, f64) {
        let parts = self.noise.map(|noise| (noise.probability, of_kind(noise)));
        let variance: f64 = parts.iter().map(|(weight, (it, _))| weight * it).sum();
        let inverse: f64 = parts
            .iter()
            .map(|(weight, (it, df))| weight * it / variance.max(f64::MIN_POSITIVE) / df)
            .sum();
        (variance, (1.0 / inverse).max(1.0))
    }

    fn costs(&self) -> (f64, f64) {
        (
            self.count_a as f64 * self.a.us_per_sample(),
            self.count_b as f64 * self.b.us_per_sample(),
        )
    }

    fn test_by_logarithms(&self, level: f64) -> TestedChange {
        let (cost_a, cost_b) = self.costs();
        let log_ratio = (cost_b / cost_a).ln();
        let (variance, df) = self.over_kinds(|noise| self.weighted_variance(1.0, 1.0, noise));
        let half = t_quantile(f64::midpoint(1.0, level), df) * variance.sqrt();
        let ratio_interval = Interval {
            low: (log_ratio - half).exp(),
            high: (log_ratio + half).exp(),
            level,
        };
        let (variance_us, df_us) =
            self.over_kinds(|noise| self.weighted_variance(cost_a, cost_b, noise));
        let half_us = t_quantile(f64::midpoint(1.0, level), df_us) * variance_us.sqrt();
        let delta_us = cost_b - cost_a;
        let of_kind = |noise: &FunctionNoise| match self.weighted_variance(1.0, 1.0, *noise) {
            (variance, df) if variance > 0.0 => t_two_sided(log_ratio / variance.sqrt(), df),
            _ => 1.0,
        };
        let p_value = self
            .noise
            .iter()
            .map(|it| it.probability * of_kind(it))
            .sum();
        TestedChange {
            change: CostChange {
                delta_us,
                std_err_us: Some(variance_us.sqrt()),
                delta_interval_us: Some(Interval {
                    low: delta_us - half_us,
                    high: delta_us + half_us,
                    level,
                }),
                ratio: Some(cost_b / cost_a),
                ratio_interval: Some(ratio_interval),
            },
            p_value,
            df: df_us,
        }
    }

    fn test_exactly(&self, level: f64) -> TestedChange {
        let (cost_a, cost_b) = self.costs();
        let delta_us = cost_b - cost_a;
        let (low_a, high_a) = self.side_interval(self.a, self.count_a, level);
        let (low_b, high_b) = self.side_interval(self.b, self.count_b, level);
        let low = delta_us - (cost_b - low_b).hypot(high_a - cost_a);
        let high = delta_us + (high_b - cost_b).hypot(cost_a - low_a);
        let quantile = t_quantile(f64::midpoint(1.0, level), f64::INFINITY);
        TestedChange {
            change: CostChange {
                delta_us,
                std_err_us: Some((high - low) / (2.0 * quantile)),
                delta_interval_us: Some(Interval { low, high, level }),
                ratio: (self.count_a > 0).then(|| cost_b / cost_a),
                ratio_interval: self.exact_ratio_interval(level),
            },
            p_value: self.binomial_p_value(),
            df: f64::INFINITY,
        }
    }

    /// With equal costs, the expected share of B among the samples is its share of the samples per µs.
    fn binomial_p_value(&self) -> f64 {
        let trials = self.count_a + self.count_b;
        if trials == 0 {
            return 1.0;
        }
        let (per_us_a, per_us_b) = (1.0 / self.a.us_per_sample(), 1.0 / self.b.us_per_sample());
        let share = per_us_b / (per_us_a + per_us_b);
        let counting = 1.0 / (trials as f64 * share * (1.0 - share));
        let squares = self.a.weight_squares + self.b.weight_squares;
        let of_kind = |noise: &FunctionNoise| {
            let beyond = (noise.scale * (counting + noise.cv2 * squares) - counting).max(0.0);
            let alone = beta_binomial_two_sided(self.count_b, trials, share, beyond);
            // Convert to standard errors, which are estimates with `df` degrees of freedom.
            let (_, df) = combined(&[(counting, f64::INFINITY), (beyond, noise.df)]);
            t_two_sided(normal_quantile((alone / 2.0).max(f64::MIN_POSITIVE)), df)
        };
        self.noise
            .iter()
            .map(|it| it.probability * of_kind(it))
            .sum()
    }

    /// Clopper and Pearson's interval for the share of B, converted to a ratio of costs; the upper end is
    /// infinite if A has no samples.
    fn exact_ratio_interval(&self, level: f64) -> Option<Interval> {
        let trials = self.count_a + self.count_b;
        if trials == 0 {
            return None;
        }
        let scale = self.b.us_per_sample() / self.a.us_per_sample();
        let (low, high) = binomial_interval(self.count_b, trials, level);
        let odds = |share: f64| share / (1.0 - share) * scale;
        Some(Interval {
            low: odds(low),
            high: odds(high),
            level,
        })
    }

    /// The interval of one side's cost in µs per transaction.
    fn side_interval(&self, side: &VariantTotals, count: u64, level: f64) -> (f64, f64) {
        if count < EXACT_BELOW {
            let (low, high) = poisson_interval(count, level);
            return (low * side.us_per_sample(), high * side.us_per_sample());
        }
        let own_df = (side.trials() - 1) as f64;
        let (variance, df) = self.over_kinds(|noise| {
            let (counting, beyond) = Self::share_variance(side, count, noise);
            combined(&[
                (counting, f64::INFINITY),
                (beyond, noise.df),
                (side.total_log_variance(), own_df),
            ])
        });
        let factor = (t_quantile(f64::midpoint(1.0, level), df) * variance.sqrt()).exp();
        let cost = count as f64 * side.us_per_sample();
        (cost / factor, cost * factor)
    }
}

/// The change of the exact totals themselves.
pub(super) fn total_change(a: &VariantTotals, b: &VariantTotals, level: f64) -> CostChange {
    let (total_a, total_b) = (a.us_per_transaction, b.us_per_transaction);
    let mut change = descriptive(
        &Cost {
            us: total_a,
            samples: a.samples,
        },
        &Cost {
            us: total_b,
            samples: b.samples,
        },
    );
    if a.trials().min(b.trials()) < 2 {
        return change;
    }
    let half_of = |(variance, df): (f64, f64)| {
        (
            variance.sqrt(),
            t_quantile(f64::midpoint(1.0, level), df) * variance.sqrt(),
        )
    };
    let (std_err_us, half_us) = half_of(totals_variance(a, b, total_a, total_b));
    let (_, half_log) = half_of(totals_variance(a, b, 1.0, 1.0));
    let ratio = total_b / total_a;
    change.std_err_us = Some(std_err_us);
    change.delta_interval_us = Some(Interval {
        low: change.delta_us - half_us,
        high: change.delta_us + half_us,
        level,
    });
    change.ratio_interval = Some(Interval {
        low: ratio * (-half_log).exp(),
        high: ratio * half_log.exp(),
        level,
    });
    change
}

/// A change without uncertainty.
pub(super) fn descriptive(a: &Cost, b: &Cost) -> CostChange {
    CostChange {
        delta_us: b.us - a.us,
        std_err_us: None,
        delta_interval_us: None,
        ratio: (a.us > 0.0).then(|| b.us / a.us),
        ratio_interval: None,
    }
}
