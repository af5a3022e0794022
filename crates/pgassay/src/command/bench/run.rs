//! A benchmark run: inspects the tables, runs the clients, prints the report.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use pgassay_lab::connector;
use pgassay_lab::system_env::monotonic_ns;
use pgassay_load::{
    ClientOptions, ClientPool, ClientPoolConfig, IoChoice, Limits, LoadError, Measurement,
    Observer, OnAbort, PoolPart, RunLength, WeightedScript, files_needed, open_files_with,
    raise_open_files,
};
use pgassay_rights::FileToWrite;
use pgassay_script::{Compat, ParseOptions, ParsedScript, VariableNames};
use pgassay_wire::conninfo::Target;

use super::cancellation;
use super::client_limit::{ClientLimit, CpuWatch};
use super::connection::{self, Setup, sqlstate};
use super::figures::Board;
use super::hdr_log::HdrLog;
use super::memory::MemoryBefore;
use super::message::{self, Exit, fatal};
use super::observer::{Common, Watcher};
use super::report::Report;
use super::settings::{PartitionMethod, Settings, check_open_files};
use super::system::epoch_shift_us;
use super::{cpus, progress, shell};
use crate::exit::{INTERRUPTED, PARTIAL};
use crate::interrupt;
use crate::output::shown;

/// pgbench waits for a server without a timeout; ten years stand for that.
const NO_TIMEOUT: Duration = Duration::from_hours(10 * 365 * 24);
/// How long running transactions may take to end after Ctrl-C, before they are canceled.
const STOP: Duration = Duration::from_millis(500);
pub(super) const LOG_PREFIX: &str = "pgbench_log";

/// Scale and partitioning of the existing tables.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "mpi", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Tables {
    pub scale: i32,
    pub partitioning: Option<(PartitionMethod, i32)>,
}

/// The parsed scripts.
pub(super) struct ParsedScripts {
    pub weighted: Vec<(Arc<ParsedScript>, u32)>,
    pub names: Arc<VariableNames>,
}

/// Runs a benchmark.
pub fn run(settings: &Settings, application: &str) -> Result<(), Exit> {
    if !settings.rank_dsns.is_empty() {
        return Err(fatal(
            "--rank-dsn is for the ranks that mpirun starts, but this is a single process",
        ));
    }
    check_files(settings)?;
    cpus::check(&settings.cpus)?;
    let scripts = parse(settings, message::warning)?;
    let mut target = connection::target(settings, application).map_err(without_setup)?;
    let tables = prepare(settings, &mut target, !settings.json)?;
    let interrupt = interrupt::watch().map_err(|error| fatal(&error.to_string()))?;
    let common = common(settings, &scripts, None)?;
    let config = configure(settings, &scripts, target, tables.scale, &common)?;
    let (mut pool, connecting_us) = connect(&config, interrupt.flag())?;
    let (measurement, client_limit) = measure(&mut pool, &common, monotonic_ns())?;
    cancellation::close(pool, &interrupt);
    write_hdr_log(&common, &scripts, &measurement);
    let report = Report {
        settings,
        scripts: &scripts.weighted,
        figures: &common.board.by_script(),
        measurement: &measurement,
        scale: tables.scale,
        partitioning: tables.partitioning,
        connecting_us,
        client_limit,
        memory: common.memory_before.with_clients(),
    };
    let printed = if settings.json {
        print_json(&report.json())
    } else {
        print(&report.text());
        print(&report.additions());
        Ok(())
    };
    conclude(&measurement, common.has_incomplete_log())?;
    if interrupt.is_requested() {
        message::error("Run was interrupted; the above results are complete.");
        return Err(Exit(INTERRUPTED));
    }
    printed
}

/// Writes the log of `--hdr-log`, if any.
pub(super) fn write_hdr_log(common: &Common, scripts: &ParsedScripts, measurement: &Measurement) {
    if let Some(log) = &common.hdr_log
        && log.write(&scripts.weighted, measurement).is_err()
    {
        common.has_incomplete_log.store(true, Ordering::Relaxed);
    }
}

