//! A server that the run starts in a temporary directory and removes at its end.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Result, bail};
use pgassay_model::plan::{Plan, ServerPlan};
use pgassay_model::study::Network;
use pgassay_profile::LiveServer;
use pgassay_record::run::{ServerFacts, Warning};
use pgassay_server::{
    BuildFacts, CounterReader, Finder, FinderProgress as Fetching, Installation,
    InstallationSource, Pid, Server, ServerConfig, ServerError, ServerProcesses, VersionRequest,
};
use pgassay_wire::conninfo::{EmptyEnvironment, Request, Target};

use super::data::set_up;
use super::{Host, SqlConnection};
use crate::options::ServerOptions;
use crate::run_context::RunContext;
use crate::study::LoadedStudy;
use crate::study_errors::{self, SettingInUse};

const MAX_CONNECTIONS: &str = "max_connections";
/// PostgreSQL's own default of `max_connections`.
const MAX_CONNECTIONS_DEFAULT: u32 = 100;
/// A larger log is truncated before the next trial, so that a study of logging does not fill the disk
/// and all trials start alike.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// Lines of each log that are stored with a result.
const LOG_LINES_KEPT: usize = 1000;

/// Finds and starts one server, without data.
pub fn start(wanted: &ServerPlan, context: &RunContext<'_>) -> Result<Server> {
    context.check()?;
    let installation = find(wanted, context)?;
    context.stage(&format!("starting PostgreSQL {}", installation.version));
    Server::start(&installation, &config(wanted, context.options))
        .map_err(|error| at_setting(context.study, &wanted.settings, error))
}

/// Checks the settings of all servers that the run will start, before the first one is started.
pub fn check_settings(plan: &Plan, found: &LoadedStudy) -> Result<()> {
    let mut own = plan.servers.iter().filter(|server| server.dsn.is_none());
    own.try_for_each(|server| {
        pgassay_server::check_settings(&server.settings)
            .map_err(|error| at_setting(found, &server.settings, error))?;
        check_connections(server)
    })
}

/// Finds, starts and fills one server. After an error, it is stopped and removed.
pub fn start_with_data(wanted: &ServerPlan, context: &RunContext<'_>) -> Result<Server> {
    let mut server = start(wanted, context)?;
    context.stage(&format!("setting up the data on {}", server.name()));
    set_up(&mut server, wanted, context)
        .map_err(|error| Server::is_alive(&server).err().map_or(error, Into::into))?;
    Ok(server)
}

/// Adds the location in the study to an error that one of these settings caused.
pub fn at_setting(
    found: &LoadedStudy,
    settings: &BTreeMap<String, String>,
    error: ServerError,
) -> anyhow::Error {
    let named = match &error {
        ServerError::SettingRefused { name, .. } | ServerError::Setting { name, .. } => {
            settings.get_key_value(name)
        }
        ServerError::NotStarted { log, .. } => settings.iter().find(|it| is_quoted(log, *it)),
        _ => None,
    };
    let Some((name, value)) = named else {
        return error.into();
    };
    let setting = SettingInUse {
        table: "settings",
        name,
        value,
    };
    study_errors::at_setting(found, setting, &error.to_string())
}

/// Whether a server's last messages are about a setting: they quote its name, or a value such as a library's.
fn is_quoted(log: &str, (name, value): (&String, &String)) -> bool {
    let quotes = |text: &str| log.contains(&format!("\"{text}\""));
    quotes(name) || value.len() > 2 && quotes(value)
}

/// Finds the installation for a server, and downloads it if necessary.
pub fn find(wanted: &ServerPlan, context: &RunContext<'_>) -> Result<Installation> {
    let version = wanted.version.as_deref().unwrap_or_default();
    installation(version, wanted, context)
        .map_err(|error| study_errors::at_version(context.study, version, &error.to_string()))
}

fn installation(
    version: &str,
    wanted: &ServerPlan,
    context: &RunContext<'_>,
) -> Result<Installation> {
    let options = context.options;
    let request = VersionRequest::parse(version)?;
    let mut finder = match &options.cache {
        Some(dir) => Finder::new(dir),
        None => Finder::from_environment()?,
    };
    finder.offline = options.offline;
    finder.mirror = options.mirror.clone().or(finder.mirror);
    finder.run_as.clone_from(&options.run_as);
    finder.named_dir = wanted.binaries.as_ref().map(Into::into);
    let installation = finder.find(&request, &mut |step| context.stage(&describe_step(&step)))?;
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

fn config(wanted: &ServerPlan, options: &ServerOptions) -> ServerConfig {
    let mut settings = wanted.settings.clone();
    // Keep PostgreSQL's default unless the study needs more connections or sets max_connections.
    if wanted.connections > MAX_CONNECTIONS_DEFAULT && max_connections(&settings).is_none() {
        settings.insert(MAX_CONNECTIONS.to_owned(), wanted.connections.to_string());
    }
    ServerConfig {
        settings,
        environment: wanted.environment.clone(),
        run_as: options.run_as.clone(),
        tcp: wanted.tcp,
        tls: wanted.tls,
        data_checksums: wanted.data_checksums,
        parent_dir: options.data_parent.clone(),
        ..ServerConfig::default()
    }
}

/// The value of this setting, whose name may be in any letters.
fn max_connections(settings: &BTreeMap<String, String>) -> Option<&String> {
    let mut settings = settings.iter();
    let found = settings.find(|(name, _)| name.eq_ignore_ascii_case(MAX_CONNECTIONS))?;
    Some(found.1)
}

/// Returns an error if a server would not accept all connections.
fn check_connections(wanted: &ServerPlan) -> Result<()> {
    let allowed = max_connections(&wanted.settings);
    let allowed = allowed.and_then(|it| it.trim().parse::<u32>().ok());
    let needed = wanted.connections;
    match allowed.filter(|it| *it < needed) {
        Some(allowed) => bail!(
            "max_connections = {allowed}, but the run may need {needed} connections: increase it, or use fewer \
             --clients"
        ),
        None => Ok(()),
    }
}

impl Host for Server {
    fn name(&self) -> String {
        format!("PostgreSQL {}", self.installation().version)
    }

    fn make_database(&mut self, planned: &str) -> Result<String> {
        if planned != Server::database(self) {
            Server::connect(self)?.execute(&format!("create database {planned}"))?;
        }
        Ok(planned.to_owned())
    }

    fn connect(&self, database: &str) -> Result<Box<dyn SqlConnection>> {
        let connection = self.connect_as(self.superuser(), database, None)?;
        Ok(Box::new(connection))
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
        facts_of(self.installation())
    }

    fn live(&self) -> Result<Option<LiveServer>> {
        let postmaster_pid = self.postmaster_pid().cast_unsigned();
        Ok(Some(LiveServer::of_postmaster(postmaster_pid)))
    }

    fn own_pids(&self) -> Vec<u32> {
        vec![self.postmaster_pid().cast_unsigned()]
    }

    fn counters(&self, databases: &[String]) -> Result<CounterReader> {
        Ok(CounterReader::open(self, databases)?)
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

    fn stop(self: Box<Self>) -> Result<Vec<Warning>> {
        Server::stop(*self)?;
        Ok(Vec::new())
    }
}

/// Facts about the servers of an installation.
pub fn facts_of(installation: &Installation) -> ServerFacts {
    facts(
        installation.version.to_string(),
        origin(installation),
        &installation.build,
    )
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
        executable: build.executable.clone(),
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
