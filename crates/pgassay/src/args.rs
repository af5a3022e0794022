//! The flags of the subcommands; those of `bench`, `calibrate`, `count` and `timing` are with their code.

use std::fmt::Display;
use std::num::ParseIntError;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use pgassay_lab::ServerOptions;
use pgassay_model::study::{HumanDuration, Percentage, limits};
use pgassay_report::ExportFormat;
use pgassay_wire::conninfo::ConninfoError;

use crate::command::profile::overhead::OverheadLimit;
use crate::psql_options::PsqlOptions;

/// Parses a whole number within limits, which the message about anything else gives.
pub fn within<T>(limits: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: Clone + Display + FromStr + PartialOrd,
{
    move |text| {
        let number = text.parse().ok().filter(|it| limits.contains(it));
        let (low, high) = (limits.start(), limits.end());
        number.ok_or_else(|| format!("expected a whole number from {low} to {high}"))
    }
}

/// Parses a number of pairs of trials.
pub fn pairs(text: &str) -> Result<u32, String> {
    let pairs: u32 = text.parse().map_err(|it: ParseIntError| it.to_string())?;
    if limits::PAIRS.contains(&pairs) {
        return Ok(pairs);
    }
    let (low, high) = (limits::PAIRS.start(), limits::PAIRS.end());
    Err(format!(
        "an interval takes at least {low} pairs of trials; the most is {high}"
    ))
}

/// When output is colored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorWhen {
    /// If stdout is a terminal or `CLICOLOR_FORCE` is set, unless `NO_COLOR` is set.
    Auto,
    /// Even if stdout is not a terminal.
    Always,
    /// Plain text.
    Never,
}

/// Flags of `pgassay run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Study file, or name of a built-in study (see `pgassay studies`).
    pub study: String,

    #[command(flatten)]
    pub choice: ChoiceArgs,

    #[command(flatten)]
    pub run: RunFlags,
}

/// Flags of all commands that run trials and store a result.
#[derive(Debug, Args)]
pub struct RunFlags {
    #[command(flatten)]
    pub server: ServerArgs,

    #[command(flatten)]
    pub results: ResultsArgs,

    #[command(flatten)]
    pub external: ExternalArgs,

    /// After the trials, also count instructions per transaction for each variant, with one
    /// client and the server under valgrind (four rounds of about 20 s per variant).
    #[arg(long)]
    pub counted: bool,

    /// After the trials, benchmark suggested fixes (FINDINGS) that change a setting, a protocol or a version, as
    /// additional variants, against the affected variant.
    #[arg(long, alias = "try-remedies")]
    pub try_fixes: bool,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// How a result is printed.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// What to print: text, markdown or csv (the comparisons), json (the complete result), or benchstat (one line per
    /// timed trial).
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: ResultFormat,

    /// Print the complete result as JSON; the same as --format json.
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

impl OutputArgs {
    /// The format that was asked for.
    pub fn chosen(&self) -> ResultFormat {
        if self.json {
            ResultFormat::Json
        } else {
            self.format
        }
    }
}

/// The format of a printed result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ResultFormat {
    /// For a terminal.
    Text,
    /// For a pull request, a web page, or an email.
    Markdown,
    /// For spreadsheets and scripts.
    Csv,
    /// The complete result.
    Json,
    /// For Go's benchstat.
    Benchstat,
}

/// Shown after the options of `pgassay resume`.
const RESUME_END: &str = "\
A gate's answer and exit status are those of pgassay gate, which lists them. A curve, a calibration and \
counts cannot be continued.";

/// Flags of `pgassay resume`.
#[derive(Debug, Args)]
#[command(after_help = RESUME_END)]
pub struct ResumeArgs {
    /// Run ID or a prefix of it, `last`, or the directory of a run [default: the newest unfinished
    /// run].
    pub run: Option<String>,

    #[command(flatten)]
    pub server: ServerArgs,

    #[command(flatten)]
    pub results: ResultsArgs,

    #[command(flatten)]
    pub external: ExternalArgs,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Of a gate, which `resume` continues with its limit.
    #[command(flatten)]
    pub gate: GateAnswerArgs,
}

/// How a gate answers: its exit statuses and files. `pgassay resume` has them, too.
#[derive(Debug, Default, Args)]
#[allow(
    clippy::doc_markdown,
    reason = "names in a help text have no backticks"
)]
pub struct GateAnswerArgs {
    /// If the run is a gate, use exit statuses that `git bisect run` understands.
    #[arg(long)]
    pub bisect: bool,

    /// In the JUnit file, report a variant that is inconclusive or cannot be compared as an error instead of a
    /// skipped test.
    #[arg(long)]
    pub strict: bool,

