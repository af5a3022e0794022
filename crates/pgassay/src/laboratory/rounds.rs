//! Runs the trials: block by block, condition by condition, in the plan's order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use pgassay_core::plan::{Plan, Point, Round};
use pgassay_core::profile::Profile;
use pgassay_core::study::{DriverKind, HumanDuration, StudySource};
use pgassay_core::trial::{ClientTotals, CpuTotals, CrossCheckReadings, Latency, Trial, TrialKind};
use pgassay_load::{Measurement, RunLength, ThreadUsage, Timing};
use pgassay_profile::{CountedEvent, EventCounter, ProcessTreeCpu};

use super::client_pools::{self, Clients, Size};
use super::counters::Statistics;
use super::data::reset;
use super::probes::{Probed, Probes, WAITS_HZ};
use super::redis::Redis;
use super::servers::Servers;
use super::statements::Statements;
use super::transactions::TransactionRecorder;
use super::upkeep::MaintenanceRunner;
use super::waits::{WaitSampler, WaitThread};
use super::warm_up::warm_up;
use super::watch::{Passed, ProfiledTrial, Profiles, TotalsReading};
use crate::exit::Interrupted;
use crate::interrupt::Interrupt;
use crate::progress::ProgressDisplay;

/// A thread on a CPU for this share of the time has no reserve.
const BUSY: f64 = 0.9;
/// If more than this share of the machine is idle, it is not saturated.
const IDLE_NOTICEABLE: f64 = 0.1;

/// A trial in which no transaction ended is retried up to `TRIES` times, each `LONGER` times longer.
const TRIES: u32 = 3;
const LONGER: u32 = 4;

/// Runs the trials between two server starts.
pub struct TrialRunner<'a> {
    pub plan: &'a Plan,
    /// The study's text, to locate errors.
    pub source: &'a StudySource,
    pub servers: &'a Servers,
    pub redis: &'a Redis,
    /// Number of this server start, from 0.
    pub boot: u32,
    /// Runs checkpoints and vacuum when the study specifies.
    pub upkeep: MaintenanceRunner<'a>,
    /// Reads server and kernel statistics.
    pub counters: Statistics<'a>,
    pub probes: &'a Probes,
    pub interrupt: &'a Interrupt,
}

/// The measurements so far.
pub struct RawResults {
    /// Every trial, in the order they ran.
    pub trials: Vec<Trial>,
    /// The profile of each point.
    pub profiles: Profiles,
    /// Latencies of statements, for transactions with more than one.
    pub statements: Statements,
    /// Points whose throughput was not stable at the end of warm-up, as `(condition, variant)`.
    pub unsteady: Vec<(usize, usize)>,
}

/// Factor for the warm-up cap after a server start, because caches must be filled again.
const FIRST_WARM_UP: u32 = 5;

impl RawResults {
    /// An empty result.
    pub fn new(plan: &Plan) -> Self {
        Self {
            trials: Vec::new(),
            profiles: Profiles::new(plan),
            statements: Statements::default(),
            unsteady: Vec::new(),
        }
    }

    /// Returns trials, profiles, and statement latencies.
    pub fn finish(self) -> (Vec<Trial>, Vec<Profile>, Statements) {
        (self.trials, self.profiles.finish(), self.statements)
    }
}

