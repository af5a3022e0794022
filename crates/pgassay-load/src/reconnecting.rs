//! Opening one connection, and a connection for each transaction: opening it within the loop, and
//! closing it.
//!
//! Signing in is a state of the client like waiting for a reply, so a thread's other clients go on
//! meanwhile; pgbench's thread stands still. Statements are prepared when they are first executed,
//! as pgbench does, since most of a run's statements will not be used by one transaction. What
//! opening takes is no part of a transaction's latency, which begins after it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use pgassay_wire::conninfo::{Attempts, Endpoint, Failure, Target};
use pgassay_wire::{SaltCache, Session};

use crate::client::{Run, Stage};
use crate::driver::Driver;
use crate::error::LoadError;
use crate::socket;

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
    pub fn idle_session(&self, client: u32) -> Result<Session, LoadError> {
        let login = self.target.login(&self.target.hosts[0], &self.salts);
        Session::start(&login).map_err(|error| LoadError::Wire { client, error })
    }

    /// What a client tries, beginning anew.
    pub fn attempts(&self, client: u32) -> Attempts {
        // libpq shuffles the hosts; dealing them out spreads clients more evenly still.
        let first = if self.target.balance_hosts { client } else { 0 };
        Attempts::new(&self.target, &self.endpoints, first as usize)
    }

    /// Opens a connection by the attempt that is on, or by the first after it that gets as far;
    /// none if the server's queue is full.
    pub fn begin(
        &self,
        client: u32,
        attempts: &mut Attempts,
    ) -> Result<Option<(OwnedFd, Session)>, LoadError> {
        loop {
            let attempt = attempts.current();
            let endpoint = &self.endpoints[attempt.endpoint];
            let (failure, error) = match socket::open(endpoint, &self.target, self.limit) {
                Ok(fd) => {
                    let login = self.target.login_for(attempt, endpoint, &self.salts);
                    match Session::start(&login) {
                        Ok(session) => return Ok(Some((fd, session))),
                        Err(error) => (Failure::of_wire(&error), LoadError::Wire { client, error }),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(source) => {
                    let address = endpoint.address.clone();
                    let error = LoadError::Connect {
                        client,
                        address,
                        source,
                    };
                    (Failure::Unreachable, error)
                }
            };
            if !attempts.after(failure) {
                return Err(error);
            }
        }
    }

    /// Connects a client and gives its new session, or the moment to try again where the server's
    /// queue is full. A client whose last attempt failed goes on with what follows it.
    pub fn connect<D: Driver>(
        &self,
        driver: &mut D,
        index: usize,
        run: &mut Run,
    ) -> Result<Result<Session, u64>, LoadError> {
        let attempts = run
            .attempts
            .get_or_insert_with(|| Box::new(self.attempts(run.id)));
        let Some((fd, session)) = self.begin(run.id, attempts)? else {
            return Ok(Err(driver.now_ns() + RETRY_NS));
        };
        driver
            .replace(index, fd)
            .map_err(|source| LoadError::System {
                what: "watch a connection",
                source,
            })?;
        run.stage = Stage::Connecting;
        run.forget_connection();
        Ok(Ok(session))
    }
}
