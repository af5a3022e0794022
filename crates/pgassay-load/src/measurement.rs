//! What a run measured.
//!
//! Counters: `transactions` ≤ `transactions_total`, and the difference ended before the window or
//! after it. `transactions` = Σ `clients` = Σ `scripts.transactions`. The clients' time closes:
//! in transactions + asleep + between = clients × window.

use hdrhistogram::Histogram;

/// A thread that is busy or kept waiting for a processor so much of the time delays its clients.
const CLIENT_LIMITED_SHARE: f64 = 0.9;

/// The result of one run.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Moments of the run.
    pub instants: Instants,
    /// The window's actual length.
    pub window_us: u64,
    /// Transactions that ended well in the window.
    pub transactions: u64,
    /// Transactions that ended well, by the share of their duration that lies in the window: what a
    /// rate is to be computed from where single transactions matter. A duration lasts from when the
    /// client turned to the transaction (opening its own connection included; under pacing, when it
    /// began rather than when it was due) until it ended. `transactions` counts as pgbench does.
    pub credited_transactions: f64,
    /// Transactions that ended well from the run's begin to its end, between which the server
    /// was idle before and after: what the server's processor time is to be divided by.
    pub transactions_total: u64,
    /// Transactions that ended before the window.
    pub settle_transactions: u64,
    /// Transactions that failed in the window, by a serialization failure or a deadlock.
    pub failed: u64,
    /// Transactions that failed from the run's begin to its end.
    pub failed_total: u64,
    /// Latency of the window's transactions, in ns, to three digits.
    pub latency_ns: Histogram<u64>,
    /// Under pacing: the same, but from when each transaction began rather than from when it was
    /// due.
    pub since_begin_ns: Option<Histogram<u64>>,
    /// By script, in the crew's order.
    pub scripts: Vec<ScriptMeasurement>,
    /// Transactions of each client that ended well in the window: are clients served alike?
    pub clients: Vec<u64>,
    /// Where the clients' time in the window went.
    pub time: ClientTime,
    /// What each of the load's own threads used, from the run's begin to its end.
    pub threads: Vec<ThreadUsage>,
    /// How late sleepers were woken.
    pub timer_lag: TimerLag,
    /// Whether the load itself was the bottleneck: one of its threads was busy, or waited for a
    /// processor, nine tenths of the run.
    pub client_limited: bool,
    /// Whether the stop flag ended the run early.
    pub interrupted: bool,
    /// Clients whose transaction had not ended when a stopped run gave up waiting.
    pub unfinished: u32,
    /// Clients that were lost on the way, where that does not end the run.
    pub aborted: u32,
    /// Due transactions that were not begun since they were late already.
    pub skipped: u64,
    /// Transactions that were due in a timed run but not begun before its end: with any, the load
    /// was beyond capacity, and its latencies grow with the run's length.
    pub unserved: u64,
    /// By script and command, where commands are timed; else empty.
    pub commands: Vec<Vec<CommandMeasurement>>,
    /// Opening and closing connections within the run, where each transaction has its own.
    pub reconnecting: Reconnecting,
    /// The parts of that, where each transaction has its own connection.
    pub openings: Option<Openings>,
    /// How the load talked to the kernel.
    pub io: IoUsed,
}

/// How the load talked to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoUsed {
    /// Whether it was `io_uring`; else it was epoll.
    pub is_uring: bool,
    /// Why `io_uring` was not used, where it was wanted.
    pub refusal: Option<String>,
}

impl IoUsed {
    /// Its name, as `--io` takes it.
    pub fn name(&self) -> &'static str {
        if self.is_uring { "uring" } else { "epoll" }
    }
}

