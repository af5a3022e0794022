//! Undoes what runs that were killed left on external servers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use pgassay_record::run::{Warning, WarningKind};
use pgassay_server::{Connection, Stream as _};
use pgassay_wire::conninfo::{Address, Environment, FileText, Target};
use pgassay_wire::{ExchangeError, WireError};

use super::backup::SettingBackup;
use super::databases::{drop_database, is_key};
use super::exclusive::check_no_other;
use super::journal::{FORMAT, JournalLine, JournaledServer, UndoJournal};
use super::limits;
use super::restoring::{RestoredSettings, restore};
use super::state::{AddedObject, ServerState};
use crate::cancel::{CancelWatch, Canceler};
use crate::connector::{ConnectError, connect_unless_stopped};
use crate::options::PasswordUse;
use crate::run_context::RunContext;
use crate::system_env::RealSystem;

/// Time limit for connecting to a server that a journal names.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long to wait for each answer: a server that fell silent must not hold up every later run for long.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// The same for the removal of a database, which takes a checkpoint.
const DROP_LIMIT: Duration = Duration::from_mins(1);
/// How long sessions of a killed run may take to end.
const SESSIONS_LIMIT: Duration = Duration::from_secs(20);
const SESSIONS_POLL: Duration = Duration::from_millis(100);
/// Ends the long-lived sessions of the run with a key. A role may end sessions of the same role.
const END_SESSIONS: &str = "select pg_terminate_backend(pid) from pg_stat_activity \
     where usename = current_user and pid <> pg_backend_pid() and substr(application_name, 1, 16) = $1";
const ACTIVE_SLOTS: &str =
    "select 'replication slot ' || slot_name from pg_replication_slots where active";
const SYSTEM_IDENTIFIER: &str = "select system_identifier from pg_control_system()";

/// The environment of an earlier run.
struct JournaledEnvironment<'a> {
    variables: &'a BTreeMap<String, String>,
    /// Whether `PGPASSWORD`, which is this run's, is for the earlier run's server, too.
    has_password: bool,
}

const PASSWORD: &str = "PGPASSWORD";

/// Variables that supply missing connection parameters.
fn is_of_connection(name: &str) -> bool {
    name.starts_with("PG") && !name.starts_with("PGASSAY") && name != PASSWORD
}

impl Environment for JournaledEnvironment<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        if is_of_connection(name) {
            return self.variables.get(name).cloned();
        }
        let is_hidden = name == PASSWORD && !self.has_password;
        RealSystem.variable(name).filter(|_| !is_hidden)
    }

    fn is_garbled(&self, name: &str) -> bool {
        !is_of_connection(name) && RealSystem.is_garbled(name)
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
    /// The kinds of objects that its statements create, by their text.
    creates: BTreeSet<String>,
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
             (what is left is in {path}; remove this file if the server is gone)"
        )
    })?;
    let done = (!restored.done.is_empty()).then(|| {
        let done = restored.done.join("; ");
        format!("undid what a killed run left on the server at {place}: {done}")
    });
    let kept = restored.warning(place).into_iter();
    let left = kept.chain(added.warning(place)).collect();
    Ok(RecoveredRun { done, left })
}

/// Objects that are new since the start of a killed run.
#[derive(Debug, Default)]
struct ObjectsSince {
    /// Those that the run may have created, by the text of its statements.
    of_run: Vec<AddedObject>,
    /// How many others there are.
    others: usize,
}

impl ObjectsSince {
    /// Divides them. No run created an object of a kind that its text does not create, nor keeps a replication slot
    /// active.
    fn of(added: Vec<AddedObject>, creates: &BTreeSet<String>, active: &[String]) -> Self {
        let is_of_run = |it: &AddedObject| {
            let kind_and_name = |kind: &String| it.name.strip_prefix(kind.as_str());
            let rest = creates.iter().find_map(kind_and_name);
            rest.is_some_and(|it| it.starts_with(' ')) && !active.contains(&it.name)
        };
        let (of_run, others): (Vec<_>, Vec<_>) = added.into_iter().partition(is_of_run);
        Self {
            of_run,
            others: others.len(),
        }
    }

