//! The cost ledger: where a transaction's time goes, so that it adds up.
//!
//! # The identity
//! Over a window W every backend is on a CPU, in a run queue, or blocked. Summed over the backends
//! and divided by the transactions, `backends × W / transactions` is the mean time from the
//! begin of one transaction to the begin of the next: response time R plus the time between
//! transactions Z (Little, "A proof for the queuing formula L = λW", 1961; a closed loop with a
//! backend per client). So:
//!
//! - rows of a [`Ledger`] add up to `response_us + between_us`;
//! - those of a [`LedgerDifference`], `between transactions` left out, add up to the difference of
//!   the response times: an accounting, not a regression.
//!
//! # What is exact and what is sampled
//! On-CPU and run-queue time per transaction are the kernel's own (`schedstat`) over the timed
//! trials; the blocked time is what they leave of the window. Samples of the profiled trials only
//! *divide* these totals ([`account`]): a sampler in user space misses what is runnable, by half on
//! a full machine, so no share of samples is ever taken for a share of time. The part in which the
//! server waits for its client is divided by the client's own totals.
//!
//! What no name is known for stands in rows of [`Part::Unresolved`], never left out. What is left
//! of the wait for the client after all that the client accounts for is *unexplained* too: a
//! remainder holds every error of the rows above it. The CPU time of background processes is listed beside the sum, since no transaction waits for it.

pub mod account;
mod checks;
mod consistency;
mod difference;
mod reason;
mod tail;
mod trials;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use consistency::{CheckName, CheckSide, ConsistencyCheck};
pub use difference::difference;
pub use reason::Reason;
pub use tail::{TAIL_TRANSACTIONS_MIN, Tail, TailRow};
pub use trials::{Measured, ledger};
pub(crate) use trials::{blocked_key, blocked_weights, cpu_weights, rows_by_block};

use crate::comparison::{Change, CostRow};

/// Unresolved time beyond this share of a difference forbids to call the difference explained.
pub const UNRESOLVED_SHARE_MAX: f64 = 0.05;
/// The ends of the 95% CI of the share explained may be this far from 1.
pub const UNEXPLAINED_SHARE_MAX: f64 = 0.2;
/// Samples and exact totals may differ by this share, beside chance: timers of virtual processors
/// come late.
pub const SAMPLES_ERROR_MAX: f64 = 0.05;
/// Rows and the clients' own clock may differ by this share.
pub const COVERAGE_ERROR_MAX: f64 = 0.01;
/// Backends may differ from throughput × (response + between) by this share.
pub const LITTLE_ERROR_MAX: f64 = 0.01;
/// Exact totals and the machine's ticks may differ by this share.
pub const TOTALS_ERROR_MAX: f64 = 0.02;

/// What a backend was doing in a row's time.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// On a CPU.
    OnCpu,
    /// Runnable, waiting for a CPU.
    RunQueue,
    /// At work in a statement: on a CPU or waiting for one, where nothing tells these apart.
    Running,
    /// Blocked inside the server.
    Blocked,
    /// Blocked until the client sends something, inside a transaction.
    Client,
    /// The client had no transaction under way.
    Between,
    /// Blocked or on a CPU, but nothing told for what.
    Unresolved,
}

/// Whether a row is work, or waiting for others' work.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Nature {
    /// Work of a CPU or a device. A saving at the bottleneck also shrinks others' queues.
    Demand,
    /// Waiting for somebody else's work to end: a CPU, a lock, a pipe.
    Queue,
    /// Time that was asked for, as by `\sleep` or a schedule.
    Think,
    /// Not told.
    Unknown,
}

/// One row of a ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// What the backend was doing.
    pub part: Part,
    /// Work or waiting.
    pub nature: Nature,
    /// The phase of the statement, as `plan`; empty where nothing told it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The subsystem on the CPU, or what was waited for, as `LWLock WALWrite`.
    pub mechanism: String,
    /// Time per transaction.
    pub us: f64,
    /// Of it: inside the kernel, for rows on a CPU.
    #[serde(default)]
    pub system_us: f64,
}

