//! The result of counting, as it is printed, kept and compared.
//!
//! Invariants: integers are sums over [`VariantCount::transactions`]; the functions' own
//! instructions add up to the variant's, and so do the subsystems'; rows of a difference likewise.

use std::collections::BTreeMap;

use pgassay_core::subsystem::Subsystem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::credit;
use crate::system_call;
use crate::tally::Tally;

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
    /// What it was counted under.
    pub conditions: Vec<ConditionCount>,
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
    pub calls: Vec<crate::tally::CallTally>,
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
    /// Puts names, subsystems and sums to a tally.
    pub fn new(
        name: &str,
        build: Build,
        settings: BTreeMap<String, String>,
        segments: [u64; 3],
        repeats: Vec<Repeat>,
        tally: &Tally,
    ) -> Self {
        let subsystems = credit::subsystems(tally, &build.version);
        let (functions, calls) = functions(tally, &subsystems);
        let mut by_subsystem = BTreeMap::new();
        for (function, subsystem) in tally.functions.iter().zip(&subsystems) {
            *by_subsystem.entry(*subsystem).or_insert(0) += function.own;
        }
        let mut subsystems: Vec<SubsystemCount> = by_subsystem
            .into_iter()
            .filter(|(_, instructions)| *instructions != 0)
            .map(|(subsystem, instructions)| SubsystemCount {
                name: subsystem_name(subsystem).to_owned(),
                instructions,
            })
            .collect();
        subsystems.sort_by_key(|row| std::cmp::Reverse(row.instructions));
        Self {
            name: name.to_owned(),
            build,
            settings,
            segments,
            repeats,
            transactions: tally.transactions,
            instructions: tally.instructions,
            system_calls: tally.system_calls,
            system_calls_by_name: system_call::by_name(tally),
            subsystems,
            functions,
            calls,
        }
    }

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
            .filter(|row| system_call::is_clock(&row.name));
        let clocks: i64 = clocks.map(|row| row.count).sum();
        self.per_transaction(self.system_calls - clocks)
    }

    /// Whether twice the transactions cost twice as much.
    pub fn is_linear(&self) -> bool {
        self.bend().abs() <= NOT_LINEAR
    }
}

fn functions(
    tally: &Tally,
    subsystems: &[Subsystem],
) -> (Vec<FunctionCount>, Vec<crate::tally::CallTally>) {
    let (inclusive, calls, cycles) = (tally.inclusive(), tally.call_counts(), tally.in_cycles());
    let mut order: Vec<usize> = (0..tally.functions.len())
        .filter(|&index| (tally.functions[index].own, inclusive[index], calls[index]) != (0, 0, 0))
        .collect();
    let key = |index: usize| {
        let function = &tally.functions[index];
        (
            -function.own,
            -inclusive[index],
            function.name.clone(),
            function.object.clone(),
        )
    };
    order.sort_by_cached_key(|&index| key(index));
    let mut new_index = vec![None; tally.functions.len()];
    let functions = order
        .iter()
        .enumerate()
        .map(|(position, &index)| {
            new_index[index] = Some(position);
            let function = &tally.functions[index];
            FunctionCount {
                name: function.name.clone(),
                object: function.object.clone(),
                subsystem: subsystem_name(subsystems[index]).to_owned(),
                calls: calls[index],
                instructions: function.own,
                inclusive: inclusive[index],
                recursive: cycles[index],
            }
        })
        .collect();
    let calls = tally
        .calls()
        .filter_map(|call| {
            let (caller, callee) = (new_index[call.caller]?, new_index[call.callee]?);
            Some(crate::tally::CallTally {
                caller,
                callee,
                ..call
            })
        })
        .collect();
    (functions, calls)
}

fn subsystem_name(subsystem: Subsystem) -> &'static str {
    match subsystem {
        // Not only libc's: TLS, the loader and the like are in it too.
        Subsystem::Libc => "libraries",
        other => other.name(),
    }
}