impl TrialRunner<'_> {
    /// Runs blocks. After an error or Ctrl-C, `harvest` holds the completed trials.
    pub fn run(
        &self,
        blocks: Range<u32>,
        harvest: &mut RawResults,
        progress: &mut ProgressDisplay,
    ) -> Result<()> {
        let total = self.trials();
        let first = blocks.start;
        progress.trials(total);
        for block in blocks {
            for round in self.plan.block(block) {
                self.interrupt.check()?;
                self.upkeep.between_trials(self.interrupt)?;
                let condition = self.plan.conditions[round.condition].title();
                let message = format!(
                    "block {} of {}, {condition}",
                    block + 1,
                    self.plan.schedule.blocks
                );
                progress.trial(harvest.trials.len() as u64, total, &message);
                let warm_up_cap = FIRST_WARM_UP.pow(u32::from(block == first));
                self.round(block, &round, warm_up_cap, harvest, &mut |done| {
                    progress.trial(done, total, &message);
                })
                .with_context(|| format!("block {}, {condition}", block + 1))?;
            }
        }
        Ok(())
    }

    /// The number of trials, without those for hardware counters if there are none.
    fn trials(&self) -> u64 {
        let own = [std::process::id()];
        if EventCounter::open(&CountedEvent::HARDWARE, &own).is_ok() {
            return self.plan.trials();
        }
        u64::from(self.plan.schedule.blocks * self.plan.trials_per_block())
    }

    /// Runs the trials of one condition in one block, on new connections.
    fn round(
        &self,
        block: u32,
        round: &Round,
        warm_up_cap: u32,
        harvest: &mut RawResults,
        done: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let (mut pools, windows) = self.warm_up_all(block, round, warm_up_cap, harvest)?;
        let mut settled = self.counters.round();
        let place_of = |position, kind, variant: usize| TrialSlot {
            block,
            boot: self.boot,
            condition: round.condition,
            variant,
            position,
            kind,
            window: windows[variant],
        };
        let timed = round
            .timed
            .iter()
            .map(|variant| (TrialKind::Timed, *variant));
        let profiled = round
            .profiled
            .iter()
            .map(|variant| (TrialKind::Profiled, *variant));
        for (position, (kind, variant)) in (0..).zip(timed.chain(profiled)) {
            self.interrupt.check()?;
            let place = place_of(position, kind, variant);
            let point = self.plan.point(round.condition, variant);
            self.reset(point)?;
            let begun = self
                .counters
                .begin((block, position), point, &mut pools, &mut settled);
            let begun = self.with_server_cause(begun, point)?;
            let pool = &mut pools[variant];
            let mut trial = self.trial(place, pool, harvest)?;
            if let Some(begun) = begun {
                trial.counters = self.with_server_cause(self.counters.end(&begun, pool), point)?;
            }
            harvest.trials.push(trial);
            done(harvest.trials.len() as u64);
        }
        let before = (round.timed.len() + round.profiled.len()) as u32;
        for (position, variant) in (before..).zip(round.hardware_counters.iter().copied()) {
            self.interrupt.check()?;
            let place = place_of(position, TrialKind::HardwareCounters, variant);
            if let Some(trial) = self.counted(place, &mut pools[variant], harvest)? {
                harvest.trials.push(trial);
                done(harvest.trials.len() as u64);
            }
        }
        Ok(())
    }

    /// Connects and warms up every variant. Returns the connections and the length of the trials, by
    /// variant.
    fn warm_up_all(
        &self,
        block: u32,
        round: &Round,
        warm_up_cap: u32,
        harvest: &mut RawResults,
    ) -> Result<(Vec<Clients>, Vec<Timing>)> {
        let mut ready: Vec<Option<(Clients, Timing)>> = Vec::new();
        ready.resize_with(self.plan.variants.len(), || None);
        let mut schedule = self.plan.schedule;
        schedule.warm_up_cap_us *= u64::from(warm_up_cap);
        for &variant in &round.warm_up {
            let point = self.plan.point(round.condition, variant);
            let mut pool = self.connect(block, point)?;
            let pids = self.backend_pids(&pool, point);
            let warmed_up = warm_up(&mut pool, &pids, &schedule, self.source, point);
            let warmed_up = self.with_server_cause(warmed_up, point)?;
            if !warmed_up.is_steady {
                harvest.unsteady.push((round.condition, variant));
            }
            ready[variant] = Some((pool, warmed_up.trial));
        }
        // The warm-up order contains every variant, so none is missing.
        Ok(ready.into_iter().flatten().unzip())
    }

    /// Runs a trial for hardware counters. Returns `None` if they are not available, which `doctor`
    /// and the checks of every result report.
    fn counted(
        &self,
        place: TrialSlot,
        pool: &mut Clients,
        harvest: &mut RawResults,
    ) -> Result<Option<Trial>> {
        let point = self.plan.point(place.condition, place.variant);
        if !pool.are_of_postgres() || self.backend_pids(pool, point).is_empty() {
            return Ok(None);
        }
        self.reset(point)?;
        let Ok(events) = EventCounter::open(&CountedEvent::HARDWARE, &pool.server_pids()) else {
            return Ok(None);
        };
        let mut trial = self.trial(place, pool, harvest)?;
        let Ok(executed) = events.read() else {
            return Ok(None);
        };
        let named = executed
            .into_iter()
            .map(|(event, sum)| (event.name().to_owned(), sum));
        trial.counters = named.collect();
        Ok(Some(trial))
    }

    fn connect(&self, block: u32, point: &Point) -> Result<Clients> {
        let clients = self.plan.conditions[point.condition].clients;
        let seed = self.plan.client_seed(block, point.condition, point.variant);
        let size = Size {
            clients,
            threads: self.plan.schedule.threads,
            seed,
        };
        if point.driver == DriverKind::Redis {
            return self.redis.connect(point, clients, self.interrupt);
        }
        let place = self.servers.place(point);
        let pool = client_pools::connect(point, size, &place, self.source, self.interrupt);
        Ok(Clients::Postgres(Box::new(
            self.with_server_cause(pool, point)?,
        )))
    }

    /// Replaces an error by the death of the point's server if that is the cause; otherwise adds the
    /// variant's name.
    fn with_server_cause<T>(&self, result: Result<T>, point: &Point) -> Result<T> {
        let Err(error) = result else { return result };
        if error.is::<Interrupted>() {
            return Err(error);
        }
        // Clients notice the death of a server before its exit status is available.
        for _ in 0..20 {
            self.servers.host(point.server).is_alive()?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(error.context(format!("variant \"{}\"", self.plan.variants[point.variant])))
    }

    fn reset(&self, point: &Point) -> Result<()> {
        if point.driver != DriverKind::Postgres {
            return Ok(());
        }
        let place = self.servers.place(point);
        reset(&place, &point.resets, self.source, self.interrupt)
    }

    /// The local processes that serve the clients. Empty if each serves only one transaction: then
    /// only the CPU time of exited children is known.
    fn backend_pids(&self, pool: &Clients, point: &Point) -> Vec<u32> {
        let probed = self.probes.servers.get(point.server);
        let is_elsewhere = pool.are_of_postgres() && probed.is_none_or(|it| it.live.is_none());
        if point.reconnects || is_elsewhere {
            return Vec::new();
        }
        pool.server_pids()
    }

    fn trial(
        &self,
        place: TrialSlot,
        pool: &mut Clients,
        harvest: &mut RawResults,
    ) -> Result<Trial> {
        let TrialSlot {
            condition,
            variant,
            kind,
            ..
        } = place;
        let point = self.plan.point(condition, variant);
        let backend_pids = self.backend_pids(pool, point);
        let mut server_pids = self.servers.pids();
        server_pids.extend(&backend_pids);
        // The probes observe only PostgreSQL.
        let servers = self.probes.servers.get(point.server);
        let probed = servers.filter(|_| pool.are_of_postgres() && !point.reconnects);
        let live = probed.and_then(|probed| probed.live.as_ref());
        let major = live.and_then(|live| live.major.as_deref());
        let is_profiled = kind == TrialKind::Profiled && probed.is_some();
        let has_stacks = is_profiled && probed.is_some_and(|it| it.has_stacks);
        let sampler = self.probes.sampler.as_ref().filter(|_| has_stacks);
        if let Some(sampler) = sampler {
            sampler.start()?;
        }
        let before = TotalsReading::take(live, &backend_pids, &server_pids)?;
        let waits = probed.filter(|_| is_profiled);
        let waits = waits.and_then(|it| start_waits(it, pool));
        let parent = servers.and_then(|it| it.live.as_ref());
        let parent = parent.map(|live| live.postmaster_pid);
        let parent = parent.filter(|_| point.reconnects);
        let ended_before = parent.map(ProcessTreeCpu::read).transpose()?;
        // Timing statements costs the clients a little, so timed trials go without.
        pool.time_statements(kind == TrialKind::Profiled);
        let keeper = sampler.and_then(|_| pool.keep_transactions());
        let started_us = unix_us();
        let upkeep = self.upkeep.within_trial(point.server)?;
        let measured = self.with_server_cause(self.measure(pool, point, place), point);
        upkeep.finish()?;
        pool.forget_transactions();
        let instants = measured.as_ref().ok().map(|it| &it.instants);
        let window = instants.map(|it| it.window_begin_ns..it.window_end_ns);
        let waits = waits.map(|waits| waits.stop(major, window.as_ref()));
        let mut passed = before.passed(live, &backend_pids, &server_pids)?;
        if let Some((pid, before)) = parent.zip(ended_before) {
            passed.server = Some(cpu_of_ended(pid, before)?);
        }
        if let Some(sampler) = sampler {
            let samples = sampler.stop()?;
            let profiled = ProfiledTrial {
                samples: &samples,
                backend_pids: &backend_pids,
                major: major.unwrap_or_default(),
                window,
            };
            let measured = measured.as_ref().ok();
            let recorded = keeper.as_ref().zip(measured);
            add_profile(&mut harvest.profiles, place, &profiled, recorded);
        }
        let measured = measured?;
        let statements = &mut harvest.statements;
        statements.add((condition, variant), &measured.commands);
        Ok(Trial {
            waits,
            ..trial_of(place, started_us, &measured, passed)
        })
    }

    fn measure(&self, pool: &mut Clients, point: &Point, place: TrialSlot) -> Result<Measurement> {
        let Timing {
            spread,
            settle,
            mut measure,
        } = place.window;
        pool.spread_starts(spread, place.seed(self.plan.schedule.seed));
        for _ in 0..TRIES {
            let measured = pool.run(&RunLength::Timed { settle, measure }, self.source, point)?;
            self.interrupt.check()?;
            if measured.transactions > 0 {
                return Ok(measured);
            }
            // The machine was busy, or transactions have become slower since warm-up.
            measure *= LONGER;
        }
        let trial = HumanDuration::from(measure / LONGER);
        bail!(
            "no transaction ended within a trial of {trial}; increase --length or reduce --pairs"
        );
    }
}

