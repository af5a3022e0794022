//! `pgassay resume`: continues a run that was killed, stopped or failed.
//!
//! The run's directory has the study, the plan and the trials. The study is planned again and must give
//! the same plan; machine, kernel, pgassay and the servers' builds must be the same, since trials of one
//! comparison must not differ in anything but the variant.

use std::io::Write;

use anyhow::{Context, Result, anyhow, bail};
use pgassay_lab::requirements;
use pgassay_lab::{
    EarlierResults, Laboratory, LoadedStudy, NoEvents, RunContext, check_external_writes,
};
use pgassay_model::plan::plan;
use pgassay_model::study::StudySource;
use pgassay_model::wording::counted;
use pgassay_record::run::{Warning, WarningKind};
use pgassay_script::Builtin;
use pgassay_store::{ReopenedRun, RunOrigin, RunStart, UnfinishedRun};

use crate::args::{ColorWhen, ResumeArgs};
use crate::command::first_difference::first_difference;
use crate::command::gate::GateDecision;
use crate::command::resume_flags::{absolute_text, resume_flags};
use crate::command::run::{RunJob, SavingEvents, exit_of, recover, server_options};
use crate::exit::after_writing;
use crate::progress::ProgressDisplay;
use crate::{checks, interrupt, results};

/// Continues a run, stores its result, prints the answer.
pub fn resume(args: &ResumeArgs, color: ColorWhen, out: &mut impl Write) -> Result<()> {
    args.gate.exit(finish(args, color, out))
}

fn finish(args: &ResumeArgs, color: ColorWhen, out: &mut impl Write) -> Result<()> {
    let store = results::open_to_read(&args.results)?;
    let id = store.find_unfinished(args.run.as_deref())?;
    let ReopenedRun {
        writer,
        mut unfinished,
        details,
        study_text,
    } = store.reopen(&id)?;
    let start = &mut unfinished.start;
    let origin = start.origin.take();
    let origin = *origin.with_context(|| {
        format!(
            "run \"{id}\" cannot be continued: it is a curve, or of an older version of pgassay"
        )
    })?;
    let cannot = || format!("cannot continue run \"{id}\"");
    check_options(&id, &origin, args)?;
    check_same_machine(start, &origin).with_context(cannot)?;
    let study = study(start, &origin, study_text).with_context(cannot)?;
    check_plan(start, &origin, &study).with_context(cannot)?;
    check_gate(start, args)?;

    let interrupt = interrupt::watch()?;
    let options = server_options(&args.server, args.external, &store);
    let progress = ProgressDisplay::on_stderr();
    let context = RunContext {
        study: &study,
        options: &options,
        interrupt: &interrupt,
        events: &progress,
    };
    let mut warnings = warnings(&origin, &unfinished);
    warnings.extend(recover(&store, &context));
    check_external_writes(&unfinished.start.plan, &context).with_context(cannot)?;
    let job = RunJob {
        study: &study,
        overrides: &origin.overrides,
        seed: origin.seed,
        options: &options,
        interrupt: &interrupt,
        progress: &progress,
        warnings,
        counted: origin.counted,
        try_fixes: origin.try_fixes,
        resume_flags: flags_again(args),
    };
    check_requirements(&unfinished.start, &job).with_context(cannot)?;
    // Of how many is known once it is known whether there are hardware counters; progress shows it.
    progress.note(&format!(
        "continuing {id} after {}, with the study as it was when the run began",
        counted(unfinished.trials.len(), "trial"),
    ));
    let saving = SavingEvents::resumed(&progress, writer);
    let earlier = EarlierResults {
        trials: unfinished.trials,
        details,
        servers: unfinished.servers,
    };
    let outcome = Laboratory::resume_plan(&unfinished.start.plan, job.context(&saving), earlier)?;
    let finished = job.finish(unfinished.start.plan, outcome, saving, &store)?;
    let format = args.output.chosen();
    if let Some(decision) = GateDecision::of(&finished.run) {
        let decision = decision.with_failure(finished.ended_early.as_ref());
        let written = args.gate.write(&decision, &finished.run);
        return after_writing(written, decision.conclude(finished, format, color, out));
    }
    finished.print(format, color, out)?;
    exit_of(finished)
}

/// The flags with which the run can be continued once more.
fn flags_again(args: &ResumeArgs) -> String {
    resume_flags(&args.results, &args.server, args.external) + &args.gate.resume_flags()
}

/// Returns an error if a gate's files or exit codes are asked for and the run is none, or cannot be written.
fn check_gate(start: &RunStart, args: &ResumeArgs) -> Result<()> {
    if start.plan.schedule.gate_limit_percent.is_none() && args.gate.is_given() {
        bail!(
            "the run is not one of pgassay gate: leave out --junit, --markdown, --strict and --bisect"
        );
    }
    args.gate.check()
}

