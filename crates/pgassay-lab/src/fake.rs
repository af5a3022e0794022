//! Fake servers, load and observers: they record what a run does, in which order, and fail on demand.
//!
//! For tests of the order of trials, of schedulers, and of programs that embed the laboratory. Nothing
//! here measures anything: every run of the load reports the same number of transactions.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use hdrhistogram::Histogram;
use pgassay_load::{
    ClientTime, Instants, IoUsed, LoadError, Measurement, Reconnecting, RunLength, TextRow,
    TimerLag,
};
use pgassay_model::plan::{Plan, Point, ServerPlan};
use pgassay_model::study::Network;
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_profile::LiveServer;
use pgassay_record::run::{ServerFacts, Warning};
use pgassay_server::{BuildFacts, ConnectionError, CounterReader, Pid, ServerProcesses};
use pgassay_wire::ExchangeError;
use pgassay_wire::conninfo::Target;

use crate::equipment::Equipment;
use crate::host::{Host, Servers, SqlConnection};
use crate::interrupt::{Interrupt, Interrupted};
use crate::load::{Clients, ClientsOrder, LoadDriver};
use crate::observe::{TransactionRecorder, TrialObserver, TrialWatch, WatchDecision, WatchedTrial};
use crate::raw_results::RawResults;
use crate::run_context::RunContext;

/// How long every transaction of a fake client takes, if nothing else is asked for.
const TRANSACTION: Duration = Duration::from_micros(10);

/// What goes wrong at one entry of the journal.
#[derive(Debug, Clone)]
pub enum FakeFault {
    /// The servers die: this step and every later one on them fails.
    Death,
    /// This step fails with a timeout; the servers stay.
    Timeout,
    /// The user requests a stop during this step, which succeeds.
    Stop(Interrupt),
    /// The process is suspended and continued during this step, which succeeds.
    Suspension(Interrupt),
}

/// Records the steps of a run, in order.
#[derive(Debug, Clone, Default)]
pub struct Journal(Arc<Mutex<JournalState>>);

#[derive(Debug, Default)]
struct JournalState {
    entries: Vec<String>,
    fault: Option<(usize, FakeFault)>,
    is_dead: bool,
    is_closed: bool,
}

impl Journal {
    /// A journal with a fault at one of its entries, counted from 0.
    pub fn with_fault(at: usize, fault: FakeFault) -> Self {
        let journal = Self::default();
        journal.state().fault = Some((at, fault));
        journal
    }

    /// A journal that records nothing, for runs whose entries would take more memory than their trials.
    pub fn closed() -> Self {
        let journal = Self::default();
        journal.state().is_closed = true;
        journal
    }

    /// The entries so far.
    pub fn entries(&self) -> Vec<String> {
        self.state().entries.clone()
    }

    fn state(&self) -> MutexGuard<'_, JournalState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a step that cannot fail, such as the end of something.
    fn record(&self, entry: String) {
        let mut state = self.state();
        if !state.is_closed {
            state.entries.push(entry);
        }
    }