/// What divided the blocked time among its reasons.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Divider {
    /// Nothing did.
    #[default]
    Nothing,
    /// What sessions did when the server was asked, of `pg_stat_activity`, and that alone: no total
    /// of CPU time or of blocked time is known, so shares of looks stand for shares of time.
    AskedStates,
    /// Wait events that the server was asked for, of `pg_stat_activity`.
    AskedWaitEvents,
    /// Wait events, read from the backends' memory.
    WaitEvents,
    /// Stacks of blocked backends.
    Stacks,
}

/// Where a point's transactions spend their time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ledger {
    /// Index into the plan's conditions.
    pub condition: usize,
    /// Index into the plan's variants.
    pub variant: usize,
    /// Mean response time: what the rows add up to, [`Part::Between`] left out.
    pub response_us: f64,
    /// Mean time between transactions.
    pub between_us: f64,
    /// The rows, the longest first.
    pub rows: Vec<Row>,
    /// CPU time of processes that serve no client, per transaction; no part of the sum.
    pub background: Vec<BackgroundRow>,
    /// What divided the blocked time.
    pub blocked_by: Divider,
    /// Whether CPU stacks divided the on-CPU time.
    pub cpu_by_stacks: bool,
    /// Transactions beyond p99; `None` where context switches were not observed, or too few of
    /// these transactions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Tail>,
    /// Whether the sums hold.
    pub checks: LedgerChecks,
    /// Its inputs against second figures of other sources; empty in results of before there were
    /// these checks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consistency: Vec<ConsistencyCheck>,
}

/// What a kind of background process used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BackgroundRow {
    /// What the processes are for, as `checkpointer`.
    pub role: String,
    /// CPU time per transaction.
    pub us: f64,
}

/// Whether a ledger's sums hold; every figure is measured by two means and compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerChecks {
    /// The rows' sum over the clients' own clock (mean of the latencies plus time between); 1 is right.
    pub coverage: f64,
    /// `|N − X(R + Z)| / N`, with R the mean of the latencies.
    pub little_error: f64,
    /// What transactions that a window's ends cut may make of these two figures. Their mean length is
    /// E\[R²\] / E\[R\], since an instant falls into long ones more often. Where transactions count
    /// by their ends, it is this length over the window's; where they count by their share of the
    /// window, only what it exceeds the mean by.
    pub edge: f64,
    /// Share of the machine's time that was neither idle nor stolen nor used by a process that can be
    /// seen; negative where these are more than there was. `None` where it was not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_error: Option<f64>,
    /// The samples' CPU time over the exact time of the same trials, less 1; `None` without samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_error: Option<f64>,
    /// Two standard deviations of the same figure by chance alone, 2 / √n for n samples.
    #[serde(default)]
    pub samples_chance: f64,
    /// Throughput of profiled over that of timed trials: what watching cost; `None` without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiled_tps_ratio: Option<f64>,
    /// Share of the timed trials in which the load generator set the pace.
    pub client_limited: f64,
    /// Share of the machine's time that the hypervisor gave to others.
    pub steal: f64,
}

/// How deep an account looks: 0 with what the server tells alone, 1 with exact totals, 2 where stacks
/// divide the time on a CPU, 3 where they divide the blocked time too.
pub fn tier(cpu_by_stacks: bool, blocked_by: Divider) -> u8 {
    match (cpu_by_stacks, blocked_by) {
        (_, Divider::AskedStates) => 0,
        (_, Divider::Stacks) => 3,
        (true, _) => 2,
        (false, _) => 1,
    }
}

/// Whether a row explains its time: it is neither unresolved, nor time at work that nothing divides,
/// nor what is left after all that was measured.
pub fn is_explained(part: Part, phase: &str, mechanism: &str) -> bool {
    match part {
        Part::Unresolved | Part::Running => false,
        Part::OnCpu => !phase.is_empty(),
        Part::Client => !account::is_remainder(mechanism),
        Part::RunQueue | Part::Blocked | Part::Between => true,
    }
}

