//! A blocking connection for setup and inspection: over the socket of a pgassay server, or over any
//! stream that a caller has authenticated. The load has its own engine; this one waits for each
//! response.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pgassay_wire::{BackendKey, Exchange, ExchangeError, Login, QueryResult};

pub use pgassay_wire::ServerMessage as SqlError;

use crate::socket_closer::SocketCloser;
use crate::timed_stream::TimedStream;

/// A stream that a connection can use.
pub trait Stream: Read + Write + Send {
    /// Limits the time of each answer from now on: from a request's flush to the last byte that is
    /// read for it, however many notices the server sends meanwhile.
    ///
    /// # Errors
    /// The socket does not accept the limit.
    fn set_limit(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Returns a handle that closes the socket from another thread.
    ///
    /// # Errors
    /// There are too many open files.
    fn closer(&self) -> io::Result<SocketCloser>;
}

/// A connection to a server.
pub struct Connection {
    exchange: Exchange<Box<dyn Stream>>,
}

impl<S: Stream + 'static> From<Exchange<S>> for Connection {
    fn from(exchange: Exchange<S>) -> Self {
        Self {
            exchange: exchange.map(|stream| Box::new(stream) as Box<dyn Stream>),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("backend_pid", &self.backend_pid())
            .finish_non_exhaustive()
    }
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The socket could not be reached.
    #[error("cannot connect to the server at {}: {source}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The server rejected a statement or the connection. The connection remains usable unless the
    /// error is fatal.
    #[error("{0}")]
    Sql(Box<SqlError>),
    /// The connection broke and is no longer usable.
    #[error("lost the connection to the server: {0}")]
    Broken(ExchangeError),
    /// The caller did not execute the statement, and why. The connection remains usable.
    #[error("{0}")]
    NotExecuted(String),
}

impl From<ExchangeError> for ConnectionError {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Server(error) => Self::Sql(error),
            other => Self::Broken(other),
        }
    }
}

impl ConnectionError {
    /// The server's error, with SQLSTATE, position, detail and hint, if it reported one.
    pub fn sql(&self) -> Option<&SqlError> {
        match self {
            Self::Sql(error) => Some(error),
            _ => None,
        }
    }
}

impl Connection {
    /// Connects to a socket. `sign_in_timeout` limits authentication; statements have no time
    /// limit.
    pub(crate) fn open(
        socket: &Path,
        login: &Login,
        sign_in_timeout: Duration,
    ) -> Result<Self, ConnectionError> {
        let connect = |source| ConnectionError::Connect {
            socket: socket.to_owned(),
            source,
        };
        let stream = UnixStream::connect(socket).map_err(connect)?;
        let until = Instant::now() + sign_in_timeout;
        let exchange = Exchange::open(TimedStream::unix(stream, Some(until)), login)?;
        exchange.stream().set_limit(None).map_err(connect)?;
        Ok(exchange.into())
    }

    /// Runs one or more statements and returns the rows of the last one, each value as text or
    /// null.
    pub fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, ConnectionError> {
        Ok(self
            .exchange
            .query(sql)?
            .pop()
            .map(|answer| answer.rows)
            .unwrap_or_default())
    }

    /// Runs one or more statements and returns the result of each.
    pub fn query_all(&mut self, sql: &str) -> Result<Vec<QueryResult>, ConnectionError> {
        Ok(self.exchange.query(sql)?)
    }

    /// Runs one or more statements and discards their results.
    pub fn execute(&mut self, sql: &str) -> Result<(), ConnectionError> {
        Ok(self.exchange.run(sql)?)
    }

    /// Runs one statement with parameters `$1`, `$2` …, given as text or null.
    pub fn query_with(
        &mut self,
        sql: &str,
        parameters: &[Option<&str>],
    ) -> Result<QueryResult, ConnectionError> {
        Ok(self.exchange.execute(sql, parameters)?)
    }

    /// The first value of a statement's first row; `None` if there is none or it is null.
    pub fn value(&mut self, sql: &str) -> Result<Option<String>, ConnectionError> {
        Ok(self.exchange.value(sql)?)
    }

    /// Notices and warnings received since the last call.
    pub fn take_notices(&mut self) -> Vec<SqlError> {
        self.exchange.take_notices()
    }

    /// Whether a transaction is open.
    pub fn is_in_transaction(&self) -> bool {
        self.exchange.is_in_transaction()
    }

    /// The PID of the backend.
    pub fn backend_pid(&self) -> Option<crate::Pid> {
        self.exchange.backend().map(|key| key.pid)
    }

    /// The key that cancels a statement of this connection.
    pub fn backend_key(&self) -> Option<BackendKey> {
        self.exchange.backend()
    }

    /// Returns a handle that ends a wait for an answer from another thread. After that, the
    /// connection is not usable.
    pub fn closer(&self) -> io::Result<SocketCloser> {
        self.exchange.stream().closer()
    }

    /// Limits the time of a statement's answer. After a timeout the connection is not usable.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.exchange.stream().set_limit(timeout)
    }

    /// Terminates the connection. Dropping it works too.
    pub fn close(self) -> Result<(), ConnectionError> {
        self.exchange.close()?;
        Ok(())
    }
}
