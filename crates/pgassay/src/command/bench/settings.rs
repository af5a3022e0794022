//! Settings from the command line, checked in pgbench's order, so that of several errors the same one
//! is reported. Source: `main` in pgbench.c.

use pgassay_load::IoChoice;
use pgassay_script::{Compat, ParseOptions, QueryProtocol, SCRIPTS_MAX, VariableNames};

use super::cpus;
use super::message::{self, Exit, fatal};
use super::number::{integer, leading_double, leading_integer};
use super::options::{Found, Opt, OptionReader};
use super::scripts::{find_builtin, list_builtins, parse, read_script, show_script, weight};
use super::seed::seed;
use super::system::open_files_max;

/// The steps of `-I`.
const INIT_STEPS: &str = "dtgGvpf";
const INIT_STEPS_DEFAULT: &str = "dtgvp";
const TRANSACTIONS_DEFAULT: u32 = 10;
/// Files that pgbench has open in addition to one socket per client.
const FILES_BESIDE_CLIENTS: u64 = 3;

/// The partitioning of `pgbench_accounts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "mpi", derive(serde::Serialize, serde::Deserialize))]
pub enum PartitionMethod {
    Range,
    Hash,
}

impl PartitionMethod {
    /// The SQL keyword.
    pub fn name(self) -> &'static str {
        match self {
            Self::Range => "range",
            Self::Hash => "hash",
        }
    }
}

/// A script from the command line; it is parsed again once the protocol is known.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "mpi", derive(serde::Serialize, serde::Deserialize))]
pub struct ScriptText {
    pub name: String,
    pub text: Vec<u8>,
    pub weight: u32,
}

/// Connection options.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "mpi", derive(serde::Serialize, serde::Deserialize))]
pub struct ConnectionOptions {
    pub host: Option<String>,
    pub port: Option<String>,
    pub user: Option<String>,
    pub database: Option<String>,
}

/// All settings.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "mpi", derive(serde::Serialize, serde::Deserialize))]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub struct Settings {
    #[cfg_attr(feature = "mpi", serde(with = "super::ranks::remote::CompatName"))]
    pub compat: Compat,
    pub connection: ConnectionOptions,
    pub is_initialization: bool,
    pub init_steps: Option<String>,
    pub no_vacuum: bool,
    pub vacuum_all: bool,
    pub scale: i32,
    pub scale_given: bool,
    pub fillfactor: i32,
    pub partitions: i32,
    pub partition_method: Option<PartitionMethod>,
    pub tablespace: Option<String>,
    pub index_tablespace: Option<String>,
    pub unlogged: bool,
    pub foreign_keys: bool,
    pub quiet: bool,
    pub clients: i32,
    pub threads: i32,
    pub transactions: Option<u32>,
    pub duration_s: Option<u32>,
    pub connects: bool,
    #[cfg_attr(feature = "mpi", serde(with = "super::ranks::remote::ProtocolName"))]
    pub protocol: QueryProtocol,
    pub variables: Vec<(String, String)>,
    pub scripts: Vec<ScriptText>,
    pub uses_builtin: bool,
    pub rate_per_s: Option<f64>,
    pub latency_limit_us: Option<u64>,
    pub progress_s: Option<u32>,
    pub progress_timestamp: bool,
    pub per_command: bool,
    pub log: bool,
    pub log_prefix: Option<String>,
    pub sampling_rate: Option<f64>,
    pub aggregate_s: Option<u32>,
    pub failures_detailed: bool,
    pub tries_max: u32,
    pub verbose_errors: bool,
    pub exit_on_abort: bool,
    pub continue_on_error: bool,
    pub seed: u64,
    pub percentiles: Option<Vec<f64>>,
    pub json: bool,
    pub io: IoChoice,
    /// The CPUs of the threads, which take them in turn; if empty, the kernel chooses.
    pub cpus: Vec<usize>,
    pub hdr_log: Option<String>,
    /// The connection strings of ranks: rank `r` uses number `r` modulo their number.
    pub rank_dsns: Vec<String>,
    /// Whether to print pgassay's additional lines after the report.
    pub prints_additions: bool,
    has_benchmarking: bool,
    has_initialization: bool,
}

