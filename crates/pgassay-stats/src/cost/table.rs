//! The input of a comparison of costs: exact totals, and the samples that apportion them.

/// Exact totals of one trial, and the number of samples that apportion them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrialTotals {
    /// Exact on-CPU time of the backends in the trial, µs.
    pub on_cpu_us: f64,
    /// Number of transactions in the trial.
    pub transactions: u64,
    /// All samples of the trial, including those of rows that are not in the table.
    pub samples: u64,
}

/// Samples of one row (function or subsystem) in each trial.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowCounts {
    /// Per trial of A, in the order of the trials.
    pub a: Vec<u64>,
    /// Per trial of B.
    pub b: Vec<u64>,
}

/// The input: totals and sample counts of two profiles. Rows can overlap (inclusive costs).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CostTable {
    /// Trials of A, the baseline; trial j is the neighbor of B's trial j.
    pub a: Vec<TrialTotals>,
    /// Trials of B.
    pub b: Vec<TrialTotals>,
    /// The rows; the caller keeps their names.
    pub rows: Vec<RowCounts>,
}
