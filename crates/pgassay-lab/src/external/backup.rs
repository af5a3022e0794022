//! The settings that a study changes outside of its sessions: their values before, and those that the
//! study gives them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use pgassay_script::{AssignedValue, RoleName, SettingChange, SettingScope};
use pgassay_server::Connection;
use serde::{Deserialize, Serialize};

/// The settings of `ALTER SYSTEM`; a later line overrides an earlier one. In this and the next two queries every name
/// has its schema, because a study's own connection keeps the role's `search_path`.
const SYSTEM: &str = "select pg_catalog.lower(name), setting from pg_catalog.pg_file_settings \
     where sourcefile operator(pg_catalog.~~) '%/postgresql.auto.conf' and name is not null order by seqno";
/// The settings of roles and databases, as (role, database, `name=value`).
const OF_ROLES: &str = "select rolname, datname, entry \
     from (select setrole, setdatabase, pg_catalog.unnest(setconfig) as entry \
           from pg_catalog.pg_db_role_setting) s \
     left join pg_catalog.pg_roles r on r.oid operator(pg_catalog.=) setrole \
     left join pg_catalog.pg_database d on d.oid operator(pg_catalog.=) setdatabase";
/// When the configuration was loaded. A new session has the server's value, and another one only
/// after a reload.
pub(super) const LOADED: &str =
    "select extract(epoch from pg_catalog.pg_conf_load_time())::pg_catalog.text";
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
const SECRET: [&str; 13] = [
    "api_key",
    "apikey",
    "conninfo",
    "credential",
    "passphrase",
    "passwd",
    "password",
    "private_key",
    "privatekey",
    "pwd",
    "secret",
    "sshpass",
    "token",
];
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

/// A setting before a study changes it, and what the study makes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingBackup {
    pub(super) scope: BackupScope,
    /// In lower case.
    pub(super) name: String,
    /// `None` if it was not set there.
    pub(super) value: Option<String>,
    /// The values that the study gives it, as far as they are known: `None` resets it. Another value
    /// is not the study's, and stays.
    pub(super) given: Vec<Option<String>>,
    /// For `ALTER SYSTEM`: when the configuration was loaded, in seconds since 1970.
    pub(super) loaded: Option<String>,
}

