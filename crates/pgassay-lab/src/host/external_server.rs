//! An external server: a running server that the user specifies. It is left as it was.
//!
//! Invariants: pgassay itself does not change its settings, restart it or stop it, and does not write
//! to the user's databases: sessions there are read-only. Data go to databases created for the run,
//! named `pgassay_` and eight random hexadecimal digits, which are dropped with [`ExternalServer`]. The
//! connection that creates them uses this prefix as its `application_name`, so that another run can
//! distinguish databases in use from leftovers of a killed run. Settings that the study's own
//! statements change are put back, unless others have changed them since; one run at a time changes them. What is to
//! be undone is in a journal first.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use pgassay_model::plan::CONNECTIONS_SPARE;
use pgassay_model::study::Network;
use pgassay_profile::LiveServer;
use pgassay_record::run::{ServerFacts, Warning, WarningKind};
use pgassay_server::{
    BuildFacts, Connection, CounterReader, Pid, ProcessRole, ServerProcesses, SqlError, Stream as _,
};
use pgassay_wire::conninfo::{Address, SessionAttributes, Target};

use super::external_facts::{self, Facts, SuperuserRights};
use super::own_server;
use super::{Host, SqlConnection};
use crate::cancel::{CancelWatch, Canceler};
use crate::connector::{connect_unless_stopped, is_pooled};
use crate::external::{
    self, ChangedSettings, ExternalUse, JournalLine, JournaledServer, ServerState, SettingBackup,
    SettingsClaim, StringSyntax, StudyConnection, UndoJournal,
};
use crate::interrupt::{Interrupt, Interrupted};
use crate::local_server;
use crate::options::PasswordUse;
use crate::run_context::RunContext;
use crate::study_errors::at_dsn;
use crate::system_env::RealSystem;

/// Connection timeout, unless the user specifies `connect_timeout`.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long to wait for the answer to a short query: a server that was stopped must not stop a run.
const ANSWER_LIMIT: Duration = Duration::from_mins(1);
/// How long each statement that undoes something may take after the user requested a stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// An external server.
pub struct ExternalServer {
    /// Its address, for messages.
    place: String,
    /// The host that accepted, if the connection string names several.
    target: Target,
    facts: Facts,
    /// How sessions in the existing database read strings.
    strings: StringSyntax,
    /// Its processes on this machine, or why they are not accessible.
    live: Result<LiveServer, String>,
    /// Its `application_name` marks the run's databases as in use.
    holder: Connection,
    /// The databases created so far.
    made: Vec<String>,
    /// The connection string, without secrets.
    dsn: String,
    passwords: PasswordUse,
    /// Whether its connections use TLS.
    with_tls: bool,
    interrupt: Interrupt,
    /// Until the run is prepared: a server that does not answer must not delay a stop.
    inspection: Option<CancelWatch>,
    /// What is undone at the end.
    undo: Option<Undo>,
}

/// What is to be undone on a server that a run uses.
struct Undo {
    /// The server's state before the run.
    before: ServerState,
    /// Settings that the study's statements change, and a journal of them for the case of a crash.
    changed: ChangedSettings,
}

impl ExternalServer {
    /// Connects and reads the server's facts.
    ///
    /// # Errors
    /// If the server is not reachable, rejects the connection or cannot run a study. The error names
    /// the location in the study.
    pub fn attach(dsn: &str, context: &RunContext<'_>) -> Result<Self> {
        context.stage("connecting to the external server");
        let opened = context.interrupt.or(Self::open(dsn, context));
        opened.map_err(|error| located(error, dsn, context))
    }