    /// Write a JUnit file, with one test case for each comparison.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,

    /// Write the result as Markdown, for example for a comment on a pull request.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

/// Flags of `pgassay profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Database to connect to: a name, a URI, or `keyword=value …`. The connection is used to find the server's
    /// processes and to read its sessions, locks, statements and tables. For a server on another machine, sessions
    /// come from `pg_stat_activity`, and there is no CPU profile. If DBNAME and --pid are omitted, PGHOST,
    /// PGDATABASE etc. apply, as in psql.
    #[arg(value_name = "DBNAME")]
    pub database: Option<String>,

    #[command(flatten)]
    pub psql: PsqlOptions,

    /// Process ID of the postmaster (profiles all backends) or of a single backend.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,

    /// Do not keep the texts of statements, only their fingerprints. By default texts are kept without
    /// their constants.
    #[arg(long)]
    pub no_text: bool,

    /// How long to profile. Ctrl-C stops early and prints what was collected.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub duration: HumanDuration,

    /// End early if pgassay and its backends use more than this share of the CPU time of this machine (of all its
    /// CPUs) within 5 s, such as 1%. The start and the end, at which symbols and tables are read, do not count.
    #[arg(long, value_name = "PERCENT")]
    pub max_overhead: Option<OverheadLimit>,

    /// Samples per second of each busy CPU. In tests with two saturated CPUs, 99 reduced the server's throughput by 0%
    /// to 5%; more samples cost more.
    #[arg(long, value_name = "HZ", default_value_t = 99, value_parser = within::<u32>(1..=10_000))]
    pub frequency: u32,

    /// Also record where backends are blocked, by tracing context switches for 10 ms of every
    /// 150 ms. Costs another 2% to 10% of throughput. The HTML page shows both flame graphs; exports
    /// contain the blocked time.
    #[arg(long)]
    pub off_cpu: bool,

    /// Write the whole profile as an HTML page, with flame graphs.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Export the stacks; can be repeated. FORMAT is folded, speedscope, pprof, firefox, or perf
    /// (the text of `perf report --stdio`). If FILE is `-`, write to stdout instead of the
    /// summary.
    #[arg(long, value_name = "FORMAT=FILE")]
    pub export: Vec<ExportTo>,

    /// Print the complete profile as JSON.
    #[arg(long)]
    pub json: bool,
}

impl ProfileArgs {
    /// The connection to open; `None` if only a process is given. An empty one is by the environment.
    pub fn conninfo(&self) -> Result<Option<String>, ConninfoError> {
        let given = self.database.as_deref();
        let conninfo = self.psql.conninfo(given.unwrap_or_default())?;
        let is_given = given.is_some() || self.psql.names_database() || !conninfo.is_empty();
        Ok((is_given || self.pid.is_none()).then_some(conninfo))
    }
}

/// The argument of `--export`.
#[derive(Debug, Clone)]
pub struct ExportTo {
    /// The format of the stacks.
    pub format: ExportFormat,
    /// The output file; `-` is stdout.
    pub file: PathBuf,
}

impl FromStr for ExportTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = || ExportFormat::ALL.map(|(name, _)| name).join(", ");
        let Some((name, file)) = text.split_once('=').filter(|(_, file)| !file.is_empty()) else {
            return Err(format!(
                "expected FORMAT=FILE, where FORMAT is one of {}",
                known()
            ));
        };
        match ExportFormat::ALL.iter().find(|(it, _)| *it == name) {
            Some(&(_, format)) => Ok(Self {
                format,
                file: file.into(),
            }),
            None => Err(format!("unknown format {name:?}; use one of {}", known())),
        }
    }
}

/// Flags that override the study file, shared by `run` and `study plan`.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Debug, Clone, Args, Default)]
pub struct ChoiceArgs {
    /// Run the study's quick version: a shorter run, with fewer variants and conditions if the study has
    /// a [quick] section, and wider confidence intervals.
    #[arg(long, conflicts_with = "length")]
    pub quick: bool,

    /// Total measuring time, such as 10s or 2min, excluding warm-up and setup; an upper limit unless the
    /// number of pairs is fixed [default: the study's].
    #[arg(long, value_name = "TIME", value_parser = HumanDuration::parse_positive)]
    pub length: Option<HumanDuration>,

    /// Run exactly N blocks of trials, at least 2. Each block measures all variants and gives one pair, variant and
    /// baseline, per comparison. Without it (and without `pairs` in the study), each comparison ends as soon as it is
    /// decided.
    #[arg(long, value_name = "N", value_parser = pairs)]
    pub pairs: Option<u32>,

