//! A server with the drivers that inject delays, and a comparison on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pgassay_account::cost_row::{Change, CostRow};
use pgassay_account::ledger::{LedgerDifference, Part};
use pgassay_record::run::Run;
use pgassay_server::{Connection, Server, ServerConfig};
use pgassay_test_support::{Finished, Scratch, servers};

use super::cases::{Case, Length};
use super::drivers::{Driver, Holds, pin};

use crate::PROGRAM;

/// The row must increase by d within this share of d plus this many µs.
pub const WITHIN_SHARE: f64 = 0.1;
pub const WITHIN_US: f64 = 2.0;

/// The CPU of the hog and the client's threads.
const CLIENTS_CPU: usize = 0;
/// The CPU of the server.
const SERVERS_CPU: usize = 1;

/// How often the burning function is timed before and after a study. A single session, or some milliseconds of a
/// virtual machine, may be 20% faster or slower than the study's sessions are.
const CALIBRATION_SESSIONS: usize = 12;
const CALIBRATION_CALLS: usize = 9;
/// Calls before those: in a session and on a CPU that have just begun to work, they take 10% longer than in a load.
const WARM_UP_CALLS: usize = 40;
const BETWEEN_CALIBRATIONS: Duration = Duration::from_millis(100);
const CALIBRATION_LOOPS: u64 = 40_000;

/// A CPU-bound function whose duration is proportional to `loops`. It is stable: a volatile function takes a
/// snapshot for each expression, which up to 13 takes longer the more sessions there are.
pub const BURN: &str = "\
create or replace function burn(loops int) returns int language plpgsql stable as $$
declare sum bigint := 0;
begin
  for i in 1..loops loop sum := sum + i; end loop;
  return 0;
end $$";

/// The injection's measurements of itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Held {
    pub holds: Holds,
    /// CPU time of a call of the burning function.
    pub burn_us: f64,
}

/// A difference with its interval, in µs per transaction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figure {
    pub us: f64,
    pub half_width_us: f64,
}

/// The rows that an injection changed.
#[derive(Debug, Clone)]
pub struct Landing {
    pub injected_us: f64,
    pub named: Figure,
    /// The other row that moved most beyond its interval.
    pub other: (String, Figure),
    pub response: Figure,
    /// Names of other rows that are marked as changed.
    pub marked: Vec<String>,
    /// Share of the machine's CPU time taken by other programs and CPU steal.
    pub others_share: f64,
    pub ledger: LedgerDifference,
}

pub struct Laboratory {
    server: Server,
    scratch: Scratch,
    version: String,
    log: Driver,
    hog: Option<Driver>,
}

impl Laboratory {
    /// `None` if the version is not available here.
    pub fn open(version: &str) -> Option<Self> {
        let scratch = Scratch::on_disk(PROGRAM);
        let log_dir = scratch.path().join("log");
        fs::create_dir(&log_dir).expect("a directory");
        let log = Driver::slow_log_reader(&log_dir.join("pipe"));
        let mut config = ServerConfig {
            tcp: true,
            ..servers::config_on_disk()
        };
        let log_dir = log_dir.display().to_string();
        for (name, value) in [
            ("logging_collector", "on"),
            ("log_directory", log_dir.as_str()),
            ("log_filename", "pipe"),
            ("log_rotation_size", "0"),
            ("log_rotation_age", "0"),
            ("log_line_prefix", ""),
            ("log_error_verbosity", "terse"),
            ("log_min_error_statement", "panic"),
            ("log_checkpoints", "off"),
            ("autovacuum", "off"),
            ("max_connections", "200"),
            ("checkpoint_timeout", "1d"),
        ] {
            config.settings.insert(name.to_owned(), value.to_owned());
        }
        let server = servers::start_with(version, &config)?;
        Some(Self {
            server,
            scratch,
            version: version.to_owned(),
            log,
            hog: None,
        })
    }

