//! The command line: its subcommands.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::args::{
    ColorWhen, JsonArgs, ListArgs, ProfileArgs, ReportArgs, ResumeArgs, RunArgs, ShowArgs,
    StudyCommand,
};
use crate::psql_options::AFTER_ALL;

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
    pub command: CliCommand,

    /// When to use color.
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        display_order = AFTER_ALL
    )]
    pub color: ColorWhen,

    /// Log more to stderr (-v: informational messages, -vv: debug messages).
    #[arg(
        short,
        long,
        global = true,
        action = clap::ArgAction::Count,
        display_order = AFTER_ALL
    )]
    pub verbose: u8,
}

impl Cli {
    /// Parses the command line.
    ///
    /// # Errors
    /// What is wrong with it, or a request for help.
    pub fn parse_all() -> Result<Self, clap::Error> {
        let words = with_help_first(std::env::args_os().collect());
        let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|it| it.is_empty());
        let command = without_empty_variables(Self::command(), &is_empty);
        let matches = command.try_get_matches_from(words.into_iter().map(no_option))?;
        let parsed = Self::from_arg_matches(&matches);
        let mut cli = parsed.map_err(|error| error.format(&mut Self::command()))?;
        if let Some((_, of_command)) = matches.subcommand() {
            cli.complete(of_command);
        }
        Ok(cli)
    }

    /// Adds what clap's derived structures do not have.
    fn complete(&mut self, matches: &ArgMatches) {
        let args = match &mut self.command {
            CliCommand::Compare(args) => args.as_mut(),
            CliCommand::Gate(args) => &mut args.question,
            _ => return,
        };
        args.note_positions(matches);
        args.join_directories();
    }
}

/// The command, for which an environment variable that is empty is not set.
fn without_empty_variables(command: Command, is_empty: &dyn Fn(&OsStr) -> bool) -> Command {
    let command = command.mut_args(|arg| {
        if arg.get_env().is_some_and(is_empty) {
            arg.env(None::<&'static str>)
        } else {
            arg
        }
    });
    command.mut_subcommands(|it| without_empty_variables(it, is_empty))
}

/// `pgassay help run` is `pgassay run --help`, as for git and cargo. Two commands have pgbench's and psql's help flags,
/// so clap's `help` would not do.
fn with_help_first(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Run a study and print the result.
    Run(Box<RunArgs>),
    /// Continue a run that was killed, stopped or failed: keep its completed trials and run the missing ones.
    Resume(Box<ResumeArgs>),
    /// Compare statements, settings, releases, builds or indexes, without a study file.
    Compare(Box<crate::command::compare::CompareArgs>),
    /// Fail if a variant is slower than the baseline by more than a limit: a check for CI.
    #[command(mut_args(without_refused))]
    Gate(Box<crate::command::gate::GateArgs>),
    /// Find where throughput stops scaling with the number of clients, and what limits it; or measure
    /// latency at given rates.
    Curve(Box<crate::command::curve::CurveArgs>),
    /// Profile a running server: its statements, waits, blockers, tables and indexes, and the functions
    /// that use its CPU time.
    #[command(disable_help_flag = true)]
    Profile(Box<ProfileArgs>),
    /// Watch a running server in the terminal: its statements, sessions, waits, blockers, tables and findings.
    #[command(disable_help_flag = true)]
    Top(crate::command::top::TopArgs),
    /// Count the instructions that a transaction executes, under valgrind. Counts are repeatable
    /// even on a busy machine.
    Count(Box<crate::command::count::CountArgs>),
    /// Measure the false positive rate of comparisons on this machine by comparing identical
    /// loads (A/A tests). Reports of later runs on this machine include it.
    Calibrate(crate::command::calibrate::CalibrateArgs),
    /// Run a benchmark with pgbench's options, scripts, report and exit status (see `pgassay bench
    /// --help`). A symbolic link named pgbench also runs it.
    #[command(disable_help_flag = true)]
    Bench {
        /// pgbench's arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// List the built-in studies.
    Studies(JsonArgs),
    /// Write, check, plan or print a study without running it.
    #[command(
        subcommand,
        after_help = "pgassay studies lists the built-in studies. pgassay run runs a study."
    )]
    Study(StudyCommand),
    /// List earlier runs, newest first.
    List(ListArgs),
    /// Print the result of an earlier run, or a saved profile of a live server.
    Show(ShowArgs),
    /// Write the HTML report of an earlier run, or of a saved profile of a live server.
    Report(ReportArgs),
    /// Check this machine for anything that limits measurement accuracy, and show how to fix it.
    Doctor(JsonArgs),
    /// Measure clock-read overhead, as `pg_test_timing` does, and estimate its effect on
    /// `EXPLAIN ANALYZE` and `track_io_timing`.
    Timing(crate::command::timing::TimingArgs),
}

