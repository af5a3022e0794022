//! `pgassay curve`: throughput and latency against the number of clients, or latency against the rate.

mod args;
mod question;
pub mod stored;

use std::path::Path;

use anyhow::{Context, Result};
use pgassay_account::scalability::{
    CurveIdentity, CurvePoint, LimitKind, ScalabilityCurve, scalability_curve,
};
use pgassay_lab::{
    CurveBlocks, EventSink, LabEvent, Laboratory, Placement, RealEquipment, RunContext, Scheduler,
    assemble,
};
use pgassay_model::plan::Overrides;
use pgassay_model::study::StudySource;
use pgassay_record::run::{Run, Warning, WarningKind};
use pgassay_report::{scalability_html, scalability_json, scalability_text};

use args::LevelsForm;

pub use args::CurveArgs;

use crate::args::ColorWhen;
use crate::command::run::SavingEvents;
use crate::command::run::saving;
use crate::command::run::{exit_with, files, identity, prepare, run_start, server_options};
use crate::command::study::{PlannedStudy, seed_of_now};
use crate::output::FileOutput;
use crate::output_file::{check_writable, write_to};
use crate::progress::ProgressDisplay;
use crate::style::{folded, style};
use crate::{catalog, interrupt, results};

/// The name under which results are listed.
const NAME: &str = "curve";

/// Measures the curve, stores the run, and prints the curve.
pub fn curve(args: &CurveArgs, color: ColorWhen, out: &mut impl FileOutput) -> Result<()> {
    args.output.as_deref().map_or(Ok(()), check_writable)?;
    let (planned, placement) = planned(args)?;
    let store = results::open(&args.results)?;
    let interrupt = interrupt::watch()?;
    let options = server_options(&args.server, args.external, &store);
    let progress = ProgressDisplay::on_stderr();
    let length_us = length_us(args);
    let context = RunContext {
        study: &planned.found,
        options: &options,
        interrupt: &interrupt,
        events: &progress,
    };
    let (mut plan, _, warnings) = prepare(&planned, &store, &context)?;
    plan.schedule.blocks = CurveBlocks::new(&plan, placement, length_us).blocks_max();
    let writer = store
        .create(run_start(&planned.found, &plan), &planned.found.source.text)
        .context("cannot save results")?;
    let saving = SavingEvents::new(&progress, writer);
    let mut blocks = CurveBlocks::new(&plan, placement, length_us);
    let events = CurveEvents {
        inner: &saving,
        trials_max: blocks.trials_max(),
    };
    let context = RunContext {
        events: &events,
        ..context
    };
    announce(args, &planned, &context);
    let mut laboratory = Laboratory {
        context,
        equipment: &mut RealEquipment,
    };
    let mut outcome = match laboratory.run(&plan, &mut blocks) {
        Ok(outcome) => outcome,
        Err(error) => {
            saving.into_writer().discard();
            return Err(error);
        }
    };
    progress.finish();
    outcome.warnings.extend(warnings);
    let blocks = blocks.blocks();
    plan.schedule.blocks = blocks;
    let writer = saving.into_writer();
    let identity = identity(writer.id().to_owned(), &store, &options);
    let logs = std::mem::take(&mut outcome.logs);
    let ended_early = outcome.ended_early.take();
    let load = question::load(args, &plan)?;
    let mut run = assemble(
        &planned.found,
        plan,
        outcome,
        ended_early.as_ref(),
        identity,
    )?;
    // Which trials are run depends on those before, so no number of them is complete by itself.
    run.complete = ended_early.is_none();
    let found = curve_of(&mut run, load);
    let mut files = files(&run, logs);
    files.extend(curve_files(&found));
    let directory = saving::finish(writer, &run, &files)?;
    print(&found, &run, &directory, args, color, out)?;
    // The order of its trials depends on their results, so it cannot be continued.
    exit_with(&run.id, "", ended_early)
}

/// What is stored in addition to the files of every run.
fn curve_files(curve: &ScalabilityCurve) -> [(String, Vec<u8>); 2] {
    let page = scalability_html(curve).into_bytes();
    let data = scalability_json(curve).into_bytes();
    [
        ("curve.html".to_owned(), page),
        (stored::FILE.to_owned(), data),
    ]
}

/// The study, its plan, and how its conditions are chosen.
fn planned(args: &CurveArgs) -> Result<(PlannedStudy, Placement)> {
    let clients = question::clients(args)?;
    let source = StudySource {
        file: String::new(),
        text: question::study_text(args, &clients)?,
    };
    let found = catalog::load(NAME, source)?.with_dsns_of_user();
    let overrides = Overrides {
        seed: args.seed.unwrap_or_else(seed_of_now),
        without_profile: args.no_profile,
        ..Overrides::default()
    };
    let mut planned = PlannedStudy::of(found, overrides)?;
    let (placement, levels) = match (&args.rate, args.exhaustive) {
        (Some(rates), _) => {
            let (placement, levels) = match rates.form {
                LevelsForm::Single => (Placement::Rates, rates.doubled()),
                LevelsForm::Range => (Placement::Rates, rates.values.clone()),
                LevelsForm::List => (Placement::Exhaustive, rates.values.clone()),
            };
            question::with_rates(&mut planned.plan, &levels);
            (placement, levels)
        }
        (None, true) => (Placement::Exhaustive, clients),
        (None, false) => (placement_of_clients(args), clients),
    };
    let schedule = &mut planned.plan.schedule;
    schedule.trial_us = placement.trial_us(&levels, length_us(args), schedule.profiled);
    Ok((planned, placement))
}

/// A search among the numbers of a range; all numbers of a list, since the user has chosen them.
fn placement_of_clients(args: &CurveArgs) -> Placement {
    match args.clients.as_ref().map(|it| it.form) {
        Some(LevelsForm::List) => Placement::Exhaustive,
        _ => Placement::Adaptive,
    }
}

