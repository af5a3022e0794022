//! The probes that observe the servers during trials, opened before the first trial.
//!
//! Exact totals are read around every trial. Stacks and waits are sampled in profiled trials only.
//! Either may be unavailable: then there is one warning, and the ledger shows what it lacks.

use std::time::Duration;

use anyhow::Result;
use pgassay_model::plan::{Plan, Schedule};
use pgassay_model::study::Network;
use pgassay_profile::{LiveServer, OffCpuConfig, Sampler, SamplerConfig, SamplerError};
use pgassay_record::run::{Warning, WarningKind};
use pgassay_wire::Exchange;

use super::probe_watch::ProbeWatch;
use super::waits::WaitProbe;
use super::{TrialObserver, WatchDecision, WatchedTrial};
use crate::connector::{TimedStream, connect, limit_statements};
use crate::host::{Host, Servers};
use crate::load::Clients;

/// Samples per second and CPU in profiled trials. Profiled trials decide no verdict, so they can
/// afford an overhead that timed trials cannot. It is measured and printed; see `docs/profiling.md`.
const SAMPLES_HZ: u32 = 499;
/// Wait samples per second of each backend; they cost about 0.5 ms of CPU per second and backend.
pub const WAITS_HZ: u32 = 49;
/// Ring buffer per CPU, for 0.7 s of samples. CPU-bound backends may keep the reading thread off the
/// CPU for longer than the default size lasts.
const RING_BYTES: usize = 8 << 20;
/// Limit for all ring buffers together: with many CPUs, the reading thread finds a free one.
const RINGS_BYTES: usize = 256 << 20;
/// Minimum number of context-switch slices per point,
const SLICES: u32 = 20;
/// unless they would be closer together than this, which costs about 2% more throughput.
const SLICES_EVERY_MIN: Duration = Duration::from_millis(100);
/// Timeout for connecting and for each query; all queries sent here are cheap.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The probes of a run.
pub struct Probes {
    /// Samples stacks; `None` if not permitted.
    pub sampler: Option<Sampler>,
    /// In the plan's order of servers.
    pub servers: Vec<Probed>,
}

/// One server's probes.
pub struct Probed {
    /// Its processes and version; `None` if they run elsewhere or are not accessible.
    pub live: Option<LiveServer>,
    /// Whether its stacks are sampled.
    pub has_stacks: bool,
    /// The source of wait samples; `None` if there is none.
    pub waits: Option<WaitProbe>,
}

impl Probes {
    /// Opens all permitted probes; stacks and waits only if the schedule has profiled trials.
    pub fn open(plan: &Plan, servers: &Servers, warnings: &mut Vec<Warning>) -> Result<Self> {
        let schedule = &plan.schedule;
        let mut probes = Self {
            sampler: None,
            servers: Vec::new(),
        };
        for host in servers.iter() {
            probes.servers.push(Probed {
                live: host.live()?,
                has_stacks: false,
                waits: None,
            });
        }
        if schedule.profiled > 0 {
            if probes.servers.iter().any(|it| it.live.is_some()) {
                probes.open_sampler(slices(schedule), warnings);
            }
            for (probed, host) in probes.servers.iter_mut().zip(servers.iter()) {
                let Some(live) = &probed.live else {
                    let asked = exchange(host).and_then(WaitProbe::remote);
                    let unasked = |error: &anyhow::Error| {
                        warn(warnings, format!("no wait data: {error:#}"));
                    };
                    probed.waits = asked.inspect_err(unasked).ok();
                    continue;
                };
                let (probe, refusal) = WaitProbe::of(live, Some(|| exchange(host)), false);
                if let Some(refusal) = &refusal {
                    let limits = refusal.limitation.as_deref().unwrap_or_default();
                    let fix = refusal.fix.iter().map(|it| format!("; to fix it: {it}"));
                    warn(warnings, limits.to_owned() + &fix.collect::<String>());
                }
                if let (Some(sampler), Some(WaitProbe::Memory(reader))) = (&probes.sampler, &probe)
                {
                    sampler.watch_waits(live.postmaster_pid, *reader)?;
                }
                probed.waits = probe;
            }
        }
        Ok(probes)
    }

