//! A running comparison: one interval that is valid at all of its analyses together.
//!
//! At each analysis the interval of ln(B/A) is mean ± c·s/√n (± the resolution of the figures). All intervals
//! together cover the truth in 1 − α of comparisons (repeated confidence intervals: Jennison and Turnbull,
//! "Interim analyses: the repeated confidence interval approach", 1989), so their intersection does, too. Any
//! number of questions may be asked of it without spending more α: whether it contains 1, whether it lies within
//! the margin, on which side of a gate's threshold it lies.
//!
//! The first verdict stands. If sampling continues, for another metric or a narrower interval, the intersection
//! of all intervals narrows; if it is ever empty, the comparison is unstable.
//!
//! Invariants: an analysis after n units uses exactly the first n, so the result does not depend on how pairs are
//! grouped into calls; the intersection never widens; the sequential p-value never rises, and is at most α exactly
//! if the intersection at the level 1 − α excludes 1. Units whose values are all equal show no noise, and an
//! analysis of them says nothing.

use std::cmp::Ordering;

use super::boundary::{AnalysisSchedule, CriticalValues, SequentialP};
use super::path::LogRange;
use super::verdict::SequentialVerdict;
use crate::error::StatsError;
use crate::pairs::{
    Interval, Pair, PairContext, STEP_MIN, compare_in_context, log_ratios, mean_and_sd, widening,
};
use crate::rank::RankCheck;
use crate::verdict::{Direction, EquivalenceMargin};

/// What is fixed before the first trial of a comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SequentialPlan {
    /// When analyses take place, and after how many units at most.
    pub schedule: AnalysisSchedule,
    /// Two-sided α of all analyses together, up to 0.1.
    pub alpha: f64,
    /// Whether higher figures are better.
    pub direction: Direction,
    /// The equivalence margin.
    pub margin: EquivalenceMargin,
}

impl SequentialPlan {
    /// α = 5% and a margin of ±2%.
    pub fn new(schedule: AnalysisSchedule, direction: Direction) -> Self {
        Self {
            schedule,
            alpha: 0.05,
            direction,
            margin: EquivalenceMargin::default(),
        }
    }
}

/// One interim analysis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InterimAnalysis {
    /// Number of units: of pairs, or of server starts and the like.
    pub units: usize,
    /// Number of pairs in these units.
    pub pairs: usize,
    /// Mean of ln(B/A) over the units.
    pub mean_log: f64,
    /// Standard deviation of ln(B/A) between units (0.01 is about 1%).
    pub unit_sd_log: f64,
    /// Standard error of the mean.
    pub std_err_log: f64,
    /// How far the interval of ln(B/A) is widened at each end for the resolution of the figures.
    pub widened_log: f64,
    /// The interval of B/A from this analysis, at the level 1 − α of the plan; from 0 to infinity if the units do
    /// not vary.
    pub interval: Interval,
    /// The intersection of the intervals so far; `None` if it is empty.
    pub narrowed: Option<Interval>,
    /// The sequential p-value so far, against a ratio of 1.
    pub p_value: SequentialP,
    /// The verdict so far: the first one stands.
    pub verdict: SequentialVerdict,
}

impl InterimAnalysis {
    /// B/A: the geometric mean of the units' ratios.
    pub fn ratio(&self) -> f64 {
        self.mean_log.exp()
    }

    /// Whether the units do not vary, so that their noise is unknown.
    pub fn is_constant(&self) -> bool {
        self.unit_sd_log <= STEP_MIN
    }

    fn range(&self, critical: f64) -> LogRange {
        if self.is_constant() {
            LogRange::EVERYTHING
        } else {
            LogRange::around(
                self.mean_log,
                critical * self.std_err_log + self.widened_log,
            )
        }
    }

    /// The smallest α at which the interval of this analysis excludes a value `distance` from its mean.
    fn p_at(&self, schedule: AnalysisSchedule, analysis: usize, distance: f64) -> SequentialP {
        let beyond = distance - self.widened_log;
        if self.is_constant() || beyond <= 0.0 {
            SequentialP::ABOVE_TABLE
        } else {
            schedule.p_value(analysis, beyond / self.std_err_log)
        }
    }
}

