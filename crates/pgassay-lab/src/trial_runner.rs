//! Runs the trials of blocks: round by round, in the order that the scheduler gave.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use pgassay_load::{Limits, LoadError, Measurement, RunLength, ThreadUsage, Timing};
use pgassay_model::counters::Counters;
use pgassay_model::detail::{RunDetail, UnsteadyWarmUp};
use pgassay_model::plan::{Plan, Point, PointId, Round};
use pgassay_model::study::DriverKind;
use pgassay_model::trial::{ClientTotals, Latency, Trial, TrialKind};

use crate::event::LabEvent;
use crate::host::{MaintenanceRunner, Servers, reset};
use crate::interrupt::Interrupted;
use crate::load::{Clients, ClientsOrder, LoadDriver, describe_load_error, warm_up};
use crate::observe::{TrialObserver, TrialWatch, WatchDecision, WatchedTrial};
use crate::raw_results::RawResults;
use crate::repeats::{longer_than_planned, repeats_of_round, takes_part};
use crate::replay::PendingBlock;
use crate::run_context::RunContext;
use crate::system_env::unix_us;
use crate::trial_slot::{TrialSlot, planned_trials};

/// A trial in which no transaction ended goes on, up to `TRIES` times in all, each `LONGER` times longer.
const TRIES: u32 = 3;
const LONGER: u32 = 4;
/// How often a trial is tried during which this process is suspended.
const SUSPENDED_TRIES: u32 = 5;
const SUSPENDED_NOTE: &str =
    "pgassay was suspended (SIGSTOP or Ctrl-Z) during a trial; that trial is run again";
/// Factor for the warm-up cap after a server start, because caches must be filled again.
const FIRST_WARM_UP: u32 = 5;

/// A reply is awaited for at least so long, whatever the time limit of the run is: a slow statement is no failure.
const REPLY_MIN: Duration = Duration::from_mins(1);

/// How long clients wait in a run with this time limit, which a statement that never answers must not exceed by much.
fn limits(max_time_us: Option<u64>) -> Limits {
    let usual = Limits::default();
    let reply = max_time_us.map_or(usual.reply, |limit_us| {
        Duration::from_micros(limit_us).clamp(REPLY_MIN, usual.reply)
    });
    Limits { reply, ..usual }
}

/// Runs the trials between two server starts.
pub struct TrialRunner<'a> {
    pub plan: &'a Plan,
    pub context: RunContext<'a>,
    pub servers: &'a Servers,
    pub driver: &'a dyn LoadDriver,
    pub observers: &'a [Box<dyn TrialObserver + 'a>],
    /// Number of this server start, from 0.
    pub server_start: u32,
    /// Runs checkpoints and vacuum when the study specifies.
    pub maintenance: MaintenanceRunner<'a>,
}

/// The connected and warm clients of a round, by variant, and the length of their trials.
struct WarmClients {
    pools: Vec<Box<dyn Clients>>,
    windows: Vec<Timing>,
}