impl Settings {
    fn new(compat: Compat, seed: u64) -> Self {
        Self {
            compat,
            connection: ConnectionOptions::default(),
            is_initialization: false,
            init_steps: None,
            no_vacuum: false,
            vacuum_all: false,
            scale: 1,
            scale_given: false,
            fillfactor: 100,
            partitions: 0,
            partition_method: None,
            tablespace: None,
            index_tablespace: None,
            unlogged: false,
            foreign_keys: false,
            quiet: false,
            clients: 1,
            threads: 1,
            transactions: None,
            duration_s: None,
            connects: false,
            protocol: QueryProtocol::Simple,
            variables: Vec::new(),
            scripts: Vec::new(),
            uses_builtin: false,
            rate_per_s: None,
            latency_limit_us: None,
            progress_s: None,
            progress_timestamp: false,
            per_command: false,
            log: false,
            log_prefix: None,
            sampling_rate: None,
            aggregate_s: None,
            failures_detailed: false,
            tries_max: 1,
            verbose_errors: false,
            exit_on_abort: false,
            continue_on_error: false,
            seed,
            percentiles: None,
            json: false,
            io: IoChoice::Auto,
            cpus: Vec::new(),
            hdr_log: None,
            rank_dsns: Vec::new(),
            prints_additions: false,
            has_benchmarking: false,
            has_initialization: false,
        }
    }

    /// Parses the arguments, without the program name.
    ///
    /// # Errors
    /// After an error, which was already reported, or after an option such as `-b list`.
    pub fn read(words: &[String], compat: Compat) -> Result<Self, Exit> {
        let from_environment = std::env::var("PGBENCH_RANDOM_SEED").ok();
        let seed = seed(from_environment.as_deref()).ok_or_else(|| {
            fatal("error while setting random seed from PGBENCH_RANDOM_SEED environment variable")
        })?;
        let mut settings = Self::new(compat, seed);
        let is_posix = std::env::var_os("POSIXLY_CORRECT").is_some();
        let mut reader = OptionReader::new(words, compat, is_posix);
        while let Some(found) = reader.next() {
            match found {
                Ok(found) => settings.take(&found)?,
                Err(refusal) => {
                    message::write_stderr(&format!("{}: {refusal}\n", message::program()));
                    return Err(try_help());
                }
            }
        }
        settings.complete(reader.into_arguments())?;
        Ok(settings)
    }

    fn take(&mut self, found: &Found) -> Result<(), Exit> {
        let value = found.value.as_str();
        match found.opt {
            Opt::Dbname => self.connection.database = Some(value.to_owned()),
            Opt::Host => self.connection.host = Some(value.to_owned()),
            Opt::Port => self.connection.port = Some(value.to_owned()),
            Opt::Username => self.connection.user = Some(value.to_owned()),
            Opt::Debug => message::set_debugging(),
            Opt::NoVacuum => self.no_vacuum = true,
            Opt::Initialize => self.is_initialization = true,
            Opt::Scale => {
                self.scale_given = true;
                self.scale = integer(value, "-s/--scale", 1, i32::MAX)?;
            }
            Opt::ShowScript => return Err(show_script(value)),
            // Parsed before all others; see `compat` in `mod.rs`.
            Opt::Compat => {}
            Opt::Io => {
                self.io = match value {
                    "auto" => IoChoice::Auto,
                    "epoll" => IoChoice::Epoll,
                    "uring" => IoChoice::Uring,
                    _ => {
                        return Err(fatal(&format!(
                            "invalid value \"{value}\" for option --io: expecting auto, epoll or uring"
                        )));
                    }
                };
            }
            Opt::InitSteps
            | Opt::Quiet
            | Opt::Fillfactor
            | Opt::UnloggedTables
            | Opt::Tablespace
            | Opt::IndexTablespace
            | Opt::ForeignKeys
            | Opt::Partitions
            | Opt::PartitionMethod => {
                self.has_initialization = true;
                self.take_initialization(found.opt, value)?;
            }
            _ => {
                self.take_benchmarking(found.opt, value)?;
                self.has_benchmarking = true;
            }
        }
        Ok(())
    }

