//! Finds, starts, fills and describes the servers of a plan.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use pgassay_core::plan::{Plan, Point, ServerPlan};
use pgassay_core::run::{RelayFacts, ServerFacts, Warning, WarningKind};
use pgassay_core::study::{Maintenance, Network};
use pgassay_relay::Relay;
use pgassay_server::{
    Connection, Finder, FinderProgress as Fetching, Installation, InstallationSource, Server,
    ServerConfig, ServerError, VersionRequest,
};

use super::data;
use super::external_server::ExternalServer;
use super::host::Host;
use super::idle;
use super::upkeep;
use crate::catalog::FoundStudy;
use crate::cli::ServerArgs;
use crate::interrupt::Interrupt;
use crate::progress::ProgressDisplay;
use crate::study_errors;

/// PostgreSQL's own default of `max_connections`.
const MAX_CONNECTIONS_DEFAULT: u32 = 100;

/// A server with the names of its databases.
type Filled = (Box<dyn Host>, Vec<String>);

/// A plan's servers, running and filled, in the plan's order.
pub struct Servers {
    running: Vec<Box<dyn Host>>,
    /// Relays, each with the index of its server.
    relays: Vec<(usize, Relay)>,
    /// The idle connections that the study requests.
    idle: Vec<Connection>,
    /// The databases of each server.
    databases: Vec<Vec<String>>,
    maintenance: Maintenance,
    pub facts: Vec<ServerFacts>,
    pub warnings: Vec<Warning>,
}

impl Servers {
    /// Starts or connects to each server of the plan and fills it. After an error, no temporary
    /// server is left running and nothing is left on external servers.
    pub fn start(
        plan: &Plan,
        found: &FoundStudy,
        args: &ServerArgs,
        interrupt: &Interrupt,
        progress: &mut ProgressDisplay,
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
        idle::raise_open_files(plan)?;
        for wanted in &plan.servers {
            let (host, names) = match &wanted.dsn {
                Some(dsn) => all.attach(dsn, wanted, found, interrupt, progress)?,
                None => all.start_own(wanted, found, args, interrupt, progress)?,
            };
            all.facts.push(host.facts());
            all.running.push(host);
            all.databases.push(names);
        }
        for point in &plan.points {
            all.start_relay(point)?;
        }
        all.warn_of_builds();
        Ok(all)
    }

    /// Restarts the temporary servers on the same data. Relays keep running, because a server keeps
    /// its port.
    pub fn restart(
        &mut self,
        plan: &Plan,
        interrupt: &Interrupt,
        progress: &mut ProgressDisplay,
    ) -> Result<()> {
        self.idle.clear();
        progress.stage("restarting the servers to vary their memory layout");
        for (host, wanted) in self.running.iter_mut().zip(&plan.servers) {
            interrupt.check()?;
            if wanted.dsn.is_none() {
                host.restart()?;
                idle::open(host.as_ref(), wanted, interrupt, progress, &mut self.idle)?;
            }
        }
        Ok(())
    }

    fn start_own(
        &mut self,
        wanted: &ServerPlan,
        found: &FoundStudy,
        args: &ServerArgs,
        interrupt: &Interrupt,
        progress: &mut ProgressDisplay,
    ) -> Result<Filled> {
        let wanted = &upkeep::with_maintenance_off(wanted, self.maintenance);
        let server = start_one(wanted, found, args, interrupt, progress)?;
        if let InstallationSource::Installed { note } = &server.installation().source {
            self.warnings.push(Warning {
                kind: WarningKind::InstalledVersionUsed,
                message: note.clone(),
            });
        }
        idle::open(&server, wanted, interrupt, progress, &mut self.idle)?;
        let databases = wanted.databases.iter().map(|it| it.name.clone());
        let names = databases.collect();
        Ok((Box::new(server), names))
    }