    /// Measure until the half-width of each ratio's 95% confidence interval is at most N% (such as 1%), whatever the
    /// verdict: for results that you publish. The first --length of measuring determines how many more server starts
    /// are needed.
    #[arg(long, value_name = "N%", conflicts_with = "pairs")]
    pub half_width: Option<Percentage>,

    /// End about this long after the first trial begins (such as 2min), between two blocks of trials, and report the
    /// verdicts reached so far. Their intervals remain valid. The run also ends if the server does not answer a
    /// statement within this time (at least a minute). Without --length, trials are shortened so that 6
    /// server starts fit [default: no limit].
    #[arg(long, value_name = "TIME", value_parser = HumanDuration::parse_positive, conflicts_with = "pairs")]
    pub max_time: Option<HumanDuration>,

    /// Numbers of concurrent clients, instead of the study's list.
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', value_parser = within(limits::CLIENTS))]
    pub clients: Option<Vec<u32>>,

    /// Threads of the load generator, instead of the study's.
    #[arg(short = 'j', long, value_name = "N", value_parser = within(limits::THREADS))]
    pub jobs: Option<u32>,

    /// Run only these variants; can be repeated. The first is the baseline.
    #[arg(long, value_name = "NAME,…")]
    pub variant: Option<Vec<String>>,

    /// Run only these scripts, each as a separate condition.
    #[arg(long, value_name = "NAME,…")]
    pub script: Option<Vec<String>>,

    /// Value for `${name}` in the study; can be repeated.
    #[arg(long = "param", value_name = "NAME=VALUE")]
    pub parameters: Vec<String>,

    /// PostgreSQL version, such as 18, 9.6 or 10.23, instead of the study's. With several
    /// versions, each is a separate condition (in `compare --servers`, a variant).
    #[arg(
        long = "server",
        alias = "servers",
        value_name = "VERSION,…",
        value_delimiter = ','
    )]
    pub versions: Vec<String>,

    /// Installed PostgreSQL instead of a download: the directory that contains bin/postgres, such as
    /// /usr/lib/postgresql/18.
    #[arg(long, value_name = "DIR", conflicts_with = "versions")]
    pub binaries: Option<String>,

    /// Use a running server instead of starting one. A URI or `keyword=value …`; PGHOST etc.
    /// supply missing parameters. pgassay does not reconfigure or restart it. If the study needs
    /// data, pgassay creates separate databases and drops them after the run, which requires
    /// --allow-writes.
    #[arg(long, value_name = "CONNINFO", conflicts_with_all = ["versions", "binaries"])]
    pub dsn: Option<String>,

    /// Seed for the order of trials and the scripts' random numbers; printed with the result [default: a new
    /// one for each run].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Skip the profiled trials, a fifth to a third of all: a verdict comes sooner, but the result has no breakdown of
    /// CPU time by phase and function.
    #[arg(long)]
    pub no_profile: bool,

    /// Do not run EXPLAIN on the scripts' statements after the trials; the report then does not compare
    /// query plans.
    #[arg(long)]
    pub no_plans: bool,

    #[command(flatten)]
    pub idle_cpus: IdleCpuArgs,
}

/// Whether idle CPUs sleep during a run.
#[derive(Debug, Clone, Copy, Args, Default)]
pub struct IdleCpuArgs {
    /// Do not let idle CPUs sleep during the run (requires root). With few clients, the time to wake them up is
    /// most of the noise; latencies then exclude it. Default for a study: its `keep_cpus_awake`. Default for `compare`,
    /// `gate` and `calibrate`: on, if pgassay runs as root and starts the servers.
    #[arg(long)]
    keep_cpus_awake: bool,

    /// Let idle CPUs sleep during the run, as they do in production.
    #[arg(long, conflicts_with = "keep_cpus_awake")]
    let_cpus_sleep: bool,
}

impl IdleCpuArgs {
    /// Whether to keep them awake; `None` without a flag.
    pub fn are_kept_awake(self) -> Option<bool> {
        let any = self.keep_cpus_awake || self.let_cpus_sleep;
        any.then_some(self.keep_cpus_awake)
    }
}

/// How servers are found and run.
#[derive(Debug, Args, Default)]
pub struct ServerArgs {
    /// Download nothing; use cached or installed PostgreSQL versions.
    #[arg(long)]
    pub offline: bool,

