//! An external server: a running server that the user specifies. It is left as it was.
//!
//! Invariants: pgassay does not change its settings, restart it or stop it, and does not write to the
//! user's databases. Data go to databases created for the run, named `pgassay_` and eight random
//! hexadecimal digits, which are dropped with [`ExternalServer`]. The connection that creates them uses
//! this prefix as its `application_name`, so that another run can distinguish databases in use
//! from leftovers of a killed run.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use pgassay_model::study::Network;
use pgassay_profile::LiveServer;
use pgassay_record::run::{ServerFacts, Warning, WarningKind};
use pgassay_server::{BuildFacts, Connection, CounterReader, Pid, ProcessRole, ServerProcesses};
use pgassay_wire::conninfo::{Address, Target};

use super::external_facts::{self, Facts};
use super::own_server;
use super::{Host, SqlConnection};
use crate::connector::connect;
use crate::local_server;
use crate::run_context::RunContext;
use crate::study_errors::at_dsn;
use crate::system_env::RealSystem;

/// Connection timeout, unless the user specifies `connect_timeout`.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// An external server.
pub struct ExternalServer {
    /// Its address, for messages.
    place: String,
    /// The host that accepted, if the connection string names several.
    target: Target,
    facts: Facts,
    /// Its processes on this machine, or why they are not accessible.
    live: Result<LiveServer, String>,
    /// Its `application_name` marks the run's databases as in use.
    holder: Connection,
    /// The databases created so far.
    made: Vec<String>,
}

impl ExternalServer {
    /// Connects and reads the server's facts.
    ///
    /// # Errors
    /// If the server is not reachable, rejects the connection or cannot run a study. The error names
    /// the location in the study.
    pub fn attach(dsn: &str, context: &RunContext<'_>) -> Result<Self> {
        context.stage("connecting to the external server");
        Self::open(dsn, context).map_err(|error| at_dsn(context.study, dsn, &format!("{error:#}")))
    }

    fn open(dsn: &str, context: &RunContext<'_>) -> Result<Self> {
        let request = context
            .study
            .request(dsn)?
            .fallback_application_name("pgassay");
        let mut target = request.resolve(&RealSystem)?;
        for warning in &target.warnings {
            context.note(warning);
        }
        let (mut exchange, endpoint) = connect(&target, Some(limit(&target)))?;
        // If there are several hosts, all clients must use the same.
        let mut host = target.hosts.swap_remove(endpoint.host);
        host.address = endpoint.address;
        let place = host.address.to_string();
        let is_local = is_local(&host.address);
        target.hosts = vec![host];
        let live = if is_local {
            local_server::find(&mut exchange)
                .map(|(live, _)| live)
                .map_err(|error| format!("{error:#}"))
        } else {
            Err("it runs on another machine".to_owned())
        };
        let mut holder = Connection::from(exchange);
        let facts = Facts::ask(&mut holder, &place)?;
        Ok(Self {
            place,
            live: live.map(|live| LiveServer {
                // The data directory may not be readable.
                major: Some(facts.major()),
                ..live
            }),
            target,
            facts,
            holder,
            made: Vec::new(),
        })
    }

    /// Returns an error if the server does not allow this many connections.
    pub fn check_connection_limit(&self, connections: u32) -> Result<()> {
        if connections > self.facts.connections_max {
            bail!(
                "the server at {} allows {} connections, but the study may need {connections}: \
                 increase its max_connections, or use fewer --clients",
                self.place,
                self.facts.connections_max
            );
        }
        Ok(())
    }

    /// Warnings about settings that differ from the study's, inaccessible processes, and databases
    /// left by an earlier run.
    pub fn warnings<'a>(
        &mut self,
        wanted: impl Iterator<Item = (&'a String, &'a String)>,
    ) -> Result<Vec<Warning>> {
        let mut warnings = Vec::new();
        let mut warn = |kind, message: String| warnings.push(Warning { kind, message });
        let place = &self.place;
        let differ = external_facts::differing_settings(&mut self.holder, wanted)?;
        if !differ.is_empty() {
            let message = format!(
                "settings of the external server at {place} differ from the study's: {}",
                differ.join(", ")
            );
            warn(WarningKind::SettingsDiffer, message);
        }
        if let Err(why) = &self.live {
            let message = format!("CPU time of the server at {place} is not available: {why}");
            warn(WarningKind::NotObserved, message);
        }
        let left = external_facts::leftover_databases(&mut self.holder)?;
        if !left.is_empty() {
            let message = format!(
                "a killed run left databases on the server at {place}; remove them with: {}",
                left.iter()
                    .map(|name| format!("drop database {name};"))
                    .collect::<Vec<_>>()
                    .join(" ")
            );
            warn(WarningKind::Leftover, message);
        }
        Ok(warnings)
    }

    /// Whether an extension is available.
    pub fn has_extension(&mut self, name: &str) -> Result<bool> {
        let sql = "select name from pg_available_extensions where name = $1";
        Ok(!self.holder.query_with(sql, &[Some(name)])?.rows.is_empty())
    }

    /// Whether it was built with a feature; `None` if unknown.
    pub fn has_feature(&mut self, name: &str) -> Result<Option<bool>> {
        if name == "llvm" && self.facts.number >= 110_000 {
            let is_there = self.holder.value("select pg_jit_available()")?;
            return Ok(Some(is_there.as_deref() == Some("t")));
        }
        Ok(self.facts.build.has_feature(name))
    }

    /// Drops the run's databases. Tries all and returns the first error.
    fn drop_databases(&mut self) -> Result<()> {
        let made = std::mem::take(&mut self.made);
        let results: Vec<_> = made.iter().map(|name| self.drop_database(name)).collect();
        results.into_iter().collect()
    }

    fn drop_database(&mut self, name: &str) -> Result<()> {
        let drop_it = |connection: &mut Connection| {
            // A client that was killed during a query may still have a backend.
            connection.execute(&format!(
                "select pg_terminate_backend(pid) from pg_stat_activity \
                 where datname = '{name}' and usename = current_user"
            ))?;
            connection.execute(&format!("drop database if exists {name}"))
        };
        let mut dropped = drop_it(&mut self.holder);
        if dropped.as_ref().is_err_and(|error| error.sql().is_none()) {
            // The long-lived connection is broken.
            self.holder = self.open_connection(&self.target.database)?;
            dropped = drop_it(&mut self.holder);
        }
        dropped.with_context(|| {
            format!(
                "cannot remove the run's database on the server at {}; remove it with: drop database {name}",
                self.place
            )
        })
    }
}

