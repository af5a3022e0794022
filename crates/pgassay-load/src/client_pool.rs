//! The client pool: connected clients on their threads, and their runs.

mod results;
mod threads;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::time::Duration;

use pgassay_script::{
    CommandKind, ParsedScript, ScriptValue, Seeding, VariableNames, Variables, is_valid_name,
};
use pgassay_wire::conninfo::{Endpoint, Target};
use pgassay_wire::{BackendKey, SaltCache};

use crate::client::ClientRun;
use crate::client_options::{ClientOptions, Observer};
use crate::clock;
use crate::command_times::{CommandRecords, CommandTimes};
use crate::config::{ClientPoolConfig, IoChoice, Limits, RequestHook, RunLength};
use crate::driver::{self, Arrival, Driver, Io};
use crate::error::LoadError;
use crate::measurement::{Instants, IoUsed, Measurement};
use crate::opening::{self, Opening};
use crate::program::Program;
use crate::reconnecting::Connector;
use crate::recorder::latency_histogram;
use crate::socket;
use crate::timing;
use crate::worker::{Worker, WorkerShared};
use threads::{Start, no_thread, run_all};

/// A margin for other open files, if the hard limit allows it.
const OTHER_FILES: u64 = 64;
/// How long closing waits for the server to end its backends.
const CLOSE_NS: u64 = 5_000_000_000;

/// A backend that executes a statement, and how to reach its server.
#[derive(Clone, Debug)]
pub struct BusyBackend {
    /// What cancels the statement.
    pub key: BackendKey,
    /// The address that the client has reached.
    pub endpoint: Endpoint,
    /// Whether the client's connection uses TLS.
    pub with_tls: bool,
}

/// Connected clients, idle between runs.
pub struct ClientPool {
    program: Program,
    pub(crate) workers: Vec<Worker<Io>>,
    pub(crate) limits: Limits,
    options: ClientOptions,
    io_choice: IoChoice,
    io: IoUsed,
    /// By thread, if commands are timed.
    command_records: Vec<Arc<Mutex<CommandRecords>>>,
    connector: Connector,
    stop: Arc<AtomicBool>,
    keeps_account: bool,
    starts: Vec<u64>,
    /// When the next run begins; at once if `None`.
    due_ns: Option<u64>,
    /// The CPUs that the threads take in turn; if empty, the kernel chooses.
    cpus: Vec<usize>,
    /// The number of the first client.
    first_client: usize,
    /// Whether a failed or stopped run left connections in an unknown state.
    pub(crate) is_spent: bool,
}

impl ClientPool {
    /// Connects all clients and prepares their statements. Setting `stop` ends this, and later each
    /// run, within 50 ms.
    ///
    /// # Errors
    /// An invalid configuration, or a server that is unreachable or refuses the connection.
    pub fn connect(config: &ClientPoolConfig, stop: &Arc<AtomicBool>) -> Result<Self, LoadError> {
        check(config)?;
        let io = choose_io(config.io)?;
        let program = Program::new(config)?;
        let files = files_needed(config.clients, config.threads, io.is_uring);
        socket::raise_open_files(files, OTHER_FILES).map_err(|source| LoadError::System {
            what: "open enough files",
            source,
        })?;
        let endpoints =
            socket::endpoints(&config.target).map_err(|(address, source)| LoadError::Connect {
                client: 0,
                address,
                source,
            })?;
        let timeout_s = config.target.connect_timeout_s.map(u64::from);
        let connector = Connector {
            target: config.target.clone(),
            endpoints,
            salts: SaltCache::default(),
            limit: timeout_s.map_or(config.limits.connect, Duration::from_secs),
        };
        let opening = Opening {
            connector: &connector,
            program: &program,
            stop,
        };
        let begin_ns = clock::monotonic_ns();
        let workers = open_all(config, &opening)?;
        tracing::debug!(
            clients = config.clients,
            threads = workers.len(),
            statements = program.statements.len(),
            elapsed_us = (clock::monotonic_ns() - begin_ns) / 1000,
            "connected"
        );
        let (limits, stop) = (config.limits, Arc::clone(stop));
        let mut pool = Self {
            program,
            workers,
            limits,
            options: config.options.clone(),
            io_choice: config.io,
            io,
            command_records: Vec::new(),
            connector,
            stop,
            keeps_account: false,
            starts: Vec::new(),
            due_ns: None,
            cpus: Vec::new(),
            first_client: config.part().first_client as usize,
            is_spent: false,
        };
        pool.time_commands(config.options.times_commands);
        Ok(pool)
    }

