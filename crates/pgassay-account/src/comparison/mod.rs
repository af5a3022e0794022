//! Evaluates trials: figures of each point, ratios with confidence intervals, verdicts, and the
//! breakdown of differences in cost.
//!
//! The unit of every interval is the pair (one per block) or the server start, never a second inside a
//! trial. Verdicts come from timed trials only. Profiles show where the time goes; the exact on-CPU
//! totals of the timed trials show how much there is. All comparisons of a study share one error rate.

mod assess;
mod cost;
mod figures;
mod gate;
mod naming;
mod pairing;
mod pooled;
mod precision;
mod precision_verdicts;
mod sequential;
mod sequential_verdicts;
mod units;

use pgassay_model::trial::MemoryContext;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::cost_row::CostRow;
use crate::counters::{CounterDifference, CounterFigure};

pub use assess::{Assessment, assess};
pub use gate::{earlier_ratios, gate_power};
pub use pgassay_stats::sequential::GateAnswer;
pub use pooled::{PooledRate, PooledTrials};
pub use precision::RunningPrecision;
pub use sequential::{GatedComparison, RunningComparisons, decidable_effects, units_to_sign};
pub use units::{blocks_per_unit, ends_unit};

use crate::ledger::LedgerDifference;

/// Figures of one point over all its timed trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PointSummary {
    /// Index into the plan's conditions.
    pub condition: usize,
    /// Index into the plan's variants.
    pub variant: usize,
    /// Number of timed trials.
    pub trials: u32,
    /// Transactions inside the measurement windows.
    pub transactions: u64,
    /// Transactions per second: geometric mean of the blocks.
    pub tps: f64,
    /// Mean latency: geometric mean of the blocks, as of `tps`, so that one client without pauses has their product 1.
    pub latency_mean_us: f64,
    /// Median latency.
    pub latency_p50_us: f64,
    /// 95th percentile of latency.
    pub latency_p95_us: f64,
    /// 99th percentile of latency.
    pub latency_p99_us: f64,
    /// The slowest transaction.
    pub latency_max_us: f64,
    /// On-CPU time of the backends per transaction, over all timed trials; `None` if not available, for
    /// example from a server on another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_us: Option<f64>,
    /// Run-queue wait of the backends per transaction, if available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_run_queue_us: Option<f64>,
    /// On-CPU time of the load generator per transaction.
    pub client_cpu_us: f64,
    /// Share of the timed trials in which the load generator was the bottleneck, 0 to 1.
    pub client_limited: f64,
    /// Counters per transaction; empty if none were read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<CounterFigure>,
    /// The largest peak of a backend's memory (PSS without shared memory) in any trial, in bytes; `None` if not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_memory_bytes: Option<u64>,
    /// The memory contexts of one backend after a trial, the largest first; empty if not read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_contexts: Vec<MemoryContext>,
}

/// A variant compared with the baseline under one condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Index into the plan's conditions.
    pub condition: usize,
    /// Index into the plan's variants; never the baseline's.
    pub variant: usize,
    /// The verdict, based on throughput.
    pub verdict: Verdict,
    /// Why the comparison is inconclusive; `None` if it is conclusive, and in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inconclusive_reason: Option<Inconclusive>,
    /// The basis of the intervals; `None` for a single pair, and in results of older versions, whose
    /// intervals were corrected only for the variants of one condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
    /// The interval of throughput's ratio at 95% for this comparison alone, without a correction for the others. The
    /// verdict does not come from it. In a sequential comparison it is valid wherever the comparison ended. `None`
    /// without an interval that has two ends, and in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tps_uncorrected_95: Option<[f64; 2]>,
    /// The sequential p-value of throughput against a ratio of 1, of this comparison alone: at most α exactly if the
    /// sequential interval at the level 1 − α excludes 1. It is not that of a t-test, which would be too small. 1 is
    /// any value above 0.1. `None` if the comparison is not sequential, was not analyzed or is unstable, and in results
    /// of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tps_sequential_p_value: Option<f64>,
    /// Throughput, in the study's unit if it has one; above 1 is better.
    pub tps: Ratio,
    /// Mean latency; below 1 is better.
    pub latency_mean: Ratio,
    /// Median latency.
    pub latency_p50: Ratio,
    /// 95th percentile of latency.
    pub latency_p95: Ratio,
    /// 99th percentile of latency.
    pub latency_p99: Ratio,
    /// On-CPU time of the backends per transaction, or per unit if the study has one; `None` if not
    /// available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu: Option<Ratio>,
    /// Breakdown of the difference in that time; `None` without profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostDifference>,
    /// Counters per transaction on both sides; empty if none were read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<CounterDifference>,
    /// Breakdown of the difference in response time; `None` without exact totals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<LedgerDifference>,
}

