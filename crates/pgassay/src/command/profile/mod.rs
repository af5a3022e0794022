//! `pgassay profile`: profiles a running server without a study.

pub mod connection;
mod local;
pub mod overhead;
mod remote;
mod sessions;

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use pgassay_lab::{Interrupt, Interrupted, Patience};
use pgassay_model::check::Check;
use pgassay_profile::LiveServer;
use pgassay_record::observation::Observation;
use pgassay_report::ExportedStacks;

use crate::args::{ColorWhen, ProfileArgs};
use crate::exit::IncompleteProfile;
use crate::output::FileOutput;
use crate::output_file::{check_writable, is_stdout, write_to};
use crate::{interrupt, style};
use connection::{LocalConnection, Reached};
use local::{ProfiledProcesses, ProfilingSession};

/// Profiles the server, prints the result and writes the requested files.
pub fn profile(args: &ProfileArgs, color: ColorWhen, out: &mut impl FileOutput) -> Result<()> {
    if args.duration.duration().is_zero() {
        bail!("--duration must be greater than zero");
    }
    check_outputs(args)?;
    let conninfo = args.conninfo()?;
    let interrupt = interrupt::watch()?;
    let observation = interrupt.or(observe(args, conninfo, &interrupt));
    let observation = observation.map_err(without_observation)?;
    // The report is printed also if a file cannot be written.
    let (is_taken, written) = write_files(contents(args, &observation), out);
    if args.json {
        out.write_all(pgassay_report::observation_json(&observation).as_bytes())?;
    } else if !is_taken {
        let style = style::style(color);
        out.write_all(pgassay_report::observation_text(&observation, &style).as_bytes())?;
        if let (Some(file), Ok(())) = (&args.html, &written) {
            writeln!(out, "\nHTML page: {}", file.display())?;
        }
    }
    written?;
    out.flush()?;
    match incomplete(&observation) {
        Some(reason) => Err(IncompleteProfile { reason }.into()),
        None => Ok(()),
    }
}

/// An interrupt before the first sample leaves nothing to print.
fn without_observation(error: anyhow::Error) -> anyhow::Error {
    if error.is::<Interrupted>() {
        error.context("interrupted before the profile began; there is no result")
    } else {
        error
    }
}

/// Profiles the server for the time that was asked for, or until an interrupt.
fn observe(
    args: &ProfileArgs,
    conninfo: Option<String>,
    interrupt: &Interrupt,
) -> Result<Observation> {
    let patience = Patience::until(interrupt);
    let reached = match conninfo.clone() {
        Some(conninfo) => Some(patience.wait_for(move || Reached::open(&conninfo))?),
        None => None,
    };
    if let Some(reached) = &reached {
        reached.end_waits(&patience);
    }
    interrupt.check()?;
    match reached {
        Some(Reached::RemoteServer(server)) if args.pid.is_some() => {
            Err(server.why.context(format!(
                "the server at {} runs on another machine or in another container, so \
                 --pid cannot be one of its processes",
                server.place
            )))
        }
        Some(Reached::RemoteServer(server)) => {
            let conninfo = conninfo.unwrap_or_default();
            let sessions = sessions::options(args, conninfo, server.own_pid(), patience);
            let limits = (args.duration.duration(), args.max_overhead);
            remote::observe(server, &sessions, limits, interrupt)
        }
        Some(Reached::Here(connection)) => {
            watch(args, conninfo, Some(connection), patience)?.observe(interrupt)
        }
        None => watch(args, conninfo, None, patience)?.observe(interrupt),
    }
}

/// Why the profile does not cover all of the time that was asked for.
fn incomplete(observation: &Observation) -> Option<String> {
    let mut limitations = observation.limitations.iter();
    let found = limitations.find(|it| it.value == connection::INCOMPLETE)?;
    found.limitation.clone()
}

/// Finds out before the profile what could not be written after it.
fn check_outputs(args: &ProfileArgs) -> Result<()> {
    let exports = args.export.iter().map(|it| &*it.file);
    let files = || exports.clone().chain(args.html.as_deref());
    let on_stdout = files().filter(|it| is_stdout(it)).count();
    if on_stdout + usize::from(args.json) > 1 {
        bail!("only one of --json, --html - and --export FORMAT=- can be written to stdout");
    }
    files().try_for_each(check_writable)
}

/// The profiling session that the flags describe, for a server on this machine.
fn watch(
    args: &ProfileArgs,
    conninfo: Option<String>,
    connection: Option<LocalConnection>,
    patience: Patience,
) -> Result<ProfilingSession> {
    Ok(ProfilingSession {
        subject: subject(args.pid, connection.as_ref())?,
        duration: args.duration.duration(),
        overhead_max: args.max_overhead,
        frequency_hz: args.frequency,
        off_cpu: args.off_cpu,
        dsn: conninfo,
        own_pids: connection.iter().map(|it| it.own_pid).collect(),
        keeps_text: !args.no_text,
        connection,
        patience,
    })
}