    /// Mirror of Maven Central to download PostgreSQL from. Must begin with https://, unless it is
    /// on this machine.
    // Its URL may have a password.
    #[arg(
        long,
        value_name = "URL",
        env = "PGASSAY_MIRROR",
        hide_env_values = true
    )]
    pub mirror: Option<String>,

    /// Directory for downloaded PostgreSQL versions [default: ~/.cache/pgassay; as root
    /// /var/cache/pgassay].
    #[arg(long, value_name = "DIR", env = "PGASSAY_CACHE")]
    pub cache: Option<PathBuf>,

    /// Operating system user for the servers if pgassay runs as root, because PostgreSQL refuses
    /// to run as root [default: nobody].
    #[arg(long, value_name = "USER")]
    pub run_as: Option<String>,

    /// Directory in which to create temporary data directories, on the disk that you want to
    /// measure [default: $TMPDIR or /tmp; /var/tmp if /tmp is in memory].
    #[arg(long, value_name = "DIR")]
    pub data_parent: Option<PathBuf>,
}

impl ServerArgs {
    /// As the laboratory takes them.
    pub fn options(&self) -> ServerOptions {
        ServerOptions {
            offline: self.offline,
            mirror: self.mirror.clone(),
            cache: self.cache.clone(),
            run_as: self.run_as.clone(),
            data_parent: self.data_parent.clone(),
            ..ServerOptions::default()
        }
    }
}

/// What a study may do on external servers.
#[derive(Debug, Clone, Copy, Args, Default)]
pub struct ExternalArgs {
    /// Allow the run to change external servers (`--dsn`, or `dsn` in a study): create databases,
    /// which it drops after the run, and execute statements that change anything outside them.
    /// Without it, the planned changes are printed, and nothing is changed.
    #[arg(long)]
    pub allow_writes: bool,

    /// Allow the run to connect to external servers as a superuser.
    #[arg(long)]
    pub allow_superuser: bool,

    /// Allow using your passwords (password file, connection service file, PGPASSWORD) for external
    /// servers that a study names (`dsn`). Servers that you name on the command line, and a password
    /// in a study's `dsn`, need no permission.
    #[arg(long)]
    pub allow_passwords: bool,
}

/// Where results are stored.
#[derive(Debug, Args, Default)]
pub struct ResultsArgs {
    /// Directory for results [default: ~/.local/share/pgassay/runs].
    #[arg(long, value_name = "DIR", env = "PGASSAY_RESULTS")]
    pub results: Option<PathBuf>,
}

/// Flags of commands whose only option is the output format.
#[derive(Debug, Args)]
pub struct JsonArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The subcommands of `pgassay study`.
#[derive(Debug, Subcommand)]
pub enum StudyCommand {
    /// Ask a few questions and write a study file.
    New(NewArgs),
    #[command(flatten)]
    Existing(ExistingStudyCommand),
}

/// Flags of `pgassay study new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// File to write; `-` is stdout [default: asks, and suggests study.toml]. An existing file is replaced
    /// only if you agree, on a terminal.
    pub file: Option<PathBuf>,

    /// Ask nothing: take the default of every question. Without this flag, if stdin is not a terminal, its lines
    /// are the answers, and missing lines mean the defaults.
    #[arg(short, long)]
    pub yes: bool,
}

/// The subcommands of `pgassay study` for a study that there is.
#[derive(Debug, Subcommand)]
pub enum ExistingStudyCommand {
    /// Check a study file: its keys, names, parameters and scripts.
    Check {
        /// Study file, or name of a built-in study.
        study: String,
    },
    /// Print the servers, the order of trials, and the estimated duration.
    Plan {
        /// Study file, or name of a built-in study.
        study: String,
        #[command(flatten)]
        choice: Box<ChoiceArgs>,
        /// Print the order of trials of all blocks, not only of the first.
        #[arg(long)]
        all_blocks: bool,
        /// Print the plan as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the text of a study, for example as a template for your own.
    Show {
        /// Study file, or name of a built-in study.
        study: String,
    },
    /// Print the JSON Schema for study files, for use in editors.
    Schema,
}

/// Flags of `pgassay list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// List only the N newest runs [default: all].
    #[arg(short = 'n', long, value_name = "N")]
    pub limit: Option<usize>,
    #[command(flatten)]
    pub results: ResultsArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Flags of `pgassay show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Run ID or a prefix of it, `last`, the directory of a run, or a JSON file of `profile` or `top`.
    #[arg(default_value = "last")]
    pub run: String,
    #[command(flatten)]
    pub results: ResultsArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `pgassay report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Run ID or a prefix of it, `last`, the directory of a run, or a JSON file of `profile` or `top`.
    #[arg(default_value = "last")]
    pub run: String,
    #[command(flatten)]
    pub results: ResultsArgs,
    /// Output file; `-` is stdout [default: report.html in the run's directory, or the JSON file's
    /// name with .html].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
