//! `pgassay run`: runs a study, stores the result and prints it.

mod fixes;
pub mod saving;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use pgassay_account::calibration::CalibrationSummary;
use pgassay_account::comparison::{decidable_effects, gate_power, units_to_sign};
use pgassay_account::instructions::InstructionCosts;
use pgassay_lab::requirements::{self, NothingToCompare, Unmet};
use pgassay_lab::system_env::unix_us;
use pgassay_lab::{
    EventSink, Interrupt, Interrupted, Laboratory, LoadedStudy, Outcome, PasswordUse, RunContext,
    RunIdentity, ServerOptions, assemble, check_external_writes, counting,
};
use pgassay_model::plan::{Overrides, Plan, StoppingRule, plan};
use pgassay_model::wording::{counted, estimated_time};
use pgassay_record::run::{Run, Warning, WarningKind};
use pgassay_server::ServerError;
use pgassay_store::{RunOrigin, RunStart, Store};
pub use saving::SavingEvents;

use crate::args::{ColorWhen, ExternalArgs, ResultFormat, RunArgs, RunFlags, ServerArgs};
use crate::command::count::{Countable, countable};
use crate::command::resume_flags::{absolute_text, resume_flags};
use crate::command::show::printed;
use crate::command::study::{PlannedStudy, planned};
use crate::exit::after_printing;
use crate::exit::{Partial, text_of};
use crate::progress::ProgressDisplay;
use crate::{checks, interrupt, results};

/// The defaults of `pgassay count`.
pub const COUNTED_SEED: u64 = 1;
pub const COUNTED_ROUNDS: u32 = 3;

/// Server starts, or pairs, before the first interim analysis.
const FIRST_ANALYSIS: f64 = 4.0;

/// Below the directory of results: what is to be undone on external servers after a crash.
const JOURNALS: &str = ".external-servers";

/// The longest name of a profile's file before its number, in bytes: file systems allow 255.
const FILE_NAME_BYTES: usize = 200;

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
    let printed = finished.print(args.output.chosen(), color, out);
    after_printing(printed, exit_of(finished))
}

/// A run that is stored.
pub struct FinishedRun {
    /// The result.
    pub run: Run,
    /// Where it is stored.
    pub directory: PathBuf,
    /// Why trials are missing.
    pub ended_early: Option<anyhow::Error>,
    /// What follows the ID of the run in the command that continues it.
    pub resume_flags: String,
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
    let options = server_options(&args.server, args.external, &store);
    let progress = ProgressDisplay::on_stderr();
    let context = RunContext {
        study: &all.found,
        options: &options,
        interrupt: &interrupt,
        events: &progress,
    };
    let (plan, overrides, warnings) = prepare(all, &store, &context)?;
    announce(all, &plan, &context);
    let job = RunJob {
        study: &all.found,
        overrides: &overrides,
        seed,
        options: &options,
        interrupt: &interrupt,
        progress: &progress,
        warnings,
        counted: args.counted,
        try_fixes: args.try_fixes,
        resume_flags: resume_flags(
            &args.results,
            &args.server,
            external_again(all, args.external),
        ),
    };
    // A directory that is read-only or full must be found before the first trial.
    let writer = store
        .create(job.start(&plan, &args.server), &all.found.source.text)
        .context("cannot save results")?;
    let saving = SavingEvents::new(&progress, writer);
    let outcome = match Laboratory::run_plan(&plan, job.context(&saving)) {
        Ok(outcome) => outcome,
        Err(error) => {
            saving.into_writer().discard();
            return Err(error);
        }
    };
    job.finish(plan, outcome, saving, &store)
}

/// Where servers come from, and what the study may do on external ones.
pub fn server_options(
    servers: &ServerArgs,
    external: ExternalArgs,
    store: &Store,
) -> ServerOptions {
    ServerOptions {
        allow_writes: external.allow_writes,
        allow_superuser: external.allow_superuser,
        passwords: PasswordUse::allowed_if(external.allow_passwords),
        journal_dir: Some(store.root().join(JOURNALS)),
        ..servers.options()
    }
}

/// The permissions with which a run can be continued. Connection strings in a run's directory are not the user's.
fn external_again(all: &PlannedStudy, external: ExternalArgs) -> ExternalArgs {
    let mut dsns = all.plan.servers.iter().filter_map(|it| it.dsn.as_ref());
    let names_server = dsns.any(|dsn| all.found.is_dsn_of_user(dsn));
    ExternalArgs {
        allow_passwords: external.allow_passwords || names_server,
        ..external
    }
}

