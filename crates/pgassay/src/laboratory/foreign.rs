//! A server of the user's own, which runs already: used as it is, and left as it was.
//!
//! Invariants: nothing of it is set, restarted or stopped, and no database of the user's is written
//! to. Data go to databases made for the run, named `pgassay_` and eight random digits, which go with
//! the value that stands for the server. The connection that made them bears their name as its
//! application's, so that another run can tell those in use from those that a killed run left.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use pgassay_core::run::{ServerFacts, Warning, WarningKind};
use pgassay_core::study::Network;
use pgassay_profile::LiveServer;
use pgassay_server::{Beside, BuildFacts, Connection, CounterReader, Pid, Role};
use pgassay_wire::conninfo::{Address, Target};

use super::foreign_facts::{self, Facts};
use super::host::{self, Host};
use crate::catalogue::Found;
use crate::connector::connect;
use crate::here;
use crate::places::at_dsn;
use crate::progress::Progress;
use crate::surroundings::Real;

/// Signing in that takes longer is none, unless the user allows more.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A server of the user's own.
pub struct Foreign {
    /// Where it is, in words.
    place: String,
    /// The one server that answered, of all that the connection string may name.
    target: Target,
    facts: Facts,
    /// Its processes on this machine, or why there are none.
    live: Result<LiveServer, String>,
    /// Holds the name under which databases are made.
    holder: Connection,
    /// The databases made so far.
    made: Vec<String>,
}

impl Foreign {
    /// Connects, and learns what there is to know of it.
    ///
    /// # Errors
    /// A server that is not reached or does not let us in, and one that cannot take a study; where
    /// the study names it.
    pub fn attach(dsn: &str, found: &Found, progress: &mut Progress) -> Result<Self> {
        progress.stage("connecting to your own server");
        Self::open(dsn, found, progress).map_err(|error| at_dsn(found, dsn, &format!("{error:#}")))
    }

    fn open(dsn: &str, found: &Found, progress: &mut Progress) -> Result<Self> {
        let request = found.request(dsn)?.fallback_application_name("pgassay");
        let mut target = request.resolve(&Real)?;
        for warning in &target.warnings {
            progress.note(warning);
        }
        let (mut exchange, endpoint) = connect(&target, Some(limit(&target)))?;
        // Of several hosts, all clients must meet the same.
        let mut host = target.hosts.swap_remove(endpoint.host);
        host.address = endpoint.address;
        let place = host.address.to_string();
        let is_local = is_local(&host.address);
        target.hosts = vec![host];
        let live = if is_local {
            here::find(&mut exchange)
                .map(|(live, _)| live)
                .map_err(|error| format!("{error:#}"))
        } else {
            Err("it does not run on this machine".to_owned())
        };
        let mut holder = Connection::from(exchange);
        let facts = Facts::ask(&mut holder, &place)?;
        Ok(Self {
            place,
            live: live.map(|live| LiveServer {
                // Its data directory need not be ours to read.
                major: Some(facts.major()),
                ..live
            }),
            target,
            facts,
            holder,
            made: Vec::new(),
        })
    }

    /// An error if it has no room for so many connections at once.
    pub fn check_room(&self, connections: u32) -> Result<()> {
        if connections > self.facts.connections_max {
            bail!(
                "the server at {} lets {} in at once, and the study may need {connections}: raise its \
                 max_connections, or choose fewer clients with --clients",
                self.place,
                self.facts.connections_max
            );
        }
        Ok(())
    }

