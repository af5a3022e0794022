//! Undoes what runs that were killed left on external servers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pgassay_record::run::{Warning, WarningKind};
use pgassay_server::Connection;
use pgassay_wire::conninfo::{Environment, FileText};

use super::backup::SettingBackup;
use super::databases::drop_database;
use super::exclusive::check_no_other;
use super::journal::{FORMAT, JournalLine, JournaledServer, UndoJournal};
use super::limits;
use super::restoring::{RestoredSettings, restore};
use super::state::{AddedObject, ServerState};
use crate::connector::connect_unless_stopped;
use crate::options::PasswordUse;
use crate::run_context::RunContext;
use crate::system_env::RealSystem;

/// Time limit for connecting to a server that a journal names.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const SYSTEM_IDENTIFIER: &str = "select system_identifier from pg_control_system()";

/// The environment of an earlier run. The password is that of this one.
struct JournaledEnvironment<'a>(&'a BTreeMap<String, String>);

/// Variables that supply missing connection parameters.
fn is_of_connection(name: &str) -> bool {
    name.starts_with("PG") && !name.starts_with("PGASSAY") && name != "PGPASSWORD"
}

impl Environment for JournaledEnvironment<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        if is_of_connection(name) {
            return self.0.get(name).cloned();
        }
        RealSystem.variable(name)
    }

    fn user(&self) -> Option<String> {
        RealSystem.user()
    }

    fn home(&self) -> Option<PathBuf> {
        RealSystem.home()
    }

    fn read(&self, path: &Path, max_bytes: u64) -> io::Result<Option<FileText>> {
        RealSystem.read(path, max_bytes)
    }

    fn system_roots(&self) -> Vec<Vec<u8>> {
        RealSystem.system_roots()
    }

    fn socket_directory(&self) -> String {
        RealSystem.socket_directory()
    }
}

impl JournaledServer {
    /// The server of a connection, which `dsn`, without secrets, and the environment lead to.
    ///
    /// # Errors
    /// The connection broke.
    pub fn of(
        (dsn, passwords): (&str, PasswordUse),
        place: &str,
        connection: &mut Connection,
    ) -> Result<Self> {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let variable = (name.into_string().ok()?, value.into_string().ok()?);
            is_of_connection(&variable.0).then_some(variable)
        });
        Ok(Self {
            format: FORMAT,
            dsn: dsn.to_owned(),
            allow_passwords: passwords == PasswordUse::Allowed,
            environment: variables.collect(),
            system_identifier: system_identifier(connection)?,
            place: place.to_owned(),
            file: String::new(),
        })
    }
}

/// The server's identity; `None` if the role cannot read it.
fn system_identifier(connection: &mut Connection) -> Result<Option<String>> {
    match connection.value(SYSTEM_IDENTIFIER) {
        Err(error) if error.sql().is_none() => Err(error.into()),
        answer => Ok(answer.ok().flatten()),
    }
}

/// What a killed run did, and may have to be undone.
#[derive(Default)]
struct KilledRun {
    databases: Vec<String>,
    settings: Vec<SettingBackup>,
    /// What all databases shared before the run; `None` if the run was killed before that was known.
    objects: Option<BTreeSet<String>>,
}

/// What became of it, for people.
#[derive(Default)]
struct RecoveredRun {
    /// What was undone.
    done: Option<String>,
    /// What may have been left and is not undone.
    left: Vec<String>,
}

/// Undoes what runs that were killed left on external servers: puts settings back and drops their
/// databases. Returns a warning for each server where that was not possible; its journal is kept, so
/// that the next start tries again. Warnings also name other objects that are new since such a run.
pub fn recover(directory: &Path, context: &RunContext<'_>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for mut journal in UndoJournal::abandoned(directory) {
        let undone = undo(&mut journal, context);
        let left = match undone.and_then(|it| journal.remove().map(|()| it)) {
            Ok(RecoveredRun { done, left }) => {
                if let Some(message) = done {
                    context.note(&message);
                }
                left
            }
            Err(error) => vec![format!("{error:#}")],
        };
        for message in left {
            context.note(&message);
            warnings.push(Warning {
                kind: WarningKind::Leftover,
                variant: None,
                message,
            });
        }
    }
    warnings
}

