//! Client options beyond running scripts back to back, and observers of transactions.
//!
//! Everything here is off by default and then costs at most one flag test. Pacing, retries and
//! aborts follow pgbench (`CSTATE_PREPARE_THROTTLE`, `doRetry`, `CSTATE_FAILURE` and
//! `CSTATE_ABORTED` in pgbench.c, 15 to 18). pgbench added `--continue-on-error` after 18.

use std::sync::Arc;
use std::time::Duration;

use pgassay_script::Rng;
use pgassay_wire::ServerMessage;

use crate::config::DebugSink;
use crate::error::LoadError;

/// Runs the command line of `\shell`, or of `\setshell` if the flag is set, and returns its first
/// line of output. The error is pgbench's message without the program's name.
pub type ShellSink = Arc<dyn Fn(&[u8], bool) -> Result<Vec<u8>, &'static str> + Send + Sync>;

/// Receives the server's notices and warnings.
pub type NoticeSink = Arc<dyn Fn(&ServerMessage) + Send + Sync>;

/// Creates a thread's observer. Arguments: the thread's index, and a random generator for sampling.
pub type ObserverMaker = Arc<dyn Fn(usize, Rng) -> Box<dyn Observer> + Send + Sync>;

/// Client options.
#[derive(Clone)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "they are independent of each other"
)]
pub struct ClientOptions {
    /// Transactions per second over all clients, of all pools if the pool is a part. Transactions are due at the events of a Poisson
    /// process and begin then, or as soon as a client is free. Latency counts from the due time.
    pub rate_per_s: Option<f64>,
    /// Transactions slower than this count as late. A paced transaction that is already this late
    /// is skipped, and a failed transaction that has taken this long is not retried.
    pub latency_limit: Option<Duration>,
    /// Maximum tries of a transaction that fails with a serialization failure or a deadlock. 0
    /// means no limit other than the latency limit and the end of the run.
    pub tries_max: u32,
    /// Whether any other SQL error fails only the transaction and not the client.
    pub continues_on_error: bool,
    /// Whether each transaction opens a connection of its own.
    pub reconnects: bool,
    /// Ends the names of prepared statements. Behind a pooler, a client can get a connection on which another run has
    /// left statements: with equal names, it would execute those.
    pub statement_suffix: Option<u32>,
    /// Whether a client that has finished closes its connection at once, as pgbench's do: others may
    /// wait for what its session holds. The pool then has only one run.
    pub closes_finished: bool,
    /// What an aborted client does to the run.
    pub on_abort: OnAbort,
    /// Whether to time each command and to count its failures and retries.
    pub times_commands: bool,
    /// Runs `\shell` and `\setshell`; without it they are rejected.
    pub shell: Option<ShellSink>,
    /// Receives the server's notices.
    pub notices: Option<NoticeSink>,
    /// Receives a trace line for every step of every client.
    pub trace: Option<DebugSink>,
    /// Creates the observers of transactions.
    pub observer: Option<ObserverMaker>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            rate_per_s: None,
            latency_limit: None,
            tries_max: 1,
            continues_on_error: false,
            reconnects: false,
            statement_suffix: None,
            closes_finished: false,
            on_abort: OnAbort::EndRun,
            times_commands: false,
            shell: None,
            notices: None,
            trace: None,
            observer: None,
        }
    }
}

/// What an aborted client does to the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnAbort {
    /// The run fails with the client's error.
    #[default]
    EndRun,
    /// The other clients continue; the measurement counts the aborted clients.
    EndClient,
}

/// Why a transaction failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// SQLSTATE 40001.
    Serialization,
    /// SQLSTATE 40P01.
    Deadlock,
    /// Any other error, if clients continue after errors.
    Other,
}

impl FailureKind {
    /// Classifies a server error.
    pub fn of(error: &ServerMessage) -> Self {
        match error.sqlstate.as_str() {
            "40001" => Self::Serialization,
            "40P01" => Self::Deadlock,
            _ => Self::Other,
        }
    }

    /// Whether a retry may succeed.
    pub fn is_retriable(self) -> bool {
        self != Self::Other
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// It succeeded.
    Done,
    /// It was skipped because it was already late.
    Skipped,
    /// It failed.
    Failed(FailureKind),
}

/// A transaction that ended. Times are ns of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    /// The client, counted from 0 over all threads.
    pub client: u32,
    /// Transactions of this client that ended before it, including skipped and failed ones.
    pub ended_before: u64,
    /// The script, counted from 0.
    pub script: usize,
    /// How it ended.
    pub outcome: TransactionOutcome,
    /// When it was due; without pacing, when it began.
    pub scheduled_ns: u64,
    /// When it began.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Number of tries.
    pub tries: u32,
}

/// What happens to a transaction after a failed try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedTryFate {
    /// It is tried again.
    Retried,
    /// It counts as failed.
    Failed,
    /// It does not count: the time of the run is over.
    Dropped,
}

/// An error that ends a try of a transaction, but not its client.
#[derive(Debug)]
pub struct FailedTry<'a> {
    /// The client, counted from 0 over all threads.
    pub client: u32,
    /// The script, counted from 0.
    pub script: usize,
    /// The command, counted from 0.
    pub command: usize,
    /// The server's error.
    pub error: &'a ServerMessage,
    /// The number of the try, from 1.
    pub tries: u32,
    /// What happens to the transaction.
    pub fate: FailedTryFate,
    /// Time since the transaction was due.
    pub elapsed_ns: u64,
}

/// Observes a thread's transactions. The methods run on the load's threads, between a reply and the
/// next request, so they must be fast.
pub trait Observer: Send {
    /// The run begins, at this time in ns of `CLOCK_MONOTONIC`.
    fn begun(&mut self, _begin_ns: u64) {}
    /// A transaction ended or was skipped.
    fn transaction(&mut self, transaction: &Transaction);
    /// Whether each skipped transaction has to be reported, however many there are, and not only their number.
    fn wants_each_skipped(&self) -> bool {
        true
    }
    /// This many transactions were skipped at once, the first of which is this one.
    fn skipped(&mut self, first: &Transaction, count: u64) {
        for _ in 0..count {
            self.transaction(first);
        }
    }
    /// A try failed.
    fn failed_try(&mut self, failed: &FailedTry<'_>);
    /// A client was aborted.
    fn aborted(&mut self, client: u32, error: &LoadError);
    /// The run is over.
    fn finished(&mut self) {}
}
