//! Errors in the input of statistical functions.

use thiserror::Error;

/// Why no estimate is possible; each variant names the invalid input.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum StatsError {
    /// There are no pairs.
    #[error("no pairs to compare; run at least one pair of trials")]
    NoPairs,
    /// A ratio needs two positive, finite figures.
    #[error(
        "pair {index}: the ratio {variant} / {baseline} requires positive, finite figures on both sides"
    )]
    NotPositive {
        /// Index of the pair.
        index: usize,
        /// The baseline's figure.
        baseline: f64,
        /// The variant's figure.
        variant: f64,
    },
    /// A probability outside (0, 1).
    #[error("{name} is {value}; it must be between 0 and 1")]
    NotAProbability {
        /// Name of the parameter.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// A spread, width or effect that is negative, zero where it must not be, or not finite.
    #[error("{name} is {value}; it must be positive and finite")]
    NotAPositiveNumber {
        /// Name of the parameter.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// The first of two stages has fewer than two units.
    #[error("the first stage has {units} units; it needs at least 2")]
    FirstStage {
        /// Number of units in the first stage.
        units: usize,
    },
    /// Pairs beyond the last planned analysis of a comparison.
    #[error(
        "the comparison has {units} units and cannot take {more} more: its last analysis is after {cap}. \
         A longer comparison must be planned before its first trial"
    )]
    BeyondCap {
        /// Units so far.
        units: usize,
        /// Units to be added.
        more: usize,
        /// Units at the last analysis.
        cap: usize,
    },
    /// The tables of critical values end below this α.
    #[error("alpha is {alpha}; sequential comparisons have levels up to {alpha_max}")]
    AlphaAboveTable {
        /// The requested α.
        alpha: f64,
        /// The largest α of the tables.
        alpha_max: f64,
    },
    /// Too few numbers of clients for the Universal Scalability Law, or fewer than 3 repeated rounds.
    #[error(
        "numbers of clients: {loads}, measurements: {rounds}; the law needs at least 3 numbers of clients, and \
         3 more measurements than numbers of clients"
    )]
    TooFewLoads {
        /// Different numbers of clients.
        loads: usize,
        /// Rounds.
        rounds: usize,
    },
    /// The throughputs do not determine that of one client.
    #[error("the throughput of one client cannot be extrapolated; measure fewer clients, too")]
    NoScalabilityFit,
    /// A row of counts does not have one count for each trial.
    #[error("row {row} has {found} counts of variant {side}, but there are {expected} trials")]
    WrongLength {
        /// Index of the row.
        row: usize,
        /// `A` or `B`.
        side: char,
        /// Number of counts in the row.
        found: usize,
        /// Number of trials of this variant.
        expected: usize,
    },
    /// A trial whose totals give no cost per transaction.
    #[error(
        "trial {trial} of variant {side}: {transactions} transactions, {on_cpu_us} µs on CPU \
         and {samples} samples; all three must be positive"
    )]
    EmptyTrial {
        /// `A` or `B`.
        side: char,
        /// Index of the trial.
        trial: usize,
        /// Exact on-CPU time of the trial, µs.
        on_cpu_us: f64,
        /// Transactions of the trial.
        transactions: u64,
        /// Samples of the trial.
        samples: u64,
    },
    /// A row with more samples than its trial.
    #[error(
        "row {row}, trial {trial} of variant {side}: {count} samples, but the trial has only {samples}"
    )]
    TooManySamples {
        /// Index of the row.
        row: usize,
        /// `A` or `B`.
        side: char,
        /// Index of the trial.
        trial: usize,
        /// Samples of the row.
        count: u64,
        /// All samples of the trial.
        samples: u64,
    },
    /// The grouping does not assign an existing group to each row.
    #[error(
        "invalid grouping: {found} group indexes for {rows} rows, the largest {largest}, for {groups} groups"
    )]
    BadGrouping {
        /// Number of group indexes.
        found: usize,
        /// Number of rows in the table.
        rows: usize,
        /// Largest group index.
        largest: usize,
        /// Number of groups.
        groups: usize,
    },
}

/// Rejects values that are not strictly between 0 and 1.
pub(crate) fn check_probability(name: &'static str, value: f64) -> Result<(), StatsError> {
    if value > 0.0 && value < 1.0 {
        Ok(())
    } else {
        Err(StatsError::NotAProbability { name, value })
    }
}

/// Rejects values that are not positive and finite.
pub(crate) fn check_positive(name: &'static str, value: f64) -> Result<(), StatsError> {
    if value > 0.0 && value.is_finite() {
        Ok(())
    } else {
        Err(StatsError::NotAPositiveNumber { name, value })
    }
}
