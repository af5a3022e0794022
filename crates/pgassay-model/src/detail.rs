//! What a run gathers besides the figures of its trials: profiles, latencies of statements, and
//! warm-ups that did not become steady. Each is saved as it comes, so that a run that was killed can be
//! continued without losing it.

use serde::{Deserialize, Serialize};

use crate::profile::Profile;
use crate::trial::{Latency, Trial};

/// Something that a run gathered besides the figures of its trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunDetail {
    /// What a profiled trial gathered; it precedes its trial.
    Trial(Box<TrialDetail>),
    /// A point whose throughput was not stable at the end of its warm-up.
    NotSteady(UnsteadyWarmUp),
}

/// What a profiled trial gathered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialDetail {
    /// The trial.
    pub trial: TrialKey,
    /// Its stacks, as the only block of a profile; `None` if none were sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// The latencies of its statements, by script and command; empty if they were not timed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<Vec<StatementTimes>>,
}

/// Identifies a trial among all that were measured for a run, repeated ones included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TrialKey {
    /// As in [`Trial`].
    pub block: u32,
    /// As in [`Trial`].
    pub condition: usize,
    /// As in [`Trial`].
    pub variant: usize,
    /// As in [`Trial`].
    pub position: u32,
    /// As in [`Trial`].
    pub started_us: i64,
}

impl TrialKey {
    /// The key of a trial.
    pub fn of(trial: &Trial) -> Self {
        Self {
            block: trial.block,
            condition: trial.condition,
            variant: trial.variant,
            position: trial.position,
            started_us: trial.started_us,
        }
    }
}

/// The latencies of one statement in one trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatementTimes {
    /// How often it was timed.
    pub timed: u64,
    /// The sum of these times, in nanoseconds.
    pub sum_ns: u64,
    /// Their distribution; `None` if it was never timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Errors in it that were followed by a retry of the transaction.
    #[serde(default)]
    pub retries: u64,
    /// Errors in it that ended the transaction.
    #[serde(default)]
    pub failures: u64,
}

/// A point whose throughput was not stable at the end of its warm-up in one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnsteadyWarmUp {
    /// Index into the plan's conditions.
    pub condition: usize,
    /// Index into the plan's variants.
    pub variant: usize,
    /// The block.
    pub block: u32,
}
