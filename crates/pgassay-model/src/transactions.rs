//! How backends spent their time during the transactions of profiled trials, and during the longest ones.
//!
//! A transaction is seen from its client: from its start there until the client has the result. The
//! backend's state is known only within the slices in which context switches were observed, so these
//! times are parts of the transactions' duration. Blocked times are stored with their stacks
//! ([`crate::profile::BlockedStack`]).
//!
//! Identity, in nanoseconds: `covered = on_cpu + run_queue + unseen + Σ blocked`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The transactions that ended in the windows of a point's profiled trials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Transactions {
    /// All transactions.
    pub all: TransactionTimes,
    /// Transactions that took longer than their trial's p99.
    pub tail: TransactionTimes,
    /// The p99 of each trial, in nanoseconds.
    pub p99_ns: Vec<u64>,
    /// Total length of the trials' windows, in nanoseconds.
    pub window_ns: u64,
    /// Of which within slices.
    pub slices_ns: u64,
    /// Transactions not included because the buffer was full.
    pub dropped: u64,
}

/// A set of transactions, and their time within slices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TransactionTimes {
    /// Number of transactions.
    pub transactions: u64,
    /// Sum of their latencies, in nanoseconds.
    pub latency_ns: u64,
    /// Number of transactions that overlap slices.
    pub covered: u64,
    /// Their time within slices, in nanoseconds.
    pub covered_ns: u64,
    /// Of which on a CPU.
    pub on_cpu_ns: u64,
    /// Of which in a run queue.
    pub run_queue_ns: u64,
    /// Of which in an unknown state.
    pub unknown_state_ns: u64,
}

impl Transactions {
    /// Adds the transactions of another trial.
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
        self.unknown_state_ns += other.unknown_state_ns;
    }

    /// Mean latency in microseconds; 0 without transactions.
    pub fn mean_us(&self) -> f64 {
        self.latency_ns as f64 / self.transactions.max(1) as f64 / 1e3
    }

    /// Extrapolates a time within slices to a whole transaction, in microseconds: its share of the time
    /// within slices, times the mean latency.
    pub fn per_transaction_us(&self, within_slices_ns: u64) -> f64 {
        within_slices_ns as f64 / self.covered_ns.max(1) as f64 * self.mean_us()
    }
}
