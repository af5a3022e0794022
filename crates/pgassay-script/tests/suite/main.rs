//! Scripts, expressions and SQL files: by example, by property, and against the real pgbench.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod differential;
mod expressions;
mod grammar;
mod properties;
mod real_pgbench;
mod refusals;
mod scripts;
mod splitter;
