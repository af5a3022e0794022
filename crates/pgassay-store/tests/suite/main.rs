//! Results on real file systems: saved while they are measured, continued, found, listed and refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fixture;
mod limits;
mod reopen;
mod replaced;
mod store;
mod writer;
