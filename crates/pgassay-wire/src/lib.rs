//! The PostgreSQL protocol without I/O: conninfo, start-up, authentication, queries, pipelines.
//!
//! The caller passes in received bytes and gets [`Event`]s; calls such as [`Session::query`] append
//! to an output buffer that the caller writes whenever it wants. This crate opens no files or
//! sockets, reads no clock (except rustls, to check whether a certificate is still valid) and never
//! waits, so an event loop, a blocking tool and a test use the same code.
//!
//! # Overview
//! - [`conninfo`]: connection parameters, by libpq's conventions.
//! - [`Session`]: one connection as a state machine; the load engine's hot path. It includes TLS,
//!   which is transparent to the caller.
//! - [`conninfo::Attempts`]: which server to try next, and how, after a failed attempt.
//! - [`Exchange`]: synchronous queries over a stream that the caller opened, for set-up work.
//!
//! # Invariants
//! - It uses protocol 3.0, which PostgreSQL 7.4 and later support.
//! - Any received bytes produce an event or a [`WireError`], never a panic.
//! - Events do not depend on how the replies are split into pieces (`tests/suite/replies.rs`).
//! - In steady state, a reply causes no allocation: rows that the caller does not need are skipped
//!   by their length.
//! - `Debug` and `Display` never show a password.
//! - Without TLS, a connection pays one untaken branch for it.
//!
//! # Sources
//! The manual's chapter "Frontend/Backend Protocol"; `src/interfaces/libpq/fe-protocol3.c`,
//! `fe-exec.c` and `fe-connect.c`. The `postgres-protocol` crate provides md5 and the encoding of
//! rare messages. Its `Message::parse` takes 156 ns per reply; the parser here takes about 7 ns.

mod authentication;
mod backend_key;
mod cancel;
pub mod conninfo;
mod encode;
mod error;
mod exchange;
mod expected;
mod limits;
mod login;
mod message;
mod password;
mod replies;
mod salt_cache;
mod scram;
mod session;
mod starting;
mod tls;

pub use backend_key::BackendKey;
pub use cancel::cancel;
pub use error::{ServerMessage, WireError};
pub use exchange::{Exchange, ExchangeError, QueryResult};
pub use login::{Login, TlsLogin};
pub use message::{CopyDirection, DataRow, Event, Notice, RowDescription, TransactionStatus};
pub use password::Password;
pub use salt_cache::SaltCache;
pub use session::{Execution, Session};
pub use tls::{TlsError, TlsSettings};