/// Rejects more clients, threads and logs than the limit on open files allows, before anything is done.
pub(super) fn check_files(settings: &Settings) -> Result<(), Exit> {
    let (clients, threads) = (
        settings.clients.unsigned_abs(),
        settings.threads.unsigned_abs(),
    );
    let logs = if settings.log { threads } else { 0 } + u32::from(settings.hdr_log.is_some());
    let files = files_needed(clients, threads, settings.io != IoChoice::Epoll);
    check_open_files(open_files_with(files + u64::from(logs)))
}

/// Says what the error that was just reported prevents.
fn without_setup(_: Exit) -> Exit {
    fatal("could not create connection for setup")
}

/// Inspects the tables and vacuums them.
pub(super) fn prepare(
    settings: &Settings,
    target: &mut Target,
    has_banner: bool,
) -> Result<Tables, Exit> {
    let mut setup = Setup::open(target).map_err(without_setup)?;
    if has_banner {
        banner(setup.server_version(), settings);
    }
    trace_parameters(&setup, settings, &target.database);
    let tables = if settings.uses_builtin {
        inspect_tables(&mut setup, settings, &target.database)?
    } else {
        Tables {
            scale: settings.scale,
            partitioning: None,
        }
    };
    vacuum(&mut setup, settings);
    setup.close();
    Ok(tables)
}

/// What the observers of all threads share.
pub(super) fn common(
    settings: &Settings,
    scripts: &ParsedScripts,
    part: Option<PoolPart>,
) -> Result<Arc<Common>, Exit> {
    let threads = settings.threads.unsigned_abs() as usize;
    Ok(Arc::new(Common {
        settings: settings.clone(),
        board: Board::new(threads, scripts.weighted.len()),
        hdr_log: settings
            .hdr_log
            .as_ref()
            .map(|path| HdrLog::create(path, &scripts.weighted))
            .transpose()?,
        progress_label: match part {
            None => "progress",
            // Others are asked only after the run, so that nothing disturbs it.
            Some(_) => "progress of rank 0",
        },
        part,
        epoch_shift_us: epoch_shift_us(),
        memory_before: MemoryBefore::now(),
        has_incomplete_log: AtomicBool::new(false),
    }))
}

/// Connects all clients; also returns how long that took, in µs.
pub(super) fn connect(
    config: &ClientPoolConfig,
    stop: &Arc<AtomicBool>,
) -> Result<(ClientPool, u64), Exit> {
    let begin_ns = monotonic_ns();
    let pool = ClientPool::connect(config, stop).map_err(|error| not_connected(&error))?;
    Ok((pool, (monotonic_ns() - begin_ns) / 1000))
}

fn banner(server: &str, settings: &Settings) {
    let version = super::version::version(settings.compat);
    if server == version {
        print(&format!("pgbench ({version})\n"));
    } else {
        print(&format!("pgbench ({version}, server {server})\n"));
    }
}

/// The line that `--debug` prints before a run.
fn trace_parameters(setup: &Setup, settings: &Settings, database: &str) {
    let (host, port) = setup.host_and_port();
    let (what, length) = match (settings.duration_s, settings.transactions) {
        (Some(duration_s), _) => ("duration", duration_s),
        (None, count) => ("nxacts", count.unwrap_or_default()),
    };
    message::debug(&format!(
        "pghost: {host} pgport: {port} nclients: {} {what}: {length} dbName: {database}",
        settings.clients
    ));
}

/// Prints to stdout and flushes, because shells started by scripts write there, too.
pub(super) fn print(text: &str) {
    // A closed pipe must not end a run, and pgbench ignores a full disk, too.
    _ = try_print(text);
}

/// Prints the results for another program, which must not take an empty file for them.
pub(super) fn print_json(results: &serde_json::Value) -> Result<(), Exit> {
    match try_print(&format!("{results:#}\n")) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let why = connector::os_error_text(&error);
            Err(fatal(&format!("could not write the results: {why}")))
        }
        _ => Ok(()),
    }
}

