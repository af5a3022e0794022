//! Opening a thread's connections: connect, sign in, prepare.
//!
//! Many connections are opened concurrently, because the server takes a millisecond or more to
//! start a process and SCRAM keeps both sides busy. Statements are prepared here too, outside the
//! measured window. pgbench prepares inside it: with 1000 clients and 5000 transactions/s, this
//! adds a lag of 75–95 ms instead of 0.5–2 ms.
//!
//! Each client tries the hosts independently, as [`Attempts`] decides.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgassay_wire::Event;
use pgassay_wire::conninfo::{AttemptFailure, Attempts};

use crate::client::{Client, ClientRun};
use crate::driver::{Arrival, Driver, EpollDriver};
use crate::error::{DUPLICATE_STATEMENT, LoadError};
use crate::program::Program;
use crate::reconnecting::Connector;

/// Connections of a thread that sign in at the same time.
const CONCURRENT_MAX: usize = 64;
/// How often the loop checks the stop flag and the time.
const TICK_NS: u64 = 20_000_000;
/// Delay before retrying when the server's connection queue is full.
const RETRY_NS: u64 = 2_000_000;

/// What opening connections requires.
pub(crate) struct Opening<'a> {
    pub connector: &'a Connector,
    pub program: &'a Program,
    pub stop: &'a AtomicBool,
}

/// A client's progress.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectProgress {
    SigningIn,
    Preparing,
    Open,
}

struct Opener<'a> {
    opening: &'a Opening<'a>,
    driver: EpollDriver,
    clients: Vec<Client>,
    progress: Vec<ConnectProgress>,
    /// Each client's attempts, and when its current attempt began or, after that, the preparation of
    /// its statements. The time limit counts from there, whatever the server sends meanwhile.
    attempts: Vec<(Attempts, u64)>,
    /// Clients that will try again because the server's connection queue was full.
    waiting_for_queue: Vec<usize>,
    /// Clients that are connected but not yet open.
    in_progress: usize,
}

/// Opens a connection for each of these clients.
pub(crate) fn open(
    opening: &Opening<'_>,
    runs: Vec<ClientRun>,
) -> Result<(EpollDriver, Vec<Client>), LoadError> {
    let driver = EpollDriver::new().map_err(|source| LoadError::System {
        what: "create an epoll instance",
        source,
    })?;
    let wanted = runs.len();
    let mut runs = VecDeque::from(runs);
    let mut opener = Opener {
        opening,
        driver,
        clients: Vec::with_capacity(wanted),
        progress: Vec::with_capacity(wanted),
        attempts: Vec::with_capacity(wanted),
        waiting_for_queue: Vec::new(),
        in_progress: 0,
    };
    let limit_ns = opening.connector.limit.as_nanos() as u64;
    // The clients limit their own times; this one is for a connection queue that stays full.
    let mut progressed_ns = opener.driver.now_ns();
    loop {
        let mut pause_ns = TICK_NS;
        for index in std::mem::take(&mut opener.waiting_for_queue) {
            opener.retry_connecting(index)?;
            pause_ns = RETRY_NS;
        }
        while opener.in_progress < CONCURRENT_MAX {
            let Some(run) = runs.pop_front() else { break };
            if let Some(run) = opener.connect(run)? {
                // The server's connection queue is full.
                runs.push_front(run);
                pause_ns = RETRY_NS;
                break;
            }
            progressed_ns = opener.driver.now_ns();
        }
        if opener.in_progress == 0 && runs.is_empty() {
            return Ok((opener.driver, opener.clients));
        }
        let now_ns = opener.driver.now_ns();
        opener
            .driver
            .wait(now_ns + pause_ns)
            .map_err(|source| LoadError::System {
                what: "wait for connections",
                source,
            })?;
        if opener.arrivals()? {
            progressed_ns = opener.driver.now_ns();
        }
        if opening.stop.load(Ordering::Relaxed) {
            return Err(LoadError::Stopped);
        }
        if opener.expire_attempts(limit_ns)? {
            progressed_ns = opener.driver.now_ns();
        }
        if opener.driver.now_ns() > progressed_ns.saturating_add(limit_ns) {
            return Err(opener.timeout_error(opening.connector.limit));
        }
    }
}

/// Creates clients whose connections are opened later, one for each transaction.
pub(crate) fn create_unconnected(
    connector: &Connector,
    runs: Vec<ClientRun>,
) -> Result<(EpollDriver, Vec<Client>), LoadError> {
    let mut driver = EpollDriver::new().map_err(|source| LoadError::System {
        what: "create an epoll instance",
        source,
    })?;
    let clients = runs.into_iter().map(|run| {
        driver.add_closed();
        let session = connector.idle_session(run.id)?;
        Ok(Client { session, run })
    });
    let clients: Result<_, LoadError> = clients.collect();
    Ok((driver, clients?))
}

