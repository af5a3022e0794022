//! A connection for a study's own statements, which keeps what values they give to settings outside of their session.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use pgassay_script::{ServerChange, SettingChange, SettingScope, SqlReach};
use pgassay_server::{Connection, ConnectionError, Pid, SocketCloser};
use pgassay_wire::BackendKey;

use super::backup::{self, SettingBackup};
use super::exclusive::SettingsClaim;
use super::journal::{GivenValue, JournalLine, UndoJournal};
use crate::host::SqlConnection;

/// The settings that a run changes, and its journal. Connections share it.
#[derive(Clone, Debug, Default)]
pub struct ChangedSettings(Arc<Mutex<SettingsAndJournal>>);

#[derive(Debug, Default)]
struct SettingsAndJournal {
    settings: Vec<SettingBackup>,
    journal: Option<UndoJournal>,
    /// `None` if the run changes none.
    claim: Option<SettingsClaim>,
}

impl ChangedSettings {
    /// These settings. A journal already has them.
    pub fn new(
        settings: Vec<SettingBackup>,
        journal: Option<UndoJournal>,
        claim: Option<SettingsClaim>,
    ) -> Self {
        Self(Arc::new(Mutex::new(SettingsAndJournal {
            settings,
            journal,
            claim,
        })))
    }

    /// Checks that no other run may change settings now.
    fn check_claim(&self, connection: &mut Connection) -> Result<(), ConnectionError> {
        let claim = self.lock().claim.clone();
        claim.map_or(Ok(()), |it| it.check(connection))
    }

    /// Appends a line to the journal, if there is one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn append(&self, line: &JournalLine) -> Result<()> {
        match &mut self.lock().journal {
            Some(journal) => journal.append(line),
            None => Ok(()),
        }
    }

    /// The settings, with the values that the run gave them.
    pub fn settings(&self) -> Vec<SettingBackup> {
        self.lock().settings.clone()
    }

    /// Removes the journal: everything in it is undone.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove_journal(&self) -> Result<()> {
        match self.lock().journal.take() {
            Some(journal) => journal.remove(),
            None => Ok(()),
        }
    }

    /// Keeps the values that the settings of these statements have now.
    ///
    /// # Errors
    /// The values cannot be read; the inner error is that of the journal.
    fn add_given(
        &self,
        connection: &mut Connection,
        changes: &[SettingChange],
    ) -> Result<Result<()>> {
        let values = backup::read_values(connection)?;
        let mut inner = self.lock();
        let inner = &mut *inner;
        for change in changes {
            let scope = backup::scope_of(connection, &change.scope)?;
            let name = change.name.as_deref();
            for backup in inner
                .settings
                .iter_mut()
                .filter(|it| it.is_of(&scope, name))
            {
                let key = (backup.scope.clone(), backup.name.clone());
                let value = values.get(&key).cloned();
                if !backup.add_given(value.clone()) {
                    continue;
                }
                let is_open = value
                    .as_deref()
                    .is_none_or(|it| !backup::may_be_secret(&backup.name, it));
                if let (true, Some(journal)) = (is_open, &mut inner.journal) {
                    let (scope, name) = key;
                    let line = JournalLine::Given(GivenValue { scope, name, value });
                    if let Err(error) = journal.append(&line) {
                        return Ok(Err(error));
                    }
                }
            }
        }
        Ok(Ok(()))
    }

    fn lock(&self) -> MutexGuard<'_, SettingsAndJournal> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that reads a setting back right after a statement of the study has changed it: others may change it
/// later.
pub struct StudyConnection {
    connection: Connection,
    changed: ChangedSettings,
    /// What was changed in a transaction that is still open.
    pending: Vec<SettingChange>,
}

impl StudyConnection {
    /// A connection of a run that changes these settings.
    pub fn new(connection: Connection, changed: ChangedSettings) -> Self {
        Self {
            connection,
            changed,
            pending: Vec::new(),
        }
    }
}

impl StudyConnection {
    /// Commits a change only once its value is in the journal: pgassay may be killed in between.
    fn execute_in_transaction(
        &mut self,
        sql: &str,
        change: &SettingChange,
    ) -> Result<(), ConnectionError> {
        self.connection.execute("begin")?;
        if let Err(error) = self.connection.execute(sql) {
            if error.sql().is_some() {
                self.connection.execute("rollback")?;
            }
            return Err(error);
        }
        match self.read_back(std::slice::from_ref(change)) {
            Ok(true) => self.connection.execute("commit"),
            // The failure aborted the transaction.
            Ok(false) => {
                self.connection.execute("rollback")?;
                self.connection.execute(sql)
            }
            Err(error) => {
                self.connection.execute("rollback")?;
                Err(error)
            }
        }
    }

    /// Keeps the values that were just set. Returns whether they could be read: what is not known to be the run's value
    /// is left as it is at the end, with a warning.
    ///
    /// # Errors
    /// They are not in the journal, so that nothing would undo them after a kill.
    fn read_back(&mut self, changes: &[SettingChange]) -> Result<bool, ConnectionError> {
        match self.changed.add_given(&mut self.connection, changes) {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) => Err(ConnectionError::NotExecuted(format!("{error:#}"))),
            Err(error) => {
                tracing::warn!("cannot read back a setting that the study has changed: {error:#}");
                Ok(false)
            }
        }
    }
}

