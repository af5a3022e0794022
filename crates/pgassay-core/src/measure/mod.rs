//! Evaluates a study's expectations and references on the figures of a run.
//!
//! [`mod@expression`] has the language that names figures, [`CheckOutcome`] the rule that decides.

mod blocks;
mod evaluate;
mod explained;
mod expression;
mod interval;
mod outcome;
mod parse;

pub use evaluate::{Readings, read};
pub use explained::is_explained;
pub use outcome::{
    CheckOutcome, ExpectationOutcome, Reading, ReferenceFigure, ReferenceTable, WatchedFunction,
};
pub use parse::{ExpressionError, check_names};
