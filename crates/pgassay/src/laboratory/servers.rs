//! The servers of a plan: found, started, filled, and described.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use pgassay_core::plan::{Plan, PlannedSql, Point, ServerPlan};
use pgassay_core::run::{RelayFacts, ServerFacts, Warning, WarningKind};
use pgassay_core::study::{Network, StudySource};
use pgassay_relay::Relay;
use pgassay_server::{
    Connection, ConnectionError, Finder, Installation, Progress as Fetching, Server, ServerConfig,
    ServerError, Source, VersionRequest,
};

use super::idle;
use crate::catalogue::Found;
use crate::cli::ServerArgs;
use crate::interrupt::Interrupt;
use crate::places::{self, at_line};
use crate::progress::Progress;

/// PostgreSQL's own default of `max_connections`.
const MAX_CONNECTIONS_DEFAULT: u32 = 100;
/// A log that is larger begins anew before the next trial: a study of logging must not fill the
/// disk, and every trial shall find the same.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// How long the process that reset the data may take to end.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);
/// As much of each log is kept with a result.
const LOG_LINES_KEPT: usize = 1000;

/// A plan's servers, up and filled, in the plan's order.
pub struct Servers {
    running: Vec<Server>,
    /// Relays to them, each with the index of its server.
    relays: Vec<(usize, Relay)>,
    /// Connections that do nothing, as the study asks for.
    idle: Vec<Connection>,
    /// Names of each one's databases.
    databases: Vec<Vec<String>>,
    /// What each is.
    pub facts: Vec<ServerFacts>,
    /// What the reader must know about them.
    pub warnings: Vec<Warning>,
}

impl Servers {
    /// Starts and fills every server of the plan. After an error none is left.
    pub fn start(
        plan: &Plan,
        found: &Found,
        args: &ServerArgs,
        interrupt: &Interrupt,
        progress: &mut Progress,
    ) -> Result<Self> {
        let mut all = Self {
            running: Vec::new(),
            relays: Vec::new(),
            idle: Vec::new(),
            databases: Vec::new(),
            facts: Vec::new(),
            warnings: Vec::new(),
        };
        idle::make_room(plan)?;
        for wanted in &plan.servers {
            let server = start_one(wanted, found, args, interrupt, progress)?;
            all.describe(server.installation());
            idle::open(&server, wanted, interrupt, progress, &mut all.idle)?;
            all.running.push(server);
            let names = wanted
                .databases
                .iter()
                .map(|database| database.name.clone());
            all.databases.push(names.collect());
        }
        for point in &plan.points {
            all.start_relay(point)?;
        }
        all.warn_of_builds();
        Ok(all)
    }

    /// Starts the relay that a point needs, unless another point has needed it already.
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

