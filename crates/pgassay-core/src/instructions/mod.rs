//! Counted costs: what a transaction costs in instructions, as it is printed, kept and compared.
//!
//! Filled by `pgassay-count` from callgrind's files; a run may hold them beside what it timed.
//!
//! Invariants: integers are sums over [`VariantCount::transactions`]; the functions' own
//! instructions add up to the variant's, and so do the subsystems'; rows of a difference likewise.

mod difference;
pub mod margin;
mod tree;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use difference::{Difference, FunctionChange, SubsystemChange, Verdict};
pub use tree::{CallPath, CallTree, PathFunction};

/// The name and version of this form.
pub const SCHEMA: &str = "pgassay.count/1";

/// Two slopes that differ by a larger share are not of one line.
pub const NOT_LINEAR: f64 = 0.005;

/// What was counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Always `pgassay.count/1`.
    pub schema: String,
    /// The question.
    pub question: String,
    /// Seed of the scripts' random numbers.
    pub seed: u64,
    /// What executed the instructions.
    pub machine: Machine,
    /// What the study asks for and counting does not do, each a sentence's part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// What it was counted under.
    pub conditions: Vec<ConditionCount>,
}

/// Counts, and what sets each condition's variants apart from its first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InstructionCosts {
    /// What was counted.
    pub counts: Counts,
    /// Every variant against its condition's baseline.
    pub differences: Vec<VariantDifference>,
}

/// A variant against the baseline of its condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VariantDifference {
    /// Title of the condition.
    pub condition: String,
    /// Name of the condition's first variant.
    pub baseline: String,
    /// Name of the variant.
    pub variant: String,
    /// How they differ.
    pub difference: Difference,
}

impl InstructionCosts {
    /// Compares what was counted.
    pub fn of(counts: Counts) -> Self {
        let comparisons = counts.comparisons();
        let differences = counts
            .conditions
            .iter()
            .filter_map(|condition| Some((condition, condition.variants.split_first()?)))
            .flat_map(|(condition, (baseline, others))| {
                others.iter().map(|variant| VariantDifference {
                    condition: condition.title.clone(),
                    baseline: baseline.name.clone(),
                    variant: variant.name.clone(),
                    difference: Difference::between(baseline, variant, comparisons),
                })
            })
            .collect();
        Self {
            counts,
            differences,
        }
    }

    /// How a variant differs from its condition's baseline.
    pub fn difference(&self, condition: &str, variant: &str) -> Option<&Difference> {
        let mut all = self.differences.iter();
        let found = all.find(|it| it.condition == condition && it.variant == variant);
        found.map(|it| &it.difference)
    }
}

impl Counts {
    /// How many differences are told of: every variant's, under every condition, against its baseline.
    pub fn comparisons(&self) -> usize {
        let others = self.conditions.iter().map(|it| it.variants.len());
        others.map(|variants| variants.saturating_sub(1)).sum()
    }
}

/// What executed the instructions. Counts of different machines do not compare where these differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What counted, such as `valgrind-3.19.0`.
    pub counter: String,
    /// The processor's model.
    pub cpu: String,
    /// Those of its features by which libc chooses its functions.
    pub cpu_features: Vec<String>,
}

/// Variants under one condition; the first is the baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConditionCount {
    /// Its name.
    pub title: String,
    /// The variants, in the study's order.
    pub variants: Vec<VariantCount>,
}

/// How a server was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// Exact version.
    pub version: String,
    /// Arguments of `configure`.
    pub configure: String,
    /// The compiler's flags.
    pub cflags: String,
    /// The compiler.
    pub compiler: String,
}

/// Totals of one repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// Instructions of each segment's backend, its start and end included.
    pub instructions: [u64; 3],
    /// Which point of its round it was, from 1: the order is another in each round. 0 in files of
    /// earlier versions, where it was the plan's.
    #[serde(default)]
    pub position: u32,
}

impl Repeat {
    /// Instructions per transaction between the first segment and the last.
    pub fn slope(&self, segments: [u64; 3]) -> f64 {
        self.between(0, 2, segments)
    }

    /// By how much the slopes of the two halves differ, as a share of the whole slope.
    pub fn bend(&self, segments: [u64; 3]) -> f64 {
        let halves = self.between(1, 2, segments) - self.between(0, 1, segments);
        halves / self.slope(segments)
    }

