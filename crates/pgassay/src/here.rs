//! Whether a server that answers us runs on this machine, and as which processes.

use anyhow::{Context, Result, anyhow};
use pgassay_profile::LiveServer;
use pgassay_wire::Exchange;

use crate::command::run::major_of;
use crate::connector::Stream;

/// Clocks that were set since the server began make the two ideas of that moment differ.
const SAME_START_S: f64 = 60.0;

/// The server's processes on this machine, and the one that serves this connection.
///
/// # Errors
/// A server of another machine or of another container, and processes that may not be looked at.
pub fn find(exchange: &mut Exchange<Stream>) -> Result<(LiveServer, u32)> {
    let own_pid = number(exchange, "select pg_backend_pid()")? as u32;
    let mut server = LiveServer::of_process(own_pid)?;
    let sql = "select extract(epoch from pg_postmaster_start_time())";
    let started_s = number(exchange, sql)?;
    // Another machine's process may happen to have the number of a server of this one.
    if (server.started_s()? - started_s).abs() > SAME_START_S {
        return Err(anyhow!("its process {own_pid} is another's here"));
    }
    // Its data directory, which tells its version too, is another user's most likely.
    let told = exchange.parameter("server_version").map(major_of);
    server.major = server.major.or(told);
    Ok((server, own_pid))
}

/// A statement's one value, as a number.
pub fn number(exchange: &mut Exchange<Stream>, sql: &str) -> Result<f64> {
    let value = exchange.value(sql)?.unwrap_or_default();
    value
        .parse()
        .with_context(|| format!("the server answered {value:?} to {sql}"))
}
