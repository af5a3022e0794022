//! A connection for each transaction: opening it within the loop, and closing it.
//!
//! Signing in is a state of the client like waiting for a reply, so a thread's other clients go on
//! meanwhile; pgbench's thread stands still. Statements are prepared when they are first executed,
//! as pgbench does, since most of a run's statements will not be used by one transaction. What
//! opening takes is no part of a transaction's latency, which begins after it.

use std::io;
use std::time::Duration;

use pgassay_wire::conninfo::Target;
use pgassay_wire::{SaltCache, Session};

use crate::client::{Run, Stage};
use crate::driver::Driver;
use crate::error::LoadError;
use crate::socket::{self, Endpoint};

/// How soon a full queue of the server is tried again.
const RETRY_NS: u64 = 2_000_000;

/// What opening needs to know.
pub(crate) struct Connector {
    pub target: Target,
    pub endpoints: Vec<Endpoint>,
    pub salts: SaltCache,
    pub limit: Duration,
}

impl Connector {
    /// A session that has not been connected yet.
    pub fn session(&self, host: usize, client: u32) -> Result<Session, LoadError> {
        let login = self.target.login(&self.target.hosts[host], &self.salts);
        Session::start(&login).map_err(|error| LoadError::Wire { client, error })
    }

    /// Connects a client and gives its new session, or the moment to try again where the server's
    /// queue is full.
    pub fn connect<D: Driver>(
        &self,
        driver: &mut D,
        index: usize,
        run: &mut Run,
    ) -> Result<Result<Session, u64>, LoadError> {
        let mut failed = None;
        for endpoint in &self.endpoints {
            match socket::open(endpoint, &self.target, self.limit) {
                Ok(fd) => {
                    let session = self.session(endpoint.host, run.id)?;
                    driver
                        .replace(index, fd)
                        .map_err(|source| LoadError::System {
                            what: "watch a connection",
                            source,
                        })?;
                    run.stage = Stage::Connecting;
                    run.forget_connection();
                    return Ok(Ok(session));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Err(driver.now_ns() + RETRY_NS));
                }
                Err(source) => failed = Some((endpoint.address.clone(), source)),
            }
        }
        let (address, source) = failed.expect("a target without hosts is refused before");
        Err(LoadError::Connect {
            client: run.id,
            address,
            source,
        })
    }
}