impl Drop for ExternalServer {
    fn drop(&mut self) {
        if let Err(error) = self.drop_databases() {
            tracing::warn!("{error:#}");
        }
    }
}

impl Host for ExternalServer {
    fn name(&self) -> String {
        format!("PostgreSQL {} at {}", self.facts.version, self.place)
    }

    fn make_database(&mut self, planned: &str) -> Result<String> {
        let name = format!("{}_{planned}", self.facts.key);
        // Registered before it is created, so that it is dropped after any failure.
        self.made.push(name.clone());
        // template0 is never modified, and no session can block copying it.
        let create = format!("create database {name} template template0");
        self.holder
            .execute(&create)
            .with_context(|| format!("cannot create a database on the server at {}", self.place))?;
        let words = "temporary database of a pgassay run, dropped when the run ends";
        self.holder
            .execute(&format!("comment on database {name} is '{words}'"))?;
        Ok(name)
    }

    fn connect(&self, database: &str) -> Result<Box<dyn SqlConnection>> {
        Ok(Box::new(self.open_connection(database)?))
    }

    fn target(&self, database: &str, _: Network, _: Option<SocketAddr>) -> Result<Target> {
        Ok(Target {
            database: database.to_owned(),
            ..self.target.clone()
        })
    }

    fn tcp_address(&self) -> Option<SocketAddr> {
        None
    }

    fn database(&self) -> &str {
        &self.target.database
    }

    fn build(&self) -> &BuildFacts {
        &self.facts.build
    }

    fn facts(&self) -> ServerFacts {
        let origin = format!("external server at {}", self.place);
        ServerFacts {
            settings: self.facts.settings.clone(),
            ..own_server::facts(self.facts.version.clone(), origin, &self.facts.build)
        }
    }

    fn live(&self) -> Result<Option<LiveServer>> {
        Ok(self.live.as_ref().ok().cloned())
    }

    /// All server processes except backends, which may serve other clients.
    fn own_pids(&self) -> Vec<u32> {
        let Some(pid) = self.postmaster_pid() else {
            return Vec::new();
        };
        let processes = pgassay_server::of_postmaster(pid).into_iter();
        processes
            .filter(|process| process.role != ProcessRole::Backend)
            .map(|process| process.pid.cast_unsigned())
            .collect()
    }

    fn counters(&self, databases: &[String]) -> Result<CounterReader> {
        let connection = self.open_connection(&self.target.database)?;
        Ok(CounterReader::over(
            connection,
            self.facts.number,
            databases,
        ))
    }

    fn kernel_sources<'a>(&self, backends: &'a [Pid]) -> Option<ServerProcesses<'a>> {
        let pid = self.postmaster_pid()?;
        Some(ServerProcesses {
            // The working directory of server processes is the data directory.
            data_dir: std::fs::read_link(format!("/proc/{pid}/cwd")).ok(),
            ..ServerProcesses::of_postmaster(pid, backends)
        })
    }

    fn trim_log(&self) -> Result<()> {
        Ok(())
    }

    fn log_tail(&self) -> Option<String> {
        None
    }

    fn restart(&mut self) -> Result<()> {
        Ok(())
    }

    fn is_alive(&self) -> Result<()> {
        match &self.live {
            Ok(live) if !live.is_there() => bail!("the server at {} has stopped", self.place),
            _ => Ok(()),
        }
    }

    fn stop(mut self: Box<Self>) -> Result<()> {
        self.drop_databases()
    }
}

impl ExternalServer {
    fn open_connection(&self, database: &str) -> Result<Connection> {
        let target = Target {
            database: database.to_owned(),
            ..self.target.clone()
        };
        let (exchange, _) = connect(&target, Some(limit(&target)))
            .map_err(|error| anyhow!("{error}"))
            .with_context(|| format!("cannot connect to the run's database {database}"))?;
        Ok(exchange.into())
    }

    fn postmaster_pid(&self) -> Option<Pid> {
        let live = self.live.as_ref().ok()?;
        Some(live.postmaster_pid.cast_signed())
    }
}

fn limit(target: &Target) -> Duration {
    let asked = target.connect_timeout_s.map(u64::from);
    asked.map_or(CONNECT_LIMIT, Duration::from_secs)
}

/// Whether an address always refers to this machine.
fn is_local(address: &Address) -> bool {
    match address {
        Address::Unix { .. } => true,
        Address::Tcp { address, .. } => address.is_some_and(|ip| ip.is_loopback()),
    }
}
