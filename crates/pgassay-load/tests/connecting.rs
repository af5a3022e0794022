//! How crews connect: TLS and the way through several hosts, with scripted and with real servers,
//! on each of the drivers.

#![allow(
    clippy::duplicate_mod,
    reason = "the suite is there once for each driver"
)]

#[path = "suite/connecting.rs"]
mod on_epoll;
#[path = "suite/connecting.rs"]
mod on_uring;