impl Comparison {
    /// Whether the ratio of throughput has an interval: not for a single pair, nor before the first analysis of a
    /// sequential comparison, nor for the pairs of a single server start if such starts are the units.
    pub fn has_interval(&self) -> bool {
        let is_too_early = matches!(
            self.inconclusive_reason,
            Some(Inconclusive::TooFewPairs | Inconclusive::OnePair)
        );
        self.tps.by_pair.len() >= 2 && !is_too_early
    }
}

/// The result of a comparison, given an equivalence margin of ±2%. With a fixed number of pairs, an interval
/// that lies within the margin is equivalent even if it excludes 1; a sequential comparison, and one in two stages,
/// is then faster or slower, within the margin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The interval lies above 1 and not entirely within the margin.
    Faster,
    /// The interval lies below 1 and not entirely within the margin.
    Slower,
    /// Equivalent: the whole interval lies within the margin.
    Equivalent,
    /// Inconclusive: the interval contains 1 and extends beyond the margin. More pairs are needed.
    Inconclusive,
}

/// Why a comparison is inconclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Inconclusive {
    /// A single pair gives no estimate of the noise.
    OnePair,
    /// The interval contains 1 and extends beyond the margin.
    Noise,
    /// The rank test contradicts the interval, for example because of an outlier.
    RanksDisagree,
    /// The pairs do not vary, or vary by less than the resolution of the rate, so that the same rounding
    /// error may repeat in every pair; and the interval, widened by the resolution, is inconclusive.
    BelowResolution,
    /// Sequential comparisons: the intervals of different analyses contradict each other, because the machine
    /// or the load changed.
    Unstable,
    /// Sequential comparisons: the run ended before the first analysis, which takes four server starts or
    /// four pairs.
    TooFewPairs,
}

/// The basis of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Basis {
    /// Unit of analysis.
    pub unit: UnitOfAnalysis,
    /// Number of units; the interval has one degree of freedom less.
    pub units: u32,
    /// Number of server starts among the pairs. With pairs as units, the verdict holds for these server
    /// starts only.
    pub server_starts: u32,
    /// Number of comparisons that share the error rate: the probability of any false `faster` or `slower`
    /// among them is at most 5%, and so is that of any false `same`.
    pub comparisons: u32,
    /// Sequential comparisons: the number of units after which a comparison ends at the latest. Its interval
    /// is valid wherever it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units_max: Option<u32>,
    /// Two stages: the number of units of the first, whose standard deviation alone gives the width of the
    /// interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_stage_units: Option<u32>,
    /// Sequential comparisons without a verdict: about how many units it would take; `None` if unknown, or
    /// above 100,000. Two stages: the number of units for the wanted half-width; `None` if unknown, or if the
    /// resolution of the rates is too coarse for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units_needed: Option<u32>,
}

/// Unit of analysis: what varies independently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnitOfAnalysis {
    /// Pairs of trials, one per block.
    Pair,
    /// Server starts, each with the mean of its pairs.
    ServerStart,
}

impl UnitOfAnalysis {
    /// One of them, in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pair => "pair",
            Self::ServerStart => "server start",
        }
    }
}