    /// Returns the number of statements in the longest script.
    pub fn statements_max(&self) -> usize {
        let of_script = |script: &ParsedScript| {
            let commands = script.commands().iter();
            commands
                .filter(|command| matches!(command.kind, CommandKind::Sql(_)))
                .count()
        };
        let parts = self.program.parts.iter();
        parts.map(|part| of_script(&part.script)).max().unwrap_or(0)
    }

    /// Turns timing of commands on or off; previous times are discarded.
    pub fn time_commands(&mut self, is_wanted: bool) {
        self.command_records.clear();
        // Timing requested for the whole run must cover every statement, however short the run is.
        let is_always = self.options.times_commands;
        let parts = self.program.parts.iter();
        let lengths: Vec<usize> = parts.map(|part| part.script.commands().len()).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        for worker in &mut self.workers {
            let records = Arc::new(Mutex::new(CommandRecords::new(&lengths)));
            for client in &mut worker.clients {
                // Different statements in every trial.
                let seed = clock::monotonic_ns() ^ u64::from(client.run.id);
                let times =
                    || CommandTimes::new(clock::monotonic_ns, &records, longest, seed, is_always);
                client.run.times = is_wanted.then(|| Box::new(times()));
            }
            if is_wanted {
                self.command_records.push(records);
            }
        }
    }

    /// Returns the backends' process IDs, in client order.
    pub fn backend_pids(&self) -> Vec<i32> {
        self.backends().into_iter().map(|key| key.pid).collect()
    }

    /// Returns the keys that cancel the clients' queries, in client order.
    pub fn backends(&self) -> Vec<BackendKey> {
        let clients = self.workers.iter().flat_map(|worker| &worker.clients);
        clients
            .filter_map(|client| client.session.backend())
            .collect()
    }

    /// Returns the backends whose client still waits for a reply: after a stopped run, those that it has given up.
    pub fn busy_backends(&self) -> Vec<BusyBackend> {
        let clients = self.workers.iter().flat_map(|worker| &worker.clients);
        let busy = clients.filter(|client| client.run.stage.waits_for_reply());
        busy.filter_map(|client| {
            Some(BusyBackend {
                key: client.session.backend()?,
                endpoint: self.connector.endpoints[client.run.endpoint].clone(),
                with_tls: client.session.is_protected(),
            })
        })
        .collect()
    }

    /// Returns the server that the clients connect to.
    pub fn target(&self) -> &Target {
        &self.connector.target
    }

    /// Calls `hook` before each request, on the client's thread, for measurements that need the
    /// server in a certain state. The hook's time counts as part of the transaction and delays all
    /// clients of the thread.
    pub fn before_requests(&mut self, hook: RequestHook) {
        self.program.before_request = Some(hook);
    }

    /// Gives each thread the observer that `make` returns for its index, or none. This replaces all
    /// previous observers, so that one run can be observed and the next one has no overhead.
    pub fn observe(&mut self, mut make: impl FnMut(usize) -> Option<Box<dyn Observer>>) {
        for (thread, worker) in self.workers.iter_mut().enumerate() {
            worker.observer = make(thread);
        }
    }

