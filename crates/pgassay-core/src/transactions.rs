//! What backends did within the transactions of profiled trials, and within the longest of them.
//!
//! A transaction is its client's: it lasts from when the client began until it had its answer. What
//! the backend did is known within the slices in which context switches were observed, so these
//! times are parts of the transactions' whole time; the blocked ones stand beside their stacks
//! ([`crate::profile::BlockedStack`]).
//!
//! Identity, in nanoseconds: `covered = on_cpu + run_queue + unseen + Σ blocked`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The transactions that ended in the windows of a point's profiled trials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Transactions {
    /// All of them.
    pub all: TransactionTimes,
    /// Those that took longer than their trial's p99.
    pub tail: TransactionTimes,
    /// The p99 of each trial, in nanoseconds.
    pub p99_ns: Vec<u64>,
    /// The trials' windows, in nanoseconds.
    pub window_ns: u64,
    /// Of them: within slices.
    pub slices_ns: u64,
    /// Transactions that were not kept for want of room, and so are not among these.
    pub dropped: u64,
}

/// Some transactions, and their time within slices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TransactionTimes {
    /// How many.
    pub transactions: u64,
    /// Their latencies, summed, in nanoseconds.
    pub latency_ns: u64,
    /// Those that lay in slices, in part at least.
    pub covered: u64,
    /// Time of theirs within slices, in nanoseconds.
    pub covered_ns: u64,
    /// Of it: on a CPU.
    pub on_cpu_ns: u64,
    /// Runnable without a CPU.
    pub run_queue_ns: u64,
    /// Nothing says in which state.
    pub unseen_ns: u64,
}

impl Transactions {
    /// Adds another trial's.
    pub fn add(&mut self, other: &Self) {
        self.all.add(&other.all);
        self.tail.add(&other.tail);
        self.p99_ns.extend(&other.p99_ns);
        self.window_ns += other.window_ns;
        self.slices_ns += other.slices_ns;
        self.dropped += other.dropped;
    }
}

impl TransactionTimes {
    fn add(&mut self, other: &Self) {
        self.transactions += other.transactions;
        self.latency_ns += other.latency_ns;
        self.covered += other.covered;
        self.covered_ns += other.covered_ns;
        self.on_cpu_ns += other.on_cpu_ns;
        self.run_queue_ns += other.run_queue_ns;
        self.unseen_ns += other.unseen_ns;
    }

    /// Their mean latency, in microseconds; 0 without any.
    pub fn mean_us(&self) -> f64 {
        self.latency_ns as f64 / self.transactions.max(1) as f64 / 1e3
    }

    /// What a time within slices is of the whole of a transaction, in microseconds: its share of
    /// the time within slices, times the mean latency.
    pub fn per_transaction_us(&self, within_slices_ns: u64) -> f64 {
        within_slices_ns as f64 / self.covered_ns.max(1) as f64 * self.mean_us()
    }
}
