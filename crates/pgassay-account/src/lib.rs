//! Where time goes and what differs: numbers that add up, and their checks.
//!
//! Trials and profiles → [`ledger`] (where a transaction's time goes) and [`counters`] → [`comparison`]
//! (what differs between variants, with intervals and verdicts). [`instructions`] compares exact counts
//! instead of times; [`scalability`] fits throughput against the number of clients; [`calibration`] measures how
//! often verdicts are wrong.
//!
//! Nothing here does I/O or reads a clock.

pub mod calibration;
pub mod comparison;
pub mod cost_row;
pub mod counters;
#[cfg(test)]
mod fixture;
pub mod instructions;
pub mod ledger;
pub mod scalability;
mod scaling_limit;
pub mod sustained_rate;
