//! The probes' observation of one trial: started before its load, finished or dropped after it.

use anyhow::Result;
use pgassay_load::{Measurement, ThreadUsage};
use pgassay_model::cpu::CpuTotals;
use pgassay_model::plan::PointId;
use pgassay_model::trial::{ClientTotals, CrossCheckReadings, Trial, TrialKind};
use pgassay_profile::{LiveServer, ProcessTreeCpu, Sampler};

use super::TrialWatch;
use super::WatchedTrial;
use super::probes::{Probed, Probes, WAITS_HZ};
use super::profiles::ProfiledTrial;
use super::totals::{Passed, TotalsReading};
use super::transactions::TransactionRecorder;
use super::waits::{WaitSampler, WaitThread};
use crate::load::Clients;
use crate::raw_results::RawResults;

/// A thread on a CPU for this share of the time has no reserve.
const BUSY: f64 = 0.9;
/// If more than this share of the machine is idle, it is not saturated.
const IDLE_NOTICEABLE: f64 = 0.1;

/// The probes' observation of one trial.
pub struct ProbeWatch<'a> {
    live: Option<&'a LiveServer>,
    /// Samples stacks until stopped.
    sampler: Option<&'a Sampler>,
    waits: Option<WaitThread>,
    transactions: Option<TransactionRecorder>,
    before: Option<TotalsReading>,
    /// The postmaster, whose ended children serve clients that reconnect, and their CPU time before.
    ended: Option<(u32, ProcessTreeCpu)>,
    backend_pids: Vec<u32>,
    server_pids: Vec<u32>,
    point: PointId,
    block: u32,
}

impl<'a> ProbeWatch<'a> {
    /// Reads the totals, and in a profiled trial starts sampling stacks and waits. The probes observe
    /// only PostgreSQL.
    pub fn start(
        probes: &'a Probes,
        trial: &WatchedTrial<'_>,
        clients: &mut dyn Clients,
    ) -> Result<Self> {
        let point = trial.point;
        let server = probes.servers.get(point.server);
        let probed = server.filter(|_| clients.are_of_postgres() && !point.reconnects);
        let is_profiled = trial.slot.kind == TrialKind::Profiled;
        let has_stacks = is_profiled && probed.is_some_and(|it| it.has_stacks);
        let mut watch = Self {
            live: probed.and_then(|it| it.live.as_ref()),
            sampler: None,
            waits: None,
            transactions: None,
            before: None,
            ended: None,
            backend_pids: trial.backend_pids.to_vec(),
            server_pids: trial.server_pids.to_vec(),
            point: point.id(),
            block: trial.slot.block,
        };
        if let Some(sampler) = probes.sampler.as_ref().filter(|_| has_stacks) {
            sampler.start()?;
            watch.sampler = Some(sampler);
        }
        let (backends, all) = (&watch.backend_pids, &watch.server_pids);
        watch.before = Some(TotalsReading::take(watch.live, backends, all)?);
        let sampled = probed.filter(|_| is_profiled);
        watch.waits = match sampled {
            Some(probed) => start_waits(probed, clients)?,
            None => None,
        };
        let postmaster = server.and_then(|it| it.live.as_ref());
        if let Some(live) = postmaster.filter(|_| point.reconnects) {
            let pid = live.postmaster_pid;
            watch.ended = Some((pid, ProcessTreeCpu::read(pid)?));
        }
        // Timing statements costs the clients a little, so timed trials go without.
        clients.time_statements(is_profiled);
        if watch.sampler.is_some() {
            watch.transactions = clients.record_transactions();
        }
        Ok(watch)
    }

    /// Adds the stacks of a profiled trial, and its transactions if they were recorded.
    fn add_profile(
        &mut self,
        sampler: &Sampler,
        measured: &Measurement,
        results: &mut RawResults,
    ) -> Result<()> {
        let samples = sampler.stop()?;
        let instants = &measured.instants;
        let major = self.live.and_then(|it| it.major.as_deref());
        let profiled = ProfiledTrial {
            samples: &samples,
            backend_pids: &self.backend_pids,
            major: major.unwrap_or_default(),
            window: Some(instants.window_begin_ns..instants.window_end_ns),
        };
        results.profiles.add(self.point, self.block, &profiled);
        let account = self
            .transactions
            .take()
            .and_then(|it| it.account(&self.backend_pids, measured, &samples));
        if let Some(account) = account {
            let profiles = &mut results.profiles;
            profiles.add_transactions(self.point, &profiled, &account);
        }
        Ok(())
    }
}

impl TrialWatch for ProbeWatch<'_> {
    fn finish(
        mut self: Box<Self>,
        clients: &mut dyn Clients,
        measured: &Measurement,
        trial: &mut Trial,
        results: &mut RawResults,
    ) -> Result<()> {
        clients.stop_recording();
        let instants = &measured.instants;
        let window = instants.window_begin_ns..instants.window_end_ns;
        let major = self.live.and_then(|it| it.major.as_deref());
        let waits = self.waits.take();
        trial.waits = waits.map(|waits| waits.stop(major, Some(&window)));
        if let Some(before) = self.before.take() {
            let mut passed = before.passed(self.live, &self.backend_pids, &self.server_pids)?;
            if let Some((pid, before)) = self.ended {
                passed.server = Some(cpu_of_ended(pid, before)?);
            }
            add_totals(trial, measured, passed);
        }
        if let Some(sampler) = self.sampler.take() {
            self.add_profile(sampler, measured, results)?;
        }
        Ok(())
    }
}

impl Drop for ProbeWatch<'_> {
    /// A trial that failed must not leave the sampler running.
    fn drop(&mut self) {
        if let Some(sampler) = self.sampler.take() {
            _ = sampler.stop();
        }
    }
}

/// Starts sampling the waits of the pool's backends; `None` if they cannot be sampled.
fn start_waits(probed: &Probed, clients: &dyn Clients) -> Result<Option<WaitThread>> {
    let Some(probe) = probed.waits.clone() else {
        return Ok(None);
    };
    // As the server numbers them: pg_stat_activity of a remote server lists PIDs of its own machine.
    let pids = clients.server_pids();
    WaitThread::start(WaitSampler::new(probe, WAITS_HZ), pids).map(Some)
}

/// The CPU time of the server's processes since `before`, those that have ended included.
fn cpu_of_ended(postmaster_pid: u32, before: ProcessTreeCpu) -> Result<CpuTotals> {
    Ok(CpuTotals {
        on_cpu_us: ProcessTreeCpu::read(postmaster_pid)?.since_ns(before) as f64 / 1e3,
        ..CpuTotals::default()
    })
}

/// Adds the CPU totals of servers, clients and machine.
fn add_totals(trial: &mut Trial, measured: &Measurement, passed: Passed) {
    trial.client = ClientTotals {
        client_limited: client_limited(measured, &passed),
        ..std::mem::take(&mut trial.client)
    };
    trial.server = passed.server;
    trial.cpu_steal = passed.steal;
    trial.other_programs = passed.other_programs;
    trial.unaccounted = Some(passed.unaccounted);
    trial.cpu_utilization = passed.busy;
    trial.background = passed.background;
    trial.cross_checks = Some(CrossCheckReadings {
        run_us: run_us(&measured.threads),
        ..passed.second
    });
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
