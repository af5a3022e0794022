//! Determines whether a connected server runs on this machine, and finds its processes.

use anyhow::{Context, Result, anyhow};
use pgassay_profile::LiveServer;
use pgassay_wire::Exchange;

use crate::connector::TimedStream;
use crate::major_version::major_of;

/// Tolerance, because adjusting the clock after server start makes the two start times differ.
const SAME_START_S: f64 = 60.0;

/// Finds the server's processes on this machine and the backend of this connection.
///
/// # Errors
/// If the server runs on another machine or in another container, or its processes are not
/// accessible.
pub fn find(exchange: &mut Exchange<TimedStream>) -> Result<(LiveServer, u32)> {
    let own_pid = number(exchange, "select pg_catalog.pg_backend_pid()")? as u32;
    let mut server = LiveServer::of_process(own_pid)?;
    let sql = "select extract(epoch from pg_catalog.pg_postmaster_start_time())";
    let started_s = number(exchange, sql)?;
    // A PID of another machine may coincide with one of a local server.
    if (server.started_s()? - started_s).abs() > SAME_START_S {
        return Err(anyhow!(
            "the server is not on this host: local process {own_pid} is unrelated"
        ));
    }
    // The data directory also holds the version, but usually belongs to another user.
    let server_version = exchange.parameter("server_version").map(major_of);
    server.major = server.major.or(server_version);
    Ok((server, own_pid))
}

/// Runs a query and returns its single value as a number.
fn number(exchange: &mut Exchange<TimedStream>, sql: &str) -> Result<f64> {
    let value = exchange.value_read_committed(sql)?.unwrap_or_default();
    value
        .parse()
        .with_context(|| format!("unexpected result {value:?} of {sql}"))
}
