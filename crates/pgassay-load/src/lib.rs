//! The load engine: event loops, pacing and recorders.
//!
//! A [`ClientPool`] is a set of connected clients. [`ClientPool::run`] runs their scripts for a [`RunLength`] and
//! returns a [`Measurement`]. It can be called repeatedly on the same connections, which are idle
//! between runs. This crate knows nothing about studies, and nothing else runs on the client
//! threads.
//!
//! # How it works
//! Each thread owns some clients, one event loop (`driver`, on epoll or `io_uring`) and one
//! recorder. A client is a [`pgassay_wire::Session`] and a position in a script (`client`). As soon
//! as a reply is complete, the next request is sent. There is no async runtime, and nothing is
//! allocated or logged between reply and request. A thread serves its clients in the order in which
//! the kernel reports their replies.
//!
//! # Invariants
//! - Client time adds up: time in transactions, asleep and between transactions equals clients ×
//!   window.
//! - A transaction is credited with the share of its duration that lies in the window, so that a
//!   rate depends smoothly on durations (`recorder`, `timing`).
//! - Every wait is bounded: by the window, by [`Limits`], and by the stop flag within 50 ms.
//! - When [`ClientPool::run`] begins and when it returns without an error, the server has no work for any
//!   client.
//! - Requests are the same messages that libpq sends for pgbench, so that they cost the server the
//!   same.
//!
//! # Sources
//! `threadRun`, `advanceConnectionState` and `readCommandResponse` in `src/bin/pgbench/pgbench.c`,
//! PostgreSQL 15 and 18. This crate differs where pgbench distorts what it measures: pgbench
//! prepares statements inside the measured time, loses the gap between transactions, and serves
//! clients by index.
//!
//! # Optional features
//!
//! Pacing, retries, reconnecting, command times and an [`Observer`] of each transaction, which may
//! keep logs and statistics of its own, cost nothing unless they are enabled: see [`ClientOptions`]. The
//! same holds for spread starts ([`ClientPool::spread_starts`]) and the account of delays in the client
//! threads ([`ClientPool::keep_account`]), which studies use and `pgassay bench` does not.

mod broadcast;
mod capture;
mod client;
mod client_options;
mod client_pool;
mod clock;
mod command_times;
mod config;
mod driver;
mod error;
mod measurement;
mod merging;
mod opening;
mod prefetch;
mod program;
mod reconnecting;
mod recorder;
mod redis;
mod socket;
mod thread_usage;
mod timing;
mod worker;

pub use broadcast::TextRow;
pub use client_options::{
    ClientOptions, FailedTry, FailedTryFate, FailureKind, NoticeSink, Observer, ObserverMaker,
    OnAbort, ShellSink, Transaction, TransactionOutcome,
};
pub use client_pool::{BusyBackend, ClientPool, files_needed};
pub use clock::monotonic_ns;
pub use config::{
    ClientPoolConfig, DebugSink, IoChoice, Limits, PoolPart, RequestHook, RunLength, WeightedScript,
};
pub use error::{AbortCause, LoadError, ScriptLocation};
pub use hdrhistogram::Histogram;
pub use measurement::{
    ClientTime, CommandMeasurement, Instants, IoUsed, Measurement, Openings, Reconnecting,
    ScriptMeasurement, TimerLag,
};
pub use redis::{RedisClientPool, RedisError};
pub use socket::{endpoints, set_keepalive};
pub use socket::{open_files_with, raise_open_files};
pub use thread_usage::ThreadUsage;
pub use timing::Timing;
