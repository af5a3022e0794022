//! How client pools connect: TLS and multiple hosts, with scripted and real servers, on each
//! driver.

#![allow(clippy::duplicate_mod, reason = "each driver runs the same suite")]

#[path = "suite/connecting.rs"]
mod on_epoll;
#[path = "suite/connecting.rs"]
mod on_uring;
