//! Synchronous queries over a stream that the caller opened.
//!
//! For set-up and inspection, where the caller waits for each result. The caller owns the stream
//! and sets its time limits: a read that times out fails with [`ExchangeError::Stream`], and the
//! exchange cannot be used after that. `flush` is called once per request, after its last byte: a
//! stream that limits the time of a whole answer, notices included, starts its clock there. The
//! stream must not buffer, because later output that belongs to the answer is not flushed.
//!
//! Results and notices are kept up to a limit, so that a server cannot exhaust the client's memory.

use std::io::{self, Read, Write};

use crate::backend_key::BackendKey;
use crate::conninfo::{Address, AttemptFailure, Attempts, Endpoint, Target};
use crate::error::{ServerMessage, WireError};
use crate::login::Login;
use crate::message::{CopyDirection, Event, Notice, TransactionStatus};
use crate::salt_cache::SaltCache;
use crate::session::{Execution, Session};

/// Buffer size of one read; set-up work returns few rows.
const READ_BYTES: usize = 8192;
/// Limit on a row.
const ROW_MAX_BYTES: u32 = 8 << 20;
/// Limit on the memory of the results of one request.
const RESULT_MAX_BYTES: usize = 24 << 20;
/// Limit on the memory of notices; further ones are counted only.
const NOTICES_MAX_BYTES: usize = 1 << 20;
/// Memory that a value takes in addition to its text: its vector entry and its allocation.
const VALUE_BYTES: usize = 40;

/// Errors of an exchange.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The server reported an error. The exchange can continue unless the error is fatal.
    #[error("{0}")]
    Server(Box<ServerMessage>),
    /// The protocol was violated.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The stream failed or a time limit passed.
    #[error("{}", stream_failure(.0))]
    Stream(io::Error),
    /// A result that is larger than this client accepts.
    #[error("the result exceeds {max_bytes} bytes: select less data")]
    TooLarge {
        /// The limit.
        max_bytes: usize,
    },
    /// The server closed the connection without a message.
    #[error("the server closed the connection")]
    Closed,
}

/// Without a source: the text is complete, and that of a time limit would be "Resource temporarily unavailable".
impl From<io::Error> for ExchangeError {
    fn from(error: io::Error) -> Self {
        Self::Stream(error)
    }
}

/// A stream's failure, in words.
fn stream_failure(error: &io::Error) -> String {
    if is_timeout(error) {
        "the server did not answer within the time limit; behind a connection pooler, all of its connections to \
         the server may be in use"
            .to_owned()
    } else {
        format!("the connection to the server failed: {error}")
    }
}

/// A read that times out fails with one of two error kinds.
fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

impl ExchangeError {
    /// Classifies the error as a failed connection attempt.
    fn failure(&self, session: &Session) -> AttemptFailure {
        match self {
            Self::Server(error) => AttemptFailure::of_server(error, session),
            Self::Wire(error) => AttemptFailure::of_wire(error),
            Self::Stream(error) if is_timeout(error) => AttemptFailure::Unreachable,
            Self::Stream(_) | Self::TooLarge { .. } | Self::Closed => AttemptFailure::Other,
        }
    }
}

/// The result of a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryResult {
    /// The column names; empty for a command without rows.
    pub columns: Vec<String>,
    /// The rows, each with a text or null per column. Invalid UTF-8 is replaced.
    pub rows: Vec<Vec<Option<String>>>,
    /// The command tag, such as `INSERT 0 1`.
    pub tag: String,
}

/// A connection for synchronous queries.
pub struct Exchange<S> {
    stream: S,
    session: Session,
    notices: Notices,
}

impl<S: Read + Write> Exchange<S> {
    /// Signs in over an open stream.
    ///
    /// # Errors
    /// The server rejects the client, violates the protocol, or the stream fails.
    pub fn open(stream: S, login: &Login) -> Result<Self, ExchangeError> {
        Self::sign_in(stream, login).map_err(|(error, _)| error)
    }

