//! Cancels statements on servers when the user requests a stop, so that they neither delay the stop
//! nor keep running after it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use pgassay_load::endpoints;
use pgassay_server::SocketCloser;
use pgassay_wire::BackendKey;
use pgassay_wire::conninfo::{Endpoint, Target};

use crate::connector;
use crate::interrupt::Interrupt;

/// How often the watch checks whether a stop was requested.
const POLL: Duration = Duration::from_millis(50);
/// How long one cancel request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// A request that arrives between two statements cancels nothing, so it is repeated, …
const REPEAT: Duration = Duration::from_millis(500);
/// … this many times. After that, or if a request fails, the server does not answer anymore, and the
/// connection is closed.
const REQUESTS_MAX: u32 = 10;

/// Sends cancel requests to a server.
pub struct Canceler {
    target: Target,
    /// Where it is, if the target has several addresses; otherwise the target's first.
    endpoint: Option<Endpoint>,
    /// Whether the server's connections use TLS.
    with_tls: bool,
}

impl Canceler {
    /// For the backends that connections to `target` have; `with_tls` is whether they use TLS.
    pub fn new(target: Target, with_tls: bool) -> Self {
        Self {
            target,
            endpoint: None,
            with_tls,
        }
    }

    /// The same for backends that were reached at `endpoint`, one of the target's addresses.
    pub fn at(endpoint: Endpoint, target: Target, with_tls: bool) -> Self {
        Self {
            endpoint: Some(endpoint),
            ..Self::new(target, with_tls)
        }
    }

    /// Cancels the statement that a backend executes, if any.
    pub fn cancel(&self, key: BackendKey) -> Result<()> {
        let endpoint = match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => self.first_endpoint()?,
        };
        let stream = connector::open(&endpoint, &self.target, Some(REQUEST_LIMIT))?;
        pgassay_wire::cancel(stream, &self.target, &endpoint, self.with_tls, key)?;
        Ok(())
    }

    fn first_endpoint(&self) -> Result<Endpoint> {
        let mut found = endpoints(&self.target).map_err(|(address, error)| {
            anyhow!(error).context(format!("cannot find the server at {address}"))
        })?;
        Ok(found.swap_remove(0))
    }
}

/// What to cancel.
pub struct Cancelable {
    /// The server.
    pub canceler: Arc<Canceler>,
    /// The backends.
    pub keys: Vec<BackendKey>,
    /// Closes the connection if the server does not answer.
    pub closer: Option<SocketCloser>,
    /// How long statements may go on after the user requested a stop.
    pub grace: Duration,
    /// Called once, after the first requests, with their result.
    pub report: Option<CancelReport>,
}

/// Receives the result of cancel requests.
pub type CancelReport = Box<dyn FnOnce(&Result<()>) + Send>;

/// Cancels what some backends execute if the user requests a stop, until it is dropped.
#[must_use = "it ends when it is dropped"]
pub struct CancelWatch {
    /// Nothing is sent; dropping it ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CancelWatch {
    /// Starts to watch for a stop.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(interrupt: &Interrupt, what: Cancelable) -> Result<Self> {
        let (end, ended) = mpsc::channel();
        let interrupt = interrupt.clone();
        let thread = thread::Builder::new().spawn(move || watch(&interrupt, what, &ended));
        Ok(Self {
            end: Some(end),
            thread: Some(thread.context("cannot start a thread that waits for Ctrl-C")?),
        })
    }

    /// Watches one connection, whose statements are canceled at once. Without a key it is closed.
    ///
    /// # Errors
    /// As [`CancelWatch::start`].
    pub fn of_connection(
        key: Option<BackendKey>,
        closer: io::Result<SocketCloser>,
        canceler: Canceler,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let what = Cancelable {
            canceler: Arc::new(canceler),
            keys: key.into_iter().collect(),
            closer: closer.ok(),
            grace: Duration::ZERO,
            report: None,
        };
        Self::start(interrupt, what)
    }
}

impl Drop for CancelWatch {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // It has no result, and a panic in it changes nothing.
            _ = thread.join();
        }
    }
}

fn watch(interrupt: &Interrupt, mut what: Cancelable, ended: &Receiver<()>) {
    let is_over = |wait| !matches!(ended.recv_timeout(wait), Err(RecvTimeoutError::Timeout));
    while !interrupt.is_requested() {
        if is_over(POLL) {
            return;
        }
    }
    if is_over(what.grace) {
        return;
    }
    let requests = if what.keys.is_empty() {
        0
    } else {
        REQUESTS_MAX
    };
    for _ in 0..requests {
        // After an error the others would fail, too, each after its time limit.
        let canceled = what
            .keys
            .iter()
            .try_for_each(|key| what.canceler.cancel(*key));
        if let Some(report) = what.report.take() {
            report(&canceled);
        }
        if is_over(REPEAT) {
            return;
        }
        if let Err(error) = canceled {
            tracing::debug!("cannot cancel a statement: {error:#}");
            break;
        }
    }
    if let Some(closer) = &what.closer {
        closer.close();
    }
}