    fn open(dsn: &str, context: &RunContext<'_>) -> Result<Self> {
        let passwords = PasswordUse::of(dsn, context);
        let mut target = passwords.resolve(dsn, &RealSystem, context)?;
        for warning in &target.warnings {
            context.note(warning);
        }
        let (mut exchange, endpoint) =
            connect_unless_stopped(&target, Some(limit(&target)), context.interrupt)?
                .map_err(|error| passwords.explain(&error))?;
        // A server that falls silent is found here, or with the facts.
        exchange.stream().set_limit(Some(CONNECT_LIMIT))?;
        // If there are several hosts, all clients must use the same.
        let mut host = target.hosts.swap_remove(endpoint.host);
        host.address = endpoint.address;
        let place = host.address.to_string();
        // Before anything is set: other clients of a pooler get the sessions, and their settings.
        if is_pooled(&mut exchange)? {
            bail!(
                "the connection to {place} goes through a pooler such as PgBouncer, where settings of pgassay's \
                 sessions would stay for other clients, and trials would measure the pooler; specify the address \
                 of the PostgreSQL server itself, whose port is usually 5432"
            );
        }
        let is_local = is_local(&host.address);
        target.hosts = vec![host];
        let with_tls = exchange.is_protected();
        let canceler = Canceler::new(target.clone(), with_tls);
        let (key, closer) = (exchange.backend(), exchange.stream().closer());
        let inspection = CancelWatch::of_connection(key, closer, canceler, context.interrupt)?;
        let live = if is_local {
            local_server::find(&mut exchange)
                .map(|(live, _)| live)
                .map_err(|error| format!("{error:#}"))
        } else {
            Err("it runs on another machine".to_owned())
        };
        let reported = |name: &str| exchange.parameter(name).map(str::to_owned);
        let strings = StringSyntax {
            conforming: reported("standard_conforming_strings"),
            encoding: reported("client_encoding"),
        };
        let mut holder = Connection::from(exchange);
        holder.set_timeout(Some(ANSWER_LIMIT))?;
        external::limit_to_catalog(&mut holder)?;
        let facts = Facts::ask(&mut holder, &place)?;
        // Later, because the facts include the server's own limits.
        external::limit_inspection(&mut holder)?;
        Ok(Self {
            place,
            live: live.map(|live| LiveServer {
                // The data directory may not be readable.
                major: Some(facts.major()),
                ..live
            }),
            target,
            facts,
            strings,
            holder,
            made: Vec::new(),
            dsn: dsn.to_owned(),
            passwords,
            with_tls,
            interrupt: context.interrupt.clone(),
            inspection: Some(inspection),
            undo: None,
        })
    }

    /// Returns an error if the user does not allow what a plan does on this server, or if the role
    /// may not do it.
    pub fn check_permission(&self, planned: &ExternalUse, context: &RunContext<'_>) -> Result<()> {
        let (facts, place) = (&self.facts, &self.place);
        if let Some(message) = planned.refusal(context.options.allow_writes) {
            bail!(message);
        }
        let role = &facts.role;
        let is = match facts.superuser {
            _ if context.options.allow_superuser => None,
            SuperuserRights::Absent => None,
            SuperuserRights::WithSetRole => Some("can become a superuser (with SET ROLE)"),
            SuperuserRights::Present => Some("is a superuser"),
        };
        if let Some(is) = is {
            let lines = planned.lines();
            let lines = match &lines[..] {
                [] => "only reads".to_owned(),
                lines => lines.join("\n  "),
            };
            bail!(
                "role {role} {is} on the server at {place}, which requires \
                 --allow-superuser; this run has changed nothing. A role that may create databases is enough \
                 for most studies. Planned changes:\n  {lines}"
            );
        }
        if planned.is_in_place() {
            return self.strings.check();
        }
        if facts.is_standby {
            bail!(
                "the server at {place} is a standby, where no data can be set up; specify its primary"
            );
        }
        if !facts.can_create_databases {
            bail!(
                "role {role} cannot create databases on the server at {place}, which this study \
                 requires; as a superuser, run: alter role {role} createdb"
            );
        }
        Ok(())
    }