impl Opener<'_> {
    /// Connects one client and begins to sign in; returns the client's state if the server's
    /// connection queue is full.
    fn connect(&mut self, mut run: ClientRun) -> Result<Option<ClientRun>, LoadError> {
        let connector = self.opening.connector;
        let mut attempts = connector.attempts(run.id);
        let Some((fd, session)) = connector.begin(run.id, &mut attempts)? else {
            return Ok(Some(run));
        };
        run.endpoint = attempts.current().endpoint;
        let index = self.driver.add(fd).map_err(cannot_watch)?;
        self.clients.push(Client { session, run });
        self.progress.push(ConnectProgress::SigningIn);
        self.attempts.push((attempts, self.driver.now_ns()));
        self.in_progress += 1;
        self.flush(index)?;
        Ok(None)
    }

    /// Continues with the next attempt after a failure, or returns the error if there is none.
    #[cold]
    fn try_next(
        &mut self,
        index: usize,
        failure: AttemptFailure,
        error: LoadError,
    ) -> Result<(), LoadError> {
        if self.progress[index] != ConnectProgress::SigningIn
            || !self.attempts[index].0.advance_after(failure)
        {
            return Err(error);
        }
        self.retry_connecting(index)
    }

    fn retry_connecting(&mut self, index: usize) -> Result<(), LoadError> {
        let id = self.clients[index].run.id;
        let (attempts, begun_ns) = &mut self.attempts[index];
        *begun_ns = self.driver.now_ns();
        let Some((fd, session)) = self.opening.connector.begin(id, attempts)? else {
            self.driver.close(index);
            self.waiting_for_queue.push(index);
            return Ok(());
        };
        self.driver.replace(index, fd).map_err(cannot_watch)?;
        self.clients[index].run.endpoint = attempts.current().endpoint;
        self.clients[index].session = session;
        self.flush(index)
    }

    /// Gives up attempts that take too long, if there is another to try; returns `true` if there
    /// was.
    ///
    /// # Errors
    /// [`LoadError::Unanswered`] if a client took too long and has no other attempt.
    fn expire_attempts(&mut self, limit_ns: u64) -> Result<bool, LoadError> {
        let now_ns = self.driver.now_ns();
        let mut any = false;
        for index in 0..self.clients.len() {
            let is_late = now_ns > self.attempts[index].1.saturating_add(limit_ns);
            // `try_next` returns the error if the client is preparing its statements.
            if self.progress[index] != ConnectProgress::Open && is_late {
                let error = LoadError::Unanswered {
                    client: self.clients[index].run.id,
                    what: self.describe_progress(index).into(),
                    waited: self.opening.connector.limit,
                };
                self.try_next(index, AttemptFailure::Unreachable, error)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Handles arrivals; returns `true` if there were any.
    fn arrivals(&mut self) -> Result<bool, LoadError> {
        let mut any = false;
        loop {
            let arrival = self.driver.next().map_err(|source| LoadError::System {
                what: "read from connections",
                source,
            })?;
            let Some(arrival) = arrival else {
                return Ok(any);
            };
            any = true;
            match arrival {
                Arrival::Bytes { client, count } => self.receive(client, count)?,
                Arrival::Writable { client } => self.flush(client)?,
                Arrival::Closed { client, error } => return Err(self.lost(client, error)),
            }
        }
    }

    fn receive(&mut self, index: usize, count: usize) -> Result<(), LoadError> {
        let program = self.opening.program;
        let client = &mut self.clients[index];
        let id = client.run.id;
        let wire = |error| LoadError::Wire { client: id, error };
        let mut input = self.driver.received(index, count);
        let mut refused = Vec::new();
        let mut is_ready = false;
        loop {
            let event = match client.session.next(&mut input) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    let failure = AttemptFailure::of_wire(&error);
                    return self.try_next(index, failure, wire(error));
                }
            };
            match event {
                Event::Ready { .. } => is_ready = true,
                Event::Error { error, .. }
                    if error.is_fatal() || self.progress[index] == ConnectProgress::SigningIn =>
                {
                    let failure = AttemptFailure::of_server(&error, &client.session);
                    let refused = LoadError::Refused {
                        client: id,
                        address: self.opening.connector.address(client.run.endpoint).clone(),
                        error,
                    };
                    return self.try_next(index, failure, refused);
                }
                // What has this name is not what the run is to execute.
                Event::Error { error, .. } if error.sqlstate == DUPLICATE_STATEMENT => {
                    return Err(LoadError::StatementExists { client: id, error });
                }
                Event::Error {
                    token: Some(statement),
                    ..
                } => refused.push(statement),
                _ => {}
            }
        }
        for statement in refused {
            client.mark_unprepared(statement);
        }
        if is_ready && client.session.pending() == 0 {
            if self.progress[index] == ConnectProgress::SigningIn {
                client.prepare(program).map_err(wire)?;
                self.progress[index] = ConnectProgress::Preparing;
                self.attempts[index].1 = self.driver.now_ns();
            }
            if client.session.pending() == 0 && self.progress[index] == ConnectProgress::Preparing {
                self.progress[index] = ConnectProgress::Open;
                self.in_progress -= 1;
            }
        }
        self.flush(index)
    }

    fn flush(&mut self, index: usize) -> Result<(), LoadError> {
        let session = &mut self.clients[index].session;
        if session.output().is_empty() {
            return Ok(());
        }
        let sent = self.driver.send(index, session.output());
        session.sent(sent.map_err(|source| LoadError::System {
            what: "send to connections",
            source,
        })?);
        Ok(())
    }

    fn lost(&self, index: usize, source: Option<io::Error>) -> LoadError {
        LoadError::Lost {
            client: self.clients[index].run.id,
            what: self.describe_progress(index).into(),
            place: None,
            last: None,
            source,
        }
    }

    fn describe_progress(&self, index: usize) -> &'static str {
        match self.progress[index] {
            ConnectProgress::SigningIn => "while signing in",
            ConnectProgress::Preparing => "while preparing statements",
            ConnectProgress::Open => "while waiting for other clients to connect",
        }
    }

    fn timeout_error(&self, waited: Duration) -> LoadError {
        let slow = self
            .progress
            .iter()
            .position(|&progress| progress != ConnectProgress::Open);
        let (client, what) = match slow {
            Some(index) => (self.clients[index].run.id, self.describe_progress(index)),
            None => (
                self.clients.len() as u32,
                "while its connection queue was full",
            ),
        };
        LoadError::Unanswered {
            client,
            what: what.into(),
            waited,
        }
    }
}

fn cannot_watch(source: io::Error) -> LoadError {
    LoadError::System {
        what: "watch a connection",
        source,
    }
}