/// Combines `--pid` and `--dsn`.
fn subject(pid: Option<u32>, connection: Option<&LocalConnection>) -> Result<ProfiledProcesses> {
    let named = pid.map(LiveServer::of_process).transpose()?;
    let server = match (named, connection) {
        (Some(named), Some(connection))
            if named.postmaster_pid != connection.server.postmaster_pid =>
        {
            bail!(
                "process {} does not belong to the server that pgassay connects to, whose postmaster \
                 is {}",
                pid.unwrap_or_default(),
                connection.server.postmaster_pid
            )
        }
        (_, Some(connection)) => connection.server.clone(),
        (Some(named), None) => named,
        (None, None) => bail!("specify --pid or a database"),
    };
    let backend_pid = pid.filter(|&pid| pid != server.postmaster_pid);
    Ok(ProfiledProcesses {
        server,
        backend_pid,
    })
}

/// Exports and the HTML page.
fn contents<'a>(
    args: &'a ProfileArgs,
    observation: &'a Observation,
) -> impl Iterator<Item = (&'a Path, Result<Vec<u8>>)> {
    let stacks = if args.off_cpu {
        ExportedStacks::OffCpu
    } else {
        ExportedStacks::OnCpu
    };
    let exports = args.export.iter().map(move |it| {
        let content = pgassay_report::export(observation, stacks, it.format);
        let is_sampled = observation.profile.is_some();
        let why = || why(stacks, is_sampled, &observation.limitations);
        let content = content.ok_or_else(|| anyhow!("no stacks to export: {}", why()));
        (&*it.file, content)
    });
    let page = args.html.iter().map(move |file| {
        let page = pgassay_report::observation_html(observation);
        (&**file, Ok(page.into_bytes()))
    });
    exports.chain(page)
}

/// Writes files until one fails. Says whether one of them went to stdout.
fn write_files<'a>(
    mut files: impl Iterator<Item = (&'a Path, Result<Vec<u8>>)>,
    out: &mut impl FileOutput,
) -> (bool, Result<()>) {
    let mut is_taken = false;
    let written = files.try_for_each(|(file, content)| {
        is_taken |= is_stdout(file) && content.is_ok();
        write_to(file, &content?, out).map(drop)
    });
    (is_taken, written)
}

/// Why there are no such stacks. The limitations say it only if nothing was sampled.
fn why(stacks: ExportedStacks, is_sampled: bool, limitations: &[Check]) -> String {
    let limits = limitations.iter().filter_map(|it| it.limitation.as_deref());
    let limits: Vec<&str> = limits.collect();
    if !is_sampled && !limits.is_empty() {
        return limits.join("; ");
    }
    let not_seen = match stacks {
        ExportedStacks::OnCpu => "no backend was on a CPU when sampled",
        ExportedStacks::OffCpu => "no backend was blocked while context switches were recorded",
    };
    not_seen.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::text_of;

    /// Regression: `--export folded=- --html FILE` printed the report after the stacks if the disk of FILE was full.
    #[test]
    fn stdout_has_only_the_stacks_if_a_later_file_fails() {
        let missing = Path::new("/nonexistent/page.html");
        let written = |first: &str, content: Result<Vec<u8>>| {
            let mut out = Vec::new();
            let files = [(Path::new(first), content), (missing, Ok(Vec::new()))];
            let (is_taken, written) = write_files(files.into_iter(), &mut out);
            assert!(written.is_err());
            (is_taken, out)
        };
        let stacks = || Ok(b"a;b 1\n".to_vec());
        assert_eq!(written("-", stacks()), (true, b"a;b 1\n".to_vec()));
        assert_eq!(written("-", Err(anyhow!("none"))), (false, Vec::new()));
        assert_eq!(written("/dev/null", stacks()), (false, Vec::new()));
    }

    /// Regression: "interrupted" did not say whether anything had been observed.
    #[test]
    fn a_profile_that_is_interrupted_before_it_begins_says_that_there_is_no_result() {
        let error = without_observation(Interrupted.into());
        assert!(
            error.is::<Interrupted>(),
            "the exit status is that of an interrupt"
        );
        assert_eq!(
            text_of(&error),
            "interrupted before the profile began; there is no result"
        );
    }

    /// Regression: without blocked stacks, the reason was that no backend was on a CPU.
    #[test]
    fn a_backend_that_never_blocked_was_not_off_the_cpu() {
        let limitation = Check {
            name: "stacks".to_owned(),
            value: "none".to_owned(),
            limitation: Some("no rights".to_owned()),
            fix: None,
        };
        let limitations = [limitation];
        let off_cpu = |is_sampled, of: &[Check]| why(ExportedStacks::OffCpu, is_sampled, of);
        for blocked in [off_cpu(true, &limitations), off_cpu(false, &[])] {
            assert!(blocked.starts_with("no backend was blocked"), "{blocked}");
        }
        assert_eq!(off_cpu(false, &limitations), "no rights");
        let on_cpu = why(ExportedStacks::OnCpu, true, &limitations);
        assert!(on_cpu.contains("on a CPU"), "{on_cpu}");
    }
}
