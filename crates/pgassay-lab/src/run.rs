//! The loop of a run: the next block, its trials, and what the scheduler makes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Instant;

use anyhow::Result;
use pgassay_model::plan::{Plan, PointId, StoppingRule};
use pgassay_model::profile::Profile;
use pgassay_model::statement::ScriptStatements;
use pgassay_model::trial::Trial;
use pgassay_profile::AwakeCpus;
use pgassay_record::plans::PointPlans;
use pgassay_record::run::{RelayFacts, ServerFacts, Warning, WarningKind};

use crate::equipment::Equipment;
use crate::event::LabEvent;
use crate::external;
use crate::host::{MaintenanceRunner, Servers};
use crate::load::LoadDriver;
use crate::pace::RunPace;
use crate::planned_scheduler::scheduler_of;
use crate::raw_results::RawResults;
use crate::real_equipment::RealEquipment;
use crate::replay::{EarlierResults, PendingBlock, Replay};
use crate::run_context::RunContext;
use crate::scheduler::Scheduler;
use crate::system_env::unix_us;
use crate::trial_runner::TrialRunner;

/// The measurements of a plan.
#[derive(Debug)]
pub struct Outcome {
    /// Every trial, in the order they ran.
    pub trials: Vec<Trial>,
    /// The profile of each point; empty if no stacks were sampled.
    pub profiles: Vec<Profile>,
    /// Latencies of statements, for transactions with more than one.
    pub statements: Vec<ScriptStatements>,
    /// The plans of the statements of each point; empty if they were not taken.
    pub plans: Vec<PointPlans>,
    /// The servers, in the plan's order.
    pub servers: Vec<ServerFacts>,
    /// The relays that added network delay.
    pub relays: Vec<RelayFacts>,
    /// Warnings that qualify the measurements.
    pub warnings: Vec<Warning>,
    /// The last lines of the servers' logs, as `(file name, text)`.
    pub logs: Vec<(String, Vec<u8>)>,
    /// Start of the first trial and end of the last, microseconds since 1970.
    pub span_us: (i64, i64),
    /// Why the run ended before all trials were done.
    pub ended_early: Option<anyhow::Error>,
}

/// Runs plans.
pub struct Laboratory<'a> {
    /// The study, options, events and interrupt of its runs.
    pub context: RunContext<'a>,
    /// Where servers, load and observers come from.
    pub equipment: &'a mut dyn Equipment,
}

