//! Ctrl-C: cancels statements in progress, so that the server does not go on with them.
//!
//! During `-i`, the error of the statement then ends the initialization. Source:
//! `src/fe_utils/cancel.c`. pgbench sends one request per Ctrl-C, which has no effect between two
//! statements; this one is repeated until a statement fails. pgbench handles no signal during a run.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use pgassay_lab::{CancelWatch, Cancelable, Canceler, Interrupt};
use pgassay_load::{BusyBackend, ClientPool};
use pgassay_wire::BackendKey;
use pgassay_wire::conninfo::Target;

use super::connection::Setup;
use super::message::{self, Exit, fatal, write_stderr};
use crate::interrupt;

/// Cancels what the setup connection executes at Ctrl-C, until it is dropped.
pub struct Cancellation {
    interrupt: Interrupt,
    /// Disconnected once a request was sent, or failed.
    pending: Receiver<()>,
    _watch: CancelWatch,
}

impl Cancellation {
    /// Starts to watch for Ctrl-C, unless the server has sent no key to cancel with.
    pub fn watch(setup: &Setup, target: &Target) -> Result<Option<Self>, Exit> {
        let Some(key) = setup.backend() else {
            return Ok(None);
        };
        let (is_pending, pending) = mpsc::channel();
        let endpoint = setup.endpoint().clone();
        let what = Cancelable {
            canceler: Arc::new(Canceler::at(endpoint, target.clone(), setup.is_protected())),
            keys: vec![key],
            closer: setup.closer().ok(),
            grace: Duration::ZERO,
            report: Some(Box::new(move |sent| {
                write_stderr(&match sent {
                    Ok(()) => "Cancel request sent\n".to_owned(),
                    Err(error) => format!("Could not send cancel request: {error:#}\n"),
                });
                drop::<mpsc::Sender<()>>(is_pending);
            })),
        };
        let interrupt = interrupt::watch_ctrl_c();
        let watched = interrupt.and_then(|interrupt| {
            let watch = CancelWatch::start(&interrupt, what)?;
            Ok(Self {
                interrupt,
                pending,
                _watch: watch,
            })
        });
        let watched = watched.map_err(|error| fatal(&format!("{error:#}")))?;
        Ok(Some(watched))
    }

    /// Whether Ctrl-C was pressed; returns only after the request was sent.
    pub fn is_sent(&self) -> bool {
        let is_requested = self.interrupt.is_requested();
        if is_requested {
            // Nothing is ever sent through it.
            _ = self.pending.recv();
        }
        is_requested
    }
}

/// Closes the connections after a run, and cancels the statements that it has given up because the user requested a
/// stop.
pub fn close(pool: ClientPool, interrupt: &Interrupt) {
    let watches = by_server(&pool.busy_backends()).into_iter().filter_map(
        |(
            BusyBackend {
                endpoint, with_tls, ..
            },
            keys,
        )| {
            let what = Cancelable {
                canceler: Arc::new(Canceler::at(endpoint, pool.target().clone(), with_tls)),
                keys,
                closer: None,
                grace: Duration::ZERO,
                report: None,
            };
            let started = CancelWatch::start(interrupt, what);
            started
                .inspect_err(|error| {
                    message::warning(&format!("cannot cancel statements: {error:#}"));
                })
                .ok()
        },
    );
    let watches: Vec<CancelWatch> = watches.collect();
    // Ends when the server has ended all backends.
    pool.close();
    drop(watches);
}

/// The keys of the backends that are reached in the same way, with one of these backends.
fn by_server(busy: &[BusyBackend]) -> Vec<(BusyBackend, Vec<BackendKey>)> {
    let mut servers: Vec<(BusyBackend, Vec<BackendKey>)> = Vec::new();
    for backend in busy {
        let same = servers.iter_mut().find(|(first, _)| {
            first.endpoint == backend.endpoint && first.with_tls == backend.with_tls
        });
        match same {
            Some((_, keys)) => keys.push(backend.key),
            None => servers.push((backend.clone(), vec![backend.key])),
        }
    }
    servers
}
