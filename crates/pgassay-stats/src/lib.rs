//! Numbers in, plain structs out: how pgassay decides whether B differs from A.
//!
//! Purpose: the statistics of a performance study, and nothing else. A caller brings pairs of
//! trials or counts of samples and gets estimates, intervals and verdicts back.
//!
//! - [`pairs`]: the ratio B/A of neighbouring trials with a t-interval, checked by ranks;
//! - [`unit`]: what varies independently, pairs or starts of the servers;
//! - [`family`]: the verdicts of all comparisons of a study, which share one error rate;
//! - [`verdict`]: faster, slower, same or unresolved against an equivalence band;
//! - [`power`]: what a run can detect, before it is run;
//! - [`mean_difference`], [`welch`]: differences of means, for figures that may be 0;
//! - [`looks`]: planned sequential looks, and Stein's two stages;
//! - [`cost`]: the difference of each function's µs per transaction with its uncertainty;
//! - [`dispersion`]: the noise between trials that plain counting statistics do not see;
//! - [`multiplicity`]: Holm's and Benjamini and Hochberg's corrections;
//! - [`order`]: in which order trials run, so that drift cancels; [`random`]: its generator.
//!
//! Invariants: no I/O, no clock, no global state; equal inputs give equal outputs on every
//! machine, simulations included, because all randomness comes from a seed. An interval is
//! always one of pairs or of trials, never of the seconds inside a trial: those are
//! autocorrelated, and an interval over them covers the truth about half the time.

pub mod cost;
pub mod dispersion;
mod distribution;
mod error;
pub mod family;
pub mod looks;
mod means;
pub mod multiplicity;
pub mod order;
pub mod pairs;
pub mod power;
pub mod random;
pub mod rank;
#[cfg(test)]
mod sampling;
pub mod unit;
pub mod verdict;

pub use cost::{
    Change, Class, Correction, Cost, CostDifference, CostRow, CostTable, GroupedDifference,
    RowCounts, TrialTotals, cost_difference, grouped_cost_difference,
};
pub use dispersion::Dispersion;
pub use distribution::share_interval;
pub use error::StatsError;
pub use family::{Inconclusive, Judged, judge};
pub use looks::{Look, Looks, Step};
pub use means::{Mean, mean_difference, standard_deviation, welch};
pub use order::{block_order, pairs_in_block};
pub use pairs::{Background, Comparison, Estimate, Interval, Pair, compare, compare_within};
pub use power::Detectable;
pub use rank::{RankAgreement, RankCheck};
pub use unit::Unit;
pub use verdict::{Band, Direction, Verdict};
