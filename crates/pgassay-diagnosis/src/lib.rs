//! What explains a run: known causes of lost time, what to do about them, and whether the study's
//! [`expectations`] are met.
//!
//! A [`Signature`] is a pure function of the [`Evidence`] of one point (one variant under one
//! condition) or of a live server. It weighs one known cause of lost time in µs per transaction and
//! returns the evidence for it, the evidence against it, and a suggested fix. A [`Finding`] is a
//! signature that matched a point, or one whose weight changed between two points.
//!
//! Confidence follows one rule, not the judgment of a signature's author:
//! - [`Confidence::Confirmed`]: its suggested fix was run ([`remedy_trial`](fn@remedy_trial), or a variant that
//!   differs in nothing else), throughput rose, and the cause shrank with an interval that excludes 0. Only an
//!   experiment proves a cause.
//! - [`Confidence::Correlated`]: two variants differ in this cause with an interval that excludes 0, the
//!   verdict is clear and in the same direction, and the cause accounts for a good part of the
//!   difference. That is a correlation: a queue grows with the service time that it waits for.
//! - [`Confidence::Likely`]: at least two independent sources measured it (stacks, waits, counters,
//!   clocks), and there is no evidence against it. A version, a protocol or a setting measures
//!   nothing, nor does a fact that is shown for context.
//! - [`Confidence::Hint`]: one source only, a single block, fewer than half of the blocks, or there is evidence
//!   against it. Fewer than five readings of wait events are no source.
//!
//! Findings for operators of a live server (`operators`) name an object and the statement that fixes it.
//! Their confidence follows the same rule, except that a state which the server itself reports, such as
//! an invalid index or a blocked session, needs no second source.
//!
//! Among findings of equal confidence at one point, service time ranks above queueing ([`Finding::queueing`]), unless
//! it is a small part of the queue and the queue does not follow from it.
//!
//! Invariants: every finding has a fact that can be checked in the report; a figure that was not
//! measured matches nothing.
//!
//! [`Confidence::Confirmed`]: pgassay_record::finding::Confidence::Confirmed
//! [`Confidence::Correlated`]: pgassay_record::finding::Confidence::Correlated
//! [`Confidence::Likely`]: pgassay_record::finding::Confidence::Likely
//! [`Confidence::Hint`]: pgassay_record::finding::Confidence::Hint
//! [`Finding`]: pgassay_record::finding::Finding
//! [`Finding::queueing`]: pgassay_record::finding::Finding::queueing

#[cfg(test)]
mod advice_regressions;
#[cfg(test)]
mod confidence_regressions;
mod diagnosis;
mod evaluation;
mod evidence;
pub mod expectations;
#[cfg(test)]
mod lookalikes;
mod measured_fixes;
mod operators;
#[cfg(test)]
mod regressions;
mod remedy_trial;
mod setting_size;
mod side;
mod signatures;
mod stacks;
mod stalled;
mod write_waits;

pub use diagnosis::{confirm, diagnose, diagnose_observation};
pub use evaluation::{Evaluation, Signature};
pub use evidence::Evidence;
pub use operators::diagnose_activity;
pub use remedy_trial::{RemedyTrial, remedy_trial};
pub use signatures::signatures;
