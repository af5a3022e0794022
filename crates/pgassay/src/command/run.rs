//! `pgassay run`: runs a study, stores the result and prints it.

mod fixes;
mod warnings;

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::{Context, Result};
use pgassay_core::calibration::CalibrationSummary;
use pgassay_core::comparison::assess;
use pgassay_core::finding::diagnose;
use pgassay_core::instructions::InstructionCosts;
use pgassay_core::measure;
use pgassay_core::plan::{Overrides, Plan};
use pgassay_core::run::{Run, SCHEMA, Warning, WarningKind};
use pgassay_core::trial::{Trial, TrialKind};
use pgassay_store::Store;

use crate::catalog::FoundStudy;
use crate::cli::{ColorWhen, RunArgs};
use crate::command::count::{Countable, countable};
use crate::command::study::{self, PlannedStudy, planned};
use crate::exit::{Interrupted, Partial};
use crate::interrupt::Interrupt;
use crate::laboratory::requirements::{self, Unmet};
use crate::laboratory::{self, Outcome, counting};
use crate::progress::ProgressDisplay;
use crate::style::style;
use crate::{checks, results};

/// The defaults of `pgassay count`.
const COUNTED_SEED: u64 = 1;
const COUNTED_ROUNDS: u32 = 3;

/// Runs a study, stores its result, prints the answer.
pub fn run(args: &RunArgs, color: ColorWhen, out: &mut impl Write) -> Result<()> {
    let all = planned(&args.study, &args.choice)?;
    if args.counted {
        // Fail before the trials rather than after them.
        counting::check_countable(&all.plan, &all.found)?;
        counting::Valgrind::find()?;
    }
    let store = results::open(&args.results)?;
    let interrupt = Interrupt::watch()?;
    let mut progress = ProgressDisplay::on_stderr();
    let (planned, unmet) = runnable(all, args, &mut progress)?;
    let PlannedStudy { found, plan, notes } = planned;
    progress.note(&format!(
        "{}: {} points (variant × condition), {} pairs each, about {:.0} s plus setup; seed {}",
        found.name,
        plan.points.len(),
        plan.schedule.blocks,
        plan.estimated_us() as f64 / 1e6,
        plan.schedule.seed,
    ));
    for note in notes {
        progress.note(&note);
    }
    let mut outcome = laboratory::run(&plan, &found, &args.server, &interrupt, &mut progress)?;
    outcome.warnings.extend(unmet);
    let mut counted = None;
    if args.counted && outcome.ended_early.is_none() {
        match counted_costs(args, &found, &plan, &interrupt, &mut progress) {
            Ok(found) => counted = Some(found),
            Err(error) => outcome.ended_early = Some(error),
        }
    }
    progress.finish();
    let (mut run, logs, ended_early) = assemble(&found, plan, outcome, &store)?;
    run.instructions = counted;
    if args.try_fixes && ended_early.is_none() {
        fixes::attempt(&mut run, &found, args, &interrupt, &store)?;
    }
    let directory = save(&run, logs, &store)?;
    if args.json {
        out.write_all(pgassay_report::json(&run).as_bytes())?;
    } else {
        out.write_all(pgassay_report::terminal(&run, &style(color)).as_bytes())?;
        writeln!(out, "\nreport: {}", directory.join("report.html").display())?;
    }
    out.flush()?;
    match ended_early {
        None => Ok(()),
        Some(error) if error.is::<Interrupted>() => {
            eprintln!("pgassay: interrupted; completed trials saved as {}", run.id);
            Err(Interrupted.into())
        }
        Some(error) => Err(Partial {
            reason: format!("{error:#}"),
            id: run.id,
        }
        .into()),
    }
}

/// Removes variants that cannot run here from the plan and returns a warning for each.
fn runnable(
    all: PlannedStudy,
    args: &RunArgs,
    progress: &mut ProgressDisplay,
) -> Result<(PlannedStudy, Vec<Warning>)> {
    let unmet = requirements::unmet(&all.plan, &all.found, &args.server, progress)?;
    if unmet.is_empty() {
        return Ok((all, Vec::new()));
    }
    let is_met = |name: &&String| !unmet.iter().any(|unmet| unmet.variant == **name);
    let names = all.plan.variants.iter().filter(is_met).cloned().collect();
    let mut choice = args.choice.clone();
    choice.variant = Some(names);
    choice.seed = Some(all.plan.schedule.seed);
    let warning = |unmet: Unmet| {
        progress.note(&unmet.sentence);
        Warning {
            kind: WarningKind::Skipped,
            message: unmet.sentence,
        }
    };
    let warnings = unmet.into_iter().map(warning).collect();
    Ok((planned(&args.study, &choice)?, warnings))
}

