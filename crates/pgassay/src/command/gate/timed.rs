//! A gate on time: `slower > 5%`.

use std::io::Write;

use anyhow::{Context, Result, bail};
use pgassay_lab::RunContext;
use pgassay_lab::requirements::{self, NothingToCompare};
use pgassay_model::plan::Overrides;
use pgassay_record::baseline::GateBaseline;
use pgassay_report::gate::GateLimit;

use super::args::GateArgs;
use super::args::NAME;
use super::asked::asked_of;
use super::baseline::{self, Against};
use super::comparable;
use super::decision::GateDecision;
use super::files;
use crate::args::ColorWhen;
use crate::command::compare::{overrides_of, question_of};
use crate::command::run::{FinishedRun, measure};
use crate::command::study::PlannedStudy;
use crate::exit::{after_writing, text_of};
use crate::progress::ProgressDisplay;
use crate::{catalog, checks, interrupt};

/// Runs the variants side by side, compares, and prints the answer.
pub fn gate(
    args: &GateArgs,
    against: &Against,
    color: ColorWhen,
    out: &mut impl Write,
) -> Result<()> {
    let asked = &args.question;
    let format = asked.run.output.chosen();
    let planned = plan(args)?;
    let reason = why_not(args, against, &planned).inspect_err(|error| {
        files::write_failure(args, error, || files::suite_without_run(&planned)).ok();
    })?;
    if let Some(reason) = reason {
        return conclude_not_comparable(args, &planned, &reason, out);
    }
    files::check(args)?;
    let planned = match against {
        Against::Found(baseline) => with_ratios(planned, baseline)?,
        Against::Nothing | Against::Missing(_) => planned,
    };
    let finished = match measure(&planned, asked.seed, &asked.run) {
        Ok(mut finished) => {
            finished.resume_flags.push_str(&args.answer.resume_flags());
            finished
        }
        Err(error) if error.is::<NothingToCompare>() => {
            return conclude_not_comparable(args, &planned, &text_of(&error), out);
        }
        Err(error) => {
            files::write_failure(args, &error, || files::suite_without_run(&planned))?;
            return Err(error);
        }
    };
    let decision = GateDecision::of(&finished.run)
        .context("the plan has a gate")?
        .with_failure(finished.ended_early.as_ref());
    let written = write_files(args, &decision, &finished);
    after_writing(written, decision.conclude(finished, format, color, out))
}

/// Prints and writes that nothing was measured, for this reason.
fn conclude_not_comparable(
    args: &GateArgs,
    planned: &PlannedStudy,
    reason: &str,
    out: &mut impl Write,
) -> Result<()> {
    let decision = GateDecision::not_comparable(&planned.plan, args.fail_if, reason);
    files::write(&args.answer, &decision, || {
        files::suite_without_run(planned)
    })?;
    decision.conclude_unmeasured(args.question.run.output.chosen(), out)
}

/// Writes the files that were asked for, and the baseline.
fn write_files(args: &GateArgs, decision: &GateDecision, finished: &FinishedRun) -> Result<()> {
    args.answer.write(decision, &finished.run)?;
    if finished.ended_early.is_some() {
        return Ok(());
    }
    baseline::update(args, decision.verdict(), || {
        GateBaseline::of_run(&finished.run)
    })
}

/// Plans the question, or the study.
fn plan(args: &GateArgs) -> Result<PlannedStudy> {
    let found = match &args.study {
        Some(study) => catalog::find(study)?,
        None => question_of(&args.question, NAME, &|names| {
            asked_of(args.fail_if, args.question.stepwise, names)
        })?,
    };
    let GateLimit::Slower(percent) = args.fail_if else {
        bail!("this gate does not compare times");
    };
    let overrides = Overrides {
        gate_limit_percent: Some(percent),
        ..overrides_of(&args.question)
    };
    let planned = PlannedStudy::of(found, overrides)?;
    if planned.plan.variants.len() < 2 {
        bail!("gate needs a baseline and at least one variant");
    }
    Ok(planned)
}

/// Why the plan cannot be compared with what `--against` names; `None` if it can, or if that is to be written.
fn why_not(args: &GateArgs, against: &Against, planned: &PlannedStudy) -> Result<Option<String>> {
    let baseline = match against {
        Against::Nothing => return Ok(None),
        Against::Missing(_) if args.update => {
            return Ok(comparable::without_restarts(&planned.plan));
        }
        Against::Missing(reason) => {
            return Ok(Some(format!("{reason}; --update writes a baseline file")));
        }
        Against::Found(baseline) => baseline,
    };
    let interrupt = interrupt::watch()?;
    let progress = ProgressDisplay::on_stderr();
    let context = RunContext {
        study: &planned.found,
        options: &args.question.run.server.options(),
        interrupt: &interrupt,
        events: &progress,
    };
    if !checks::machine().has_id {
        context.note(
            "this machine has no ID in /etc/machine-id: a baseline of another machine with the same processor and \
             kernel would be accepted",
        );
    }
    let data_parent = context.options.data_parent.as_deref();
    comparable::why_not(baseline, &planned.plan, data_parent, || {
        requirements::builds(&planned.plan, &context)
    })
}

/// The same plan, for a gate that compares with the ratios of a baseline.
fn with_ratios(planned: PlannedStudy, baseline: &GateBaseline) -> Result<PlannedStudy> {
    let overrides = Overrides {
        gate_against: baseline.ratios.clone(),
        ..planned.overrides
    };
    PlannedStudy::of(planned.found, overrides)
}