impl TrialRunner<'_> {
    /// Runs the trials of a block that are still to be run. `is_cold` says that caches are cold since the
    /// server start. After an error or Ctrl-C, `results` holds the completed trials.
    pub fn block(
        &self,
        pending: &PendingBlock,
        (is_cold, blocks_max): (bool, u32),
        results: &mut RawResults,
    ) -> Result<()> {
        let block = &pending.block;
        for round in &block.rounds {
            let trials = self.trials_to_run(pending, round);
            if trials.is_empty() {
                continue;
            }
            self.context.check()?;
            self.maintenance.between_trials(self.context.interrupt)?;
            let condition = self.plan.conditions[round.condition].title();
            self.context.events.event(&LabEvent::RoundBegins {
                block: block.number,
                blocks: blocks_max,
                condition: &condition,
            });
            let warm_up_cap = FIRST_WARM_UP.pow(u32::from(is_cold));
            self.round((block.number, round), &trials, warm_up_cap, results)
                .with_context(|| format!("block {}, {condition}", block.number + 1))?;
        }
        Ok(())
    }

    /// The trials of a round that are still to be run, each as its position, kind and variant.
    fn trials_to_run(
        &self,
        pending: &PendingBlock,
        round: &Round,
    ) -> Vec<(usize, TrialKind, usize)> {
        let planned = planned_trials(round, self.has_hardware_counters()).into_iter();
        let numbered = planned
            .enumerate()
            .map(|(position, (kind, variant))| (position, kind, variant));
        numbered
            .filter(|(position, ..)| !pending.is_done(round, *position))
            .collect()
    }

    /// Whether trials for hardware counters are run.
    pub fn has_hardware_counters(&self) -> bool {
        let mut observers = self.observers.iter();
        observers.any(|it| it.offers_hardware_counters())
    }

    /// Runs trials of one condition in one block, on new connections.
    fn round(
        &self,
        (block, round): (u32, &Round),
        trials: &[(usize, TrialKind, usize)],
        warm_up_cap: u32,
        results: &mut RawResults,
    ) -> Result<()> {
        let mut clients = self.warm_up_all(block, round, warm_up_cap, results)?;
        for observer in self.observers {
            observer.round_begins();
        }
        let repeats = repeats_of_round(&self.plan.schedule, &clients.windows);
        let mut to_run = trials.to_vec();
        to_run.retain(|&(position, kind, _)| takes_part(round, repeats, (position, kind)));
        let left_out = LabEvent::TrialsLeftOut(trials.len() - to_run.len());
        self.context.events.event(&left_out);
        if block == 0 {
            let of_trials = to_run
                .iter()
                .map(|&(_, _, variant)| clients.windows[variant]);
            let (schedule, of_trials) = (&self.plan.schedule, of_trials.collect::<Vec<_>>());
            if let Some(note) = longer_than_planned(schedule, &of_trials, schedule.blocks) {
                let condition = self.plan.conditions[round.condition].title();
                self.context.note(&format!("{condition}: {note}"));
            }
        }
        for slot in self.slots((block, round), repeats, &to_run, &clients.windows) {
            self.context.check()?;
            let Some((trial, of_trial)) = self.trial_without_pause(slot, &mut clients.pools)?
            else {
                continue;
            };
            if let Some(detail) = of_trial.into_detail(&trial) {
                results.add_detail(&detail)?;
                let detail = RunDetail::Trial(Box::new(detail));
                self.context.events.event(&LabEvent::Detail(&detail));
            }
            results.add_trials([trial]);
            let ended = results.trials.last().expect("a trial was added");
            self.context.events.event(&LabEvent::TrialEnded(ended));
        }
        Ok(())
    }

    /// The trials of a round in the given order.
    fn slots(
        &self,
        (block, round): (u32, &Round),
        repeats: u32,
        trials: &[(usize, TrialKind, usize)],
        windows: &[Timing],
    ) -> Vec<TrialSlot> {
        let follows = |index: usize, variant: usize| {
            let mut later = trials[index + 1..].iter();
            later.any(|&(_, kind, of)| of == variant && kind != TrialKind::HardwareCounters)
        };
        let slot =
            |(index, &(position, kind, variant)): (usize, &(usize, TrialKind, usize))| TrialSlot {
                block,
                server_start: self.server_start,
                point: PointId::new(round.condition, variant),
                position: position as u32,
                repeats: (repeats < self.plan.schedule.repeats).then_some(repeats),
                kind,
                is_last_of_variant: !follows(index, variant),
                window: windows[variant],
            };
        trials.iter().enumerate().map(slot).collect()
    }

    /// Connects and warms up every variant.
    fn warm_up_all(
        &self,
        block: u32,
        round: &Round,
        warm_up_cap: u32,
        results: &mut RawResults,
    ) -> Result<WarmClients> {
        let mut ready: Vec<Option<(Box<dyn Clients>, Timing)>> = Vec::new();
        ready.resize_with(self.plan.variants.len(), || None);
        let mut schedule = self.plan.schedule;
        schedule.warm_up_cap_us *= u64::from(warm_up_cap);
        for &variant in &round.warm_up {
            self.context.check()?;
            let id = PointId::new(round.condition, variant);
            let point = self.plan.point(id);
            let mut pool = self.connect(block, point)?;
            let pids = self.backend_pids(pool.as_ref(), point)?;
            let warmed_up = warm_up(pool.as_mut(), &pids, &schedule, point, &self.context);
            let warmed_up = self.naming_variant(warmed_up, point)?;
            if !warmed_up.is_steady {
                let unsteady = UnsteadyWarmUp {
                    condition: id.condition,
                    variant: id.variant,
                    block,
                };
                results.unsteady.insert(unsteady);
                let detail = RunDetail::NotSteady(unsteady);
                self.context.events.event(&LabEvent::Detail(&detail));
            }
            self.naming_load_error(pool.rest(), point)?;
            ready[variant] = Some((pool, warmed_up.trial));
        }
        // The warm-up order contains every variant, so none is missing.
        let (pools, windows) = ready.into_iter().flatten().unzip();
        Ok(WarmClients { pools, windows })
    }

    fn connect(&self, block: u32, point: &Point) -> Result<Box<dyn Clients>> {
        let order = ClientsOrder {
            point,
            clients: self.plan.conditions[point.condition].clients,
            threads: self.plan.schedule.threads,
            limits: limits(self.plan.schedule.max_time_us),
            seed: self.plan.client_seed(block, point.id()),
            location: self.servers.place(point),
        };
        let clients = self.driver.connect(&order, &self.context);
        if point.driver == DriverKind::Redis {
            return clients;
        }
        self.naming_variant(clients, point)
    }

    /// Adds the variant's name to an error.
    fn naming_variant<T>(&self, result: Result<T>, point: &Point) -> Result<T> {
        match result {
            Err(error) if !error.is::<Interrupted>() => {
                Err(error.context(format!("variant \"{}\"", self.plan.variants[point.variant])))
            }
            other => other,
        }
    }

    fn naming_load_error<T>(&self, result: Result<T, LoadError>, point: &Point) -> Result<T> {
        let result =
            result.map_err(|error| describe_load_error(error, self.context.source(), point));
        self.naming_variant(result, point)
    }

    fn reset(&self, point: &Point) -> Result<()> {
        if point.driver != DriverKind::Postgres {
            return Ok(());
        }
        reset(&self.servers.place(point), &point.resets, &self.context)
    }

    /// The local processes that serve the clients. Empty if each serves only one transaction: then
    /// only the CPU time of exited children is known.
    fn backend_pids(&self, clients: &dyn Clients, point: &Point) -> Result<Vec<u32>> {
        let is_elsewhere =
            clients.are_of_postgres() && self.servers.host(point.server).live()?.is_none();
        if point.reconnects || is_elsewhere {
            return Ok(Vec::new());
        }
        Ok(clients.server_pids())
    }

    /// Runs one trial, and again if this process was suspended meanwhile: its clients then did nothing for a part of
    /// the time. Also returns what the trial gathered besides its figures.
    fn trial_without_pause(
        &self,
        slot: TrialSlot,
        pools: &mut [Box<dyn Clients>],
    ) -> Result<Option<(Trial, RawResults)>> {
        let interrupt = self.context.interrupt;
        interrupt.take_suspended();
        for _ in 0..SUSPENDED_TRIES {
            let mut gathered = RawResults::of_trial(slot.block);
            let trial = self.trial(slot, pools, &mut gathered)?;
            if !interrupt.take_suspended() {
                return Ok(trial.map(|trial| (trial, gathered)));
            }
            self.context.check()?;
            self.context.note(SUSPENDED_NOTE);
        }
        bail!(
            "pgassay was suspended (SIGSTOP or Ctrl-Z) during each of {SUSPENDED_TRIES} tries of a trial, so it \
             cannot measure"
        );
    }

    /// Runs one trial. Returns `None` if it exists for an observer that cannot observe it. `results` is
    /// for what it gathers besides its figures.
    fn trial(
        &self,
        slot: TrialSlot,
        pools: &mut [Box<dyn Clients>],
        results: &mut RawResults,
    ) -> Result<Option<Trial>> {
        let point = self.plan.point(slot.point);
        self.naming_variant(self.reset(point), point)?;
        self.naming_load_error(pools[point.variant].wake(), point)?;
        let trial = self.observed_trial(slot, pools, results)?;
        self.naming_load_error(pools[point.variant].rest(), point)?;
        Ok(trial)
    }

    fn observed_trial(
        &self,
        slot: TrialSlot,
        pools: &mut [Box<dyn Clients>],
        results: &mut RawResults,
    ) -> Result<Option<Trial>> {
        let point = self.plan.point(slot.point);
        let backend_pids = self.backend_pids(pools[point.variant].as_ref(), point)?;
        let mut server_pids = self.servers.pids();
        server_pids.extend(&backend_pids);
        let watched = WatchedTrial {
            slot,
            point,
            backend_pids: &backend_pids,
            server_pids: &server_pids,
        };
        let watches = self.naming_variant(self.watch(&watched, pools), point)?;
        let Some(watches) = watches else {
            return Ok(None);
        };
        let clients = pools[point.variant].as_mut();
        let started_us = unix_us();
        let maintenance = self.maintenance.within_trial(point.server)?;
        let measured = self.naming_variant(self.measure(clients, point, slot), point);
        maintenance.finish()?;
        let measured = measured?;
        results.statements.add(slot.point, &measured.commands);
        let mut trial = trial_of(slot, started_us, &measured);
        for watch in watches.into_iter().rev() {
            let finished = watch.finish(clients, &measured, &mut trial, results);
            self.naming_variant(finished, point)?;
        }
        Ok(Some(trial))
    }

    /// Starts all observers; `None` if the trial is to be skipped.
    fn watch<'w>(
        &'w self,
        trial: &WatchedTrial<'_>,
        pools: &mut [Box<dyn Clients>],
    ) -> Result<Option<Vec<Box<dyn TrialWatch + 'w>>>> {
        let mut watches = Vec::new();
        for observer in self.observers {
            match observer.watch(trial, pools)? {
                WatchDecision::Nothing => {}
                WatchDecision::Watch(watch) => watches.push(watch),
                WatchDecision::Impossible => return Ok(None),
            }
        }
        Ok(Some(watches))
    }

    fn measure(
        &self,
        clients: &mut dyn Clients,
        point: &Point,
        slot: TrialSlot,
    ) -> Result<Measurement> {
        let Timing {
            spread,
            settle,
            mut measure,
        } = slot.window;
        clients.spread_starts(spread, slot.seed(self.plan.schedule.seed));
        let mut sum: Option<Measurement> = None;
        for _ in 0..TRIES {
            let length = RunLength::Timed { settle, measure };
            let mut measured = clients.run(&length, point, &self.context)?;
            self.context.check()?;
            // Without the windows of a stall, a load that stalls would seem fast.
            if let Some(earlier) = sum.take() {
                measured.add_earlier(earlier);
            }
            if measured.transactions > 0 {
                return Ok(measured);
            }
            sum = Some(measured);
            // The machine was busy, or transactions have become slower since warm-up.
            measure *= LONGER;
        }
        let failed = sum.map_or(0, |it| it.failed_total);
        if failed > 0 {
            bail!(
                "all {failed} transactions failed with a serialization failure or a deadlock; only successful \
                 transactions can be measured"
            );
        }
        let trial_s = (measure / LONGER).as_secs_f64();
        bail!("no transaction ended within a trial of {trial_s:.1} s; increase --length");
    }
}

