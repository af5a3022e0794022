//! The cost ledger: where a transaction's time goes, so that it adds up.
//!
//! # The identity
//! Over a window W, every backend is on CPU, in the run queue, or blocked. Summed over the backends
//! and divided by the transactions, `backends × W / transactions` is the mean time from the start of
//! one transaction to the start of the next: response time R plus the time between transactions Z
//! (Little, "A proof for the queuing formula L = λW", 1961; a closed loop with one backend per
//! client). So:
//!
//! - the rows of a [`Ledger`] add up to `response_us + between_transactions_us`;
//! - the rows of a [`LedgerDifference`], without `between_transactions transactions`, add up to the difference of
//!   the response times: an accounting, not a regression.
//!
//! # What is exact and what is sampled
//! On-CPU and run-queue time per transaction are the kernel's own totals (`schedstat`) over the timed
//! trials; blocked time is the rest of the window. Samples of the profiled trials only *divide* these
//! totals ([`account`]). A user-space sampler misses runnable backends, half of them on a saturated
//! machine, so a share of samples is never taken as a share of time. The time in which the server
//! waits for its client is divided by the client's own totals.
//!
//! Time without a known name is kept in rows of [`Part::Unexplained`]. The rest of the wait for the
//! client that the client does not account for is *unexplained* too: a remainder contains every error
//! of the other rows. The CPU time of background processes is listed separately from the sum, since
//! no transaction waits for it.

pub mod account;
mod checks;
mod consistency;
mod difference;
mod divider;
mod explained;
mod measurements;
mod reason;
mod reason_sources;
mod row;
mod tail;
mod trials;
mod weights;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use consistency::{CheckName, CheckSide, ConsistencyCheck};
pub use difference::difference;
pub use divider::{Divider, tier};
pub use measurements::PointMeasurements;
pub use reason::Reason;
pub use row::{
    Nature, Part, Row, explained_share, groups, is_client_run_queue, is_explained, is_remainder,
};
pub use tail::{TAIL_TRANSACTIONS_MIN, Tail, TailRow};
pub use trials::{ledger, rows_by_block};
pub use weights::{blocked_key, blocked_weights, cpu_weights};

use crate::cost_row::{Change, CostRow};

/// A difference with more unexplained time than this share of it is not called explained.
pub const UNEXPLAINED_TIME_SHARE_MAX: f64 = 0.05;
/// The ends of the 95% CI of the explained share may be this far from 1. All rows without a known cause
/// together may differ by this share of the difference, whatever their signs.
pub const UNEXPLAINED_SHARE_MAX: f64 = 0.2;
/// Samples and exact totals may differ by this share in addition to chance: timers of virtual CPUs
/// fire late.
pub const SAMPLES_ERROR_MAX: f64 = 0.05;
/// Rows and the clients' own clock may differ by this share.
pub const COVERAGE_ERROR_MAX: f64 = 0.01;
/// Backends may differ from throughput × (response + between) by this share.
pub const LITTLE_ERROR_MAX: f64 = 0.01;
/// Exact totals and the machine's CPU ticks may differ by this share.
pub const TOTALS_ERROR_MAX: f64 = 0.02;

/// Where the transactions of a point spend their time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ledger {
    /// Index into the plan's conditions.
    pub condition: usize,
    /// Index into the plan's variants.
    pub variant: usize,
    /// Mean response time: the sum of the rows without [`Part::Between`].
    pub response_us: f64,
    /// Mean time between transactions.
    pub between_transactions_us: f64,
    /// The rows, longest first.
    pub rows: Vec<Row>,
    /// CPU time of background processes, per transaction; not part of the sum.
    pub background: Vec<BackgroundRow>,
    /// The source that divides the blocked time.
    pub blocked_by: Divider,
    /// Whether CPU stacks divide the on-CPU time.
    pub cpu_by_stacks: bool,
    /// Transactions beyond p99; `None` if context switches were not observed, or during too few of
    /// these transactions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Tail>,
    /// Whether the sums hold.
    pub checks: LedgerChecks,
    /// Checks of its inputs against figures from other sources; empty in results of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consistency: Vec<ConsistencyCheck>,
}

/// CPU time of one kind of background process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BackgroundRow {
    /// The role of the processes, such as `checkpointer`.
    pub role: String,
    /// CPU time per transaction.
    pub us: f64,
}