    /// Spreads the clients' starts over this time, at moments that the seed determines, because
    /// clients that start together also end their transactions together. Clients also keep running
    /// until the transactions that straddle the end of the window have ended; idle clients would
    /// make those faster.
    pub fn spread_starts(&mut self, spread: Duration, seed: u64) {
        let clients = self.workers.iter().map(|worker| worker.clients.len());
        self.starts = vec![0; self.first_client];
        self.starts
            .extend(timing::starts(clients.sum(), spread, seed));
    }

    /// Makes the next run begin at this time of [`monotonic_ns`](crate::monotonic_ns), instead of at
    /// once, so that pools of several processes begin together. A timed run ends when it would have
    /// ended had it begun in time.
    pub fn begin_at(&mut self, due_ns: u64) {
        self.due_ns = Some(due_ns);
    }

    /// Pins the threads of the next runs to these CPUs, in turn. Without any, the kernel chooses.
    pub fn pin_threads(&mut self, cpus: Vec<usize>) {
        self.cpus = cpus;
    }

    /// Turns the account of delays in the client threads ([`thread_busy_us`](crate::measurement::ClientTime::thread_busy_us) and
    /// [`client_run_queue_us`](crate::measurement::ClientTime::client_run_queue_us)) on or off. It costs the threads a clock reading per
    /// reply, and a system call for most waits.
    pub fn keep_account(&mut self, is_wanted: bool) {
        self.keeps_account = is_wanted;
    }

    /// Returns the number of client threads.
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    /// Runs all clients for a window. They begin together, run without a break through settling and
    /// measuring, and complete their last transaction, so the server is idle before and after. A
    /// stopped run is not an error: the measurement reports it and covers the part that ran.
    ///
    /// # Errors
    /// An aborted client, a lost connection, or a missing reply. The client pool cannot be used
    /// after an error.
    pub fn run(&mut self, window: &RunLength) -> Result<Measurement, LoadError> {
        if self.is_spent {
            return Err(LoadError::Spent);
        }
        let (settle, measure, transactions_per_client) = match *window {
            RunLength::Timed { settle, measure } => (settle, Some(measure), None),
            RunLength::Whole { duration } => (Duration::ZERO, Some(duration), None),
            RunLength::Counted {
                transactions_per_client,
            } => (Duration::ZERO, None, Some(transactions_per_client)),
        };
        let shared = WorkerShared {
            program: &self.program,
            limits: self.limits,
            end_ns: AtomicU64::new(u64::MAX),
            stopped_ns: AtomicU64::new(0),
            transactions_per_client,
            stop: &self.stop,
            failed: AtomicBool::new(false),
            options: &self.options,
            connector: self.options.reconnects.then_some(&self.connector),
            starts: &self.starts,
            straddling: AtomicUsize::new(self.starts.len().saturating_sub(self.first_client)),
        };
        let start = Start {
            begin_ns: AtomicU64::new(0),
            due_ns: self.due_ns.take(),
            cpus: self.cpus.clone(),
            settle_ns: nanoseconds(settle),
            measure_ns: measure.map(nanoseconds),
            counts_late_ends: matches!(window, RunLength::Whole { .. }),
            barrier: Barrier::new(self.workers.len()),
            all_exist: OnceLock::new(),
            wants_uring: self.io.is_uring,
            keeps_account: self.keeps_account,
            refusal: Mutex::default(),
        };
        self.is_spent = true;
        let ran = run_all(&mut self.workers, &shared, &start);
        let (end_ns, interrupted) = (
            shared.end_ns.load(Ordering::Relaxed),
            shared.stopped_ns.load(Ordering::Relaxed) > 0,
        );
        let (threads, unfinished) = ran?;
        self.is_spent = self.options.closes_finished || unfinished > 0 || self.aborted() > 0;
        let begin_ns = start.begin_ns.load(Ordering::Relaxed);
        if let Some(reason) = start.refusal.into_inner().unwrap_or_default() {
            self.io = fall_back_to_epoll(self.io_choice, reason)?;
        }
        let mut instants = self.instants(begin_ns, start.settle_ns, end_ns);
        if !start.counts_late_ends || unfinished > 0 {
            instants.idle_ns = instants.idle_ns.max(instants.window_end_ns);
        }
        if end_ns < u64::MAX {
            let without_clients = self
                .workers
                .iter_mut()
                .filter(|worker| worker.all_aborted());
            without_clients.for_each(|worker| worker.count_unserved(instants.window_end_ns));
        }
        tracing::debug!(?instants, interrupted, unfinished, "ran");
        Ok(self.measurement(instants, threads, interrupted, unfinished))
    }