    fn between(&self, from: usize, to: usize, segments: [u64; 3]) -> f64 {
        let rise = self.instructions[to] as f64 - self.instructions[from] as f64;
        rise / (segments[to] - segments[from]) as f64
    }
}

/// One variant's cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VariantCount {
    /// Its name.
    pub name: String,
    /// Its server.
    pub build: Build,
    /// Settings of its server beyond the defaults of `initdb`.
    pub settings: BTreeMap<String, String>,
    /// Transactions of the three segments.
    pub segments: [u64; 3],
    /// What was seen, repeat by repeat.
    pub repeats: Vec<Repeat>,
    /// Transactions that the sums below are of: those of the median repeat.
    pub transactions: u64,
    /// Their instructions.
    pub instructions: i64,
    /// Their system calls.
    pub system_calls: i64,
    /// System calls by name, most first.
    pub system_calls_by_name: Vec<SystemCalls>,
    /// Instructions by subsystem, most first.
    pub subsystems: Vec<SubsystemCount>,
    /// Functions, most own instructions first; those without any change are left out.
    pub functions: Vec<FunctionCount>,
    /// Calls between functions, by their indexes above; not kept in files.
    #[serde(skip)]
    pub calls: Vec<CallTally>,
    /// The same instructions by call path, of a round of their own; where they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<CallTree>,
}

/// Calls between two functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallTally {
    /// Index of the caller.
    pub caller: usize,
    /// Index of the callee.
    pub callee: usize,
    /// How often, in all transactions.
    pub count: i64,
    /// Instructions of the callee in these calls, all that it called included.
    pub inclusive: i64,
}

/// System calls of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SystemCalls {
    /// The library's function that made them, or an address.
    pub name: String,
    /// How many, in all transactions.
    pub count: i64,
}

/// Own instructions of a subsystem's functions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubsystemCount {
    /// Its name.
    pub name: String,
    /// Instructions, in all transactions.
    pub instructions: i64,
}

/// One function's cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionCount {
    /// Its name, or `0x` and its address in the object.
    pub name: String,
    /// The program or library.
    pub object: String,
    /// Whom it belongs to.
    pub subsystem: String,
    /// How often it was called, in all transactions.
    pub calls: i64,
    /// Its own instructions.
    pub instructions: i64,
    /// With those of all that it called.
    pub inclusive: i64,
    /// Whether it calls itself through others: then `inclusive` is an upper bound.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
}

impl VariantCount {
    /// A sum over all transactions as instructions, or whatever it is, per transaction.
    pub fn per_transaction(&self, sum: i64) -> f64 {
        sum as f64 / self.transactions as f64
    }

    /// Instructions per transaction.
    pub fn cost(&self) -> f64 {
        self.per_transaction(self.instructions)
    }

    /// Each repeat's instructions per transaction.
    pub fn slopes(&self) -> Vec<f64> {
        self.repeats
            .iter()
            .map(|repeat| repeat.slope(self.segments))
            .collect()
    }

    /// The largest of these less the smallest: what repeating was seen to change.
    pub fn spread(&self) -> f64 {
        let slopes = self.slopes();
        let most = slopes.iter().copied().fold(f64::MIN, f64::max);
        let least = slopes.iter().copied().fold(f64::MAX, f64::min);
        most - least
    }

    /// The mean share by which the second half of a run costs more per transaction than the first.
    pub fn bend(&self) -> f64 {
        let bends = self.repeats.iter().map(|repeat| repeat.bend(self.segments));
        bends.sum::<f64>() / self.repeats.len() as f64
    }

    /// System calls per transaction, without reading the clock: that is one under valgrind only.
    pub fn system_calls_each(&self) -> f64 {
        let clocks = self
            .system_calls_by_name
            .iter()
            .filter(|row| is_clock(&row.name));
        let clocks: i64 = clocks.map(|row| row.count).sum();
        self.per_transaction(self.system_calls - clocks)
    }

    /// Whether twice the transactions cost twice as much.
    pub fn is_linear(&self) -> bool {
        self.bend().abs() <= NOT_LINEAR
    }
}

/// Whether this system call is one under valgrind only.
///
/// Clocks are read without the kernel on a bare machine, but valgrind hides the kernel's page for
/// that.
pub fn is_clock(name: &str) -> bool {
    matches!(name, "gettimeofday" | "clock_gettime" | "time" | "getcpu")
}

/// Whether a function goes by its address for want of a name.
pub fn is_address(name: &str) -> bool {
    name.starts_with("0x")
}

/// The last part of a path.
pub fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
