//! A server as a run uses it, whoever started it: ours, made for the run, or the user's own.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::Result;
use pgassay_core::run::ServerFacts;
use pgassay_core::study::Network;
use pgassay_profile::LiveServer;
use pgassay_server::{
    Beside, BuildFacts, Connection, CounterReader, Installation, Pid, Server, Source,
};
use pgassay_wire::conninfo::{NoSurroundings, Request, Target};

/// A log that is larger begins anew before the next trial: a study of logging must not fill the
/// disk, and every trial shall find the same.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// As much of each log is kept with a result.
const LOG_LINES_KEPT: usize = 1000;

/// What a run needs of a server.
pub trait Host {
    /// Makes the database that a plan names so, and gives its real name.
    fn make_database(&mut self, planned: &str) -> Result<String>;

    /// Connects to one of its databases, for set-up and inspection.
    fn connect(&self, database: &str) -> Result<Connection>;

    /// Where the load's clients connect; over TCP to `address`, where there is one.
    fn target(
        &self,
        database: &str,
        network: Network,
        address: Option<SocketAddr>,
    ) -> Result<Target>;

    /// Where it listens on TCP, if it was made to.
    fn tcp_address(&self) -> Option<SocketAddr>;

    /// The database for what is asked beside the load.
    fn database(&self) -> &str;

    /// How it was built, as far as that is known.
    fn build(&self) -> &BuildFacts;

    /// What the result says of it.
    fn facts(&self) -> ServerFacts;

    /// Its processes on this machine; `None` where they are elsewhere or may not be looked at.
    ///
    /// # Errors
    /// A server of ours that cannot be found among the processes.
    fn live(&self) -> Result<Option<LiveServer>>;

    /// The processes that work for this run and for nobody else, but for the load's backends.
    fn own_pids(&self) -> Vec<u32>;

    /// Reads its counters of these databases.
    fn counters(&self, databases: &[String]) -> Result<CounterReader>;

    /// What is counted beside its views; `None` as for [`Host::live`].
    fn beside<'a>(&self, backends: &'a [Pid]) -> Option<Beside<'a>>;

    /// Keeps its log from growing without end, where that log is ours.
    fn trim_log(&self) -> Result<()>;

    /// The end of its log, where that log is ours.
    fn log_tail(&self) -> Option<String>;

    /// An error if it is gone.
    fn is_alive(&self) -> Result<()>;

    /// Stops it and starts it again on the same data, where it is ours; else leaves it as it is.
    fn restart(&mut self) -> Result<()>;

    /// Removes all that the run has made of it.
    fn stop(self: Box<Self>) -> Result<()>;
}

impl Host for Server {
    fn make_database(&mut self, planned: &str) -> Result<String> {
        if planned != Server::database(self) {
            Server::connect(self)?.execute(&format!("create database {planned}"))?;
        }
        Ok(planned.to_owned())
    }

    fn connect(&self, database: &str) -> Result<Connection> {
        Ok(self.connect_as(self.superuser(), database, None)?)
    }

    fn target(
        &self,
        database: &str,
        network: Network,
        address: Option<SocketAddr>,
    ) -> Result<Target> {
        let mut request = Request::new()
            .conninfo(&self.conninfo())?
            .option("dbname", database)?
            .fallback_application_name("pgassay");
        if let Some(address) = address {
            // Not `prefer`: a server that speaks TLS for one variant must not do so for another.
            let sslmode = match network {
                Network::Tls => "require",
                _ => "disable",
            };
            request = request
                .option("host", &address.ip().to_string())?
                .option("port", &address.port().to_string())?
                .option("sslmode", sslmode)?
                .option("password", self.password().reveal())?;
        }
        Ok(request.resolve(&NoSurroundings)?)
    }

    fn tcp_address(&self) -> Option<SocketAddr> {
        Server::tcp_address(self)
    }

    fn database(&self) -> &str {
        Server::database(self)
    }

    fn build(&self) -> &BuildFacts {
        &self.installation().build
    }

    fn facts(&self) -> ServerFacts {
        let installation = self.installation();
        facts(
            installation.version.to_string(),
            origin(installation),
            &installation.build,
        )
    }

    fn live(&self) -> Result<Option<LiveServer>> {
        let postmaster_pid = self.postmaster_pid().cast_unsigned();
        Ok(Some(LiveServer::of_postmaster(postmaster_pid)))
    }

    fn own_pids(&self) -> Vec<u32> {
        let children = self.processes().into_iter().map(|process| process.pid);
        let all = children.chain([self.postmaster_pid()]);
        all.map(i32::cast_unsigned).collect()
    }

    fn counters(&self, _databases: &[String]) -> Result<CounterReader> {
        Ok(CounterReader::open(self)?)
    }

    fn beside<'a>(&self, backends: &'a [Pid]) -> Option<Beside<'a>> {
        Some(Beside::of_server(self, backends))
    }

    fn trim_log(&self) -> Result<()> {
        Ok(self.empty_log_beyond(LOG_BYTES_MAX)?)
    }

    fn log_tail(&self) -> Option<String> {
        Some(Server::log_tail(self, LOG_LINES_KEPT))
    }

    fn is_alive(&self) -> Result<()> {
        Ok(Server::is_alive(self)?)
    }

    fn restart(&mut self) -> Result<()> {
        Ok(Server::restart(self)?)
    }

    fn stop(self: Box<Self>) -> Result<()> {
        Ok(Server::stop(*self)?)
    }
}

/// What is told of a build, `not recorded` where nothing is.
pub fn facts(version: String, origin: String, build: &BuildFacts) -> ServerFacts {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "not recorded".to_owned());
    ServerFacts {
        version,
        origin,
        configure: known(&build.configure),
        cflags: known(&build.cflags),
        compiler: known(&build.compiler),
        settings: BTreeMap::new(),
    }
}

fn origin(installation: &Installation) -> String {
    let directory = installation.bin_dir.display();
    match &installation.source {
        Source::Named => format!("named by the user: {directory}"),
        Source::Cache => "the cache".to_owned(),
        Source::Fetched => "fetched for this run".to_owned(),
        Source::Installed { .. } => format!("installed in {directory}"),
    }
}
