//! Facts that an external server reports about itself.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use pgassay_server::{BuildFacts, Connection};

use crate::external;

/// The oldest supported version, as in `server_version_num`.
const VERSION_MIN: u32 = 90_600;
/// All non-default settings, restricted to types that cannot hold secrets: numbers, enums, and names
/// of libraries. Settings of pgassay's own session are excluded.
const SETTINGS: &str = "select name, current_setting(name) from pg_settings \
     where source not in ('default', 'override', 'environment variable', 'client', 'session', \
                          'database', 'database user') \
       and name <> 'port' \
       and (vartype <> 'string' or name in ('jit_provider', 'local_preload_libraries', \
            'session_preload_libraries', 'shared_preload_libraries', 'synchronous_standby_names'))";

/// Facts about an external server.
#[derive(Debug)]
pub struct Facts {
    /// The version, for example `15.18`.
    pub version: String,
    /// `server_version_num`, for example `150018`.
    pub number: u32,
    /// How it was built, as far as it reports that.
    pub build: BuildFacts,
    /// Settings that are not PostgreSQL's defaults.
    pub settings: BTreeMap<String, String>,
    /// The number of connections available to this role.
    pub connections_max: u32,
    /// Prefix for the names of this run's databases.
    pub key: String,
    /// The role, quoted as in SQL if necessary.
    pub role: String,
    /// Whether the role is a superuser, or can become one.
    pub superuser: SuperuserRights,
    /// Whether the role can create databases.
    pub can_create_databases: bool,
    /// Whether the server is a standby, which no one can change.
    pub is_standby: bool,
}

/// Whether a session has the rights of a superuser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperuserRights {
    /// Neither its role nor one that it can take.
    Absent,
    /// A statement can take them: the user is a superuser with the setting `role`, or a member of a role that is one.
    WithSetRole,
    /// Its role is one.
    Present,
}

impl Facts {
    /// Queries the server and chooses a prefix for this run's databases.
    ///
    /// # Errors
    /// If the server is too old, or does not answer as PostgreSQL does.
    pub fn ask(connection: &mut Connection, place: &str) -> Result<Self> {
        let mut ask = |sql: &str| -> Result<String> {
            let value = connection.value(sql)?;
            value.with_context(|| format!("the server at {place} returned no value for {sql}"))
        };
        let version = ask("show server_version")?;
        let garbled = |what: &str| format!("the server at {place} returned no number for {what}");
        let number = ask("show server_version_num")?.parse::<u32>();
        let number = number.with_context(|| garbled("its version"))?;
        if number < VERSION_MIN {
            bail!("the server at {place} is PostgreSQL {version}; pgassay supports 9.6 and later");
        }
        let is_standby = ask("select pg_is_in_recovery()")? == "t";
        let role = ask("select quote_ident(current_user)")?;
        let of_role =
            |what: &str| format!("select {what} from pg_roles where rolname = current_user");
        // Since 16, a member may lack the right to take the role.
        let right = if number < 160_000 { "member" } else { "set" };
        let superusers = format!(
            "select exists (select from pg_roles where rolsuper and pg_has_role(session_user, oid, '{right}'))"
        );
        let superuser = if ask(&of_role("rolsuper"))? == "t" {
            SuperuserRights::Present
        } else if ask(&superusers)? == "t" {
            SuperuserRights::WithSetRole
        } else {
            SuperuserRights::Absent
        };
        let can_create_databases = ask(&of_role("rolcreatedb or rolsuper"))? == "t";
        let room = "select least(nullif(rolconnlimit, -1), current_setting('max_connections')::int \
                    - case when rolsuper then 0 \
                      else current_setting('superuser_reserved_connections')::int end) \
                    from pg_roles where rolname = current_user";
        let connections_max = ask(room)?.parse();
        let connections_max = connections_max.with_context(|| garbled("its connections"))?;
        let banner = ask("select version()")?;
        let key = "select 'pgassay_' || substr(md5(random()::text || clock_timestamp()::text \
                   || pg_backend_pid()::text), 1, 8)";
        let key = ask(key)?;
        if !external::is_key(&key) {
            bail!(
                "the server at {place} answered {key:?} where PostgreSQL returns the name of a new database"
            );
        }
        connection.execute(&format!("set application_name = '{key}'"))?;
        // This connection stays idle during the whole run.
        let patience = "select set_config(name, '0', false) from pg_settings \
                        where name = 'idle_session_timeout'";
        connection.execute(patience)?;
        let mut built = |what: &str| {
            // Only superusers and roles they permit can read pg_config.
            let sql = format!("select setting from pg_config where name = '{what}'");
            connection.value(&sql).ok().flatten()
        };
        let build = BuildFacts::reported(banner, built("CONFIGURE"), built("CFLAGS"));
        Ok(Self {
            // Vendors may append text to the version.
            version: version.split(' ').next().unwrap_or_default().to_owned(),
            number,
            build,
            settings: pairs(connection, SETTINGS)?,
            connections_max,
            key,
            role,
            superuser,
            can_create_databases,
            is_standby,
        })
    }

