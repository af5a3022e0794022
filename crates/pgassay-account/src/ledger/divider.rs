//! The source that divides blocked time, and the tier of an account that follows from it.

use pgassay_model::waits::WaitSource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The source that divides the blocked time by reason.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Divider {
    /// No source.
    #[default]
    Nothing,
    /// Samples of session states in `pg_stat_activity` only. No totals of CPU time or blocked time are
    /// known, so shares of samples stand for shares of time.
    ActivityStates,
    /// Wait events sampled from `pg_stat_activity`.
    ActivityWaitEvents,
    /// Wait events read from the backends' memory.
    MemoryWaitEvents,
    /// Stacks of blocked backends.
    Stacks,
}

impl From<WaitSource> for Divider {
    fn from(source: WaitSource) -> Self {
        match source {
            WaitSource::Memory => Self::MemoryWaitEvents,
            WaitSource::PgStatActivity => Self::ActivityWaitEvents,
        }
    }
}

/// The tier of an account: 0 if only the server's views are available, 1 with exact totals, 2 if
/// stacks divide the on-CPU time, 3 if stacks also divide the blocked time.
pub fn tier(cpu_by_stacks: bool, blocked_by: Divider) -> u8 {
    match (cpu_by_stacks, blocked_by) {
        (_, Divider::ActivityStates) => 0,
        (_, Divider::Stacks) => 3,
        (true, _) => 2,
        (false, _) => 1,
    }
}