impl Laboratory<'_> {
    /// Runs the plan's blocks on real servers, all or until there are verdicts, as the plan says.
    ///
    /// # Errors
    /// If no trial could be completed. After the first trial, errors are in the outcome.
    pub fn run_plan(plan: &Plan, context: RunContext<'_>) -> Result<Outcome> {
        Self::resume_plan(plan, context, EarlierResults::default())
    }

    /// Runs what earlier processes left of the plan's blocks, on real servers.
    ///
    /// # Errors
    /// As [`Laboratory::resume`].
    pub fn resume_plan(
        plan: &Plan,
        context: RunContext<'_>,
        earlier: EarlierResults,
    ) -> Result<Outcome> {
        let mut laboratory = Laboratory {
            context,
            equipment: &mut RealEquipment,
        };
        laboratory.resume(plan, scheduler_of(plan).as_mut(), earlier)
    }

    /// Runs the blocks that the scheduler asks for.
    ///
    /// # Errors
    /// As [`Laboratory::run_plan`].
    pub fn run(&mut self, plan: &Plan, scheduler: &mut dyn Scheduler) -> Result<Outcome> {
        self.resume(plan, scheduler, EarlierResults::default())
    }

    /// Continues a run on new servers. The scheduler gets the blocks that earlier processes completed as
    /// if they had just ended. Of the block in flight, complete rounds are kept; see
    /// [`crate::EarlierResults`] and `replay.rs`.
    ///
    /// # Errors
    /// If the servers' builds differ from those of the earlier trials, if these are not in the plan, or
    /// if there are no trials at all. After the first trial of this process, errors are in the outcome.
    pub fn resume(
        &mut self,
        plan: &Plan,
        scheduler: &mut dyn Scheduler,
        earlier: EarlierResults,
    ) -> Result<Outcome> {
        let context = self.context;
        external::check(plan, &context)?;
        let mut servers = Servers::start(plan, self.equipment, &context, &earlier.servers)?;
        context
            .events
            .event(&LabEvent::ServersStarted(&servers.facts));
        let driver = self.equipment.driver(plan)?;
        let mut warnings = servers.warnings.clone();
        // Until the trials are over.
        let awake = plan.schedule.keep_cpus_awake.then(AwakeCpus::hold);
        if let Some(Err(refused)) = &awake {
            warnings.push(cpus_asleep(refused));
        }
        let mut results = RawResults::new(plan);
        let (now_us, now) = (unix_us(), Instant::now());
        let began_us = earlier.trials.first().map_or(now_us, |it| it.started_us);
        let mut replay = Replay::new(scheduler, earlier);
        let result = self.blocks(
            plan,
            &mut replay,
            (&mut servers, driver.as_ref()),
            &mut results,
            &mut warnings,
        );
        let result = result.map_err(|error| servers.death_or(error));
        drop(awake);
        // Whatever the clock was set to meanwhile.
        let ended_us = now_us.saturating_add(now.elapsed().as_micros() as i64);
        let mut plans = Vec::new();
        let result = result.and_then(|()| {
            let taken = self.equipment.plans(plan, &servers, &context)?;
            warnings.extend(taken.warnings);
            plans = taken.points;
            Ok(())
        });
        let relays = servers.relay_facts();
        let (logs, facts) = (servers.logs(), servers.facts.clone());
        context.stage("cleaning up");
        drop(driver);
        let stopped = servers.stop().map(|changes| warnings.extend(changes));
        warn_of_unsteady(plan, &results, &mut warnings);
        if let (Err(_), Err(left)) = (&result, &stopped) {
            note_left(plan, left, &context);
        }
        // If a server died, that already is the run's error, and stopping it only repeats it.
        let ended_early = match result.and(stopped) {
            Err(error) if results.trials.is_empty() => return Err(error),
            other => other.err(),
        };
        let profiles = results.profiles.finish();
        let sampled = profiles.iter().any(|profile| !profile.nodes.is_empty());
        Ok(Outcome {
            statements: results.statements.finish(plan, context.source())?,
            trials: results.trials,
            plans,
            profiles: if sampled { profiles } else { Vec::new() },
            servers: facts,
            relays,
            warnings,
            logs,
            span_us: (began_us, ended_us),
            ended_early,
        })
    }

    /// Runs blocks until the scheduler has no more, restarting the servers where the plan says so.
    fn blocks(
        &self,
        plan: &Plan,
        replay: &mut Replay<'_>,
        (servers, driver): (&mut Servers, &dyn LoadDriver),
        results: &mut RawResults,
        warnings: &mut Vec<Warning>,
    ) -> Result<()> {
        let mut next = replay.next_block(results, self.context.events)?;
        // The servers have just started, whichever block comes first.
        let mut current = next
            .as_ref()
            .map_or(0, |it| plan.server_start(it.block.number));
        let first = next.as_ref().map_or(0, |it| it.block.number);
        let mut pace = RunPace::before(plan, first);
        // Earlier processes may have used the planned numbers for server starts of their own.
        let moved = replay.next_start.saturating_sub(current);
        let has_own_servers = plan.servers.iter().any(|server| server.dsn.is_none());
        let moved = if has_own_servers { moved } else { 0 };
        while let Some(first) = next.take() {
            let start = plan.server_start(first.block.number);
            if start != current {
                servers.restart(plan, &self.context)?;
                current = start;
            }
            // Observers refer to server processes, so they are opened anew.
            let observers = self.equipment.observers(plan, servers, warnings)?;
            let runner = TrialRunner {
                plan,
                context: self.context,
                servers,
                driver,
                observers: &observers,
                server_start: start + moved,
                maintenance: MaintenanceRunner::new(plan, servers),
            };
            next = serve(&runner, first, replay, (results, &mut pace))?;
        }
        warnings.extend(replay.warnings());
        Ok(())
    }
}