fn length_us(args: &CurveArgs) -> u64 {
    args.length.duration().as_micros() as u64
}

/// Tells what will run.
fn announce(args: &CurveArgs, planned: &PlannedStudy, context: &RunContext<'_>) {
    let schedule = &planned.plan.schedule;
    let what = match &args.rate {
        Some(_) => format!("{} rates", planned.plan.conditions.len()),
        None => format!("{} numbers of clients", planned.plan.conditions.len()),
    };
    context.note(&format!(
        "{NAME}: up to {what}, trials of {:.0} ms, at most {} inside trials plus warm-up and setup; \
         seed {}",
        schedule.trial_us as f64 / 1e3,
        args.length,
        schedule.seed,
    ));
    for note in &planned.notes {
        context.note(note);
    }
}

/// The curve of a run. Adds to the run's warnings why the limit of the curve has no name.
fn curve_of(run: &mut Run, load: String) -> ScalabilityCurve {
    let identity = CurveIdentity {
        run: run.id.clone(),
        pgassay_version: run.pgassay_version.clone(),
        load,
    };
    let curve = scalability_curve(&run.plan, &run.trials, &run.points, &run.ledgers, identity);
    let warning = unnamed_waits(&curve.points, run.plan.schedule.profiled > 0);
    run.warnings.extend(warning);
    let warnings = run.warnings.iter().map(|it| it.message.clone());
    ScalabilityCurve {
        warnings: warnings.collect(),
        ..curve
    }
}

/// A warning if the limit of a point is unexplained because nothing was profiled.
fn unnamed_waits(points: &[CurvePoint], is_profiled: bool) -> Option<Warning> {
    let is_unexplained = |it: &CurvePoint| {
        let limit = it.limit.as_ref();
        limit.is_some_and(|limit| limit.kind == LimitKind::Unexplained)
    };
    (!is_profiled && points.iter().any(is_unexplained)).then(|| Warning {
        kind: WarningKind::NoProfile,
        message: "a limit is unexplained because waits have no names without profiling: leave out --no-profile"
            .to_owned(),
        variant: None,
    })
}

fn print(
    found: &ScalabilityCurve,
    run: &Run,
    directory: &Path,
    args: &CurveArgs,
    color: ColorWhen,
    out: &mut impl FileOutput,
) -> Result<()> {
    if let Some(page) = &args.output {
        let is_stdout = write_to(page, scalability_html(found).as_bytes(), out)?;
        if is_stdout {
            return Ok(out.flush()?);
        }
    }
    if args.json {
        out.write_all(scalability_json(found).as_bytes())?;
        return Ok(out.flush()?);
    }
    out.write_all(scalability_text(found, &style(color)).as_bytes())?;
    for warning in &run.warnings {
        write!(out, "{}", folded(&format!("! {}", warning.message)))?;
    }
    let stored = directory.join("curve.html");
    let page = args.output.as_ref().unwrap_or(&stored);
    writeln!(
        out,
        "\nseed {}; page: {}",
        run.plan.schedule.seed,
        page.display()
    )?;
    Ok(out.flush()?)
}

/// The events of a run, with the number of trials that its measuring time allows: the plan's number is that
/// of all conditions in all blocks.
struct CurveEvents<'a> {
    inner: &'a SavingEvents<'a>,
    trials_max: u64,
}

impl EventSink for CurveEvents<'_> {
    fn event(&self, event: &LabEvent<'_>) {
        match event {
            LabEvent::TrialsBegin { .. } => self.inner.event(&LabEvent::TrialsBegin {
                total: self.trials_max,
                is_most: true,
            }),
            other => self.inner.event(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct CurveLine {
        #[command(flatten)]
        args: CurveArgs,
    }

    /// Regression: of `-c 1,2,3,4,5,6,8`, three blocks measured 1, 2, 4 and 8 only, and later ones those that the
    /// search chose.
    #[test]
    fn all_listed_numbers_of_clients_are_measured() {
        for (given, expected) in [
            ("-c 1,2,3,4,5,6,8", Placement::Exhaustive),
            ("-c 1..8", Placement::Adaptive),
            ("-c 1..8 --exhaustive", Placement::Exhaustive),
            ("--length 10s", Placement::Adaptive),
            ("--rate 100,200", Placement::Exhaustive),
            ("--rate 100..200", Placement::Rates),
        ] {
            let words = ["curve", "-S"].into_iter().chain(given.split(' '));
            let line = CurveLine::try_parse_from(words).unwrap();
            let (_, placement) = planned(&line.args).unwrap_or_else(|it| panic!("{given}: {it}"));
            assert_eq!(placement, expected, "{given}");
        }
    }

    /// Regression: the answer said so of every unexplained limit.
    #[test]
    fn only_without_profiling_do_waits_have_no_names() {
        let point = |kind: LimitKind| {
            let limit = serde_json::json!({ "kind": kind, "row": "", "us": 1.0, "growth_us": 2.0 });
            let point = serde_json::json!({
                "clients": 2, "rounds": 1, "throughput": {}, "latency_mean_us": 1.0, "latency_p50_us": 1.0,
                "latency_p95_us": 1.0, "latency_p99_us": 1.0, "limit": limit,
            });
            serde_json::from_value::<CurvePoint>(point).expect("a point")
        };
        let unexplained = [point(LimitKind::Locks), point(LimitKind::Unexplained)];
        assert!(unnamed_waits(&unexplained, false).is_some());
        assert!(unnamed_waits(&unexplained, true).is_none());
        assert!(unnamed_waits(&unexplained[..1], false).is_none());
    }
}
