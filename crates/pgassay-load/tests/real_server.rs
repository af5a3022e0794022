//! Crews on a real server: all ways to send statements, errors, accounting, and its death,
//! on each of the drivers.

#![allow(
    clippy::duplicate_mod,
    reason = "the suite is there once for each driver"
)]

#[path = "suite/real_server.rs"]
mod on_epoll;
#[path = "suite/real_server.rs"]
mod on_uring;