/// Says what could not be put back after a failure: an external server goes on after the run.
fn note_left(plan: &Plan, left: &anyhow::Error, context: &RunContext<'_>) {
    if plan.servers.iter().any(|it| it.dsn.is_some()) {
        context.note(&format!("{left:#}"));
    }
}

/// Runs the blocks of one server start. Returns the first block of the next, if there is one.
fn serve(
    runner: &TrialRunner<'_>,
    first: PendingBlock,
    replay: &mut Replay<'_>,
    (results, pace): (&mut RawResults, &mut Option<RunPace>),
) -> Result<Option<PendingBlock>> {
    let plan = runner.plan;
    let events = runner.context.events;
    let blocks_max = replay.blocks_max();
    // After the first of two stages, timed trials follow.
    let further = u64::from(blocks_max.saturating_sub(plan.schedule.blocks));
    let further = further * plan.points.len() as u64 * u64::from(plan.schedule.timed());
    let total = if runner.has_hardware_counters() {
        plan.trials()
    } else {
        plan.trials_without_hardware_counters()
    };
    let total = total + further;
    let is_most = plan.schedule.stopping != StoppingRule::AllBlocks;
    events.event(&LabEvent::TrialsBegin { total, is_most });
    let start = plan.server_start(first.block.number);
    let mut is_cold = true;
    let mut next = Some(first);
    while let Some(pending) = next {
        if plan.server_start(pending.block.number) != start {
            return Ok(Some(pending));
        }
        let before = results.trials.len();
        runner.block(&pending, (is_cold, blocks_max), results)?;
        is_cold &= results.trials.len() == before;
        replay.block_ended(&pending, results);
        if let Some(progress) = replay.progress() {
            runner.context.note(&progress);
        }
        next = replay.next_block(results, events)?;
        let changed = pace.as_mut().and_then(RunPace::block_ended);
        if let Some(estimate) = changed.filter(|_| next.is_some()) {
            runner.context.note(&estimate);
        }
    }
    Ok(None)
}

fn cpus_asleep(refused: &io::Error) -> Warning {
    Warning {
        kind: WarningKind::CpusAsleep,
        variant: None,
        message: format!(
            "CPUs could not be kept awake ({}: {refused}), so the time that idle CPUs take to wake up adds noise; \
             run pgassay as root",
            AwakeCpus::FILE
        ),
    }
}

/// The number of blocks with trials of a point.
fn blocks_of(trials: &[Trial], point: PointId) -> usize {
    let of_point = |it: &&Trial| (it.condition, it.variant) == (point.condition, point.variant);
    let blocks: BTreeSet<u32> = trials.iter().filter(of_point).map(|it| it.block).collect();
    blocks.len()
}

fn warn_of_unsteady(plan: &Plan, results: &RawResults, warnings: &mut Vec<Warning>) {
    let mut times: BTreeMap<PointId, usize> = BTreeMap::new();
    for it in &results.unsteady {
        let point = PointId::new(it.condition, it.variant);
        *times.entry(point).or_default() += 1;
    }
    for (point, times) in times {
        let message = format!(
            "\"{}\" with {}: throughput was not yet stable at the end of warm-up in {times} of {} blocks",
            plan.variants[point.variant],
            plan.conditions[point.condition].title(),
            blocks_of(&results.trials, point),
        );
        warnings.push(Warning {
            kind: WarningKind::NotSteady,
            variant: None,
            message,
        });
    }
}