/// A trial with what the load engine measured. Observers add the rest.
fn trial_of(slot: TrialSlot, started_us: i64, measured: &Measurement) -> Trial {
    let sum =
        |field: fn(&ThreadUsage) -> u64| measured.threads.iter().map(field).sum::<u64>() as f64;
    Trial {
        block: slot.block,
        server_start: slot.server_start,
        condition: slot.point.condition,
        variant: slot.point.variant,
        position: slot.position,
        repeats: slot.repeats,
        kind: slot.kind,
        started_us,
        window_us: measured.window_us as f64,
        transactions: measured.transactions,
        credited_transactions: Some(measured.credited_transactions),
        transactions_total: measured.transactions_total,
        failed: measured.failed,
        failed_us: measured.failed_us as f64,
        latency: Latency::from_histogram(&measured.latency_ns),
        server: None,
        client: ClientTotals {
            cpu_us: sum(|thread| thread.cpu_us),
            run_queue_us: sum(|thread| thread.run_queue_wait_us.unwrap_or(0)),
            in_transaction_us: measured.time.in_transaction_us as f64,
            between_transactions_us: measured.time.between_us as f64,
            sleep_us: measured.time.asleep_us as f64,
            thread_busy_us: measured.time.thread_busy_us.map(|us| us as f64),
            client_run_queue_us: measured.time.client_run_queue_us.map(|us| us as f64),
            possible_thread_busy_us: measured.time.possible_thread_busy_us.map(|us| us as f64),
            possible_run_queue_us: measured.time.possible_run_queue_us.map(|us| us as f64),
            client_limited: measured.client_limited,
        },
        cpu_steal: 0.0,
        other_programs: 0.0,
        unaccounted: None,
        counters: Counters::default(),
        cpu_utilization: 0.0,
        background: Vec::new(),
        waits: None,
        cross_checks: None,
        backend_memory: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `gate --max-time 2min` waited 10 minutes for a statement that never answers.
    #[test]
    fn a_reply_is_not_awaited_longer_than_the_time_limit_of_the_run() {
        let reply = |limit_s: u64| limits(Some(limit_s * 1_000_000)).reply.as_secs();
        assert_eq!((reply(120), reply(1), reply(36_000)), (120, 60, 600));
        assert_eq!(limits(None).reply, Limits::default().reply);
    }
}
