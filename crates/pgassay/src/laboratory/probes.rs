//! What watches the servers during trials: opened once, before the first.
//!
//! Exact totals are read around every trial. Stacks and waits are taken in profiled trials only, and
//! either may be missing: what is refused is said once, and the ledger says what it then lacks.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use pgassay_core::run::{Warning, WarningKind};
use pgassay_profile::{LiveServer, OffCpuConfig, Sampler, SamplerConfig, SamplerError, WaitReader};
use pgassay_server::Server;
use pgassay_wire::conninfo::{NoSurroundings, Request};
use pgassay_wire::{Exchange, SaltCache};

use super::servers::Servers;
use super::waits;

/// Samples a second and processor in profiled trials. They decide no verdict, so they can afford
/// what a timed trial cannot, which is measured and printed; `docs/watching.md` has the reasons.
const SAMPLES_HZ: u32 = 499;
/// Looks a second at what each backend waits for: some 2 ms of CPU a second for each backend.
pub const WAITS_HZ: u32 = 199;
/// Trials are short, so slices of switches come more often than beside a server that must not notice.
const SLICE_EVERY: Duration = Duration::from_millis(150);
/// Room for samples that were not read yet, of each processor: .7 s of them. Backends that only
/// compute may keep the reading thread from a processor for longer than the default room lasts.
const RING_BYTES: usize = 8 << 20;
/// And of all processors: of many, the reading thread finds one that is free.
const RINGS_BYTES: usize = 256 << 20;
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
    /// Its processes and version.
    pub live: LiveServer,
    /// Reads what its backends wait for; `None` where it may not.
    pub waits: Option<WaitReader>,
}

impl Probes {
    /// Opens what may be opened; `stacks_and_waits` where there are trials for them.
    pub fn open(
        servers: &Servers,
        stacks_and_waits: bool,
        warnings: &mut Vec<Warning>,
    ) -> Result<Self> {
        let mut probes = Self {
            sampler: None,
            servers: Vec::new(),
        };
        for server in servers.iter() {
            let live = LiveServer::of_process(server.postmaster_pid().cast_unsigned())?;
            probes.servers.push(Probed { live, waits: None });
        }
        if stacks_and_waits {
            probes.open_sampler(servers, warnings);
            for (probed, server) in probes.servers.iter_mut().zip(servers.iter()) {
                let reader = waits::reader(&probed.live, Some(|| exchange(server)));
                probed.waits = told(reader, warnings, |error| {
                    format!("no account of what the backends wait for: {error:#}")
                });
                if let (Some(sampler), Some(reader)) = (&probes.sampler, probed.waits) {
                    sampler.watch_waits(probed.live.postmaster_pid, reader)?;
                }
            }
        }
        Ok(probes)
    }

    /// With switches where they may be observed, else without.
    fn open_sampler(&mut self, servers: &Servers, warnings: &mut Vec<Warning>) {
        let off_cpu = OffCpuConfig {
            every: SLICE_EVERY,
            ..OffCpuConfig::default()
        };
        self.sampler = sampler(servers, Some(off_cpu)).ok();
        if self.sampler.is_none() {
            let without = sampler(servers, None).map_err(Into::into);
            self.sampler = told(without, warnings, |error| {
                format!("no account of where the CPU time goes: {error:#}")
            });
        }
    }
}

/// What there is, or a warning, once for all servers.
fn told<T>(
    result: Result<T>,
    warnings: &mut Vec<Warning>,
    words: impl Fn(&anyhow::Error) -> String,
) -> Option<T> {
    result
        .map_err(|error| {
            let warning = Warning {
                kind: WarningKind::NoProfile,
                message: words(&error),
            };
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        })
        .ok()
}

fn sampler(servers: &Servers, off_cpu: Option<OffCpuConfig>) -> Result<Sampler, SamplerError> {
    Sampler::open(&SamplerConfig {
        postmaster_pids: servers
            .iter()
            .map(|server| server.postmaster_pid().cast_unsigned())
            .collect(),
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

/// A connection of our own, to see in a server's memory how it waits.
fn exchange(server: &Server) -> Result<Exchange<UnixStream>> {
    let target = Request::new()
        .conninfo(&server.conninfo())?
        .fallback_application_name("pgassay")
        .resolve(&NoSurroundings)?;
    let host = target.hosts.first().context("a server names its socket")?;
    let path = host.address.socket_path();
    let path = path.ok_or_else(|| anyhow!("a server of ours is not reached over a socket"))?;
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    Ok(Exchange::open(
        stream,
        &target.login(host, &SaltCache::default()),
    )?)
}
