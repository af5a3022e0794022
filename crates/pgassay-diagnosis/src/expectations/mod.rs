//! Evaluates a study's expectations and references on the figures of a run.
//!
//! [`pgassay_model::expression`] has the language that names figures, [`pgassay_record::expectation`]
//! the rule that decides.

mod blocks;
mod evaluate;
mod interval;

pub use evaluate::{Readings, read};