    /// Terminates the connections and waits up to 5 s until the server has ended its backends.
    pub fn close(mut self) {
        let deadline_ns = clock::monotonic_ns() + CLOSE_NS;
        for worker in &mut self.workers {
            send_terminate(worker);
            let mut open = (0..worker.clients.len())
                .filter(|&client| worker.driver.is_open(client))
                .count();
            while open > 0 && clock::monotonic_ns() < deadline_ns {
                if worker.driver.wait(deadline_ns).is_err() {
                    break;
                }
                while let Ok(Some(arrival)) = worker.driver.next() {
                    open -= usize::from(matches!(arrival, Arrival::Closed { .. }));
                }
            }
            worker.clients.clear();
        }
    }

    /// Returns the instants of a run that was to end at `end_ns`, or by count if that is
    /// [`u64::MAX`].
    fn instants(&self, begin_ns: u64, settle_ns: u64, end_ns: u64) -> Instants {
        let last_end = self
            .workers
            .iter()
            .map(|worker| worker.recorder.last_end_ns)
            .max();
        let idle_ns = last_end.unwrap_or(0).max(begin_ns);
        // A run by count ends with its last transaction. If all clients were aborted, the rest of
        // the time is not part of the run, as in pgbench: its rate is that of the time before.
        let all_aborted = self.workers.iter().all(Worker::all_aborted);
        let window_end_ns = if end_ns == u64::MAX || all_aborted {
            idle_ns.min(end_ns)
        } else {
            end_ns
        };
        let window_begin_ns = (begin_ns + settle_ns).min(window_end_ns);
        Instants {
            begin_ns,
            window_begin_ns,
            window_end_ns,
            idle_ns,
        }
    }
}

impl Drop for ClientPool {
    fn drop(&mut self) {
        self.workers.iter_mut().for_each(send_terminate);
    }
}

fn send_terminate(worker: &mut Worker<Io>) {
    for (index, client) in worker.clients.iter_mut().enumerate() {
        client.session.terminate();
        // A failure is irrelevant: the connection is closed anyway.
        worker.driver.send(index, client.session.output()).ok();
    }
}

/// Returns the number of files that a pool has open at most.
pub fn files_needed(clients: u32, threads: u32, is_uring: bool) -> u64 {
    // A thread has its epoll instance, and for a moment one more file: a connection that replaces
    // another, or the thread's statistics. A ring exists next to the epoll instance.
    let of_thread = if is_uring { 3 } else { 2 };
    u64::from(clients) + u64::from(threads.min(clients)) * of_thread
}

fn check(config: &ClientPoolConfig) -> Result<(), LoadError> {
    let refuse = |what: &str| Err(LoadError::Config { what: what.into() });
    if config.clients == 0 || config.threads == 0 {
        return refuse("at least one client and one thread are required");
    }
    let part = config.part();
    if part.all_clients.saturating_sub(part.first_client) < config.clients
        || part.all_threads.saturating_sub(part.first_thread) < config.threads.min(config.clients)
    {
        return refuse("a pool's part of the clients or threads exceeds their number");
    }
    if config.scripts.is_empty() {
        return refuse("no script to run");
    }
    if config.target.hosts.is_empty() {
        return refuse("no host to connect to");
    }
    match config
        .variables
        .iter()
        .find(|(name, _)| !is_valid_name(name.as_bytes()))
    {
        Some((name, _)) => refuse(&format!("option: invalid variable name: \"{name}\"")),
        None => Ok(()),
    }
}

