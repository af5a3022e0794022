//! A gate on instruction counts: `instructions > 2%`.

use std::io::Write;

use anyhow::{Result, bail};
use pgassay_account::instructions::{CountVerdict, Counts, InstructionCosts, Machine};
use pgassay_count::against::{self, VariantOutcome};
use pgassay_count::{markdown, text};
use pgassay_lab::counting::{self, CountingOptions, Valgrind};
use pgassay_lab::{LoadedStudy, RunContext, requirements};
use pgassay_model::plan::{Overrides, Plan};
use pgassay_record::baseline::GateBaseline;
use pgassay_report::gate::{GateNames, GateResult, GateVerdict};

use super::args::GateArgs;
use super::args::NAME;
use super::asked::asked_of;
use super::baseline::{self, Against};
use super::comparable;
use super::decision::GateDecision;
use super::files;
use crate::args::ResultFormat;
use crate::command::compare::{CompareArgs, question_of, question_of_any};
use crate::command::count::{Countable, countable, document};
use crate::command::run::{COUNTED_ROUNDS, COUNTED_SEED};
use crate::exit::{after_printing, after_writing};
use crate::progress::ProgressDisplay;
use crate::style::{columns, folded};
use crate::{catalog, interrupt};

/// The condition of a count, which has no name if there is only one.
const ONE_CLIENT: &str = "1 client";

/// Counts the variants, compares them with each other or with earlier counts, and prints the answer.
pub fn gate(
    args: &GateArgs,
    against: &Against,
    limit_percent: f64,
    out: &mut impl Write,
) -> Result<()> {
    let asked = &args.question;
    let format = asked.run.output.chosen();
    refuse_flags_of_time(asked)?;
    let machine = counting::machine(&Valgrind::find()?);
    let found = study(args, against)?;
    let interrupt = interrupt::watch()?;
    let progress = ProgressDisplay::on_stderr();
    let context = RunContext {
        study: &found,
        options: &asked.run.server.options(),
        interrupt: &interrupt,
        events: &progress,
    };
    let overrides = Overrides {
        seed: asked.seed.unwrap_or(COUNTED_SEED),
        ..Overrides::default()
    };
    let started_us = pgassay_lab::system_env::unix_us();
    let write_failure = |error: &anyhow::Error| {
        let suite = || files::suite_of_counts(&found.name, args.fail_if, None, started_us);
        files::write_failure(args, error, suite).ok();
    };
    let countable = countable(&found.study.conditions.clients, overrides, &context)
        .inspect_err(write_failure)?;
    let doubts = requirements::same_builds(&countable.plan, &context).inspect_err(write_failure)?;
    let earlier = match earlier(args, against, &countable.plan, &machine)? {
        Ok(earlier) => earlier,
        Err(reason) => {
            let decision = GateDecision::new(refused(&countable.plan, &reason), args.fail_if);
            files::write(&args.answer, &decision, || {
                files::suite_of_counts(&found.name, args.fail_if, None, started_us)
            })?;
            return decision.conclude_unmeasured(format, out);
        }
    };
    files::check(args)?;
    context.note(&power(limit_percent));
    let plan = countable.plan.clone();
    let counts = counted(countable, earlier.as_ref(), &context).inspect_err(write_failure)?;
    progress.finish();
    let asked: Vec<String> = found
        .study
        .variant
        .iter()
        .map(|it| it.name.clone())
        .collect();
    let mut decision = decide(args, &asked, &counts, earlier.as_ref(), limit_percent);
    decision.add_doubts(&doubts);
    let written = files::write(&args.answer, &decision, || {
        files::suite_of_counts(&found.name, args.fail_if, Some(&counts), started_us)
    });
    let written = written.and_then(|()| {
        baseline::update(args, decision.verdict(), || {
            GateBaseline::of_counts(counts.clone(), Some(plan.clone()))
        })
    });
    let printed = print(&decision, counts, format, out);
    after_writing(written, after_printing(printed, decision.exit(format)))
}

/// Fails if a flag is given that only a gate on time has.
fn refuse_flags_of_time(asked: &CompareArgs) -> Result<()> {
    let given = [
        ("--max-time", asked.max_time.is_some()),
        ("--length", asked.length.is_some()),
        ("--no-profile", asked.no_profile),
        ("--no-plans", asked.no_plans),
        ("--counted", asked.run.counted),
        ("--try-fixes", asked.run.try_fixes),
        (
            "--keep-cpus-awake",
            asked.idle_cpus.are_kept_awake() == Some(true),
        ),
        (
            "--let-cpus-sleep",
            asked.idle_cpus.are_kept_awake() == Some(false),
        ),
        (
            "--format csv",
            asked.run.output.chosen() == ResultFormat::Csv,
        ),
        (
            "--format benchstat",
            asked.run.output.chosen() == ResultFormat::Benchstat,
        ),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => bail!("a gate on instructions measures no times: leave out {flag}"),
        None => Ok(()),
    }
}

