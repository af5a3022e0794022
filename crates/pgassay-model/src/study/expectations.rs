//! What the author of a study expects, and what others measured before.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An expectation and the check that decides it. Written `that = "prepared statements pay off"`,
/// `check = "prepared.tps_ratio > 1.2 where script = plain"`; see docs/study-file.md.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// The expectation, completing a sentence that begins with "expected that".
    pub that: String,
    /// Two expressions, a comparison between them, and the conditions in which it must hold.
    pub check: String,
}

/// Published figures to compare with the measured ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// Who measured them, on what machine.
    pub source: String,
    /// How and why this machine or method differs, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
    /// The name of the row that the others are divided by: the published figures by its published
    /// figure, the measured ones by its measured figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The rows, in the source's order.
    pub row: Vec<ReferenceRow>,
}

/// One published figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReferenceRow {
    /// Its name in the source.
    pub name: String,
    /// The published figure; absent if the source gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<f64>,
    /// The same figure in this run, as an expression; see docs/study-file.md.
    pub is: String,
}
