//! What can be wrong with the numbers that a caller brings.

use thiserror::Error;

/// Why no estimate could be made; each variant names the offending input.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum StatsError {
    /// There is nothing to compare.
    #[error("no pairs to compare: run at least one pair of trials")]
    NoPairs,
    /// A ratio needs two positive, finite figures.
    #[error("pair {index}: the ratio {variant} / {baseline} needs two positive, finite figures")]
    NotPositive {
        /// Position of the pair, from 0.
        index: usize,
        /// The baseline's figure.
        baseline: f64,
        /// The variant's figure.
        variant: f64,
    },
    /// A probability outside of (0, 1).
    #[error("{name} is {value}, but must lie between 0 and 1")]
    NotAProbability {
        /// Which parameter.
        name: &'static str,
        /// What it was.
        value: f64,
    },
    /// A spread, width or effect that is negative, zero where it must not be, or not finite.
    #[error("{name} is {value}, but must be positive and finite")]
    NotAPositiveNumber {
        /// Which parameter.
        name: &'static str,
        /// What it was.
        value: f64,
    },
    /// Looks must come in growing order, each with at least two pairs.
    #[error("look {index} after {pairs} pairs: looks need at least 2 pairs and must grow")]
    BadLook {
        /// Position of the look, from 0.
        index: usize,
        /// Its number of pairs.
        pairs: usize,
    },
    /// A row of counts does not have one count for each trial.
    #[error("row {row} has {found} counts of variant {side}, but there are {expected} trials")]
    WrongLength {
        /// Position of the row, from 0.
        row: usize,
        /// `A` or `B`.
        side: char,
        /// Counts in the row.
        found: usize,
        /// Trials of this variant.
        expected: usize,
    },
    /// A trial whose totals cannot carry a cost per transaction.
    #[error(
        "trial {trial} of variant {side}: {transactions} transactions, {on_cpu_us} µs on CPU \
         and {samples} samples; all three must be positive"
    )]
    EmptyTrial {
        /// `A` or `B`.
        side: char,
        /// Position of the trial, from 0.
        trial: usize,
        /// Exact on-CPU time of the trial, µs.
        on_cpu_us: f64,
        /// Transactions of the trial.
        transactions: u64,
        /// Samples of the trial.
        samples: u64,
    },
    /// A row claims more samples than its trial has.
    #[error("row {row}, trial {trial} of variant {side}: {count} samples out of {samples}")]
    TooManySamples {
        /// Position of the row, from 0.
        row: usize,
        /// `A` or `B`.
        side: char,
        /// Position of the trial, from 0.
        trial: usize,
        /// The row's samples.
        count: u64,
        /// All samples of the trial.
        samples: u64,
    },
    /// The grouping does not name an existing group for each row.
    #[error("{found} group numbers for {rows} rows, the largest {largest} of {groups} groups")]
    BadGrouping {
        /// Group numbers given.
        found: usize,
        /// Rows of the table.
        rows: usize,
        /// Largest group number given.
        largest: usize,
        /// Number of groups.
        groups: usize,
    },
}

/// Refuses what is not strictly between 0 and 1.
pub(crate) fn check_probability(name: &'static str, value: f64) -> Result<(), StatsError> {
    if value > 0.0 && value < 1.0 {
        Ok(())
    } else {
        Err(StatsError::NotAProbability { name, value })
    }
}

/// Refuses what is not positive and finite.
pub(crate) fn check_positive(name: &'static str, value: f64) -> Result<(), StatsError> {
    if value > 0.0 && value.is_finite() {
        Ok(())
    } else {
        Err(StatsError::NotAPositiveNumber { name, value })
    }
}
