//! Roles of a server's processes, its sessions, and the sampler on programs that the tests start.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod processes;
mod roles;
mod sessions;
