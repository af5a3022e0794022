//! What a session waits for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A wait event; both names are empty for time on a CPU or in its run queue.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct ActivityWait {
    /// `wait_event_type`.
    pub kind: String,
    /// `wait_event`.
    pub name: String,
}
