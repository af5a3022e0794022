//! Lets one run at a time change the settings of an external server. Of two at once, the second would take the values of
//! the first for the server's, and put them back at its end.

use std::sync::OnceLock;

use anyhow::{Result, bail};
use pgassay_server::Connection;

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

/// Marks a run's long-lived connection as that of a run that changes settings, before it reads their values.
///
/// # Errors
/// Another run that changes settings is in progress on this server, or as for statements.
pub fn claim_settings(connection: &mut Connection, key: &str, place: &str) -> Result<()> {
    let process = PROCESS.get_or_init(|| key.to_owned());
    // First: of two runs that begin at the same moment, at least one sees the other.
    connection.execute(&format!("set application_name = '{key}{MARK}{process}'"))?;
    check_others(connection, (key, process), place)
}

/// Fails if a run is in progress that changes settings, other than the killed one with this key.
///
/// # Errors
/// As [`claim_settings`].
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