    /// Records a step, and fails if a fault is due.
    fn step(&self, entry: String) -> io::Result<()> {
        let mut state = self.state();
        let number = state.entries.len();
        if !state.is_closed {
            state.entries.push(entry);
        }
        match state.fault.clone().filter(|(at, _)| *at == number) {
            Some((_, FakeFault::Death)) => state.is_dead = true,
            Some((_, FakeFault::Timeout)) => return Err(io::ErrorKind::TimedOut.into()),
            Some((_, FakeFault::Stop(interrupt))) => {
                let flag = interrupt.flag();
                flag.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            Some((_, FakeFault::Suspension(interrupt))) => {
                let flag = interrupt.continued_flag();
                flag.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            None => {}
        }
        if state.is_dead {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }
}

/// Fake servers, load and observer that share a journal.
#[derive(Debug, Clone, Default)]
pub struct FakeEquipment {
    /// What they did.
    pub journal: Journal,
    /// Whether there are hardware counters.
    pub has_hardware_counters: bool,
    /// The names of the statistics that every trial reads.
    pub statistics: Vec<String>,
    /// How long every transaction takes; 10 µs if not given.
    pub transaction: Option<Duration>,
    /// Whether no transaction ends in the first window of each trial.
    pub stalls: bool,
    started: usize,
}

impl FakeEquipment {
    /// Equipment that records in this journal.
    pub fn recording(journal: &Journal) -> Self {
        Self {
            journal: journal.clone(),
            ..Self::default()
        }
    }
}

impl Equipment for FakeEquipment {
    fn start(
        &mut self,
        _: &ServerPlan,
        _: &RunContext<'_>,
    ) -> Result<(Box<dyn Host>, Vec<Warning>)> {
        let number = self.started;
        self.started += 1;
        self.journal.step(format!("start server {number}"))?;
        let host = FakeHost {
            number,
            journal: self.journal.clone(),
            build: BuildFacts::default(),
        };
        Ok((Box::new(host), Vec::new()))
    }

    fn driver(&mut self, plan: &Plan) -> Result<Box<dyn LoadDriver>> {
        Ok(Box::new(FakeDriver {
            journal: self.journal.clone(),
            variants: plan.variants.clone(),
            transaction: self.transaction.unwrap_or(TRANSACTION),
            stalls: self.stalls,
        }))
    }

    fn observers<'a>(
        &self,
        plan: &'a Plan,
        _: &'a Servers,
        _: &mut Vec<Warning>,
    ) -> Result<Vec<Box<dyn TrialObserver + 'a>>> {
        self.journal.step("open observer".to_owned())?;
        Ok(vec![Box::new(FakeObserver {
            journal: self.journal.clone(),
            variants: &plan.variants,
            has_hardware_counters: self.has_hardware_counters,
            statistics: self.statistics.clone(),
        })])
    }
}

/// A server that records what is asked of it. It stops when it is dropped.
struct FakeHost {
    number: usize,
    journal: Journal,
    build: BuildFacts,
}

impl Drop for FakeHost {
    fn drop(&mut self) {
        self.journal.record(format!("stop server {}", self.number));
    }
}

impl Host for FakeHost {
    fn name(&self) -> String {
        format!("fake server {}", self.number)
    }

    fn make_database(&mut self, planned: &str) -> Result<String> {
        let entry = format!("server {}: create {planned}", self.number);
        self.journal.step(entry)?;
        Ok(planned.to_owned())
    }

    fn connect(&self, _: &str) -> Result<Box<dyn SqlConnection>> {
        Ok(Box::new(FakeConnection {
            number: self.number,
            journal: self.journal.clone(),
        }))
    }

    fn target(&self, _: &str, _: Network, _: Option<SocketAddr>) -> Result<Target> {
        bail!("a fake server accepts no connections")
    }

    fn tcp_address(&self) -> Option<SocketAddr> {
        None
    }

    fn database(&self) -> &'static str {
        "postgres"
    }

    fn build(&self) -> &BuildFacts {
        &self.build
    }

    fn facts(&self) -> ServerFacts {
        ServerFacts {
            version: "18.0".to_owned(),
            origin: "fake".to_owned(),
            configure: String::new(),
            cflags: String::new(),
            compiler: String::new(),
            executable: None,
            settings: BTreeMap::default(),
        }
    }

    fn live(&self) -> Result<Option<LiveServer>> {
        Ok(None)
    }

    fn own_pids(&self) -> Vec<u32> {
        Vec::new()
    }

    fn counters(&self, _: &[String]) -> Result<CounterReader> {
        bail!("a fake server has no statistics")
    }

