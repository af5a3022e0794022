//! Puts the settings back that a study changed, unless others have changed them since.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use pgassay_server::Connection;

use super::backup::{BackupScope, LOADED, SettingBackup, literal, may_be_secret, read_values};

/// How long a reload may take.
const RELOAD_LIMIT: Duration = Duration::from_secs(10);
const RELOAD_POLL: Duration = Duration::from_millis(50);
/// The role or the database does not exist anymore.
const GONE: [&str; 2] = ["42704", "3D000"];

/// What became of settings.
#[derive(Debug, Default)]
pub struct RestoredSettings {
    /// The statements that put them back.
    pub done: Vec<String>,
    /// Those with another value than the run gave them, which stays: for people.
    pub kept: Vec<String>,
}

impl RestoredSettings {
    /// A warning about those that were left as they are.
    pub fn warning(&self, place: &str) -> Option<String> {
        (!self.kept.is_empty()).then(|| {
            format!(
                "settings of the external server at {place} have values that the run is not known to have set, so they \
                 were left as they are: {}",
                self.kept.join("; ")
            )
        })
    }
}

/// Puts settings back that still have a value that the study gave them, and reloads the configuration if that is
/// necessary.
///
/// # Errors
/// The first statement that fails; the others are executed nevertheless.
pub fn restore(connection: &mut Connection, backups: &[SettingBackup]) -> Result<RestoredSettings> {
    let mut restored = RestoredSettings::default();
    let mut failed = None;
    if backups.is_empty() {
        return Ok(restored);
    }
    let values = read_values(connection)?;
    for backup in backups {
        let value = values.get(&(backup.scope.clone(), backup.name.clone()));
        if backup.is_as_before(value) {
            continue;
        }
        if !backup.is_given(value) {
            if exists(connection, &backup.scope)? {
                restored.kept.push(kept(backup, value));
            }
            continue;
        }
        let statement = backup.statement();
        match connection.execute(&statement) {
            Ok(()) => restored.done.push(statement),
            Err(error)
                if error
                    .sql()
                    .is_some_and(|it| GONE.contains(&it.sqlstate.as_str())) => {}
            Err(error) => {
                let error = anyhow::Error::from(error);
                failed.get_or_insert(
                    error.context(format!("cannot put back a setting: {statement}")),
                );
            }
        }
    }
    reload(connection, backups)?;
    match failed {
        Some(error) => Err(error),
        None => Ok(restored),
    }
}

/// A setting that is left as it is.
fn kept(backup: &SettingBackup, value: Option<&String>) -> String {
    let found = match value {
        None => "is not set".to_owned(),
        Some(value) if may_be_secret(&backup.name, value) => {
            "has a value that may be a password and is not shown".to_owned()
        }
        Some(value) => format!("is {}", shown(value)),
    };
    let before = backup.value.as_deref().map_or("not set".to_owned(), shown);
    format!(
        "{} {found} (before the run: {before}; to put that back: {};)",
        backup.describe(),
        backup.statement()
    )
}

fn shown(value: &str) -> String {
    format!("'{value}'")
}

/// Whether there are this role and this database; if not, nothing is to be put back.
fn exists(connection: &mut Connection, scope: &BackupScope) -> Result<bool> {
    let BackupScope::RoleOrDatabase { role, database } = scope else {
        return Ok(true);
    };
    let mut is_there = true;
    for (catalog, column, name) in [
        ("pg_roles", "rolname", role),
        ("pg_database", "datname", database),
    ] {
        let Some(name) = name else { continue };
        let sql = format!("select 1 from {catalog} where {column} = {}", literal(name));
        is_there &= connection.value(&sql)?.is_some();
    }
    Ok(is_there)
}

/// Reloads the configuration if it was reloaded since the backups: then the values of the study are
/// in effect. Otherwise a reload would only put into effect what others have changed.
fn reload(connection: &mut Connection, backups: &[SettingBackup]) -> Result<()> {
    let before = backups.iter().find_map(|it| it.loaded.as_ref());
    let now = connection.value(LOADED)?;
    if before.is_none() || now.as_ref() == before {
        return Ok(());
    }
    connection.execute("select pg_reload_conf()")?;
    // The server has reloaded it before this session does, at one of its next statements.
    let until = Instant::now() + RELOAD_LIMIT;
    while connection.value(LOADED)? == now {
        if Instant::now() > until {
            bail!("settings were put back, but the server has not reloaded its configuration");
        }
        std::thread::sleep(RELOAD_POLL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup(name: &str, value: Option<&str>) -> SettingBackup {
        SettingBackup {
            scope: BackupScope::RoleOrDatabase {
                role: Some("bench".to_owned()),
                database: None,
            },
            name: name.to_owned(),
            value: value.map(str::to_owned),
            given: Vec::new(),
            loaded: None,
        }
    }

    #[test]
    fn what_is_left_as_it_is_is_named_with_its_values_and_the_statement() {
        let found = "777MB".to_owned();
        assert_eq!(
            kept(&backup("work_mem", None), Some(&found)),
            "work_mem of role bench is '777MB' (before the run: not set; to put that back: \
             alter role \"bench\" reset \"work_mem\";)"
        );
        assert_eq!(
            kept(&backup("work_mem", Some("4MB")), None),
            "work_mem of role bench is not set (before the run: '4MB'; to put that back: \
             alter role \"bench\" set \"work_mem\" = E'4MB';)"
        );
        let secret = kept(&backup("app.password", None), Some(&"s3cret".to_owned()));
        assert!(secret.contains("may be a password") && !secret.contains("s3cret"));
    }
}
