//! The result of a run.
//!
//! Identities: `transactions` ≤ `transactions_total`, and the difference ended before or after the
//! window; with [`RunLength::Whole`](crate::RunLength::Whole), those that end after it belong to it.
//! `transactions` = Σ `clients` = Σ `scripts.transactions`. Client time adds up: in
//! transactions + asleep + between = clients × window.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::merging::{packed, packed_if_any};
use crate::thread_usage::ThreadUsage;

/// A thread that is busy or waits for a CPU this much of the time delays its clients.
const CLIENT_LIMITED_SHARE: f64 = 0.9;

/// The result of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// Timestamps of the run.
    pub instants: Instants,
    /// The actual length of the window.
    pub window_us: u64,
    /// Transactions that succeeded in the window.
    pub transactions: u64,
    /// Successful transactions, each counted by the share of its duration in the window. Use this
    /// for rates where single transactions matter. A duration runs from when the client started
    /// work on the transaction (including opening its own connection; under pacing, from its
    /// beginning, not its due time) until it ended. `transactions` counts as pgbench does.
    pub credited_transactions: f64,
    /// Transactions that succeeded from the beginning of the run to its end. The server is idle
    /// before and after, so this is the divisor for the server's CPU time.
    pub transactions_total: u64,
    /// Transactions that ended before the window.
    pub settle_transactions: u64,
    /// Transactions that failed in the window with a serialization failure or a deadlock.
    pub failed: u64,
    /// Transactions that failed from the beginning of the run to its end.
    pub failed_total: u64,
    /// How long failed transactions took, inside the window.
    pub failed_us: u64,
    /// Latency of the window's transactions in ns, to three digits.
    #[serde(with = "packed")]
    pub latency_ns: Histogram<u64>,
    /// Under pacing: the same, but measured from the beginning of each transaction, not its due
    /// time.
    #[serde(with = "packed_if_any")]
    pub since_begin_ns: Option<Histogram<u64>>,
    /// By script, in the configured order.
    pub scripts: Vec<ScriptMeasurement>,
    /// Transactions of each client that succeeded in the window; shows whether clients are served
    /// evenly.
    pub clients: Vec<u64>,
    /// How the clients spent their time in the window.
    pub time: ClientTime,
    /// What each client thread used, from the beginning of the run to its end.
    pub threads: Vec<ThreadUsage>,
    /// How late sleeping clients were woken.
    pub timer_lag: TimerLag,
    /// Whether the load generator was the bottleneck: one of its threads was busy, or waited for a
    /// CPU, for at least 90% of the run.
    pub client_limited: bool,
    /// Whether the stop flag ended the run early.
    pub interrupted: bool,
    /// Clients whose transaction had not ended when a stopped run gave up waiting.
    pub unfinished: u32,
    /// Clients that were aborted, if that does not end the run.
    pub aborted: u32,
    /// Due transactions that were skipped because they were already late.
    pub skipped: u64,
    /// Transactions that were due in a timed run but not begun before its end. If there are any,
    /// the rate exceeds the capacity, and latencies grow with the length of the run.
    pub unserved: u64,
    /// By script and command if commands are timed, otherwise empty.
    pub commands: Vec<Vec<CommandMeasurement>>,
    /// Opening and closing connections during the run, if each transaction has its own.
    pub reconnecting: Reconnecting,
    /// The phases of opening connections, if each transaction has its own.
    pub openings: Option<Openings>,
    /// The I/O interface that the load used.
    pub io: IoUsed,
}

/// The I/O interface that a load used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoUsed {
    /// `io_uring` if true, otherwise epoll.
    pub is_uring: bool,
    /// Why `io_uring` was not used, if it was requested.
    pub refusal: Option<String>,
}

impl IoUsed {
    /// Returns its name as in `--io`.
    pub fn name(&self) -> &'static str {
        if self.is_uring { "uring" } else { "epoll" }
    }
}

/// Times and errors of one command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandMeasurement {
    /// How often it was timed.
    pub timed: u64,
    /// The sum of these times.
    pub sum_ns: u64,
    /// The distribution of these times in ns, to three digits.
    #[serde(with = "packed")]
    pub latency_ns: Histogram<u64>,
    /// Errors in it that were followed by a retry of the transaction.
    pub retries: u64,
    /// Errors in it that ended the transaction.
    pub failures: u64,
}

impl Default for CommandMeasurement {
    fn default() -> Self {
        Self {
            timed: 0,
            sum_ns: 0,
            latency_ns: growing_histogram(),
            retries: 0,
            failures: 0,
        }
    }
}

impl CommandMeasurement {
    pub(crate) fn add(&mut self, elapsed_ns: u64) {
        record(&mut self.latency_ns, elapsed_ns);
        self.timed += 1;
        self.sum_ns += elapsed_ns;
    }