/// The ratio of variant to baseline, from pairs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ratio {
    /// Geometric mean of the pairs' ratios.
    pub ratio: f64,
    /// Lower end of the interval; equal to the ratio if there is only one pair. Neither end is valid, and reports print
    /// neither, if the `inconclusive_reason` is `too_few_pairs`.
    pub low: f64,
    /// Upper end of the interval; `null` if it has none, because the pairs are few and vary.
    #[serde(deserialize_with = "infinity_if_null")]
    #[schemars(with = "Option<f64>")]
    pub high: f64,
    /// Confidence level of the interval: the level of the verdict, corrected for all comparisons of the
    /// study.
    pub confidence_level: f64,
    /// Standard deviation of the pairs' ratios, relative to the ratio (0.01 is 1%).
    pub pair_sd: f64,
    /// The minimum detectable effect (MDE): the effect that another run like this one detects with 80%
    /// power, at the level of this comparison, as the logarithm of a ratio (0.01 is 1%, 0.69 is 100%);
    /// `None` for a single pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_detectable_effect: Option<f64>,
    /// Range of the MDE: its values at both ends of the 80% interval of the standard deviation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_detectable_effect_range: Option<[f64; 2]>,
    /// How far each end of the interval was moved because the pairs vary by less than the resolution of
    /// the figures (0.01 is 1%); 0 if rounding is part of their noise.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub widened: f64,
    /// Whether the rank test contradicts the interval, for example because of an outlier.
    pub ranks_disagree: bool,
    /// The ratio of each pair, in the order of the blocks.
    pub by_pair: Vec<f64>,
}

impl Ratio {
    /// Correlation of ln(ratio) between neighboring pairs; `None` for fewer than four pairs or constant ones.
    pub fn lag_one_correlation(&self) -> Option<f64> {
        let logs: Vec<f64> = self.by_pair.iter().map(|ratio| ratio.ln()).collect();
        pgassay_stats::lag_one_correlation(&logs)
    }

    /// About how many pairs narrow the interval to this half-width of ln(ratio), at the same level and with the same
    /// variance of its `units` independent units. `None` if there is no interval.
    pub fn pairs_for(&self, half_width_log: f64, units: usize) -> Option<u64> {
        let width = |units: usize| unit_half_width(self.confidence_level, units);
        let now = (self.high / self.low).ln() / 2.0;
        let unit_sd = now / width(units).filter(|_| now > 0.0 && now.is_finite())?;
        let is_enough =
            |units: usize| width(units).is_some_and(|width| unit_sd * width <= half_width_log);
        let mut most = units;
        while !is_enough(most) {
            most = most.checked_mul(2)?;
        }
        let (mut low, mut high) = (units, most);
        while low < high {
            let middle = low.midpoint(high);
            if is_enough(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let pairs_each = self.by_pair.len() as f64 / units as f64;
        Some((low as f64 * pairs_each).ceil() as u64)
    }
}

/// The half-width of an interval of units whose standard deviation is 1; `None` for fewer than two.
fn unit_half_width(level: f64, units: usize) -> Option<f64> {
    let width = pgassay_stats::power::half_width_log(1.0, units, level).ok()?;
    (units > 1 && width > 0.0).then_some(width)
}

/// Breakdown of the difference in the backends' on-CPU time per transaction, or per unit if the study
/// has one.
///
/// The rows of each list add up to the total, `other` rows included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CostDifference {
    /// The exact totals, with an interval from pairs.
    pub total: CostRow,
    /// By function, without callees; largest difference first.
    pub functions: Vec<CostRow>,
    /// By phase of a statement: parse, plan, execute, …
    pub phases: Vec<CostRow>,
    /// By subsystem of PostgreSQL.
    pub subsystems: Vec<CostRow>,
    /// Programs and libraries with more symbols on one side than on the other, such as a stripped build
    /// compared with an unstripped one. Their functions that have a name on one side only share one row;
    /// phases and subsystems are not marked if such an object has a considerable share of the samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects_with_unequal_symbols: Vec<String>,
    /// Differences of a function below this are not distinguishable from noise.
    pub minimum_detectable_us: f64,
    /// Throughput of the profiled trials relative to the timed ones: the profiling overhead.
    pub profiled_tps_ratio: f64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it by reference"
)]
fn is_zero(value: &f64) -> bool {
    *value <= 0.0
}

/// JSON has no infinity; a number that is not finite is written as `null`.
fn infinity_if_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}