/// Undoes what killed runs left on external servers, and checks what the study may do on them.
/// Returns the plan without the variants that cannot run here, its overrides, and warnings.
pub fn prepare(
    all: &PlannedStudy,
    store: &Store,
    context: &RunContext<'_>,
) -> Result<(Plan, Overrides, Vec<Warning>)> {
    let mut warnings = recover(store, context);
    check_external_writes(&all.plan, context)?;
    let unmet = requirements::unmet(&all.plan, context)?;
    let (plan, overrides, unmet) = runnable(all, unmet, context)?;
    warnings.extend(unmet);
    Ok((plan, overrides, warnings))
}

/// Undoes what killed runs left on external servers.
pub fn recover(store: &Store, context: &RunContext<'_>) -> Vec<Warning> {
    pgassay_lab::recover(&store.root().join(JOURNALS), context)
}

/// What is known about a run before its first trial, without what is needed to continue it.
pub fn run_start(study: &LoadedStudy, plan: &Plan) -> RunStart {
    RunStart {
        study_name: study.name.clone(),
        question: study.study.question.clone(),
        started_us: unix_us(),
        pgassay_version: env!("CARGO_PKG_VERSION").to_owned(),
        plan: plan.clone(),
        origin: None,
    }
}

/// A run that is measured or continued: what comes before and after its trials.
pub struct RunJob<'a> {
    pub study: &'a LoadedStudy,
    /// What the command line changed in the study.
    pub overrides: &'a Overrides,
    /// The seed that the user gave.
    pub seed: Option<u64>,
    pub options: &'a ServerOptions,
    pub interrupt: &'a Interrupt,
    pub progress: &'a ProgressDisplay,
    /// Warnings for the result, in addition to those of the trials.
    pub warnings: Vec<Warning>,
    pub counted: bool,
    pub try_fixes: bool,
    /// What follows the ID of the run in the command that continues it.
    pub resume_flags: String,
}