fn undo(journal: &mut UndoJournal, context: &RunContext<'_>) -> Result<RecoveredRun> {
    let path = journal.path().display().to_string();
    let key = journal.key();
    let mut lines = journal.lines()?.into_iter();
    let server = match lines.next() {
        None => return Ok(RecoveredRun::default()),
        Some(JournalLine::Server(server)) if server.format == FORMAT => server,
        Some(_) => bail!("{path} was written by another version of pgassay: use that one"),
    };
    if !journal.is_original(&server) {
        bail!(
            "{path} is a copy, which may come from someone else, so what it names was not undone on the server at {}; \
             remove it, or undo by hand what it lists",
            server.place
        );
    }
    let run = KilledRun::of(lines).with_context(|| format!("{path} is not a valid journal"))?;
    let place = &server.place;
    context.stage("undoing what a killed run left on an external server");
    let (restored, added) = undo_on((&server, &key), &run, context).with_context(|| {
        format!(
            "cannot undo what a killed run left on the server at {place}; the next run tries again \
             (what is left is in {path})"
        )
    })?;
    let done = (!restored.done.is_empty()).then(|| {
        let done = restored.done.join("; ");
        format!("undid what a killed run left on the server at {place}: {done}")
    });
    let kept = restored.warning(place).into_iter();
    let added = (!added.is_empty()).then(|| {
        let pairs = added.into_iter().map(|it| (it.name, it.drop));
        let (names, statements): (Vec<String>, Vec<String>) = pairs.unzip();
        let (names, statements) = (names.join(", "), statements.join(" "));
        format!(
            "since the start of a killed run, the server at {place} has new objects: {names}; unless \
             others created them, remove them with: {statements}"
        )
    });
    let left = kept.chain(added).collect();
    Ok(RecoveredRun { done, left })
}

impl KilledRun {
    /// Reads the lines after the first.
    fn of(lines: impl Iterator<Item = JournalLine>) -> Result<Self> {
        let mut run = Self::default();
        for line in lines {
            match line {
                JournalLine::Objects(objects) => run.objects = Some(objects),
                JournalLine::Database(name) => run.databases.push(name),
                JournalLine::Setting(setting) => run.settings.push(setting),
                JournalLine::Given(given) => {
                    let mut settings = run.settings.iter_mut();
                    let setting = settings.find(|it| it.is_of(&given.scope, Some(&given.name)));
                    let setting = setting.context("it has the value of an unknown setting")?;
                    setting.add_given(given.value);
                }
                JournalLine::Server(_) => bail!("it has two servers"),
            }
        }
        Ok(run)
    }
}

/// Returns what was done and left, and the objects that are new since the run began.
fn undo_on(
    (server, key): (&JournaledServer, &str),
    run: &KilledRun,
    context: &RunContext<'_>,
) -> Result<(RestoredSettings, Vec<AddedObject>)> {
    // The study's statements run only once its databases exist.
    if run.databases.is_empty() && run.settings.is_empty() {
        return Ok(Default::default());
    }
    // The password file may have another password by now, and the server may ask for one.
    let passwords = if server.allow_passwords {
        PasswordUse::Allowed
    } else {
        context.options.passwords
    };
    let environment = JournaledEnvironment(&server.environment);
    let target = passwords.resolve(&server.dsn, &environment, context)?;
    let (exchange, _) = connect_unless_stopped(&target, Some(CONNECT_LIMIT), context.interrupt)?
        .map_err(|error| passwords.explain(&error))?;
    let mut connection = Connection::from(exchange);
    connection.set_timeout(Some(limits::PATIENCE))?;
    limits::limit_inspection(&mut connection)?;
    if system_identifier(&mut connection)? != server.system_identifier {
        bail!("the connection string leads to another server now");
    }
    if !run.settings.is_empty() {
        check_no_other(&mut connection, key, &server.place)?;
    }
    let mut restored = restore(&mut connection, &run.settings)?;
    for name in &run.databases {
        let sql = "select datname from pg_database where datname = $1";
        if !connection.query_with(sql, &[Some(name)])?.rows.is_empty() {
            drop_database(&mut connection, name)?;
            restored.done.push(format!("drop database {name}"));
        }
    }
    let left = match &run.objects {
        // Now, because logical replication slots go with their database.
        Some(before) => ServerState::read(&mut connection)?.added_since(before),
        None => Vec::new(),
    };
    Ok((restored, left))
}

#[cfg(test)]
mod tests {
    use super::is_of_connection;

    #[test]
    fn the_password_is_not_a_variable_of_a_journal() {
        assert!(is_of_connection("PGHOST") && is_of_connection("PGSERVICEFILE"));
        assert!(!is_of_connection("PGPASSWORD") && !is_of_connection("PGASSAY_RESULTS"));
        assert!(!is_of_connection("PATH"));
    }
}
