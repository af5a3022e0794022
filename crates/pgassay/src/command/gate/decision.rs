//! The answer of a gate, and its exit status.

use std::io::Write;

use anyhow::Result;
use pgassay_account::comparison::{GatedComparison, RunningComparisons};
use pgassay_model::plan::Plan;
use pgassay_model::trial::{FAILED_DIFFERENCE_MAX, failed_share};
use pgassay_record::run::{Run, Warning, WarningKind};
use pgassay_report::gate::{
    self, GateLimit, GateNames, GateResult, GateVerdict, deciding_sentence,
};
use pgassay_report::is_of_question;
use serde_json::Value;

use crate::args::{ColorWhen, ResultFormat};
use crate::command::run::{FinishedRun, exit_of};
use crate::exit::{self, Gate, after_printing, text_of};
use crate::style::folded;

/// What to do if a baseline cannot be compared with.
const SIDE_BY_SIDE: &str = "To compare nevertheless, run both side by side, without --against.";

/// Why the rates of a comparison do not decide: more transactions of one side failed than of the other.
fn unlike_failures(run: &Run, compared: &GatedComparison) -> Option<String> {
    let share = |variant| failed_share(&run.trials, compared.condition, variant);
    let baseline = run.plan.baseline_of(compared.variant);
    let (before, now) = (share(baseline), share(compared.variant));
    ((before - now).abs() > FAILED_DIFFERENCE_MAX).then(|| {
        format!(
            "{:.1}% of its transactions failed, and {:.1}% of the baseline's; throughput counts only successful ones",
            100.0 * now,
            100.0 * before
        )
    })
}

/// The answer of a gate.
pub struct GateDecision {
    pub results: Vec<GateResult>,
    pub limit: GateLimit,
    /// The sentence that decides.
    pub sentence: String,
    /// Why the run failed, if it did.
    pub failure: Option<String>,
}

impl GateDecision {
    /// Of these comparisons.
    pub fn new(results: Vec<GateResult>, limit: GateLimit) -> Self {
        Self {
            sentence: deciding_sentence(&results, limit),
            limit,
            results,
            failure: None,
        }
    }

    /// The same, of a run that ended with this error, which decides.
    pub fn with_failure(mut self, error: Option<&anyhow::Error>) -> Self {
        if let Some(error) = error.filter(|_| self.failure.is_none()) {
            let reason = text_of(error);
            self.sentence = format!("the run failed: {reason}. So far: {}", self.sentence);
            self.failure = Some(reason);
        }
        self
    }

    /// Computed from the run's trials and the variants that were skipped; `None` if its plan has no gate.
    pub fn of(run: &Run) -> Option<Self> {
        let percent = run.plan.schedule.gate_limit_percent?;
        let limit = GateLimit::Slower(percent);
        let mut running = RunningComparisons::of(&run.plan)?;
        running.add_blocks(&run.trials);
        let results = running.gated().into_iter().map(|compared| {
            let names = names(&run.plan, compared.condition, compared.variant);
            match unlike_failures(run, &compared) {
                Some(reason) => GateResult::not_comparable(names, &reason),
                None => GateResult {
                    early_end: gate::early_end(run, compared.condition, compared.variant),
                    ..GateResult::of_rates(names, &compared, percent)
                },
            }
        });
        let skipped = run.warnings.iter();
        let skipped = skipped.filter(|it| it.kind == WarningKind::Skipped);
        let skipped = skipped.filter_map(|it| Some((it.variant.as_deref()?, it.message.as_str())));
        let decision = Self::new(results.collect(), limit);
        let baseline = run.plan.variants.first().map_or("", String::as_str);
        let mut decision = decision.with_skipped(baseline, skipped);
        decision.add_doubts(&run.warnings);
        Some(decision)
    }

    /// Adds the warnings that the verdict is about something else than what the user has in mind: who reads a job's
    /// summary only sees this sentence.
    pub fn add_doubts(&mut self, warnings: &[Warning]) {
        // If the load generator is the bottleneck, a slower server may look as fast.
        let is_doubt = |it: &&Warning| is_of_question(it) || it.kind == WarningKind::ClientLimited;
        for doubt in warnings.iter().filter(is_doubt) {
            self.sentence = format!("{} {}", self.sentence, doubt.message);
        }
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
        let decision = self.with_failure(finished.ended_early.as_ref());
        let printed = decision.print_run(&finished, format, color, out);
        let verdict = exit_of(finished);
        let verdict = verdict.and_then(|()| decision.exit(format));
        after_printing(printed, verdict)
    }

    fn print_run(
        &self,
        finished: &FinishedRun,
        format: ResultFormat,
        color: ColorWhen,
        out: &mut impl Write,
    ) -> Result<()> {
        self.print_sentence_before(format, out)?;
        if format == ResultFormat::Json {
            return self.print_with(serde_json::to_value(&finished.run)?, out);
        }
        finished.print(format, color, out)
    }

    /// Prints a JSON object, or `null` if there is none, with the decision as its field `gate`.
    pub fn print_with(&self, mut document: Value, out: &mut impl Write) -> Result<()> {
        document["gate"] = gate::summary(&self.results, self.limit, &self.sentence);
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
        out.flush()?;
        Ok(())
    }

    /// Prints the deciding sentence, if the format is for people.
    pub fn print_sentence(&self, format: ResultFormat, out: &mut impl Write) -> Result<()> {
        match format {
            ResultFormat::Text => write!(out, "{}", folded(&self.sentence))?,
            ResultFormat::Markdown => {
                write!(out, "{}", gate::markdown(&self.results, &self.sentence))?;
            }
            ResultFormat::Csv | ResultFormat::Json | ResultFormat::Benchstat => {}
        }
        Ok(())
    }

