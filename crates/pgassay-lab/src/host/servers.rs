//! Starts, fills and describes the servers of a plan.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pgassay_model::plan::{Plan, Point};
use pgassay_model::study::{Maintenance, Network, StudyError};
use pgassay_record::run::{RelayFacts, ServerFacts, Warning};
use pgassay_relay::{Lateness, Relay};

use super::builds::{self, variants_of};
use super::own_server::check_settings;
use super::planned_maintenance::with_maintenance_off;
use super::same_build::{check_same_build, pin_version};
use super::{DataLocation, Host, SqlConnection, data, idle};
use crate::equipment::Equipment;
use crate::external::ExternalUse;
use crate::interrupt::Interrupted;
use crate::run_context::RunContext;

/// How long a server that may have died has to do so: clients notice its death before its exit status
/// is available.
const DEATH_PATIENCE: Duration = Duration::from_secs(1);

/// A plan's servers, running and filled, in the plan's order.
pub struct Servers {
    running: Vec<Box<dyn Host>>,
    /// Relays, each with the index of its server.
    relays: Vec<(usize, Relay)>,
    /// The idle connections that the study requests.
    idle: Vec<Box<dyn SqlConnection>>,
    /// The databases of each server.
    databases: Vec<Vec<String>>,
    maintenance: Maintenance,
    /// Facts about each server, in the plan's order.
    pub facts: Vec<ServerFacts>,
    /// Warnings about the servers.
    pub warnings: Vec<Warning>,
}

impl Servers {
    /// Starts or connects to each server of the plan and fills it. After an error, no temporary
    /// server is left running and nothing is left on external servers. `before` are the servers of
    /// earlier trials of the run, which must be of the same builds; empty if there are none.
    pub fn start(
        plan: &Plan,
        equipment: &mut dyn Equipment,
        context: &RunContext<'_>,
        before: &[ServerFacts],
    ) -> Result<Self> {
        let mut all = Self {
            running: Vec::new(),
            relays: Vec::new(),
            idle: Vec::new(),
            databases: Vec::new(),
            maintenance: plan.schedule.maintenance,
            facts: Vec::new(),
            warnings: Vec::new(),
        };
        if plan.servers.is_empty() {
            bail!("the variants that can run here are all Redis; at least one must be PostgreSQL");
        }
        check_settings(plan, context.study)?;
        idle::raise_open_files(plan)?;
        for (index, wanted) in plan.servers.iter().enumerate() {
            let found = equipment.find(wanted, context);
            found.map_err(|error| of_variants(plan, index, error))?;
        }
        // All before the first is filled: one that does not start, or refuses a setting, is found at once.
        for index in 0..plan.servers.len() {
            all.start_one((plan, index), before.get(index), equipment, context)?;
        }
        for index in 0..plan.servers.len() {
            all.fill(plan, index, context)?;
        }
        for point in &plan.points {
            all.start_relay(point)?;
        }
        for warning in builds::warnings(plan, &all.running) {
            context.note(&warning.message);
            all.warnings.push(warning);
        }
        let same = equipment.same_settings(plan, &all, context)?;
        all.warnings.extend(same);
        Ok(all)
    }