    fn take_initialization(&mut self, opt: Opt, value: &str) -> Result<(), Exit> {
        match opt {
            Opt::InitSteps => {
                check_init_steps(value)?;
                self.init_steps = Some(value.to_owned());
            }
            Opt::Quiet => self.quiet = true,
            Opt::Fillfactor => self.fillfactor = integer(value, "-F/--fillfactor", 10, 100)?,
            Opt::UnloggedTables => self.unlogged = true,
            Opt::Tablespace => self.tablespace = Some(value.to_owned()),
            Opt::IndexTablespace => self.index_tablespace = Some(value.to_owned()),
            Opt::ForeignKeys => self.foreign_keys = true,
            Opt::Partitions => self.partitions = integer(value, "--partitions", 0, i32::MAX)?,
            _ => {
                self.partition_method = Some(match value.to_ascii_lowercase().as_str() {
                    "range" => PartitionMethod::Range,
                    "hash" => PartitionMethod::Hash,
                    _ => {
                        return Err(fatal(&format!(
                            "invalid partition method, expecting \"range\" or \"hash\", got: \"{value}\""
                        )));
                    }
                });
            }
        }
        Ok(())
    }

    fn take_benchmarking(&mut self, opt: Opt, value: &str) -> Result<(), Exit> {
        match opt {
            Opt::Builtin if value == "list" => {
                list_builtins();
                return Err(Exit(0));
            }
            Opt::Builtin => {
                let (name, weight) = weight(value)?;
                self.add_builtin(name, weight)?;
            }
            Opt::SelectOnly => self.add_builtin("select-only", 1)?,
            Opt::SkipSomeUpdates => self.add_builtin("simple-update", 1)?,
            Opt::File => {
                let (name, weight) = weight(value)?;
                let text = read_script(name)?;
                self.add_script(name, text, weight)?;
            }
            Opt::Client => {
                // 15 to 15.18 print a wrong option name here.
                let name = if self.compat == Compat::V15 {
                    "-c/--clients"
                } else {
                    "-c/--client"
                };
                self.clients = integer(value, name, 1, i32::MAX)?;
                check_open_files(u64::from(self.clients.unsigned_abs()) + FILES_BESIDE_CLIENTS)?;
            }
            Opt::Jobs => self.threads = integer(value, "-j/--jobs", 1, i32::MAX)?,
            Opt::Connect => self.connects = true,
            Opt::Define => self.define(value)?,
            Opt::Protocol => {
                self.protocol = QueryProtocol::from_name(value)
                    .ok_or_else(|| fatal(&format!("invalid query mode (-M): \"{value}\"")))?;
            }
            Opt::VacuumAll => self.vacuum_all = true,
            Opt::Transactions => {
                let count = integer(value, "-t/--transactions", 1, i32::MAX)?;
                self.transactions = Some(count.unsigned_abs());
            }
            Opt::Time => {
                self.duration_s = Some(integer(value, "-T/--time", 1, i32::MAX)?.unsigned_abs());
            }
            _ => self.take_measuring(opt, value)?,
        }
        Ok(())
    }

    fn take_measuring(&mut self, opt: Opt, value: &str) -> Result<(), Exit> {
        let positive = |what: &str| {
            let number = leading_double(value);
            if number > 0.0 {
                Ok(number)
            } else {
                Err(fatal(&format!("invalid {what}: \"{value}\"")))
            }
        };
        match opt {
            Opt::Rate => self.rate_per_s = Some(positive("rate limit")?),
            Opt::LatencyLimit => {
                let limit_us = (positive("latency limit")? * 1000.0) as u64;
                self.latency_limit_us = Some(limit_us).filter(|us| *us > 0);
            }
            Opt::Progress => {
                let every_s = integer(value, "-P/--progress", 1, i32::MAX)?;
                self.progress_s = Some(every_s.unsigned_abs());
            }
            Opt::ProgressTimestamp => self.progress_timestamp = true,
            Opt::ReportPerCommand => self.per_command = true,
            Opt::Log => self.log = true,
            Opt::LogPrefix => self.log_prefix = Some(value.to_owned()),
            Opt::SamplingRate => {
                let rate = leading_double(value);
                if rate <= 0.0 || rate > 1.0 || rate.is_nan() {
                    return Err(fatal(&format!("invalid sampling rate: \"{value}\"")));
                }
                self.sampling_rate = Some(rate);
            }
            Opt::AggregateInterval => {
                let interval_s = integer(value, "--aggregate-interval", 1, i32::MAX)?;
                self.aggregate_s = Some(interval_s.unsigned_abs());
            }
            Opt::FailuresDetailed => self.failures_detailed = true,
            Opt::MaxTries => {
                self.tries_max = u32::try_from(leading_integer(value))
                    .map_err(|_| fatal(&format!("invalid number of maximum tries: \"{value}\"")))?;
            }
            Opt::VerboseErrors => self.verbose_errors = true,
            Opt::ExitOnAbort => self.exit_on_abort = true,
            Opt::ContinueOnError => self.continue_on_error = true,
            Opt::RandomSeed => {
                self.seed = seed(Some(value)).ok_or_else(|| {
                    fatal("error while setting random seed from --random-seed option")
                })?;
            }
            Opt::LatencyPercentiles => self.percentiles = Some(percentiles(value)?),
            Opt::Json => self.json = true,
            Opt::HdrLog => self.hdr_log = Some(value.to_owned()),
            Opt::Cpus => self.cpus = cpus::parse(value)?,
            Opt::RankDsn => self.rank_dsns.push(value.to_owned()),
            _ => unreachable!("{opt:?} is taken elsewhere"),
        }
        Ok(())
    }