    /// The same, and an empty line before what follows.
    pub fn print_sentence_before(&self, format: ResultFormat, out: &mut impl Write) -> Result<()> {
        self.print_sentence(format, out)?;
        if matches!(format, ResultFormat::Text | ResultFormat::Markdown) {
            writeln!(out)?;
        }
        Ok(())
    }

    /// As [`Self::conclude`], of a gate that measured nothing because of its baseline.
    pub fn conclude_unmeasured(self, format: ResultFormat, out: &mut impl Write) -> Result<()> {
        let printed = match format {
            ResultFormat::Json => self.print_with(Value::Null, out),
            _ => self.print_sentence(format, out),
        };
        let with_hint = |error: anyhow::Error| match error.downcast::<Gate>() {
            Ok(Gate { code, reason }) => Gate {
                code,
                reason: format!("{reason} {SIDE_BY_SIDE}").trim_start().to_owned(),
            }
            .into(),
            Err(other) => other,
        };
        after_printing(printed, self.exit(format).map_err(with_hint))
    }

    /// The same, with variants that were asked for and not measured, which are not comparable: their names, and why.
    pub fn with_skipped<'s>(
        mut self,
        baseline: &str,
        skipped: impl IntoIterator<Item = (&'s str, &'s str)>,
    ) -> Self {
        let skipped = skipped.into_iter().map(|(name, reason)| {
            let names = GateNames {
                variant: name.to_owned(),
                baseline: baseline.to_owned(),
                condition: "all conditions".to_owned(),
            };
            GateResult::not_comparable(names, reason)
        });
        self.results.extend(skipped);
        Self::new(self.results, self.limit)
    }

    /// The error that becomes the exit status, unless all variants pass. It has no text if the deciding sentence was
    /// printed in this format.
    pub fn exit(self, format: ResultFormat) -> Result<()> {
        let code = match self.verdict() {
            GateVerdict::Pass => return Ok(()),
            GateVerdict::Regression => exit::REGRESSION,
            GateVerdict::Inconclusive => exit::INCONCLUSIVE,
            GateVerdict::NotComparable => exit::NOT_COMPARABLE,
        };
        let reason = match format {
            ResultFormat::Text | ResultFormat::Markdown => String::new(),
            ResultFormat::Csv | ResultFormat::Json | ResultFormat::Benchstat => self.sentence,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_that_cannot_run_here_is_no_pass() {
        let pass = GateResult {
            names: GateNames {
                variant: "new".to_owned(),
                baseline: "old".to_owned(),
                condition: "8 clients".to_owned(),
            },
            verdict: GateVerdict::Pass,
            figures: String::new(),
            cost_ratio: Some(1.0),
            is_better: false,
            early_end: None,
        };
        let decision = || GateDecision::new(vec![pass.clone()], GateLimit::Slower(5.0));
        let reason = "variant \"other\" skipped: no extension x.";
        let decided = decision().with_skipped("old", [("other", reason)]);
        assert_eq!(decided.verdict(), GateVerdict::NotComparable);
        assert!(
            decided.sentence.contains("no extension x"),
            "{}",
            decided.sentence
        );
        let failed = decision().with_failure(Some(&anyhow::anyhow!("the server died")));
        assert!(
            failed
                .sentence
                .starts_with("the run failed: the server died. So far: pass"),
            "{}",
            failed.sentence
        );
        assert!(
            !decided.sentence.contains(".."),
            "the reason ends with a period: {}",
            decided.sentence
        );
        let complete = decision().with_skipped("old", []);
        assert_eq!(complete.verdict(), GateVerdict::Pass);
    }

    /// Regression: a variant with the settings of the baseline was "not comparable", as if it had been skipped.
    #[test]
    fn an_a_a_comparison_passes_and_the_deciding_sentence_says_so() {
        let mut decision = GateDecision::new(Vec::new(), GateLimit::Slower(5.0));
        let warning = |kind, message: &str| Warning {
            kind,
            variant: Some("new".to_owned()),
            message: message.to_owned(),
        };
        decision.add_doubts(&[
            warning(WarningKind::SameBuild, "They are the same."),
            warning(WarningKind::NoReset, "No reset."),
            warning(WarningKind::RowsDiffer, "Rows differ."),
            warning(WarningKind::ClientLimited, "A bottleneck."),
        ]);
        let doubts = "comparison They are the same. Rows differ. A bottleneck.";
        assert!(decision.sentence.ends_with(doubts), "{}", decision.sentence);
    }

    /// Regression: a gate that stopped after 8 of 12 server starts did not say why, and showed no mean time, which its
    /// limit is about.
    #[test]
    fn an_inconclusive_gate_shows_the_mean_time_with_its_limit_and_why_it_ended() {
        use pgassay_account::comparison::GateAnswer;
        let compared = GatedComparison {
            condition: 0,
            variant: 1,
            answer: GateAnswer::Inconclusive,
            ratio: Some(0.8),
            interval: Some(pgassay_stats::Interval {
                low: 0.5,
                high: 1.25,
                level: 0.95,
            }),
            is_relative: false,
            pairs: 8,
        };
        let names = GateNames {
            variant: "new".to_owned(),
            baseline: "old".to_owned(),
            condition: "8 clients".to_owned(),
        };
        let why = "The comparison ended after 8 of at most 12 server starts.";
        let result = GateResult {
            early_end: Some(why.to_owned()),
            ..GateResult::of_rates(names, &compared, 20.0)
        };
        let sentence = deciding_sentence(&[result], GateLimit::Slower(20.0));
        let expected = format!(
            "throughput ×0.800 [0.500, 1.250] (8 pairs), so mean time ×1.250 [0.800, 2.000]; limit ×1.200. {why} To \
             decide, "
        );
        assert!(sentence.contains(&expected), "{sentence}");
    }
}
