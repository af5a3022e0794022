//! The difference between two variants, to the instruction.
//!
//! A cost per transaction is a fraction; two of them are brought to one denominator, so that rows
//! are whole numbers and add up to the total exactly.
//!
//! A difference counts when it exceeds what chance does with the rounds' spreads, over all variants that
//! are compared; how much that is says [`super::margin`].
//!
//! Invariant: a function is credited to one subsystem on both sides, so that a subsystem's change is
//! the sum of its functions' changes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::margin::margin;
use super::{VariantCount, base_name, is_address};

/// What can be said of two variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// They differ by more than chance does in 1% of counts, all compared variants together.
    Differs,
    /// They do not.
    NoDifference,
    /// Nothing: one of them has fewer than three rounds.
    TooFewRounds,
    /// One of them has no cost per transaction, because twice the work is not twice the cost.
    NotLinear,
}

/// How a variant differs from another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// What can be said.
    pub verdict: Verdict,
    /// Instructions per transaction that the variant costs more.
    pub per_transaction: f64,
    /// The variant's cost by the other's.
    pub ratio: f64,
    /// What a difference has to exceed, in instructions per transaction: the larger of the spreads, times
    /// a factor by the number of rounds and of comparisons. With too few rounds for a verdict, and in
    /// files of earlier versions, the two spreads together.
    pub repeatability: f64,
    /// How many variants were compared at the same time, for which 1% holds together; 0 in files of
    /// earlier versions, where it held for none.
    #[serde(default)]
    pub comparisons: usize,
    /// The denominator of all rows.
    pub transactions: i64,
    /// The difference in so many transactions: what the rows add up to.
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
    /// Its name.
    pub name: String,
    /// Own instructions of its functions, over [`Difference::transactions`].
    pub instructions: i64,
}

/// A function's part of a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionChange {
    /// Its name, or `0x` and its address in the object.
    pub name: String,
    /// File name of the program or library.
    pub object: String,
    /// Whom it belongs to, in the variant if it has it.
    pub subsystem: String,
    /// Own instructions, over [`Difference::transactions`].
    pub instructions: i64,
    /// With those of all that it called.
    pub inclusive: i64,
}

impl Difference {
    /// How `variant` differs from `baseline`, as one of so many `comparisons`.
    pub fn between(baseline: &VariantCount, variant: &VariantCount, comparisons: usize) -> Self {
        let transactions = common_multiple(baseline.transactions, variant.transactions);
        let (down, up) = (
            -transactions / signed(baseline.transactions),
            transactions / signed(variant.transactions),
        );
        let spreads = [baseline.spread(), variant.spread()];
        let rounds = baseline.repeats.len().min(variant.repeats.len());
        let margin = margin(spreads, rounds, comparisons);
        let per_transaction = variant.cost() - baseline.cost();
        let verdict = match margin {
            _ if !baseline.is_linear() || !variant.is_linear() => Verdict::NotLinear,
            None => Verdict::TooFewRounds,
            Some(margin) if per_transaction.abs() > margin => Verdict::Differs,
            Some(_) => Verdict::NoDifference,
        };
        let functions = functions([(baseline, down), (variant, up)]);
        Self {
            verdict,
            per_transaction,
            ratio: variant.cost() / baseline.cost(),
            repeatability: margin.unwrap_or(spreads[0] + spreads[1]),
            comparisons,
            transactions,
            instructions: down * baseline.instructions + up * variant.instructions,
            subsystems: subsystems(&functions),
            functions,
        }
    }

    /// A row's share of the difference, in instructions per transaction.
    pub fn per_transaction_of(&self, instructions: i64) -> f64 {
        instructions as f64 / self.transactions as f64
    }
}

type Sides<'a> = [(&'a VariantCount, i64); 2];

/// Sums of the functions' changes. Not the difference of the variants' own sums: whoever is credited
/// with a function may depend on who calls it, and that can change where its cost does not.
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
            // The same program may lie elsewhere; but an address means the same in the same file
            // only.
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
    i64::try_from(count).expect("nobody counts 2^63 transactions")
}
