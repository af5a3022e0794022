//! The settings that a study changes outside of its sessions: their values before, and how they are
//! put back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pgassay_script::{RoleName, SettingChange, SettingScope};
use pgassay_server::Connection;
use serde::{Deserialize, Serialize};

/// The settings of `ALTER SYSTEM`; a later line overrides an earlier one.
const SYSTEM: &str = "select lower(name), setting from pg_file_settings \
     where sourcefile like '%/postgresql.auto.conf' and name is not null order by seqno";
/// The settings of roles and databases, as (role, database, `name=value`).
const OF_ROLES: &str = "select rolname, datname, entry \
     from (select setrole, setdatabase, unnest(setconfig) as entry from pg_db_role_setting) s \
     left join pg_roles r on r.oid = setrole left join pg_database d on d.oid = setdatabase";
/// When the configuration was loaded. A new session has the server's value, and another one only
/// after a reload.
const LOADED: &str = "select extract(epoch from pg_conf_load_time())::text";
/// Settings whose value is a list of names, which `ALTER … SET` takes one by one
/// (`GUC_LIST_QUOTE` in `guc_tables.c`, PostgreSQL 18).
const LISTS: [&str; 9] = [
    "local_preload_libraries",
    "oauth_validator_libraries",
    "restrict_nonsystem_relation_kind",
    "search_path",
    "session_preload_libraries",
    "shared_preload_libraries",
    "synchronized_standby_slots",
    "temp_tablespaces",
    "unix_socket_directories",
];
/// A setting whose name or value has one of these words may contain a password, which is not kept.
const SECRET: [&str; 5] = ["password", "passphrase", "passwd", "secret", "conninfo"];
/// How long a reload may take.
const RELOAD_LIMIT: Duration = Duration::from_secs(10);
const RELOAD_POLL: Duration = Duration::from_millis(50);
/// The role or the database does not exist anymore.
const GONE: [&str; 2] = ["42704", "3D000"];

/// What has a setting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackupScope {
    /// The server: `ALTER SYSTEM`.
    System,
    /// A role, a database, a role in a database, or, if there is neither, all roles.
    RoleOrDatabase {
        /// The role.
        role: Option<String>,
        /// The database.
        database: Option<String>,
    },
}

/// A setting before a study changes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingBackup {
    scope: BackupScope,
    /// In lower case.
    name: String,
    /// `None` if it was not set there.
    value: Option<String>,
    /// For `ALTER SYSTEM`: when the configuration was loaded, in seconds since 1970.
    loaded: Option<String>,
}

type Values = BTreeMap<(BackupScope, String), String>;

impl SettingBackup {
    /// Reads the values of the settings that these statements change.
    ///
    /// # Errors
    /// If a value cannot be read, or may be a secret, which a journal must not contain.
    pub fn read<'a>(
        connection: &mut Connection,
        changes: impl Iterator<Item = &'a SettingChange>,
    ) -> Result<Vec<Self>> {
        let mut backups: Vec<Self> = Vec::new();
        let mut changes = changes.peekable();
        if changes.peek().is_none() {
            return Ok(backups);
        }
        let values = read_values(connection)?;
        for change in changes {
            let scope = scope_of(connection, &change.scope)?;
            if scope == BackupScope::System && !can_read_system(connection)? {
                bail!(
                    "the settings of ALTER SYSTEM cannot be read, so pgassay could not put them \
                     back; grant the role pg_read_all_settings, or remove ALTER SYSTEM from the study"
                );
            }
            let names: Vec<String> = match &change.name {
                Some(name) => vec![name.to_lowercase()],
                None => values
                    .keys()
                    .filter(|(of, _)| *of == scope)
                    .map(|(_, name)| name.clone())
                    .collect(),
            };
            for name in names {
                let value = values.get(&(scope.clone(), name.clone())).cloned();
                let known = backups
                    .iter()
                    .any(|it| it.scope == scope && it.name == name);
                if !known {
                    backups.push(Self::new(connection, scope.clone(), name, value)?);
                }
            }
        }
        Ok(backups)
    }

    fn new(
        connection: &mut Connection,
        scope: BackupScope,
        name: String,
        value: Option<String>,
    ) -> Result<Self> {
        let is_secret = |text: &str| SECRET.iter().any(|word| text.to_lowercase().contains(word));
        if value
            .as_deref()
            .is_some_and(|value| is_secret(value) || is_secret(&name))
        {
            bail!(
                "the study changes {name}, whose current value may contain a password; pgassay does \
                 not keep passwords, so it could not put the value back after a crash"
            );
        }
        let loaded = match scope {
            BackupScope::System => connection.value(LOADED)?,
            BackupScope::RoleOrDatabase { .. } => None,
        };
        Ok(Self {
            scope,
            name,
            value,
            loaded,
        })
    }

    /// The statement that puts the value back.
    fn statement(&self) -> String {
        let name: Vec<String> = self.name.split('.').map(quoted).collect();
        let name = name.join(".");
        let target = match &self.scope {
            BackupScope::System => "alter system".to_owned(),
            BackupScope::RoleOrDatabase { role, database } => match (role, database) {
                (Some(role), None) => format!("alter role {}", quoted(role)),
                (Some(role), Some(database)) => {
                    format!(
                        "alter role {} in database {}",
                        quoted(role),
                        quoted(database)
                    )
                }
                (None, Some(database)) => format!("alter database {}", quoted(database)),
                (None, None) => "alter role all".to_owned(),
            },
        };
        match &self.value {
            None => format!("{target} reset {name}"),
            Some(value) if LISTS.contains(&self.name.as_str()) => {
                let items: Vec<String> = items(value).iter().map(|it| literal(it)).collect();
                let items = if items.is_empty() {
                    vec![literal("")]
                } else {
                    items
                };
                format!("{target} set {name} = {}", items.join(", "))
            }
            Some(value) => format!("{target} set {name} = {}", literal(value)),
        }
    }
}

