//! The command line as a type: every flag, and what following it leads to.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use pgassay_core::study::Span;
use pgassay_report::ExportFormat;

/// A performance laboratory for PostgreSQL: which is faster, by how much, and why.
#[derive(Debug, Parser)]
#[command(
    name = "pgassay",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// When to colour: auto (a terminal, and `NO_COLOR` unset), always, never.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorWhen,

    /// More about what happens, on stderr (twice: every detail).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// When output is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless `NO_COLOR` is set; `CLICOLOR_FORCE` forces it.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a study and print its answer.
    Run(Box<RunArgs>),
    /// Watch a server that runs, without a study: where its CPU time goes.
    Profile(Box<ProfileArgs>),
    /// Count what a transaction costs in instructions: exact, whatever else the machine does.
    Count(Box<crate::command::count::CountArgs>),
    /// Compare loads with themselves, and count how often a difference is found where there is none
    /// (A/A). Later answers on this machine show the figure.
    Calibrate(crate::command::calibrate::CalibrateArgs),
    /// Run a benchmark as pgbench does: its options, scripts, report and exit codes
    /// (`pgassay bench --help`; a link named pgbench does the same).
    #[command(disable_help_flag = true)]
    Bench {
        /// pgbench's arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// List the studies that come with pgassay.
    Studies(JsonArgs),
    /// Look at a study without running it.
    #[command(subcommand)]
    Study(StudyCommand),
    /// List earlier runs, newest first.
    List(ListArgs),
    /// Print the answer of an earlier run again.
    Show(ShowArgs),
    /// Write the HTML report of an earlier run again.
    Report(ReportArgs),
    /// Say what limits measurements on this machine, and what mends it.
    Doctor(JsonArgs),
    /// Measure what reading the time costs on this machine, and so what `EXPLAIN ANALYZE` and
    /// `track_io_timing` cost a server here; as `pg_test_timing` does, in nanoseconds.
    Timing(crate::command::timing::TimingArgs),
}

/// Flags of `pgassay run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// A study file, or the name of a study that comes with pgassay (`pgassay studies`).
    pub study: String,

    #[command(flatten)]
    pub choice: ChoiceArgs,

    #[command(flatten)]
    pub server: ServerArgs,

    #[command(flatten)]
    pub results: ResultsArgs,

    /// Also count what a transaction of every variant costs in instructions, after the trials,
    /// with one client under valgrind (some 20 s a variant).
    #[arg(long)]
    pub counted: bool,

    /// When trials are done, run what the findings advise as further variants, against the variant
    /// that had the trouble, as far as that is a setting, a protocol or a version.
    #[arg(long)]
    pub try_remedies: bool,

    /// Print the whole result as JSON instead of the answer in words.
    #[arg(long)]
    pub json: bool,
}

/// Flags of `pgassay profile`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").args(["pid", "dsn"]).multiple(true).required(true))]
pub struct ProfileArgs {
    /// A process of the server: its postmaster for all backends, or one backend.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,

    /// Connect to the server, which must run on this machine: finds its processes, and counts its
    /// transactions. A URI or `keyword=value …`; what is missing comes from PGHOST and the like.
    #[arg(long, value_name = "CONNINFO")]
    pub dsn: Option<String>,

    /// Watch for this long; Ctrl-C ends it sooner and still prints what was seen.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub duration: Span,

    /// Samples a second of each busy CPU. 99 cost the server less than 1 %, 999 some 8 %.
    #[arg(long, value_name = "HZ", default_value_t = 99)]
    pub frequency: u32,

    /// Observe also where the backends are blocked, from context switches in 10 ms of every 100,
    /// which cost the server 2 to 10 % more. The page has a flame graph of both; exports are of
    /// what was blocked.
    #[arg(long)]
    pub off_cpu: bool,

    /// Write a page with the flame graph.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write the stacks for another viewer; may be given again. FORMAT is folded, speedscope,
    /// pprof, firefox, or perf (the text of `perf report --stdio`); a FILE of `-` is stdout,
    /// instead of the summary.
    #[arg(long, value_name = "FORMAT=FILE")]
    pub export: Vec<ExportTo>,

    /// Print all that was seen as JSON instead of the summary.
    #[arg(long)]
    pub json: bool,
}

/// A form of stacks and where to write it.
#[derive(Debug, Clone)]
pub struct ExportTo {
    /// The form.
    pub format: ExportFormat,
    /// The file; `-` is stdout.
    pub file: PathBuf,
}

impl FromStr for ExportTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = || ExportFormat::ALL.map(|(name, _)| name).join(", ");
        let Some((name, file)) = text.split_once('=').filter(|(_, file)| !file.is_empty()) else {
            return Err(format!(
                "write FORMAT=FILE, where FORMAT is one of {}",
                known()
            ));
        };
        match ExportFormat::ALL.iter().find(|(it, _)| *it == name) {
            Some(&(_, format)) => Ok(Self {
                format,
                file: file.into(),
            }),
            None => Err(format!("there is no format {name:?}, only {}", known())),
        }
    }
}

