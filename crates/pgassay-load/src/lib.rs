//! The load engine: event loops, pacing and recorders.
//!
//! A [`Crew`] is a set of connected clients. [`Crew::run`] lets them run scripts for a [`Window`]
//! and returns a [`Measurement`]; it may be called any number of times on the same connections,
//! which are idle in between. The crew knows nothing of studies, and nothing else runs on its
//! threads.
//!
//! # How it works
//! Each thread owns some clients, one event loop (`driver`, on epoll or `io_uring`) and one recorder. A client is a
//! [`pgassay_wire::Session`] and a position in a script (`client`). As soon as a reply is complete
//! the next request is sent; there is no async runtime, and nothing is allocated or logged in
//! between. Clients of a thread are served in the order in which the kernel reports their replies.
//!
//! # Invariants
//! - The clients' time closes: in transactions, asleep and between them, it sums to clients times
//!   the window.
//! - A transaction is credited with the share of its duration in the window, so that a rate depends
//!   smoothly on durations (`recorder`, `timing`).
//! - Every wait is bounded: by the window, by [`Limits`], and by the stop flag within 50 ms.
//! - When [`Crew::run`] begins and when it returns without an error, the server has nothing to do
//!   for any client.
//! - The messages are those that libpq sends for pgbench, so that the server's cost is the same.
//!
//! # Sources
//! `threadRun`, `advanceConnectionState` and `readCommandResponse` in `src/bin/pgbench/pgbench.c`,
//! PostgreSQL 15 and 18. Where pgbench's way distorts what it measures (it prepares inside the
//! measured time, loses the gap between transactions, serves clients by index) this is another.
//!
//! # What costs nothing unless it is asked for
//! Pacing, retries, reconnecting, times of commands and an [`Observer`] of each transaction, who
//! may keep logs and figures of his own: see [`Conduct`]. So are starts that are spread
//! ([`Crew::spread_starts`]) and the account of what clients wait for their threads
//! ([`Crew::keep_account`]), which studies ask for and `pgassay bench` does not.

mod asking;
mod capture;
mod client;
mod clock;
mod command_times;
mod conduct;
mod config;
mod crew;
mod driver;
mod error;
mod measurement;
mod opening;
mod program;
mod reconnecting;
mod recorder;
mod redis;
mod socket;
mod timing;
mod worker;

pub use conduct::{
    Conduct, FailedTry, FailureKind, NoticeSink, Observer, ObserverMaker, OnAbort, Outcome,
    ShellSink, Transaction,
};
pub use config::{CrewConfig, DebugSink, IoChoice, Limits, RequestHook, WeightedScript, Window};
pub use crew::Crew;
pub use error::{AbortCause, LoadError, Place};
pub use hdrhistogram::Histogram;
pub use measurement::{
    ClientTime, CommandMeasurement, Instants, IoUsed, Measurement, Openings, Reconnecting,
    ScriptMeasurement, ThreadUsage, TimerLag,
};
pub use redis::{RedisCrew, RedisError};
pub use socket::endpoints;
pub use socket::raise_open_files;
pub use timing::Timing;
