//! Executes one statement on every client's connection between runs.
//!
//! A backend keeps pending statistics to itself and reports them only at the end of a statement on
//! its own connection.

use std::io;
use std::time::Duration;

use pgassay_wire::{Event, WireError};

use crate::client::Client;
use crate::client_pool::ClientPool;
use crate::driver::{Arrival, Driver, Io};
use crate::error::LoadError;
use crate::worker::Worker;

/// How often the loop checks the time limit.
const TICK_NS: u64 = 20_000_000;

impl ClientPool {
    /// Executes a statement on every open connection and discards the results. Returns the number
    /// of backends that executed it.
    ///
    /// # Errors
    /// A lost connection, or a reply that does not arrive within the reply limit. An error that the
    /// server reports for the statement is not an error here.
    pub fn broadcast(&mut self, sql: &str) -> Result<u32, LoadError> {
        if self.is_spent {
            return Err(LoadError::Spent);
        }
        // A connection that breaks here is unusable in the next run too.
        self.is_spent = true;
        let limit = self.limits.reply;
        let mut answered = 0;
        for worker in &mut self.workers {
            answered += broadcast_on_thread(worker, sql, limit)?;
        }
        self.is_spent = false;
        Ok(answered)
    }
}

/// Sends the statement on all connections of a thread; returns how many executed it without an
/// error.
fn broadcast_on_thread(
    worker: &mut Worker<Io>,
    sql: &str,
    limit: Duration,
) -> Result<u32, LoadError> {
    let system = |source| LoadError::System {
        what: "wait for answers between runs",
        source,
    };
    let mut waiting = Vec::new();
    for index in 0..worker.clients.len() {
        if worker.driver.is_open(index) {
            let client = &mut worker.clients[index];
            let asked = client.session.query(sql, 0, false);
            asked.map_err(|error| wire(client, error))?;
            send(worker, index)?;
            waiting.push(index);
        }
    }
    let mut served = waiting.len() as u32;
    let until_ns = worker.driver.now_ns() + limit.as_nanos() as u64;
    while let Some(&first) = waiting.first() {
        let now_ns = worker.driver.now_ns();
        if now_ns > until_ns {
            return Err(LoadError::Unanswered {
                client: worker.clients[first].run.id,
                what: format!("while executing {sql}"),
                waited: limit,
            });
        }
        worker.driver.wait(now_ns + TICK_NS).map_err(system)?;
        while let Some(arrival) = worker.driver.next().map_err(system)? {
            match arrival {
                Arrival::Writable { client } => send(worker, client)?,
                Arrival::Closed { client, error } => {
                    return Err(lost(&worker.clients[client], error));
                }
                Arrival::Bytes { client, count } => {
                    let heard = read_reply(
                        &mut worker.clients[client],
                        worker.driver.received(client, count),
                    )?;
                    served -= u32::from(heard.refused);
                    if heard.ready {
                        waiting.retain(|index| *index != client);
                    }
                }
            }
        }
    }
    Ok(served)
}

fn send(worker: &mut Worker<Io>, index: usize) -> Result<(), LoadError> {
    let client = &mut worker.clients[index];
    match worker.driver.send(index, client.session.output()) {
        Ok(count) => {
            client.session.sent(count);
            Ok(())
        }
        Err(error) => Err(lost(client, Some(error))),
    }
}

/// What a piece of a reply contained.
#[derive(Default)]
struct ReplyStatus {
    ready: bool,
    refused: bool,
}

fn read_reply(client: &mut Client, bytes: &[u8]) -> Result<ReplyStatus, LoadError> {
    let mut heard = ReplyStatus::default();
    let mut input = bytes;
    loop {
        match client.session.next(&mut input) {
            Ok(Some(event)) => {
                heard.ready |= matches!(event, Event::Ready { .. });
                heard.refused |= matches!(event, Event::Error { .. });
            }
            Ok(None) => return Ok(heard),
            Err(error) => return Err(wire(client, error)),
        }
    }
}

fn wire(client: &Client, error: WireError) -> LoadError {
    LoadError::Wire {
        client: client.run.id,
        error,
    }
}

fn lost(client: &Client, source: Option<io::Error>) -> LoadError {
    LoadError::Lost {
        client: client.run.id,
        what: "between runs".into(),
        place: None,
        last: None,
        source,
    }
}
