//! Client pools on a real server: all query protocols, errors, accounting, and a server that dies,
//! on each driver.

#![allow(clippy::duplicate_mod, reason = "each driver runs the same suite")]

#[path = "suite/real_server.rs"]
mod on_epoll;
#[path = "suite/real_server.rs"]
mod on_uring;
