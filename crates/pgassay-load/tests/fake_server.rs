//! A scripted server behind a unix socket, for what a real one seldom does,
//! on each of the drivers.

#![allow(
    clippy::duplicate_mod,
    reason = "the suite is there once for each driver"
)]

#[path = "suite/fake_server.rs"]
mod on_epoll;
#[path = "suite/fake_server.rs"]
mod on_uring;