    /// Adds another measurement of the same command.
    ///
    /// # Panics
    /// Never: both histograms resize automatically.
    pub fn merge(&mut self, other: &Self) {
        self.latency_ns
            .add(&other.latency_ns)
            .expect("both histograms resize");
        self.timed += other.timed;
        self.sum_ns += other.sum_ns;
        self.retries += other.retries;
        self.failures += other.failures;
    }

    /// Returns the mean time, if the command was timed.
    pub fn mean_ms(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.sum_ns as f64 / self.timed as f64 / 1e6)
    }
}

/// Opening and closing connections during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconnecting {
    /// Connections opened.
    pub opened: u64,
    /// Time spent opening and closing them, over all clients.
    pub sum_us: u64,
}

/// The phases of opening a connection, in ns, to three digits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Openings {
    /// Until the system call has connected.
    #[serde(with = "packed")]
    pub connect_ns: Histogram<u64>,
    /// From then until the server is ready: it starts a backend, and the client signs in.
    #[serde(with = "packed")]
    pub authenticate_ns: Histogram<u64>,
    /// From then until the first request is answered, by a backend with empty caches.
    #[serde(with = "packed")]
    pub first_query_ns: Histogram<u64>,
}

impl Default for Openings {
    fn default() -> Self {
        Self {
            connect_ns: growing_histogram(),
            authenticate_ns: growing_histogram(),
            first_query_ns: growing_histogram(),
        }
    }
}

impl Openings {
    pub(crate) fn merge(&mut self, other: &Self) {
        for (sum, one) in [
            (&mut self.connect_ns, &other.connect_ns),
            (&mut self.authenticate_ns, &other.authenticate_ns),
            (&mut self.first_query_ns, &other.first_query_ns),
        ] {
            sum.add(one).expect("both histograms resize");
        }
    }
}

/// Creates a histogram in ns, to three digits, whose memory grows with its values, for places where
/// there are many of them.
fn growing_histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

/// Records a value in a resizing histogram; the crate's saturating method would not resize it.
pub(crate) fn record(histogram: &mut Histogram<u64>, value_ns: u64) {
    histogram
        .record(value_ns)
        .expect("a histogram of three digits can grow to hold any value");
}

/// Timestamps of a run, in ns of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instants {
    /// The clients begin.
    pub begin_ns: u64,
    /// The window begins.
    pub window_begin_ns: u64,
    /// The window ends; no transaction begins after this. Earlier than planned if the run was
    /// stopped, or if all clients were aborted.
    pub window_end_ns: u64,
    /// The last client has finished or was aborted. Not before the end of the window, unless the run is
    /// [`RunLength::Whole`](crate::RunLength::Whole): with pacing, its clients may have nothing left to do earlier.
    pub idle_ns: u64,
}

/// The results of one script.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScriptMeasurement {
    /// The script's name.
    pub name: String,
    /// The script's weight.
    pub weight: u64,
    /// Transactions that succeeded in the window.
    pub transactions: u64,
    /// Transactions that failed in the window.
    pub failed: u64,
    /// Latency of the window's transactions in ns, to three digits.
    #[serde(with = "packed")]
    pub latency_ns: Histogram<u64>,
}

/// How the clients spent their time in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientTime {
    /// In transactions, excluding `\sleep`.
    pub in_transaction_us: u64,
    /// In `\sleep`.
    pub asleep_us: u64,
    /// Between transactions.
    pub between_us: u64,
    /// A part of the time in transactions: a client had a reply to read, or a request to send, and its
    /// thread was on a CPU for other clients. `None` if not measured.
    pub thread_busy_us: Option<u64>,
    /// Another part of it: a client had a reply to read, or a request to send, and its thread waited for
    /// a CPU. `None` if not measured, or if the kernel does not report it.
    pub client_run_queue_us: Option<u64>,
    /// How much longer clients may have waited while their thread was on a CPU: when their replies
    /// arrived is unknown. An upper bound; it includes the kernel's receiving of replies that a wait
    /// found at once.
    pub possible_thread_busy_us: Option<u64>,
    /// The same while their thread waited for a CPU. Exact for replies that had arrived before that.
    pub possible_run_queue_us: Option<u64>,
}

/// How late sleeping clients were woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerLag {
    /// Number of wake-ups.
    pub wakeups: u64,
    /// The sum of their delays.
    pub sum_us: u64,
    /// The longest delay.
    pub max_us: u64,
}

impl Measurement {
    /// Returns transactions per second in the window.
    pub fn tps(&self) -> f64 {
        self.transactions as f64 / (self.window_us.max(1) as f64 / 1e6)
    }

    /// Returns the load generator's CPU time per transaction, over the whole run.
    pub fn client_cpu_us_per_transaction(&self) -> f64 {
        let cpu_us: u64 = self.threads.iter().map(|thread| thread.cpu_us).sum();
        cpu_us as f64 / self.transactions_total.max(1) as f64
    }
}

/// Whether any thread was the bottleneck.
pub(crate) fn is_client_limited(threads: &[ThreadUsage]) -> bool {
    threads
        .iter()
        .any(|thread| thread.demand() >= CLIENT_LIMITED_SHARE)
}
