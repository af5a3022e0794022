//! Opening and closing connections inside the loop, when each transaction has its own.
//!
//! Signing in is a client state like waiting for a reply, so the thread's other clients continue
//! meanwhile; pgbench blocks the whole thread. Over TCP, `connect` itself blocks it here, too, for a round
//! trip. Statements are prepared before their first
//! execution, as in pgbench, because one transaction does not use most of a run's statements.
//! Opening a connection is not part of a transaction's latency, which starts afterwards.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use pgassay_wire::conninfo::{Address, AttemptFailure, Attempts, Endpoint, Target};
use pgassay_wire::{SaltCache, Session};

use crate::client::{ClientRun, ClientStage};
use crate::driver::Driver;
use crate::error::LoadError;
use crate::socket;

/// Delay before retrying when the server's connection queue is full.
const RETRY_NS: u64 = 2_000_000;

/// What opening connections requires.
pub(crate) struct Connector {
    pub target: Target,
    pub endpoints: Vec<Endpoint>,
    pub salts: SaltCache,
    pub limit: Duration,
}

impl Connector {
    /// Creates a session that is not connected.
    pub fn idle_session(&self, client: u32) -> Result<Session, LoadError> {
        let login = self.target.login(&self.target.hosts[0], &self.salts);
        Session::start(&login).map_err(|error| LoadError::Wire { client, error })
    }

    /// Returns the address of an endpoint.
    pub fn address(&self, endpoint: usize) -> &Address {
        &self.endpoints[endpoint].address
    }

    /// Creates a client's sequence of connection attempts.
    pub fn attempts(&self, client: u32) -> Attempts {
        // libpq shuffles the hosts; round-robin spreads clients even more evenly.
        let first = if self.target.balance_hosts { client } else { 0 };
        Attempts::new(&self.target, &self.endpoints, first as usize)
    }

    /// Connects with the current attempt, or the first after it that succeeds. Returns `None` if
    /// the server's connection queue is full.
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
                        Err(error) => (
                            AttemptFailure::of_wire(&error),
                            LoadError::Wire { client, error },
                        ),
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
                    (AttemptFailure::Unreachable, error)
                }
            };
            if !attempts.advance_after(failure) {
                return Err(error);
            }
        }
    }

    /// Connects a client and returns its new session, or the time to try again if the server's
    /// connection queue is full. If the client's last attempt failed, continues with the next one.
    pub fn connect<D: Driver>(
        &self,
        driver: &mut D,
        index: usize,
        run: &mut ClientRun,
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
        run.endpoint = attempts.current().endpoint;
        run.stage = ClientStage::Connecting;
        run.forget_connection();
        Ok(Ok(session))
    }
}
