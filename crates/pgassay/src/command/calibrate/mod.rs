//! `pgassay calibrate`: measures the false positive rate by comparing loads with themselves (A/A).

use std::fmt::Write as _;
use std::io::Write;

use anyhow::{Context, Result};
use clap::Args;
use pgassay_account::calibration::{
    AaComparison, Calibration, CalibrationSummary, SCHEMA, comparisons,
};
use pgassay_lab::{Interrupt, Interrupted, Laboratory, LoadedStudy, RunContext, major_of};
use pgassay_model::plan::{Overrides, Plan, plan};
use pgassay_model::study::StudySource;
use pgassay_profile::AwakeCpus;

use crate::args::{ResultsArgs, ServerArgs, within};
use crate::command::study::seed_of_now;
use crate::exit::{Partial, text_of};
use crate::progress::ProgressDisplay;
use crate::style::folded;
use crate::{checks, interrupt, results};

/// The default of a study.
const PAIRS: u32 = 6;
/// Short: calibration tests the procedure, not the precision of a single verdict.
const TRIAL_US: u64 = 100_000;
/// Estimated time to start a server and to fill it.
const SETUP_US: u64 = 5_000_000;
/// Estimated time that the warm-up of a condition takes in addition to that of a study's: connections of 64 clients,
/// and a table that is read until the number of blocks read no longer falls. On two CPUs without other load.
const WARM_UP_US: u64 = 300_000;
/// The studies, as `(name, text)`: both sides on one server, and on two.
const STUDIES: [(&str, &str); 2] = [
    ("one-server", include_str!("one-server.toml")),
    ("two-servers", include_str!("two-servers.toml")),
];

/// Flags of `pgassay calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Minimum number of A/A comparisons. 200 take about half an hour and give the false positive
    /// rate to about ±3 percentage points, 400 to about ±2.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 200,
        value_parser = within::<u32>(1..=100_000)
    )]
    pub comparisons: u32,

    /// One comparison per load, 12 in about two minutes: a rough check.
    #[arg(long, conflicts_with = "comparisons")]
    pub quick: bool,

    /// PostgreSQL version, such as 18, 9.6 or 10.23.
    #[arg(long = "server", value_name = "VERSION", default_value = "18")]
    pub version: String,

    /// Seed for the order of trials and the random numbers; printed with the result [default: a new one for
    /// each run].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    #[command(flatten)]
    pub server: ServerArgs,

    #[command(flatten)]
    pub results: ResultsArgs,

    /// Print every comparison as JSON instead of the summary.
    #[arg(long)]
    pub json: bool,
}

/// Runs the comparisons, stores them for this machine, prints the false positive rate.
pub fn calibrate(args: &CalibrateArgs, out: &mut impl Write) -> Result<()> {
    let store = results::open(&args.results)?;
    let interrupt = interrupt::watch()?;
    let progress = ProgressDisplay::on_stderr();
    let machine = checks::machine();
    let mut calibration = Calibration {
        schema: SCHEMA.to_owned(),
        pgassay_version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: machine.name,
        machine_key: machine.key,
        started_us: 0,
        ended_us: 0,
        seed: args.seed.unwrap_or_else(seed_of_now),
        pairs: PAIRS,
        trial_us: TRIAL_US,
        other_load: 0.0,
        comparisons: Vec::new(),
    };
    let planned = planned(args, calibration.seed)?;
    let each: usize = planned.iter().map(|(_, plan)| plan.conditions.len()).sum();
    let rounds = planned
        .first()
        .map_or(0, |(_, plan)| plan.schedule.blocks / PAIRS);
    progress.note(&format!(
        "{} A/A comparisons of {PAIRS} pairs, about {} min, longer under other load; seed {}",
        each * rounds as usize,
        estimated_minutes(&planned),
        calibration.seed,
    ));
    // They are not profiled, so there are none for hardware counters.
    let trials = planned.iter().map(|(_, plan)| plan.trials());
    progress.expect_in_all(trials.sum());
    let ended_early = measure(args, &planned, &mut calibration, &interrupt, &progress)?;
    progress.finish();
    store.save_calibration(&calibration)?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &calibration)?;
        writeln!(out)?;
    } else {
        let known = store.calibration(&calibration.machine_key, &calibration.pgassay_version)?;
        out.write_all(folded(&text(&calibration, known.as_ref())).as_bytes())?;
    }
    out.flush()?;
    match ended_early {
        None => Ok(()),
        Some(error) if error.is::<Interrupted>() => Err(error),
        Some(error) => Err(Partial {
            reason: text_of(&error),
            id: "an incomplete calibration".to_owned(),
        }
        .into()),
    }
}

/// Estimated time of everything, in minutes.
fn estimated_minutes(planned: &[(LoadedStudy, Plan)]) -> u64 {
    let each = planned.iter().map(|(_, plan)| {
        let rounds = u64::from(plan.schedule.blocks) * plan.conditions.len() as u64;
        let setup_us = plan.servers.len() as u64 * SETUP_US;
        plan.estimated_us() + rounds * WARM_UP_US + setup_us
    });
    (each.sum::<u64>() as f64 / 60e6).round() as u64
}

