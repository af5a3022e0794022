//! Limits for pgassay's own statements on external servers: of their time, and of the objects that they find. The
//! load's statements have none, unless the study sets them in `session`.

use std::time::Duration;

use anyhow::Result;
use pgassay_server::Connection;

/// Inspection and the creation of databases. PostgreSQL runs a checkpoint for the latter.
const INSPECTION: &str = "set lock_timeout = '30s'; set statement_timeout = '10min'";
/// In other schemas, any user may have created functions and operators that fit an argument better than the catalog's:
/// pgassay's role, a superuser maybe, would run them (CVE-2018-1058).
const CATALOG_ONLY: &str = "set search_path = pg_catalog, pg_temp";
/// A study's setup and reset, which can raise the limits themselves.
const STUDY: &str = "set lock_timeout = '1min'; set statement_timeout = '1h'";
/// Since 14, on Linux and some other systems: the server ends a statement whose client is gone. Every name has its
/// schema, since the study's statements keep the role's `search_path`.
const CANCEL_IF_GONE: &str = "select pg_catalog.set_config(name, '2s', false) from pg_catalog.pg_settings \
     where name operator(pg_catalog.=) 'client_connection_check_interval'";

/// How long to wait for the answer to an inspection: longer than the server allows for it.
pub const PATIENCE: Duration = Duration::from_mins(11);

/// Lets statements find the catalog's objects only.
pub fn limit_to_catalog(connection: &mut Connection) -> Result<()> {
    Ok(connection.execute(CATALOG_ONLY)?)
}

/// Limits statements that inspect the server: their time, and the objects that they find.
pub fn limit_inspection(connection: &mut Connection) -> Result<()> {
    connection.execute(INSPECTION)?;
    limit_to_catalog(connection)
}

/// Limits the time of a study's own statements outside of the load.
pub fn limit_study(connection: &mut Connection) -> Result<()> {
    connection.execute(STUDY)?;
    match connection.execute(CANCEL_IF_GONE) {
        // Not every system can detect it.
        Err(error) if error.sql().is_none() => Err(error.into()),
        _ => Ok(()),
    }
}