/// What is chosen over the study file; `study plan` takes the same.
#[derive(Debug, Clone, Args, Default)]
pub struct ChoiceArgs {
    /// Use the study's quick length: wider intervals, sooner.
    #[arg(long, conflicts_with = "length")]
    pub quick: bool,

    /// Measure for this long in all (10s, 2min); warming up comes on top.
    #[arg(long, value_name = "TIME")]
    pub length: Option<Span>,

    /// Pairs per comparison; more pairs narrow the intervals.
    #[arg(long, value_name = "N")]
    pub pairs: Option<u32>,

    /// Concurrent connections, instead of the study's list.
    #[arg(short, long, value_name = "N,…", value_delimiter = ',')]
    pub clients: Option<Vec<u32>>,

    /// Only these variants, with commas between, or the flag given again; the first is the
    /// baseline.
    #[arg(long, value_name = "NAME,…")]
    pub variant: Option<Vec<String>>,

    /// Only these scripts, each a condition of its own.
    #[arg(long, value_name = "NAME,…")]
    pub script: Option<Vec<String>>,

    /// A value for `${name}` in the study; may be given again.
    #[arg(long = "param", value_name = "NAME=VALUE")]
    pub parameters: Vec<String>,

    /// PostgreSQL version, instead of the study's: 18, 9.6, 10.23. Several make each a condition
    /// of its own.
    #[arg(long = "server", value_name = "VERSION,…", value_delimiter = ',')]
    pub versions: Vec<String>,

    /// A directory with bin/postgres, instead of a version that is fetched.
    #[arg(long, value_name = "DIR", conflicts_with = "versions")]
    pub binaries: Option<String>,

    /// A server of your own that runs already, instead of the study's: a URI or `keyword=value …`;
    /// what is missing comes from PGHOST and the like. It is neither set nor restarted, and the
    /// data get databases of their own on it, which are dropped after the run.
    #[arg(long, value_name = "CONNINFO", conflicts_with_all = ["versions", "binaries"])]
    pub dsn: Option<String>,

    /// Seed of the order of trials and of the scripts' random numbers; printed with the result.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Take no CPU stacks: no account of where the time goes, and a third fewer trials.
    #[arg(long)]
    pub no_profile: bool,
}

/// How servers are found and run.
#[derive(Debug, Args, Default)]
pub struct ServerArgs {
    /// Fetch nothing: use what is cached or installed.
    #[arg(long)]
    pub offline: bool,

    /// A mirror of Maven Central to fetch PostgreSQL from.
    #[arg(long, value_name = "URL", env = "PGASSAY_MIRROR")]
    pub mirror: Option<String>,

    /// Where fetched PostgreSQL versions are kept.
    #[arg(long, value_name = "DIR", env = "PGASSAY_CACHE")]
    pub cache: Option<PathBuf>,

    /// The user that servers run as when pgassay is root, as whom PostgreSQL refuses to run
    /// [default: nobody].
    #[arg(long, value_name = "USER")]
    pub run_as: Option<String>,

    /// Where data directories are made, and removed after the run [default: the temporary
    /// directory]. It must be on the disk that is to be measured.
    #[arg(long, value_name = "DIR")]
    pub data_parent: Option<PathBuf>,
}

/// Where results are.
#[derive(Debug, Args, Default)]
pub struct ResultsArgs {
    /// Where results are kept [default: ~/.local/share/pgassay/runs].
    #[arg(long, value_name = "DIR", env = "PGASSAY_RESULTS")]
    pub results: Option<PathBuf>,
}

/// For commands that only read.
#[derive(Debug, Args)]
pub struct JsonArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The subcommands of `pgassay study`.
#[derive(Debug, Subcommand)]
pub enum StudyCommand {
    /// Check a study file: its keys, names, parameters and scripts.
    Check {
        /// A study file, or the name of a study that comes with pgassay.
        study: String,
    },
    /// Print the servers, the points, the order of the trials, and how long it will take.
    Plan {
        /// A study file, or the name of a study that comes with pgassay.
        study: String,
        #[command(flatten)]
        choice: Box<ChoiceArgs>,
        /// Print the plan as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a study's text, to start one's own from.
    Show {
        /// The name of a study that comes with pgassay, or a file.
        study: String,
    },
    /// Print the JSON Schema of study files, for editors.
    Schema,
}

/// Flags of `pgassay list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub results: ResultsArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Flags of `pgassay show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A run's id or the beginning of it, `last`, or a directory.
    #[arg(default_value = "last")]
    pub run: String,
    #[command(flatten)]
    pub results: ResultsArgs,
    /// Print the whole result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Flags of `pgassay report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// A run's id or the beginning of it, `last`, or a directory.
    #[arg(default_value = "last")]
    pub run: String,
    #[command(flatten)]
    pub results: ResultsArgs,
    /// Where to write it; `-` is stdout [default: report.html in the run's directory].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