    /// Returns an error if the server does not allow this many connections.
    pub fn check_connection_limit(&self, connections: u32) -> Result<()> {
        if connections > self.facts.connections_max {
            bail!(
                "role {} may have {} connections to the server at {}, but the run may need {connections}, of \
                 which {CONNECTIONS_SPARE} are for setup, statistics and other sessions: increase the server's \
                 max_connections or the role's connection limit, or use fewer --clients",
                self.facts.role,
                self.facts.connections_max,
                self.place
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
        let mut warn = |kind, message: String| {
            warnings.push(Warning {
                kind,
                message,
                variant: None,
            });
        };
        let place = &self.place;
        let differ = external_facts::differing_settings(&mut self.holder, wanted);
        let differ = self.interrupt.or(differ)?;
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
        let left = external_facts::leftover_databases(&mut self.holder);
        let left = self.interrupt.or(left)?;
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
        external::drop_database(&mut self.holder, name).with_context(|| {
            format!(
                "cannot remove the run's database on the server at {}; remove it with: drop database {name}",
                self.place
            )
        })
    }

    /// Undoes what the run did, and returns warnings about what is different from before.
    fn undo(&mut self) -> Result<Vec<Warning>> {
        let Some(Undo { before, changed }) = self.undo.take() else {
            return Ok(Vec::new());
        };
        self.renew_holder().with_context(|| {
            let made = self.made.join(", ");
            let left = if made.is_empty() { "" } else { "; databases left: " };
            format!(
                "the server at {} was not put back as it was; the next run of pgassay with the same results \
                 directory does that{left}{made}",
                self.place,
            )
        })?;
        let (holder, place) = (&mut self.holder, &self.place);
        let settings = changed.settings();
        // Again: with the session's end, another run may have begun to change settings.
        let claimed = (!settings.is_empty())
            .then(|| SettingsClaim::take(holder, &self.facts.key, place))
            .transpose();
        let compared =
            claimed.and_then(|_| external::restore_and_compare(holder, place, &before, &settings));
        let warnings = external::with_databases_left(compared, self.drop_databases())?;
        changed.remove_journal()?;
        Ok(warnings)
    }

    /// Opens the long-lived connection again if it is broken, or if the server does not answer on it.
    fn renew_holder(&mut self) -> Result<()> {
        let (answer, statement) = if self.interrupt.is_requested() {
            // The user waits, and the server may be the reason for the stop.
            (STOP_LIMIT, STOP_LIMIT)
        } else {
            (ANSWER_LIMIT, external::PATIENCE)
        };
        self.holder.set_timeout(Some(answer))?;
        let checked = self.holder.value("select 1");
        if checked.is_err_and(|error| error.sql().is_none_or(SqlError::is_fatal)) {
            // Nothing interrupts the cleanup.
            self.holder = self.open_connection(&self.target.database, &Interrupt::default())?;
            external::limit_inspection(&mut self.holder)?;
            // Its databases are in use until they are dropped.
            let mark = format!("set application_name = '{}'", self.facts.key);
            self.holder.execute(&mark)?;
        }
        Ok(self.holder.set_timeout(Some(statement))?)
    }

    /// Creates the journal of what will be changed.
    fn open_journal(
        &mut self,
        directory: &Path,
        planned: &ExternalUse,
        before: &ServerState,
        settings: &[SettingBackup],
    ) -> Result<UndoJournal> {
        let server =
            JournaledServer::of((&self.dsn, self.passwords), &self.place, &mut self.holder)?;
        let mut journal = UndoJournal::create(directory, &self.facts.key, server)?;
        journal.append(&JournalLine::Objects(before.droppable()))?;
        journal.append(&JournalLine::Creates(planned.creates()))?;
        for setting in settings {
            journal.append(&JournalLine::Setting(setting.without_secrets()))?;
        }
        Ok(journal)
    }
}

impl Drop for ExternalServer {
    fn drop(&mut self) {
        match self.undo() {
            Ok(warnings) => {
                for warning in warnings {
                    tracing::warn!("{}", warning.message);
                }
            }
            Err(error) => tracing::warn!("{error:#}; the next run tries again"),
        }
    }
}

impl Host for ExternalServer {
    fn name(&self) -> String {
        format!("PostgreSQL {} at {}", self.facts.version, self.place)
    }

    fn is_external(&self) -> bool {
        true
    }

    fn prepare(&mut self, planned: &ExternalUse, context: &RunContext<'_>) -> Result<()> {
        let prepared = context.interrupt.or(self.prepare_undo(planned, context));
        self.inspection = None;
        prepared.map_err(|error| located(error, &self.dsn, context))
    }

    fn canceler(&self, database: &str) -> Option<Canceler> {
        let target = self.target(database, Network::Unix, None).ok()?;
        Some(Canceler::new(target, self.with_tls))
    }

    fn make_database(&mut self, planned: &str) -> Result<String> {
        let name = format!("{}_{planned}", self.facts.key);
        // Registered before it is created, so that it is dropped after any failure.
        if let Some(undo) = &self.undo {
            undo.changed.append(&JournalLine::Database(name.clone()))?;
        }
        self.made.push(name.clone());
        // template0 is never modified, and no session can block copying it.
        let create = format!("create database {name} template template0");
        let watch = self.cancel_on_stop()?;
        let created = self.holder.execute(&create);
        drop(watch);
        if created.is_err() {
            // It may have been canceled.
            self.interrupt.check()?;
        }
        created
            .with_context(|| format!("cannot create a database on the server at {}", self.place))?;
        let words = "temporary database of a pgassay run, dropped when the run ends";
        self.holder
            .execute(&format!("comment on database {name} is '{words}'"))?;
        Ok(name)
    }

    fn connect(&self, database: &str) -> Result<Box<dyn SqlConnection>> {
        let mut connection = self.open_connection(database, &self.interrupt)?;
        external::limit_study(&mut connection)?;
        // The server limits the study's statements, and a stop cancels them.
        connection.set_timeout(None)?;
        let changed = self.undo.as_ref().map(|undo| undo.changed.clone());
        let changed = changed.unwrap_or_default();
        Ok(Box::new(StudyConnection::new(connection, changed)))
    }

    fn target(&self, database: &str, _: Network, _: Option<SocketAddr>) -> Result<Target> {
        let mut target = Target {
            database: database.to_owned(),
            ..self.target.clone()
        };
        if !self.made.iter().any(|name| name == database) {
            let read_only = ("default_transaction_read_only".to_owned(), "on".to_owned());
            target.settings.push(read_only);
            // The server is chosen already, and would count as one that cannot write.
            target.session_attributes = SessionAttributes::Any;
        }
        Ok(target)
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
        let mut connection = self.open_connection(&self.target.database, &self.interrupt)?;
        external::limit_inspection(&mut connection)?;
        // Statistics of an existing database are those of its other clients, too.
        let ours = databases.iter().filter(|name| self.made.contains(name));
        let ours: Vec<String> = ours.cloned().collect();
        Ok(CounterReader::over(connection, self.facts.number, &ours)?)
    }

    fn kernel_sources<'a>(&self, backends: &'a [Pid]) -> Option<ServerProcesses<'a>> {
        let pid = self.postmaster_pid()?;
        let mut sources = ServerProcesses::of_postmaster(pid, backends);
        // The working directory of server processes is the data directory.
        sources.data_dir = std::fs::read_link(format!("/proc/{pid}/cwd")).ok();
        Some(sources)
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

    fn stop(mut self: Box<Self>) -> Result<Vec<Warning>> {
        self.undo()
    }
}

impl ExternalServer {
    /// Checks the user's permission, and keeps what is necessary to undo what the plan does.
    fn prepare_undo(&mut self, planned: &ExternalUse, context: &RunContext<'_>) -> Result<()> {
        self.check_permission(planned, context)?;
        let (holder, key) = (&mut self.holder, &self.facts.key);
        let claim = match planned.settings().next() {
            Some(_) => Some(SettingsClaim::take(holder, key, &self.place)?),
            None => None,
        };
        let settings = SettingBackup::read(&mut self.holder, planned.settings())?;
        let before = ServerState::read(&mut self.holder)?;
        let journal = match &context.options.journal_dir {
            Some(directory) if !planned.is_in_place() => {
                Some(self.open_journal(directory, planned, &before, &settings)?)
            }
            _ => None,
        };
        let changed = ChangedSettings::new(settings, journal, claim);
        self.undo = Some(Undo { before, changed });
        // A database takes a checkpoint to create.
        Ok(self.holder.set_timeout(Some(external::PATIENCE))?)
    }

