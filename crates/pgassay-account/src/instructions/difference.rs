//! The exact difference in instructions between two variants.
//!
//! Costs per transaction are fractions. They are converted to a common denominator, so that rows are
//! integers and add up to the total exactly.
//!
//! A difference is significant if it exceeds a margin for the variation between rounds, corrected for
//! the number of compared variants; see [`super::margin`].
//!
//! Invariant: a function belongs to the same subsystem on both sides, so the change of a subsystem is the
//! sum of its functions' changes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::margin::{Family, margin};
use super::{VariantCount, base_name, is_address};

/// The cost of an update does not change evenly with the number of them: with `simple-update`, it changed by 4.3 times
/// its bend for each doubling, from 200 to 500 transactions in the first segment.
const UNEVEN: f64 = 8.0;

/// Relative to the baseline's cost.
const DIFFERENCE_BEND_MAX: f64 = 0.0005;

/// The result of comparing two variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CountVerdict {
    /// The difference is significant at 1%, corrected for all compared variants.
    Differs,
    /// The difference is not significant.
    NoDifference,
    /// Undecided: a variant has fewer than three rounds.
    TooFewRounds,
    /// Undecided: a variant's cost is not proportional to the number of transactions, nor is the difference.
    NotLinear,
}

/// The difference between two variants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// The verdict.
    pub verdict: CountVerdict,
    /// Instructions per transaction, variant minus baseline.
    pub per_transaction: f64,
    /// Ratio of the variant's cost to the baseline's.
    pub ratio: f64,
    /// The margin that a significant difference exceeds, in instructions per transaction: the larger of
    /// the two spreads times a factor that depends on the numbers of rounds and comparisons, or if that is more, the
    /// usual spread of the script's variants, plus the change of the difference within a run. With too few rounds for
    /// a verdict, and in files of earlier versions, the sum of the two spreads.
    pub margin: f64,
    /// Number of comparisons that share the error rate of 1%; 0 in files of earlier versions, which had no
    /// such error rate.
    #[serde(default)]
    pub comparisons: usize,
    /// Number of transactions that all rows are summed over.
    pub transactions: i64,
    /// The difference over [`Self::transactions`], which the rows add up to.
    pub instructions: i64,
    /// By subsystem, largest change first.
    pub subsystems: Vec<SubsystemChange>,
    /// By function, largest change first.
    pub functions: Vec<FunctionChange>,
}

/// A subsystem's part of a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubsystemChange {
    /// Name of the subsystem.
    pub name: String,
    /// Own instructions of its functions, over [`Difference::transactions`].
    pub instructions: i64,
}

/// A function's part of a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionChange {
    /// Function name, or `0x` and the address in the object.
    pub name: String,
    /// File name of the program or library.
    pub object: String,
    /// The subsystem it belongs to, in the variant if the function exists there.
    pub subsystem: String,
    /// Own instructions, over [`Difference::transactions`].
    pub instructions: i64,
    /// Instructions including callees, over [`Difference::transactions`].
    pub inclusive: i64,
}

impl Difference {
    /// Compares `variant` with `baseline`, as one of a family of comparisons.
    pub fn between(baseline: &VariantCount, variant: &VariantCount, family: &Family) -> Self {
        let transactions = common_multiple(baseline.transactions, variant.transactions);
        let (down, up) = (
            -transactions / signed(baseline.transactions),
            transactions / signed(variant.transactions),
        );
        let spreads = [baseline.spread(), variant.spread()];
        let rounds = baseline.repeats.len().min(variant.repeats.len());
        let bend = bend(baseline, variant);
        // With noise of two values, the more expensive of two equal points may cost as much as the most expensive one
        // of the family.
        let noise = family.noise(baseline.cost().max(variant.cost()));
        let margin = margin(spreads, noise, rounds, family.comparisons);
        let margin = margin.map(|it| it + bend.unwrap_or(0.0));
        let per_transaction = variant.cost() - baseline.cost();
        let verdict = match margin {
            _ if bend.is_none() => CountVerdict::NotLinear,
            None => CountVerdict::TooFewRounds,
            Some(margin) if per_transaction.abs() > margin => CountVerdict::Differs,
            Some(_) => CountVerdict::NoDifference,
        };
        let functions = functions([(baseline, down), (variant, up)]);
        Self {
            verdict,
            per_transaction,
            ratio: variant.cost() / baseline.cost(),
            margin: margin.unwrap_or(spreads[0] + spreads[1]),
            comparisons: family.comparisons,
            transactions,
            instructions: down * baseline.instructions + up * variant.instructions,
            subsystems: subsystems(&functions),
            functions,
        }
    }