pub(super) type Values = BTreeMap<(BackupScope, String), String>;

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
                let known = backups
                    .iter()
                    .position(|it| it.scope == scope && it.name == name);
                let at = if let Some(at) = known {
                    at
                } else {
                    let value = values.get(&(scope.clone(), name.clone())).cloned();
                    backups.push(Self::new(connection, scope.clone(), name, value)?);
                    backups.len() - 1
                };
                backups[at].add_assigned(&change.value);
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
        if value
            .as_deref()
            .is_some_and(|value| may_be_secret(&name, value))
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
            given: Vec::new(),
            loaded,
        })
    }

    fn add_assigned(&mut self, value: &AssignedValue) {
        let text = match value {
            AssignedValue::Reset => None,
            AssignedValue::Constants(items) if LISTS.contains(&self.name.as_str()) => {
                let items: Vec<String> = items.iter().map(|it| quoted(it)).collect();
                Some(items.join(", "))
            }
            AssignedValue::Constants(items) => Some(items.join(", ")),
            AssignedValue::Unknown => return,
        };
        self.add_given(text);
    }

    /// Adds a value that the study gives it. Returns whether it was not known.
    pub(super) fn add_given(&mut self, value: Option<String>) -> bool {
        let is_new = !self.is_as_before(value.as_ref()) && !self.is_given(value.as_ref());
        if is_new {
            self.given.push(value);
        }
        is_new
    }

    /// Whether this is its value before the run.
    pub(super) fn is_as_before(&self, value: Option<&String>) -> bool {
        self.value.as_ref() == value
    }

    /// Whether the study gives it this value.
    pub(super) fn is_given(&self, value: Option<&String>) -> bool {
        let is_list = LISTS.contains(&self.name.as_str());
        self.given.iter().any(|given| match (given, value) {
            // The server quotes only names that need it.
            (Some(given), Some(value)) if is_list => items(given) == items(value),
            (given, value) => given.as_ref() == value,
        })
    }

    /// Whether it is the setting that a statement changes.
    pub(super) fn is_of(&self, scope: &BackupScope, name: Option<&str>) -> bool {
        self.scope == *scope && name.is_none_or(|name| name.eq_ignore_ascii_case(&self.name))
    }

    /// For a journal, which contains no value that may be a password.
    pub fn without_secrets(&self) -> Self {
        let is_open = |it: &&Option<String>| {
            it.as_deref()
                .is_none_or(|value| !may_be_secret(&self.name, value))
        };
        Self {
            given: self.given.iter().filter(is_open).cloned().collect(),
            ..self.clone()
        }
    }

    /// Its name and what has it: `work_mem of role bench`.
    pub(super) fn describe(&self) -> String {
        let name = &self.name;
        match &self.scope {
            BackupScope::System => format!("{name} of ALTER SYSTEM"),
            BackupScope::RoleOrDatabase { role, database } => match (role, database) {
                (Some(role), None) => format!("{name} of role {role}"),
                (Some(role), Some(database)) => {
                    format!("{name} of role {role} in database {database}")
                }
                (None, Some(database)) => format!("{name} of database {database}"),
                (None, None) => format!("{name} of all roles"),
            },
        }
    }

    /// The statement that puts the value back.
    pub(super) fn statement(&self) -> String {
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

/// Whether this value may contain a password.
pub(super) fn may_be_secret(name: &str, value: &str) -> bool {
    names_secret(name) || names_secret(value) || has_url_with_password(value)
}

/// Whether a text has a word that a password may follow.
pub(super) fn names_secret(text: &str) -> bool {
    let text = text.to_lowercase();
    SECRET.iter().any(|word| text.contains(word))
}

/// Whether a text has a URL such as `s3://user:password@host/`.
fn has_url_with_password(text: &str) -> bool {
    text.split("://").skip(1).any(|rest| {
        // A password may contain a slash that is not encoded, but no white space.
        let word = rest.split_whitespace().next().unwrap_or_default();
        let user = word.rsplit_once('@').map(|(user, _)| user);
        user.is_some_and(|it| it.contains(':'))
    })
}

pub(super) fn scope_of(connection: &mut Connection, scope: &SettingScope) -> Result<BackupScope> {
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
    let sql = "select pg_catalog.has_function_privilege('pg_catalog.pg_show_all_file_settings()', 'execute') \
               and pg_catalog.has_table_privilege('pg_catalog.pg_file_settings', 'select')";
    Ok(connection.value(sql)?.as_deref() == Some("t"))
}

pub(super) fn read_values(connection: &mut Connection) -> Result<Values> {
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
            given: Vec::new(),
            loaded: None,
        };
        backup.statement()
    }

    fn of_list(value: &str, assigned: &AssignedValue) -> SettingBackup {
        let mut backup = SettingBackup {
            scope: BackupScope::System,
            name: "search_path".to_owned(),
            value: Some(value.to_owned()),
            given: Vec::new(),
            loaded: None,
        };
        backup.add_assigned(assigned);
        backup
    }

    #[test]
    fn the_values_that_a_study_gives_are_known_in_the_servers_form() {
        let items = ["$user", "public", "A b"].map(str::to_owned).to_vec();
        let backup = of_list("public", &AssignedValue::Constants(items));
        let given = |value: &str| backup.is_given(Some(&value.to_owned()));
        assert!(given(r#""$user", public, "A b""#));
        assert!(!given(r#""$user", public"#) && !given("public"));
        assert!(!backup.is_given(None) && backup.is_as_before(Some(&"public".to_owned())));
        let reset = of_list("public", &AssignedValue::Reset);
        assert!(reset.is_given(None) && !reset.is_given(Some(&"a".to_owned())));
        let unknown = of_list("public", &AssignedValue::Unknown);
        assert!(!unknown.is_given(None));
    }

    #[test]
    fn a_given_value_that_may_be_a_password_is_not_for_a_journal() {
        let mut backup = of_list("public", &AssignedValue::Reset);
        backup.name = "app.note".to_owned();
        assert!(backup.add_given(Some("password=s3cret".to_owned())));
        assert!(!backup.add_given(Some("password=s3cret".to_owned())));
        assert!(backup.add_given(Some("plain".to_owned())));
        let kept = backup.without_secrets().given;
        assert_eq!(kept, [None, Some("plain".to_owned())]);
        backup.name = "app.password".to_owned();
        assert_eq!(backup.without_secrets().given, [None]);
    }

    /// Regression: these were in the journal, and in the results.
    #[test]
    fn tokens_keys_and_urls_with_a_password_are_secret() {
        for (name, value) in [
            ("app.api_key", "x"),
            ("app.pwd", "x"),
            ("archive_command", "SSHPASS=x sshpass -e scp %p h:"),
            ("archive_command", "curl -H 'Authorization: Token x'"),
            ("archive_command", "put --to s3://me:pa/ss@host/%f"),
            ("app.credentials", "x"),
        ] {
            assert!(may_be_secret(name, value), "{name} = {value}");
        }
        for (name, value) in [
            ("archive_command", "put --to s3://me@host/%f"),
            ("archive_command", "put --to http://host:80/%f you@host"),
            ("work_mem", "64MB"),
        ] {
            assert!(!may_be_secret(name, value), "{name} = {value}");
        }
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