/// What one command took.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandMeasurement {
    /// How often it was timed.
    pub timed: u64,
    /// All those times.
    pub sum_ns: u64,
    /// Each of those times, in ns, to three digits.
    pub latency_ns: Histogram<u64>,
    /// Errors in it after which the transaction was tried again.
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

    /// Adds what was measured elsewhere.
    ///
    /// # Panics
    /// Never: both histograms grow as they need.
    pub fn merge(&mut self, other: &Self) {
        self.latency_ns
            .add(&other.latency_ns)
            .expect("both grow as they need");
        self.timed += other.timed;
        self.sum_ns += other.sum_ns;
        self.retries += other.retries;
        self.failures += other.failures;
    }

    /// The mean time, if it was timed at all.
    pub fn mean_ms(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.sum_ns as f64 / self.timed as f64 / 1e6)
    }
}

/// Opening and closing connections within a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconnecting {
    /// Connections opened.
    pub opened: u64,
    /// Time spent on opening and closing them, over all clients.
    pub sum_us: u64,
}

/// What opening a connection consists of, in ns, to three digits.
#[derive(Clone, Debug)]
pub struct Openings {
    /// Until the system has connected.
    pub connect_ns: Histogram<u64>,
    /// From there until the server is ready: its process is started, and the client signed in.
    pub authenticate_ns: Histogram<u64>,
    /// From there until the first request is answered, by a server process with empty caches.
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
            sum.add(one).expect("both grow as they need");
        }
    }
}

/// A histogram in ns to three digits that takes as much memory as its values need: for what there
/// are many of.
fn growing_histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

/// Counts a value in a histogram that grows; the crate's saturating way would not let it.
pub(crate) fn record(histogram: &mut Histogram<u64>, value_ns: u64) {
    histogram
        .record(value_ns)
        .expect("a histogram of three digits can grow to hold any value");
}

/// Moments of a run, in ns of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instants {
    /// Clients begin.
    pub begin_ns: u64,
    /// The window begins.
    pub window_begin_ns: u64,
    /// The window ends; no transaction begins from here on.
    pub window_end_ns: u64,
    /// The last transaction has ended.
    pub idle_ns: u64,
}

/// What one script contributed.
#[derive(Clone, Debug)]
pub struct ScriptMeasurement {
    /// Its name.
    pub name: String,
    /// Its weight.
    pub weight: u64,
    /// Transactions that ended well in the window.
    pub transactions: u64,
    /// Transactions that failed in the window.
    pub failed: u64,
    /// Latency of the window's transactions, in ns, to three digits.
    pub latency_ns: Histogram<u64>,
}

/// Where the clients' time in the window went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientTime {
    /// In transactions, `\sleep` left out.
    pub in_transaction_us: u64,
    /// In `\sleep`.
    pub asleep_us: u64,
    /// Between transactions.
    pub between_us: u64,
    /// A part of the time in transactions: a reply was known to be there, and the thread served other
    /// clients before. None where it was not kept.
    pub turn_us: Option<u64>,
    /// Another part of it: a client was ready, and its thread waited for a processor. An upper
    /// bound, exact for replies that were there before the thread waited. None where it was not kept
    /// or the kernel does not tell.
    pub ready_run_queue_us: Option<u64>,
}

/// What one of the load's threads used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadUsage {
    /// How long it ran the load.
    pub elapsed_us: u64,
    /// Processor time, user and system.
    pub cpu_us: u64,
    /// Time ready to run without a processor; none where the kernel does not tell.
    pub run_queue_wait_us: Option<u64>,
}

impl ThreadUsage {
    /// The share of its time that it was busy, or would have been with a processor.
    pub fn demand(&self) -> f64 {
        let demand_us = self.cpu_us + self.run_queue_wait_us.unwrap_or(0);
        demand_us as f64 / self.elapsed_us.max(1) as f64
    }
}

/// How late sleepers were woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimerLag {
    /// How many were.
    pub wakeups: u64,
    /// All their delays.
    pub sum_us: u64,
    /// The longest delay.
    pub max_us: u64,
}

impl Measurement {
    /// Transactions per second of the window.
    pub fn tps(&self) -> f64 {
        self.transactions as f64 / (self.window_us.max(1) as f64 / 1e6)
    }

    /// Processor time of the load itself per transaction, over the whole run.
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