/// The studies, with enough blocks for the requested number of comparisons.
fn planned(args: &CalibrateArgs, seed: u64) -> Result<Vec<(LoadedStudy, Plan)>> {
    let studies = STUDIES.map(|(name, text)| -> Result<(LoadedStudy, Plan)> {
        let source = StudySource {
            file: format!("{name}.toml"),
            text: text.to_owned(),
        };
        let found = LoadedStudy::new(name, source.clone(), source.parse()?)?;
        let mut overrides = Overrides {
            versions: vec![args.version.clone()],
            seed,
            without_profile: true,
            // Both sides are the same.
            without_plans: true,
            // As `compare` does, whose verdicts this is about.
            keep_cpus_awake: Some(AwakeCpus::is_permitted()),
            ..Overrides::default()
        };
        // All studies have the same conditions, so one plan gives the comparisons per round.
        let each = plan(&found.study, &source, &overrides)?.conditions.len() * STUDIES.len();
        let wanted = if args.quick { 1 } else { args.comparisons };
        let rounds = wanted.div_ceil(each as u32);
        overrides.pairs = Some(rounds * PAIRS);
        let mut plan = plan(&found.study, &source, &overrides)?;
        plan.schedule.trial_us = TRIAL_US;
        // The comparisons are many, so each is short.
        plan.schedule.repeats = 1;
        Ok((found, plan))
    });
    studies.into_iter().collect()
}

/// Runs the studies one after the other. Returns the error that ended them early, if any.
fn measure(
    args: &CalibrateArgs,
    planned: &[(LoadedStudy, Plan)],
    calibration: &mut Calibration,
    interrupt: &Interrupt,
    progress: &ProgressDisplay,
) -> Result<Option<anyhow::Error>> {
    let options = args.server.options();
    for (found, plan) in planned {
        let context = RunContext {
            study: found,
            options: &options,
            interrupt,
            events: progress,
        };
        let outcome = match Laboratory::run_plan(plan, context) {
            Ok(outcome) => outcome,
            // Keep the comparisons of the previous study.
            Err(error) if !calibration.comparisons.is_empty() => return Ok(Some(error)),
            Err(error) => return Err(error),
        };
        let (began_us, ended_us) = outcome.span_us;
        if calibration.started_us == 0 {
            calibration.started_us = began_us;
        }
        calibration.ended_us = ended_us;
        let used = outcome
            .trials
            .iter()
            .map(|it| it.other_programs + it.cpu_steal);
        let mean = used.sum::<f64>() / outcome.trials.len().max(1) as f64;
        calibration.other_load = calibration.other_load.max(mean);
        let majors = outcome.servers.iter().map(|it| major_of(&it.version));
        let majors: Vec<String> = majors.collect();
        let found = comparisons(plan, &majors, &outcome.trials, PAIRS);
        let found = found.context("cannot compare the trials")?;
        calibration.comparisons.extend(found);
        if let Some(error) = outcome.ended_early {
            return Ok(Some(error));
        }
    }
    Ok(None)
}

/// The summary as text.
fn text(calibration: &Calibration, known: Option<&CalibrationSummary>) -> String {
    let mut out = String::from(
        "A/A comparisons: both sides are identical, so every difference found is a false positive.\n\n",
    );
    let mut line = |load: &str, clients: &str, servers: &str, of: &[&AaComparison]| {
        let different = of.iter().filter(|it| it.is_different()).count();
        let mut widths: Vec<f64> = of.iter().map(|it| (it.high / it.low).ln() / 2.0).collect();
        widths.sort_by(f64::total_cmp);
        let width = widths.get(widths.len() / 2).map_or(0.0, |it| it * 100.0);
        _ = writeln!(
            out,
            "{load:<34}{clients:>8}{servers:>8}{:>12}{different:>10}{:>9}",
            of.len(),
            format!("±{width:.1}%"),
        );
    };
    let all: Vec<&AaComparison> = calibration.comparisons.iter().collect();
    let mut shown: Vec<(&str, u32, u32)> = Vec::new();
    for it in &all {
        let row = (it.load.as_str(), it.clients, it.servers);
        if shown.contains(&row) {
            continue;
        }
        shown.push(row);
        let same =
            |other: &&&AaComparison| (other.load.as_str(), other.clients, other.servers) == row;
        let of: Vec<&AaComparison> = all.iter().filter(same).copied().collect();
        line(row.0, &row.1.to_string(), &row.2.to_string(), &of);
    }
    line("all", "", "", &all);
    let head = format!(
        "{:<34}{:>8}{:>8}{:>12}{:>10}{:>9}\n",
        "load", "clients", "servers", "comparisons", "different", "95% CI"
    );
    let at = out.find("\n\n").map_or(0, |at| at + 2);
    out.insert_str(at, &head);
    if let Some(it) = CalibrationSummary::of(all.iter().copied(), calibration.ended_us) {
        _ = writeln!(
            out,
            "\nFalse positives: {} (at most 5% are expected). \"95% CI\" is the median half-width of the confidence intervals.",
            pgassay_report::false_positives(&it),
        );
    }
    if let Some(known) = known.filter(|it| it.comparisons as usize > all.len()) {
        _ = writeln!(
            out,
            "Including earlier calibrations of this machine: {}.",
            pgassay_report::false_positives(known),
        );
    }
    _ = writeln!(
        out,
        "Machine: {}; other programs and CPU steal used {:.0}% of it. Seed {}. Later runs on this machine show this rate.",
        calibration.machine,
        calibration.other_load * 100.0,
        calibration.seed,
    );
    out
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        args: CalibrateArgs,
    }

    #[test]
    fn a_quick_calibration_is_not_announced_as_half_of_the_two_minutes_that_it_takes() {
        for (flags, minutes) in [(&["", "--quick"][..], 2..=2), (&[""], 30..=36)] {
            let args = Program::parse_from(flags).args;
            let estimated = estimated_minutes(&planned(&args, 1).unwrap());
            assert!(minutes.contains(&estimated), "{flags:?}: {estimated} min");
        }
    }
}