    /// Signs in to the first server of a target that is reachable and of the required type, over
    /// streams that `connect` opens. `first` is the endpoint to try first. Also returns the
    /// endpoint that it connected to.
    ///
    /// # Errors
    /// All failed attempts with their addresses, in order.
    pub fn connect(
        target: &Target,
        endpoints: &[Endpoint],
        first: usize,
        mut connect: impl FnMut(&Endpoint) -> io::Result<S>,
    ) -> Result<(Self, usize), Vec<(Address, ExchangeError)>> {
        let salts = SaltCache::default();
        let mut attempts = Attempts::new(target, endpoints, first);
        let mut failed = Vec::new();
        loop {
            let attempt = attempts.current();
            let Some(endpoint) = endpoints.get(attempt.endpoint) else {
                return Err(failed);
            };
            let login = target.login_for(attempt, endpoint, &salts);
            let (error, failure) = match connect(endpoint) {
                Err(error) => (error.into(), AttemptFailure::Unreachable),
                Ok(stream) => match Self::sign_in(stream, &login) {
                    Ok(exchange) => return Ok((exchange, attempt.endpoint)),
                    Err(failed) => failed,
                },
            };
            failed.push((endpoint.address.clone(), error));
            if !attempts.advance_after(failure) {
                return Err(failed);
            }
        }
    }

    /// Signs in.
    fn sign_in(stream: S, login: &Login) -> Result<Self, (ExchangeError, AttemptFailure)> {
        let mut session = Session::start(login).map_err(|error| {
            let failure = AttemptFailure::of_wire(&error);
            (error.into(), failure)
        })?;
        session.limit_rows(ROW_MAX_BYTES);
        let mut exchange = Self {
            stream,
            session,
            notices: Notices::default(),
        };
        match exchange.wait_until_started() {
            Ok(()) => Ok(exchange),
            Err(error) => {
                let failure = error.failure(&exchange.session);
                Err((error, failure))
            }
        }
    }

    /// Like libpq, this does not wait until a server that refused the client closes the connection.
    fn wait_until_started(&mut self) -> Result<(), ExchangeError> {
        let mut collected = Collected::default();
        self.collect(&mut collected, |collected| {
            collected.ready || collected.error.is_some()
        })?;
        match collected.error {
            Some(error) => Err(ExchangeError::Server(error)),
            None => Ok(()),
        }
    }

    /// Sends a simple query and collects the results of its statements. The statements of one query
    /// form one transaction unless they control transactions themselves.
    ///
    /// # Errors
    /// The first error that the server reports, or the error that ended the connection.
    pub fn query(&mut self, sql: &str) -> Result<Vec<QueryResult>, ExchangeError> {
        self.session.query(sql, 0, true)?;
        self.wait()
    }

    /// Like [`Self::query`], but discards all results; there is no limit on their size.
    ///
    /// # Errors
    /// As for [`Self::query`].
    pub fn run(&mut self, sql: &str) -> Result<(), ExchangeError> {
        self.session.query(sql, 0, false)?;
        let mut collected = Collected {
            discards: true,
            ..Collected::default()
        };
        self.collect(&mut collected, |collected| collected.ready)?;
        match collected.error {
            Some(error) => Err(ExchangeError::Server(error)),
            None => Ok(()),
        }
    }

