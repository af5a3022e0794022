//! What a study says, what its plan is, and what its trials measured: the serialized nouns.
//!
//! [`study`] (what the user wrote, with the [`expression`]s of its expectations) → [`plan`] (servers,
//! points and trials, in order) → [`trial`], [`profile`] and [`statement`] (the measurements), and
//! [`detail`] (what a run saves of them as they come).
//!
//! Only the expansion of a study into its plan computes anything. Nothing here does I/O or reads a clock.

pub mod check;
pub mod counters;
pub mod cpu;
pub mod detail;
pub mod elapsed_time;
pub mod expression;
pub mod plan;
pub mod profile;
pub mod statement;
pub mod study;
pub mod transactions;
pub mod trial;
pub mod waits;
pub mod wording;
