//! Reads server and kernel statistics around each trial, after making the backends report theirs.
//!
//! Since version 15, backends report their statistics on request, which takes a few milliseconds per
//! trial, outside its window. Up to version 14 they do so at the end of a command, at most every half
//! second, so that a run of short trials would take many times longer. For these versions, statistics are read
//! only for the last trial of each variant in the first blocks.

use std::cell::RefCell;
use std::collections::BTreeSet;

use anyhow::Result;
use pgassay_load::Measurement;
use pgassay_model::plan::{Plan, Point, PointId};
use pgassay_model::study::DriverKind;
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_server::{CounterReader, CounterReading, Pid};

use super::{TrialObserver, TrialWatch, WatchDecision, WatchedTrial};
use crate::host::{Host, Servers};
use crate::load::Clients;
use crate::raw_results::RawResults;

/// Blocks with statistics for servers up to version 14; two give a spread.
const SLOW_BLOCKS: u32 = 2;

/// The statistics readers of a plan's servers.
pub struct Statistics<'a> {
    plan: &'a Plan,
    servers: &'a Servers,
    /// In the plan's order; each holds a connection.
    readers: Vec<RefCell<CounterReader>>,
    /// Variants of the current round whose backends have reported all their statistics.
    reported: RefCell<BTreeSet<usize>>,
}

/// A trial whose statistics are read, from its start.
struct StatisticsWatch<'a> {
    statistics: &'a Statistics<'a>,
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
            reported: RefCell::default(),
        })
    }

    /// Makes the backends of all variants on the point's server report their statistics, unless they
    /// have already. Otherwise other backends might report theirs during this trial.
    fn settle(
        &self,
        point: &Point,
        reader: &CounterReader,
        pools: &mut [Box<dyn Clients>],
    ) -> Result<()> {
        let mut reported = self.reported.borrow_mut();
        let sharing = |variant: &usize| {
            let other = self.plan.point(PointId::new(point.condition, *variant));
            other.server == point.server
                && other.driver == DriverKind::Postgres
                && !other.reconnects
        };
        let unsettled: Vec<usize> = (0..pools.len())
            .filter(|variant| sharing(variant) && !reported.contains(variant))
            .collect();
        if !unsettled.is_empty() {
            std::thread::sleep(reader.flush_wait());
        }
        for variant in unsettled {
            pools[variant].broadcast(reader.flush_statement())?;
            reported.insert(variant);
        }
        Ok(())
    }
}

impl TrialObserver for Statistics<'_> {
    /// New connections have unreported statistics from warm-up.
    fn round_begins(&self) {
        self.reported.borrow_mut().clear();
    }

    fn watch<'w>(
        &'w self,
        trial: &WatchedTrial<'_>,
        pools: &mut [Box<dyn Clients>],
    ) -> Result<WatchDecision<'w>> {
        let point = trial.point;
        // Hardware counters exclude everything else. Connections that last for one transaction cannot
        // be asked to report their statistics.
        let is_counted = trial.slot.kind == TrialKind::HardwareCounters;
        if is_counted || point.driver != DriverKind::Postgres || point.reconnects {
            return Ok(WatchDecision::Nothing);
        }
        let mut reader = self.readers[point.server].borrow_mut();
        let is_slow = !reader.flush_wait().is_zero();
        if is_slow && !(trial.slot.is_last_of_variant && trial.slot.block < SLOW_BLOCKS) {
            self.reported.borrow_mut().remove(&point.variant);
            return Ok(WatchDecision::Nothing);
        }
        self.settle(point, &reader, pools)?;
        let backends = pools[point.variant].backend_pids();
        let mut reading = CounterReading::default();
        reader.read_views(&mut reading)?;
        if let Some(sources) = self.servers.host(point.server).kernel_sources(&backends) {
            reader.read_kernel_statistics(&sources, &mut reading);
        }
        Ok(WatchDecision::Watch(Box::new(StatisticsWatch {
            statistics: self,
            server: point.server,
            reading,
            backends,
        })))
    }
}

impl TrialWatch for StatisticsWatch<'_> {
    /// Reads statistics again and records the difference, without pgassay's own statements.
    fn finish(
        self: Box<Self>,
        clients: &mut dyn Clients,
        _: &Measurement,
        trial: &mut Trial,
        _: &mut RawResults,
    ) -> Result<()> {
        let statistics = self.statistics;
        let mut reader = statistics.readers[self.server].borrow_mut();
        let mut now = CounterReading::default();
        let host = statistics.servers.host(self.server);
        if let Some(sources) = host.kernel_sources(&self.backends) {
            reader.read_kernel_statistics(&sources, &mut now);
        }
        std::thread::sleep(reader.flush_wait());
        let asked = clients.broadcast(reader.flush_statement())?;
        reader.read_views(&mut now)?;
        let mut counted = now.since(&self.reading);
        // Each of these statements was a transaction.
        if let Some(commits) = counted.get_mut("pg_stat_database.xact_commit") {
            *commits = (*commits - f64::from(asked)).max(0.0);
        }
        trial.counters = counted.into();
        Ok(())
    }
}