    /// Converts a row's instructions to instructions per transaction.
    pub fn per_transaction_of(&self, instructions: i64) -> f64 {
        instructions as f64 / self.transactions as f64
    }
}

/// By how much a difference depends on the numbers of transactions, in instructions per transaction; `None` if that is
/// too much to compare the costs. Costs that are not linear can change alike: those of writes grow as their table does.
/// Costs that are linear to 0.5% each can still change in opposite directions, by more than they differ.
fn bend(baseline: &VariantCount, variant: &VariantCount) -> Option<f64> {
    let of = |it: &VariantCount| it.bend() * it.cost();
    let bend = (of(variant) - of(baseline)).abs();
    let are_linear = baseline.is_linear() && variant.is_linear();
    if baseline.segments != variant.segments {
        // A bend is the change of a cost when the number of transactions doubles.
        let [few, many] = [baseline, variant].map(|it| it.segments[2] as f64);
        let doublings = (many / few).log2().abs();
        let uneven = UNEVEN * doublings * of(baseline).abs().max(of(variant).abs());
        return are_linear.then(|| uneven.max(bend));
    }
    (are_linear || bend <= DIFFERENCE_BEND_MAX * baseline.cost()).then_some(bend)
}

type Sides<'a> = [(&'a VariantCount, i64); 2];

/// Sums the functions' changes by subsystem. The difference of the variants' own sums is not the same: the
/// subsystem of a function can depend on its caller, which can change even if its cost does not.
fn subsystems(functions: &[FunctionChange]) -> Vec<SubsystemChange> {
    let mut sums: BTreeMap<&str, i64> = BTreeMap::new();
    for row in functions {
        *sums.entry(&row.subsystem).or_default() += row.instructions;
    }
    let changed = sums
        .into_iter()
        .filter(|(_, instructions)| *instructions != 0);
    let mut rows: Vec<SubsystemChange> = changed
        .map(|(name, instructions)| SubsystemChange {
            name: name.to_owned(),
            instructions,
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.instructions.abs()));
    rows
}

fn functions(sides: Sides<'_>) -> Vec<FunctionChange> {
    let mut rows: BTreeMap<(&str, &str), FunctionChange> = BTreeMap::new();
    for (variant, factor) in sides {
        for function in &variant.functions {
            // The same program can have different paths on the two sides, but addresses are comparable
            // only within the same file.
            let object = if is_address(&function.name) {
                function.object.as_str()
            } else {
                base_name(&function.object)
            };
            let row = rows
                .entry((&function.name, object))
                .or_insert_with(|| FunctionChange {
                    name: function.name.clone(),
                    object: base_name(&function.object).to_owned(),
                    subsystem: String::new(),
                    instructions: 0,
                    inclusive: 0,
                });
            row.subsystem.clone_from(&function.subsystem);
            row.instructions += factor * function.instructions;
            row.inclusive += factor * function.inclusive;
        }
    }
    let mut rows: Vec<FunctionChange> = rows
        .into_values()
        .filter(|row| row.instructions != 0 || row.inclusive != 0)
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.instructions.abs(), row.inclusive.abs())));
    rows
}

fn common_multiple(a: u64, b: u64) -> i64 {
    let (mut greater, mut lesser) = (a, b);
    while lesser != 0 {
        (greater, lesser) = (lesser, greater % lesser);
    }
    signed(a / greater.max(1) * b)
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).expect("a multiple of at most 2^31 and 2^31 transactions")
}
