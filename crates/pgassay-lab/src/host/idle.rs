//! Idle connections that a study requests in addition to its load.

use anyhow::{Context, Result};
use pgassay_model::plan::{Plan, ServerPlan};

use super::{Host, SqlConnection};
use crate::run_context::RunContext;

/// Reserve for other open files.
const FILES_SPARE: u64 = 256;

/// Raises the limit on open files so that all connections of a plan can be open at once.
pub fn raise_open_files(plan: &Plan) -> Result<()> {
    let idle = plan
        .servers
        .iter()
        .any(|server| server.idle_connections > 0);
    if !idle {
        return Ok(());
    }
    let servers = plan.servers.iter();
    let needed: u64 = servers.map(|server| u64::from(server.connections)).sum();
    pgassay_load::raise_open_files(needed + FILES_SPARE, 0)
        .context("cannot open the study's idle connections")
}

/// Opens a server's idle connections and adds them to `held`, which closes them when dropped.
pub fn open(
    server: &dyn Host,
    wanted: &ServerPlan,
    context: &RunContext<'_>,
    held: &mut Vec<Box<dyn SqlConnection>>,
) -> Result<()> {
    if wanted.idle_connections == 0 {
        return Ok(());
    }
    context.stage(&format!(
        "opening {} idle connections",
        wanted.idle_connections
    ));
    for number in 1..=wanted.idle_connections {
        context.check()?;
        let mut connection = server.connect(server.database()).with_context(|| {
            let total = wanted.idle_connections;
            format!("cannot open idle connection {number} of {total}")
        })?;
        let mut names = wanted.settings.keys();
        if names.any(|it| it.eq_ignore_ascii_case("idle_session_timeout")) {
            connection.execute("set idle_session_timeout = 0")?;
        }
        // Run one query, so that the session has taken a snapshot and filled caches as pooled
        // sessions have.
        connection.execute("select pg_catalog.count(*) from pg_catalog.pg_class")?;
        held.push(connection);
    }
    Ok(())
}