    /// Opens the sampler, with context switches if permitted, and attaches it to each local server.
    fn open_sampler(&mut self, slices: OffCpuConfig, warnings: &mut Vec<Warning>) {
        self.sampler = with_switches_or_without(slices, sampler, warnings);
        let Some(sampler) = &self.sampler else { return };
        let mut refused = |error: &SamplerError| warn(warnings, no_profile(error));
        for probed in &mut self.servers {
            let Some(live) = &probed.live else { continue };
            let watched = sampler.watch(live.postmaster_pid);
            probed.has_stacks = watched.inspect_err(&mut refused).is_ok();
        }
    }
}

impl TrialObserver for Probes {
    fn watch<'w>(
        &'w self,
        trial: &WatchedTrial<'_>,
        pools: &mut [Box<dyn Clients>],
    ) -> Result<WatchDecision<'w>> {
        let clients = pools[trial.point.variant].as_mut();
        let watch = ProbeWatch::start(self, trial, clients)?;
        Ok(WatchDecision::Watch(Box::new(watch)))
    }
}

/// The default configuration, with more frequent slices if the profiled time of a point is short:
/// with few slices, too little blocked time is observed.
fn slices(schedule: &Schedule) -> OffCpuConfig {
    let usual = OffCpuConfig::default();
    let trials = u64::from(schedule.blocks * schedule.profiled);
    let of_point = Duration::from_micros(schedule.trial_us * trials);
    OffCpuConfig {
        every: (of_point / SLICES).clamp(SLICES_EVERY_MIN, usual.every),
        ..usual
    }
}

/// Adds a warning unless another server has already caused it.
fn warn(warnings: &mut Vec<Warning>, message: String) {
    let warning = Warning {
        kind: WarningKind::NoProfile,
        variant: None,
        message,
    };
    if !warnings.contains(&warning) {
        warnings.push(warning);
    }
}

fn no_profile(error: &SamplerError) -> String {
    format!("no CPU profile: {error}")
}

/// A sampler with context switches or, if it cannot be opened, without; with a warning of what is missing.
fn with_switches_or_without<T>(
    slices: OffCpuConfig,
    open: impl Fn(Option<OffCpuConfig>) -> Result<T, SamplerError>,
    warnings: &mut Vec<Warning>,
) -> Option<T> {
    let refusal = match open(Some(slices)) {
        Ok(sampler) => return Some(sampler),
        Err(error) => error,
    };
    let (opened, message) = match open(None) {
        Ok(sampler) => (Some(sampler), format!("no context switches: {refusal}")),
        Err(error) => (None, no_profile(&error)),
    };
    warn(warnings, message);
    opened
}

fn sampler(off_cpu: Option<OffCpuConfig>) -> Result<Sampler, SamplerError> {
    Sampler::open(&SamplerConfig {
        frequency_hz: SAMPLES_HZ,
        ring_bytes: ring_bytes(),
        off_cpu,
        ..SamplerConfig::default()
    })
}

/// The ring buffer size per CPU: a power of two, not less than the default.
fn ring_bytes() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let of_each = (RINGS_BYTES / processors.next_power_of_two()).min(RING_BYTES);
    of_each.max(SamplerConfig::default().ring_bytes)
}

/// Opens a separate connection for sampling waits.
fn exchange(host: &dyn Host) -> Result<Exchange<TimedStream>> {
    let target = host.target(host.database(), Network::Unix, None)?;
    let (mut exchange, _) = connect(&target, Some(ANSWER_LIMIT))?;
    exchange.stream().set_limit(Some(ANSWER_LIMIT))?;
    limit_statements(&mut exchange)?;
    Ok(exchange)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a study whose context switches could not be recorded did not say so.
    #[test]
    fn missing_context_switches_are_no_secret() {
        let opened = |switches: bool, stacks: bool| {
            let open = |off_cpu: Option<OffCpuConfig>| {
                let is_permitted = if off_cpu.is_some() { switches } else { stacks };
                is_permitted
                    .then_some(off_cpu.is_some())
                    .ok_or(SamplerError::ReaderEnded)
            };
            let mut warnings = Vec::new();
            let opened = with_switches_or_without(OffCpuConfig::default(), open, &mut warnings);
            let messages = warnings.into_iter().map(|it| it.message);
            (opened, messages.collect::<Vec<_>>())
        };
        assert_eq!(opened(true, true), (Some(true), Vec::new()));
        let why = SamplerError::ReaderEnded;
        let missing = vec![format!("no context switches: {why}")];
        assert_eq!(opened(false, true), (Some(false), missing));
        let missing = vec![format!("no CPU profile: {why}")];
        assert_eq!(opened(false, false), (None, missing));
    }
}