fn try_print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(shown(text).as_bytes())?;
    out.flush()
}

/// Parses the scripts; `warn` receives what they should not do.
pub(super) fn parse(settings: &Settings, warn: fn(&str)) -> Result<ParsedScripts, Exit> {
    let options = ParseOptions {
        protocol: settings.protocol,
        compat: settings.compat,
    };
    let mut names = VariableNames::new();
    for (name, _) in &settings.variables {
        names
            .define("option", name)
            .map_err(|error| fatal(&error.to_string()))?;
    }
    let mut weighted = Vec::new();
    for script in &settings.scripts {
        let parsed = super::scripts::parse(&script.name, &script.text, options, &mut names)?;
        for note in parsed.notes() {
            warn(&format!("{}:{}: {}", script.name, note.line, note.text));
        }
        weighted.push((Arc::new(parsed), script.weight));
    }
    Ok(ParsedScripts {
        weighted,
        names: Arc::new(names),
    })
}

fn inspect_tables(setup: &mut Setup, settings: &Settings, database: &str) -> Result<Tables, Exit> {
    const COUNT: &str = "select count(*) from pgbench_branches";
    let hint = || {
        message::hint(&format!(
            "Perhaps you need to do initialization (\"pgbench -i\") in database \"{database}\"."
        ));
    };
    let first = |answer: &pgassay_wire::QueryResult, column: usize| {
        answer.rows.first()?.get(column)?.clone()
    };
    let counted = setup.query(COUNT).map_err(|error| {
        let exit = fatal(&format!(
            "could not count number of branches: {}",
            message::of_exchange(&error, Some(COUNT))
        ));
        if sqlstate(&error) == Some("42P01") {
            hint();
        }
        exit
    })?;
    let count = first(&counted, 0).unwrap_or_default();
    let scale: i32 = count.parse().map_err(|_| {
        fatal(&format!(
            "invalid count(*) from pgbench_branches: \"{count}\""
        ))
    })?;
    if settings.scale_given {
        message::warning(&format!(
            "scale option ignored, using count from pgbench_branches table ({scale})"
        ));
    }
    let Ok(found) = setup.query(PARTITIONING) else {
        // Servers before version 10 do not have this catalog.
        return Ok(Tables {
            scale,
            partitioning: None,
        });
    };
    if found.rows.is_empty() {
        let setting = if settings.compat >= Compat::V17 {
            "\"search_path\""
        } else {
            "search_path"
        };
        let exit = fatal(&format!("no pgbench_accounts table found in {setting}"));
        hint();
        return Err(exit);
    }
    let method = match first(&found, 1).as_deref() {
        None => None,
        Some("r") => Some(PartitionMethod::Range),
        Some("h") => Some(PartitionMethod::Hash),
        Some(other) => {
            return Err(fatal(&format!("unexpected partition method: \"{other}\"")));
        }
    };
    let partitions = first(&found, 2).and_then(|count| count.parse().ok());
    Ok(Tables {
        scale,
        partitioning: method.map(|method| (method, partitions.unwrap_or(0))),
    })
}

/// How the first `pgbench_accounts` in the search path is partitioned.
const PARTITIONING: &str = "select pg_catalog.array_position(pg_catalog.current_schemas(true), n.nspname), \
     p.partstrat, (select pg_catalog.count(*) from pg_catalog.pg_inherits i where i.inhparent = c.oid) \
     from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
     left join pg_catalog.pg_partitioned_table p on p.partrelid = c.oid \
     where c.relname = 'pgbench_accounts' \
     and n.nspname = any (pg_catalog.current_schemas(true)) order by 1 limit 1";

fn vacuum(setup: &mut Setup, settings: &Settings) {
    if settings.no_vacuum {
        return;
    }
    message::write_stderr("starting vacuum...");
    for sql in [
        "vacuum pgbench_branches",
        "vacuum pgbench_tellers",
        "truncate pgbench_history",
    ] {
        setup.try_execute(sql);
    }
    message::write_stderr("end.\n");
    if settings.vacuum_all {
        message::write_stderr("starting vacuum pgbench_accounts...");
        setup.try_execute("vacuum analyze pgbench_accounts");
        message::write_stderr("end.\n");
    }
}

