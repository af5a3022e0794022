//! One connection as a state machine: requests go out, replies become events.
//!
//! A request adds its messages to the output and one entry to the queue of pending replies; the
//! caller writes [`Session::output`] and tells with [`Session::sent`] how much of it went. The
//! messages of a statement are those that libpq sends for pgbench (`PQsendQueryStart` …
//! `PQsendQueryGuts`, `PQsendQueryPrepared` in `fe-exec.c`), so that the server's cost is the same.

use bytes::{BufMut, BytesMut};
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;

use crate::authentication::{Authentication, SaltCache, encode_error};
use crate::error::WireError;
use crate::message::{Event, TransactionStatus};
use crate::password::Password;
use crate::replies::{Kind, Pending, Replies};

/// Who signs in, and to what.
#[derive(Clone, Debug, Default)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The database; the server takes the user's name where it is empty.
    pub database: String,
    /// The password, should the server ask for one.
    pub password: Option<Password>,
    /// Further settings of the session, such as `application_name`, `options` or any other.
    pub settings: Vec<(String, String)>,
    /// Salted passwords that clients of the same run share.
    pub salts: SaltCache,
}

/// What identifies a server process, and entitles to cancel what it does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BackendKey {
    /// The server process.
    pub pid: i32,
    secret: i32,
}

impl BackendKey {
    /// The message that cancels the running query; it is sent alone, over a connection of its own.
    pub fn cancel_request(&self) -> Vec<u8> {
        let mut out = BytesMut::new();
        frontend::cancel_request(self.pid, self.secret, &mut out);
        out.to_vec()
    }

    pub(crate) fn new(pid: i32, secret: i32) -> Self {
        Self { pid, secret }
    }
}

impl std::fmt::Debug for BackendKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BackendKey {{ pid: {} }}", self.pid)
    }
}