    /// Sends `COPY … FROM STDIN`, and data as long as `write`, which appends it to its argument,
    /// returns `true`.
    ///
    /// # Errors
    /// An error that the server reports, or the error that ended the connection. The server reads
    /// all data before it reports an error, so it is detected at the end.
    pub fn copy_in(
        &mut self,
        sql: &str,
        mut write: impl FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<QueryResult, ExchangeError> {
        self.session.accept_copy(true);
        self.session.query(sql, 0, true)?;
        let mut collected = Collected::default();
        let opened = self.collect(&mut collected, |collected| {
            collected.ready || collected.wants_data
        });
        self.session.accept_copy(false);
        opened?;
        let mut goes_on = collected.wants_data;
        while goes_on {
            self.session.copy_data(|out| goes_on = write(out))?;
            self.send()?;
        }
        if collected.wants_data {
            self.session.copy_done();
        }
        self.collect(&mut collected, |collected| collected.ready)?;
        match collected.error {
            Some(error) => Err(ExchangeError::Server(error)),
            None => Ok(collected.answers.pop().unwrap_or_default()),
        }
    }

    /// Executes one statement with parameters `$1`, `$2` ….
    ///
    /// # Errors
    /// An error that the server reports, or the error that ended the connection.
    pub fn execute(
        &mut self,
        sql: &str,
        parameters: &[Option<&str>],
    ) -> Result<QueryResult, ExchangeError> {
        let values: Vec<_> = parameters
            .iter()
            .map(|value| value.map(str::as_bytes))
            .collect();
        self.session
            .execute(Execution::Text(sql.as_bytes()), &values, 0, true)?;
        self.session.sync(0);
        Ok(self.wait()?.pop().unwrap_or_default())
    }

    /// Returns the first column of a statement's first row, if there is one and it is not null.
    ///
    /// # Errors
    /// An error that the server reports, or the error that ended the connection.
    pub fn value(&mut self, sql: &str) -> Result<Option<String>, ExchangeError> {
        let answer = self.query(sql)?.pop().unwrap_or_default();
        Ok(answer
            .rows
            .into_iter()
            .next()
            .and_then(|row| row.into_iter().next().flatten()))
    }

    /// As [`Self::value`], for a query of the catalog outside a transaction: in one that only reads, with short limits
    /// and the catalog's functions and operators, and whose isolation level is READ COMMITTED, whatever the role's
    /// defaults are. On a standby, serializable transactions fail. The session's settings stay, because a pooler may
    /// give it to others.
    ///
    /// # Errors
    /// As for [`Self::value`].
    pub fn value_read_committed(&mut self, sql: &str) -> Result<Option<String>, ExchangeError> {
        let row = self.rows_read_committed(sql)?.into_iter().next();
        Ok(row.and_then(|row| row.into_iter().next().flatten()))
    }

    /// The rows of queries, read as [`Self::value_read_committed`] does.
    ///
    /// # Errors
    /// As for [`Self::query`].
    pub fn rows_read_committed(
        &mut self,
        sql: &str,
    ) -> Result<Vec<Vec<Option<String>>>, ExchangeError> {
        let answers = self.query(&format!(
            "begin transaction isolation level read committed read only; \
             set local search_path = pg_catalog, pg_temp; set local statement_timeout = '10s'; \
             set local lock_timeout = '100ms'; {sql}; commit"
        ));
        if let Err(ExchangeError::Server(_)) = answers {
            // If it has ended the connection, the error says so.
            _ = self.run("rollback");
        }
        Ok(answers?.into_iter().flat_map(|it| it.rows).collect())
    }

    /// Returns the backend's process ID and the key to cancel its queries.
    pub fn backend(&self) -> Option<BackendKey> {
        self.session.backend()
    }

    /// Returns a setting that the server reported, such as `server_version`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.session.parameter(name)
    }

    /// Whether a transaction is open.
    pub fn is_in_transaction(&self) -> bool {
        self.session.status() != TransactionStatus::Idle
    }

    /// Whether the connection uses TLS.
    pub fn is_protected(&self) -> bool {
        self.session.is_protected()
    }

    /// Returns and clears the notices received since the last call.
    pub fn take_notices(&mut self) -> Vec<ServerMessage> {
        self.notices.take()
    }

    /// Converts the stream, for example into a boxed one; the connection stays the same.
    pub fn map<T>(self, change: impl FnOnce(S) -> T) -> Exchange<T> {
        Exchange {
            stream: change(self.stream),
            session: self.session,
            notices: self.notices,
        }
    }

    /// Returns the stream, for setting its time limits.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Terminates the connection and returns the stream.
    ///
    /// # Errors
    /// A failure of the stream, which rarely matters here.
    pub fn close(mut self) -> Result<S, ExchangeError> {
        self.session.terminate();
        self.send()?;
        Ok(self.stream)
    }

    /// Sends the output, which ends a request.
    fn send(&mut self) -> Result<(), ExchangeError> {
        self.write_output()?;
        Ok(self.stream.flush()?)
    }

    fn write_output(&mut self) -> Result<(), ExchangeError> {
        let output = self.session.output();
        let count_bytes = output.len();
        self.stream.write_all(output)?;
        self.session.sent(count_bytes);
        Ok(())
    }

    /// Sends the output and collects results until the server is ready.
    fn wait(&mut self) -> Result<Vec<QueryResult>, ExchangeError> {
        let mut collected = Collected::default();
        self.collect(&mut collected, |collected| collected.ready)?;
        match collected.error {
            Some(error) => Err(ExchangeError::Server(error)),
            None => Ok(collected.answers),
        }
    }

