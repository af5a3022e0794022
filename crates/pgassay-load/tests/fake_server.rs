//! A scripted server on a Unix socket, for behavior that a real server rarely shows, on each
//! driver.

#![allow(clippy::duplicate_mod, reason = "each driver runs the same suite")]

#[path = "suite/fake_server.rs"]
mod on_epoll;
#[path = "suite/fake_server.rs"]
mod on_uring;
