//! The statistics of a performance study: how pgassay decides whether B differs from A.
//!
//! Callers pass pairs of trials or sample counts and get estimates, intervals and verdicts.
//!
//! - [`pairs`]: the ratio B/A of neighboring trials with a t-interval and a rank check;
//! - [`unit`](mod@unit): the unit of analysis, pairs or server starts;
//! - [`family`]: the verdicts of all comparisons of a study, which share one error rate;
//! - [`verdict`]: faster, slower, equivalent or inconclusive, given an equivalence margin;
//! - [`power`]: the minimum detectable effect of a run;
//! - [`mean_difference`], [`welch`]: differences of means, for figures that can be 0;
//! - [`sequential`]: interim analyses after every block, for one comparison, a matrix or a gate; Stein's two
//!   stages;
//! - [`cost`]: the difference in each function's µs per transaction with its uncertainty;
//! - [`dispersion`]: the noise between trials beyond counting noise;
//! - [`scalability`]: throughput against the number of clients, its knee and its peak;
//! - [`multiplicity`]: corrections by Holm and by Benjamini and Hochberg;
//! - [`order`]: the order of trials, so that drift cancels; [`random`]: its generator.
//!
//! Invariants: no I/O, no clock, no global state; equal inputs give equal outputs on every machine,
//! including simulations, because all randomness comes from a seed. Intervals are over pairs or trials,
//! never over the seconds inside a trial: those are autocorrelated, and an interval over them covers the
//! truth only about half the time.

pub mod cost;
pub mod dispersion;
mod distribution;
mod error;
pub mod family;
mod means;
pub mod multiplicity;
pub mod order;
pub mod pairs;
pub mod power;
pub mod random;
pub mod rank;
#[cfg(test)]
mod sampling;
pub mod scalability;
pub mod sequential;
pub mod unit;
pub mod verdict;

pub use cost::{
    ChangeClass, Correction, Cost, CostChange, CostTable, GroupedDifference, ProfileDifference,
    RowCounts, RowDifference, TrialTotals, cost_difference, grouped_cost_difference,
};
pub use dispersion::Dispersion;
pub use distribution::share_interval;
pub use error::StatsError;
pub use family::{InconclusiveReason, Judged, judge};
pub use means::{Mean, mean_difference, standard_deviation, welch};
pub use order::{block_order, pairs_in_block};
pub use pairs::{
    Estimate, Interval, Pair, PairComparison, PairContext, compare, compare_in_context,
    lag_one_correlation,
};
pub use power::Detectable;
pub use rank::{RankAgreement, RankCheck};
pub use sequential::{
    AnalysisSchedule, InterimAnalysis, SequentialComparison, SequentialMatrix, SequentialPlan,
    SequentialVerdict,
};
pub use unit::UnitOfIndependence;
pub use verdict::{Direction, EquivalenceMargin, FigureVerdict};
