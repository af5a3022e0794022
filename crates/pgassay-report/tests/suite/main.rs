//! Reports on the terminal, as HTML and as JSON, and exports for other viewers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod activity;
mod comparisons;
mod contradictions;
mod exports;
mod findings;
mod fixture;
mod forged;
mod half_width;
mod html;
mod json;
mod outlook;
mod scalability;
mod statement_cpu;
mod terminal;
