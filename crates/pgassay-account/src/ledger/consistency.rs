//! Named checks of a ledger's inputs, each against a second figure from another source.
//!
//! A ledger's rows add up by construction, so the sum proves nothing: with on-CPU time scaled by any
//! factor they would still add up, since blocked time is the rest. Only a second figure measured by
//! other means proves something. Each check here compares two such figures and has a bound. A
//! difference is *explained* only if no check fails.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Errors are clamped to this, since JSON has no infinity.
const ERROR_MAX: f64 = 1e6;
/// A check with a wider bound would not notice a figure that is off by a factor of 2.
const BOUND_OF_SOURCE: f64 = 0.45;

/// What a check compares. Errors are relative to the first figure unless stated otherwise.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CheckName {
    /// Whether measured stacks or wait events divide the blocked time. The error is 0 or 1.
    Attribution,
    /// Response time by rows against mean latency by the clients' clock.
    Coverage,
    /// Transactions counted against latencies recorded.
    Count,
    /// Transactions per second in the window against those of the whole run, including warm-up.
    Rate,
    /// Backends × window against the clients' time in transactions, between them and sleeping.
    ClientClock,
    /// On-CPU time of the backends by `schedstat` against their CPU clocks.
    CpuClock,
    /// On-CPU time by `schedstat` against CPU time by samples, both in profiled trials.
    Samples,
    /// On-CPU time per transaction in timed trials against profiled trials.
    ProfiledCpu,
    /// Non-idle time of the machine against CPU time of all processes; the error is a share of the
    /// machine's time.
    Machine,
    /// Share of on-CPU time by `schedstat` against that by observed context switches, both in profiled
    /// trials.
    SwitchesCpu,
    /// The same for run-queue time.
    SwitchesRunQueue,
    /// Run-queue time per transaction in timed trials against profiled trials.
    ProfiledRunQueue,
    /// The server's rows against the server's own clock of time in statements
    /// (`pg_stat_database.active_time`, 14 and later). Run-queue wait before a statement starts or
    /// after it ends is not in a statement, so the clock may lie in a range. The error is the distance
    /// from that range, as a share of response time plus time between transactions.
    ServerClock,
    /// Time the server waited for its clients against the clients' own times (think time, CPU, run
    /// queue, thread busy). The error is a share of response time plus time between transactions.
    ClientAccount,
    /// CPU time of the load generator's threads against that of their process.
    ClientCpu,
    /// Profiling overhead: the share of the throughput that profiling costs.
    ProfilingOverhead,
    /// Share of timed trials in which the load generator was the bottleneck.
    ClientLimited,
    /// CPU stacks that were not unwound to the entry of the process, as a share of all. Their phase is
    /// unknown, and so is their subsystem if the known frames are those of the kernel or of a library.
    Unwound,
    /// Reasons of blocking by stacks in slices of context switches against wait events. The error is that of
    /// the reason on which they disagree most, as a share of the blocked time.
    BlockedReasons,
    /// Time with an unknown reason, as a share of the difference.
    UnexplainedTime,
    /// The absolute differences of all rows without a known cause, as a share of the difference: opposite
    /// ones would cancel in the explained share.
    UnexplainedRows,
    /// Distance of the ends of the 95% CI of the explained share from 1.
    ExplainedShare,
    /// Rows whose total has only one source at this tier, as a share of the difference.
    Sources,
}

/// Which side of a difference a check belongs to.
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
    /// The side it belongs to; `None` for a check of both sides together, or of a single ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<CheckSide>,
    /// How much the second figure is larger than the first, as a share (0.1 is 10%).
    pub error: f64,
    /// The check passes if the absolute error is at most this.
    pub bound: f64,
    /// Whether it passed.
    pub passed: bool,
}

impl ConsistencyCheck {
    /// A check of an error against its bound. NaN does not pass.
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

    /// A check of a second figure against a first figure.
    pub(super) fn compare(name: CheckName, first: f64, second: f64, bound: f64) -> Self {
        let error = match () {
            () if first > 0.0 => second / first - 1.0,
            () if second > 0.0 => f64::INFINITY,
            () => 0.0,
        };
        Self::new(name, error, bound)
    }

    /// The same check with a wider bound, but not so wide that a figure off by a factor of 2 would pass.
    pub(super) fn widened(&self, bound: f64) -> Self {
        let bound = self.bound.max(bound.min(BOUND_OF_SOURCE));
        Self {
            bound,
            passed: self.error.abs() <= bound,
            ..*self
        }
    }

    /// The same check if an error up to this is immaterial.
    pub(super) fn unless_immaterial(&self, immaterial: f64) -> Self {
        Self {
            side: self.side,
            ..Self::new(self.name, self.error, self.bound.max(immaterial.min(1.0)))
        }
    }

    /// Whether it would notice a figure that is off by a factor of 2.
    pub(super) fn is_second_source(&self) -> bool {
        self.bound <= BOUND_OF_SOURCE
    }
}