    /// What the relays did, with what a round trip of one byte takes with and without each.
    pub fn relay_facts(&self) -> Vec<RelayFacts> {
        let mut facts: Vec<RelayFacts> = Vec::new();
        for (_, relay) in &self.relays {
            let delay_us = relay.delay().as_secs_f64() * 1e6;
            let known = facts
                .iter()
                .any(|known| known.delay_us.to_bits() == delay_us.to_bits());
            // Without sockets for a measurement there are none for a study.
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

    /// How a point's clients reach its data.
    pub fn place(&self, point: &Point) -> Place<'_> {
        let server = &self.running[point.server];
        let address = match (point.network, point.network.delay()) {
            (Network::Unix, _) => None,
            (_, None) => server.tcp_address(),
            (_, Some(delay)) => self.relay(point.server, delay).map(Relay::address),
        };
        Place {
            server,
            database: &self.databases[point.server][point.database],
            address,
        }
    }

    /// One of them, by its index in the plan.
    pub fn server(&self, index: usize) -> &Server {
        &self.running[index]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Server> {
        self.running.iter()
    }

    /// Every process of every server.
    pub fn pids(&self) -> Vec<u32> {
        let of_server = |server: &Server| {
            let children = server.processes().into_iter().map(|process| process.pid);
            children
                .chain([server.postmaster_pid()])
                .map(i32::cast_unsigned)
                .collect::<Vec<_>>()
        };
        self.running.iter().flat_map(of_server).collect()
    }

    /// The logs' ends, as `(file name, text)`, to be kept with the results.
    pub fn logs(&self) -> Vec<(String, Vec<u8>)> {
        let log = |(index, server): (usize, &Server)| {
            (
                format!("server-{index}.log"),
                server.log_tail(LOG_LINES_KEPT).into_bytes(),
            )
        };
        self.running.iter().enumerate().map(log).collect()
    }

    /// Stops and removes all of them, and reports the first that could not be.
    pub fn stop(self) -> Result<()> {
        let results: Vec<_> = self.running.into_iter().map(Server::stop).collect();
        results.into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok(())
    }

    fn describe(&mut self, installation: &Installation) {
        let build = &installation.build;
        let known =
            |text: &Option<String>| text.clone().unwrap_or_else(|| "not recorded".to_owned());
        self.facts.push(ServerFacts {
            version: installation.version.to_string(),
            origin: origin(installation),
            configure: known(&build.configure),
            cflags: known(&build.cflags),
            compiler: known(&build.compiler),
        });
        if let Source::Installed { note } = &installation.source {
            self.warnings.push(Warning {
                kind: WarningKind::Installed,
                message: note.clone(),
            });
        }
    }

    fn warn_of_builds(&mut self) {
        let Some((first, others)) = self.running.split_first() else {
            return;
        };
        let differs = |other: &Server| {
            pgassay_server::differ(&first.installation().build, &other.installation().build)
        };
        if let Some(message) = others.iter().find_map(differs) {
            self.warnings.push(Warning {
                kind: WarningKind::BuildsDiffer,
                message,
            });
        }
    }
}

/// Where a point's data are, and the way there.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The server.
    pub server: &'a Server,
    /// The database on it.
    pub database: &'a str,
    /// Where to connect by TCP; `None` for the server's socket.
    pub address: Option<SocketAddr>,
}

/// Finds, starts and fills one server. After an error it is gone.
pub fn start_one(
    wanted: &ServerPlan,
    found: &Found,
    args: &ServerArgs,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Server> {
    interrupt.check()?;
    let installation = find(wanted, args, progress)
        .map_err(|error| places::at_version(found, &wanted.version, &error.to_string()))?;
    progress.stage(&format!("starting PostgreSQL {}", installation.version));
    let server = Server::start(&installation, &config(wanted, args))
        .map_err(|error| at_setting(found, error))?;
    progress.stage(&format!(
        "setting up the data on PostgreSQL {}",
        installation.version
    ));
    set_up(&server, wanted, &found.source, interrupt)
        .map_err(|error| server.is_alive().err().map_or(error, Into::into))?;
    Ok(server)
}

/// An error of a server, at its setting in the study where that is the cause.
pub fn at_setting(found: &Found, error: ServerError) -> anyhow::Error {
    match &error {
        ServerError::SettingRefused { name, .. } | ServerError::Setting { name, .. } => {
            places::at_setting(found, name, &error.to_string())
        }
        _ => error.into(),
    }
}

/// The programs of one server, fetched if need be.
pub fn find(
    wanted: &ServerPlan,
    args: &ServerArgs,
    progress: &mut Progress,
) -> Result<Installation> {
    let request = VersionRequest::parse(&wanted.version)?;
    let mut finder = match &args.cache {
        Some(dir) => Finder::new(dir),
        None => Finder::from_environment()?,
    };
    finder.offline = args.offline;
    finder.mirror = args.mirror.clone().or(finder.mirror);
    finder.named_dir = wanted.binaries.as_ref().map(Into::into);
    let installation = finder.find(&request, &mut |step| progress.stage(&said(&step)))?;
    Ok(installation)
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

/// What the finder is at, in whole seconds, so that lines without a terminal do not repeat.
fn said(step: &Fetching) -> String {
    match step {
        Fetching::Asking { request, .. } => format!("looking for PostgreSQL {request}"),
        Fetching::Fetching { version, .. } => format!("fetching PostgreSQL {version}"),
        Fetching::Waiting { series, .. } => {
            format!("waiting for another process that fetches PostgreSQL {series}")
        }
        _ => "looking for PostgreSQL".to_owned(),
    }
}

fn config(wanted: &ServerPlan, args: &ServerArgs) -> ServerConfig {
    let mut settings = wanted.settings.clone();
    // PostgreSQL's own default stands, unless the study needs more or says what it wants.
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

/// Makes and fills the databases, a statement at a time, so that an error names its line.
fn set_up(
    server: &Server,
    wanted: &ServerPlan,
    source: &StudySource,
    interrupt: &Interrupt,
) -> Result<()> {
    for database in &wanted.databases {
        if database.name != server.database() {
            let sql = format!("create database {}", database.name);
            server.connect()?.execute(&sql)?;
        }
        let mut connection = server.connect_as(server.superuser(), &database.name, None)?;
        run_all(&mut connection, &database.setup, "setup", source, interrupt)?;
    }
    Ok(())
}

/// Runs pieces of SQL that stand under `key` in the study.
fn run_all(
    connection: &mut Connection,
    pieces: &[PlannedSql],
    key: &str,
    source: &StudySource,
    interrupt: &Interrupt,
) -> Result<()> {
    for piece in pieces {
        let path = piece.path(key);
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        run_sql(connection, &piece.text, &path, source, interrupt)?;
    }
    Ok(())
}

/// Runs SQL that stands at `path` in the study.
pub fn run_sql(
    connection: &mut Connection,
    sql: &str,
    path: &[&str],
    source: &StudySource,
    interrupt: &Interrupt,
) -> Result<()> {
    let statements = pgassay_script::sql::statements(sql)
        .map_err(|error| at_line(source, path, error.line() as usize, &error.to_string()))?;
    for statement in statements {
        interrupt.check()?;
        connection
            .execute(&statement.text)
            .map_err(|error| failed(&error, &statement, path, source))?;
    }
    Ok(())
}

fn failed(
    error: &ConnectionError,
    statement: &pgassay_script::sql::Statement,
    path: &[&str],
    source: &StudySource,
) -> anyhow::Error {
    let Some(sql) = error.sql() else {
        return anyhow!("{error}");
    };
    // The server counts characters of the statement from 1.
    let before: String = statement
        .text
        .chars()
        .take(sql.position.map_or(0, |at| at as usize - 1))
        .collect();
    let line = statement.line as usize + before.matches('\n').count();
    at_line(source, path, line, &sql.to_string()).context("the study's SQL failed")
}

/// Makes the server what it was before the last trial: runs the reset of a load that writes, and
/// empties a large log.
pub fn reset(
    place: &Place<'_>,
    resets: &[PlannedSql],
    source: &StudySource,
    interrupt: &Interrupt,
) -> Result<()> {
    let server = place.server;
    server.empty_log_beyond(LOG_BYTES_MAX)?;
    if resets.is_empty() {
        return Ok(());
    }
    let mut connection = server
        .connect_as(server.superuser(), place.database, None)
        .context("cannot connect to reset the data")?;
    run_all(&mut connection, resets, "reset", source, interrupt)?;
    // Its process hands its counters over when it ends, which must not happen during the trial.
    let pid = connection.backend_pid();
    drop(connection);
    let until = Instant::now() + EXIT_PATIENCE;
    while pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
        && Instant::now() < until
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