    fn add_builtin(&mut self, name: &str, weight: u32) -> Result<(), Exit> {
        let builtin = find_builtin(name)?;
        self.uses_builtin = true;
        self.add_script(builtin.title, builtin.text.into(), weight)
    }

    /// Adds a script, after the checks that do not depend on later options.
    fn add_script(&mut self, name: &str, text: Vec<u8>, weight: u32) -> Result<(), Exit> {
        let options = ParseOptions {
            protocol: QueryProtocol::Simple,
            compat: self.compat,
        };
        parse(name, &text, options, &mut VariableNames::new())?;
        if self.scripts.len() == SCRIPTS_MAX {
            return Err(fatal(&format!(
                "at most {SCRIPTS_MAX} SQL scripts are allowed"
            )));
        }
        self.scripts.push(ScriptText {
            name: name.to_owned(),
            text,
            weight,
        });
        Ok(())
    }

    fn define(&mut self, value: &str) -> Result<(), Exit> {
        let invalid = || fatal(&format!("invalid variable definition: \"{value}\""));
        let (name, text) = value.split_once('=').ok_or_else(invalid)?;
        if name.is_empty() || text.is_empty() {
            return Err(invalid());
        }
        VariableNames::new()
            .define("option", name)
            .map_err(|error| fatal(&error.to_string()))?;
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_owned(), text.to_owned()));
        Ok(())
    }

    fn complete(&mut self, arguments: Vec<String>) -> Result<(), Exit> {
        if self.scripts.is_empty() && !self.is_initialization {
            self.add_builtin("tpcb-like", 1)?;
            self.has_benchmarking = true;
        }
        let weights: u64 = self
            .scripts
            .iter()
            .map(|script| u64::from(script.weight))
            .sum();
        if weights == 0 && !self.is_initialization {
            return Err(fatal("total script weight must not be zero"));
        }
        self.threads = self.threads.min(self.clients);
        let mut arguments = arguments.into_iter();
        if self.connection.database.is_none() {
            self.connection.database = arguments.next();
        }
        if let Some(first) = arguments.next() {
            message::error(&format!(
                "too many command-line arguments (first is \"{first}\")"
            ));
            return Err(try_help());
        }
        if self.is_initialization {
            return self.check_initialization();
        }
        if self.has_initialization {
            return Err(fatal(
                "some of the specified options cannot be used in benchmarking mode",
            ));
        }
        self.check_benchmarking()
    }

    fn check_initialization(&mut self) -> Result<(), Exit> {
        if self.has_benchmarking {
            return Err(fatal(
                "some of the specified options cannot be used in initialization (-i) mode",
            ));
        }
        if self.partitions == 0 && self.partition_method.is_some() {
            return Err(fatal(
                "--partition-method requires greater than zero --partitions",
            ));
        }
        if self.partitions > 0 {
            self.partition_method.get_or_insert(PartitionMethod::Range);
        }
        let steps = self
            .init_steps
            .get_or_insert_with(|| INIT_STEPS_DEFAULT.to_owned());
        if self.no_vacuum {
            *steps = steps.replace('v', " ");
        }
        if self.foreign_keys && !steps.contains('f') {
            steps.push('f');
        }
        Ok(())
    }

    fn check_benchmarking(&mut self) -> Result<(), Exit> {
        if self.transactions.is_some() && self.duration_s.is_some() {
            return Err(fatal(
                "specify either a number of transactions (-t) or a duration (-T), not both",
            ));
        }
        if self.duration_s.is_none() {
            self.transactions.get_or_insert(TRANSACTIONS_DEFAULT);
        }
        let interval = self.aggregate_s;
        let refusal = match self.duration_s {
            _ if self.sampling_rate.is_some() && !self.log => {
                "log sampling (--sampling-rate) is allowed only when logging transactions (-l)".into()
            }
            _ if self.sampling_rate.is_some() && interval.is_some() => {
                "log sampling (--sampling-rate) and aggregation (--aggregate-interval) cannot be used at the same time".into()
            }
            _ if interval.is_some() && !self.log => {
                "log aggregation is allowed only when actually logging transactions".into()
            }
            _ if self.log_prefix.is_some() && !self.log => {
                "log file prefix (--log-prefix) is allowed only when logging transactions (-l)".into()
            }
            Some(duration) if interval.is_some_and(|interval| interval > duration) => format!(
                "number of seconds for aggregation ({}) must not be higher than test duration ({duration})",
                interval.unwrap_or_default()
            ),
            Some(duration) if interval.is_some_and(|interval| !duration.is_multiple_of(interval)) => format!(
                "duration ({duration}) must be a multiple of aggregation interval ({})",
                interval.unwrap_or_default()
            ),
            _ if self.progress_timestamp && self.progress_s.is_none() => {
                "--progress-timestamp is allowed only under --progress".into()
            }
            None if self.tries_max == 0 && self.latency_limit_us.is_none() => {
                "an unlimited number of transaction tries can only be used with --latency-limit or a duration (-T)".into()
            }
            _ => return Ok(()),
        };
        Err(fatal(&refusal))
    }

    /// Whether pgbench measures and reports the latency of each transaction.
    pub fn measures_latency(&self) -> bool {
        self.rate_per_s.is_some() || self.progress_s.is_some() || self.latency_limit_us.is_some()
    }
}

