//! Executes one statement on the clients' connections between runs.
//!
//! A backend keeps pending statistics to itself and reports them only at the end of a statement on
//! its own connection. Its memory contexts, too, can be queried only there.

use std::io;
use std::time::Duration;

use pgassay_wire::{DataRow, Event, WireError};

use crate::client::Client;
use crate::client_pool::ClientPool;
use crate::driver::{Arrival, Driver, Io};
use crate::error::LoadError;
use crate::worker::Worker;

/// The values of a row in text format; `None` is NULL.
pub type TextRow = Vec<Option<String>>;

/// How often the loop checks the time limit.
const TICK_NS: u64 = 20_000_000;

/// A statement that clients send between runs.
struct BroadcastRequest<'a> {
    sql: &'a str,
    /// Whether its rows are wanted.
    rows: bool,
    /// How long all replies may take.
    limit: Duration,
}

/// The replies to a [`BroadcastRequest`].
struct BroadcastReplies {
    /// Number of clients whose server reported no error.
    served: u32,
    rows: Vec<TextRow>,
}

impl ClientPool {
    /// Executes a statement on every open connection and discards the results. Returns the number
    /// of backends that executed it.
    ///
    /// # Errors
    /// A lost connection, or a reply that does not arrive within the reply limit. An error that the
    /// server reports for the statement is not an error here.
    pub fn broadcast(&mut self, sql: &str) -> Result<u32, LoadError> {
        let rows = false;
        self.between_runs(|workers, limit| {
            let mut served = 0;
            for worker in workers {
                let open = open_clients(worker);
                served += execute(worker, open, &BroadcastRequest { sql, rows, limit })?.served;
            }
            Ok(served)
        })
    }

    /// Executes a query on the first open connection and returns its rows in text format; bytes that are not
    /// UTF-8 are replaced. Without an open connection, or if the server reports an error, there are none.
    ///
    /// # Errors
    /// As for [`Self::broadcast`].
    pub fn query_first(&mut self, sql: &str) -> Result<Vec<TextRow>, LoadError> {
        let rows = true;
        self.between_runs(|workers, limit| {
            for worker in workers {
                let mut open = open_clients(worker);
                open.truncate(1);
                if !open.is_empty() {
                    let replies = execute(worker, open, &BroadcastRequest { sql, rows, limit })?;
                    let is_served = replies.served > 0;
                    return Ok(if is_served { replies.rows } else { Vec::new() });
                }
            }
            Ok(Vec::new())
        })
    }

    fn between_runs<T>(
        &mut self,
        execute: impl FnOnce(&mut [Worker<Io>], Duration) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        if self.is_spent {
            return Err(LoadError::Spent);
        }
        // A connection that breaks here is unusable in the next run too.
        self.is_spent = true;
        let done = execute(&mut self.workers, self.limits.reply)?;
        self.is_spent = false;
        Ok(done)
    }
}

/// The clients of a thread whose connections are open.
fn open_clients(worker: &Worker<Io>) -> Vec<usize> {
    let all = 0..worker.clients.len();
    all.filter(|&index| worker.driver.is_open(index)).collect()
}

/// Sends a request on these connections of a thread and awaits all replies.
fn execute(
    worker: &mut Worker<Io>,
    mut waiting: Vec<usize>,
    request: &BroadcastRequest<'_>,
) -> Result<BroadcastReplies, LoadError> {
    let BroadcastRequest { sql, rows, limit } = *request;
    let system = |source| LoadError::System {
        what: "wait for answers between runs",
        source,
    };
    for &index in &waiting {
        let client = &mut worker.clients[index];
        let asked = client.session.query(sql, 0, rows);
        asked.map_err(|error| wire(client, error))?;
        send(worker, index)?;
    }
    let mut replies = BroadcastReplies {
        served: waiting.len() as u32,
        rows: Vec::new(),
    };
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
                        &mut replies.rows,
                    )?;
                    replies.served -= u32::from(heard.refused);
                    if heard.ready {
                        waiting.retain(|index| *index != client);
                    }
                }
            }
        }
    }
    Ok(replies)
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

fn read_reply(
    client: &mut Client,
    bytes: &[u8],
    rows: &mut Vec<TextRow>,
) -> Result<ReplyStatus, LoadError> {
    let mut heard = ReplyStatus::default();
    let mut input = bytes;
    loop {
        match client.session.next(&mut input) {
            Ok(Some(Event::DataRow { row, .. })) => {
                rows.push(text_row(row).map_err(|error| wire(client, error))?);
            }
            Ok(Some(event)) => {
                heard.ready |= matches!(event, Event::Ready { .. });
                heard.refused |= matches!(event, Event::Error { .. });
            }
            Ok(None) => return Ok(heard),
            Err(error) => return Err(wire(client, error)),
        }
    }
}

fn text_row(row: DataRow<'_>) -> Result<TextRow, WireError> {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    row.values().map(|value| Ok(value?.map(text))).collect()
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
