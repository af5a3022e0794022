//! The nouns of a performance study, their serialised forms, and the pure functions between them.
//!
//! Data flows one way through this crate, a module a step:
//!
//! [`study`] (what the user wrote) → [`plan`] (every server, point and trial, in order) →
//! [`trial`] and [`profile`] (what was measured) → [`ledger`] (where the time went) →
//! [`comparison`] (what differs) → [`measure`] (what the study says of it) →
//! [`run`] (all of it, as kept and reported).
//!
//! Beside that way stands [`observation`]: one look at a server that runs without us.
//!
//! Nothing here does I/O or reads a clock; everything is a value that can be tested.

pub mod calibration;
pub mod comparison;
pub mod counters;
pub mod finding;
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
