//! The data types of a performance study, their serialized forms, and the pure functions between them.
//!
//! Data flows in one direction through this crate:
//!
//! [`study`] (what the user wrote) → [`plan`] (servers, points and trials, in order) →
//! [`trial`] and [`profile`] (the measurements) → [`ledger`] (where the time went) →
//! [`comparison`] (what differs) → [`finding`] (known causes) → [`measure`] (expectations and
//! references of the study) → [`run`] (all of it, as stored and reported).
//!
//! [`observation`] is separate: a single observation of a running server, without a study.
//!
//! Nothing here does I/O or reads a clock.

pub mod calibration;
pub mod check;
pub mod comparison;
pub mod cost_row;
pub mod counters;
pub mod cpu;
pub mod finding;
#[cfg(test)]
mod fixture;
pub mod instructions;
pub mod ledger;
pub mod measure;
pub mod observation;
pub mod plan;
pub mod profile;
pub mod run;
pub mod statement;
pub mod study;
pub mod subsystem;
pub mod transactions;
pub mod trial;
pub mod waits;
