//! Removes a run's databases from an external server.

use anyhow::{Result, bail};
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

/// Whether this is `pgassay_`, eight hexadecimal digits, `_data_` and a number.
fn is_of_run(name: &str) -> bool {
    let parts = name
        .strip_prefix("pgassay_")
        .and_then(|rest| rest.split_once("_data_"));
    parts.is_some_and(|(key, number)| {
        key.len() == 8
            && key.bytes().all(|byte| byte.is_ascii_hexdigit())
            && !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::is_of_run;

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
