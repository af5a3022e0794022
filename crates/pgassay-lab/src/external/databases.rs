//! Removes a run's databases from an external server.

use anyhow::{Result, anyhow, bail};
use pgassay_record::run::Warning;
use pgassay_server::{Connection, ConnectionError};

/// Drops a database that a run created, and ends the connections to it.
///
/// # Errors
/// The name is not that of a run's database, or as for statements.
pub fn drop_database(connection: &mut Connection, name: &str) -> Result<()> {
    if !is_of_run(name) {
        bail!("{name:?} is not the name of a database of a run");
    }
    Ok(drop_it(connection, name)?)
}

fn drop_it(connection: &mut Connection, name: &str) -> Result<(), ConnectionError> {
    // A client that was killed during a query may still have a backend.
    connection.execute(&format!(
        "select pg_terminate_backend(pid) from pg_stat_activity \
         where datname = '{name}' and usename = current_user"
    ))?;
    connection.execute(&format!("drop database if exists {name}"))
}

/// The warnings about what else is different on the server. If databases could not be dropped, these warnings, or the
/// error with which the comparison failed, are part of the error: the user would not learn of them otherwise.
///
/// # Errors
/// Those of the arguments.
pub fn with_databases_left(
    compared: Result<Vec<Warning>>,
    dropped: Result<()>,
) -> Result<Vec<Warning>> {
    let Err(error) = dropped else { return compared };
    let mut messages = vec![format!("{error:#}")];
    match compared {
        Ok(warnings) => messages.extend(warnings.into_iter().map(|it| it.message)),
        // Both often fail alike, because the connection is broken.
        Err(other) if format!("{other:#}") == messages[0] => {}
        Err(other) => messages.insert(0, format!("{other:#}")),
    }
    Err(anyhow!(messages.join("; ")))
}

/// Whether this is the key of a run: `pgassay_` and eight hexadecimal digits. A server chooses it, and it becomes part
/// of the name of a file and of statements.
pub fn is_key(key: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let digits = key.strip_prefix("pgassay_");
    digits.is_some_and(|it| it.len() == 8 && it.bytes().all(is_digit))
}

/// Whether this is the key of a run, `_data_` and a number.
fn is_of_run(name: &str) -> bool {
    let parts = name.split_once("_data_");
    parts.is_some_and(|(key, number)| {
        is_key(key) && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use pgassay_record::run::WarningKind;

    use super::*;

    /// Regression: a study left a role, and a prepared transaction, because of which its database could not be
    /// dropped. Only the database was named.
    #[test]
    fn a_database_that_cannot_be_dropped_does_not_hide_what_else_is_left() {
        let changed = Warning {
            kind: WarningKind::ServerChanged,
            variant: None,
            message: "role bob added".to_owned(),
        };
        let left = || Err(anyhow!("there is 1 prepared transaction"));
        let error = with_databases_left(Ok(vec![changed.clone()]), left()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is 1 prepared transaction; role bob added"
        );
        assert!(with_databases_left(Err(anyhow!("broken")), Ok(())).is_err());
        assert_eq!(
            with_databases_left(Ok(vec![changed]), Ok(()))
                .unwrap()
                .len(),
            1
        );
    }

    /// Regression: if settings could not be put back and databases could not be dropped, only the latter was named.
    #[test]
    fn both_errors_are_named_if_both_steps_fail() {
        let failed = |what: &'static str| anyhow!(what);
        let error = with_databases_left(
            Err(failed("a setting is left")),
            Err(failed("one database")),
        );
        assert_eq!(
            error.unwrap_err().to_string(),
            "a setting is left; one database"
        );
        let error = with_databases_left(Err(failed("broken pipe")), Err(failed("broken pipe")));
        assert_eq!(error.unwrap_err().to_string(), "broken pipe");
    }

    /// Regression: a server that answered with a path chose where the journal was created.
    #[test]
    fn a_server_cannot_choose_a_path_as_the_key_of_a_run() {
        assert!(is_key("pgassay_0123abcd"));
        for key in [
            "",
            "pgassay_",
            "pgassay_0123ABCD",
            "pgassay_0123abcde",
            "../../.ssh/evil1",
            "pgassay_/../../a",
            "pgassay_'; drop ",
        ] {
            assert!(!is_key(key), "{key}");
        }
    }

    #[test]
    fn only_databases_of_runs_are_dropped() {
        assert!(is_of_run("pgassay_0123abcd_data_0"));
        for name in [
            "shop",
            "pgassay_0123abcd_data_",
            "pgassay_0123abcd_data_0; drop database shop",
            "pgassay_0123abc_data_0",
        ] {
            assert!(!is_of_run(name), "{name}");
        }
    }
}
