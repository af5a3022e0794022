//! What watches the servers during trials: opened once, before the first.
//!
//! Exact totals are read around every trial. Stacks and waits are taken in profiled trials only, and
//! either may be missing: what is refused is said once, and the ledger says what it then lacks.

use std::time::Duration;

use anyhow::Result;
use pgassay_core::plan::Schedule;
use pgassay_core::run::{Warning, WarningKind};
use pgassay_core::study::Network;
use pgassay_profile::{LiveServer, OffCpuConfig, Sampler, SamplerConfig, SamplerError};
use pgassay_wire::Exchange;

use super::host::Host;
use super::servers::Servers;
use super::waits::WaitProbe;
use crate::connector::{Stream, connect};

/// Samples a second and processor in profiled trials. They decide no verdict, so they can afford
/// what a timed trial cannot, which is measured and printed; `docs/watching.md` has the reasons.
const SAMPLES_HZ: u32 = 499;
/// Looks a second at what each backend waits for: some .5 ms of CPU a second for each backend.
pub const WAITS_HZ: u32 = 49;
/// Room for samples that were not read yet, of each processor: .7 s of them. Backends that only
/// compute may keep the reading thread from a processor for longer than the default room lasts.
const RING_BYTES: usize = 8 << 20;
/// And of all processors: of many, the reading thread finds one that is free.
const RINGS_BYTES: usize = 256 << 20;
/// As many slices of context switches as a point should have at least,
const SLICES: u32 = 20;
/// if they need not come more often than this, which costs some 2 % of the throughput more.
const SLICES_EVERY_MIN: Duration = Duration::from_millis(100);
/// An answer that takes longer is none: nothing that is asked here takes work.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The probes of a run.
pub struct Probes {
    /// Takes stacks; `None` where it may not.
    pub sampler: Option<Sampler>,
    /// In the plan's order of servers.
    pub servers: Vec<Probed>,
}

/// One server's probes.
pub struct Probed {
    /// Its processes and version; `None` where they are elsewhere or may not be looked at.
    pub live: Option<LiveServer>,
    /// Whether its stacks are sampled.
    pub has_stacks: bool,
    /// Where it is looked up what its backends wait for; `None` where nothing tells.
    pub waits: Option<WaitProbe>,
}

impl Probes {
    /// Opens what may be opened; stacks and waits only where there are trials for them.
    pub fn open(
        servers: &Servers,
        schedule: &Schedule,
        warnings: &mut Vec<Warning>,
    ) -> Result<Self> {
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
                    let asked = exchange(host).and_then(WaitProbe::elsewhere);
                    let unasked = |error: &anyhow::Error| {
                        warn(warnings, format!("nothing tells of waits: {error:#}"));
                    };
                    probed.waits = asked.inspect_err(unasked).ok();
                    continue;
                };
                let (probe, refusal) = WaitProbe::of(live, Some(|| exchange(host)));
                if let Some(refusal) = &refusal {
                    let limits = refusal.limits.as_deref().unwrap_or_default();
                    let mend = refusal.mend.iter().map(|it| format!("; to mend it: {it}"));
                    warn(warnings, limits.to_owned() + &mend.collect::<String>());
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

    /// With switches where they may be observed, else without; of every server that may be watched.
    fn open_sampler(&mut self, slices: OffCpuConfig, warnings: &mut Vec<Warning>) {
        let mut refused = |error: &SamplerError| {
            warn(
                warnings,
                format!("no account of where the CPU time goes: {error}"),
            );
        };
        self.sampler = sampler(Some(slices)).ok();
        if self.sampler.is_none() {
            self.sampler = sampler(None).inspect_err(&mut refused).ok();
        }
        let Some(sampler) = &self.sampler else { return };
        for probed in &mut self.servers {
            let Some(live) = &probed.live else { continue };
            let watched = sampler.watch(live.postmaster_pid);
            probed.has_stacks = watched.inspect_err(&mut refused).is_ok();
        }
    }
}

/// As usual, but more often where the profiled trials of a point are short in all: few slices tell too
/// little of what is blocked.
fn slices(schedule: &Schedule) -> OffCpuConfig {
    let usual = OffCpuConfig::default();
    let trials = u64::from(schedule.blocks * schedule.profiled);
    let of_point = Duration::from_micros(schedule.trial_us * trials);
    OffCpuConfig {
        every: (of_point / SLICES).clamp(SLICES_EVERY_MIN, usual.every),
        ..usual
    }
}

/// Once for all servers.
fn warn(warnings: &mut Vec<Warning>, message: String) {
    let warning = Warning {
        kind: WarningKind::NoProfile,
        message,
    };
    if !warnings.contains(&warning) {
        warnings.push(warning);
    }
}

fn sampler(off_cpu: Option<OffCpuConfig>) -> Result<Sampler, SamplerError> {
    Sampler::open(&SamplerConfig {
        frequency_hz: SAMPLES_HZ,
        ring_bytes: ring_bytes(),
        off_cpu,
        ..SamplerConfig::default()
    })
}

/// A power of two, and never less than the default.
fn ring_bytes() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let of_each = (RINGS_BYTES / processors.next_power_of_two()).min(RING_BYTES);
    of_each.max(SamplerConfig::default().ring_bytes)
}

/// A connection of our own, to see how a server's backends wait.
fn exchange(host: &dyn Host) -> Result<Exchange<Stream>> {
    let target = host.target(host.database(), Network::Unix, None)?;
    let (exchange, _) = connect(&target, Some(ANSWER_LIMIT))?;
    exchange.stream().set_limit(Some(ANSWER_LIMIT))?;
    Ok(exchange)
}
