//! The load of a run: clients of PostgreSQL, clients of Redis, or fake ones.

mod engine;
mod postgres;
mod redis;
pub mod same_settings;
pub mod scripts;
pub mod session_settings;
mod statements;
mod undefined_settings;
mod warm_up;

pub use engine::EngineDriver;
pub use postgres::{connect_pool, describe_load_error};
pub use statements::Statements;
pub use warm_up::warm_up;

use std::time::Duration;

use anyhow::Result;
use pgassay_load::{Limits, LoadError, Measurement, RunLength, TextRow};
use pgassay_model::plan::Point;

use crate::host::DataLocation;
use crate::observe::TransactionRecorder;
use crate::run_context::RunContext;

/// The clients that a point needs.
#[derive(Clone, Copy)]
pub struct ClientsOrder<'a> {
    /// The point whose scripts they run.
    pub point: &'a Point,
    /// Connections.
    pub clients: u32,
    /// Threads of the load generator.
    pub threads: u32,
    /// How long they wait for the server.
    pub limits: Limits,
    /// Seed of their random numbers.
    pub seed: u64,
    /// Where the point's data are.
    pub location: DataLocation<'a>,
}

/// What drives the load: opens the clients of a point.
pub trait LoadDriver {
    /// Connects a point's clients, which then wait.
    fn connect(
        &self,
        order: &ClientsOrder<'_>,
        context: &RunContext<'_>,
    ) -> Result<Box<dyn Clients>>;
}

/// The connected clients of a point. They are idle except during [`Clients::run`].
pub trait Clients {
    /// Runs the point's scripts for a time.
    ///
    /// # Errors
    /// [`crate::Interrupted`] if the user requested a stop; otherwise with the line of the study.
    fn run(
        &mut self,
        length: &RunLength,
        point: &Point,
        context: &RunContext<'_>,
    ) -> Result<Measurement>;

    /// Keeps the server from ending the connections while they wait for their next trial, until [`Clients::wake`]:
    /// `idle_session_timeout` may be shorter than that, and is as set only during trials.
    ///
    /// # Errors
    /// A lost connection.
    fn rest(&mut self) -> Result<(), LoadError> {
        Ok(())
    }

    /// Undoes [`Clients::rest`].
    ///
    /// # Errors
    /// A lost connection.
    fn wake(&mut self) -> Result<(), LoadError> {
        Ok(())
    }

    /// Spreads the clients' start times over this duration in later runs.
    fn spread_starts(&mut self, spread: Duration, seed: u64);

    /// Executes a statement on each connection and returns the number of connections.
    fn broadcast(&mut self, sql: &str) -> Result<u32, LoadError>;

    /// Executes a query on one connection and returns its rows; none if the clients are not PostgreSQL's, or if
    /// the server reports an error.
    fn query_first(&mut self, sql: &str) -> Result<Vec<TextRow>, LoadError>;

    /// Turns timing of single statements on or off, if transactions have more than one.
    fn time_statements(&mut self, is_wanted: bool);

    /// Starts recording transactions; `None` if that is not possible.
    fn record_transactions(&mut self) -> Option<TransactionRecorder>;

    /// Stops recording transactions, so that later runs have no overhead.
    fn stop_recording(&mut self);

    /// The PIDs of their PostgreSQL backends, as the server numbers them.
    fn backend_pids(&self) -> Vec<i32>;

    /// The PIDs of the processes that serve them, as the server numbers them.
    fn server_pids(&self) -> Vec<u32>;

    /// Whether they are clients of PostgreSQL, so that a ledger is possible.
    fn are_of_postgres(&self) -> bool;
}
