//! Reads server and kernel statistics around each trial, after making the backends report theirs.
//!
//! Since version 15, backends report their statistics on request, which takes a few milliseconds per
//! trial, outside its window. Up to version 14 they do so only after half a second of idleness,
//! which would make a run of short trials many times longer. For these versions, statistics are read
//! only for the last trial of each variant in the first blocks.

use std::cell::RefCell;
use std::collections::BTreeMap;

use anyhow::Result;
use pgassay_core::plan::{Plan, Point};
use pgassay_core::study::DriverKind;
use pgassay_server::{CounterReader, CounterReading, Pid};

use super::client_pools::Clients;
use super::host::Host;
use super::servers::Servers;

/// Blocks with statistics for servers up to version 14; two give a spread.
const SLOW_BLOCKS: u32 = 2;

/// The statistics readers of a plan's servers.
pub struct Statistics<'a> {
    plan: &'a Plan,
    servers: &'a Servers,
    /// In the plan's order; each holds a connection.
    readers: Vec<RefCell<CounterReader>>,
}

/// Whether the backends of each variant have reported all their statistics.
pub struct ReportedStats(Vec<bool>);

/// A trial whose statistics are read, from its start.
pub struct StartReading {
    server: usize,
    reading: CounterReading,
    backends: Vec<Pid>,
}

impl<'a> Statistics<'a> {
    /// Connects to every server.
    pub fn open(plan: &'a Plan, servers: &'a Servers) -> Result<Self> {
        let reader = |(index, host): (usize, &dyn Host)| host.counters(servers.databases(index));
        let readers: Result<Vec<_>> = servers.iter().enumerate().map(reader).collect();
        Ok(Self {
            plan,
            servers,
            readers: readers?.into_iter().map(RefCell::new).collect(),
        })
    }

    /// The state at the start of a round: new connections have unreported statistics from warm-up.
    pub fn round(&self) -> ReportedStats {
        ReportedStats(vec![false; self.plan.variants.len()])
    }

    /// Reads statistics before a trial; `None` if they are not read for this trial.
    pub fn begin(
        &self,
        place: (u32, u32),
        point: &Point,
        pools: &mut [Clients],
        settled: &mut ReportedStats,
    ) -> Result<Option<StartReading>> {
        // Connections that last for one transaction cannot be asked to report their statistics.
        if point.driver != DriverKind::Postgres || point.reconnects {
            return Ok(None);
        }
        let (block, position) = place;
        let mut reader = self.readers[point.server].borrow_mut();
        let trials = self.plan.trials_per_block() as usize / self.plan.conditions.len();
        let is_last_of_variant = position as usize + self.plan.variants.len() >= trials;
        let is_slow = !reader.flush_wait().is_zero();
        if is_slow && !(is_last_of_variant && block < SLOW_BLOCKS) {
            settled.0[point.variant] = false;
            return Ok(None);
        }
        // Otherwise other backends of this server might report theirs during this trial.
        let sharing = |variant: &usize| {
            let other = self.plan.point(point.condition, *variant);
            other.server == point.server
                && other.driver == DriverKind::Postgres
                && !other.reconnects
        };
        let unsettled: Vec<usize> = (0..pools.len())
            .filter(|variant| sharing(variant) && !settled.0[*variant])
            .collect();
        if !unsettled.is_empty() {
            std::thread::sleep(reader.flush_wait());
        }
        for variant in unsettled {
            pools[variant].broadcast(reader.flush_statement())?;
            settled.0[variant] = true;
        }
        let backends = pools[point.variant].backend_pids();
        let mut reading = CounterReading::default();
        reader.read_views(&mut reading)?;
        if let Some(sources) = self.servers.host(point.server).kernel_sources(&backends) {
            reader.read_kernel_statistics(&sources, &mut reading);
        }
        Ok(Some(StartReading {
            server: point.server,
            reading,
            backends,
        }))
    }

    /// Reads statistics after a trial and returns the difference, without pgassay's own statements.
    pub fn end(&self, begun: &StartReading, pool: &mut Clients) -> Result<BTreeMap<String, f64>> {
        let mut reader = self.readers[begun.server].borrow_mut();
        let mut now = CounterReading::default();
        if let Some(sources) = self
            .servers
            .host(begun.server)
            .kernel_sources(&begun.backends)
        {
            reader.read_kernel_statistics(&sources, &mut now);
        }
        std::thread::sleep(reader.flush_wait());
        let asked = pool.broadcast(reader.flush_statement())?;
        reader.read_views(&mut now)?;
        let mut counted = now.since(&begun.reading);
        // Each of these statements was a transaction.
        if let Some(commits) = counted.get_mut("pg_stat_database.xact_commit") {
            *commits = (*commits - f64::from(asked)).max(0.0);
        }
        Ok(counted)
    }
}