/// Compares the counts of the measured among the variants that were asked for.
fn decide(
    args: &GateArgs,
    asked: &[String],
    counts: &Counts,
    earlier: Option<&Counts>,
    limit_percent: f64,
) -> GateDecision {
    let name = args.against.as_deref().unwrap_or_default();
    let is_first = earlier.is_none() && counts.comparisons() == 0;
    let results = match earlier {
        Some(then) => against_earlier(then, counts, name, limit_percent),
        None if is_first => first(counts),
        None => side_by_side(counts, limit_percent),
    };
    let conditions = counts.conditions.iter();
    let measured = conditions
        .flat_map(|it| &it.variants)
        .map(|it| it.name.clone());
    let measured: Vec<String> = measured.collect();
    let reason = |name: &str| {
        let mut ignored = counts.ignored.iter();
        let known = ignored.find(|reason| reason.contains(name));
        known.map_or("it was not counted", String::as_str)
    };
    let skipped = asked.iter().filter(|name| !measured.contains(name));
    let skipped = skipped.map(|name| (name.as_str(), reason(name)));
    let baseline = measured.first().map_or("", String::as_str);
    let decision = GateDecision::new(results, args.fail_if);
    let mut decision = decision.with_skipped(baseline, skipped);
    if is_first && decision.verdict() == GateVerdict::Pass {
        decision.sentence = format!("pass: there are no earlier counts; these go to {name}.");
    }
    decision
}

/// What is counted. Compared with earlier counts, a single variant is enough.
fn study(args: &GateArgs, against: &Against) -> Result<LoadedStudy> {
    let asked_of = |names: &[&str]| asked_of(args.fail_if, args.question.stepwise, names);
    match (&args.study, against) {
        (Some(study), _) => catalog::find(study),
        (None, Against::Nothing) => question_of(&args.question, NAME, &asked_of),
        (None, _) => question_of_any(&args.question, NAME, &asked_of),
    }
}

/// The counts to compare with, if any; or why there is nothing to compare with.
fn earlier(
    args: &GateArgs,
    against: &Against,
    plan: &Plan,
    machine: &Machine,
) -> Result<Result<Option<Counts>, String>> {
    let baseline = match against {
        Against::Nothing if plan.variants.len() < 2 => {
            bail!("gate needs a baseline and at least one variant")
        }
        Against::Nothing | Against::Missing(_) if plan.stepwise => bail!(
            "a gate on instructions compares each variant with the first: leave out --stepwise"
        ),
        Against::Found(baseline) if args.update && !baseline.trials.is_empty() => bail!(
            "\"{}\" contains times, which --update would replace with counts: give another file for counts",
            baseline.name
        ),
        Against::Nothing => return Ok(Ok(None)),
        // The first counts pass: there is nothing that they could be worse than.
        Against::Missing(_) if args.update => return Ok(Ok(None)),
        Against::Missing(reason) => {
            return Ok(Err(format!("{reason}; --update writes a baseline file")));
        }
        Against::Found(baseline) => baseline,
    };
    let before = baseline.plan.as_ref();
    let reason = if baseline.trials.is_empty() {
        comparable::another_plan(before, plan, false)
    } else {
        comparable::another_load(before, plan)
    };
    if let Some(reason) = reason {
        return Ok(Err(reason));
    }
    Ok(match &baseline.instructions {
        // Before the count, which takes long.
        Some(counts) => match against::machines_differ(&counts.machine, machine) {
            Some(reason) => Err(reason),
            None => Ok(Some(aligned(counts, plan))),
        },
        None => Err(format!(
            "\"{}\" has no instruction counts: use a run with --counted, or a file written by --update",
            baseline.name
        )),
    })
}

/// Single variants are compared whatever their names are.
fn aligned(counts: &Counts, plan: &Plan) -> Counts {
    let mut aligned = counts.clone();
    if let [only] = &plan.variants[..] {
        for condition in &mut aligned.conditions {
            if let [variant] = &mut condition.variants[..] {
                variant.name.clone_from(only);
            }
        }
    }
    aligned
}

/// What the gate can tell, before it counts. The figure is the repeatability that docs/count.md reports.
fn power(limit_percent: f64) -> String {
    format!(
        "the gate, on instructions in {COUNTED_ROUNDS} rounds: differences from the limit of {limit_percent}% by 0.1% are \
         usually decided; the seed is fixed, and other load on the machine does not matter"
    )
}