/// Returns an error if the command that began the run had options of this machine that are not given again. The
/// run's directory may come from elsewhere, and must not choose users, programs and directories here.
fn check_options(id: &str, origin: &RunOrigin, args: &ResumeArgs) -> Result<()> {
    let given = &args.server;
    let options = [
        ("--cache", &origin.cache, given.cache.is_some()),
        ("--run-as", &origin.run_as, given.run_as.is_some()),
        (
            "--data-parent",
            &origin.data_parent,
            given.data_parent.is_some(),
        ),
    ];
    let missing = options.into_iter().filter(|(_, _, is_given)| !is_given);
    let missing: Vec<String> = missing
        .filter_map(|(name, value, _)| Some(format!(" {name} {}", value.as_ref()?)))
        .collect();
    let missing = missing.concat();
    if !missing.is_empty() {
        bail!(
            "run \"{id}\" began with{missing}; options of this machine are not taken from a run's directory, so give \
             them again: pgassay resume {id}{missing}{}",
            flags_again(args)
        );
    }
    let now = absolute_text(given.data_parent.as_deref());
    if now != origin.data_parent {
        let before = origin.data_parent.as_deref().unwrap_or("the default");
        bail!(
            "the data directories of run \"{id}\" were in {before}: trials on another disk are not comparable; \
             give the same --data-parent, or start a new run"
        );
    }
    Ok(())
}

/// Returns an error if pgassay or the machine is another one.
fn check_same_machine(start: &RunStart, origin: &RunOrigin) -> Result<()> {
    let (before, now) = (&origin.machine, checks::machine_identity());
    let version = env!("CARGO_PKG_VERSION");
    let mut differences = Vec::new();
    let mut compare = |what: &str, before: &str, now: &str| {
        if before != now {
            differences.push(format!("{what} is {now}, was {before}"));
        }
    };
    compare("the version of pgassay", &start.pgassay_version, version);
    compare("the machine", &before.name, &now.name);
    compare("the kernel", &before.kernel, &now.kernel);
    if before.name == now.name {
        compare("the machine's ID (as a hash)", &before.key, &now.key);
    }
    if !differences.is_empty() {
        bail!(
            "{}; continue it where it began, or start a new run",
            differences.join("; ")
        );
    }
    Ok(())
}

/// The run's study, with the text that its directory has.
fn study(start: &RunStart, origin: &RunOrigin, text: String) -> Result<LoadedStudy> {
    let source = StudySource {
        file: origin.study_file.clone(),
        text,
    };
    let mut parsed = source.parse()?;
    for (script, before) in parsed.script.iter_mut().zip(&origin.study.script) {
        if let Some(name) = &script.builtin {
            script.text = Some(Builtin::find(name)?.text.to_owned());
        } else if script.file.is_some() {
            // Script files are not in the run's directory, but their text is.
            script.text.clone_from(&before.text);
        }
    }
    if parsed != origin.study {
        bail!("study.toml in its directory was changed; restore it, or start a new run");
    }
    LoadedStudy::new(&start.study_name, source, parsed)
}

/// Returns an error if the study no longer gives the run's plan.
fn check_plan(start: &RunStart, origin: &RunOrigin, study: &LoadedStudy) -> Result<()> {
    let planned = plan(&study.study, &study.source, &origin.overrides)?;
    if planned == start.plan {
        return Ok(());
    }
    let (before, now) = (
        serde_json::to_value(&start.plan)?,
        serde_json::to_value(&planned)?,
    );
    let difference = first_difference("plan", &before, &now);
    Err(anyhow!(
        "its study now gives another plan: {}; use the build of pgassay that began it, or start a new run",
        difference.unwrap_or_else(|| "the numbers differ".to_owned())
    ))
}

/// Returns an error if a variant of the run cannot run here any more.
fn check_requirements(start: &RunStart, job: &RunJob<'_>) -> Result<()> {
    let unmet = requirements::unmet(&start.plan, &job.context(&NoEvents))?;
    match unmet.into_iter().next() {
        None => Ok(()),
        Some(unmet) => bail!("{}", unmet.sentence()),
    }
}

/// The warnings from before the first trial, and one that the run was continued.
fn warnings(origin: &RunOrigin, unfinished: &UnfinishedRun) -> Vec<Warning> {
    let times = match unfinished.resumed + 1 {
        1 => "once".to_owned(),
        times => format!("{times} times"),
    };
    let mut all = origin.warnings.clone();
    all.push(Warning {
        kind: WarningKind::Resumed,
        variant: None,
        message: format!(
            "the run was interrupted and continued {times}, on new servers with new data"
        ),
    });
    all
}

#[cfg(test)]
mod tests {
    use pgassay_model::plan::Overrides;
    use pgassay_model::study::Study;

    use super::*;
    use crate::catalog;

    #[test]
    fn every_built_in_study_and_its_plan_can_be_restored() {
        for (name, _) in catalog::STUDIES {
            let found = catalog::find(name).unwrap();
            let overrides = Overrides {
                quick: true,
                length: None,
                pairs: Some(4),
                parameters: [("rows".to_owned(), "10".to_owned())].into(),
                seed: u64::MAX,
                ..Overrides::default()
            };
            let planned = |study, overrides| plan(study, &found.source, overrides).ok();
            let saved = serde_json::to_string(&(&found.study, &overrides)).unwrap();
            let (study, restored): (Study, Overrides) = serde_json::from_str(&saved).unwrap();
            assert_eq!((&study, &restored), (&found.study, &overrides), "{name}");
            assert_eq!(
                planned(&study, &restored),
                planned(&found.study, &overrides),
                "{name}"
            );
        }
    }
}