/// The share of an account's time whose rows explain it (see [`is_explained`]); 1 without any time.
pub fn explained_share(rows: &[Row]) -> f64 {
    let unexplained = |row: &&Row| !is_explained(row.part, &row.phase, &row.mechanism);
    let unexplained_us: f64 = rows.iter().filter(unexplained).map(|row| row.us).sum();
    let whole_us: f64 = rows.iter().map(|row| row.us).sum();
    if whole_us > 0.0 {
        1.0 - unexplained_us / whole_us
    } else {
        1.0
    }
}

/// Two ledgers, and what differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerDifference {
    /// Response time of both sides: what `groups` and what `rows` add up to.
    pub response: CostRow,
    /// Time between transactions.
    pub between: CostRow,
    /// The account in its fewest rows: phases on the CPU, the run queue, reasons of blocking, the
    /// client's parts; the largest difference first.
    pub groups: Vec<LedgerRow>,
    /// Phases × mechanisms, the largest difference first.
    pub rows: Vec<LedgerRow>,
    /// Difference of the rows of [`Part::Unresolved`], and what they may hide: the sum of the
    /// rows' absolute differences.
    pub unresolved_us: f64,
    /// Whether there is a difference beyond the noise and every check passed, so that the rows may
    /// be said to explain it.
    pub explained: bool,
    /// The share of the difference in rows that explain their time (see [`is_explained`]); `None`
    /// in results of before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explained_share: Option<ExplainedShare>,
    /// The checks of both sides, and those of the difference itself; empty in results of before
    /// there were any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<ConsistencyCheck>,
}

/// How much of a difference is explained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainedShare {
    /// The explained rows' difference over the whole difference; beyond 1 where the rest went the
    /// other way.
    pub share: f64,
    /// The ends of its 95% CI over the pairs of blocks (Fieller's, of a ratio of two means); `None`
    /// where the pairs do not bound it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
}

/// One row on both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerRow {
    /// What the backend was doing.
    pub part: Part,
    /// Work or waiting.
    pub nature: Nature,
    /// The phase of the statement; empty where nothing told it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The figures; its name is that of the group or the mechanism.
    pub cost: CostRow,
}

impl Row {
    /// The name of the group that it belongs to, unique within its part.
    pub fn group(&self) -> &str {
        match self.part {
            Part::OnCpu if !self.phase.is_empty() => &self.phase,
            Part::OnCpu => "all phases",
            _ => &self.mechanism,
        }
    }
}

impl LedgerDifference {
    /// Whether the response times differ by more than their noise.
    pub fn differs(&self) -> bool {
        self.response.change != Change::Unresolved
    }

    /// Whether little enough of the difference is unresolved.
    pub fn is_resolved(&self) -> bool {
        self.unresolved_us <= UNRESOLVED_SHARE_MAX * self.response.difference_us.abs()
    }
}

impl LedgerChecks {
    /// Whether the rows add up to what the clients measured.
    pub fn closes(&self) -> bool {
        (self.coverage - 1.0).abs() <= COVERAGE_ERROR_MAX + self.edge
    }

    /// Whether samples and exact totals agree; nothing without samples.
    pub fn samples_agree(&self) -> Option<bool> {
        let error = self.samples_error?;
        Some(error.abs() <= SAMPLES_ERROR_MAX + self.samples_chance)
    }

    /// Whether Little's law holds between throughput, latencies and backends.
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

    /// The groups' sums, the longest first.
    pub fn groups(&self) -> Vec<Row> {
        groups(&self.rows)
    }
}

/// The sums of rows by [`Row::group`], the longest first.
pub fn groups(rows: &[Row]) -> Vec<Row> {
    let mut groups: Vec<Row> = Vec::new();
    for row in rows {
        let same = |it: &&mut Row| it.part == row.part && it.mechanism == row.group();
        if let Some(group) = groups.iter_mut().find(same) {
            group.us += row.us;
            group.system_us += row.system_us;
            continue;
        }
        groups.push(Row {
            mechanism: row.group().to_owned(),
            phase: String::new(),
            ..row.clone()
        });
    }
    groups.sort_by(|a, b| b.us.total_cmp(&a.us));
    groups
}
