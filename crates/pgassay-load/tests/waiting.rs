//! What clients wait for their own thread, held against a server that stamps its replies, on each of
//! the drivers.

#![allow(
    clippy::duplicate_mod,
    reason = "the suite is there once for each driver"
)]

#[path = "suite/waiting.rs"]
mod on_epoll;
#[path = "suite/waiting.rs"]
mod on_uring;