    /// What the reader must know: how it differs from the servers that the study sets, what could
    /// not be read, and what an earlier run left on it.
    pub fn warnings<'a>(
        &mut self,
        wanted: impl Iterator<Item = (&'a String, &'a String)>,
    ) -> Result<Vec<Warning>> {
        let mut warnings = Vec::new();
        let mut warn = |kind, message: String| warnings.push(Warning { kind, message });
        let place = &self.place;
        let differ = foreign_facts::differ(&mut self.holder, wanted)?;
        if !differ.is_empty() {
            let message = format!(
                "your own server at {place} is not set as the study sets its servers: {}",
                differ.join(", ")
            );
            warn(WarningKind::SettingsDiffer, message);
        }
        if let Err(why) = &self.live {
            let message = format!(
                "how much CPU time the server at {place} uses is not known, nor where it goes: {why}"
            );
            warn(WarningKind::NotObserved, message);
        }
        let left = foreign_facts::left(&mut self.holder)?;
        if !left.is_empty() {
            let message = format!(
                "a run that was killed left databases on the server at {place}; remove them with: {}",
                left.iter()
                    .map(|name| format!("drop database {name};"))
                    .collect::<Vec<_>>()
                    .join(" ")
            );
            warn(WarningKind::Leftover, message);
        }
        Ok(warnings)
    }

    /// Whether an extension is there to be created.
    pub fn has_extension(&mut self, name: &str) -> Result<bool> {
        let sql = "select name from pg_available_extensions where name = $1";
        Ok(!self.holder.query_with(sql, &[Some(name)])?.rows.is_empty())
    }

    /// Whether it was built with a feature; `None` where it does not tell.
    pub fn has_feature(&mut self, name: &str) -> Result<Option<bool>> {
        if name == "llvm" && self.facts.number >= 110_000 {
            let is_there = self.holder.value("select pg_jit_available()")?;
            return Ok(Some(is_there.as_deref() == Some("t")));
        }
        Ok(self.facts.build.has_feature(name))
    }

    /// What it is and where, for a sentence.
    pub fn name(&self) -> String {
        format!("PostgreSQL {} at {}", self.facts.version, self.place)
    }

    /// Removes the databases made so far. Each is tried; the first failure is told.
    fn drop_databases(&mut self) -> Result<()> {
        let made = std::mem::take(&mut self.made);
        let results: Vec<_> = made.iter().map(|name| self.drop_database(name)).collect();
        results.into_iter().collect()
    }

    fn drop_database(&mut self, name: &str) -> Result<()> {
        let drop_it = |connection: &mut Connection| {
            // A client that was killed in the middle of a query may still have its backend.
            connection.execute(&format!(
                "select pg_terminate_backend(pid) from pg_stat_activity \
                 where datname = '{name}' and usename = current_user"
            ))?;
            connection.execute(&format!("drop database if exists {name}"))
        };
        let mut dropped = drop_it(&mut self.holder);
        if dropped.as_ref().is_err_and(|error| error.sql().is_none()) {
            // The connection that was held all along has broken.
            self.holder = self.connect(&self.target.database)?;
            dropped = drop_it(&mut self.holder);
        }
        dropped.with_context(|| {
            format!(
                "the run's database is left on the server at {}; remove it with: drop database {name}",
                self.place
            )
        })
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Err(error) = self.drop_databases() {
            tracing::warn!("{error:#}");
        }
    }
}

impl Host for Foreign {
    fn make_database(&mut self, planned: &str) -> Result<String> {
        let name = format!("{}_{planned}", self.facts.key);
        // Before it is made, so that no failure leaves it.
        self.made.push(name.clone());
        // The template that nobody changes, and nobody keeps from being copied.
        let create = format!("create database {name} template template0");
        self.holder
            .execute(&create)
            .with_context(|| format!("cannot make a database on the server at {}", self.place))?;
        let words = "made by pgassay for a run, which drops it when it ends";
        self.holder
            .execute(&format!("comment on database {name} is '{words}'"))?;
        Ok(name)
    }

    fn connect(&self, database: &str) -> Result<Connection> {
        let target = Target {
            database: database.to_owned(),
            ..self.target.clone()
        };
        let (exchange, _) = connect(&target, Some(limit(&target)))
            .map_err(|error| anyhow!("{error}"))
            .with_context(|| format!("cannot connect to the run's database {database}"))?;
        Ok(exchange.into())
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
        let origin = format!("a server of your own at {}", self.place);
        ServerFacts {
            settings: self.facts.settings.clone(),
            ..host::facts(self.facts.version.clone(), origin, &self.facts.build)
        }
    }

    fn live(&self) -> Result<Option<LiveServer>> {
        Ok(self.live.as_ref().ok().cloned())
    }

    /// Other clients' backends are none of ours.
    fn own_pids(&self) -> Vec<u32> {
        let Some(pid) = self.postmaster_pid() else {
            return Vec::new();
        };
        let processes = pgassay_server::of_postmaster(pid).into_iter();
        processes
            .filter(|process| process.role != Role::Backend)
            .map(|process| process.pid.cast_unsigned())
            .collect()
    }

    fn counters(&self, databases: &[String]) -> Result<CounterReader> {
        let connection = self.connect(&self.target.database)?;
        Ok(CounterReader::over(
            connection,
            self.facts.number,
            databases,
        ))
    }

    fn beside<'a>(&self, backends: &'a [Pid]) -> Option<Beside<'a>> {
        let pid = self.postmaster_pid()?;
        Some(Beside {
            // Its processes work in the directory of its data.
            data_dir: std::fs::read_link(format!("/proc/{pid}/cwd")).ok(),
            ..Beside::of_postmaster(pid, backends)
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
            Ok(live) if !live.is_there() => bail!("the server at {} is gone", self.place),
            _ => Ok(()),
        }
    }

    fn stop(mut self: Box<Self>) -> Result<()> {
        self.drop_databases()
    }
}

impl Foreign {
    fn postmaster_pid(&self) -> Option<Pid> {
        let live = self.live.as_ref().ok()?;
        Some(live.postmaster_pid.cast_signed())
    }
}

fn limit(target: &Target) -> Duration {
    let asked = target.connect_timeout_s.map(u64::from);
    asked.map_or(CONNECT_LIMIT, Duration::from_secs)
}

/// Whether an address leads nowhere but to this machine.
fn is_local(address: &Address) -> bool {
    match address {
        Address::Unix { .. } => true,
        Address::Tcp { address, .. } => address.is_some_and(|ip| ip.is_loopback()),
    }
}
