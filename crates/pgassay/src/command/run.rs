//! `pgassay run`: runs a study, stores the result and prints it.

mod fixes;
pub mod saving;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use pgassay_account::calibration::CalibrationSummary;
use pgassay_account::comparison::{decidable_effects, gate_power};
use pgassay_account::instructions::InstructionCosts;
use pgassay_lab::requirements::{self, Unmet};
use pgassay_lab::system_env::unix_us;
use pgassay_lab::{
    Interrupted, Laboratory, LoadedStudy, RunContext, RunIdentity, ServerOptions, assemble,
    check_external_writes, counting,
};
use pgassay_model::plan::{Overrides, Plan, StoppingRule, plan};
use pgassay_record::run::{Run, Warning, WarningKind};
use pgassay_store::{RunStart, Store};
use saving::SavingEvents;

use crate::args::{ColorWhen, ResultFormat, RunArgs, RunFlags};
use crate::command::count::{Countable, countable};
use crate::command::show::printed;
use crate::command::study::{PlannedStudy, planned};
use crate::exit::{Partial, text_of};
use crate::output::print_line_stderr;
use crate::progress::ProgressDisplay;
use crate::{checks, interrupt, results};

/// The defaults of `pgassay count`.
const COUNTED_SEED: u64 = 1;
const COUNTED_ROUNDS: u32 = 3;

/// Below the directory of results: what is to be undone on external servers after a crash.
const JOURNALS: &str = ".external-servers";

/// Runs a study, stores its result, prints the answer.
pub fn run(args: &RunArgs, color: ColorWhen, out: &mut impl Write) -> Result<()> {
    let all = planned(&args.study, &args.choice)?;
    run_planned(&all, args.choice.seed, &args.run, color, out)
}

/// Runs a planned study, stores its result, prints the answer. `seed` is the seed that the user gave.
pub fn run_planned(
    all: &PlannedStudy,
    seed: Option<u64>,
    args: &RunFlags,
    color: ColorWhen,
    out: &mut impl Write,
) -> Result<()> {
    let finished = measure(all, seed, args)?;
    finished.print(args.output.chosen(), color, out)?;
    exit_of(finished.run.id, finished.ended_early)
}

/// A run that is stored.
pub struct FinishedRun {
    /// The result.
    pub run: Run,
    /// Where it is stored.
    pub directory: PathBuf,
    /// Why trials are missing.
    pub ended_early: Option<anyhow::Error>,
}

/// Runs a planned study and stores its result. `seed` is the seed that the user gave.
pub fn measure(all: &PlannedStudy, seed: Option<u64>, args: &RunFlags) -> Result<FinishedRun> {
    if args.counted {
        // Fail before the trials rather than after them.
        counting::check_countable(&all.plan, &all.found)?;
        counting::Valgrind::find()?;
    }
    let store = results::open(&args.results)?;
    let interrupt = interrupt::watch()?;
    let options = server_options(args, &store);
    let progress = ProgressDisplay::on_stderr();
    let context = RunContext {
        study: &all.found,
        options: &options,
        interrupt: &interrupt,
        events: &progress,
    };
    let (plan, unmet) = prepare(all, &store, &context)?;
    announce(all, &plan, &context);
    // A directory that is read-only or full must be found before the first trial.
    let writer = store
        .create(run_start(&all.found, &plan), &all.found.source.text)
        .context("cannot save results")?;
    let saving = SavingEvents::new(&progress, writer);
    let context = RunContext {
        events: &saving,
        ..context
    };
    let mut outcome = match Laboratory::run_plan(&plan, context) {
        Ok(outcome) => outcome,
        Err(error) => {
            saving.into_writer().discard();
            return Err(error);
        }
    };
    outcome.warnings.extend(unmet);
    let mut counted = None;
    if args.counted && outcome.ended_early.is_none() {
        match counted_costs(&all.overrides, seed, &plan, &context) {
            Ok(found) => counted = Some(found),
            Err(error) => outcome.ended_early = Some(error),
        }
    }
    progress.finish();
    let writer = saving.into_writer();
    let identity = identity(writer.id().to_owned(), &store);
    let logs = std::mem::take(&mut outcome.logs);
    let ended_early = outcome.ended_early.take();
    let mut run = assemble(&all.found, plan, outcome, ended_early.as_ref(), identity)?;
    run.instructions = counted;
    if args.try_fixes && ended_early.is_none() {
        let context = RunContext {
            study: &all.found,
            options: &options,
            interrupt: &interrupt,
            events: &progress,
        };
        fixes::attempt(&mut run, &context, &store)?;
    }
    let directory = saving::finish(writer, &run, &files(&run, logs))?;
    Ok(FinishedRun {
        run,
        directory,
        ended_early,
    })
}

/// Where servers come from, and what the study may do on external ones.
fn server_options(args: &RunFlags, store: &Store) -> ServerOptions {
    ServerOptions {
        allow_writes: args.external.allow_writes,
        allow_superuser: args.external.allow_superuser,
        journal_dir: Some(store.root().join(JOURNALS)),
        ..args.server.options()
    }
}

