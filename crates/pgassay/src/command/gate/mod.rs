//! `pgassay gate`: fails if a variant is slower than the baseline by more than a limit.

mod args;
mod files;

use std::io::Write;

use anyhow::{Context, Result, bail};
use pgassay_account::comparison::{GatedComparison, RunningComparisons};
use pgassay_model::plan::Overrides;
use pgassay_record::run::Run;
use pgassay_report::gate::{GateOutcome, GateResult, deciding_sentence};

pub use args::GateArgs;

use crate::args::{ColorWhen, ResultFormat};
use crate::catalog;
use crate::command::compare::{overrides_of, question_of};
use crate::command::run::{FinishedRun, exit_of, measure};
use crate::command::study::PlannedStudy;
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
    if asked.pairs.is_some() || asked.half_width.is_some() || asked.save.is_some() {
        bail!(
            "gate decides when to stop and saves no study: leave out --pairs, --half-width and --save"
        );
    }
    let found = match &args.study {
        Some(study) => catalog::find(study)?,
        None => question_of(asked)?,
    };
    let overrides = Overrides {
        gate_limit_percent: Some(args.fail_if.slower_percent),
        ..overrides_of(asked)
    };
    let planned = PlannedStudy::of(found, overrides)?;
    if planned.plan.variants.len() < 2 {
        bail!("gate needs a baseline and at least one variant");
    }
    let finished = measure(&planned, asked.seed, &asked.run)?;
    let decision = GateDecision::of(&finished.run).context("the plan has a gate")?;
    files::write(args, &finished.run, &decision)?;
    decision.conclude(finished, asked.run.output.chosen(), color, out)
}

/// The answer of a gate's run.
pub struct GateDecision {
    results: Vec<GateResult>,
    limit_percent: f64,
    sentence: String,
}

impl GateDecision {
    /// Computed from the run's trials; `None` if its plan has no gate.
    pub fn of(run: &Run) -> Option<Self> {
        let limit_percent = run.plan.schedule.gate_limit_percent?;
        let mut running = RunningComparisons::of(&run.plan)?;
        running.add_blocks(&run.trials);
        let result = |compared: GatedComparison| GateResult {
            variant: run.plan.variants[compared.variant].clone(),
            baseline: run.plan.variants[run.plan.baseline_of(compared.variant)].clone(),
            condition: run.plan.conditions[compared.condition].title(),
            compared,
        };
        let results: Vec<GateResult> = running.gated().into_iter().map(result).collect();
        Some(Self {
            sentence: deciding_sentence(&results, limit_percent),
            results,
            limit_percent,
        })
    }

    /// Prints the deciding sentence and the result. Returns the error that becomes the exit status, unless all
    /// variants pass.
    pub fn conclude(
        self,
        finished: FinishedRun,
        format: ResultFormat,
        color: ColorWhen,
        out: &mut impl Write,
    ) -> Result<()> {
        if format == ResultFormat::Text {
            writeln!(out, "{}\n", self.sentence)?;
        }
        finished.print(format, color, out)?;
        exit_of(&finished.run, finished.ended_early)?;
        let code = match GateOutcome::of(&self.results) {
            GateOutcome::Pass => return Ok(()),
            GateOutcome::Regression => exit::REGRESSION,
            GateOutcome::CannotTell => exit::CANNOT_TELL,
        };
        let reason = self.sentence;
        Err(Gate { code, reason }.into())
    }
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