    /// Starts or connects to one server.
    fn start_one(
        &mut self,
        (plan, index): (&Plan, usize),
        before: Option<&ServerFacts>,
        equipment: &mut dyn Equipment,
        context: &RunContext<'_>,
    ) -> Result<()> {
        context.check()?;
        let mut wanted = with_maintenance_off(&plan.servers, index, self.maintenance);
        if let Some(before) = before {
            pin_version(&mut wanted, before);
        }
        let (host, warnings) = equipment
            .start(&wanted, context)
            .map_err(|error| of_variants(plan, index, error))?;
        if let Some(before) = before {
            check_same_build(index, before, &host.facts())?;
        }
        for warning in warnings {
            // Servers have most warnings in common.
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
        equipment
            .check_sessions(plan, (index, host.as_ref()), context)
            .map_err(|error| of_variants(plan, index, error))?;
        self.running.push(host);
        Ok(())
    }

    /// Creates a server's databases and fills them.
    fn fill(&mut self, plan: &Plan, index: usize, context: &RunContext<'_>) -> Result<()> {
        context.check()?;
        let wanted = with_maintenance_off(&plan.servers, index, self.maintenance);
        let host = self.running[index].as_mut();
        let mut is_in_place = false;
        if host.is_external() {
            let planned = ExternalUse::of(plan, index, context.source())?;
            host.prepare(&planned, context)?;
            is_in_place = planned.is_in_place();
        }
        let stage = if is_in_place {
            "using the data that exist on"
        } else {
            "setting up the data on"
        };
        context.stage(&format!("{stage} {}", host.name()));
        let filled = if is_in_place {
            Ok(vec![host.database().to_owned(); wanted.databases.len()])
        } else {
            data::set_up(host, &wanted, context).map_err(|error| of_variants(plan, index, error))
        };
        let filled = filled.and_then(|names| {
            if wanted.dsn.is_none() {
                idle::open(host, &wanted, context, &mut self.idle)?;
            }
            Ok(names)
        });
        let names = filled.map_err(|error| death_or(host, error))?;
        self.facts.push(host.facts());
        self.databases.push(names);
        Ok(())
    }

    /// Restarts the temporary servers on the same data. Relays keep running, because a server keeps
    /// its port.
    pub fn restart(&mut self, plan: &Plan, context: &RunContext<'_>) -> Result<()> {
        self.idle.clear();
        context.stage("restarting the servers to vary their memory layout");
        for (host, wanted) in self.running.iter_mut().zip(&plan.servers) {
            context.check()?;
            if wanted.dsn.is_none() {
                host.restart()?;
                idle::open(host.as_ref(), wanted, context, &mut self.idle)?;
            }
        }
        Ok(())
    }

    /// Replaces an error by the death of a server if one has died.
    pub fn death_or(&self, error: anyhow::Error) -> anyhow::Error {
        self.iter().fold(error, |error, host| death_or(host, error))
    }

    /// Starts the relay that a point needs, unless it already runs.
    fn start_relay(&mut self, point: &Point) -> Result<()> {
        let Some(delay) = point.network.delay() else {
            return Ok(());
        };
        if self.relay(point.server, delay).is_none() {
            let address = self.running[point.server]
                .tcp_address()
                .context("a relay needs a server that listens on TCP")?;
            self.relays
                .push((point.server, Relay::start(address, delay)?));
        }
        Ok(())
    }

    fn relay(&self, server: usize, delay: Duration) -> Option<&Relay> {
        let mut relays = self.relays.iter();
        relays
            .find(|(of, relay)| *of == server && relay.delay() == delay)
            .map(|(_, relay)| relay)
    }

    /// Statistics of the relays with each delay, with the time of a one-byte round trip with and without them.
    pub fn relay_facts(&self) -> Vec<RelayFacts> {
        let mut lateness: BTreeMap<Duration, Lateness> = BTreeMap::new();
        for (_, relay) in &self.relays {
            let known = lateness.entry(relay.delay()).or_default();
            *known = known.merged(relay.lateness());
        }
        // Fails only if no sockets can be opened, which the study would also report.
        let facts = lateness.into_iter().filter_map(|(delay, lateness)| {
            let round_trips = pgassay_relay::round_trips(delay).ok()?;
            Some(RelayFacts {
                delay_us: delay.as_secs_f64() * 1e6,
                direct_us: round_trips.direct_us,
                relayed_us: round_trips.relayed_us,
                late_mean_us: lateness.mean_us,
                late_max_us: lateness.max_us,
            })
        });
        facts.collect()
    }

    /// Where a point's data are and how its clients connect.
    pub fn place(&self, point: &Point) -> DataLocation<'_> {
        let host = self.running[point.server].as_ref();
        let address = match (point.network, point.network.delay()) {
            (Network::Unix, _) => None,
            (_, None) => host.tcp_address(),
            (_, Some(delay)) => self.relay(point.server, delay).map(Relay::address),
        };
        DataLocation {
            host,
            database: &self.databases[point.server][point.database],
            address,
        }
    }

    /// The server with this index in the plan.
    pub fn host(&self, index: usize) -> &dyn Host {
        self.running[index].as_ref()
    }

    /// All servers in the plan's order.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Host> {
        self.running.iter().map(Box::as_ref)
    }

    /// The names of a server's databases.
    pub fn databases(&self, index: usize) -> &[String] {
        &self.databases[index]
    }

    /// See [`Host::own_pids`], of all servers.
    pub fn pids(&self) -> Vec<u32> {
        self.iter().flat_map(Host::own_pids).collect()
    }

    /// The last lines of the logs, as `(file name, text)`, to store with the results.
    pub fn logs(&self) -> Vec<(String, Vec<u8>)> {
        let log = |(index, host): (usize, &dyn Host)| {
            let name = format!("server-{index}.log");
            Some((name, host.log_tail()?.into_bytes()))
        };
        self.iter().enumerate().filter_map(log).collect()
    }

    /// Stops and removes all servers; see [`Host::stop`]. Tries all and returns the first error.
    pub fn stop(self) -> Result<Vec<Warning>> {
        let results: Vec<_> = self.running.into_iter().map(Host::stop).collect();
        let warnings: Result<Vec<Vec<Warning>>> = results.into_iter().collect();
        Ok(warnings?.concat())
    }
}

/// Replaces an error by the death of this server if it has died. If one of its processes crashed, that is the cause.
pub fn death_or(host: &dyn Host, error: anyhow::Error) -> anyhow::Error {
    if error.is::<Interrupted>() {
        return error;
    }
    if let Err(death) = host.is_alive_for(DEATH_PATIENCE) {
        return death;
    }
    let log = host.log_tail().unwrap_or_default();
    match pgassay_server::crash_in(&log) {
        Some(crash) => error.context(format!("{} crashed: {crash}", host.name())),
        None => error,
    }
}

/// Names the variants that use a server that did not start, unless the error has a line of the study.
fn of_variants(plan: &Plan, server: usize, error: anyhow::Error) -> anyhow::Error {
    let is_located = error.is::<StudyError>();
    if is_located || error.is::<Interrupted>() || plan.servers.len() == 1 {
        return error;
    }
    error.context(format!("the server of {}", variants_of(plan, server)))
}