/// The position of a trial in the plan.
#[derive(Clone, Copy)]
struct TrialSlot {
    block: u32,
    boot: u32,
    condition: usize,
    variant: usize,
    position: u32,
    kind: TrialKind,
    /// Its duration, and when its clients start.
    window: Timing,
}

impl TrialSlot {
    /// The seed for the clients' start times, different for each trial of a run.
    fn seed(&self, of_run: u64) -> u64 {
        let condition = self.condition as u64;
        let place = (u64::from(self.block) << 40) ^ (condition << 20) ^ u64::from(self.position);
        of_run ^ place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Starts sampling the waits of the pool's backends; `None` if they cannot be sampled.
fn start_waits(probed: &Probed, pool: &Clients) -> Option<WaitThread> {
    let probe = probed.waits.clone()?;
    // As the server numbers them: pg_stat_activity of a remote server lists PIDs of its own machine.
    let pids = pool.server_pids();
    Some(WaitThread::start(WaitSampler::new(probe, WAITS_HZ), pids))
}

/// The CPU time of the server's processes since `before`, those that have ended included.
fn cpu_of_ended(postmaster_pid: u32, before: ProcessTreeCpu) -> Result<CpuTotals> {
    Ok(CpuTotals {
        on_cpu_us: ProcessTreeCpu::read(postmaster_pid)?.since_ns(before) as f64 / 1e3,
        ..CpuTotals::default()
    })
}

/// Adds the samples of a profiled trial, and its transactions if they were recorded.
fn add_profile(
    profiles: &mut Profiles,
    slot: TrialSlot,
    profiled: &ProfiledTrial<'_>,
    recorded: Option<(&TransactionRecorder, &Measurement)>,
) {
    let TrialSlot {
        condition,
        variant,
        block,
        ..
    } = slot;
    profiles.add(condition, variant, block, profiled);
    let account = recorded.and_then(|(recorder, measured)| {
        recorder.account(profiled.backend_pids, measured, profiled.samples)
    });
    if let Some(account) = account {
        profiles.add_transactions(condition, variant, profiled, &account);
    }
}

fn trial_of(place: TrialSlot, started_us: i64, measured: &Measurement, passed: Passed) -> Trial {
    let sum =
        |field: fn(&ThreadUsage) -> u64| measured.threads.iter().map(field).sum::<u64>() as f64;
    Trial {
        block: place.block,
        server_start: place.boot,
        condition: place.condition,
        variant: place.variant,
        position: place.position,
        kind: place.kind,
        started_us,
        window_us: measured.window_us as f64,
        transactions: measured.transactions,
        credited_transactions: Some(measured.credited_transactions),
        transactions_total: measured.transactions_total,
        latency: Latency::from_histogram(&measured.latency_ns),
        server: passed.server,
        client: ClientTotals {
            cpu_us: sum(|thread| thread.cpu_us),
            run_queue_us: sum(|thread| thread.run_queue_wait_us.unwrap_or(0)),
            in_transaction_us: measured.time.in_transaction_us as f64,
            between_transactions_us: measured.time.between_us as f64,
            sleep_us: measured.time.asleep_us as f64,
            thread_busy_us: measured.time.thread_busy_us.map(|us| us as f64),
            client_run_queue_us: measured.time.client_run_queue_us.map(|us| us as f64),
            client_limited: client_limited(measured, &passed),
        },
        cpu_steal: passed.steal,
        other_programs: passed.other_programs,
        unaccounted: Some(passed.unaccounted),
        counters: BTreeMap::new(),
        cpu_utilization: passed.busy,
        background: passed.background,
        waits: None,
        cross_checks: Some(CrossCheckReadings {
            run_us: run_us(&measured.threads),
            ..passed.second
        }),
    }
}

/// How long the load ran, by the threads' own clocks.
fn run_us(threads: &[ThreadUsage]) -> Option<f64> {
    let sum: f64 = threads.iter().map(|thread| thread.elapsed_us as f64).sum();
    (!threads.is_empty()).then(|| sum / threads.len() as f64)
}

/// Whether the load generator was the bottleneck: one of its threads was busy nearly all the time,
/// or waited for a CPU while CPUs were idle. On a saturated machine, a thread that waits for a CPU is
/// not the bottleneck, because backends wait as well.
fn client_limited(measured: &Measurement, passed: &Passed) -> bool {
    let busy = measured
        .threads
        .iter()
        .any(|thread| thread.cpu_us as f64 >= BUSY * thread.elapsed_us as f64);
    busy || (measured.client_limited && passed.idle >= IDLE_NOTICEABLE)
}

fn unix_us() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