/// A comparison of B with A, to which pairs are added.
#[derive(Debug, Clone)]
pub struct SequentialComparison {
    plan: SequentialPlan,
    critical: CriticalValues,
    pairs: Vec<Pair>,
    /// The unit of each pair.
    unit_of: Vec<u32>,
    /// ln(B/A) of each pair.
    pair_logs: Vec<f64>,
    /// ln(B/A) of each unit.
    unit_logs: Vec<f64>,
    steps: [f64; 2],
    analyses: Vec<InterimAnalysis>,
    range: LogRange,
    p_value: SequentialP,
    /// Against the lower and the upper end of the margin.
    margin_p_values: [SequentialP; 2],
    first_verdict: Option<SequentialVerdict>,
}

impl SequentialComparison {
    /// A comparison without pairs.
    ///
    /// # Errors
    /// The plan's α is not in (0, 0.1].
    pub fn new(plan: SequentialPlan) -> Result<Self, StatsError> {
        Ok(Self {
            plan,
            critical: plan.schedule.critical_values(plan.alpha)?,
            pairs: Vec::new(),
            unit_of: Vec::new(),
            pair_logs: Vec::new(),
            unit_logs: Vec::new(),
            steps: [0.0; 2],
            analyses: Vec::new(),
            range: LogRange::EVERYTHING,
            p_value: SequentialP::ABOVE_TABLE,
            margin_p_values: [SequentialP::ABOVE_TABLE; 2],
            first_verdict: None,
        })
    }

    /// Adds pairs in the order in which they ran: a block, or with [`AnalysisSchedule::Units`] all pairs of one
    /// unit. Returns the last analysis that they complete.
    ///
    /// # Errors
    /// No pairs, a figure that is not positive, or more units than the plan has; then nothing is added.
    pub fn push(&mut self, pairs: &[Pair]) -> Result<Option<&InterimAnalysis>, StatsError> {
        self.push_with_resolution(pairs, [0.0; 2])
    }

    /// The same for figures with a finite resolution: `steps` are those of the baseline's and the variant's
    /// figures, relative to them ([`crate::pairs`]). The coarsest so far applies.
    pub fn push_with_resolution(
        &mut self,
        pairs: &[Pair],
        steps: [f64; 2],
    ) -> Result<Option<&InterimAnalysis>, StatsError> {
        let logs = log_ratios(pairs)?;
        let schedule = self.plan.schedule;
        let units: Vec<(&[Pair], &[f64])> = match schedule {
            AnalysisSchedule::Pairs => pairs.chunks(1).zip(logs.chunks(1)).collect(),
            AnalysisSchedule::Units => vec![(pairs, &logs[..])],
        };
        if self.units() + units.len() > schedule.cap() {
            return Err(StatsError::BeyondCap {
                units: self.units(),
                more: units.len(),
                cap: schedule.cap(),
            });
        }
        for (step, new) in self.steps.iter_mut().zip(steps) {
            *step = step.max(new);
        }
        let analyzed = self.analyses.len();
        for (pairs, logs) in units {
            self.unit_of
                .extend(std::iter::repeat_n(self.units() as u32, pairs.len()));
            self.pairs.extend_from_slice(pairs);
            self.pair_logs.extend_from_slice(logs);
            self.unit_logs.push(mean_and_sd(logs).0);
            if let Some(analysis) = schedule.analysis_at(self.units()) {
                self.analyze(analysis);
            }
        }
        Ok(self.analyses[analyzed..].last())
    }

    fn analyze(&mut self, analysis: usize) {
        let schedule = self.plan.schedule;
        let units = self.unit_logs.len();
        let (mean_log, unit_sd_log) = mean_and_sd(&self.unit_logs);
        let mut found = InterimAnalysis {
            units,
            pairs: self.pairs.len(),
            mean_log,
            unit_sd_log,
            std_err_log: unit_sd_log / (units as f64).sqrt(),
            widened_log: widening(mean_and_sd(&self.pair_logs).1, self.steps),
            interval: Interval {
                low: 0.0,
                high: f64::INFINITY,
                level: 1.0 - self.plan.alpha,
            },
            narrowed: None,
            p_value: self.p_value,
            verdict: SequentialVerdict::Inconclusive,
        };
        let own = found.range(self.critical.values()[analysis]);
        self.range = self.range.intersection(own);
        let p_at = |distance: f64| found.p_at(schedule, analysis, distance);
        let margin_log = self.plan.margin.half_width_log();
        self.p_value = self.p_value.min(p_at(mean_log.abs()));
        for (p_value, towards) in self.margin_p_values.iter_mut().zip([1.0, -1.0]) {
            *p_value = p_value.min(p_at(margin_log + towards * mean_log));
        }
        if self.first_verdict.is_none() {
            let verdict = SequentialVerdict::of(self.range, &self.plan);
            self.first_verdict = verdict.is_conclusive().then_some(verdict);
        }
        found.interval = own.to_interval(self.plan.alpha).unwrap_or(found.interval);
        found.narrowed = self.interval();
        found.p_value = self.p_value;
        found.verdict = self.verdict();
        self.analyses.push(found);
    }