/// Undoes what killed runs left on external servers, and checks what the study may do on them.
/// Returns the plan without the variants that cannot run here, and warnings.
fn prepare(
    all: &PlannedStudy,
    store: &Store,
    context: &RunContext<'_>,
) -> Result<(Plan, Vec<Warning>)> {
    let mut warnings = pgassay_lab::recover(&store.root().join(JOURNALS), context);
    check_external_writes(&all.plan, context)?;
    let unmet = requirements::unmet(&all.plan, context)?;
    let (plan, unmet) = runnable(all, unmet, context)?;
    warnings.extend(unmet);
    Ok((plan, warnings))
}

/// What is known about a run before its first trial.
pub fn run_start(study: &LoadedStudy, plan: &Plan) -> RunStart {
    RunStart {
        study_name: study.name.clone(),
        question: study.study.question.clone(),
        started_us: unix_us(),
        pgassay_version: env!("CARGO_PKG_VERSION").to_owned(),
        plan: plan.clone(),
    }
}

impl FinishedRun {
    /// Prints the result.
    pub fn print(
        &self,
        format: ResultFormat,
        color: ColorWhen,
        out: &mut impl Write,
    ) -> Result<()> {
        out.write_all(printed(&self.run, format, color).as_bytes())?;
        if format == ResultFormat::Text {
            let page = self.directory.join("report.html");
            writeln!(out, "\nreport: {}", page.display())?;
        }
        out.flush()?;
        Ok(())
    }
}

/// The error that becomes the exit status of a run that ended early.
pub fn exit_of(id: String, ended_early: Option<anyhow::Error>) -> Result<()> {
    match ended_early {
        None => Ok(()),
        Some(error) if error.is::<Interrupted>() => {
            print_line_stderr(&format!(
                "pgassay: interrupted; completed trials saved as {id}"
            ));
            Err(Interrupted.into())
        }
        Some(error) => Err(Partial {
            reason: text_of(&error),
            id,
        }
        .into()),
    }
}

/// Tells what will run, and what a sequential run can decide.
fn announce(planned: &PlannedStudy, plan: &Plan, context: &RunContext<'_>) {
    let (most, unit) = match plan.schedule.stopping {
        StoppingRule::AllBlocks => ("", format!("{} pairs each", plan.schedule.blocks)),
        StoppingRule::Sequential => ("at most ", "until there are verdicts".to_owned()),
    };
    context.note(&format!(
        "{}: {} points (variant × condition), {unit}, {most}about {:.0} s plus setup; seed {}",
        planned.found.name,
        plan.points.len(),
        plan.estimated_us() as f64 / 1e6,
        plan.schedule.seed,
    ));
    if let Some(power) = gate_power(plan) {
        context.note(&format!("the gate, {power}"));
    } else if let Some(effects) = decidable_effects(plan) {
        context.note(&format!("what it can decide, {effects}"));
    }
    for note in &planned.notes {
        context.note(note);
    }
}

/// The plan without the variants that cannot run here, and a warning for each.
fn runnable(
    all: &PlannedStudy,
    unmet: Vec<Unmet>,
    context: &RunContext<'_>,
) -> Result<(Plan, Vec<Warning>)> {
    if unmet.is_empty() {
        return Ok((all.plan.clone(), Vec::new()));
    }
    let is_met = |name: &&String| !unmet.iter().any(|unmet| unmet.variant == **name);
    let overrides = Overrides {
        variants: Some(all.plan.variants.iter().filter(is_met).cloned().collect()),
        seed: all.plan.schedule.seed,
        ..all.overrides.clone()
    };
    let plan = plan(&all.found.study, &all.found.source, &overrides)?;
    let warning = |unmet: Unmet| {
        context.note(&unmet.sentence);
        Warning {
            kind: WarningKind::Skipped,
            message: unmet.sentence,
        }
    };
    Ok((plan, unmet.into_iter().map(warning).collect()))
}

/// Counts the instructions of each variant, as `pgassay count` does.
fn counted_costs(
    overrides: &Overrides,
    seed: Option<u64>,
    timed: &Plan,
    context: &RunContext<'_>,
) -> Result<InstructionCosts> {
    let clients = timed.conditions.iter().map(|it| it.clients);
    let clients: Vec<u32> = clients.collect::<BTreeSet<_>>().into_iter().collect();
    let overrides = Overrides {
        variants: Some(timed.variants.clone()),
        // Instruction counts of two runs are comparable only with the same random numbers.
        seed: seed.unwrap_or(COUNTED_SEED),
        ..overrides.clone()
    };
    let Countable { plan, left_out } = countable(&clients, overrides, context)?;
    let options = counting::CountingOptions {
        repeats: COUNTED_ROUNDS,
        unit: None,
        segments_of: &|_, _| None,
        call_paths: true,
        left_out,
    };
    let counts = counting::count(&plan, &options, context);
    Ok(InstructionCosts::of(counts.map_err(|error| {
        if error.is::<Interrupted>() {
            error
        } else {
            error.context("counting instructions")
        }
    })?))
}

/// What a run in this store contains besides its measurements.
pub fn identity(id: String, store: &Store) -> RunIdentity {
    RunIdentity {
        id,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        checks: checks::all(),
        calibration: calibration(store),
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

/// The files to store beside the result: its report, its profiles and the servers' logs.
pub fn files(run: &Run, logs: Vec<(String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    let mut files = logs;
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
    files
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
    fn profiles_get_plain_file_names() {
        assert_eq!(
            file_name("../a b, version=9.6, 1 client"),
            "a_b_version_9_6_1_client"
        );
    }
}