/// Chooses between `io_uring` and epoll.
fn choose_io(choice: IoChoice) -> Result<IoUsed, LoadError> {
    if choice == IoChoice::Epoll {
        return Ok(IoUsed::default());
    }
    match driver::probe() {
        Ok(()) => Ok(IoUsed {
            is_uring: true,
            refusal: None,
        }),
        Err(reason) => fall_back_to_epoll(choice, reason),
    }
}

/// Falls back to epoll if the configuration allows it.
fn fall_back_to_epoll(choice: IoChoice, reason: String) -> Result<IoUsed, LoadError> {
    if choice == IoChoice::Uring {
        return Err(LoadError::NoUring { reason });
    }
    tracing::debug!(reason, "epoll instead of io_uring");
    Ok(IoUsed {
        is_uring: false,
        refusal: Some(reason),
    })
}

/// Opens all clients, distributed over threads as in pgbench.
fn open_all(
    config: &ClientPoolConfig,
    opening: &Opening<'_>,
) -> Result<Vec<Worker<Io>>, LoadError> {
    let threads = config.threads.min(config.clients) as usize;
    let clients = config.clients as usize;
    let defines_seed = config
        .variables
        .iter()
        .any(|(name, _)| name == "default_seed");
    let part = config.part();
    let seeding = Seeding::new(
        config.seed,
        part.all_clients as usize,
        part.all_threads as usize,
        defines_seed,
    );
    let mut runs = (part.first_client..).take(clients).map(|id| {
        let variables = variables(config, &seeding, id);
        ClientRun::new(id, opening.program, variables, seeding.clients[id as usize])
    });
    let mut dealt = 0;
    let hands: Vec<Vec<ClientRun>> = (0..threads)
        .map(|thread| {
            let count = (clients - dealt + threads - thread - 1) / (threads - thread);
            dealt += count;
            runs.by_ref().take(count).collect()
        })
        .collect();
    std::thread::scope(|scope| {
        let opened = hands
            .into_iter()
            .map(|hand| {
                let open = move || {
                    if config.options.reconnects {
                        opening::create_unconnected(opening.connector, hand)
                    } else {
                        opening::open(opening, hand)
                    }
                };
                let thread = std::thread::Builder::new().spawn_scoped(scope, open);
                thread.map_err(no_thread)
            })
            .collect::<Result<Vec<_>, LoadError>>()?;
        let joined = opened.into_iter().map(|thread| match thread.join() {
            Ok(opened) => opened,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        let of_threads = seeding.threads.iter().skip(part.first_thread as usize);
        let workers = joined
            .zip(of_threads)
            .enumerate()
            .map(|(thread, (opened, rngs))| {
                let (driver, clients) = opened?;
                let mut worker =
                    Worker::new(Io::Epoll(driver), clients, opening.program, rngs.choose);
                let options = &config.options;
                worker.pace = options
                    .rate_per_s
                    .map(|rate| (rngs.throttle, 1e6 / rate * f64::from(part.all_threads)));
                worker.recorder.since_begin_ns = options.rate_per_s.map(|_| latency_histogram());
                worker.recorder.openings = options.reconnects.then(Box::default);
                let observer = options.observer.as_ref();
                worker.observer = observer.map(|make| make(thread, rngs.sample));
                Ok(worker)
            });
        workers.collect()
    })
}

/// Returns a client's variables before its first transaction.
fn variables(config: &ClientPoolConfig, seeding: &Seeding, id: u32) -> Variables {
    let mut variables = Variables::new(&config.names);
    variables.set(VariableNames::CLIENT_ID, ScriptValue::Int(i64::from(id)));
    variables.set(
        VariableNames::RANDOM_SEED,
        ScriptValue::Int(seeding.random_seed),
    );
    if let Some(default_seed) = seeding.default_seed {
        variables.set(VariableNames::DEFAULT_SEED, ScriptValue::Int(default_seed));
    }
    config.define(&mut variables);
    variables
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
