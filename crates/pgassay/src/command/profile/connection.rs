//! A connection to the server that is watched: which it is, and how many transactions it ended.

use std::time::Duration;

use anyhow::Result;
use pgassay_profile::LiveServer;
use pgassay_wire::Exchange;
use pgassay_wire::conninfo::Request;

use crate::connector::{Stream, connect};
use crate::here::{self, number};
use crate::surroundings::Real;

/// An answer that takes longer is none: nothing that is asked here takes work.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A connection, and the server behind it.
pub struct Connection {
    /// For questions.
    pub exchange: Exchange<Stream>,
    /// The server that answers.
    pub server: LiveServer,
    /// The process that serves this connection.
    pub own_pid: u32,
}

/// A connection to a server whose processes are not to be seen from here.
pub struct Elsewhere {
    /// For questions.
    pub exchange: Exchange<Stream>,
    /// Where it answers.
    pub place: String,
    /// Why its processes are not seen.
    pub why: anyhow::Error,
}

/// Where a connection string leads.
pub enum Reached {
    /// To a server on this machine.
    Here(Connection),
    /// To another.
    Elsewhere(Elsewhere),
}

impl Reached {
    /// Signs in, and looks for the server's processes on this machine.
    pub fn open(conninfo: &str) -> Result<Self> {
        let (mut exchange, place) = exchange(conninfo)?;
        Ok(match here::find(&mut exchange) {
            Ok((server, own_pid)) => Self::Here(Connection {
                exchange,
                server,
                own_pid,
            }),
            Err(why) => Self::Elsewhere(Elsewhere {
                exchange,
                place,
                why,
            }),
        })
    }
}

impl Connection {
    /// See [`transactions`].
    pub fn transactions(&mut self) -> Result<u64> {
        transactions(&mut self.exchange)
    }
}

/// Transactions that ended so far, in all databases. A backend reports its own about once a second.
pub fn transactions(exchange: &mut Exchange<Stream>) -> Result<u64> {
    let sql = "select sum(xact_commit + xact_rollback) from pg_stat_database";
    Ok(number(exchange, sql)? as u64)
}

/// A connection to wherever the string leads, and what to call that.
pub fn exchange(conninfo: &str) -> Result<(Exchange<Stream>, String)> {
    let request = Request::new()
        .database(conninfo)?
        .fallback_application_name("pgassay profile");
    let target = request.resolve(&Real)?;
    let asked = target.connect_timeout_s.map(u64::from);
    let limit = asked.map_or(ANSWER_LIMIT, Duration::from_secs);
    let (exchange, endpoint) = connect(&target, Some(limit))?;
    exchange.stream().set_limit(Some(ANSWER_LIMIT))?;
    Ok((exchange, endpoint.address.to_string()))
}