fn counted(
    countable: Countable,
    earlier: Option<&Counts>,
    context: &RunContext<'_>,
) -> Result<Counts> {
    let Countable { plan, left_out } = countable;
    let segments_of = |condition: &str, variant: &str| {
        let mut conditions = earlier?.conditions.iter();
        let condition = conditions.find(|it| it.title == condition)?;
        let mut variants = condition.variants.iter();
        Some(variants.find(|it| it.name == variant)?.segments)
    };
    let options = CountingOptions {
        repeats: COUNTED_ROUNDS,
        unit: None,
        segments_of: &segments_of,
        call_paths: false,
        left_out,
    };
    counting::count(&plan, &options, context)
}

/// Every variant, compared with the baseline of its condition.
fn side_by_side(counts: &Counts, limit_percent: f64) -> Vec<GateResult> {
    let costs = InstructionCosts::of(counts.clone());
    let all = costs.differences.iter().map(|it| {
        let difference = &it.difference;
        let margin = match difference.verdict {
            CountVerdict::TooFewRounds => Err("too few rounds"),
            CountVerdict::NotLinear => Err("not linear"),
            CountVerdict::Differs | CountVerdict::NoDifference => Ok(difference.margin),
        };
        let conditions = counts.conditions.iter();
        let mut variants = conditions
            .filter(|condition| condition.title == it.condition)
            .flat_map(|condition| &condition.variants);
        let now = variants.find(|variant| variant.name == it.variant);
        let now = now.map_or(0.0, pgassay_account::instructions::VariantCount::cost);
        let both = [now - difference.per_transaction, now];
        let names = names(&it.variant, it.baseline.clone(), &it.condition);
        GateResult::of_instructions(names, both, margin, limit_percent)
    });
    all.collect()
}

/// The first counts, which are compared with nothing.
fn first(counts: &Counts) -> Vec<GateResult> {
    let conditions = counts.conditions.iter();
    let all =
        conditions.flat_map(|condition| condition.variants.iter().map(move |it| (condition, it)));
    let results = all.map(|(condition, it)| {
        let names = names(&it.name, it.name.clone(), &condition.title);
        GateResult::first_count(names, it.cost(), it.is_linear())
    });
    results.collect()
}

/// Every variant, compared with its earlier counts.
fn against_earlier(then: &Counts, now: &Counts, name: &str, limit_percent: f64) -> Vec<GateResult> {
    let compared = against::compare(then, now, limit_percent / 100.0);
    let variants = now
        .conditions
        .iter()
        .flat_map(|condition| condition.variants.iter().map(move |it| (condition, it)));
    let results = variants.zip(compared).map(|((condition, variant), it)| {
        let names = names(&variant.name, format!("in {name}"), &condition.title);
        let cost = variant.cost();
        match it.outcome {
            VariantOutcome::NotComparable(reason) => GateResult::not_comparable(names, &reason),
            VariantOutcome::Inconclusive(doubt) => GateResult::inexact_count(names, cost, &doubt),
            VariantOutcome::Within(difference) | VariantOutcome::Over(difference) => {
                let both = [cost - difference.per_transaction, cost];
                GateResult::of_instructions(names, both, Ok(difference.margin), limit_percent)
            }
        }
    });
    results.collect()
}

fn refused(plan: &Plan, reason: &str) -> Vec<GateResult> {
    let results = plan
        .variants
        .iter()
        .map(|variant| GateResult::not_comparable(names(variant, String::new(), ""), reason));
    results.collect()
}

fn names(variant: &str, baseline: String, condition: &str) -> GateNames {
    GateNames {
        variant: variant.to_owned(),
        baseline,
        condition: match condition {
            "" => ONE_CLIENT.to_owned(),
            title => title.to_owned(),
        },
    }
}

fn print(
    decision: &GateDecision,
    counts: Counts,
    format: ResultFormat,
    out: &mut impl Write,
) -> Result<()> {
    decision.print_sentence_before(format, out)?;
    match format {
        ResultFormat::Text => {
            let text = text::answer(&counts, text::ROWS, columns());
            write!(out, "{}", folded(&text))?;
        }
        ResultFormat::Markdown | ResultFormat::Csv | ResultFormat::Benchstat => {
            write!(out, "{}", markdown::tables(&counts))?;
        }
        ResultFormat::Json => {
            decision.print_with(document(&InstructionCosts::of(counts)), out)?;
        }
    }
    out.flush()?;
    Ok(())
}