/// How a statement is executed by [`Session::execute`].
#[derive(Clone, Copy, Debug)]
pub enum Execution<'a> {
    /// Parse the text as the unnamed statement, then bind and execute it: pgbench's extended mode.
    Text(&'a str),
    /// Bind and execute a statement that [`Session::parse`] prepared under this name.
    Prepared(&'a str),
}

/// One connection. See the module's text.
pub struct Session {
    replies: Replies,
}

impl Session {
    /// Starts a session: the output holds the start-up message. It is ready for requests after
    /// the first [`Event::Ready`].
    ///
    /// # Errors
    /// [`WireError::Encode`] where a name holds a zero byte.
    pub fn start(login: &Login) -> Result<Self, WireError> {
        let mut out = BytesMut::with_capacity(512);
        let mut parameters = vec![("user", login.user.as_str())];
        if !login.database.is_empty() {
            parameters.push(("database", &login.database));
        }
        parameters.extend(
            login
                .settings
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str())),
        );
        // An empty name would end the list early.
        if parameters.iter().any(|(name, _)| name.is_empty()) {
            return Err(WireError::Encode {
                what: "start-up message",
                reason: "a setting has no name".into(),
            });
        }
        frontend::startup_message(parameters, &mut out)
            .map_err(|error| encode_error("start-up message", &error))?;
        let authentication = Authentication::new(
            login.user.clone(),
            login.password.clone(),
            login.salts.clone(),
        );
        Ok(Self {
            replies: Replies::new(authentication, out),
        })
    }

    /// Takes the next event out of bytes that were read, and shortens `input` by what it used;
    /// `None` once all of it is used up. Call it until then: what is left of a message is kept.
    ///
    /// # Errors
    /// Whatever does not follow the protocol; the connection must be given up then.
    #[inline]
    pub fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Event<'s>>, WireError> {
        self.replies.next(input)
    }

    /// The bytes to be written.
    #[inline]
    pub fn output(&self) -> &[u8] {
        &self.replies.core.out[self.replies.core.sent..]
    }

    /// Tells that so many bytes of the output were written.
    #[inline]
    pub fn sent(&mut self, count_bytes: usize) {
        let core = &mut self.replies.core;
        core.sent += count_bytes;
        if core.sent >= core.out.len() {
            core.out.clear();
            core.sent = 0;
        }
    }

    /// A simple query, which may hold several statements.
    ///
    /// # Errors
    /// [`WireError::Encode`] where the text holds a zero byte.
    pub fn query(&mut self, sql: &str, token: u32, rows: bool) -> Result<(), WireError> {
        frontend::query(sql, &mut self.replies.core.out)
            .map_err(|error| encode_error("query", &error))?;
        self.push(Kind::Simple, token, rows);
        Ok(())
    }

    /// Prepares a statement under a name; the types of its parameters are left to the server.
    ///
    /// # Errors
    /// [`WireError::Encode`] where name or text hold a zero byte.
    pub fn parse(&mut self, name: &str, sql: &str, token: u32) -> Result<(), WireError> {
        frontend::parse(name, sql, [], &mut self.replies.core.out)
            .map_err(|error| encode_error("statement", &error))?;
        self.push(Kind::Parse, token, false);
        Ok(())
    }

    /// Binds, describes and executes a statement: libpq's `PQsendQueryParams` and
    /// `PQsendQueryPrepared`, without their Sync. Parameters and results are text.
    ///
    /// # Errors
    /// [`WireError::Encode`] where a name holds a zero byte or there are too many parameters. The
    /// output holds half a message then, so the session is of no use any longer.
    #[inline]
    pub fn execute<'v>(
        &mut self,
        how: Execution<'_>,
        parameters: impl IntoIterator<Item = Option<&'v [u8]>>,
        token: u32,
        rows: bool,
    ) -> Result<(), WireError> {
        let out = &mut self.replies.core.out;
        let failed = |error: std::io::Error| encode_error("statement", &error);
        let name = match how {
            Execution::Text(sql) => {
                frontend::parse("", sql, [], out).map_err(failed)?;
                ""
            }
            Execution::Prepared(name) => name,
        };
        let write = |value: Option<&[u8]>, out: &mut BytesMut| match value {
            Some(value) => {
                out.put_slice(value);
                Ok(IsNull::No)
            }
            None => Ok(IsNull::Yes),
        };
        frontend::bind("", name, [], parameters, write, [0], out).map_err(|error| match error {
            frontend::BindError::Serialization(error) => failed(error),
            frontend::BindError::Conversion(error) => WireError::Encode {
                what: "parameters",
                reason: error.to_string(),
            },
        })?;
        // Describe of the unnamed portal, then Execute of it without a limit of rows: constant.
        out.put_slice(b"D\0\0\0\x06P\0E\0\0\0\x09\0\0\0\0\0");
        self.push(Kind::Execute, token, rows);
        Ok(())
    }

    /// Closes a prepared statement.
    ///
    /// # Errors
    /// [`WireError::Encode`] where the name holds a zero byte.
    pub fn close_statement(&mut self, name: &str, token: u32) -> Result<(), WireError> {
        frontend::close(b'S', name, &mut self.replies.core.out)
            .map_err(|error| encode_error("statement's name", &error))?;
        self.push(Kind::Close, token, false);
        Ok(())
    }

    /// Ends a group of extended requests; [`Event::Ready`] with this token answers it.
    #[inline]
    pub fn sync(&mut self, token: u32) {
        self.replies.core.out.put_slice(b"S\0\0\0\x04");
        self.push(Kind::Sync, token, false);
    }

    /// Asks the server to send what it has; nothing answers it.
    pub fn flush(&mut self) {
        frontend::flush(&mut self.replies.core.out);
    }

    /// Says goodbye; the server closes the connection without an answer.
    pub fn terminate(&mut self) {
        frontend::terminate(&mut self.replies.core.out);
    }

    /// The server process and the key to cancel its work, once known.
    pub fn backend(&self) -> Option<BackendKey> {
        self.replies.core.backend
    }

    /// A setting that the server reported, such as `server_version`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let known = &self.replies.core.parameters;
        known
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The transaction's state at the last [`Event::Ready`].
    pub fn status(&self) -> TransactionStatus {
        self.replies.core.status
    }

    /// Whether start-up is over and requests are accepted.
    pub fn is_started(&self) -> bool {
        self.replies.core.starting.is_none()
    }

    /// How many requests wait for an answer, Syncs included.
    #[inline]
    pub fn pending(&self) -> usize {
        self.replies.core.pending.len()
    }

    /// Whether the server passes over requests up to the next Sync, which has not been given yet.
    /// Requests made meanwhile get no event.
    pub fn is_discarding(&self) -> bool {
        self.replies.core.discarding
    }

    #[inline]
    fn push(&mut self, kind: Kind, token: u32, rows: bool) {
        self.replies.core.push(Pending { kind, rows, token });
    }
}
