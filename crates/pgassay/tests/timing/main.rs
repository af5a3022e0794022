//! The timing tier: tests whose outcome depends on timing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod a_a;
mod findings;
mod injections;
mod ledgers;
mod live;
mod live_findings;
mod live_loads;
mod live_statements;
mod pipelines;
mod tail;
mod top;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_pgassay");
