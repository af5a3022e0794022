//! One row of a difference in cost: a cost table and a ledger have the same rows.

use pgassay_stats::ChangeClass;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The cost of one row per transaction on both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CostRow {
    /// Function, phase or subsystem.
    pub name: String,
    /// For functions, the program or library.
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
    /// How the cost changed.
    pub change: Change,
}

/// How the cost of a row changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Added: absent under the baseline.
    Added,
    /// Increased.
    Increased,
    /// Decreased.
    Decreased,
    /// Removed: absent under the variant.
    Removed,
    /// Not distinguishable from noise.
    Inconclusive,
}

impl From<ChangeClass> for Change {
    fn from(class: ChangeClass) -> Self {
        match class {
            ChangeClass::Added => Self::Added,
            ChangeClass::Increased => Self::Increased,
            ChangeClass::Decreased => Self::Decreased,
            ChangeClass::Removed => Self::Removed,
            ChangeClass::Unchanged { .. } | ChangeClass::Descriptive => Self::Inconclusive,
        }
    }
}
