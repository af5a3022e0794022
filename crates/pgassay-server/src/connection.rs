//! A blocking connection, for set-up and inspection: over the socket of a server of ours, or over
//! any stream that a caller has signed in on. The load has its own engine; this one waits for each
//! answer.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pgassay_wire::{Answer, Exchange, ExchangeError, Login};

pub use pgassay_wire::ServerError as SqlError;

/// What a connection may run over.
pub trait Stream: Read + Write + Send {
    /// Bounds each wait for an answer from now on.
    ///
    /// # Errors
    /// A socket that takes no such limit.
    fn set_limit(&self, limit: Option<Duration>) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn set_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(limit)
    }
}

/// A connection to one server as one role.
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
        /// What the system said.
        source: io::Error,
    },
    /// The server refused a statement or the connection. The connection can go on, unless the
    /// error is fatal.
    #[error("{0}")]
    Sql(Box<SqlError>),
    /// The connection broke; it cannot go on.
    #[error("the connection to the server broke: {0}")]
    Broken(ExchangeError),
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
    /// What the server said, with SQLSTATE, position, detail and hint, where it said something.
    pub fn sql(&self) -> Option<&SqlError> {
        match self {
            Self::Sql(error) => Some(error),
            _ => None,
        }
    }
}

impl Connection {
    /// Connects to a socket. With `sign_in_timeout` the sign-in may take that long and no longer;
    /// statements after it take the time that they need.
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
        stream
            .set_read_timeout(Some(sign_in_timeout))
            .map_err(connect)?;
        let exchange = Exchange::open(stream, login)?;
        exchange.stream().set_limit(None).map_err(connect)?;
        Ok(exchange.into())
    }

    /// Runs one or more statements and gives the rows of the last one, each value as text or null.
    pub fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, ConnectionError> {
        Ok(self
            .exchange
            .query(sql)?
            .pop()
            .map(|answer| answer.rows)
            .unwrap_or_default())
    }

    /// Runs one or more statements and gives each one's answer.
    pub fn query_all(&mut self, sql: &str) -> Result<Vec<Answer>, ConnectionError> {
        Ok(self.exchange.query(sql)?)
    }

    /// Runs one or more statements for their effect.
    pub fn execute(&mut self, sql: &str) -> Result<(), ConnectionError> {
        self.exchange.query(sql)?;
        Ok(())
    }

    /// Runs one statement with parameters `$1`, `$2` …, given as text or null.
    pub fn query_with(
        &mut self,
        sql: &str,
        parameters: &[Option<&str>],
    ) -> Result<Answer, ConnectionError> {
        Ok(self.exchange.execute(sql, parameters)?)
    }

    /// The first value of a statement's first row, if there is one that is not null.
    pub fn value(&mut self, sql: &str) -> Result<Option<String>, ConnectionError> {
        Ok(self.exchange.value(sql)?)
    }

    /// Notices and warnings that came since the last call.
    pub fn take_notices(&mut self) -> Vec<SqlError> {
        self.exchange.take_notices()
    }

    /// The server process that serves this connection.
    pub fn backend_pid(&self) -> Option<crate::Pid> {
        self.exchange.backend().map(|key| key.pid)
    }

    /// Limits how long a statement may be waited for; the connection is of no use after one was
    /// not answered in time.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.exchange.stream().set_limit(timeout)
    }

    /// Says goodbye. Just dropping the connection is fine too.
    pub fn close(self) -> Result<(), ConnectionError> {
        self.exchange.close()?;
        Ok(())
    }
}