    fn kernel_sources<'a>(&self, _: &'a [Pid]) -> Option<ServerProcesses<'a>> {
        None
    }

    fn trim_log(&self) -> Result<()> {
        Ok(())
    }

    fn log_tail(&self) -> Option<String> {
        None
    }

    fn is_alive(&self) -> Result<()> {
        if self.journal.state().is_dead {
            bail!("server {} died", self.number);
        }
        Ok(())
    }

    fn is_alive_for(&self, _: Duration) -> Result<()> {
        self.is_alive()
    }

    fn restart(&mut self) -> Result<()> {
        Ok(self
            .journal
            .step(format!("restart server {}", self.number))?)
    }

    fn stop(self: Box<Self>) -> Result<Vec<Warning>> {
        self.is_alive()?;
        Ok(Vec::new())
    }
}

struct FakeConnection {
    number: usize,
    journal: Journal,
}

impl SqlConnection for FakeConnection {
    fn execute(&mut self, sql: &str) -> Result<(), ConnectionError> {
        let entry = format!("server {}: {}", self.number, sql.trim());
        let step = self.journal.step(entry);
        step.map_err(|error| ConnectionError::Broken(ExchangeError::Stream(error)))
    }

    /// No maintenance is ever due.
    fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, ConnectionError> {
        if sql == "show server_version_num" {
            return Ok(vec![vec![Some("180000".to_owned())]]);
        }
        Ok(Vec::new())
    }

    fn backend_pid(&self) -> Option<Pid> {
        None
    }
}

struct FakeDriver {
    journal: Journal,
    variants: Vec<String>,
    transaction: Duration,
    stalls: bool,
}

impl LoadDriver for FakeDriver {
    fn connect(&self, order: &ClientsOrder<'_>, _: &RunContext<'_>) -> Result<Box<dyn Clients>> {
        let variant = self.variants[order.point.variant].clone();
        let entry = format!("{variant}: connect {} clients", order.clients);
        self.journal.step(entry)?;
        Ok(Box::new(FakeClients {
            variant,
            clients: order.clients,
            transaction: self.transaction,
            stalls: self.stalls,
            is_stalled: false,
            journal: self.journal.clone(),
        }))
    }
}

/// Clients that record each run of the load. They disconnect when they are dropped.
struct FakeClients {
    variant: String,
    clients: u32,
    transaction: Duration,
    stalls: bool,
    /// Whether no transaction ends in the next window.
    is_stalled: bool,
    journal: Journal,
}

impl Drop for FakeClients {
    fn drop(&mut self) {
        self.journal.record(format!("{}: disconnect", self.variant));
    }
}

impl Clients for FakeClients {
    fn run(
        &mut self,
        length: &RunLength,
        _: &Point,
        context: &RunContext<'_>,
    ) -> Result<Measurement> {
        if context.check().is_err() {
            return Err(Interrupted.into());
        }
        let RunLength::Timed { settle, measure } = length else {
            bail!("fake clients run for a time only");
        };
        // Warm-up windows do not settle.
        let what = if settle.is_zero() { "warm up" } else { "trial" };
        let entry = format!("{}: {what} {} ms", self.variant, measure.as_millis());
        self.journal.step(entry).map_err(|error| anyhow!(error))?;
        let mut found = measurement(*settle, *measure, (self.clients, self.transaction));
        if std::mem::take(&mut self.is_stalled) {
            // Each client is in a transaction that began before the window and ends after it.
            found.transactions = 0;
            found.credited_transactions = 0.5 * f64::from(self.clients);
            found.transactions_total = u64::from(self.clients);
            found.latency_ns.reset();
        }
        Ok(found)
    }

    fn spread_starts(&mut self, _: Duration, _: u64) {
        self.is_stalled = self.stalls;
    }

    fn broadcast(&mut self, _: &str) -> Result<u32, LoadError> {
        Ok(self.clients)
    }

    fn query_first(&mut self, _: &str) -> Result<Vec<TextRow>, LoadError> {
        Ok(Vec::new())
    }

    fn time_statements(&mut self, _: bool) {}

    fn record_transactions(&mut self) -> Option<TransactionRecorder> {
        None
    }

    fn stop_recording(&mut self) {}

