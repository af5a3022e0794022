//! One row of a ledger: what a backend did with part of a transaction's time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// State of the backend during a row's time.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// On a CPU.
    OnCpu,
    /// In the run queue, waiting for a CPU.
    RunQueue,
    /// In a statement, on CPU or in the run queue, if the two cannot be distinguished.
    Running,
    /// Blocked inside the server.
    Blocked,
    /// Waiting for the client inside a transaction.
    Client,
    /// Between transactions of the client.
    Between,
    /// Blocked or on CPU for an unknown reason.
    Unexplained,
}

/// Whether a row is service, queueing or think time.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Nature {
    /// Service: work of a CPU or a device. A saving at the bottleneck also shortens others' queueing.
    Service,
    /// Queueing: waiting for others' work to end, as for a CPU, a lock or a pipe.
    Queueing,
    /// Think time, as requested by `\sleep` or a schedule.
    Think,
    /// Unknown.
    Unknown,
}

/// One row of a ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// State of the backend.
    pub part: Part,
    /// Service, queueing or think time.
    pub nature: Nature,
    /// The phase of the statement, such as `plan`; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The subsystem on CPU, or the reason for waiting, such as `LWLock WALWrite`.
    pub mechanism: String,
    /// Time per transaction.
    pub us: f64,
    /// The part of it inside the kernel, for rows on CPU.
    #[serde(default)]
    pub system_us: f64,
    /// The part of it that is only possible: the row has at most this much of the time, and nothing shows
    /// how much. It counts as no known cause.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub possible_us: f64,
}

// Serde passes fields by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(us: &f64) -> bool {
    *us <= 0.0
}

impl Row {
    /// The name of its group, unique within its part.
    pub fn group(&self) -> &str {
        match self.part {
            Part::OnCpu if !self.phase.is_empty() => &self.phase,
            Part::OnCpu => "all phases",
            _ => &self.mechanism,
        }
    }

    /// The part of it whose cause is known, except for what is only possible.
    pub(super) fn known_us(&self) -> f64 {
        if is_explained(self.part, &self.phase, &self.mechanism) {
            self.us - self.possible_us
        } else {
            0.0
        }
    }

    /// Whether two rows have the same key, whatever their figures.
    pub(super) fn same_account(&self, other: &Self) -> bool {
        self.part == other.part
            && self.nature == other.nature
            && self.phase == other.phase
            && self.mechanism == other.mechanism
    }
}

/// The rest of the server's wait for its client if `ClientParts::thread_busy_us` was measured.
pub(super) const NETWORK_REMAINDER: &str = "network and wake-up";
/// The same if `ClientParts::thread_busy_us` was not measured.
pub(super) const NETWORK_AND_THREAD_REMAINDER: &str = "network, wake-up, client thread";

/// Whether a row is a remainder, so that no source measures it.
pub fn is_remainder(mechanism: &str) -> bool {
    matches!(mechanism, NETWORK_REMAINDER | NETWORK_AND_THREAD_REMAINDER)
}

/// Waiting of the load generator's threads for a CPU.
pub(super) const CLIENT_RUN_QUEUE: &str = "client run queue";
/// Waiting for a thread of the load generator that serves other clients.
pub(super) const CLIENT_THREAD_BUSY: &str = "client thread busy";
/// The rows of waiting for the load generator's threads.
pub(super) const CLIENT_WAITS: [&str; 2] = [CLIENT_RUN_QUEUE, CLIENT_THREAD_BUSY];

/// Whether a row is the wait of the load generator for a CPU.
pub fn is_client_run_queue(mechanism: &str) -> bool {
    mechanism == CLIENT_RUN_QUEUE
}

/// Whether a row explains its time. Time with an unknown reason, undivided on-CPU time and the
/// remainder of the wait for the client do not.
pub fn is_explained(part: Part, phase: &str, mechanism: &str) -> bool {
    match part {
        Part::Unexplained | Part::Running => false,
        Part::OnCpu => !phase.is_empty(),
        Part::Client => !is_remainder(mechanism),
        Part::RunQueue | Part::Blocked | Part::Between => true,
    }
}

/// The share of the response time in rows that explain it (see [`is_explained`]), without what is only possible; 1 if
/// there is no time. The time between transactions is no part of it.
pub fn explained_share(rows: &[Row]) -> f64 {
    let in_response = || rows.iter().filter(|row| row.part != Part::Between);
    let unknown_us: f64 = in_response().map(|row| row.us - row.known_us()).sum();
    let whole_us: f64 = in_response().map(|row| row.us).sum();
    if whole_us > 0.0 {
        1.0 - unknown_us / whole_us
    } else {
        1.0
    }
}

/// The sums of rows by [`Row::group`], longest first.
pub fn groups(rows: &[Row]) -> Vec<Row> {
    let mut groups: Vec<Row> = Vec::new();
    for row in rows {
        let same = |it: &&mut Row| it.part == row.part && it.mechanism == row.group();
        if let Some(group) = groups.iter_mut().find(same) {
            group.us += row.us;
            group.system_us += row.system_us;
            group.possible_us += row.possible_us;
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
