//! A connection for a study's own statements, which keeps what values they give to settings outside of their session.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use pgassay_script::{ServerChange, SettingChange, SqlReach};
use pgassay_server::{Connection, ConnectionError, Pid, SocketCloser};
use pgassay_wire::BackendKey;

use super::backup::{self, SettingBackup};
use super::journal::{GivenValue, JournalLine, UndoJournal};
use crate::host::SqlConnection;

/// The settings that a run changes, and its journal. Connections share it.
#[derive(Clone, Debug, Default)]
pub struct ChangedSettings(Arc<Mutex<SettingsAndJournal>>);

#[derive(Debug, Default)]
struct SettingsAndJournal {
    settings: Vec<SettingBackup>,
    journal: Option<UndoJournal>,
}

impl ChangedSettings {
    /// These settings. A journal already has them.
    pub fn new(settings: Vec<SettingBackup>, journal: Option<UndoJournal>) -> Self {
        Self(Arc::new(Mutex::new(SettingsAndJournal {
            settings,
            journal,
        })))
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
    fn add_given(&self, connection: &mut Connection, changes: &[SettingChange]) -> Result<()> {
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
                    journal.append(&JournalLine::Given(GivenValue { scope, name, value }))?;
                }
            }
        }
        Ok(())
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

impl SqlConnection for StudyConnection {
    fn execute(&mut self, sql: &str) -> Result<(), ConnectionError> {
        self.connection.execute(sql)?;
        if let SqlReach::Server(ServerChange::Setting(change)) = SqlReach::of(sql) {
            self.pending.push(change);
        }
        // An error of the query would abort the study's transaction.
        if self.pending.is_empty() || self.connection.is_in_transaction() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        if let Err(error) = self.changed.add_given(&mut self.connection, &pending) {
            // What is not known to be the run's value is left as it is, with a warning.
            tracing::warn!("cannot read back a setting that the study has changed: {error:#}");
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