/// Puts settings back that differ from their values before, and reloads the configuration if that
/// is necessary. Returns the statements that were executed.
///
/// # Errors
/// The first statement that fails; the others are executed nevertheless.
pub fn restore(connection: &mut Connection, backups: &[SettingBackup]) -> Result<Vec<String>> {
    let mut done = Vec::new();
    let mut failed = None;
    if backups.is_empty() {
        return Ok(done);
    }
    let values = read_values(connection)?;
    for backup in backups {
        if values.get(&(backup.scope.clone(), backup.name.clone())) == backup.value.as_ref() {
            continue;
        }
        let statement = backup.statement();
        match connection.execute(&statement) {
            Ok(()) => done.push(statement),
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
        None => Ok(done),
    }
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

fn scope_of(connection: &mut Connection, scope: &SettingScope) -> Result<BackupScope> {
    Ok(match scope {
        SettingScope::System => BackupScope::System,
        SettingScope::Database(name) => BackupScope::RoleOrDatabase {
            role: None,
            database: Some(name.clone()),
        },
        SettingScope::Role { role, database } => BackupScope::RoleOrDatabase {
            role: match role {
                RoleName::All => None,
                RoleName::Current => connection.value("select current_user")?,
                RoleName::Named(name) => Some(name.clone()),
            },
            database: database.clone(),
        },
    })
}

fn can_read_system(connection: &mut Connection) -> Result<bool> {
    let sql = "select has_function_privilege('pg_show_all_file_settings()', 'execute') \
               and has_table_privilege('pg_file_settings', 'select')";
    Ok(connection.value(sql)?.as_deref() == Some("t"))
}

fn read_values(connection: &mut Connection) -> Result<Values> {
    let mut values = Values::new();
    if can_read_system(connection)? {
        for row in connection.query(SYSTEM)? {
            let mut row = row.into_iter().map(Option::unwrap_or_default);
            let name = row.next().context("the server returned no name")?;
            values.insert((BackupScope::System, name), row.next().unwrap_or_default());
        }
    }
    for row in connection.query(OF_ROLES)? {
        let [role, database, Some(entry)] = <[Option<String>; 3]>::try_from(row)
            .ok()
            .context("the server returned an unexpected row of pg_db_role_setting")?
        else {
            continue;
        };
        if let Some((name, value)) = entry.split_once('=') {
            let scope = BackupScope::RoleOrDatabase { role, database };
            values.insert((scope, name.to_lowercase()), value.to_owned());
        }
    }
    Ok(values)
}

pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A string constant, whatever `standard_conforming_strings` is.
pub(super) fn literal(value: &str) -> String {
    format!("E'{}'", value.replace('\\', "\\\\").replace('\'', "''"))
}

/// The names in a list such as `"$user", public`, without quotes.
fn items(list: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut item = String::new();
    let mut is_quoted = false;
    let mut chars = list.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if is_quoted && chars.peek() == Some(&'"') => {
                item.push('"');
                chars.next();
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => found.push(std::mem::take(&mut item)),
            c if c.is_whitespace() && !is_quoted => {}
            c => item.push(c),
        }
    }
    if !item.is_empty() || !found.is_empty() {
        found.push(item);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup(scope: BackupScope, name: &str, value: Option<&str>) -> String {
        let backup = SettingBackup {
            scope,
            name: name.to_owned(),
            value: value.map(str::to_owned),
            loaded: None,
        };
        backup.statement()
    }

    #[test]
    fn the_statement_that_puts_a_value_back_is_quoted() {
        let of = |role: Option<&str>, database: Option<&str>| BackupScope::RoleOrDatabase {
            role: role.map(str::to_owned),
            database: database.map(str::to_owned),
        };
        for (scope, name, value, expected) in [
            (
                BackupScope::System,
                "work_mem",
                Some("64MB"),
                r#"alter system set "work_mem" = E'64MB'"#,
            ),
            (
                BackupScope::System,
                "auto_explain.log_analyze",
                None,
                r#"alter system reset "auto_explain"."log_analyze""#,
            ),
            (
                of(Some("o\"neill"), Some("shop")),
                "datestyle",
                Some("a'b\\c"),
                r#"alter role "o""neill" in database "shop" set "datestyle" = E'a''b\\c'"#,
            ),
            (
                of(None, Some("shop")),
                "search_path",
                Some(r#""$user", public, "a,b""#),
                r#"alter database "shop" set "search_path" = E'$user', E'public', E'a,b'"#,
            ),
            (
                of(None, None),
                "search_path",
                Some(r#""""#),
                r#"alter role all set "search_path" = E''"#,
            ),
        ] {
            assert_eq!(backup(scope, name, value), expected);
        }
    }
}