impl<'a> RunJob<'a> {
    /// What its trials need.
    pub fn context<'c>(&self, events: &'c dyn EventSink) -> RunContext<'c>
    where
        'a: 'c,
    {
        RunContext {
            study: self.study,
            options: self.options,
            interrupt: self.interrupt,
            events,
        }
    }

    /// What is known before the first trial, and what is needed to continue the run.
    fn start(&self, plan: &Plan, servers: &ServerArgs) -> RunStart {
        RunStart {
            origin: Some(Box::new(RunOrigin {
                study: self.study.study.clone(),
                study_file: self.study.source.file.clone(),
                overrides: self.overrides.clone(),
                seed: self.seed,
                machine: checks::machine_identity(),
                cache: absolute_text(servers.cache.as_deref()),
                run_as: servers.run_as.clone(),
                data_parent: absolute_text(servers.data_parent.as_deref()),
                counted: self.counted,
                try_fixes: self.try_fixes,
                warnings: self.warnings.clone(),
            })),
            ..run_start(self.study, plan)
        }
    }

    /// What follows the trials: counts, the answer, fixes; stores the result.
    pub fn finish(
        self,
        plan: Plan,
        mut outcome: Outcome,
        saving: SavingEvents<'_>,
        store: &Store,
    ) -> Result<FinishedRun> {
        outcome.warnings.extend(self.warnings.iter().cloned());
        let mut counted = None;
        if self.counted && outcome.ended_early.is_none() {
            match counted_costs(self.overrides, self.seed, &plan, &self.context(&saving)) {
                Ok(found) => counted = Some(found),
                Err(error) => outcome.ended_early = Some(error),
            }
        }
        self.progress.finish();
        let writer = saving.into_writer();
        let identity = identity(writer.id().to_owned(), store, self.options);
        let logs = std::mem::take(&mut outcome.logs);
        let ended_early = outcome.ended_early.take();
        let mut run = assemble(self.study, plan, outcome, ended_early.as_ref(), identity)?;
        run.instructions = counted;
        if self.try_fixes && ended_early.is_none() {
            fixes::attempt(&mut run, &self.context(self.progress), store);
        }
        let directory = saving::finish(writer, &run, &files(&run, logs))?;
        Ok(FinishedRun {
            run,
            directory,
            ended_early,
            resume_flags: self.resume_flags,
        })
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
pub fn exit_of(finished: FinishedRun) -> Result<()> {
    let id = &finished.run.id;
    let to_continue = if finished.run.complete {
        String::new()
    } else {
        how_to_continue(id, &finished.resume_flags, finished.ended_early.as_ref())
    };
    exit_with(id, &to_continue, finished.ended_early)
}

/// A run continues only on the build that it began on, which is no longer there if it was replaced.
fn how_to_continue(id: &str, flags: &str, ended_early: Option<&anyhow::Error>) -> String {
    let is_rebuilt = |it: &anyhow::Error| {
        let mut causes = it.chain().filter_map(|it| it.downcast_ref());
        causes.any(|it| matches!(it, ServerError::Rebuilt { .. }))
    };
    if ended_early.is_some_and(is_rebuilt) {
        "; it cannot be continued with the new build: start a new run".to_owned()
    } else {
        format!("; to continue: pgassay resume {id}{flags}")
    }
}

/// The same, with what to say after the run's ID.
pub fn exit_with(id: &str, to_continue: &str, ended_early: Option<anyhow::Error>) -> Result<()> {
    let Some(error) = ended_early else {
        return Ok(());
    };
    if error.is::<Interrupted>() {
        let sentence = format!("interrupted; completed trials saved as {id}{to_continue}");
        return Err(anyhow::Error::from(Interrupted).context(sentence));
    }
    Err(Partial {
        reason: text_of(&error),
        id: format!("{id}{to_continue}"),
    }
    .into())
}

/// The difference for which the usual time of a run is announced.
const USUAL_PERCENT: f64 = 5.0;

/// Tells what will run, and what a sequential run can decide.
fn announce(planned: &PlannedStudy, plan: &Plan, context: &RunContext<'_>) {
    let limit_s = plan.schedule.max_time_us.map(|it| it as f64 / 1e6);
    let within = |time_s: f64| limit_s.map_or(time_s, |limit_s| time_s.min(limit_s));
    let planned_s = plan.estimated_us() as f64 / 1e6;
    let most_s = within(planned_s);
    let (until, time) = match plan.schedule.stopping {
        StoppingRule::AllBlocks => {
            let pairs = counted(plan.schedule.blocks as usize, "pair") + " each";
            (pairs, format!("about {}", estimated_time(most_s)))
        }
        StoppingRule::Sequential => {
            let least_s = within(planned_s * (FIRST_ANALYSIS / units(plan).0).min(1.0));
            let until = "ends when each comparison has a verdict".to_owned();
            let [least, most] = [least_s, most_s].map(estimated_time);
            // Of several comparisons, the last one decides.
            let is_single = plan.conditions.len() * (plan.variants.len() - 1) == 1;
            // Usual for differences that matter, and assumed in the sentence that follows.
            let usual = units_to_sign(plan, USUAL_PERCENT).filter(|_| is_single);
            let usual_s = usual.map(|usual| planned_s * usual as f64 / units(plan).0);
            let usual = usual_s.filter(|usual_s| *usual_s <= most_s).map(|usual_s| {
                let usual = estimated_time(usual_s);
                format!(" (about {usual} if the difference is {USUAL_PERCENT}%)")
            });
            let usual = usual.unwrap_or_default();
            (until, format!("after about {least} to {most}{usual}"))
        }
        StoppingRule::Precision => (
            two_stages(plan),
            format!("the first about {}", estimated_time(most_s)),
        ),
    };
    context.note(&format!(
        "{}: {} (variant × condition), {until}, {time} plus setup; seed {}",
        planned.found.name,
        counted(plan.points.len(), "point"),
        plan.schedule.seed,
    ));
    if let Some(power) = gate_power(plan) {
        context.note(&format!("the gate, {power}"));
    } else if let Some(effects) = decidable_effects(plan) {
        context.note(&format!("detectable differences, {effects}"));
    }
    if let Some(note) = too_little_time(plan) {
        context.note(&note);
    }
    for note in &planned.notes {
        context.note(note);
    }
}

/// The units of the intervals in the whole plan, and their name.
fn units(plan: &Plan) -> (f64, &'static str) {
    let blocks = f64::from(plan.schedule.blocks);
    if plan.restarts_servers() {
        let each = plan.schedule.blocks_per_server_start;
        (blocks / f64::from(each), "server starts")
    } else {
        (blocks, "pairs")
    }
}

/// `in two stages until the half-width of intervals is at most 1%`.
fn two_stages(plan: &Plan) -> String {
    let wanted = plan.schedule.half_width_percent.unwrap_or_default();
    format!("in two stages until the half-width of intervals is at most {wanted}%")
}

/// A warning if the time limit of a sequential run probably ends it before the first analysis.
fn too_little_time(plan: &Plan) -> Option<String> {
    // An interval of two stages exists from the second unit on.
    if plan.schedule.stopping == StoppingRule::Precision {
        return None;
    }
    let limit = plan.schedule.max_time_us? as f64;
    let (units, unit) = units(plan);
    let units = units * limit / plan.estimated_us() as f64;
    (units < FIRST_ANALYSIS).then(|| {
        format!(
            "the time limit allows about {units:.1} {unit}, but the first analysis needs {FIRST_ANALYSIS}: without \
             a longer --max-time or a shorter --length, all verdicts will probably be inconclusive"
        )
    })
}

/// The plan without the variants that cannot run here, the overrides that give it, and a warning for each. An error if
/// only the baseline is left: minutes of measuring would compare nothing.
fn runnable(
    all: &PlannedStudy,
    unmet: Vec<Unmet>,
    context: &RunContext<'_>,
) -> Result<(Plan, Overrides, Vec<Warning>)> {
    if unmet.is_empty() {
        return Ok((all.plan.clone(), all.overrides.clone(), Vec::new()));
    }
    let is_met = |name: &&String| !unmet.iter().any(|unmet| unmet.variant == **name);
    let met: Vec<String> = all.plan.variants.iter().filter(is_met).cloned().collect();
    if let [baseline] = &met[..] {
        return Err(NothingToCompare::new(baseline, &unmet).into());
    }
    let overrides = Overrides {
        variants: Some(met),
        seed: all.plan.schedule.seed,
        ..all.overrides.clone()
    };
    let plan = plan(&all.found.study, &all.found.source, &overrides)?;
    let warning = |unmet: Unmet| {
        let message = unmet.sentence();
        context.note(&message);
        Warning {
            kind: WarningKind::Skipped,
            variant: Some(unmet.variant),
            message,
        }
    };
    Ok((plan, overrides, unmet.into_iter().map(warning).collect()))
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
pub fn identity(id: String, store: &Store, options: &ServerOptions) -> RunIdentity {
    let mut checks = checks::all();
    checks.push(checks::disk(options.data_parent.as_deref()));
    RunIdentity {
        id,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        checks,
        calibration: calibration(store),
        machine_key: Some(checks::machine().key),
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
    let mut known = BTreeSet::new();
    for (point, profile) in run.plan.points.iter().zip(&run.profiles) {
        let condition = run.plan.conditions[point.condition].title();
        let title = format!("{}, {condition}", run.plan.variants[point.variant]);
        let name = file_name(&title, &mut known);
        files.push((
            format!("profiles/{name}.folded"),
            profile.folded().into_bytes(),
        ));
    }
    files
}

/// A name for a file that differs from the `known` ones, and is then one of them. Names of variants and conditions may
/// have any length and contain any character, including path separators.
fn file_name(name: &str, known: &mut BTreeSet<String>) -> String {
    let words = name
        .split(|c: char| !c.is_alphanumeric() && c != '-')
        .filter(|word| !word.is_empty());
    let mut plain = words.collect::<Vec<_>>().join("_");
    plain.truncate(plain.floor_char_boundary(FILE_NAME_BYTES));
    let mut unique = plain.clone();
    let mut number = 1;
    while !known.insert(unique.clone()) {
        number += 1;
        unique = format!("{plain}_{number}");
    }
    unique
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_get_plain_file_names() {
        assert_eq!(
            file_name("../a b, version=9.6, 1 client", &mut BTreeSet::new()),
            "a_b_version_9_6_1_client"
        );
    }

    /// Regression: the profile of `a > 1` replaced that of `a < 1`, and a long name could not be written.
    #[test]
    fn profiles_of_different_variants_get_different_file_names() {
        let mut known = BTreeSet::new();
        let names = ["a < 1", "a > 1", "a = 1"].map(|it| file_name(it, &mut known));
        assert_eq!(names, ["a_1", "a_1_2", "a_1_3"]);
        let long = "é".repeat(300);
        let names = [(); 2].map(|()| file_name(&long, &mut known));
        assert!(names[0] != names[1], "{names:?}");
        assert!(names.iter().all(|it| it.len() < 210), "{names:?}");
    }

    /// Regression: `pgassay resume` was offered, which then refused.
    #[test]
    fn a_run_whose_build_was_replaced_does_not_offer_resume() {
        let program = PathBuf::from("/opt/pg/bin/postgres");
        let rebuilt = anyhow::Error::from(ServerError::Rebuilt { program }).context("block 2");
        let text = how_to_continue("a", "", Some(&rebuilt));
        assert!(!text.contains("resume"), "{text}");
        let other = anyhow::anyhow!("the disk is full");
        assert!(how_to_continue("a", " --x", Some(&other)).ends_with("pgassay resume a --x"));
    }

    /// Regression: a second line said "pgassay: interrupted" again.
    #[test]
    fn a_run_that_is_interrupted_says_so_once() {
        let stopped = anyhow::Error::from(Interrupted).context("block 1, 1 client");
        let ended = exit_with("a", "; to continue: pgassay resume a", Some(stopped));
        let error = ended.expect_err("it was interrupted");
        assert!(
            error.is::<Interrupted>(),
            "the exit status is that of an interrupt"
        );
        assert_eq!(
            text_of(&error),
            "interrupted; completed trials saved as a; to continue: pgassay resume a"
        );
    }
}
