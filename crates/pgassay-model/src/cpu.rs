//! Exact CPU time of processes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Exact CPU totals of a group of processes, from the kernel's `schedstat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuTotals {
    /// Time on a CPU.
    pub on_cpu_us: f64,
    /// Run-queue wait: time runnable but waiting for a CPU.
    pub run_queue_us: f64,
    /// Number of processes.
    pub processes: u32,
}

/// CPU time of one kind of background process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Background {
    /// The role of the processes, such as `checkpointer`.
    pub role: String,
    /// Their exact totals.
    pub cpu: CpuTotals,
}
