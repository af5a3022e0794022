//! Instruction counts per transaction, as printed, stored and compared.
//!
//! `pgassay-count` computes them from callgrind's files; a run can contain them in addition to its
//! timed trials.
//!
//! Invariants: integers are sums over [`VariantCount::transactions`]; the functions' own instructions
//! add up to the variant's, and so do the subsystems' and the rows of a difference.

mod difference;
pub mod margin;
mod tree;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

pub use difference::{CountVerdict, Difference, FunctionChange, SubsystemChange};
use margin::Family;
pub use tree::{CallPath, CallTree, PathFunction};

/// Name and version of the schema.
pub const SCHEMA: &str = "pgassay.count/1";

/// More transactions are not counted: the least common multiple of two such numbers, over which differences are
/// exact, fits 64 bits.
const TRANSACTIONS_MAX: u64 = 1 << 31;

/// Slopes with a larger relative difference are not linear.
pub const NOT_LINEAR: f64 = 0.005;

/// Instruction counts of a study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Always `pgassay.count/1`.
    pub schema: String,
    /// The question.
    pub question: String,
    /// Seed of the scripts' random numbers.
    pub seed: u64,
    /// The machine that executed the instructions.
    pub machine: Machine,
    /// Parts of the study that counting ignores, each a sentence fragment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "left_out")]
    pub ignored: Vec<String>,
    /// The counts of each condition.
    pub conditions: Vec<ConditionCount>,
}

/// Instruction counts, and the differences between each condition's variants and its baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InstructionCosts {
    /// The counts.
    pub counts: Counts,
    /// The differences of all variants from their condition's baseline.
    pub differences: Vec<VariantDifference>,
}

/// The difference of a variant from the baseline of its condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VariantDifference {
    /// Title of the condition.
    pub condition: String,
    /// Name of the condition's first variant.
    pub baseline: String,
    /// Name of the variant.
    pub variant: String,
    /// The difference.
    pub difference: Difference,
}

impl InstructionCosts {
    /// Compares the counts.
    pub fn of(counts: Counts) -> Self {
        let differences = counts
            .conditions
            .iter()
            .filter_map(|condition| Some((condition, condition.variants.split_first()?)))
            .flat_map(|(condition, (baseline, others))| {
                let family = counts.family(condition);
                others.iter().map(move |variant| VariantDifference {
                    condition: condition.title.clone(),
                    baseline: baseline.name.clone(),
                    variant: variant.name.clone(),
                    difference: Difference::between(baseline, variant, &family),
                })
            })
            .collect();
        Self {
            counts,
            differences,
        }
    }

    /// The difference of a variant from its condition's baseline.
    pub fn difference(&self, condition: &str, variant: &str) -> Option<&Difference> {
        let mut all = self.differences.iter();
        let found = all.find(|it| it.condition == condition && it.variant == variant);
        found.map(|it| &it.difference)
    }
}

impl Counts {
    /// Number of comparisons: every variant with its baseline, under every condition.
    pub fn comparisons(&self) -> usize {
        let others = self.conditions.iter().map(|it| it.variants.len());
        others.map(|variants| variants.saturating_sub(1)).sum()
    }

    /// The comparisons of the variants under one of the conditions.
    pub fn family(&self, condition: &ConditionCount) -> Family {
        let points = condition.variants.iter();
        Family {
            comparisons: self.comparisons(),
            points: points.map(VariantCount::cost_and_spread).collect(),
        }
    }
}

/// The machine that executed the instructions. Counts are comparable only if these are equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The tool that counted, such as `valgrind-3.19.0`.
    pub counter: String,
    /// CPU model.
    pub cpu: String,
    /// The CPU features that affect libc's choice of function variants.
    pub cpu_features: Vec<String>,
}

/// Variants under one condition; the first is the baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConditionCount {
    /// Title of the condition.
    pub title: String,
    /// The variants, in the study's order.
    pub variants: Vec<VariantCount>,
}

/// What a count executes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CountedLoad {
    /// Protocol of the scripts' statements: `simple`, `extended` or `prepared`.
    pub protocol: String,
    /// Settings of the session.
    pub session: BTreeMap<String, String>,
    /// The scripts, in the order of the study.
    pub scripts: Vec<String>,
    /// The SQL that created the data, and the SQL that ran before each segment.
    pub setup: Vec<String>,
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
    /// Instructions of each segment's backend, including its start and exit.
    pub instructions: [u64; 3],
    /// Position in its round, from 1; the order differs between rounds. 0 in files of earlier versions,
    /// which used the order of the plan.
    #[serde(default)]
    pub position: u32,
}

impl Repeat {
    /// Instructions per transaction between the first segment and the last.
    pub fn slope(&self, segments: [u64; 3]) -> f64 {
        self.between(0, 2, segments)
    }