    /// Only the run's objects have statements that drop them: of the others, someone's data may be lost.
    fn warning(self, place: &str) -> Option<String> {
        let pairs = self.of_run.into_iter().map(|it| (it.name, it.drop));
        let (names, statements): (Vec<String>, Vec<String>) = pairs.unzip();
        let (names, statements) = (names.join(", "), statements.join(" "));
        let since = format!("since the start of a killed run, the server at {place} has");
        let count = self.others;
        match (names.is_empty(), count) {
            (true, 0) => None,
            (true, _) => Some(format!(
                "{since} {count} new databases, roles, extensions, tablespaces or replication slots; the study's text \
                 creates none of that kind"
            )),
            (false, 0) => Some(format!(
                "{since} new objects: {names}; unless others created them, remove them with: {statements}"
            )),
            (false, _) => Some(format!(
                "{since} new objects: {names} (and {count} that the study's text does not create); unless others \
                 created them, remove them with: {statements}"
            )),
        }
    }
}

impl KilledRun {
    /// Reads the lines after the first.
    fn of(lines: impl Iterator<Item = JournalLine>) -> Result<Self> {
        let mut run = Self::default();
        for line in lines {
            match line {
                JournalLine::Objects(objects) => run.objects = Some(objects),
                JournalLine::Creates(kinds) => run.creates = kinds,
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
) -> Result<(RestoredSettings, ObjectsSince)> {
    // The study's statements run only once its databases exist.
    if run.databases.is_empty() && run.settings.is_empty() {
        return Ok(Default::default());
    }
    let (mut connection, watch) = connect(server, context)?;
    let undone = undo_with(&mut connection, (server, key), run, context);
    drop(watch);
    context.interrupt.or(undone)
}

/// Connects to a journal's server. A stop cancels what the connection executes, and then closes it.
fn connect(
    server: &JournaledServer,
    context: &RunContext<'_>,
) -> Result<(Connection, CancelWatch)> {
    // The password file may have another password by now, and the server may ask for one.
    let passwords = if server.allow_passwords {
        PasswordUse::Allowed
    } else {
        context.options.passwords
    };
    let mut environment = JournaledEnvironment {
        variables: &server.environment,
        has_password: false,
    };
    let mut target = passwords.resolve(&server.dsn, &environment, context)?;
    if passwords == PasswordUse::Allowed && is_of_study(&target, context) {
        environment.has_password = true;
        target = passwords.resolve(&server.dsn, &environment, context)?;
    }
    let (exchange, endpoint) =
        connect_unless_stopped(&target, Some(CONNECT_LIMIT), context.interrupt)?
            .map_err(|error| explained(&error, passwords))?;
    let canceler = Canceler::at(endpoint, target, exchange.is_protected());
    let (backend, closer) = (exchange.backend(), exchange.stream().closer());
    let watch = CancelWatch::of_connection(backend, closer, canceler, context.interrupt)?;
    let connection = Connection::from(exchange);
    connection.set_timeout(Some(ANSWER_LIMIT))?;
    Ok((connection, watch))
}

/// Whether this run sends its passwords to a server, too.
fn is_of_study(target: &Target, context: &RunContext<'_>) -> bool {
    let addresses = |it: &Target| -> Vec<Address> {
        let hosts = it.hosts.iter();
        hosts.map(|host| host.address.clone()).collect()
    };
    context.study.dsns().any(|dsn| {
        let passwords = PasswordUse::of(dsn, context);
        let resolved = passwords.resolve(dsn, &RealSystem, context);
        passwords == PasswordUse::Allowed
            && resolved.is_ok_and(|it| {
                addresses(&it) == addresses(target)
                    && it.user == target.user
                    && it.ssl_mode == target.ssl_mode
            })
    })
}

/// Why the connection to a journal's server failed, and which passwords it may get.
fn explained(error: &ConnectError, passwords: PasswordUse) -> anyhow::Error {
    let why = passwords.explain(error);
    match error.last() {
        Some(ExchangeError::Wire(WireError::PasswordNeeded { .. }))
            if passwords == PasswordUse::Allowed =>
        {
            anyhow!(
                "{why}; {PASSWORD} is for the servers of this run only, by host, port, user and sslmode: add the password to the \
                 password file"
            )
        }
        _ => why,
    }
}

fn undo_with(
    connection: &mut Connection,
    (server, key): (&JournaledServer, &str),
    run: &KilledRun,
    context: &RunContext<'_>,
) -> Result<(RestoredSettings, ObjectsSince)> {
    limits::limit_inspection(connection)?;
    if system_identifier(connection)? != server.system_identifier {
        bail!("the connection string leads to another server now");
    }
    if is_key(key) {
        end_sessions(connection, key, context)?;
    }
    if !run.settings.is_empty() {
        check_no_other(connection, key, &server.place)?;
    }
    let mut restored = restore(connection, &run.settings)?;
    for name in &run.databases {
        let sql = "select datname from pg_database where datname = $1";
        if !connection.query_with(sql, &[Some(name)])?.rows.is_empty() {
            connection.set_timeout(Some(DROP_LIMIT))?;
            drop_database(connection, name)?;
            connection.set_timeout(Some(ANSWER_LIMIT))?;
            restored.done.push(format!("drop database {name}"));
        }
    }
    let Some(before) = &run.objects else {
        return Ok((restored, ObjectsSince::default()));
    };
    // Now, because logical replication slots go with their database.
    let added = ServerState::read(connection)?.added_since(before);
    let active = connection.query(ACTIVE_SLOTS)?.into_iter().flatten();
    let active: Vec<String> = active.flatten().collect();
    Ok((restored, ObjectsSince::of(added, &run.creates, &active)))
}

/// Waits for the end of the killed run's long-lived sessions: one may still be creating a database, which would stay
/// once the journal is removed.
fn end_sessions(connection: &mut Connection, key: &str, context: &RunContext<'_>) -> Result<()> {
    let until = Instant::now() + SESSIONS_LIMIT;
    while !connection
        .query_with(END_SESSIONS, &[Some(key)])?
        .rows
        .is_empty()
    {
        context.check()?;
        if Instant::now() > until {
            bail!("a session of the killed run does not end");
        }
        thread::sleep(SESSIONS_POLL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use pgassay_model::study::StudySource;
    use pgassay_test_support::{servers, wait_until};

    use super::*;
    use crate::event::NoEvents;
    use crate::interrupt::Interrupt;
    use crate::options::ServerOptions;
    use crate::study::LoadedStudy;

    fn study() -> LoadedStudy {
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: "question = \"?\"\n[[variant]]\nname = \"v\"\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n".to_owned(),
        };
        let study = source.parse().unwrap();
        LoadedStudy::new("s", source, study).unwrap()
    }

    /// A server that accepts a connection and answers nothing after that. Returns its port.
    fn silent_server() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // The thread ends with the connection.
        thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut buffer = [0; 1024];
            _ = client.read(&mut buffer).unwrap();
            let (accepted, ready) = (b"R\0\0\0\x08\0\0\0\0", b"Z\0\0\0\x05I");
            client.write_all(&[&accepted[..], ready].concat()).unwrap();
            while client.read(&mut buffer).is_ok_and(|count| count > 0) {}
        });
        port
    }

    /// Regression: every later run waited eleven minutes for the server of an old journal, and Ctrl-C did not help.
    #[test]
    fn a_stop_ends_the_wait_for_the_silent_server_of_a_journal() {
        let directory = tempfile::tempdir().unwrap();
        let server = JournaledServer {
            format: FORMAT,
            dsn: format!(
                "host=127.0.0.1 port={} user=u sslmode=disable",
                silent_server()
            ),
            allow_passwords: false,
            environment: BTreeMap::new(),
            system_identifier: None,
            place: "h".to_owned(),
            file: String::new(),
        };
        let mut journal =
            UndoJournal::create(directory.path(), "pgassay_0123abcd", server).unwrap();
        let database = JournalLine::Database("pgassay_0123abcd_data_0".to_owned());
        journal.append(&database).unwrap();
        drop(journal);
        // Programs that other tests start hold our locks between fork and exec: whatever opens the journal tries again.
        let abandoned = || UndoJournal::abandoned(directory.path()).len();

        let (study, options, interrupt) = (study(), ServerOptions::default(), Interrupt::default());
        let context = RunContext {
            study: &study,
            options: &options,
            interrupt: &interrupt,
            events: &NoEvents,
        };
        let begin = Instant::now();
        let flag = interrupt.flag().clone();
        let user = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let mut warnings = Vec::new();
        wait_until("no other process has the lock", || {
            warnings = recover(directory.path(), &context);
            !warnings.is_empty()
        });
        user.join().unwrap();
        assert!(begin.elapsed() < ANSWER_LIMIT / 2, "{:?}", begin.elapsed());
        assert_eq!(warnings.len(), 1);
        wait_until("the journal is kept", || abandoned() == 1);
    }

    /// Regression: a database that a killed run was still creating stayed, and its journal was removed.
    #[test]
    fn sessions_of_a_killed_run_end_before_its_databases_are_looked_for() {
        for version in ["12", "18"] {
            let Some(server) = servers::start(version) else {
                continue;
            };
            let key = "pgassay_0123abcd";
            let mut sessions = Vec::new();
            for name in [
                key,
                "pgassay_0123abcd_settings_x",
                "pgassay_99999999",
                "pgassay",
            ] {
                let mut session = server.connect().unwrap();
                let named = format!("set application_name = '{name}'");
                session.execute(&named).unwrap();
                sessions.push(session);
            }
            let study = study();
            let context = RunContext {
                study: &study,
                options: &ServerOptions::default(),
                interrupt: &Interrupt::default(),
                events: &NoEvents,
            };
            let mut connection = server.connect().unwrap();
            end_sessions(&mut connection, key, &context).unwrap();
            let alive: Vec<bool> = sessions
                .iter_mut()
                .map(|it| it.value("select 1").is_ok())
                .collect();
            assert_eq!(alive, [false, false, true, true], "{version}");
        }
    }

    /// Regression: statements that drop others' replication slots, roles and databases were ready to be pasted.
    #[test]
    fn only_what_a_killed_run_can_have_created_has_a_statement_that_drops_it() {
        let added = || {
            let names = ["replication slot standby", "replication slot s", "role bob"];
            let object = |name: &str| AddedObject {
                name: name.to_owned(),
                drop: format!("drop {name};"),
            };
            names.map(object).into_iter().collect::<Vec<_>>()
        };
        let active = ["replication slot standby".to_owned()];
        let warning = |creates: &[&str]| {
            let creates = creates.iter().map(|it| (*it).to_owned()).collect();
            let found = ObjectsSince::of(added(), &creates, &active);
            found.warning("h").unwrap()
        };
        let nothing = warning(&[]);
        assert!(nothing.contains("h has 3 new databases"), "{nothing}");
        assert!(!nothing.contains("drop"), "{nothing}");
        let slots = warning(&["replication slot"]);
        let expected = "new objects: replication slot s (and 2 that the study's text does not create); unless others \
                        created them, remove them with: drop replication slot s;";
        assert!(slots.ends_with(expected), "{slots}");
        assert!(
            ObjectsSince::of(Vec::new(), &BTreeSet::new(), &[])
                .warning("h")
                .is_none()
        );
    }

    #[test]
    fn the_password_is_not_a_variable_of_a_journal() {
        assert!(is_of_connection("PGHOST") && is_of_connection("PGSERVICEFILE"));
        assert!(!is_of_connection("PGPASSWORD") && !is_of_connection("PGASSAY_RESULTS"));
        assert!(!is_of_connection("PATH"));
    }
}