/// Consistency of a ledger's sums: each figure is measured in two ways and compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerChecks {
    /// The sum of the rows over the clients' clock (mean latency plus time between transactions). It
    /// should be 1.
    pub coverage: f64,
    /// `|N − X(R + Z)| / N`, with R the mean of the latencies.
    pub little_error: f64,
    /// Possible error of these two figures due to transactions cut by the ends of a window. Their mean
    /// length is E\[R²\] / E\[R\], since an instant falls into long transactions more often. If
    /// transactions count by their ends, the error is this length over the window's length; if they
    /// count by their share of the window, only the excess of this length over the mean matters.
    pub edge: f64,
    /// Share of the machine's time that was neither idle, nor stolen, nor used by a visible process;
    /// negative if these add up to more than the machine's time. `None` if it was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_error: Option<f64>,
    /// CPU time by samples over exact CPU time of the same trials, minus 1; `None` without samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_error: Option<f64>,
    /// Two standard deviations of `samples_error` due to chance, 2 / √n for n samples.
    #[serde(default)]
    pub samples_chance: f64,
    /// Throughput of profiled trials over that of timed trials (profiling overhead); `None` without
    /// profiled trials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiled_tps_ratio: Option<f64>,
    /// Share of the timed trials in which the load generator was the bottleneck.
    pub client_limited: f64,
    /// CPU steal: share of the machine's time that went to other virtual machines.
    pub cpu_steal: f64,
}

/// The difference of two ledgers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerDifference {
    /// Response time of both sides: the sum of `groups`, and of `rows`.
    pub response: CostRow,
    /// Time between transactions.
    pub between_transactions: CostRow,
    /// The summarized account: phases on CPU, the run queue, reasons of blocking and the client's
    /// parts; largest difference first.
    pub groups: Vec<LedgerRow>,
    /// Phases × mechanisms, largest difference first.
    pub rows: Vec<LedgerRow>,
    /// Unexplained time: the sum of the absolute differences of the rows of [`Part::Unexplained`],
    /// so that opposite differences do not cancel.
    pub unexplained_us: f64,
    /// Whether the rows explain the difference: it exceeds the noise, and every check passed.
    pub explained: bool,
    /// The share of the difference in rows that explain their time (see [`is_explained`]); `None`
    /// in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explained_share: Option<ExplainedShare>,
    /// The checks of both sides, and those of the difference itself; empty in results of older
    /// versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<ConsistencyCheck>,
}

/// How much of a difference is explained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainedShare {
    /// The difference of the explained rows, without their [`Row::possible_us`], over the whole
    /// difference; above 1 if the other rows changed in the opposite direction.
    pub share: f64,
    /// Its 95% CI over the pairs of blocks (Fieller's interval for a ratio of two means); `None` if
    /// the pairs do not bound it. If there is a possible part, from the lower end of the interval
    /// without it to the upper end of that with all of it, or the other way round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// How much more it would be at most: the share of the difference in [`Row::possible_us`]. `None`
    /// if there is none, or in results of older versions, whose `share` includes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub possible: Option<f64>,
}

/// One row on both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerRow {
    /// State of the backend.
    pub part: Part,
    /// Service, queueing or think time.
    pub nature: Nature,
    /// The phase of the statement; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The figures; its name is the name of the group or the mechanism.
    pub cost: CostRow,
}

impl LedgerDifference {
    /// Whether the response times differ by more than the noise.
    pub fn differs(&self) -> bool {
        self.response.change != Change::Inconclusive
    }

    /// Whether little enough of the difference is unexplained.
    pub fn is_mostly_explained(&self) -> bool {
        self.unexplained_us <= UNEXPLAINED_TIME_SHARE_MAX * self.response.difference_us.abs()
    }
}

impl LedgerChecks {
    /// Whether the rows add up to what the clients measured.
    pub fn closes(&self) -> bool {
        (self.coverage - 1.0).abs() <= COVERAGE_ERROR_MAX + self.edge
    }

    /// Whether samples and exact totals agree; `None` without samples.
    pub fn samples_agree(&self) -> Option<bool> {
        let error = self.samples_error?;
        Some(error.abs() <= SAMPLES_ERROR_MAX + self.samples_chance)
    }

    /// Whether throughput, latencies and backends satisfy Little's law.
    pub fn agrees_with_little(&self) -> bool {
        self.little_error <= LITTLE_ERROR_MAX + self.edge
    }
}

impl Ledger {
    /// The sum of the rows of one part, in µs per transaction.
    pub fn part_us(&self, part: Part) -> f64 {
        let of_part = self.rows.iter().filter(|row| row.part == part);
        of_part.map(|row| row.us).sum()
    }

    /// The sums of the groups, longest first.
    pub fn groups(&self) -> Vec<Row> {
        groups(&self.rows)
    }
}
