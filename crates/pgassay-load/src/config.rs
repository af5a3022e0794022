//! What a crew is made of, and how long it runs.

use std::sync::Arc;
use std::time::Duration;

use pgassay_script::{Names, Protocol, Script};
use pgassay_wire::conninfo::Target;

use crate::conduct::Conduct;

/// Where the lines of a script's `debug()` go.
pub type DebugSink = Arc<dyn Fn(&str) + Send + Sync>;

/// Is called on the client's thread before each request, with the server's process.
pub type RequestHook = Arc<dyn Fn(i32) + Send + Sync>;

/// How a load's threads talk to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// `io_uring` where the kernel lets us, else epoll.
    Auto,
    /// epoll, which is everywhere.
    #[default]
    Epoll,
    /// `io_uring`, or an error that says why not.
    Uring,
}

/// A script and how often it is chosen.
#[derive(Clone, Debug)]
pub struct WeightedScript {
    /// The script.
    pub script: Arc<Script>,
    /// Its weight among all scripts; one with weight 0 is never run.
    pub weight: u64,
}

/// A crew: clients, and what they run.
#[derive(Clone)]
pub struct CrewConfig {
    /// Where and as whom to connect.
    pub target: Target,
    /// How many clients.
    pub clients: u32,
    /// How many threads share them; no more than there are clients are started.
    pub threads: u32,
    /// The scripts, of which each transaction chooses one.
    pub scripts: Vec<WeightedScript>,
    /// The table that the scripts' variables were interned in.
    pub names: Arc<Names>,
    /// How statements are sent.
    pub protocol: Protocol,
    /// The seed of all random numbers; the same seed, clients and threads draw the same.
    pub seed: u64,
    /// `:scale`, unless `variables` define it.
    pub scale: i64,
    /// Variables and their texts, as `-D` defines them.
    pub variables: Vec<(String, String)>,
    /// Where `debug()` goes; nowhere if not set.
    pub debug: Option<DebugSink>,
    /// Bounds of waits.
    pub limits: Limits,
    /// Pacing, retries and the like.
    pub conduct: Conduct,
    /// How threads talk to the kernel.
    pub io: IoChoice,
}

impl CrewConfig {
    /// One client and one thread with one script.
    pub fn new(target: Target, script: Arc<Script>, names: Arc<Names>) -> Self {
        Self {
            target,
            clients: 1,
            threads: 1,
            scripts: vec![WeightedScript { script, weight: 1 }],
            names,
            protocol: Protocol::Simple,
            seed: 0,
            scale: 1,
            variables: Vec::new(),
            debug: None,
            limits: Limits::default(),
            conduct: Conduct::default(),
            io: IoChoice::default(),
        }
    }
}

/// Bounds of waits that the server is responsible for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Until a connection is open and its statements are prepared; the target's
    /// `connect_timeout` comes first where it is set.
    pub connect: Duration,
    /// Until a request is answered. Past it, the run fails with [`crate::LoadError::Unanswered`].
    pub reply: Duration,
    /// After the stop flag, until running transactions end; what still runs then is left alone,
    /// and the crew is of no use any longer.
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

/// How long a crew runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// By time. Load runs without a break through both parts; transactions that end in the second
    /// are measured.
    Timed {
        /// The part before.
        settle: Duration,
        /// The part that is measured.
        measure: Duration,
    },
    /// By count: each client runs so many transactions, and all of them are measured.
    Counted {
        /// Transactions of each client, failed ones included.
        transactions_per_client: u64,
    },
}
