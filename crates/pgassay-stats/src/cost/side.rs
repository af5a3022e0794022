//! The trials of one variant, checked and summed.

use super::table::{CostTable, RowCounts, TrialTotals};
use crate::error::StatsError;
use crate::pairs::mean_and_sd;

/// The exact totals of a variant, which convert samples to µs per transaction.
#[derive(Debug)]
pub(super) struct VariantTotals {
    /// Exact on-CPU µs per transaction: Σ time / Σ transactions.
    pub(super) us_per_transaction: f64,
    /// Number of samples, over all trials.
    pub(super) samples: u64,
    /// Samples of each trial.
    pub(super) samples_by_trial: Vec<u64>,
    /// ln of each trial's µs per transaction.
    log_totals: Vec<f64>,
    /// Σ wⱼ² of the trials' weights in the pooled share; 1/n for equal trials.
    pub(super) weight_squares: f64,
}

impl VariantTotals {
    /// Sums `trials` after checking that each gives a cost.
    pub(super) fn of(side: char, trials: &[TrialTotals]) -> Result<Self, StatsError> {
        if trials.is_empty() {
            return Err(StatsError::NoPairs);
        }
        for (trial, totals) in trials.iter().enumerate() {
            let TrialTotals {
                on_cpu_us,
                transactions,
                samples,
            } = *totals;
            let usable =
                on_cpu_us > 0.0 && on_cpu_us.is_finite() && transactions > 0 && samples > 0;
            if !usable {
                return Err(StatsError::EmptyTrial {
                    side,
                    trial,
                    on_cpu_us,
                    transactions,
                    samples,
                });
            }
        }
        let on_cpu_us: f64 = trials.iter().map(|trial| trial.on_cpu_us).sum();
        let transactions: u64 = trials.iter().map(|trial| trial.transactions).sum();
        let samples: u64 = trials.iter().map(|trial| trial.samples).sum();
        Ok(Self {
            us_per_transaction: on_cpu_us / transactions as f64,
            samples,
            samples_by_trial: trials.iter().map(|trial| trial.samples).collect(),
            log_totals: trials
                .iter()
                .map(|trial| (trial.on_cpu_us / trial.transactions as f64).ln())
                .collect(),
            weight_squares: trials
                .iter()
                .map(|trial| (trial.samples as f64 / samples as f64).powi(2))
                .sum(),
        })
    }

    /// µs per transaction that one sample represents.
    pub(super) fn us_per_sample(&self) -> f64 {
        self.us_per_transaction / self.samples as f64
    }

    /// The cost of `count` samples in one trial, µs per transaction.
    pub(super) fn cost_in_trial(&self, trial: usize, count: u64) -> f64 {
        count as f64 / self.samples_by_trial[trial] as f64 * self.log_totals[trial].exp()
    }

    pub(super) fn trials(&self) -> usize {
        self.log_totals.len()
    }

    /// Variance of the mean of ln(total), from this side's trials.
    pub(super) fn total_log_variance(&self) -> f64 {
        let (_, sd) = mean_and_sd(&self.log_totals);
        sd.powi(2) / self.trials() as f64
    }
}

/// Variance of `weight_b`·ln(total B) − `weight_a`·ln(total A), and its degrees of freedom.
///
/// With equal numbers of trials, the n-th trials of A and B are neighbors, so their common drift cancels;
/// otherwise the two sides count as independent (Welch and Satterthwaite).
pub(super) fn totals_variance(
    a: &VariantTotals,
    b: &VariantTotals,
    weight_a: f64,
    weight_b: f64,
) -> (f64, f64) {
    if a.trials() == b.trials() {
        let differences: Vec<f64> = a
            .log_totals
            .iter()
            .zip(&b.log_totals)
            .map(|(log_a, log_b)| weight_b * log_b - weight_a * log_a)
            .collect();
        let (_, sd) = mean_and_sd(&differences);
        return (sd.powi(2) / a.trials() as f64, (a.trials() - 1) as f64);
    }
    let part_a = (
        weight_a.powi(2) * a.total_log_variance(),
        (a.trials() - 1) as f64,
    );
    let part_b = (
        weight_b.powi(2) * b.total_log_variance(),
        (b.trials() - 1) as f64,
    );
    combined(&[part_a, part_b])
}

/// Sum of independent variances and its degrees of freedom after Satterthwaite (1946).
pub(super) fn combined(parts: &[(f64, f64)]) -> (f64, f64) {
    let variance: f64 = parts.iter().map(|(variance, _)| variance).sum();
    let spread: f64 = parts
        .iter()
        .filter(|(part, _)| *part > 0.0)
        .map(|(part, df)| part.powi(2) / df)
        .sum();
    let df = if spread > 0.0 {
        variance.powi(2) / spread
    } else {
        f64::INFINITY
    };
    (variance, df.max(1.0))
}

/// Rejects rows that are inconsistent with their trials.
pub(super) fn check_rows(table: &CostTable) -> Result<(), StatsError> {
    for (row, RowCounts { a, b }) in table.rows.iter().enumerate() {
        for (side, counts, trials) in [('A', a, &table.a), ('B', b, &table.b)] {
            if counts.len() != trials.len() {
                return Err(StatsError::WrongLength {
                    row,
                    side,
                    found: counts.len(),
                    expected: trials.len(),
                });
            }
            for (trial, (count, totals)) in counts.iter().zip(trials).enumerate() {
                if *count > totals.samples {
                    let (count, samples) = (*count, totals.samples);
                    return Err(StatsError::TooManySamples {
                        row,
                        side,
                        trial,
                        count,
                        samples,
                    });
                }
            }
        }
    }
    Ok(())
}

/// Whether the difference of neighboring trials has the sign of the overall difference in at least three
/// quarters of the blocks. A burst in one block changes the overall difference, but no other block.
pub(super) fn has_consistent_sign(a: &VariantTotals, b: &VariantTotals, row: &RowCounts) -> bool {
    let blocks = a.trials().min(b.trials());
    let delta =
        |trial: usize| b.cost_in_trial(trial, row.b[trial]) - a.cost_in_trial(trial, row.a[trial]);
    let whole = row.b.iter().sum::<u64>() as f64 * b.us_per_sample()
        - row.a.iter().sum::<u64>() as f64 * a.us_per_sample();
    let agreeing = (0..blocks)
        .filter(|trial| delta(*trial) * whole > 0.0)
        .count();
    4 * agreeing >= 3 * blocks
}
