//! Configuration of a client pool, and the length of a run.

use std::sync::Arc;
use std::time::Duration;

use pgassay_script::{ParsedScript, QueryProtocol, ScriptValue, VariableNames, Variables};
use pgassay_wire::conninfo::Target;

use crate::client_options::ClientOptions;

/// Receives the output lines of a script's `debug()`.
pub type DebugSink = Arc<dyn Fn(&str) + Send + Sync>;

/// Called on the client's thread before each request, with the backend's process ID.
pub type RequestHook = Arc<dyn Fn(i32) + Send + Sync>;

/// The I/O interface of the load's threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum IoChoice {
    /// `io_uring` if it is available, otherwise epoll.
    Auto,
    /// epoll, which is always available.
    #[default]
    Epoll,
    /// `io_uring`, or an error that explains why it is unavailable.
    Uring,
}

/// A script and its weight.
#[derive(Clone, Debug)]
pub struct WeightedScript {
    /// The script.
    pub script: Arc<ParsedScript>,
    /// Its weight among all scripts. A script with weight 0 never runs.
    pub weight: u64,
}

/// The part of a run's clients that a pool has, if several processes share them. A run that is cut
/// between threads has the same client numbers and draws the same random numbers as one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPart {
    /// Clients of all pools.
    pub all_clients: u32,
    /// Threads of all pools.
    pub all_threads: u32,
    /// The number of this pool's first client.
    pub first_client: u32,
    /// The number of this pool's first thread.
    pub first_thread: u32,
}

/// Configuration of a client pool.
#[derive(Clone)]
pub struct ClientPoolConfig {
    /// The server, user and database.
    pub target: Target,
    /// Number of clients.
    pub clients: u32,
    /// Number of threads; at most one per client is started.
    pub threads: u32,
    /// The scripts; each transaction chooses one.
    pub scripts: Vec<WeightedScript>,
    /// The name table that the scripts' variables are interned in.
    pub names: Arc<VariableNames>,
    /// The query protocol.
    pub protocol: QueryProtocol,
    /// The random seed. The same seed, clients and threads draw the same numbers.
    pub seed: u64,
    /// The value of `:scale`, unless `variables` defines it.
    pub scale: i64,
    /// Variables and their values as text, as `-D` defines them.
    pub variables: Vec<(String, String)>,
    /// Receives the output of `debug()`; `None` discards it.
    pub debug: Option<DebugSink>,
    /// Time limits.
    pub limits: Limits,
    /// Pacing, retries and other client options.
    pub options: ClientOptions,
    /// The I/O interface of the threads.
    pub io: IoChoice,
    /// The pool's part of a run that several processes share; `None` if it has all clients.
    pub part: Option<PoolPart>,
}

impl ClientPoolConfig {
    /// Returns the pool's part of the run.
    pub(crate) fn part(&self) -> PoolPart {
        self.part.unwrap_or(PoolPart {
            all_clients: self.clients,
            all_threads: self.threads.min(self.clients),
            first_client: 0,
            first_thread: 0,
        })
    }

    /// Sets the variables that have the same value for all clients.
    pub(crate) fn define(&self, variables: &mut Variables) {
        variables.set(VariableNames::SCALE, ScriptValue::Int(self.scale));
        for (name, text) in &self.variables {
            // A variable that no script uses needs no slot.
            if let Some(slot) = self.names.slot(name.as_bytes()) {
                variables.set_text(slot, text.as_bytes());
            }
        }
    }

    /// Creates a configuration of one client on one thread with one script.
    pub fn new(target: Target, script: Arc<ParsedScript>, names: Arc<VariableNames>) -> Self {
        Self {
            target,
            clients: 1,
            threads: 1,
            scripts: vec![WeightedScript { script, weight: 1 }],
            names,
            protocol: QueryProtocol::Simple,
            seed: 0,
            scale: 1,
            variables: Vec::new(),
            debug: None,
            limits: Limits::default(),
            options: ClientOptions::default(),
            io: IoChoice::default(),
            part: None,
        }
    }
}

/// Limits on waiting for the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Until a connection is open and its statements are prepared. A shorter `connect_timeout` of
    /// the target takes precedence.
    pub connect: Duration,
    /// Until a reply is complete. After this, the run fails with [`crate::LoadError::Unanswered`].
    pub reply: Duration,
    /// After the stop flag is set, until running transactions end. Transactions that take longer
    /// are abandoned, and the client pool cannot be used again.
    pub stop: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_mins(1),
            reply: Duration::from_mins(10),
            stop: Duration::from_secs(1),
        }
    }
}

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunLength {
    /// By time. The load runs without a break through settling and measuring; transactions that end
    /// in the measured part count.
    Timed {
        /// The settling time before the measurement.
        settle: Duration,
        /// The measured time.
        measure: Duration,
    },
    /// By time, counted as pgbench counts: no transaction begins after it, and all of them are
    /// measured, also those that end later. A stall at the end then shows.
    Whole {
        /// The time in which transactions begin.
        duration: Duration,
    },
    /// By count: each client runs this many transactions, and all of them are measured.
    Counted {
        /// Transactions per client, including failed ones.
        transactions_per_client: u64,
    },
}
