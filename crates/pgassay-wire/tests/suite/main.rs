//! The protocol against scripted bytes, real servers, and psql.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod connecting;
mod conninfo;
mod failed_writes;
mod replies;
mod server;
mod targets;
mod tls;
