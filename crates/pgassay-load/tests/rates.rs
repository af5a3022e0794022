//! Rates of few and regular transactions on a real server, on each of the drivers.

#![allow(
    clippy::duplicate_mod,
    reason = "the suite is there once for each driver"
)]

#[path = "suite/rates.rs"]
mod on_epoll;
#[path = "suite/rates.rs"]
mod on_uring;
