//! The connected clients of a point.

use std::time::Duration;

use anyhow::{Result, anyhow};
use pgassay_core::plan::Point;
use pgassay_core::study::StudySource;
use pgassay_load::{
    ClientOptions, ClientPool, ClientPoolConfig, IoChoice, Limits, LoadError, Measurement,
    RedisClientPool, RedisError, RunLength,
};
use pgassay_wire::conninfo::Target;

use super::scripts::{self, Scripts};
use super::servers::DataLocation;
use super::transactions::TransactionRecorder;
use crate::exit::Interrupted;
use crate::interrupt::Interrupt;
use crate::study_errors::at_line;

/// Size of a client pool, and the seed of its random numbers.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Connections.
    pub clients: u32,
    /// Threads of the load generator.
    pub threads: u32,
    pub seed: u64,
}

/// The connected clients of a point.
pub enum Clients {
    Postgres(Box<ClientPool>),
    /// With the PID of the Redis server if pgassay started it.
    Redis(Box<RedisClientPool>, Option<u32>),
}

impl Clients {
    /// Runs the clients for a window.
    pub fn run(
        &mut self,
        window: &RunLength,
        source: &StudySource,
        point: &Point,
    ) -> Result<Measurement> {
        match self {
            Self::Postgres(pool) => pool
                .run(window)
                .map_err(|error| describe_load_error(error, source, point)),
            Self::Redis(pool, _) => pool.run(window).map_err(|error| match error {
                RedisError::Stopped => Interrupted.into(),
                other => anyhow!(other),
            }),
        }
    }

    /// Spreads the clients' start times over this duration in later runs.
    pub fn spread_starts(&mut self, spread: Duration, seed: u64) {
        match self {
            Self::Postgres(pool) => pool.spread_starts(spread, seed),
            Self::Redis(pool, _) => pool.spread_starts(spread, seed),
        }
    }

    /// Executes a statement on each connection, as [`ClientPool::broadcast`]. Returns the number of connections.
    pub fn broadcast(&mut self, sql: &str) -> Result<u32, LoadError> {
        match self {
            Self::Postgres(pool) => pool.broadcast(sql),
            Self::Redis(..) => Ok(0),
        }
    }

    /// Turns timing of single statements on or off; has no effect if transactions have only one.
    pub fn time_statements(&mut self, is_wanted: bool) {
        if let Self::Postgres(pool) = self {
            pool.time_commands(is_wanted && pool.statements_max() > 1);
        }
    }

    /// Starts recording transactions; `None` for Redis.
    pub fn keep_transactions(&mut self) -> Option<TransactionRecorder> {
        match self {
            Self::Postgres(pool) => Some(TransactionRecorder::start(pool)),
            Self::Redis(..) => None,
        }
    }

    /// Stops recording transactions, so that later runs have no overhead.
    pub fn forget_transactions(&mut self) {
        if let Self::Postgres(pool) = self {
            pool.observe(|_| None);
        }
    }

    /// The PIDs of their backends; empty for Redis.
    pub fn backend_pids(&self) -> Vec<i32> {
        match self {
            Self::Postgres(pool) => pool.backend_pids(),
            Self::Redis(..) => Vec::new(),
        }
    }

    /// The PIDs of the processes that serve them.
    pub fn server_pids(&self) -> Vec<u32> {
        match self {
            Self::Postgres(pool) => {
                let pids = pool.backend_pids().into_iter();
                pids.map(i32::cast_unsigned).collect()
            }
            Self::Redis(_, pid) => pid.iter().copied().collect(),
        }
    }

    /// Whether they are clients of PostgreSQL, so that a ledger is possible.
    pub fn are_of_postgres(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }
}

/// Connects a point's clients to their server.
pub fn connect(
    point: &Point,
    size: Size,
    place: &DataLocation<'_>,
    source: &StudySource,
    interrupt: &Interrupt,
) -> Result<ClientPool> {
    let Scripts {
        weighted,
        names,
        notes: _,
    } = scripts::parse(point, source)?;
    let config = ClientPoolConfig {
        target: target(place, point)?,
        clients: size.clients,
        threads: size.threads,
        scripts: weighted,
        names,
        protocol: scripts::protocol(point.protocol),
        seed: size.seed,
        scale: point.scale,
        variables: Vec::new(),
        debug: None,
        limits: Limits::default(),
        options: ClientOptions {
            reconnects: point.reconnects,
            ..ClientOptions::default()
        },
        // The same on all machines, to keep their results comparable.
        io: IoChoice::Epoll,
    };
    let mut pool = ClientPool::connect(&config, interrupt.flag())
        .map_err(|error| describe_load_error(error, source, point))?;
    pool.keep_account(true);
    Ok(pool)
}

/// Converts a load error: Ctrl-C becomes [`Interrupted`], script errors get their line in the study.
pub fn describe_load_error(error: LoadError, source: &StudySource, point: &Point) -> anyhow::Error {
    match error {
        LoadError::Stopped => Interrupted.into(),
        LoadError::Aborted { ref place, .. } => {
            let script = point
                .scripts
                .get(place.script_index)
                .map_or(0, |script| script.index);
            let path = ["script", &script.to_string(), "text"];
            at_line(
                source,
                &path,
                place.line.max(1) as usize,
                &error.to_string(),
            )
        }
        other => anyhow!(other),
    }
}

fn target(place: &DataLocation<'_>, point: &Point) -> Result<Target> {
    let mut target = place
        .host
        .target(place.database, point.network, place.address)?;
    let session = point.session.iter();
    let session = session.map(|(name, value)| (name.clone(), value.clone()));
    target.settings.extend(session);
    Ok(target)
}
