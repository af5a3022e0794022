//! Connections that do nothing: what a study of connections asks for beside its load.

use anyhow::{Context, Result};
use pgassay_core::plan::{Plan, ServerPlan};
use pgassay_server::Connection;

use super::host::Host;
use crate::interrupt::Interrupt;
use crate::progress::Progress;

/// Files that are open for anything else.
const FILES_SPARE: u64 = 256;

/// Makes sure that all connections of a plan, the load's too, may be open at once.
pub fn make_room(plan: &Plan) -> Result<()> {
    let idle = plan
        .servers
        .iter()
        .any(|server| server.idle_connections > 0);
    if !idle {
        return Ok(());
    }
    let servers = plan.servers.iter();
    let needed: u64 = servers.map(|server| u64::from(server.connections)).sum();
    pgassay_load::raise_open_files(needed + FILES_SPARE)
        .context("cannot hold the study's idle connections")
}

/// Opens a server's idle connections; they end with what they are put into.
pub fn open(
    server: &dyn Host,
    wanted: &ServerPlan,
    interrupt: &Interrupt,
    progress: &mut Progress,
    held: &mut Vec<Connection>,
) -> Result<()> {
    if wanted.idle_connections == 0 {
        return Ok(());
    }
    progress.stage(&format!(
        "opening {} idle connections",
        wanted.idle_connections
    ));
    for number in 1..=wanted.idle_connections {
        interrupt.check()?;
        let mut connection = server
            .connect(server.database())
            .with_context(|| format!("idle connection {number} of {}", wanted.idle_connections))?;
        // Whoever only signs in has no snapshot, no caches, and is no likeness of a pooled session.
        connection.execute("select count(*) from pg_class")?;
        held.push(connection);
    }
    Ok(())
}
