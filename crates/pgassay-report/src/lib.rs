//! Shows results: terminal, HTML, JSON.
//!
//! Every function here takes a [`Run`](pgassay_core::run::Run) and returns text. Nothing is read,
//! written or printed, no clock is looked at and no statistics are computed: what a report says
//! was decided when the run was assessed.

mod html;
mod json;
mod number;
mod outline;
mod sentence;
mod terminal;

pub use html::html;
pub use json::{json, run_schema, study_schema};
pub use terminal::{Style, terminal};