    /// Creates and fills databases on an external server.
    fn attach(
        &mut self,
        dsn: &str,
        wanted: &ServerPlan,
        found: &FoundStudy,
        interrupt: &Interrupt,
        progress: &mut ProgressDisplay,
    ) -> Result<Filled> {
        interrupt.check()?;
        let mut external = ExternalServer::attach(dsn, found, progress)?;
        external.check_connection_limit(wanted.connections)?;
        for warning in external.warnings(wanted.settings.iter())? {
            progress.note(&warning.message);
            self.warnings.push(warning);
        }
        progress.stage(&format!("setting up the data on {}", external.name()));
        let names = data::set_up(&mut external, wanted, &found.source, interrupt)?;
        Ok((Box::new(external), names))
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

    /// Statistics of the relays, with the time of a one-byte round trip with and without each.
    pub fn relay_facts(&self) -> Vec<RelayFacts> {
        let mut facts: Vec<RelayFacts> = Vec::new();
        for (_, relay) in &self.relays {
            let delay_us = relay.delay().as_secs_f64() * 1e6;
            let known = facts
                .iter()
                .any(|known| known.delay_us.to_bits() == delay_us.to_bits());
            // Fails only if no sockets can be opened, which the study would also report.
            let Ok(round_trips) = pgassay_relay::round_trips(relay.delay()) else {
                continue;
            };
            if !known {
                facts.push(RelayFacts {
                    delay_us,
                    direct_us: round_trips.direct_us,
                    relayed_us: round_trips.relayed_us,
                    late_mean_us: relay.lateness().mean_us,
                    late_max_us: relay.lateness().max_us,
                });
            }
        }
        facts
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

    /// All processes of all servers, except backends that may serve other clients.
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

    /// Stops and removes all servers. Tries all and returns the first error.
    pub fn stop(self) -> Result<()> {
        let results: Vec<_> = self.running.into_iter().map(Host::stop).collect();
        results.into_iter().collect()
    }

    fn warn_of_builds(&mut self) {
        let mut builds = self.iter().map(Host::build);
        let Some(first) = builds.next() else {
            return;
        };
        let differs = builds.find_map(|other| pgassay_server::differ(first, other));
        drop(builds);
        if let Some(message) = differs {
            self.warnings.push(Warning {
                kind: WarningKind::BuildsDiffer,
                message,
            });
        }
    }
}

/// Where a point's data are and how clients connect.
#[derive(Clone, Copy)]
pub struct DataLocation<'a> {
    pub host: &'a dyn Host,
    pub database: &'a str,
    /// The TCP address to connect to; `None` for the server's Unix socket.
    pub address: Option<SocketAddr>,
}

/// Finds, starts and fills one server. After an error, it is stopped and removed.
pub fn start_one(
    wanted: &ServerPlan,
    found: &FoundStudy,
    args: &ServerArgs,
    interrupt: &Interrupt,
    progress: &mut ProgressDisplay,
) -> Result<Server> {
    interrupt.check()?;
    let installation = find(wanted, found, args, progress)?;
    progress.stage(&format!("starting PostgreSQL {}", installation.version));
    let mut server = Server::start(&installation, &config(wanted, args))
        .map_err(|error| at_setting(found, error))?;
    progress.stage(&format!(
        "setting up the data on PostgreSQL {}",
        installation.version
    ));
    data::set_up(&mut server, wanted, &found.source, interrupt)
        .map_err(|error| Server::is_alive(&server).err().map_or(error, Into::into))?;
    Ok(server)
}

/// Adds the location in the study to an error that a setting caused.
pub fn at_setting(found: &FoundStudy, error: ServerError) -> anyhow::Error {
    match &error {
        ServerError::SettingRefused { name, .. } | ServerError::Setting { name, .. } => {
            study_errors::at_setting(found, name, &error.to_string())
        }
        _ => error.into(),
    }
}

/// Finds the installation for a server, and downloads it if necessary.
pub fn find(
    wanted: &ServerPlan,
    found: &FoundStudy,
    args: &ServerArgs,
    progress: &mut ProgressDisplay,
) -> Result<Installation> {
    let version = wanted.version.as_deref().unwrap_or_default();
    installation(version, wanted, args, progress)
        .map_err(|error| study_errors::at_version(found, version, &error.to_string()))
}

fn installation(
    version: &str,
    wanted: &ServerPlan,
    args: &ServerArgs,
    progress: &mut ProgressDisplay,
) -> Result<Installation> {
    let request = VersionRequest::parse(version)?;
    let mut finder = match &args.cache {
        Some(dir) => Finder::new(dir),
        None => Finder::from_environment()?,
    };
    finder.offline = args.offline;
    finder.mirror = args.mirror.clone().or(finder.mirror);
    finder.run_as.clone_from(&args.run_as);
    finder.named_dir = wanted.binaries.as_ref().map(Into::into);
    let installation = finder.find(&request, &mut |step| progress.stage(&describe_step(&step)))?;
    Ok(installation)
}

/// The finder's current step, without details that change often, because each change prints a line
/// if stderr is not a terminal.
fn describe_step(step: &Fetching) -> String {
    match step {
        Fetching::Asking { request, .. } => format!("looking for PostgreSQL {request}"),
        Fetching::Fetching { version, .. } => format!("downloading PostgreSQL {version}"),
        Fetching::Waiting { series, .. } => {
            format!("waiting for another process to download PostgreSQL {series}")
        }
        _ => "looking for PostgreSQL".to_owned(),
    }
}

fn config(wanted: &ServerPlan, args: &ServerArgs) -> ServerConfig {
    let mut settings = wanted.settings.clone();
    // Keep PostgreSQL's default unless the study needs more connections or sets max_connections.
    if wanted.connections > MAX_CONNECTIONS_DEFAULT {
        settings
            .entry("max_connections".to_owned())
            .or_insert_with(|| wanted.connections.to_string());
    }
    ServerConfig {
        settings,
        environment: wanted.environment.clone(),
        run_as: args.run_as.clone(),
        tcp: wanted.tcp,
        tls: wanted.tls,
        data_checksums: wanted.data_checksums,
        parent_dir: args.data_parent.clone(),
        ..ServerConfig::default()
    }
}
