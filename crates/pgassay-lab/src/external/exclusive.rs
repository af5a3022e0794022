//! Lets one run at a time change the settings of an external server. Of two at once, the second would take the values of
//! the first for the server's, and put them back at its end.

use std::sync::OnceLock;

use anyhow::{Result, bail};
use pgassay_server::{Connection, ConnectionError};

/// The `application_name` of a run's long-lived connection: its key, this, and the key of its process.
const MARK: &str = "_settings_";
/// Every role can read these two columns.
const OTHERS: &str = "select pid from pg_stat_activity \
     where application_name ~ '^pgassay_[0-9a-f]{8}_settings_' \
       and split_part(application_name, '_settings_', 1) <> $1 \
       and split_part(application_name, '_settings_', 2) <> $2 \
     order by 1";

/// The key of the first run of this process: a run may reach a server by several connection strings.
static PROCESS: OnceLock<String> = OnceLock::new();

/// The claim of a run to be the only one that changes settings. It lasts as long as the session that has its mark.
#[derive(Clone, Debug)]
pub struct SettingsClaim {
    /// The `application_name` of that session.
    mark: String,
}

impl SettingsClaim {
    /// Marks a run's long-lived connection as that of a run that changes settings, before it reads their values.
    ///
    /// # Errors
    /// Another run that changes settings is in progress on this server, or as for statements.
    pub fn take(connection: &mut Connection, key: &str, place: &str) -> Result<Self> {
        let process = PROCESS.get_or_init(|| key.to_owned());
        let mark = format!("{key}{MARK}{process}");
        // First: of two runs that begin at the same moment, at least one sees the other.
        connection.execute(&format!("set application_name = '{mark}'"))?;
        check_others(connection, (key, process), place)?;
        Ok(Self { mark })
    }

    /// Checks, on any connection, that the session with the mark is still there: without it, another run may have begun
    /// to change settings.
    ///
    /// # Errors
    /// It has ended, or as for statements.
    pub fn check(&self, connection: &mut Connection) -> Result<(), ConnectionError> {
        let sql = "select pid from pg_catalog.pg_stat_activity where application_name operator(pg_catalog.=) $1";
        let found = connection.query_with(sql, &[Some(&self.mark)])?;
        if found.rows.is_empty() {
            let words = "the session that keeps other runs from changing settings of the server has ended, so this run \
                         changes no more of them";
            return Err(ConnectionError::NotExecuted(words.to_owned()));
        }
        Ok(())
    }
}

/// Fails if a run is in progress that changes settings, other than the killed one with this key.
///
/// # Errors
/// As [`SettingsClaim::take`].
pub fn check_no_other(connection: &mut Connection, killed: &str, place: &str) -> Result<()> {
    check_others(connection, (killed, ""), place)
}

fn check_others(
    connection: &mut Connection,
    (key, process): (&str, &str),
    place: &str,
) -> Result<()> {
    let found = connection.query_with(OTHERS, &[Some(key), Some(process)])?;
    let other = found.rows.into_iter().flatten().flatten().next();
    if let Some(pid) = other {
        bail!(
            "another run of pgassay is changing settings of the server at {place}, and two at once could not put them \
             back; wait until it has ended. If nothing is left of it but its session: select \
             pg_terminate_backend({pid});"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pgassay_test_support::{servers, wait_until};

    use super::*;

    /// Regression: after the end of the session, another run could change settings at the same time.
    #[test]
    fn a_claim_ends_with_its_session() {
        for version in ["12", "18"] {
            let Some(server) = servers::start(version) else {
                continue;
            };
            let mut holder = server.connect().unwrap();
            let claim = SettingsClaim::take(&mut holder, "pgassay_0123abcd", "h").unwrap();
            let mut other = server.connect().unwrap();
            claim.check(&mut other).unwrap();
            drop(holder);
            wait_until("the session ends", || claim.check(&mut other).is_err());
            let error = claim.check(&mut other).unwrap_err();
            assert!(error.to_string().contains("has ended"), "{error}");
        }
    }
}
