//! Findings: what a bottleneck looks like, where it was seen, and what to do about it.
//!
//! A [`Signature`] is a pure function over the [`Evidence`] of one point (or of a live server): it
//! weighs one known cause of lost time in µs per transaction and says which rows showed it, what
//! speaks against it, and what an expert would do. A [`Finding`] is a signature that matched a
//! point, or one whose weight changed between two points.
//!
//! How sure a finding is follows one rule and no judgement of the signature's author:
//! - [`Confidence::Confirmed`]: its suggested fix was run ([`second_stage`]), throughput rose, and
//!   the cause shrank with an interval that excludes 0. Only an experiment proves a cause.
//! - [`Confidence::Moved`]: two variants differ in it with an interval that excludes 0, the verdict
//!   is clear and in the same direction, and it accounts for a good part of the difference. That is
//!   a correlation: a queue moves with whatever lengthens the service that it waits for.
//! - [`Confidence::Likely`]: at least two independent sources measured it (stacks, waits, counters,
//!   clocks), and nothing speaks against it. A version, a protocol or a setting measures nothing,
//!   nor does a fact that is shown for context.
//! - [`Confidence::Hint`]: one source alone, or something speaks against it.
//!
//! Among findings that moved, service time ranks above queueing ([`Finding::queueing`]).
//!
//! Invariants: no finding without a row that can be checked in the report; a figure that was not
//! measured matches nothing.

mod client;
mod diagnosis;
mod evidence;
mod locks;
#[cfg(test)]
mod lookalikes;
mod machine;
mod measure;
mod remedy;
mod second_stage;
mod side;
mod stacks;
mod statements;
mod storage;
#[cfg(test)]
mod symptoms;
mod wal;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use diagnosis::{confirm, diagnose, diagnose_observation};
pub use evidence::Evidence;
pub use measure::{Measure, Signature};
pub use remedy::RemedyVariant;
pub use second_stage::{SecondStage, second_stage};

/// A known cause of lost time, where it was seen, and what to do about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The signature: a stable name for programs, as `round-trips`.
    pub id: String,
    /// What it is, in a few words.
    pub title: String,
    /// Index into the plan's conditions; `None` for a live server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<usize>,
    /// Index into the plan's variants: the one it was seen under, or in a comparison the one that
    /// is compared with the baseline; `None` for a live server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<usize>,
    /// In a comparison: variant minus baseline of what it weighs, in µs per transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference_us: Option<f64>,
    /// The 95% interval of `difference_us`, from the blocks that both sides have; `None` with fewer
    /// than two, and in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference_interval_us: Option<[f64; 2]>,
    /// How sure it is.
    pub confidence: Confidence,
    /// What it weighs, in µs per transaction; in a comparison, on the side where it weighs more.
    pub weight_us: f64,
    /// That (in a comparison the difference) over the mean response time as the ledger has it, 0 to
    /// 1; on a live server over the time in which sessions were at work.
    pub share: f64,
    /// Most of it is waiting for somebody else's work to end: a lock, a processor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub queueing: bool,
    /// In a comparison: the signature whose service time moved too and that this queueing follows
    /// from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<String>,
    /// The run of its suggested fix, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tried: Option<TriedFix>,
    /// What showed it.
    pub facts: Vec<Fact>,
    /// What speaks against it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub against: Vec<String>,
    /// What an expert would do.
    pub remedy: String,
    /// The section of PostgreSQL's manual to read.
    pub manual: String,
    /// The remedies that can be run as variants of the same study, which is the only proof.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<RemedyVariant>,
}

/// How sure a finding is; see the module.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// Worth a look.
    Hint,
    /// Independent sources agree.
    Likely,
    /// It moved with the verdict.
    Moved,
    /// Its suggested fix was run and helped. In results of older versions, with a `difference_us`: it
    /// moved with the verdict.
    Confirmed,
}

/// A suggested fix that was run as a variant, against the variant that had the trouble.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TriedFix {
    /// Its name, as `work_mem=64MB`.
    pub name: String,
    /// Throughput with the fix over that without.
    pub tps_ratio: f64,
    /// The interval of that.
    pub interval: [f64; 2],
}

/// One row that showed something.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fact {
    /// Where it comes from.
    pub source: Source,
    /// What was seen.
    pub what: String,
    /// How much; `None` where there is nothing to count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Of what.
    pub unit: FactUnit,
    /// It is shown to judge the others by, and is no evidence itself.
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
    /// What server and kernel counted.
    Counters,
    /// Version, protocol, settings, clients.
    Conditions,
    /// Clocks: response times, the generator's own account, run queues.
    Clocks,
}

/// What a fact's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FactUnit {
    /// Microseconds per transaction.
    MicrosPerTransaction,
    /// Times per transaction.
    PerTransaction,
    /// Bytes per transaction.
    BytesPerTransaction,
    /// A share of a whole, 0 to 1.
    Share,
    /// Nothing is counted.
    None,
}

/// Every signature, a family after the other.
pub fn signatures() -> impl Iterator<Item = &'static Signature> {
    [
        statements::SIGNATURES,
        client::SIGNATURES,
        locks::SIGNATURES,
        wal::SIGNATURES,
        storage::SIGNATURES,
        machine::SIGNATURES,
    ]
    .into_iter()
    .flatten()
}
