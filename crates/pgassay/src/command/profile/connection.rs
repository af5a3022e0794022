//! A connection to the server that is watched: which it is, and how many transactions it ended.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use pgassay_profile::LiveServer;
use pgassay_wire::conninfo::{Address, Request, Target};
use pgassay_wire::{Exchange, SaltCache};

use crate::surroundings::Real;

/// An answer that takes longer is none: nothing that is asked here takes work.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Clocks that were set since the server began make the two ideas of that moment differ.
const SAME_START_S: f64 = 60.0;

/// Either kind of stream.
pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection, and the server behind it.
pub struct Connection {
    /// For questions.
    pub exchange: Exchange<Box<dyn Stream>>,
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
pub fn exchange(conninfo: &str) -> Result<(Exchange<Box<dyn Stream>>, String)> {
    let request = Request::new()
        .database(conninfo)?
        .fallback_application_name("pgassay profile");
    sign_in(&request.resolve(&Real)?)
}

fn number(exchange: &mut Exchange<Box<dyn Stream>>, sql: &str) -> Result<f64> {
    let value = exchange.value(sql)?.unwrap_or_default();
    value
        .parse()
        .with_context(|| format!("the server answered {value:?} to {sql}"))
}

/// Signs in at the first host that can be reached.
fn sign_in(target: &Target) -> Result<(Exchange<Box<dyn Stream>>, String)> {
    let mut failed = None;
    for host in &target.hosts {
        let place = host.address.to_string();
        match connect(&host.address) {
            Ok(stream) => {
                let login = target.login(host, &SaltCache::default());
                let exchange = Exchange::open(stream, &login)
                    .with_context(|| format!("cannot sign in at {place}"))?;
                return Ok((exchange, place));
            }
            Err(error) => {
                let words = format!("cannot connect to {place}");
                failed = Some(anyhow::Error::from(error).context(words));
            }
        }
    }
    match failed {
        Some(error) => Err(error),
        None => bail!("the connection string names no host"),
    }
}

fn connect(address: &Address) -> io::Result<Box<dyn Stream>> {
    let limit = Some(ANSWER_LIMIT);
    if let Some(path) = address.socket_path() {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(limit)?;
        stream.set_write_timeout(limit)?;
        return Ok(Box::new(stream));
    }
    let Address::Tcp {
        host,
        address,
        port,
    } = address
    else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let addresses: Vec<_> = match address {
        Some(address) => vec![(*address, *port).into()],
        None => (host.as_str(), *port).to_socket_addrs()?.collect(),
    };
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, ANSWER_LIMIT) {
            Ok(stream) => {
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)?;
                return Ok(Box::new(stream));
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