/// SQL that begins with a comment as the parser takes it: no option has white space after its dashes.
fn no_option(argument: OsString) -> OsString {
    let after_dashes = argument.as_bytes().strip_prefix(b"--");
    let is_comment = after_dashes.is_some_and(|it| it.first().is_some_and(u8::is_ascii_whitespace));
    if !is_comment {
        return argument;
    }
    let mut sql = OsString::from(" ");
    sql.push(argument);
    sql
}

/// Hides the flags of `compare` that `gate` refuses.
fn without_refused(arg: clap::Arg) -> clap::Arg {
    let is_refused = ["pairs", "half_width", "save"].contains(&arg.get_id().as_str());
    arg.hide(is_refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `0 is not in 1..=262143`.
    #[test]
    fn a_number_out_of_limits_is_refused_with_the_limits_in_words() {
        for (line, limits) in [
            ("compare -S -c 0", "from 1 to 262143"),
            ("compare -S -s x", "from 1 to 10000"),
            ("count -S -t 0", "from 1 to 500000000"),
            ("calibrate --comparisons 0", "from 1 to 100000"),
        ] {
            let words = std::iter::once("pgassay").chain(line.split(' '));
            let error = Cli::try_parse_from(words).unwrap_err().to_string();
            let wanted = format!("expected a whole number {limits}");
            assert!(error.contains(&wanted), "{error}");
        }
        for line in ["compare -S", "count -S -t 20", "curve -S", "calibrate"] {
            let words = std::iter::once("pgassay").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
    }

    /// Regression: `PGASSAY_CACHE= pgassay list`: "a value is required", and the mirror "" was invalid.
    #[test]
    fn an_empty_environment_variable_is_not_set() {
        let names = |is_empty: bool| {
            let command = without_empty_variables(Cli::command(), &|_| is_empty);
            let run = command.find_subcommand("run").unwrap();
            let names = run.get_arguments().filter_map(clap::Arg::get_env);
            names.map(OsStr::to_owned).collect::<Vec<_>>()
        };
        assert!(names(true).is_empty());
        for name in ["PGASSAY_CACHE", "PGASSAY_MIRROR", "PGASSAY_RESULTS"] {
            assert!(names(false).contains(&name.into()), "{name}");
        }
    }

    /// Regression: `--max-time` shortened the trials although a length was given.
    #[test]
    fn a_length_that_is_given_decides_how_long_trials_are() {
        let length = |line: &str| {
            let parsed = Cli::try_parse_from(line.split(' ')).expect("a command");
            let CliCommand::Compare(args) = parsed.command else {
                panic!("another command");
            };
            crate::command::compare::overrides_of(&args).length
        };
        let given = length("pgassay compare -S --length 2min --max-time 25s");
        assert_eq!(given.expect("it is given").to_string(), "2min");
        assert!(length("pgassay compare -S --max-time 25s").is_none());
    }

    /// Regression: `unrecognized subcommand 'help'`.
    #[test]
    fn help_of_a_command_is_asked_for_as_in_git_and_cargo() {
        for (line, expected) in [
            ("pgassay help", "pgassay --help"),
            ("pgassay help run", "pgassay run --help"),
            ("pgassay help study new", "pgassay study new --help"),
            ("pgassay run help", "pgassay run help"),
        ] {
            let words = line.split(' ').map(OsString::from).collect();
            assert_eq!(with_help_first(words).join(" ".as_ref()), expected);
        }
    }

    /// Regression: `unexpected argument '-- x' found`.
    #[test]
    fn sql_that_begins_with_a_comment_is_no_option() {
        let words = ["pgassay", "compare", "-- a\nselect 1", "select 2"];
        let with_setup = ["--setup", "-- b\ncreate table t (a int)"];
        let words = words.into_iter().chain(with_setup).map(OsString::from);
        let parsed = Cli::try_parse_from(words.map(no_option)).unwrap();
        let CliCommand::Compare(args) = parsed.command else {
            panic!("another command");
        };
        assert_eq!(args.sql, [" -- a\nselect 1", "select 2"]);
        assert!(args.setup[0].ends_with("create table t (a int)"));
        for option in ["--", "--vs", "-S", "-- "] {
            let kept = no_option(option.into());
            assert_eq!(kept == option, option != "-- ", "{option}");
        }
    }

    /// Regression: `-h` printed help, and `-d` was unknown.
    #[test]
    fn a_line_for_psql_is_one_for_profile_and_top() {
        let expected = "host=db1 port=6500 user=ann dbname=shop";
        let lines = ["-d shop", "--dsn shop"].map(|it| format!("-h db1 -p 6500 -U ann {it}"));
        let both = |line| [("profile", line), ("top", line)];
        for (command, line) in lines.iter().flat_map(both) {
            let words = ["pgassay", command].into_iter().chain(line.split(' '));
            let conninfo = match Cli::try_parse_from(words).unwrap().command {
                CliCommand::Profile(args) => args.conninfo().unwrap(),
                CliCommand::Top(args) => Some(args.psql.conninfo("").unwrap()),
                other => panic!("{other:?}"),
            };
            assert_eq!(conninfo.as_deref(), Some(expected), "{command}");
        }
    }
}
