//! What the trials mean: figures of each point, ratios with intervals, verdicts, and where the
//! difference in cost lies.
//!
//! The unit of every interval is the pair (one per block), never a second inside a trial. Verdicts
//! come from timed trials only; profiles say where the time goes, and the exact on-CPU totals of
//! the timed trials say how much of it there is. All comparisons of a study share one error rate.

mod assess;
mod cost;
mod figures;
mod naming;
mod pairing;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::counters::{CountedDifference, CountedFigure};

pub use assess::{Assessment, assess};

use crate::ledger::LedgerDifference;

/// Figures of one point over all its timed trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PointSummary {
    /// Index into the plan's conditions.
    pub condition: usize,
    /// Index into the plan's variants.
    pub variant: usize,
    /// Timed trials.
    pub trials: u32,
    /// Transactions inside their windows.
    pub transactions: u64,
    /// Transactions per second: geometric mean of the trials.
    pub tps: f64,
    /// Mean latency.
    pub latency_mean_us: f64,
    /// Median latency.
    pub latency_p50_us: f64,
    /// 95th percentile of latency.
    pub latency_p95_us: f64,
    /// 99th percentile of latency.
    pub latency_p99_us: f64,
    /// The slowest transaction.
    pub latency_max_us: f64,
    /// On-CPU time of the backends per transaction, all timed trials together; `None` where it could
    /// not be read, as of a server on another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_us: Option<f64>,
    /// Time the backends were runnable and waited for a processor, per transaction, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_run_queue_us: Option<f64>,
    /// On-CPU time of the load generator per transaction.
    pub client_cpu_us: f64,
    /// Share of the timed trials in which the generator set the pace, 0 to 1.
    pub client_limited: f64,
    /// Counters per transaction; empty where none were read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counted: Vec<CountedFigure>,
}

/// A variant against the baseline under one condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Index into the plan's conditions.
    pub condition: usize,
    /// Index into the plan's variants; never the baseline's.
    pub variant: usize,
    /// The answer, from throughput.
    pub verdict: Verdict,
    /// Why the answer is none; `None` beside a verdict, and in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inconclusive: Option<Inconclusive>,
    /// What the intervals rest on; `None` of one pair, and in results of older versions, whose
    /// intervals were corrected for the variants of one condition only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
    /// Throughput, in the study's unit where it has one; above 1 is better.
    pub tps: Ratio,
    /// Mean latency; below 1 is better.
    pub latency_mean: Ratio,
    /// Median latency.
    pub latency_p50: Ratio,
    /// 95th percentile of latency.
    pub latency_p95: Ratio,
    /// 99th percentile of latency.
    pub latency_p99: Ratio,
    /// On-CPU time of the backends per transaction, or per unit where the study has one; `None` where
    /// the kernel does not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu: Option<Ratio>,
    /// Where the difference of that time lies; `None` without profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostDifference>,
    /// Counters per transaction on both sides; empty where none were read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counted: Vec<CountedDifference>,
    /// Where the difference of the response times lies; `None` without exact totals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<LedgerDifference>,
}

/// The word for a comparison, against an equivalence band of ± 2 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The interval lies above 1, and not all of it inside the band.
    Faster,
    /// The interval lies below 1, and not all of it inside the band.
    Slower,
    /// The whole interval lies inside the band.
    Same,
    /// The interval holds 1 and reaches out of the band: more pairs are needed.
    Unresolved,
}

/// Why there is no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Inconclusive {
    /// One pair tells no noise.
    OnePair,
    /// The interval holds 1 and reaches out of the margin.
    Noise,
    /// The rank test contradicts the interval, as with an outlier.
    RanksDisagree,
    /// The pairs do not vary at all, or by less than the steps in which the rate is read, so that rounding
    /// may repeat in every pair; and the interval, widened by the steps, has no verdict.
    BelowResolution,
}

/// What an interval rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Basis {
    /// What varies independently.
    pub unit: UnitOfAnalysis,
    /// How many there are; the interval has one degree of freedom less.
    pub units: u32,
    /// Different starts of the servers among the pairs. With pairs as units the verdict is about these
    /// starts only.
    pub boots: u32,
    /// Comparisons of the study that share the error rate: the chance of any false `faster` or `slower`
    /// among them is 5% at most, and so is that of any false `same`.
    pub family: u32,
}

/// What varies independently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UnitOfAnalysis {
    /// Pairs of trials, one a block.
    Pair,
    /// Starts of the servers, each with the mean of its pairs.
    Boot,
}

/// Variant over baseline, from pairs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ratio {
    /// Geometric mean of the pairs' ratios.
    pub ratio: f64,
    /// Lower end of the interval; equal to the ratio where there is one pair only.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Confidence level of the interval: the one at which the verdict was reached, after correction for
    /// all comparisons of the study.
    pub level: f64,
    /// Standard deviation of the pairs' ratios, as a share of the ratio (.01 is 1 %).
    pub pair_sd: f64,
    /// The minimum detectable effect (MDE): what a further run like this one finds in 4 of 5 cases, at
    /// the level of this comparison (0.01 is 1%); `None` where one pair tells no noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable: Option<f64>,
    /// Its range: the MDE at both ends of the 80% interval of the standard deviation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable_range: Option<[f64; 2]>,
    /// By how much each end of the interval was moved because the pairs vary by less than the steps in
    /// which the figures are read (0.01 is 1%); 0 where rounding is part of their noise.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub widened: f64,
    /// Whether ranks tell another story than the mean, as with an outlier.
    pub ranks_disagree: bool,
    /// The ratio of each pair, in the order of the blocks.
    pub by_pair: Vec<f64>,
}

/// Where the difference in the backends' on-CPU time per transaction lies, or per unit where the
/// study has one.
///
/// Every list adds up to the total: rows are parts of one sum, `other` rows included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CostDifference {
    /// The whole: exact totals, its interval from pairs.
    pub total: CostRow,
    /// By function, itself only (without callees); largest difference first.
    pub functions: Vec<CostRow>,
    /// By phase of a statement: parse, plan, execute, …
    pub phases: Vec<CostRow>,
    /// By subsystem of PostgreSQL.
    pub subsystems: Vec<CostRow>,
    /// Programs and libraries of which one side has more symbols than the other, as a stripped build beside
    /// an unstripped one. Of these, functions with a name on one side only share one row; phases and
    /// subsystems bear no marks where such an object matters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unevenly_named: Vec<String>,
    /// A function's difference below this cannot be told from noise here.
    pub resolvable_us: f64,
    /// Throughput of the variants' profiled trials over that of their timed ones: what watching cost.
    pub profiled_tps_ratio: f64,
}

/// One row: what it costs per transaction on both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CostRow {
    /// Function, phase or subsystem.
    pub name: String,
    /// For functions: the program or library.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// Under the baseline, µs per transaction.
    pub baseline_us: f64,
    /// Under the variant, µs per transaction.
    pub variant_us: f64,
    /// Variant minus baseline.
    pub difference_us: f64,
    /// Lower end of the difference's interval.
    pub low_us: f64,
    /// Upper end of the difference's interval.
    pub high_us: f64,
    /// What happened to it.
    pub change: Change,
}

/// What happened to a row, as the post of 2016 marked functions by hand (新增, 上升, 下降).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Not there under the baseline.
    New,
    /// Costs more.
    Up,
    /// Costs less.
    Down,
    /// No longer there.
    Gone,
    /// Any difference is below what can be told from noise.
    Unresolved,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it by reference"
)]
fn is_zero(value: &f64) -> bool {
    *value <= 0.0
}