    /// The plan.
    pub fn plan(&self) -> &SequentialPlan {
        &self.plan
    }

    /// Number of units so far.
    pub fn units(&self) -> usize {
        self.unit_logs.len()
    }

    /// The pairs so far, in the order in which they ran.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// All analyses so far, for example to show how the interval narrows.
    pub fn analyses(&self) -> &[InterimAnalysis] {
        &self.analyses
    }

    /// The verdict: the first conclusive one stands, unless the comparison turns out to be unstable.
    pub fn verdict(&self) -> SequentialVerdict {
        if self.range.is_empty() {
            return SequentialVerdict::Unstable;
        }
        let first = self
            .first_verdict
            .unwrap_or(SequentialVerdict::Inconclusive);
        first.updated(self.range, self.plan.margin)
    }

    /// Whether the comparison may stop: it has a verdict, is unstable, or has reached its last analysis.
    pub fn is_finished(&self) -> bool {
        self.is_at_cap() || self.verdict() != SequentialVerdict::Inconclusive
    }

    /// Whether there is no further analysis.
    pub fn is_at_cap(&self) -> bool {
        self.units() >= self.plan.schedule.cap()
    }

    /// The interval of B/A at the level of the plan: the intersection of those of all analyses. `None` before the
    /// first analysis, or if it is empty.
    pub fn interval(&self) -> Option<Interval> {
        let is_analyzed = self.units() >= self.plan.schedule.first();
        self.range
            .to_interval(self.plan.alpha)
            .filter(|_| is_analyzed)
    }

    /// The interval at another α up to 0.1, for example that of a mark in a matrix.
    pub fn interval_at(&self, alpha: f64) -> Result<Option<Interval>, StatsError> {
        let critical = self.plan.schedule.critical_values(alpha)?;
        let range = (!self.analyses.is_empty()).then(|| self.range_at(&critical));
        Ok(range.and_then(|range| range.to_interval(alpha)))
    }

    /// On which side of `ratio` the whole interval at α lies; `None` if it contains `ratio`, before the first
    /// analysis, or for an unstable comparison. Asking costs no α.
    pub fn side_of(&self, ratio: f64, alpha: f64) -> Result<Option<Ordering>, StatsError> {
        let critical = self.plan.schedule.critical_values(alpha)?;
        Ok(self.range_at(&critical).side_of(ratio.ln()))
    }

    /// The sequential p-value against a ratio of 1.
    pub fn p_value(&self) -> SequentialP {
        self.p_value
    }

    /// The smallest α at which the interval lies within the margin: two one-sided tests (Schuirmann, 1987), each
    /// at α/2.
    pub fn equivalence_p_value(&self) -> SequentialP {
        let [low, high] = self.margin_p_values;
        if self.plan.margin.half_width_log() > 0.0 {
            low.max(high)
        } else {
            SequentialP::ABOVE_TABLE
        }
    }

    /// The rank check of the units at the plan's α, which shows outliers; `None` before the first analysis. It
    /// does not affect the verdict: outliers make the rule conservative.
    pub fn rank_check(&self) -> Option<RankCheck> {
        self.analyses.last()?;
        let context = PairContext {
            boots: match self.plan.schedule {
                AnalysisSchedule::Pairs => &[],
                AnalysisSchedule::Units => &self.unit_of,
            },
            steps: self.steps,
        };
        let found = compare_in_context(&self.pairs, context, 1.0 - self.plan.alpha).ok()?;
        found.estimate().map(|estimate| estimate.rank.clone())
    }

    /// The intersection of all intervals at these critical values.
    pub(crate) fn range_at(&self, critical: &CriticalValues) -> LogRange {
        let ranges = self.analyses.iter().zip(critical.values());
        ranges.fold(LogRange::EVERYTHING, |range, (analysis, critical)| {
            range.intersection(analysis.range(*critical))
        })
    }

    /// The critical values of the plan.
    pub(crate) fn critical(&self) -> &CriticalValues {
        &self.critical
    }

    /// The intersection of all intervals at the level of the plan.
    pub(crate) fn range(&self) -> LogRange {
        self.range
    }

    /// ln(B/A) of each unit.
    pub(crate) fn unit_logs(&self) -> &[f64] {
        &self.unit_logs
    }
}

#[cfg(test)]
mod tests;
