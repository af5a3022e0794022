//! The difference between two variants, to the instruction.
//!
//! A cost per transaction is a fraction; two of them are brought to one denominator, so that rows
//! are whole numbers and add up to the total exactly.
//!
//! A difference counts when it is larger than both variants' spreads together. With three repeats
//! or more, two variants of the same cost come that far apart less than once in a hundred times.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{VariantCount, base_name, is_address};

/// Differences below half an instruction are not told even where repeats agree to the digit: a
/// different settings file alone may shift a hash table's place.
const RESOLUTION: f64 = 0.5;

/// What can be said of two variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// They differ by more than repeating was seen to change.
    Differs,
    /// They do not.
    NoDifference,
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
    /// What repeating was seen to change, in instructions per transaction: both spreads together.
    pub repeatability: f64,
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
    /// How `variant` differs from `baseline`.
    pub fn between(baseline: &VariantCount, variant: &VariantCount) -> Self {
        let transactions = common_multiple(baseline.transactions, variant.transactions);
        let (down, up) = (
            -transactions / signed(baseline.transactions),
            transactions / signed(variant.transactions),
        );
        let repeatability = (baseline.spread() + variant.spread()).max(RESOLUTION);
        let per_transaction = variant.cost() - baseline.cost();
        let verdict = if !baseline.is_linear() || !variant.is_linear() {
            Verdict::NotLinear
        } else if per_transaction.abs() > repeatability {
            Verdict::Differs
        } else {
            Verdict::NoDifference
        };
        Self {
            verdict,
            per_transaction,
            ratio: variant.cost() / baseline.cost(),
            repeatability,
            transactions,
            instructions: down * baseline.instructions + up * variant.instructions,
            subsystems: subsystems([(baseline, down), (variant, up)]),
            functions: functions([(baseline, down), (variant, up)]),
        }
    }

    /// A row's share of the difference, in instructions per transaction.
    pub fn per_transaction_of(&self, instructions: i64) -> f64 {
        instructions as f64 / self.transactions as f64
    }
}

type Sides<'a> = [(&'a VariantCount, i64); 2];

fn subsystems(sides: Sides<'_>) -> Vec<SubsystemChange> {
    let mut sums: BTreeMap<&str, i64> = BTreeMap::new();
    for (variant, factor) in sides {
        for row in &variant.subsystems {
            *sums.entry(&row.name).or_default() += factor * row.instructions;
        }
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
