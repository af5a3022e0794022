//! Sampled wait events of the backends.
//!
//! A user-space sampler under-reports runnable backends, by half on a saturated machine (PostgreSQL 15,
//! 2 CPUs, 16 clients: 18% of its samples, while the kernel counts 32% of the time). The number of
//! samples that found backends runnable is therefore kept, but no time is computed from it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The source of wait samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitSource {
    /// The backends' memory; reading it costs the server nothing.
    #[default]
    Memory,
    /// `pg_stat_activity`, over a connection, if the memory may not be read. A query takes long enough
    /// for a backend to continue, so short waits without a wait event are missed.
    PgStatActivity,
}

/// Sampled wait events of the backends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waits {
    /// The source of the samples.
    #[serde(default)]
    pub source: WaitSource,
    /// Samples that found a backend blocked; the events' samples add up to it.
    pub blocked_samples: u64,
    /// Samples that found one on CPU or in the run queue. Not a share of time: see the module.
    pub runnable_samples: u64,
    /// Samples of processes that could not be read, or for which the server returned no data.
    pub unreadable: u64,
    /// CPU time of sampling, including the server's if it was queried and its processes are visible.
    pub sampling_cpu_us: f64,
    /// Share of the readings that began late. They depend on what backends do, because the sampler then
    /// waits until they leave a CPU to it. `None` in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<f64>,
    /// The waits.
    pub events: Vec<WaitCount>,
}

impl Waits {
    /// Samples that returned the state of a backend.
    pub fn samples(&self) -> u64 {
        self.blocked_samples.saturating_add(self.runnable_samples)
    }
}

/// How often a wait event was sampled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitCount {
    /// `wait_event_type` as in `pg_stat_activity`; empty if unknown.
    pub kind: String,
    /// `wait_event`, likewise.
    pub name: String,
    /// Samples that found it.
    pub samples: u64,
}
