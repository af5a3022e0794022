//! What the author of a study believes, and what others found before.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something the author believes, and how it shows. Written `that = "prepared statements pay off"`,
/// `check = "prepared.tps_ratio > 1.2 where script = plain"`; see [`crate::measure`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// The belief, as the rest of a sentence that begins with "expected that".
    pub that: String,
    /// Two expressions and a comparison between them, and the conditions under which it must hold.
    pub check: String,
}

/// Figures that others found, to stand beside those found here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// Who found them, on what.
    pub source: String,
    /// Where and why this machine or method differs, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
    /// The name of the row that the others are divided by, on each side by its own, where they
    /// are the same figure of another variant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The rows, in the source's order.
    pub row: Vec<ReferenceRow>,
}

/// One figure of the source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReferenceRow {
    /// Its name, as the source has it.
    pub name: String,
    /// What the source found; without it the source is silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<f64>,
    /// The same here, as an expression; see [`crate::measure`].
    pub is: String,
}
