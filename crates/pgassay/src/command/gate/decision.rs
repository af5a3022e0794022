//! The answer of a gate, and its exit status.

use std::io::Write;

use anyhow::Result;
use pgassay_account::comparison::RunningComparisons;
use pgassay_model::plan::Plan;
use pgassay_record::run::Run;
use pgassay_report::gate::{GateLimit, GateNames, GateResult, GateVerdict, deciding_sentence};

use crate::args::{ColorWhen, ResultFormat};
use crate::command::run::{FinishedRun, exit_of};
use crate::exit::{self, Gate};

/// What to do if a baseline cannot be compared with.
const SIDE_BY_SIDE: &str =
    "To compare nevertheless, run both builds side by side, without --against.";

/// The answer of a gate.
pub struct GateDecision {
    pub results: Vec<GateResult>,
    /// The sentence that decides.
    pub sentence: String,
}

impl GateDecision {
    /// Of these comparisons.
    pub fn new(results: Vec<GateResult>, limit: GateLimit) -> Self {
        Self {
            sentence: deciding_sentence(&results, limit),
            results,
        }
    }

    /// Computed from the run's trials; `None` if its plan has no gate.
    pub fn of(run: &Run) -> Option<Self> {
        let limit = GateLimit::Slower(run.plan.schedule.gate_limit_percent?);
        let mut running = RunningComparisons::of(&run.plan)?;
        running.add_blocks(&run.trials);
        let results = running.gated().into_iter().map(|compared| {
            let names = names(&run.plan, compared.condition, compared.variant);
            GateResult::of_rates(names, &compared)
        });
        Some(Self::new(results.collect(), limit))
    }

    /// Of a plan that cannot be compared with a baseline, for this reason.
    pub fn not_comparable(plan: &Plan, limit: GateLimit, reason: &str) -> Self {
        let comparisons = (0..plan.conditions.len()).flat_map(|condition| {
            (1..plan.variants.len()).map(move |variant| (condition, variant))
        });
        let results = comparisons.map(|(condition, variant)| {
            GateResult::not_comparable(names(plan, condition, variant), reason)
        });
        Self::new(results.collect(), limit)
    }

    /// The verdict on all comparisons.
    pub fn verdict(&self) -> GateVerdict {
        GateVerdict::of(&self.results)
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
        self.print_sentence(format, out)?;
        finished.print(format, color, out)?;
        exit_of(&finished.run, finished.ended_early)?;
        self.exit()
    }

    /// Prints the deciding sentence, if the format is for people.
    pub fn print_sentence(&self, format: ResultFormat, out: &mut impl Write) -> Result<()> {
        if format == ResultFormat::Text {
            writeln!(out, "{}\n", self.sentence)?;
        }
        Ok(())
    }

    /// The error that becomes the exit status, unless all variants pass.
    pub fn exit(self) -> Result<()> {
        let code = match self.verdict() {
            GateVerdict::Pass => return Ok(()),
            GateVerdict::Regression => exit::REGRESSION,
            GateVerdict::Inconclusive => exit::INCONCLUSIVE,
            GateVerdict::NotComparable => exit::NOT_COMPARABLE,
        };
        let reason = match code {
            exit::NOT_COMPARABLE => format!("{} {SIDE_BY_SIDE}", self.sentence),
            _ => self.sentence,
        };
        Err(Gate { code, reason }.into())
    }
}

fn names(plan: &Plan, condition: usize, variant: usize) -> GateNames {
    let reference = &plan.variants[plan.baseline_of(variant)];
    GateNames {
        variant: plan.variants[variant].clone(),
        baseline: if plan.gate_against.is_empty() {
            reference.clone()
        } else {
            format!("in the earlier run, relative to {reference},")
        },
        condition: plan.conditions[condition].title(),
    }
}