    /// The major version, for example `15` or `9.6`.
    pub fn major(&self) -> String {
        match self.number / 10_000 {
            9 => format!("9.{}", self.number / 100 % 100),
            major => major.to_string(),
        }
    }
}

fn pairs(connection: &mut Connection, sql: &str) -> Result<BTreeMap<String, String>> {
    let rows = connection.query(sql)?.into_iter();
    let pair = |row: Vec<Option<String>>| {
        let mut values = row.into_iter().map(Option::unwrap_or_default);
        (
            values.next().unwrap_or_default(),
            values.next().unwrap_or_default(),
        )
    };
    Ok(rows.map(pair).collect())
}

/// Settings that differ from the study's, for example `jit = off (yours: on)`.
pub fn differing_settings<'a>(
    connection: &mut Connection,
    wanted: impl Iterator<Item = (&'a String, &'a String)>,
) -> Result<Vec<String>> {
    let mut differ = Vec::new();
    for (name, value) in wanted {
        // pgassay's own connection has another search_path.
        let sql = "select case when lower(name) = 'search_path' then reset_val else current_setting(name) end \
                   from pg_settings where lower(name) = lower($1)";
        let answer = connection.query_with(sql, &[Some(name)])?;
        let theirs = answer.rows.into_iter().flatten().next().flatten();
        match theirs {
            Some(theirs) if is_same(value, &theirs) => {}
            Some(theirs) => differ.push(format!("{name} = {value} (yours: {theirs})")),
            None => differ.push(format!("{name} = {value} (not available on your server)")),
        }
    }
    Ok(differ)
}

/// Compares settings. Booleans can be spelled in several ways; other values are compared as text.
fn is_same(wanted: &str, theirs: &str) -> bool {
    let plain = |value: &str| match value.to_lowercase().as_str() {
        "true" | "yes" | "1" => "on".to_owned(),
        "false" | "no" | "0" => "off".to_owned(),
        other => other.to_owned(),
    };
    plain(wanted) == plain(theirs)
}

/// Databases of this role that a run created which no longer exists.
pub fn leftover_databases(connection: &mut Connection) -> Result<Vec<String>> {
    let sql = "select datname from pg_database d join pg_roles r on r.oid = d.datdba \
               where r.rolname = current_user and datname ~ '^pgassay_[0-9a-f]{8}_data_[0-9]+$' \
                 and not exists (select from pg_stat_activity a \
                                 where substr(a.application_name, 1, 16) = substr(d.datname, 1, 16)) \
               order by 1";
    let rows = connection.query(sql)?.into_iter().flatten();
    Ok(rows.flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn booleans_compare_in_any_spelling() {
        assert!(is_same("true", "on") && is_same("off", "off") && is_same("1GB", "1gb"));
        assert!(!is_same("1GB", "128MB") && !is_same("false", "on"));
    }
}
