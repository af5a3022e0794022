//! The program pgassay: parses the command line, runs one subcommand, maps errors to exit codes.

mod args;
mod catalog;
mod checks;
mod cli;
mod command;
mod exit;
mod input_file;
mod interrupt;
mod observation_file;
mod output;
mod output_file;
mod progress;
mod psql_options;
mod results;
mod shell_word;
mod small_stack;
mod study_files;
mod style;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use pgassay_ranks::Launched;
use pgassay_rights::{self as rights, Purpose, StartedPrograms};

use args::StudyCommand;
use cli::{Cli, CliCommand};

/// Runs the command that this process was started with.
pub fn main() -> ExitCode {
    if is_for_bisect() {
        stop_bisecting_on_panic();
    }
    small_stack::with_enough_stack(run)
}

fn is_for_bisect() -> bool {
    std::env::args_os().any(|word| word == "--bisect")
}

/// `git bisect run` would take 101, the exit status of a panic, for a bad commit.
fn stop_bisecting_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(i32::from(exit::BISECT_ABORT));
    }));
}

fn run() -> ExitCode {
    interrupt::report_large_files_as_errors();
    // pgbench's option rules differ from clap's, so `bench` parses its own arguments.
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_default();
    let program = program.to_string_lossy();
    if command::bench::is_pgbench(&program) {
        return bench(&program, words);
    }
    let mut words = words.peekable();
    if words.next_if(|word| word == "bench").is_some() {
        return bench("pgassay bench", words);
    }
    let cli = match Cli::parse_all() {
        Ok(cli) => cli,
        Err(error) => {
            if matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            ) {
                return match error.print().map_err(output::of_stdout) {
                    Ok(()) => ExitCode::from(exit::OK),
                    Err(unwritable) => exit::report(&unwritable.into()),
                };
            }
            print_parse_error(&error);
            // `git bisect run` would take a typing error for a bad commit.
            return ExitCode::from(if is_for_bisect() {
                exit::BISECT_ABORT
            } else {
                exit::FAILURE
            });
        }
    };
    if let CliCommand::Bench { arguments } = cli.command {
        return bench("pgassay bench", arguments.into_iter());
    }
    if let Some(launched) = Launched::from_environment() {
        return refuse_ranks(launched);
    }
    give_up_all_but(purposes(&cli.command), StartedPrograms::Limited);
    log_to_stderr(cli.verbose);
    match dispatch(&cli) {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => exit::report(&error),
    }
}

/// Gives up root's capabilities but those of `purposes`.
fn give_up_all_but(purposes: &[Purpose], programs: StartedPrograms) {
    if let Err(error) = rights::keep(purposes, programs) {
        output::print_line_stderr(&format!(
            "pgassay: warning: cannot give up capabilities: {error}"
        ));
    }
}

/// What a command uses capabilities for.
fn purposes(command: &CliCommand) -> &'static [Purpose] {
    match command {
        CliCommand::Profile(_) | CliCommand::Top(_) => &Purpose::OF_OBSERVERS,
        CliCommand::Studies(_)
        | CliCommand::List(_)
        | CliCommand::Show(_)
        | CliCommand::Report(_)
        | CliCommand::Bench { .. } => &[Purpose::Rest],
        CliCommand::Run(_)
        | CliCommand::Resume(_)
        | CliCommand::Compare(_)
        | CliCommand::Gate(_)
        | CliCommand::Curve(_)
        | CliCommand::Calibrate(_)
        | CliCommand::Count(_)
        | CliCommand::Study(_)
        | CliCommand::Doctor(_)
        | CliCommand::Timing(_) => &Purpose::ALL,
    }
}

fn bench(program: &str, words: impl Iterator<Item = OsString>) -> ExitCode {
    // A script's \shell starts what pgbench would start.
    give_up_all_but(&[Purpose::Rest], StartedPrograms::Unlimited);
    command::bench::bench(program, words)
}

/// Prints clap's error, which begins as all our errors do.
fn print_parse_error(error: &clap::Error) {
    let text = error.render().to_string();
    // The standard library's words, and how to write an option as a value.
    let text = text.replace("invalid digit found in string", "expected a whole number");
    // The usage of a conflict only repeats what was given, and lists what the environment sets as if it was required.
    let conflict = error.kind() == clap::error::ErrorKind::ArgumentConflict;
    let paragraphs = text.split_inclusive("\n\n");
    let is_noise =
        |it: &str| it.starts_with("  tip: to pass") || (conflict && it.starts_with("Usage: "));
    let text: String = paragraphs.filter(|it| !is_noise(it)).collect();
    match text.strip_prefix("error: ") {
        Some(message) => output::print_stderr(&format!("pgassay: {message}")),
        // If printing fails, there is nowhere left to report it.
        None => _ = error.print(),
    }
}

/// Refuses to run a command once per rank: they would disturb each other. Only `bench` joins its ranks.
fn refuse_ranks(launched: Launched) -> ExitCode {
    // Each rank is refused; once is enough to say why.
    if launched.rank == 0 {
        let ranks = launched.ranks;
        output::print_line_stderr(&format!(
            "pgassay: a launcher such as mpirun started {ranks} ranks, and each would run the whole command; \
             only \"pgassay bench\" runs on several ranks. Run this command without mpirun."
        ));
    }
    ExitCode::from(exit::FAILURE)
}

fn dispatch(cli: &Cli) -> Result<()> {
    let mut out = output::ProgramStdout::new();
    match &cli.command {
        CliCommand::Run(args) => command::run::run(args, cli.color, &mut out)?,
        CliCommand::Resume(args) => command::resume::resume(args, cli.color, &mut out)?,
        CliCommand::Compare(args) => command::compare::compare(args, cli.color, &mut out)?,
        CliCommand::Gate(args) => command::gate::gate(args, cli.color, &mut out)?,
        CliCommand::Curve(args) => command::curve::curve(args, cli.color, &mut out)?,
        CliCommand::Profile(args) => command::profile::profile(args, cli.color, &mut out)?,
        CliCommand::Top(args) => command::top::top(args, cli.color)?,
        CliCommand::Calibrate(args) => command::calibrate::calibrate(args, &mut out)?,
        CliCommand::Count(args) => command::count::count(args, &mut out)?,
        CliCommand::Studies(args) => command::studies::studies(args, &mut out)?,
        CliCommand::Study(StudyCommand::New(args)) => {
            command::study_new::study_new(args, &mut out)?;
        }
        CliCommand::Study(StudyCommand::Existing(command)) => {
            command::study::study(command, &mut out)?;
        }
        CliCommand::List(args) => command::list::list(args, &mut out)?,
        CliCommand::Show(args) => command::show::show(args, cli.color, &mut out)?,
        CliCommand::Report(args) => command::report::report(args, &mut out)?,
        CliCommand::Bench { .. } => unreachable!("handled in main: bench has its own exit codes"),
        CliCommand::Doctor(args) => command::doctor::doctor(args, &mut out)?,
        CliCommand::Timing(args) => command::timing::timing(args, &mut out)?,
    }
    out.flush()?;
    Ok(())
}

fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| output::FilteredStderr)
        // Which module logs it is for who debugs pgassay.
        .with_target(verbose > 0)
        .without_time()
        .init();
}