impl SqlConnection for StudyConnection {
    fn execute(&mut self, sql: &str) -> Result<(), ConnectionError> {
        let change = match SqlReach::of(sql) {
            SqlReach::Server(ServerChange::Setting(change)) => Some(change),
            _ => None,
        };
        if change.is_some() {
            self.changed.check_claim(&mut self.connection)?;
        }
        let is_free = !self.connection.is_in_transaction();
        match &change {
            // `ALTER SYSTEM` cannot run in a transaction.
            Some(change) if is_free && change.scope != SettingScope::System => {
                return self.execute_in_transaction(sql, change);
            }
            _ => self.connection.execute(sql)?,
        }
        self.pending.extend(change);
        // An error of the query would abort the study's transaction.
        if !self.pending.is_empty() && !self.connection.is_in_transaction() {
            let pending = std::mem::take(&mut self.pending);
            self.read_back(&pending)?;
        }
        Ok(())
    }

    fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, ConnectionError> {
        self.connection.query(sql)
    }

    fn backend_pid(&self) -> Option<Pid> {
        self.connection.backend_pid()
    }

    fn is_in_transaction(&self) -> bool {
        self.connection.is_in_transaction()
    }

    fn cancel_handle(&self) -> Option<(BackendKey, SocketCloser)> {
        self.connection.cancel_handle()
    }
}

#[cfg(test)]
mod tests {
    use pgassay_test_support::{SmallDisk, servers};

    use super::super::JournaledServer;
    use super::*;
    use crate::options::PasswordUse;

    /// Regression: on a full disk, the setting was changed although the journal did not have its value.
    #[test]
    fn a_setting_that_cannot_be_journaled_is_not_changed() {
        let (Some(server), Some(disk)) = (servers::start("18"), SmallDisk::mount("8k")) else {
            return;
        };
        let setting = "alter role known set work_mem from current";
        let SqlReach::Server(ServerChange::Setting(change)) = SqlReach::of(setting) else {
            panic!("{setting}");
        };
        let mut connection = server.connect().unwrap();
        connection.execute("create role known").unwrap();
        let backups = SettingBackup::read(&mut connection, [&change].into_iter()).unwrap();
        let facts = JournaledServer::of(("", PasswordUse::Allowed), "", &mut connection).unwrap();
        let mut journal = UndoJournal::create(disk.path(), "pgassay_1", facts).unwrap();
        // What is left of the journal's page is not enough for a value.
        let used = std::fs::metadata(journal.path()).unwrap().len() as usize;
        let rest = "x".repeat(4096 - used - "{\"database\":\"\"}\n".len());
        journal.append(&JournalLine::Database(rest)).unwrap();
        std::fs::write(disk.path().join("full"), [0; 8192]).unwrap_err();
        let changed = ChangedSettings::new(backups, Some(journal), None);
        let mut study = StudyConnection::new(connection, changed);
        study.execute("set work_mem = '5MB'").unwrap();
        let error = study.execute(setting).unwrap_err().to_string();
        assert!(error.contains("is needed to undo"), "{error}");
        let rows = study.query("select from pg_db_role_setting").unwrap();
        assert!(rows.is_empty() && !study.is_in_transaction());
    }

    /// Regression: if pgassay was killed between the two, the next run did not know the value, and left it.
    #[test]
    fn a_value_that_the_text_does_not_show_is_known_before_it_is_committed() {
        let mut config = servers::config();
        let logged = ("log_statement".to_owned(), "all".to_owned());
        config.settings.extend([logged]);
        let Some(server) = servers::start_with("18", &config) else {
            return;
        };
        let setting = "alter role known set work_mem from current";
        let SqlReach::Server(ServerChange::Setting(change)) = SqlReach::of(setting) else {
            panic!("{setting}");
        };
        let mut connection = server.connect().unwrap();
        connection.execute("create role known").unwrap();
        let backups = SettingBackup::read(&mut connection, [&change].into_iter()).unwrap();
        let changed = ChangedSettings::new(backups, None, None);
        let mut study = StudyConnection::new(connection, changed.clone());
        study.execute("set work_mem = '5MB'").unwrap();
        study.execute(setting).unwrap();
        assert_eq!(changed.settings()[0].given, [Some("5MB".to_owned())]);
        let log = std::fs::read_to_string(server.log_path()).unwrap();
        let (_, after) = log.split_once(setting).expect("the statement is logged");
        let (before, _) = after.split_once("statement: commit").expect("a commit");
        assert!(before.contains("pg_db_role_setting"), "{log}");

        // The error is that of the study's statement, and ends its transaction.
        let error = study.execute("alter role missing set work_mem = '6MB'");
        assert!(error.unwrap_err().to_string().contains("does not exist"));
        assert!(!study.is_in_transaction());
        // In a transaction of the study, the value is read once that has ended.
        study.execute("begin").unwrap();
        study
            .execute("alter role known set work_mem = E'7MB'")
            .unwrap();
        assert_eq!(changed.settings()[0].given.len(), 1);
        study.execute("commit").unwrap();
        assert_eq!(changed.settings()[0].given[1..], [Some("7MB".to_owned())]);
    }
}