    fn backend_pids(&self) -> Vec<i32> {
        Vec::new()
    }

    fn server_pids(&self) -> Vec<u32> {
        Vec::new()
    }

    fn are_of_postgres(&self) -> bool {
        true
    }
}

/// What a load with a constant rate measures.
pub(crate) fn measurement(
    settle: Duration,
    measure: Duration,
    (clients, transaction): (u32, Duration),
) -> Measurement {
    // The clients finish the transactions that they have begun.
    let drained = measure.max(transaction);
    let per_client = drained.div_duration_f64(transaction) as u64;
    let transactions = per_client * u64::from(clients);
    let (settle_ns, measure_ns) = (settle.as_nanos() as u64, measure.as_nanos() as u64);
    let window_us = measure_ns / 1000;
    let mut latency_ns = Histogram::new(3).expect("three digits are supported");
    latency_ns
        .record_n(transaction.as_nanos() as u64, transactions)
        .expect("a histogram that grows holds any value");
    Measurement {
        instants: Instants {
            begin_ns: 0,
            window_begin_ns: settle_ns,
            window_end_ns: settle_ns + measure_ns,
            idle_ns: settle_ns + drained.as_nanos() as u64,
        },
        window_us,
        transactions,
        credited_transactions: transactions as f64,
        transactions_total: transactions,
        settle_transactions: 0,
        failed: 0,
        failed_total: 0,
        failed_us: 0,
        latency_ns,
        since_begin_ns: None,
        scripts: Vec::new(),
        clients: vec![per_client; clients as usize],
        time: ClientTime {
            in_transaction_us: window_us * u64::from(clients),
            ..ClientTime::default()
        },
        threads: Vec::new(),
        timer_lag: TimerLag::default(),
        client_limited: false,
        interrupted: false,
        unfinished: 0,
        aborted: 0,
        skipped: 0,
        unserved: 0,
        commands: Vec::new(),
        reconnecting: Reconnecting::default(),
        openings: None,
        io: IoUsed::default(),
    }
}

struct FakeObserver<'a> {
    journal: Journal,
    variants: &'a [String],
    has_hardware_counters: bool,
    statistics: Vec<String>,
}

impl TrialObserver for FakeObserver<'_> {
    fn offers_hardware_counters(&self) -> bool {
        self.has_hardware_counters
    }

    fn watch<'w>(
        &'w self,
        trial: &WatchedTrial<'_>,
        _: &mut [Box<dyn Clients>],
    ) -> Result<WatchDecision<'w>> {
        let variant = &self.variants[trial.point.variant];
        let kind = match trial.slot.kind {
            TrialKind::Timed => "timed",
            TrialKind::Profiled => "profiled",
            TrialKind::HardwareCounters => "hardware counters",
        };
        self.journal.step(format!("{variant}: watch, {kind}"))?;
        Ok(WatchDecision::Watch(Box::new(FakeWatch {
            variant,
            journal: self.journal.clone(),
            statistics: &self.statistics,
            is_finished: false,
        })))
    }
}

struct FakeWatch<'a> {
    variant: &'a str,
    journal: Journal,
    statistics: &'a [String],
    is_finished: bool,
}

impl Drop for FakeWatch<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.journal
                .record(format!("{}: abandon watch", self.variant));
        }
    }
}

impl TrialWatch for FakeWatch<'_> {
    fn finish(
        mut self: Box<Self>,
        _: &mut dyn Clients,
        measured: &Measurement,
        trial: &mut Trial,
        _: &mut RawResults,
    ) -> Result<()> {
        self.is_finished = true;
        // As a reading of a real server does, with names of its own.
        let value = measured.transactions as f64;
        let counted = self.statistics.iter().map(|it| (it.clone(), value));
        let counted: BTreeMap<String, f64> = counted.collect();
        trial.counters = counted.into();
        Ok(self
            .journal
            .step(format!("{}: finish watch", self.variant))?)
    }
}
