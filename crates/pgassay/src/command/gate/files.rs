//! The files of a gate: `JUnit`, Markdown, and what workflows of `GitHub` show.

use std::path::Path;

use anyhow::{Result, bail};
use pgassay_account::instructions::Counts;
use pgassay_lab::system_env::unix_us;
use pgassay_record::run::Run;
use pgassay_report::gate::{self, AnnotationLevel, GateLimit, GateVerdict, JunitSuite};

use super::args::GateArgs;
use super::decision::GateDecision;
use crate::args::GateAnswerArgs;
use crate::checks;
use crate::command::study::PlannedStudy;
use crate::exit::text_of;
use crate::output::{print_job_command, print_line_stderr};
use crate::output_file::{append, check_writable, is_stdout, write_file};

/// Fails if a file that was asked for cannot be written, before anything is measured.
pub fn check(args: &GateArgs) -> Result<()> {
    let baseline = args.against.as_ref().filter(|_| args.update);
    check_answer(&args.answer)?;
    baseline.map(Path::new).map_or(Ok(()), check_writable)
}

/// The same, of the files for the answer.
pub fn check_answer(args: &GateAnswerArgs) -> Result<()> {
    let paths = [args.junit.as_deref(), args.markdown.as_deref()];
    let mut paths = paths.into_iter().flatten();
    if paths.clone().any(is_stdout) {
        bail!("--junit and --markdown write files; to print Markdown, use --format markdown");
    }
    paths.try_for_each(check_writable)
}

/// Writes the files that were asked for. In a workflow of `GitHub`, also its summary and one annotation.
pub fn write(
    args: &GateAnswerArgs,
    decision: &GateDecision,
    suite: impl FnOnce() -> JunitSuite,
) -> Result<()> {
    let (results, sentence) = (&decision.results, &decision.sentence);
    if let Some(path) = &args.junit {
        let suite = JunitSuite {
            failure: decision.failure.clone(),
            ..suite()
        };
        write_file(path, gate::junit(&suite, results, args.strict)?.as_bytes())?;
    }
    let markdown = || gate::markdown(results, sentence);
    if let Some(path) = &args.markdown {
        write_file(path, markdown().as_bytes())?;
    }
    // A container may have the variable without the file. The verdict does not depend on it.
    let summary = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|it| !it.is_empty());
    if let Some(summary) = summary
        && let Err(error) = append(Path::new(&summary), markdown().as_bytes())
    {
        print_line_stderr(&format!(
            "pgassay: warning: no job summary (GITHUB_STEP_SUMMARY): {}",
            text_of(&error)
        ));
    }
    let level = match (decision.failure.is_some(), decision.verdict()) {
        (true, _) | (false, GateVerdict::Regression) => Some(AnnotationLevel::Error),
        (false, GateVerdict::Pass) => None,
        (false, GateVerdict::Inconclusive | GateVerdict::NotComparable) => {
            Some(AnnotationLevel::Warning)
        }
    };
    let level = level.filter(|_| std::env::var_os("GITHUB_ACTIONS").is_some());
    if let Some(level) = level {
        print_job_command(&gate::annotation(level, sentence));
    }
    Ok(())
}

/// Writes the files of a gate that failed before it had a result: those of an earlier run must not remain as if they
/// were this one's.
pub fn write_failure(
    args: &GateArgs,
    error: &anyhow::Error,
    suite: impl FnOnce() -> JunitSuite,
) -> Result<()> {
    let decision = GateDecision::new(Vec::new(), args.fail_if).with_failure(Some(error));
    write(&args.answer, &decision, suite)
}

/// The suite of a run.
pub fn suite_of(run: &Run, limit: GateLimit) -> JunitSuite {
    let versions: Vec<&str> = run.servers.iter().map(|it| it.version.as_str()).collect();
    let mut properties = properties(limit, "throughput, variants side by side");
    properties.extend([
        ("run", run.id.clone()),
        ("postgresql", versions.join(", ")),
        ("seed", run.plan.schedule.seed.to_string()),
    ]);
    JunitSuite {
        name: run.study_name.clone(),
        hostname: hostname(),
        started_us: run.started_us,
        ended_us: run.ended_us,
        properties,
        failure: None,
    }
}

/// The suite of a gate that did not run.
pub fn suite_without_run(planned: &PlannedStudy) -> JunitSuite {
    let limit = planned.plan.schedule.gate_limit_percent;
    let now = unix_us();
    JunitSuite {
        name: planned.found.name.clone(),
        hostname: hostname(),
        started_us: now,
        ended_us: now,
        properties: properties(GateLimit::Slower(limit.unwrap_or_default()), "none"),
        failure: None,
    }
}

/// The suite of counts; `None` if nothing was counted.
pub fn suite_of_counts(
    name: &str,
    limit: GateLimit,
    counts: Option<&Counts>,
    started_us: i64,
) -> JunitSuite {
    let mut properties = properties(limit, "instructions per transaction");
    if let Some(counts) = counts {
        let variants = counts.conditions.iter().flat_map(|it| &it.variants);
        let mut versions: Vec<&str> = variants.map(|it| it.build.version.as_str()).collect();
        versions.dedup();
        properties.extend([
            ("postgresql", versions.join(", ")),
            ("seed", counts.seed.to_string()),
            ("counter", counts.machine.counter.clone()),
        ]);
    }
    JunitSuite {
        name: name.to_owned(),
        hostname: hostname(),
        started_us,
        ended_us: unix_us(),
        properties,
        failure: None,
    }
}

fn properties(limit: GateLimit, method: &str) -> Vec<(&'static str, String)> {
    vec![
        ("pgassay", env!("CARGO_PKG_VERSION").to_owned()),
        ("limit", limit.to_string()),
        ("method", method.to_owned()),
        ("machine", checks::machine().name),
    ]
}

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