    /// Whether this can be injected here, or why not.
    pub fn permits(&mut self, case: Case) -> Result<(), String> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        if case != Case::Client || self.hog.is_some() {
            return Ok(());
        }
        if processors < 2 {
            return Err("client and server need separate CPUs".to_owned());
        }
        let hog = Driver::hog(&self.hogs_pipe(), CLIENTS_CPU);
        self.hog = Some(hog.map_err(|error| format!("no real-time thread: {error}"))?);
        Ok(())
    }

    fn hogs_pipe(&self) -> PathBuf {
        self.scratch.path().join("hog")
    }

    /// Compares a variant with the injection to one without.
    pub fn inject(&self, case: Case, clients: u32, length: &Length) -> Landing {
        let burns = case == Case::Cpu;
        let loops = if burns { self.loops(clients) } else { 0 };
        let burn_us = || if burns { self.burn_us(loops) } else { 0.0 };
        let before_us = burn_us();
        let driver = self.driver(case);
        driver.take_holds();
        let run = self.measure(case, clients, loops, length);
        let held = Held {
            holds: driver.take_holds(),
            burn_us: f64::midpoint(before_us, burn_us()),
        };
        landing(case, clients, &held, &run)
    }

    /// Runs the comparison; `loops` is the argument of `burn`.
    pub fn measure(&self, case: Case, clients: u32, loops: u64, length: &Length) -> Run {
        // pgassay starts relays only for its own servers.
        let server = if case == Case::Relay {
            format!(
                "version = \"{}\"\nsettings = {{ fsync = false }}",
                self.version
            )
        } else {
            format!("dsn = \"{}\"", self.server.conninfo())
        };
        let pipe = self.hogs_pipe().display().to_string();
        let study = case.study(clients, &server, loops, &pipe, length);
        self.run(case, &study)
    }

    /// The argument with which the burning function takes as long as is asked for.
    fn loops(&self, clients: u32) -> u64 {
        let asked_us = f64::from(Case::Cpu.asked_us(clients));
        let calibrated_us = self.burn_us(CALIBRATION_LOOPS);
        (asked_us / calibrated_us * CALIBRATION_LOOPS as f64) as u64
    }

    /// The mean CPU time of the loops in several sessions.
    fn burn_us(&self, loops: u64) -> f64 {
        let of_a_session = |_| {
            std::thread::sleep(BETWEEN_CALIBRATIONS);
            let mut burner = Burner::new(&self.server);
            for _ in 0..WARM_UP_CALLS {
                burner.call_us(loops);
            }
            burner.us(loops)
        };
        let sum: f64 = (0..CALIBRATION_SESSIONS).map(of_a_session).sum();
        sum / CALIBRATION_SESSIONS as f64
    }

    fn driver(&self, case: Case) -> &Driver {
        let hog = self.hog.as_ref().filter(|_| case == Case::Client);
        hog.unwrap_or(&self.log)
    }

    fn run(&self, case: Case, study: &str) -> Run {
        let path = self.scratch.study(study);
        let mut command = self.scratch.command();
        command.arg("run").arg(path).arg("--json");
        command.args(["--allow-writes", "--allow-superuser"]);
        if case == Case::Client {
            self.keep_server_to(SERVERS_CPU);
            pin_child(&mut command, CLIENTS_CPU);
        }
        let finished = Finished::of(&command.output().expect("the program runs"));
        assert_eq!(finished.code, Some(0), "{study}\n{finished:?}");
        serde_json::from_str(&finished.stdout).expect("JSON on stdout alone")
    }

    /// Backends, which start later, inherit it.
    fn keep_server_to(&self, cpu: usize) {
        pin(self.server.postmaster_pid(), cpu).expect("pin the server");
        for process in self.server.processes() {
            let _ = pin(process.pid, cpu);
        }
    }
}

fn pin_child(command: &mut std::process::Command, cpu: usize) {
    use std::os::unix::process::CommandExt;
    // SAFETY: one system call on memory of its own, which is safe between fork and exec.
    unsafe {
        command.pre_exec(move || pin(0, cpu));
    }
}

