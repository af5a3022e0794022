//! `pgassay bench`, also invoked as `pgbench`: a drop-in replacement for pgbench 18.
//!
//! Everything that users see is pgbench's: options ([`options`], [`settings`]), messages
//! ([`message`]), tables ([`initialization`]), report ([`report`]) and logs ([`observer`]). The
//! clients run on the same load engine as studies. Source: `src/bin/pgbench/pgbench.c` of
//! PostgreSQL 15 to 18; where these differ, `--compat` (or `PGASSAY_PGBENCH_COMPAT`) chooses.

mod additions;
mod cancellation;
mod client_limit;
mod connection;
mod cpus;
mod figures;
mod hdr_log;
mod initialization;
mod memory;
mod message;
mod number;
mod observer;
mod options;
mod progress;
#[cfg(feature = "mpi")]
mod ranks;
mod report;
mod run;
mod scripts;
mod seed;
mod settings;
mod shell;
mod system;
mod usage;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use pgassay_ranks::Launched;
use pgassay_script::Compat;

use message::Exit;
use settings::Settings;
use version::version;

/// The environment variable that chooses a version without `--compat`.
const COMPAT_VARIABLE: &str = "PGASSAY_PGBENCH_COMPAT";

/// Whether a program of this name behaves as pgbench.
pub fn is_pgbench(program: &str) -> bool {
    last_part(program) == "pgbench"
}

fn last_part(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// Runs the command; `words` are its arguments. As `pgassay bench` it adds lines to pgbench's report;
/// as `pgbench` it does so only on request.
pub fn bench(program: &str, words: impl Iterator<Item = OsString>) -> ExitCode {
    let is_drop_in = is_pgbench(program);
    let (application, command) = if is_drop_in {
        (last_part(program), last_part(program))
    } else {
        ("pgbench", "pgassay bench")
    };
    let launched = Launched::from_environment();
    // Messages say which rank they come from.
    let name = launched.map_or(application.to_owned(), |it| {
        format!("{application} (rank {})", it.rank)
    });
    message::set_program(&name, command);
    let words = as_text(words);
    match words.and_then(|words| dispatch(application, is_drop_in, &words)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Exit(code)) => ExitCode::from(code),
    }
}

/// The arguments. One that is not UTF-8, such as the name of a file, would be another after a conversion.
fn as_text(words: impl Iterator<Item = OsString>) -> Result<Vec<String>, Exit> {
    let text = words.map(|word| {
        word.into_string().map_err(|word| {
            let shown = word.display();
            message::fatal(&format!("argument \"{shown}\" is not valid UTF-8"))
        })
    });
    text.collect()
}

fn dispatch(application: &str, is_drop_in: bool, words: &[String]) -> Result<(), Exit> {
    let compat = compat(words)?;
    match first_but_compat(words) {
        Some("--help" | "-?") => {
            run::print(&usage::text(message::command(), compat));
            return Ok(());
        }
        Some("--version" | "-V") => {
            run::print(&format!(
                "pgbench (PostgreSQL) {} (pgassay {})\n",
                version(compat),
                env!("CARGO_PKG_VERSION")
            ));
            return Ok(());
        }
        _ => {}
    }
    if let Some(launched) = Launched::from_environment() {
        return run_as_rank(launched, application, is_drop_in, words, compat);
    }
    let settings = read(words, is_drop_in, compat)?;
    if settings.is_initialization {
        initialization::initialize(&settings, application)
    } else {
        run::run(&settings, application)
    }
}

/// The first argument, apart from `--compat`: pgbench accepts `--help` and `--version` only there.
fn first_but_compat(words: &[String]) -> Option<&str> {
    let mut words = words.iter().map(String::as_str);
    loop {
        match words.next()? {
            "--compat" => _ = words.next(),
            word if word.starts_with("--compat=") => {}
            word => return Some(word),
        }
    }
}

/// The settings of a command line.
fn read(words: &[String], is_drop_in: bool, compat: Compat) -> Result<Settings, Exit> {
    let mut settings = Settings::read(words, compat)?;
    settings.prints_additions = !is_drop_in;
    Ok(settings)
}

/// Runs a rank's part of the benchmark.
#[cfg(feature = "mpi")]
fn run_as_rank(
    _: Launched,
    application: &str,
    is_drop_in: bool,
    words: &[String],
    compat: Compat,
) -> Result<(), Exit> {
    ranks::run(application, || read(words, is_drop_in, compat))
}

/// Refuses to run as many benchmarks as there are ranks.
#[cfg(not(feature = "mpi"))]
fn run_as_rank(launched: Launched, _: &str, _: bool, _: &[String], _: Compat) -> Result<(), Exit> {
    // Each rank is refused; once is enough to say why.
    if launched.rank > 0 {
        return Err(Exit(1));
    }
    let ranks = launched.ranks;
    let exit = message::fatal(&format!(
        "a launcher such as mpirun started {ranks} ranks, but this pgassay was built without MPI: \
         each would run a separate benchmark"
    ));
    message::hint(
        "Build it with \"cargo build --release --features pgassay/mpi\", or run it without mpirun.",
    );
    Err(exit)
}

/// The version to behave like, which must be known before other options are parsed.
fn compat(words: &[String]) -> Result<Compat, Exit> {
    let mut chosen = std::env::var(COMPAT_VARIABLE).ok();
    let before_arguments = words.iter().take_while(|word| *word != "--");
    let mut words = before_arguments.peekable();
    while let Some(word) = words.next() {
        if let Some(value) = word.strip_prefix("--compat=") {
            chosen = Some(value.to_owned());
        } else if word == "--compat" {
            chosen = words.peek().map(|value| (*value).clone());
        }
    }
    match chosen.as_deref() {
        None | Some("" | "18") => Ok(Compat::V18),
        Some("17") => Ok(Compat::V17),
        Some("15" | "16") => Ok(Compat::V15),
        Some(other) => Err(message::fatal(&format!(
            "invalid value \"{other}\" for --compat or {COMPAT_VARIABLE}: expecting 15, 17 or 18"
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::os::unix::ffi::OsStringExt;

    use super::*;

    /// Regression: another file was read, or a variable had another value.
    #[test]
    fn an_argument_that_is_not_text_is_refused() {
        let words = [&b"-f"[..], b"caf\xe9.sql"].map(|word| OsString::from_vec(word.to_vec()));
        assert_eq!(as_text(words.into_iter()).unwrap_err().0, 1);
    }

    fn settings(line: &str) -> Settings {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        read(&words, true, Compat::V18).unwrap()
    }

    /// Regression: with a limit of 0, all transactions were late, and with -R skipped.
    #[test]
    fn a_latency_limit_below_a_microsecond_is_none_as_in_pgbench() {
        assert_eq!(settings("-L 0.0009 -T 1").latency_limit_us, None);
        assert_eq!(settings("-L 0.001 -T 1").latency_limit_us, Some(1));
    }
}
