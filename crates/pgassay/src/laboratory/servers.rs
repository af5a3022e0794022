//! The servers of a plan: found, started, filled, and described.

use anyhow::{Context, Result, anyhow};
use pgassay_core::plan::{Plan, ServerPlan};
use pgassay_core::run::{ServerFacts, Warning, WarningKind};
use pgassay_core::study::StudySource;
use pgassay_server::{
    Connection, ConnectionError, Finder, Installation, Progress as Fetching, Server, ServerConfig,
    ServerError, Source, VersionRequest,
};

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
/// As much of each log is kept with a result.
const LOG_LINES_KEPT: usize = 1000;

/// A plan's servers, up and filled, in the plan's order.
pub struct Servers {
    running: Vec<Server>,
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
            facts: Vec::new(),
            warnings: Vec::new(),
        };
        for wanted in &plan.servers {
            let server = start_one(wanted, found, args, interrupt, progress)?;
            all.describe(server.installation());
            all.running.push(server);
        }
        all.warn_of_builds();
        Ok(all)
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
    set_up(&server, &wanted.setup, &found.source, interrupt)?;
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

fn find(wanted: &ServerPlan, args: &ServerArgs, progress: &mut Progress) -> Result<Installation> {
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
        run_as: args.run_as.clone(),
        parent_dir: args.data_parent.clone(),
        ..ServerConfig::default()
    }
}

/// Runs the study's set-up, a statement at a time, so that an error names its line.
fn set_up(server: &Server, setup: &str, source: &StudySource, interrupt: &Interrupt) -> Result<()> {
    let mut connection = server.connect()?;
    run_sql(
        &mut connection,
        setup,
        &["data", "setup"],
        source,
        interrupt,
    )
    .map_err(|error| server.is_alive().err().map_or(error, Into::into))
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
    server: &Server,
    sql: &str,
    source: &StudySource,
    interrupt: &Interrupt,
) -> Result<()> {
    server.empty_log_beyond(LOG_BYTES_MAX)?;
    if sql.trim().is_empty() {
        return Ok(());
    }
    let mut connection = server
        .connect()
        .context("cannot connect to reset the data")?;
    run_sql(&mut connection, sql, &["data", "reset"], source, interrupt)
}
