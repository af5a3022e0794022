//! The loop of a run: the next block, its trials, and what the scheduler makes of them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use pgassay_model::plan::{Plan, PointId};
use pgassay_model::profile::Profile;
use pgassay_model::statement::ScriptStatements;
use pgassay_model::trial::Trial;
use pgassay_record::plans::PointPlans;
use pgassay_record::run::{RelayFacts, ServerFacts, Warning, WarningKind};

use crate::equipment::Equipment;
use crate::event::LabEvent;
use crate::external;
use crate::host::{MaintenanceRunner, Servers};
use crate::load::LoadDriver;
use crate::raw_results::RawResults;
use crate::real_equipment::RealEquipment;
use crate::run_context::RunContext;
use crate::scheduler::{Block, Scheduler, scheduler_of};
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
        external::check(plan, &context)?;
        let mut laboratory = Laboratory {
            context,
            equipment: &mut RealEquipment,
        };
        laboratory.run(plan, scheduler_of(plan).as_mut())
    }

    /// Runs the blocks that the scheduler asks for.
    ///
    /// # Errors
    /// As [`Laboratory::run_plan`].
    pub fn run(&mut self, plan: &Plan, scheduler: &mut dyn Scheduler) -> Result<Outcome> {
        let context = self.context;
        let mut servers = Servers::start(plan, self.equipment, &context)?;
        let driver = self.equipment.driver(plan)?;
        let mut warnings = servers.warnings.clone();
        let mut results = RawResults::new(plan);
        let began_us = unix_us();
        let result = self.blocks(
            plan,
            scheduler,
            (&mut servers, driver.as_ref()),
            &mut results,
            &mut warnings,
        );
        let result = result.map_err(|error| servers.death_or(error));
        let ended_us = unix_us();
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
        scheduler: &mut dyn Scheduler,
        (servers, driver): (&mut Servers, &dyn LoadDriver),
        results: &mut RawResults,
        warnings: &mut Vec<Warning>,
    ) -> Result<()> {
        let mut current = 0;
        let mut next = scheduler.next_block();
        while let Some(first) = next.take() {
            let start = plan.server_start(first.number);
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
                server_start: start,
                maintenance: MaintenanceRunner::new(plan, servers),
            };
            next = serve(&runner, first, scheduler, results)?;
        }
        Ok(())
    }
}

/// Runs the blocks of one server start. Returns the first block of the next, if there is one.
fn serve(
    runner: &TrialRunner<'_>,
    first: Block,
    scheduler: &mut dyn Scheduler,
    results: &mut RawResults,
) -> Result<Option<Block>> {
    let plan = runner.plan;
    let blocks_max = scheduler.blocks_max();
    let total = if runner.has_hardware_counters() {
        plan.trials()
    } else {
        u64::from(plan.schedule.blocks * plan.trials_per_block())
    };
    runner
        .context
        .events
        .event(&LabEvent::TrialsBegin { total });
    let first_number = first.number;
    let mut next = Some(first);
    while let Some(block) = next {
        if plan.server_start(block.number) != runner.server_start {
            return Ok(Some(block));
        }
        let is_first = block.number == first_number;
        let before = results.trials.len();
        runner.block(&block, (is_first, blocks_max), results)?;
        scheduler.block_ended(&results.trials[before..]);
        if let Some(progress) = scheduler.progress() {
            runner.context.note(&progress);
        }
        next = scheduler.next_block();
    }
    Ok(None)
}

/// The number of blocks with trials of a point.
fn blocks_of(trials: &[Trial], point: PointId) -> usize {
    let of_point = |it: &&Trial| (it.condition, it.variant) == (point.condition, point.variant);
    let blocks: BTreeSet<u32> = trials.iter().filter(of_point).map(|it| it.block).collect();
    blocks.len()
}

fn warn_of_unsteady(plan: &Plan, results: &RawResults, warnings: &mut Vec<Warning>) {
    let mut times: BTreeMap<PointId, usize> = BTreeMap::new();
    for point in &results.unsteady {
        *times.entry(*point).or_default() += 1;
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
            message,
        });
    }
}
