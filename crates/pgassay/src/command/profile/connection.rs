//! A connection to the server that is watched: which it is, and how many transactions it ended.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use pgassay_profile::LiveServer;
use pgassay_wire::Exchange;
use pgassay_wire::conninfo::Request;

use crate::connector::{Stream, connect};
use crate::surroundings::Real;

/// An answer that takes longer is none: nothing that is asked here takes work.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Clocks that were set since the server began make the two ideas of that moment differ.
const SAME_START_S: f64 = 60.0;

/// A connection, and the server behind it.
pub struct Connection {
    /// For questions.
    pub exchange: Exchange<Stream>,
    /// The server that answers.
    pub server: LiveServer,
    /// The process that serves this connection.
    pub own_pid: u32,
}

impl Connection {
    /// Signs in, and finds the server's processes on this machine.
    pub fn open(conninfo: &str) -> Result<Self> {
        let (mut exchange, place) = exchange(conninfo)?;
        let own_pid = number(&mut exchange, "select pg_backend_pid()")? as u32;
        let elsewhere = || {
            format!(
                "the server at {place} does not run on this machine, or in another container; \
                 run pgassay where it does, or give its --pid"
            )
        };
        let server = LiveServer::of_process(own_pid).with_context(elsewhere)?;
        let started_s = number(
            &mut exchange,
            "select extract(epoch from pg_postmaster_start_time())",
        )?;
        // Another machine's process may happen to have the number of a server of this one.
        if (server.started_s()? - started_s).abs() > SAME_START_S {
            return Err(anyhow!("its process {own_pid} is another's here").context(elsewhere()));
        }
        Ok(Self {
            exchange,
            server,
            own_pid,
        })
    }

    /// Transactions that ended so far, in all databases. A backend reports its own about once a
    /// second.
    pub fn transactions(&mut self) -> Result<u64> {
        let sql = "select sum(xact_commit + xact_rollback) from pg_stat_database";
        Ok(number(&mut self.exchange, sql)? as u64)
    }
}

/// A connection to wherever the string leads, and what to call that.
pub fn exchange(conninfo: &str) -> Result<(Exchange<Stream>, String)> {
    let request = Request::new()
        .database(conninfo)?
        .fallback_application_name("pgassay profile");
    let target = request.resolve(&Real)?;
    let asked = target.connect_timeout_s.map(u64::from);
    let limit = asked.map_or(ANSWER_LIMIT, Duration::from_secs);
    let (exchange, address) = connect(&target, Some(limit))?;
    exchange.stream().set_limit(Some(ANSWER_LIMIT))?;
    Ok((exchange, address.to_string()))
}

fn number(exchange: &mut Exchange<Stream>, sql: &str) -> Result<f64> {
    let value = exchange.value(sql)?.unwrap_or_default();
    value
        .parse()
        .with_context(|| format!("the server answered {value:?} to {sql}"))
}
