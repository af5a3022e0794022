//! `pgassay gate`: fails if a variant is slower than the baseline by more than a limit.

mod args;
mod files;

use std::io::Write;

use anyhow::{Result, bail};
use pgassay_account::comparison::RunningComparisons;
use pgassay_model::plan::Overrides;
use pgassay_record::run::Run;
use pgassay_report::gate::{GateOutcome, GateResult, deciding_sentence};

pub use args::GateArgs;

use crate::args::{ColorWhen, ResultFormat};
use crate::catalog;
use crate::command::compare::question_of;
use crate::command::run::{exit_of, measure};
use crate::command::study::{PlannedStudy, seed_of_now};
use crate::exit::{self, Gate, text_of};

/// Compares, prints the deciding sentence first, and fails unless all variants pass.
pub fn gate(args: &GateArgs, color: ColorWhen, out: &mut impl Write) -> Result<()> {
    let ended = compare(args, color, out);
    match ended {
        Err(error) if args.bisect => Err(for_bisect(&error)),
        other => other,
    }
}

fn compare(args: &GateArgs, color: ColorWhen, out: &mut impl Write) -> Result<()> {
    let asked = &args.question;
    if asked.pairs.is_some() || asked.save.is_some() {
        bail!("gate decides when to stop and saves no study: leave out --pairs and --save");
    }
    let found = match &args.study {
        Some(study) => catalog::find(study)?,
        None => question_of(asked)?,
    };
    let overrides = Overrides {
        seed: asked.seed.unwrap_or_else(seed_of_now),
        without_profile: asked.no_profile,
        max_time: asked.max_time,
        gate_limit_percent: Some(args.fail_if.slower_percent),
        ..Overrides::default()
    };
    let planned = PlannedStudy::of(found, overrides)?;
    if planned.plan.variants.len() < 2 {
        bail!("gate needs a baseline and at least one variant");
    }
    let finished = measure(&planned, asked.seed, &asked.run)?;
    let results = results(&finished.run);
    let sentence = deciding_sentence(&results, args.fail_if.slower_percent);
    let format = asked.run.output.chosen();
    if format == ResultFormat::Text {
        writeln!(out, "{sentence}\n")?;
    }
    files::write(args, &finished.run, &results, &sentence)?;
    finished.print(format, color, out)?;
    exit_of(&finished.run, finished.ended_early)?;
    let code = match GateOutcome::of(&results) {
        GateOutcome::Pass => return Ok(()),
        GateOutcome::Regression => exit::REGRESSION,
        GateOutcome::CannotTell => exit::CANNOT_TELL,
    };
    Err(Gate {
        code,
        reason: sentence,
    }
    .into())
}

/// The gate's answers, computed from the run's trials.
fn results(run: &Run) -> Vec<GateResult> {
    let Some(mut running) = RunningComparisons::of(&run.plan) else {
        return Vec::new();
    };
    running.add_blocks(&run.trials);
    let gated = running.gated().into_iter();
    let result = gated.map(|compared| GateResult {
        variant: run.plan.variants[compared.variant].clone(),
        baseline: run.plan.variants[0].clone(),
        condition: run.plan.conditions[compared.condition].title(),
        compared,
    });
    result.collect()
}

/// The exit codes that `git bisect run` understands: 0 is good, 1 to 127 is bad, 125 skips the commit, and from
/// 128 on it stops.
fn for_bisect(error: &anyhow::Error) -> anyhow::Error {
    let code = match error.downcast_ref::<Gate>() {
        Some(gate) if gate.code == exit::REGRESSION => exit::REGRESSION,
        Some(_) => exit::BISECT_SKIP,
        None => exit::BISECT_ABORT,
    };
    Gate {
        code,
        reason: text_of(error),
    }
    .into()
}
