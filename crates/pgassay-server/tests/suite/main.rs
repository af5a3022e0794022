//! Real servers: finding, downloading, starting, and what is left when they or their owner end.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod attacks;
mod common;
mod counters;
mod disks;
mod fetching;
mod kills;
mod lifetimes;
mod logs;
mod named_dirs;
mod security_document;
mod servers;
