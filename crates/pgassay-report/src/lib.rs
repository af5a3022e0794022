//! Renders results: terminal, HTML, JSON, and the formats of other profilers.
//!
//! Every function takes a [`Run`](pgassay_record::run::Run), or an
//! [`Observation`](pgassay_record::observation::Observation) of a live server, and returns text. It does no I/O,
//! reads no clock and computes no statistics: everything a report states was determined when the run
//! was assessed.

pub mod activity;
mod benchstat;
mod calibration;
mod comparisons;
mod consistency;
mod evidence;
mod expectations;
mod export;
mod failures;
pub mod gate;
mod half_width;
mod html;
mod instructions;
mod json;
mod ledger;
mod limitations;
mod number;
mod outline;
mod outlook;
mod plans;
mod price;
mod printable;
mod reliability;
mod scalability;
mod sentence;
mod statement;
mod step_cause;
mod tail;
mod terminal;
mod time_measured;

pub use benchstat::benchstat;
pub use calibration::{false_positives, identical_variants};
pub use comparisons::{comparisons_csv, comparisons_markdown};
pub use export::{ExportFormat, ExportedStacks, export, export_instruction_counts};
pub use html::{html, instruction_counts_html, observation_html, scalability_html};
pub use json::{
    baseline_schema, json, observation_json, observation_schema, run_schema, scalability_json,
    scalability_schema, study_schema,
};
pub use printable::printable;
pub use reliability::is_of_question;
pub use terminal::{Style, observation_text, scalability_text, terminal};
