//! Named checks of a ledger's inputs, each against a second figure of another source.
//!
//! A ledger's rows add up by construction, so that they do proves nothing: with the time on a CPU
//! scaled by any factor they still would, since the blocked time is what is left. What proves
//! something is a second figure that was measured by other means. Each check here compares two
//! such figures and has a bound; a difference is *explained* only where no check fails.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Errors beyond this are kept as this: JSON has no infinity.
const ERROR_MAX: f64 = 1e6;
/// A check with a wider bound would not notice a figure that is half or twice what it should be.
const BOUND_OF_SOURCE: f64 = 0.45;

/// What a check compares. Errors are relative to the first figure unless the text says otherwise.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CheckName {
    /// Something measured divides the blocked time: stacks or wait events. The error is 0 or 1.
    Division,
    /// The rows' response time against the mean latency by the clients' clock.
    Coverage,
    /// The transactions counted against the latencies that were recorded.
    Count,
    /// Transactions per second in the window against those of the whole run, settling included.
    Rate,
    /// Backends × window against the clients' time in transactions, between them and asleep.
    ClientClock,
    /// The backends' on-CPU time of `schedstat` against their CPU clocks.
    CpuClock,
    /// The on-CPU time of `schedstat` against the CPU time that the samples stand for, both of
    /// profiled trials.
    Samples,
    /// The on-CPU time per transaction of timed trials against that of profiled ones.
    ProfiledCpu,
    /// The machine's time that was not idle against the CPU time of all processes; the error is a
    /// share of the machine's time.
    Machine,
    /// The share of the time on a CPU by `schedstat` against that by observed context switches,
    /// both of profiled trials.
    SwitchesCpu,
    /// The same of the run queue.
    SwitchesRunQueue,
    /// The run-queue time per transaction of timed trials against that of profiled ones.
    ProfiledRunQueue,
    /// The rows of the server against the server's own clock of the time in statements
    /// (`pg_stat_database.active_time`, 14 and later). Waiting for a CPU before a statement begins
    /// or after it ended is in no statement, so the error is what lies outside of the range that
    /// this leaves, as a share of the response time and the time between transactions.
    ServerClock,
    /// How long the server waited for its clients against what they account for themselves: think
    /// time, CPU, run queue, turn. The error is a share of the response time and the time between.
    ClientAccount,
    /// The load generator threads' CPU time against that of their whole process.
    ClientCpu,
    /// The throughput that profiling cost.
    ProfilingOverhead,
    /// The share of timed trials in which the load generator set the pace.
    ClientLimited,
    /// Time that no name is known for, as a share of the difference.
    Unresolved,
    /// How far the ends of the 95% CI of the share explained are from 1.
    Unexplained,
    /// Rows whose total has one source only, on this tier, as a share of the difference.
    Sources,
}

/// Which side of a difference a check is of.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CheckSide {
    /// The baseline.
    Baseline,
    /// The variant.
    Variant,
}

/// One check.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConsistencyCheck {
    /// What it compares.
    pub name: CheckName,
    /// Which side it is of; `None` where it is of both together, or of a ledger by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<CheckSide>,
    /// By how much the second figure is larger than the first, as a share (0.1 is 10%).
    pub error: f64,
    /// The check passes up to this, in either direction.
    pub bound: f64,
    /// Whether it passed.
    pub passed: bool,
}

impl ConsistencyCheck {
    /// A check of an error against its bound. What is no number does not pass.
    pub(super) fn new(name: CheckName, error: f64, bound: f64) -> Self {
        Self {
            name,
            side: None,
            error: if error.is_nan() {
                ERROR_MAX
            } else {
                error.clamp(-ERROR_MAX, ERROR_MAX)
            },
            bound,
            passed: error.abs() <= bound,
        }
    }

    /// A check of a second figure against a first.
    pub(super) fn compare(name: CheckName, first: f64, second: f64, bound: f64) -> Self {
        let error = match () {
            () if first > 0.0 => second / first - 1.0,
            () if second > 0.0 => f64::INFINITY,
            () => 0.0,
        };
        Self::new(name, error, bound)
    }

    /// Whether it would notice a figure that is half or twice what it should be.
    pub(super) fn is_second_source(&self) -> bool {
        self.bound <= BOUND_OF_SOURCE
    }
}