    /// Cancels what the long-lived connection executes if the user requests a stop.
    fn cancel_on_stop(&self) -> Result<CancelWatch> {
        let canceler = Canceler::new(self.target.clone(), self.with_tls);
        let (key, closer) = (self.holder.backend_key(), self.holder.closer());
        CancelWatch::of_connection(key, closer, canceler, &self.interrupt)
    }

    /// Opens a connection that waits up to [`ANSWER_LIMIT`] for each answer.
    fn open_connection(&self, database: &str, interrupt: &Interrupt) -> Result<Connection> {
        let target = Target {
            database: database.to_owned(),
            ..self.target.clone()
        };
        let (exchange, _) = connect_unless_stopped(&target, Some(limit(&target)), interrupt)?
            .map_err(|error| anyhow!("{error}"))
            .with_context(|| format!("cannot connect to the run's database {database}"))?;
        let connection = Connection::from(exchange);
        connection.set_timeout(Some(ANSWER_LIMIT))?;
        Ok(connection)
    }

    fn postmaster_pid(&self) -> Option<Pid> {
        let live = self.live.as_ref().ok()?;
        Some(live.postmaster_pid.cast_signed())
    }
}

/// An error with its place in the study; a stop has none.
fn located(error: anyhow::Error, dsn: &str, context: &RunContext<'_>) -> anyhow::Error {
    if error.is::<Interrupted>() {
        error
    } else {
        at_dsn(context.study, dsn, &format!("{error:#}"))
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
