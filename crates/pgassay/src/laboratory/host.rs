//! The interface of a server in a run, implemented by temporary and external servers.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::Result;
use pgassay_core::run::ServerFacts;
use pgassay_core::study::Network;
use pgassay_profile::LiveServer;
use pgassay_server::{
    BuildFacts, Connection, CounterReader, Installation, InstallationSource, Pid, Server,
    ServerProcesses,
};
use pgassay_wire::conninfo::{EmptyEnvironment, Request, Target};

/// A larger log is truncated before the next trial, so that a study of logging does not fill the disk
/// and all trials start alike.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// Lines of each log that are stored with a result.
const LOG_LINES_KEPT: usize = 1000;

/// What a run requires of a server.
pub trait Host {
    /// Creates the database `planned` and returns its actual name.
    fn make_database(&mut self, planned: &str) -> Result<String>;

    /// Connects to one of its databases, for setup and inspection.
    fn connect(&self, database: &str) -> Result<Connection>;

    /// The connection target of the load's clients; over TCP if `address` is given.
    fn target(
        &self,
        database: &str,
        network: Network,
        address: Option<SocketAddr>,
    ) -> Result<Target>;

    /// Its TCP address, if it listens on TCP.
    fn tcp_address(&self) -> Option<SocketAddr>;

    /// The database for queries outside the load.
    fn database(&self) -> &str;

    /// How it was built, as far as known.
    fn build(&self) -> &BuildFacts;

    /// The facts to store with the result.
    fn facts(&self) -> ServerFacts;

    /// Its processes on this machine; `None` if they run elsewhere or are not accessible.
    ///
    /// # Errors
    /// If the processes of a temporary server cannot be found.
    fn live(&self) -> Result<Option<LiveServer>>;

    /// The processes that serve only this run, without the load's backends.
    fn own_pids(&self) -> Vec<u32>;

    /// Opens a reader of its statistics for these databases.
    fn counters(&self, databases: &[String]) -> Result<CounterReader>;

    /// Its processes and files for kernel statistics; `None` as for [`Host::live`].
    fn kernel_sources<'a>(&self, backends: &'a [Pid]) -> Option<ServerProcesses<'a>>;

    /// Truncates a large log; no effect on an external server.
    fn trim_log(&self) -> Result<()>;

    /// The last lines of its log; `None` for an external server.
    fn log_tail(&self) -> Option<String>;

    /// Returns an error if it has stopped.
    fn is_alive(&self) -> Result<()>;

    /// Restarts it on the same data; no effect on an external server.
    fn restart(&mut self) -> Result<()>;

    /// Stops and removes a temporary server; drops the run's databases on an external one.
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
            // Not `prefer`: a server with TLS for one variant must not use it for another.
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
        Ok(request.resolve(&EmptyEnvironment)?)
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

    fn kernel_sources<'a>(&self, backends: &'a [Pid]) -> Option<ServerProcesses<'a>> {
        Some(ServerProcesses::of_server(self, backends))
    }

    fn trim_log(&self) -> Result<()> {
        Ok(self.truncate_log_above(LOG_BYTES_MAX)?)
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

/// Facts about a server, with `not recorded` for unknown build facts.
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
        InstallationSource::Named => format!("specified by the user: {directory}"),
        InstallationSource::Cache => "cache".to_owned(),
        InstallationSource::Fetched => "downloaded for this run".to_owned(),
        InstallationSource::Installed { .. } => format!("installed in {directory}"),
    }
}
