//! Callgrind's files, properties of the differences, and the schema.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod annotate;
mod properties;
mod schema;