pub(super) fn configure(
    settings: &Settings,
    scripts: &ParsedScripts,
    target: Target,
    scale: i32,
    common: &Arc<Common>,
) -> Result<ClientPoolConfig, Exit> {
    let weighted = scripts
        .weighted
        .iter()
        .map(|(script, weight)| WeightedScript {
            script: Arc::clone(script),
            weight: u64::from(*weight),
        });
    Ok(ClientPoolConfig {
        target,
        clients: settings.clients.unsigned_abs(),
        threads: settings.threads.unsigned_abs(),
        scripts: weighted.collect(),
        names: Arc::clone(&scripts.names),
        protocol: settings.protocol,
        seed: settings.seed,
        scale: i64::from(scale),
        variables: settings.variables.clone(),
        debug: Some(Arc::new(|line: &str| {
            message::write_stderr(&format!("{line}\n"));
        })),
        limits: Limits {
            connect: NO_TIMEOUT,
            reply: NO_TIMEOUT,
            stop: STOP,
        },
        options: conduct(settings, common)?,
        io: settings.io,
        part: common.part,
    })
}

fn conduct(settings: &Settings, common: &Arc<Common>) -> Result<ClientOptions, Exit> {
    let files = logs(settings)?;
    let observing = Arc::clone(common);
    let observer = move |thread: usize, sample| -> Box<dyn Observer> {
        let file = files.get(thread).cloned();
        Box::new(Watcher::new(&observing, thread, sample, file))
    };
    Ok(ClientOptions {
        rate_per_s: settings.rate_per_s,
        latency_limit: settings.latency_limit_us.map(Duration::from_micros),
        tries_max: settings.tries_max,
        continues_on_error: settings.continue_on_error,
        reconnects: settings.connects,
        // Random whatever --random-seed is: what matters is that no other run has the same.
        statement_suffix: Some(RandomState::new().hash_one(std::process::id()) as u32),
        closes_finished: true,
        on_abort: if settings.exit_on_abort {
            OnAbort::EndRun
        } else {
            OnAbort::EndClient
        },
        times_commands: settings.per_command,
        shell: Some(Arc::new(shell::run)),
        notices: Some(Arc::new(|notice: &pgassay_wire::ServerMessage| {
            message::write_stderr(&message::of_notice(notice));
        })),
        trace: message::is_debugging()
            .then(|| -> pgassay_load::DebugSink { Arc::new(|line: &str| message::debug(line)) }),
        observer: Some(Arc::new(observer)),
    })
}

/// The log file of each thread, if logging is enabled. Many threads have more of them than the soft
/// limit on open files allows.
fn logs(settings: &Settings) -> Result<Vec<Arc<File>>, Exit> {
    if !settings.log {
        return Ok(Vec::new());
    }
    raise_open_files(u64::from(settings.threads.unsigned_abs()), 0)
        .map_err(|error| fatal(&format!("could not open logfiles: {error}")))?;
    let prefix = settings.log_prefix.as_deref().unwrap_or(LOG_PREFIX);
    let pid = std::process::id();
    let open = |thread: i32| {
        let path = if thread == 0 {
            format!("{prefix}.{pid}")
        } else {
            format!("{prefix}.{pid}.{thread}")
        };
        let opened = FileToWrite::at(Path::new(&path)).and_then(|it| it.open_at_once());
        opened.map(Arc::new).map_err(|error| {
            fatal(&format!(
                "could not open logfile \"{path}\": {}",
                connector::os_error_text(&error)
            ))
        })
    };
    (0..settings.threads).map(open).collect()
}

