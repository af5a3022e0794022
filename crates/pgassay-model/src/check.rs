//! A check for limitations of measurements on a machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One check of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// What was checked, for example `kernel.perf_event_paranoid`.
    pub name: String,
    /// The value found.
    pub value: String,
    /// The limitation, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limitation: Option<String>,
    /// The command that removes the limitation, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}