/// A session that measures the CPU time of `burn` by the kernel's statistics.
struct Burner {
    connection: Connection,
    schedstat: PathBuf,
}

impl Burner {
    fn new(server: &Server) -> Self {
        let mut connection = server.connect().expect("connect");
        connection.execute(BURN).expect("the statement succeeds");
        let pid = connection.backend_pid().expect("backend PID");
        let schedstat = Path::new("/proc").join(pid.to_string()).join("schedstat");
        Self {
            connection,
            schedstat,
        }
    }

    fn on_cpu_us(&self) -> f64 {
        let text = fs::read_to_string(&self.schedstat).expect("schedstat is readable");
        let ns = text.split(' ').next().and_then(|it| it.parse::<f64>().ok());
        ns.expect("nanoseconds come first") / 1e3
    }

    fn call_us(&mut self, loops: u64) -> f64 {
        let before_us = self.on_cpu_us();
        let sql = format!("select burn({loops})");
        self.connection.query(&sql).expect("the query succeeds");
        self.on_cpu_us() - before_us
    }

    /// The CPU time of the loops alone: a call with them minus one without, medians of several calls.
    fn us(&mut self, loops: u64) -> f64 {
        let mut median = |loops| {
            let mut all: Vec<f64> = (0..CALIBRATION_CALLS)
                .map(|_| self.call_us(loops))
                .collect();
            all.sort_by(f64::total_cmp);
            all[CALIBRATION_CALLS / 2]
        };
        median(loops) - median(0)
    }
}

fn landing(case: Case, clients: u32, held: &Held, run: &Run) -> Landing {
    let comparison = &run.comparisons[0];
    let ledger = comparison.ledger.clone().expect("both sides have one");
    let figure = Figure::of;
    let mut named = Figure::default();
    let (mut other, mut marked) = ((String::new(), Figure::default()), Vec::new());
    for group in &ledger.groups {
        let of_group = figure(&group.cost);
        if case.is_its(group) {
            named.us += of_group.us;
            named.half_width_us += of_group.half_width_us;
            continue;
        }
        if group.cost.change != Change::Inconclusive {
            marked.push(group.cost.name.clone());
        }
        if case.queues(clients) && group.part == Part::RunQueue {
            continue;
        }
        if other.0.is_empty() || of_group.beyond_us() > other.1.beyond_us() {
            other = (group.cost.name.clone(), of_group);
        }
    }
    let baseline_us = ledger.response.baseline_us;
    Landing {
        injected_us: case.injected_us(clients, held, baseline_us),
        named,
        other,
        marked,
        response: figure(&ledger.response),
        others_share: run
            .trials
            .iter()
            .map(|it| it.other_programs + it.cpu_steal)
            .sum::<f64>()
            / run.trials.len().max(1) as f64,
        ledger,
    }
}

impl Figure {
    pub fn of(row: &CostRow) -> Self {
        Self {
            us: row.difference_us,
            half_width_us: (row.high_us - row.low_us) / 2.0,
        }
    }

    /// The part of the difference beyond its noise.
    pub fn beyond_us(&self) -> f64 {
        (self.us.abs() - self.half_width_us).max(0.0)
    }
}

impl Landing {
    /// Relative error of the named row.
    pub fn error(&self) -> f64 {
        self.named.us / self.injected_us - 1.0
    }

    pub fn tolerance_us(&self) -> f64 {
        WITHIN_SHARE * self.injected_us + WITHIN_US
    }

    /// Whether the named row increased by the injected delay.
    pub fn is_in_its_row(&self) -> bool {
        (self.named.us - self.injected_us).abs() <= self.tolerance_us()
    }

    /// Whether another row moved by more than its noise and the named row's tolerance.
    pub fn is_elsewhere(&self) -> bool {
        self.other.1.beyond_us() > self.tolerance_us()
    }
}
