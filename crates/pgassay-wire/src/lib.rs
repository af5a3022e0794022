//! The PostgreSQL protocol without I/O: conninfo, start-up, authentication, queries, pipelines.
//!
//! Bytes that a caller read go in, [`Event`]s come out; calls such as [`Session::query`] put bytes
//! into an output buffer that the caller writes when and how it likes. Nothing here opens a file or
//! a socket, reads a clock (but for rustls, which looks whether a certificate is still valid) or
//! waits, so an event loop, a blocking tool and a test drive the same
//! code.
//!
//! # Map
//! - [`conninfo`]: where and as whom to connect, by libpq's conventions.
//! - [`Session`]: one connection as a state machine; the load engine's hot path. TLS is inside: its
//!   bytes come and go as others do.
//! - [`conninfo::Attempts`]: which server is tried next, and how, after one failed.
//! - [`Exchange`]: questions and answers over a stream that the caller opened, for set-up work.
//!
//! # Invariants
//! - Protocol 3.0 is spoken, as PostgreSQL 7.4 and everything later understands it.
//! - Whatever bytes arrive, the answer is an event or a [`WireError`], never a panic.
//! - Events do not depend on how the replies were cut into pieces (`tests/replies.rs`).
//! - In steady state, a reply costs no allocation: rows nobody asked for are walked by their length.
//! - No `Debug` or `Display` shows a password.
//! - A connection without TLS pays one untaken branch for it.
//!
//! # Sources
//! The manual's chapter "Frontend/Backend Protocol"; `src/interfaces/libpq/fe-protocol3.c`,
//! `fe-exec.c` and `fe-connect.c`. Encoding of rare messages and md5 come from the
//! `postgres-protocol` crate; its `Message::parse` takes 156 ns a reply where the walk here takes
//! about 7, which is why replies are read by hand.

mod authentication;
pub mod conninfo;
mod encode;
mod error;
mod exchange;
mod message;
mod password;
mod replies;
mod scram;
mod session;
mod starting;
mod tls;

pub use authentication::SaltCache;
pub use error::{ServerError, WireError};
pub use exchange::{Answer, Exchange, ExchangeError};
pub use message::{CopyDirection, Event, Notice, Row, RowDescription, TransactionStatus};
pub use password::Password;
pub use session::{BackendKey, Execution, Login, Session, TlsLogin};
pub use tls::{TlsError, TlsSettings};
