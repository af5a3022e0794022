//! Sequential comparisons: verdicts as soon as the pairs allow, with an error rate that stays what it is.
//!
//! "Stop at the first p < 0.05" finds a difference between equal builds in 29% of runs. Here an interim analysis
//! follows every block, and all of them together are wrong in at most 5%: critical values from a spending
//! function make one interval valid at all analyses, so any number of questions may be asked of it.
//!
//! - [`AnalysisSchedule`]: when analyses take place, and how large |t| must be (`boundary.rs`, `table.rs`);
//! - [`SequentialComparison`]: a running comparison with its interval, sequential p-value and verdict;
//! - [`Outlook`]: whether going on is futile, and how many pairs it would take;
//! - [`SequentialMatrix`]: several comparisons with one error rate, and which gets the next block;
//! - [`GateRule`]: regression, pass or inconclusive, given a limit;
//! - [`Prospect`], [`GateProspect`], [`DecidableEffects`]: what can be decided, before the run;
//! - [`PrecisionComparison`]: an interval of a wanted half-width, in two stages.
//!
//! The loop of one comparison:
//!
//! ```
//! use pgassay_stats::sequential::{
//!     AnalysisSchedule, Outlook, SequentialComparison, SequentialPlan, SequentialVerdict,
//! };
//! use pgassay_stats::{Direction, Pair};
//! # let mut latencies = [(10.1, 9.7), (10.3, 9.8), (10.0, 9.6), (10.2, 9.8)].into_iter().cycle();
//! # let mut run_block = || {
//! #     [0, 1].map(|_| latencies.next().map(|(a, b)| Pair { baseline: a, variant: b }).unwrap())
//! # };
//!
//! let plan = SequentialPlan::new(AnalysisSchedule::Pairs, Direction::LowerIsBetter);
//! let mut comparison = SequentialComparison::new(plan)?;
//! while !comparison.is_finished() {
//!     let block = run_block(); // Two pairs, AB and BA.
//!     if let Some(analysis) = comparison.push(&block)? {
//!         println!("{} pairs: {:?}, p {}", analysis.pairs, analysis.narrowed, analysis.p_value);
//!     }
//!     if Outlook::of(&comparison).is_some_and(|it| it.is_futile()) {
//!         break;
//!     }
//! }
//! assert!(matches!(comparison.verdict(), SequentialVerdict::Faster { .. }));
//! # Ok::<(), pgassay_stats::StatsError>(())
//! ```
//!
//! The loop of a study asks its matrix for the next block:
//!
//! ```
//! # use pgassay_stats::sequential::{AnalysisSchedule, SequentialMatrix, SequentialPlan};
//! # use pgassay_stats::{Direction, Pair, random::SplitMix64};
//! # let plan = SequentialPlan::new(AnalysisSchedule::Pairs, Direction::HigherIsBetter);
//! # let (plans, mut stream) = (vec![plan; 3], SplitMix64::new(1));
//! # let mut run_block = |comparison: usize| {
//! #     let effect = 0.1 * comparison as f64;
//! #     [0, 1].map(|_| Pair {
//! #         baseline: 1.0,
//! #         variant: (effect + 0.01 * stream.next_normal()).exp(),
//! #     })
//! # };
//! let mut matrix = SequentialMatrix::new(&plans, 0.05)?;
//! while let Some(next) = matrix.next_block() {
//!     let cell = matrix.push(next.comparison, &run_block(next.comparison))?;
//!     println!("{}: {:?} {:?}", next.comparison, cell.verdict, cell.interval);
//!     if matrix.outlook(next.comparison).is_some_and(|it| it.is_futile()) {
//!         matrix.give_up(next.comparison);
//!     }
//! }
//! assert!(matrix.cells().iter().all(|cell| cell.verdict.is_conclusive()));
//! # Ok::<(), pgassay_stats::StatsError>(())
//! ```
//!
//! Invariants: the plan is fixed before the first trial; stopping anywhere (time, budget, Ctrl-C) leaves the
//! interval valid; no ordinary t-interval or p-value is shown for such a comparison, because after such stopping
//! they would cover the truth in 91 to 95%.

mod boundary;
mod comparison;
mod futility;
mod gate;
mod matrix;
mod path;
mod power;
mod precision;
mod table;
mod verdict;

pub use boundary::{AnalysisSchedule, CriticalValues, FAMILY_ALPHA_MAX, SequentialP};
pub use comparison::{InterimAnalysis, SequentialComparison, SequentialPlan};
pub use futility::{FUTILE_BELOW, Outlook};
pub use gate::{GateAnswer, GateRule};
pub use matrix::{MatrixCell, NextBlock, SequentialMatrix};
pub use power::{DecidableEffects, GateProspect, Prospect};
pub use precision::{PrecisionComparison, PrecisionEstimate, PrecisionPlan};
pub use verdict::SequentialVerdict;

#[cfg(test)]
mod tests;
