//! A finding as stored and reported.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::remedy::RemedyVariant;

/// A known cause of lost time, where it was seen, and what to do about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The signature's stable name, such as `round-trips`.
    pub id: String,
    /// What happens, in a few words.
    pub title: String,
    /// Index into the plan's conditions; `None` for a live server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<usize>,
    /// Index into the plan's variants: the one where it was seen, or in a comparison the one that is
    /// compared with the baseline; `None` for a live server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<usize>,
    /// In a comparison: the weight under the variant minus that under the baseline, in µs per
    /// transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference_us: Option<f64>,
    /// 95% CI of `difference_us`, from the blocks that both sides have; `None` with fewer than two
    /// blocks, and in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference_interval_us: Option<[f64; 2]>,
    /// How sure the cause is; see [`Confidence`].
    pub confidence: Confidence,
    /// Time lost, in µs per transaction; in a comparison, on the side where it is more.
    pub weight_us: f64,
    /// The weight (in a comparison the difference) over the ledger's mean response time, 0 to 1; on
    /// a live server, over the time in which sessions were active.
    pub share: f64,
    /// Most of the weight is waiting for others' work to end, as for a lock or a CPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub queueing: bool,
    /// In a comparison: the signature whose change in service time explains this queueing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explained_by: Option<String>,
    /// The result of running its suggested fix, if it was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix_result: Option<TriedFix>,
    /// The evidence.
    pub evidence: Vec<Fact>,
    /// The evidence against it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence_against: Vec<String>,
    /// The suggested fix.
    pub suggested_fix: String,
    /// The section of PostgreSQL's manual to read.
    pub manual: String,
    /// Suggested fixes that can be run as variants of the same study. Only that proves a cause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fix_variants: Vec<RemedyVariant>,
}

/// Confidence in a finding; see the module.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// One source, or evidence against it.
    Hint,
    /// Independent sources agree.
    Likely,
    /// It changed in the direction of the verdict.
    Correlated,
    /// Its suggested fix was run and helped. In results of older versions, with a `difference_us`,
    /// it means `Correlated`.
    Confirmed,
}

/// A suggested fix that was run as a variant, compared with the affected variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TriedFix {
    /// Its name, such as `work_mem=64MB`.
    pub name: String,
    /// Throughput with the fix over throughput without it.
    pub tps_ratio: f64,
    /// Confidence interval of `tps_ratio`.
    pub interval: [f64; 2],
}

/// One piece of evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fact {
    /// Where it comes from.
    pub source: Source,
    /// What was seen.
    pub what: String,
    /// How much; `None` if it has no figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The unit of `value`.
    pub unit: FactUnit,
    /// Shown for context; not evidence.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub context: bool,
}

/// Where a fact comes from. Facts of one source do not confirm each other.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// CPU stacks.
    Stacks,
    /// What backends waited for.
    Waits,
    /// Server statistics and kernel statistics.
    Counters,
    /// Version, protocol, settings, clients.
    Conditions,
    /// Clocks: response times, the load generator's own times, run queues.
    Clocks,
}

/// The unit of a fact's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FactUnit {
    /// Microseconds per transaction.
    MicrosPerTransaction,
    /// Count per transaction.
    PerTransaction,
    /// Bytes per transaction.
    BytesPerTransaction,
    /// A share of a whole, 0 to 1.
    Share,
    /// The fact has no value.
    None,
}