/// Counts the instructions of each variant, as `pgassay count` does.
fn counted_costs(
    args: &RunArgs,
    found: &FoundStudy,
    timed: &Plan,
    interrupt: &Interrupt,
    progress: &mut ProgressDisplay,
) -> Result<InstructionCosts> {
    let clients = timed.conditions.iter().map(|it| it.clients);
    let clients: Vec<u32> = clients.collect::<BTreeSet<_>>().into_iter().collect();
    let overrides = Overrides {
        variants: Some(timed.variants.clone()),
        // Instruction counts of two runs are comparable only with the same random numbers.
        seed: args.choice.seed.unwrap_or(COUNTED_SEED),
        ..study::overrides(found, &args.choice)?
    };
    let Countable { plan, left_out } =
        countable(found, &clients, overrides, &args.server, progress)?;
    let options = counting::CountingOptions {
        repeats: COUNTED_ROUNDS,
        unit: None,
        segments_of: &|_, _| None,
        call_paths: true,
        left_out,
    };
    let counts = counting::count(&plan, found, &args.server, &options, interrupt, progress);
    Ok(InstructionCosts::of(counts.map_err(|error| {
        if error.is::<Interrupted>() {
            error
        } else {
            error.context("counting instructions")
        }
    })?))
}

type Logs = Vec<(String, Vec<u8>)>;

pub fn assemble(
    found: &FoundStudy,
    plan: Plan,
    outcome: Outcome,
    store: &Store,
) -> Result<(Run, (String, Logs), Option<anyhow::Error>)> {
    let majors: Vec<String> = outcome
        .servers
        .iter()
        .map(|server| major_of(&server.version))
        .collect();
    let assessment = assess(&plan, &majors, &outcome.trials, &outcome.profiles)?;
    let readings = measure::read(
        &found.study,
        &plan,
        &outcome.trials,
        &assessment.points,
        &assessment.comparisons,
        &outcome.profiles,
    );
    // The plan does not know whether the processor has hardware counters.
    let is_planned = |trial: &&Trial| trial.kind != TrialKind::HardwareCounters;
    let ended = outcome.trials.iter().filter(is_planned).count();
    let planned_trials = plan.trials_per_block() * plan.schedule.blocks;
    let mut run = Run {
        schema: SCHEMA.to_owned(),
        id: store.new_id(outcome.span_us.0, &found.name)?,
        study_name: found.name.clone(),
        pgassay_version: env!("CARGO_PKG_VERSION").to_owned(),
        started_us: outcome.span_us.0,
        ended_us: outcome.span_us.1,
        complete: ended == planned_trials as usize,
        study: found.study.clone(),
        plan,
        servers: outcome.servers,
        relays: outcome.relays,
        checks: checks::all(),
        warnings: outcome.warnings,
        trials: outcome.trials,
        profiles: outcome.profiles,
        statements: outcome.statements,
        points: assessment.points,
        comparisons: assessment.comparisons,
        ledgers: assessment.ledgers,
        findings: Vec::new(),
        instructions: None,
        fix_trials: None,
        expectations: readings.expectations,
        reference: readings.reference,
        watched_functions: readings.watched,
        calibration: calibration(store),
    };
    run.findings = diagnose(&run);
    run.warnings
        .extend(warnings::of(&run, outcome.ended_early.as_ref()));
    run.warnings.sort_by_key(|warning| warning.kind);
    let text = found.source.text.clone();
    Ok((run, (text, outcome.logs), outcome.ended_early))
}

/// `9.6.24` → `9.6`, `18.1` → `18`: since version 10, the major version is the first number only.
pub(crate) fn major_of(version: &str) -> String {
    let mut parts = version.split('.');
    let first = parts.next().unwrap_or_default();
    let major: String = first.chars().take_while(char::is_ascii_digit).collect();
    match (major.parse::<u32>(), parts.next()) {
        (Ok(number), Some(second)) if number < 10 => format!("{major}.{second}"),
        _ => major,
    }
}

/// The A/A calibration of this machine; an unreadable calibration is logged and ignored.
fn calibration(store: &Store) -> Option<CalibrationSummary> {
    let key = checks::machine().key;
    let found = store.calibration(&key, env!("CARGO_PKG_VERSION"));
    found
        .inspect_err(|error| tracing::warn!(%error, "cannot read the calibration"))
        .ok()?
}

fn save(run: &Run, (text, mut files): (String, Logs), store: &Store) -> Result<std::path::PathBuf> {
    files.push((
        "report.html".to_owned(),
        pgassay_report::html(run).into_bytes(),
    ));
    for (point, profile) in run.plan.points.iter().zip(&run.profiles) {
        let condition = run.plan.conditions[point.condition].title();
        let name = file_name(&format!(
            "{}, {condition}",
            run.plan.variants[point.variant]
        ));
        files.push((
            format!("profiles/{name}.folded"),
            profile.folded().into_bytes(),
        ));
    }
    store
        .save(run, &text, &files)
        .context("cannot save the result")
}

/// Names of variants and conditions may contain any character, including path separators.
fn file_name(name: &str) -> String {
    let words = name
        .split(|c: char| !c.is_alphanumeric() && c != '-')
        .filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_major_version_is_one_number_since_ten() {
        for (version, major) in [
            ("9.6.24", "9.6"),
            ("10.23", "10"),
            ("18.1", "18"),
            ("19devel", "19"),
            ("18beta1", "18"),
        ] {
            assert_eq!(major_of(version), major);
        }
    }

    #[test]
    fn profiles_get_plain_file_names() {
        assert_eq!(
            file_name("../a b, version=9.6, 1 client"),
            "a_b_version_9_6_1_client"
        );
    }
}
