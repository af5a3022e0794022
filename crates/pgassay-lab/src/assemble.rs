//! Turns the measurements of a run into the run that is stored: comparison, ledgers, findings, warnings.

use anyhow::Result;
use pgassay_account::calibration::CalibrationSummary;
use pgassay_account::comparison::assess;
use pgassay_diagnosis::{diagnose, expectations};
use pgassay_model::check::Check;
use pgassay_model::plan::{Plan, StoppingRule};
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_record::plans::RunPlans;
use pgassay_record::run::{Run, SCHEMA};

use crate::major_version::major_of;
use crate::plans;
use crate::run::Outcome;
use crate::study::LoadedStudy;
use crate::warnings;

/// What a stored run contains besides its measurements.
#[derive(Debug, Clone, Default)]
pub struct RunIdentity {
    /// The run's ID: the name of its directory.
    pub id: String,
    /// Version of the program.
    pub version: String,
    /// Checks of the machine.
    pub checks: Vec<Check>,
    /// The A/A calibration of the machine.
    pub calibration: Option<CalibrationSummary>,
    /// Identifies the machine.
    pub machine_key: Option<String>,
}

/// Compares, accounts for and diagnoses the measurements of a plan. `ended_early` is why trials are missing.
///
/// # Errors
/// If the trials cannot be assessed.
pub fn assemble(
    study: &LoadedStudy,
    plan: Plan,
    outcome: Outcome,
    ended_early: Option<&anyhow::Error>,
    identity: RunIdentity,
) -> Result<Run> {
    let servers = outcome.servers.iter();
    let majors: Vec<String> = servers.map(|it| major_of(&it.version)).collect();
    let assessment = assess(&plan, &majors, &outcome.trials, &outcome.profiles)?;
    let plans = (!outcome.plans.is_empty()).then(|| RunPlans {
        differences: plans::differences(&plan, &outcome.plans),
        points: outcome.plans,
    });
    let readings = expectations::read(
        &study.study,
        &plan,
        &outcome.trials,
        &assessment.points,
        &assessment.comparisons,
        &outcome.profiles,
    );
    let mut run = Run {
        schema: SCHEMA.to_owned(),
        id: identity.id,
        study_name: study.name.clone(),
        pgassay_version: identity.version,
        started_us: outcome.span_us.0,
        ended_us: outcome.span_us.1,
        complete: is_complete(&plan, &outcome.trials, ended_early),
        study: study.study.clone(),
        plan,
        servers: outcome.servers,
        relays: outcome.relays,
        checks: identity.checks,
        warnings: outcome.warnings,
        trials: outcome.trials,
        profiles: outcome.profiles,
        statements: outcome.statements,
        points: assessment.points,
        comparisons: assessment.comparisons,
        ledgers: assessment.ledgers,
        findings: Vec::new(),
        instructions: None,
        plans,
        fix_trials: None,
        expectations: readings.expectations,
        reference: readings.reference,
        watched_functions: readings.watched,
        calibration: identity.calibration,
        machine_key: identity.machine_key,
    };
    run.findings = diagnose(&run);
    run.warnings.extend(warnings::of(&run, ended_early));
    run.warnings.sort_by_key(|warning| warning.kind);
    Ok(run)
}

/// Whether all trials ran that were to run. A run that nothing ended early has all of them, although rounds of slow
/// transactions leave out repeats; an error after the last trial, such as one while servers stop, leaves nothing out.
fn is_complete(plan: &Plan, trials: &[Trial], ended_early: Option<&anyhow::Error>) -> bool {
    if ended_early.is_none() {
        return true;
    }
    // The plan does not know whether the processor has hardware counters.
    let is_planned = |trial: &&Trial| trial.kind != TrialKind::HardwareCounters;
    let ended = trials.iter().filter(is_planned).count();
    plan.schedule.stopping == StoppingRule::AllBlocks
        && ended == (plan.trials_per_block() * plan.schedule.blocks) as usize
}
