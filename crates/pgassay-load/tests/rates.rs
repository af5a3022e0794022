//! Rates with few, regular transactions on a real server, on each driver.

#![allow(clippy::duplicate_mod, reason = "each driver runs the same suite")]

#[path = "suite/rates.rs"]
mod on_epoll;
#[path = "suite/rates.rs"]
mod on_uring;
