//! How clients behave beyond running scripts back to back, and who is told of each transaction.
//!
//! Everything here is off by default, and then costs a test of a flag at most. The rules of
//! pacing, retries and aborts are pgbench's: `CSTATE_PREPARE_THROTTLE`, `doRetry`,
//! `CSTATE_FAILURE` and `CSTATE_ABORTED` in pgbench.c, 15 to 18; going on after any error came
//! after 18.

use std::sync::Arc;
use std::time::Duration;

use pgassay_script::Rng;
use pgassay_wire::ServerError;

use crate::config::DebugSink;
use crate::error::LoadError;

/// Runs the command line of `\shell` or, told to capture, of `\setshell`, and gives what it
/// printed on its first line. An error is pgbench's message without the program's name.
pub type ShellSink = Arc<dyn Fn(&[u8], bool) -> Result<Vec<u8>, &'static str> + Send + Sync>;

/// Is told a server's notice or warning.
pub type NoticeSink = Arc<dyn Fn(&ServerError) + Send + Sync>;

/// Makes a thread's observer, given the thread counted from 0 and its generator for sampling.
pub type ObserverMaker = Arc<dyn Fn(usize, Rng) -> Box<dyn Observer> + Send + Sync>;

/// How clients behave.
#[derive(Clone)]
pub struct Conduct {
    /// Transactions begin at the moments of a Poisson process with so many events per second over
    /// all clients, or as soon after as a client is free. Latency then counts from those moments.
    pub rate_per_s: Option<f64>,
    /// Longer than this is late: paced transactions that would begin this late are skipped, and
    /// failed ones that took this long are not tried again.
    pub latency_limit: Option<Duration>,
    /// How often a transaction is tried that ends in a serialization failure or a deadlock; 0 is
    /// without a bound but the latency limit and the end of the run.
    pub tries_max: u32,
    /// Whether a transaction that ends in any other error of SQL merely counts as failed.
    pub continues_on_error: bool,
    /// Whether each transaction has a connection of its own, opened for it.
    pub reconnects: bool,
    /// What the end of a client means to the others.
    pub on_abort: OnAbort,
    /// Whether each command is timed, and its failures and retries are counted.
    pub times_commands: bool,
    /// Runs `\shell` and `\setshell`, which are refused without it.
    pub shell: Option<ShellSink>,
    /// Where the server's notices are told.
    pub notices: Option<NoticeSink>,
    /// Where every step of every client is told.
    pub trace: Option<DebugSink>,
    /// Who is told of each transaction.
    pub observer: Option<ObserverMaker>,
}

impl Default for Conduct {
    fn default() -> Self {
        Self {
            rate_per_s: None,
            latency_limit: None,
            tries_max: 1,
            continues_on_error: false,
            reconnects: false,
            on_abort: OnAbort::EndRun,
            times_commands: false,
            shell: None,
            notices: None,
            trace: None,
            observer: None,
        }
    }
}

/// What the end of a client means to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnAbort {
    /// The run fails with the client's error.
    #[default]
    EndRun,
    /// The others go on; the measurement tells how many were lost.
    EndClient,
}

/// Why a transaction failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// SQLSTATE 40001.
    Serialization,
    /// SQLSTATE 40P01.
    Deadlock,
    /// Any other, where clients go on after errors.
    Other,
}

impl FailureKind {
    /// The kind of a server's error.
    pub fn of(error: &ServerError) -> Self {
        match error.sqlstate.as_str() {
            "40001" => Self::Serialization,
            "40P01" => Self::Deadlock,
            _ => Self::Other,
        }
    }

    /// Whether trying again may help.
    pub fn is_retriable(self) -> bool {
        self != Self::Other
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Done,
    /// It was due so long ago that it was not begun.
    Skipped,
    /// In an error.
    Failed(FailureKind),
}

/// A transaction that ended. Moments are ns of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    /// The client, counted from 0 over all threads.
    pub client: u32,
    /// Transactions of this client that ended before, skipped and failed ones included.
    pub ended_before: u64,
    /// The script, counted from 0.
    pub script: usize,
    /// How it ended.
    pub outcome: Outcome,
    /// When it was due; without pacing, when it began.
    pub scheduled_ns: u64,
    /// When it began.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// How often it was tried.
    pub tries: u32,
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
    /// What the server said.
    pub error: &'a ServerError,
    /// Which try it was, from 1.
    pub tries: u32,
    /// Whether there will be another.
    pub is_retried: bool,
    /// How long the transaction has taken so far, from when it was due.
    pub elapsed_ns: u64,
}

/// Who is told of a thread's transactions. It is called on the load's threads, between a reply and
/// the next request, so it had better be quick.
pub trait Observer: Send {
    /// A transaction ended or was skipped.
    fn transaction(&mut self, transaction: &Transaction);
    /// A try failed.
    fn failed_try(&mut self, failed: &FailedTry<'_>);
    /// A client cannot go on.
    fn aborted(&mut self, client: u32, error: &LoadError);
    /// The run is over.
    fn finished(&mut self) {}
}
