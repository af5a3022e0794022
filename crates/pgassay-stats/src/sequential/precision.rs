//! An interval of a wanted half-width: Stein's two stages.
//!
//! Where a verdict stops early, the estimate is biased away from no difference (by at most 0.1 standard deviations
//! of the pairs), and a lucky verdict exaggerates. A figure for publication comes from here: the first stage
//! determines the number of units, and its standard deviation alone gives the interval's width.
//!
//! With s and its n₁ − 1 degrees of freedom from the first stage, n = max(n₁, ⌈(t·s/d)²⌉) units make the
//! half-width t·s/√n at most d. The number may also be larger, or smaller because the time is up: as long as it
//! depends on nothing but deviations from the mean and the clock, t keeps its distribution. So may several
//! comparisons share units, each with the largest number that any of them needs.
//!
//! Source: Stein, "A two-sample test for a linear hypothesis whose power is independent of the variance" (1945).
//! Invariants: from the needed number of units on, the half-width is at most the wanted one; units of the second
//! stage never change the width per unit.

use crate::distribution::t_quantile;
use crate::error::{StatsError, check_positive, check_probability};
use crate::pairs::{Interval, Pair, STEP_MIN, log_ratios, mean_and_sd, widening};

/// The largest number of units that is planned: more would take weeks.
const UNITS_MAX: usize = 100_000;

/// What is fixed before the first trial of two stages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrecisionPlan {
    /// Number of units in the first stage, at least 2.
    pub first_stage: usize,
    /// The wanted half-width of the interval of ln(B/A) (0.01 is about ±1%).
    pub half_width_log: f64,
    /// One minus the level of the interval.
    pub alpha: f64,
}

/// The interval of two stages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrecisionEstimate {
    /// Number of units.
    pub units: usize,
    /// Mean of ln(B/A) over all units.
    pub mean_log: f64,
    /// Standard deviation of ln(B/A) between the units of the first stage.
    pub unit_sd_log: f64,
    /// The half-width that was reached, of ln(B/A); infinite if the units of the first stage do not vary.
    pub half_width_log: f64,
    /// How far the interval of ln(B/A) is widened at each end for the resolution of the figures.
    pub widened_log: f64,
    /// The interval of B/A.
    pub interval: Interval,
}

impl PrecisionEstimate {
    /// B/A: the geometric mean of the units' ratios.
    pub fn ratio(&self) -> f64 {
        self.mean_log.exp()
    }
}

/// A comparison of B with A in two stages, to which units are added.
#[derive(Debug, Clone)]
pub struct PrecisionComparison {
    plan: PrecisionPlan,
    /// ln(B/A) of each unit.
    unit_logs: Vec<f64>,
    /// ln(B/A) of each pair of the first stage.
    first_pair_logs: Vec<f64>,
    steps: [f64; 2],
}

impl PrecisionComparison {
    /// A comparison without units.
    ///
    /// # Errors
    /// A first stage of fewer than two units, a half-width that is not positive, an α outside (0, 1).
    pub fn new(plan: PrecisionPlan) -> Result<Self, StatsError> {
        check_positive("the half-width", plan.half_width_log)?;
        check_probability("alpha", plan.alpha)?;
        if plan.first_stage < 2 {
            return Err(StatsError::FirstStage {
                units: plan.first_stage,
            });
        }
        Ok(Self {
            plan,
            unit_logs: Vec::new(),
            first_pair_logs: Vec::new(),
            steps: [0.0; 2],
        })
    }

    /// Adds the pairs of one unit, in the order in which units ran: their mean is what counts. `steps` are the
    /// resolutions of the baseline's and the variant's figures, relative to them ([`crate::pairs`]).
    ///
    /// # Errors
    /// No pairs, or a figure that is not positive; then nothing is added.
    pub fn push(&mut self, pairs: &[Pair], steps: [f64; 2]) -> Result<(), StatsError> {
        let logs = log_ratios(pairs)?;
        for (step, new) in self.steps.iter_mut().zip(steps) {
            *step = step.max(new);
        }
        self.unit_logs.push(mean_and_sd(&logs).0);
        if self.unit_logs.len() <= self.plan.first_stage {
            self.first_pair_logs.extend(logs);
        }
        Ok(())
    }

    /// Number of units so far.
    pub fn units(&self) -> usize {
        self.unit_logs.len()
    }

    /// Whether the first stage is complete, so that the number of units is known.
    pub fn has_first_stage(&self) -> bool {
        self.units() >= self.plan.first_stage
    }

    /// The interval of all units so far; `None` with fewer than two. In the first stage, it is Student's.
    pub fn estimate(&self) -> Option<PrecisionEstimate> {
        let spread = self.spread()?;
        let (mean_log, _) = mean_and_sd(&self.unit_logs);
        let half_width_log = spread.quantile * spread.unit_sd_log / (self.units() as f64).sqrt()
            + spread.widened_log;
        let half_width_log = if spread.is_constant() {
            f64::INFINITY
        } else {
            half_width_log
        };
        Some(PrecisionEstimate {
            units: self.units(),
            mean_log,
            unit_sd_log: spread.unit_sd_log,
            half_width_log,
            widened_log: spread.widened_log,
            interval: Interval {
                low: (mean_log - half_width_log).exp(),
                high: (mean_log + half_width_log).exp(),
                level: 1.0 - self.plan.alpha,
            },
        })
    }

    /// The number of units for the wanted half-width, at least those of the first stage and at most 100,000. In
    /// the first stage, what the units so far suggest. `None` with fewer than two units, and if no number is
    /// enough: the units do not vary, or the resolution of the figures is too coarse.
    pub fn units_needed(&self) -> Option<usize> {
        let spread = self.spread()?;
        let left = self.plan.half_width_log - spread.widened_log;
        if spread.is_constant() || left <= 0.0 {
            return None;
        }
        let needed = (spread.quantile * spread.unit_sd_log / left).powi(2).ceil() as usize;
        Some(needed.clamp(self.plan.first_stage, UNITS_MAX.max(self.plan.first_stage)))
    }

    /// What the first stage says of the noise.
    fn spread(&self) -> Option<Spread> {
        let first = &self.unit_logs[..self.units().min(self.plan.first_stage)];
        if first.len() < 2 {
            return None;
        }
        let df = (first.len() - 1) as f64;
        Some(Spread {
            unit_sd_log: mean_and_sd(first).1,
            quantile: -t_quantile(self.plan.alpha / 2.0, df),
            widened_log: widening(mean_and_sd(&self.first_pair_logs).1, self.steps),
        })
    }
}

struct Spread {
    unit_sd_log: f64,
    quantile: f64,
    widened_log: f64,
}

impl Spread {
    fn is_constant(&self) -> bool {
        self.unit_sd_log <= STEP_MIN
    }
}

#[cfg(test)]
mod tests;