    /// Sends the output and collects results until there are enough.
    fn collect(
        &mut self,
        collected: &mut Collected,
        is_enough: impl Fn(&Collected) -> bool,
    ) -> Result<(), ExchangeError> {
        let mut buffer = [0; READ_BYTES];
        let mut is_first = true;
        while !is_enough(collected) {
            // A server that closed the connection may have sent a last message, which explains the
            // failure better than the stream's error does, so reading continues after a failed
            // write. After any other error, the server would wait for the rest of the request.
            // Only the request itself is flushed: see the module's documentation.
            let sent = if std::mem::take(&mut is_first) {
                self.send()
            } else {
                self.write_output()
            };
            if let Err(ExchangeError::Stream(error)) = &sent
                && !may_be_closed(error)
            {
                return sent;
            }
            let count = match self.stream.read(&mut buffer) {
                Ok(count) if count > 0 => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                ended => {
                    let of_stream = sent.err().or(ended.err().map(ExchangeError::Stream));
                    return Err(match collected.error.take() {
                        Some(error) => ExchangeError::Server(error),
                        None => of_stream.unwrap_or(ExchangeError::Closed),
                    });
                }
            };
            let mut input = &buffer[..count];
            while let Some(event) = self.session.next(&mut input)? {
                collected.take(event, &mut self.notices)?;
            }
        }
        Ok(())
    }
}

/// Whether a failed write can mean that the server has closed the connection. Errors of a TLS library
/// have no number of the system.
fn may_be_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
    let kinds = [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected];
    error.raw_os_error().is_none() || kinds.contains(&error.kind())
}

/// Notices that the caller has not taken yet.
#[derive(Default)]
struct Notices {
    kept: Vec<ServerMessage>,
    bytes: usize,
    /// Number of notices beyond the limit.
    omitted: u64,
}

impl Notices {
    fn add(&mut self, notice: Notice<'_>) -> Result<(), WireError> {
        self.bytes += size_of::<ServerMessage>() + notice.0.len();
        if self.bytes > NOTICES_MAX_BYTES {
            self.omitted += 1;
            return Ok(());
        }
        self.kept.push(notice.read()?);
        Ok(())
    }

    /// Returns the notices; if some were omitted, the last one says so.
    fn take(&mut self) -> Vec<ServerMessage> {
        let Self {
            mut kept, omitted, ..
        } = std::mem::take(self);
        if omitted > 0 {
            kept.push(ServerMessage {
                severity: "WARNING".into(),
                sqlstate: "01000".into(),
                message: format!("pgassay omitted {omitted} further notices of the server"),
                ..ServerMessage::default()
            });
        }
        kept
    }
}

#[derive(Default)]
struct Collected {
    answers: Vec<QueryResult>,
    current: QueryResult,
    /// Whether results are not wanted.
    discards: bool,
    /// Memory of the results so far.
    bytes: usize,
    error: Option<Box<ServerMessage>>,
    ready: bool,
    wants_data: bool,
}

impl Collected {
    fn take(&mut self, event: Event<'_>, notices: &mut Notices) -> Result<(), ExchangeError> {
        match event {
            Event::Ready { .. } => self.ready = true,
            Event::Copy {
                direction: CopyDirection::In,
                ..
            } => self.wants_data = true,
            Event::Complete { .. } if self.discards => {}
            Event::Complete { tag, .. } => {
                self.count(tag.len() + size_of::<QueryResult>())?;
                self.current.tag = String::from_utf8_lossy(tag).into_owned();
                self.answers.push(std::mem::take(&mut self.current));
            }
            Event::Described { columns, .. } => {
                self.count(columns.0.len())?;
                self.current.columns = columns.names()?;
            }
            Event::DataRow { row, .. } => {
                let values = row.values().count();
                self.count(row.0.len() + (values + 1) * VALUE_BYTES)?;
                let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
                let values = row.values().map(|value| Ok(value?.map(text)));
                self.current
                    .rows
                    .push(values.collect::<Result<_, WireError>>()?);
            }
            Event::Error { error, .. } if self.error.is_none() => self.error = Some(error),
            Event::Notice(notice) => notices.add(notice)?,
            _ => {}
        }
        Ok(())
    }

    /// Counts memory of the results.
    fn count(&mut self, bytes: usize) -> Result<(), ExchangeError> {
        self.bytes += bytes;
        if self.bytes > RESULT_MAX_BYTES {
            return Err(ExchangeError::TooLarge {
                max_bytes: RESULT_MAX_BYTES,
            });
        }
        Ok(())
    }
}
