//! Delays in the client thread, compared with the timestamps of a server's replies, on each driver.

#![allow(clippy::duplicate_mod, reason = "each driver runs the same suite")]

#[path = "suite/waiting.rs"]
mod on_epoll;
#[path = "suite/waiting.rs"]
mod on_uring;