    /// Difference between the slopes of the two halves, relative to the overall slope.
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
    /// Name of the variant.
    pub name: String,
    /// Build of its server.
    pub build: Build,
    /// Settings of its server that differ from the defaults of `initdb`.
    pub settings: BTreeMap<String, String>,
    /// What it executed; `None` in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<CountedLoad>,
    /// Number of transactions of the three segments, ascending.
    #[serde(deserialize_with = "ascending")]
    pub segments: [u64; 3],
    /// Totals of each repeat.
    pub repeats: Vec<Repeat>,
    /// Number of transactions in the median repeat, which the following sums are for; from 1 to 2^31.
    #[serde(deserialize_with = "countable")]
    pub transactions: u64,
    /// Their instructions.
    pub instructions: i64,
    /// Their system calls.
    pub system_calls: i64,
    /// System calls by name, most first.
    pub system_calls_by_name: Vec<SystemCalls>,
    /// Instructions by subsystem, most first.
    pub subsystems: Vec<SubsystemCount>,
    /// Functions, most own instructions first, without those that executed none.
    pub functions: Vec<FunctionCount>,
    /// Calls between functions, by their indexes in `functions`; not stored in files.
    #[serde(skip)]
    pub calls: Vec<CallTally>,
    /// The same instructions by call path, from a separate round, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<CallTree>,
}

/// A file may say anything; numbers that cannot be compared are an error.
fn countable<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let transactions = u64::deserialize(from)?;
    if (1..=TRANSACTIONS_MAX).contains(&transactions) {
        Ok(transactions)
    } else {
        Err(de::Error::custom(format!(
            "transactions: {transactions} is not from 1 to {TRANSACTIONS_MAX}"
        )))
    }
}

fn ascending<'de, D: Deserializer<'de>>(from: D) -> Result<[u64; 3], D::Error> {
    let segments = <[u64; 3]>::deserialize(from)?;
    if segments.is_sorted_by(|a, b| a < b) {
        Ok(segments)
    } else {
        Err(de::Error::custom(format!(
            "segments: {segments:?} do not ascend"
        )))
    }
}

/// Calls between two functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallTally {
    /// Index of the caller.
    pub caller: usize,
    /// Index of the callee.
    pub callee: usize,
    /// Number of calls, in all transactions.
    pub count: i64,
    /// Instructions of the callee in these calls, including its own callees.
    pub inclusive: i64,
}

/// System calls with one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SystemCalls {
    /// The library function that made them, or an address.
    pub name: String,
    /// Number of system calls, in all transactions.
    pub count: i64,
}

/// Own instructions of a subsystem's functions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubsystemCount {
    /// Name of the subsystem.
    pub name: String,
    /// Instructions, in all transactions.
    pub instructions: i64,
}

/// One function's cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionCount {
    /// Function name, or `0x` and the address in the object.
    pub name: String,
    /// The program or library.
    pub object: String,
    /// The subsystem it belongs to.
    pub subsystem: String,
    /// Number of calls, in all transactions.
    pub calls: i64,
    /// Its own instructions.
    pub instructions: i64,
    /// Instructions including callees.
    pub inclusive: i64,
    /// Whether it calls itself indirectly, in which case `inclusive` is an upper bound.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
}

impl VariantCount {
    /// Converts a sum over all transactions to a figure per transaction.
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

    /// The range of the slopes: the variation between repeats.
    pub fn spread(&self) -> f64 {
        let slopes = self.slopes();
        let most = slopes.iter().copied().fold(f64::MIN, f64::max);
        let least = slopes.iter().copied().fold(f64::MAX, f64::min);
        most - least
    }

    /// The cost and its spread.
    pub fn cost_and_spread(&self) -> [f64; 2] {
        [self.cost(), self.spread()]
    }

    /// Mean relative increase of the cost per transaction from the first half of a run to the second.
    pub fn bend(&self) -> f64 {
        let bends = self.repeats.iter().map(|repeat| repeat.bend(self.segments));
        bends.sum::<f64>() / self.repeats.len() as f64
    }

    /// System calls per transaction, without clock reads, which are system calls only under valgrind.
    pub fn system_calls_per_transaction(&self) -> f64 {
        let clocks = self
            .system_calls_by_name
            .iter()
            .filter(|row| is_clock_function(&row.name));
        let clocks: i64 = clocks.map(|row| row.count).sum();
        self.per_transaction(self.system_calls - clocks)
    }

    /// Whether the cost is proportional to the number of transactions.
    pub fn is_linear(&self) -> bool {
        self.bend().abs() <= NOT_LINEAR
    }
}

/// Whether this function makes a system call only under valgrind.
///
/// Outside valgrind, clocks are read through the vDSO without a system call; valgrind hides the vDSO.
pub fn is_clock_function(name: &str) -> bool {
    matches!(name, "gettimeofday" | "clock_gettime" | "time" | "getcpu")
}

/// Whether a function is identified by its address because it has no name.
pub fn is_address(name: &str) -> bool {
    name.starts_with("0x")
}

/// The last part of a path.
pub fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