fn not_connected(error: &LoadError) -> Exit {
    message::error(&message::of_load(error));
    match error {
        LoadError::Connect { client, .. }
        | LoadError::Refused { client, .. }
        | LoadError::Lost { client, .. }
        | LoadError::Wire { client, .. } => {
            fatal(&format!("could not create connection for client {client}"))
        }
        LoadError::NoUring { .. } => fatal("cannot use --io=uring; use --io=auto or --io=epoll"),
        LoadError::Stopped => Exit(INTERRUPTED),
        _ => Exit(1),
    }
}

/// Runs the clients, which begin at this time; also returns what limited them.
pub(super) fn measure(
    pool: &mut ClientPool,
    common: &Common,
    begin_ns: u64,
) -> Result<(Measurement, ClientLimit), Exit> {
    let settings = &common.settings;
    let window = match settings.duration_s {
        Some(seconds) => RunLength::Whole {
            duration: Duration::from_secs(seconds.into()),
        },
        None => RunLength::Counted {
            transactions_per_client: settings.transactions.unwrap_or_default().into(),
        },
    };
    let first_thread = common.part.map_or(0, |part| part.first_thread);
    let pinned = cpus::of_threads(&settings.cpus, first_thread as usize, pool.threads());
    let cpus = CpuWatch::start(&pinned);
    pool.pin_threads(pinned);
    let (running, done) = mpsc::channel();
    let (logging, logged) = mpsc::channel();
    let ran = std::thread::scope(|scope| {
        if let Some(every_s) = settings.progress_s {
            let report = move || progress::report_progress(common, begin_ns, every_s, &done);
            let thread = std::thread::Builder::new().spawn_scoped(scope, report);
            thread.map_err(|error| fatal(&format!("cannot start a thread: {error}")))?;
        }
        if let Some(log) = &common.hdr_log {
            let write = move || {
                if !log.write_meanwhile(&logged) {
                    common.has_incomplete_log.store(true, Ordering::Relaxed);
                }
            };
            let thread = std::thread::Builder::new().spawn_scoped(scope, write);
            thread.map_err(|error| fatal(&format!("cannot start a thread: {error}")))?;
        }
        let ran = pool.run(&window);
        drop((running, logging));
        Ok::<_, Exit>(ran)
    })?;
    let ran = ran.map(|measurement| {
        let limit = cpus.limit(&measurement);
        (measurement, limit)
    });
    ran.map_err(|error| {
        let Some(client) = client_of(&error) else {
            return fatal(&error.to_string());
        };
        let first = common.part.map_or(0, |part| part.first_client);
        // The error was reported when it occurred.
        message::error(&format!(
            "Run was aborted due to an error in thread {}",
            thread_of(client - first, settings)
        ));
        Exit(PARTIAL)
    })
}

fn client_of(error: &LoadError) -> Option<u32> {
    match error {
        LoadError::Aborted { place, .. } => Some(place.client),
        LoadError::Lost { client, .. }
        | LoadError::Connect { client, .. }
        | LoadError::Refused { client, .. }
        | LoadError::Wire { client, .. }
        | LoadError::Unanswered { client, .. } => Some(*client),
        _ => None,
    }
}

/// The thread of a client. As in pgbench, earlier threads have at least as many as later ones.
fn thread_of(client: u32, settings: &Settings) -> u32 {
    let (clients, threads) = (
        settings.clients.unsigned_abs(),
        settings.threads.unsigned_abs(),
    );
    let mut dealt = 0;
    for thread in 0..threads {
        dealt += (clients - dealt).div_ceil(threads - thread);
        if client < dealt {
            return thread;
        }
    }
    0
}

/// Says what a run lacks, after its report. The error that made a log incomplete was reported.
pub(super) fn conclude(measurement: &Measurement, has_incomplete_log: bool) -> Result<(), Exit> {
    if measurement.interrupted {
        message::error("Run was interrupted; the above results are incomplete.");
        return Err(Exit(INTERRUPTED));
    }
    if measurement.aborted > 0 {
        message::error("Run was aborted; the above results are incomplete.");
        return Err(Exit(PARTIAL));
    }
    if has_incomplete_log {
        return Err(Exit(PARTIAL));
    }
    Ok(())
}