fn try_help() -> Exit {
    message::hint(&format!(
        "Try \"{} --help\" for more information.",
        message::command()
    ));
    Exit(1)
}

/// Rejects what needs more open files than the hard limit allows. The load engine raises the soft
/// limit as needed, as pgbench does since 18.
pub(super) fn check_open_files(needed: u64) -> Result<(), Exit> {
    let most = open_files_max().map_err(|error| fatal(&format!("getrlimit failed: {error}")))?;
    if needed <= most {
        return Ok(());
    }
    message::error(&format!(
        "need at least {needed} open files, but system limit is {most}"
    ));
    message::hint("Reduce number of clients, or use limit/ulimit to increase the system limit.");
    Err(Exit(1))
}

fn check_init_steps(steps: &str) -> Result<(), Exit> {
    if steps.is_empty() {
        return Err(fatal("no initialization steps specified"));
    }
    let unknown = |step: &char| *step != ' ' && !INIT_STEPS.contains(*step);
    if let Some(step) = steps.chars().find(unknown) {
        message::error(&format!("unrecognized initialization step \"{step}\""));
        message::detail(&format!("Allowed step characters are: \"{INIT_STEPS}\"."));
        return Err(Exit(1));
    }
    Ok(())
}

/// Parses `--latency-percentiles=50,99.9`, or returns the default percentiles.
fn percentiles(list: &str) -> Result<Vec<f64>, Exit> {
    if list.is_empty() {
        return Ok(vec![50.0, 90.0, 95.0, 99.0, 99.9]);
    }
    list.split(',')
        .map(|text| match text.trim().parse() {
            Ok(percentile) if (0.0..=100.0).contains(&percentile) => Ok(percentile),
            _ => Err(fatal(&format!(
                "invalid percentile \"{text}\" for option --latency-percentiles: expecting 0 to 100"
            ))),
        })
        .collect()
}
