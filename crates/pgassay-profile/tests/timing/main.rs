//! The timing tier: samples of busy servers, compared with exact totals and with perf.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod against_perf;
mod load;
mod off_cpu;
mod servers;
