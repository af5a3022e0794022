//! One connection as a state machine: requests go out, replies become events.
//!
//! A request adds its messages to the output and one entry to the queue of pending replies; the
//! caller writes [`Session::output`] and tells with [`Session::sent`] how much of it went. The
//! messages of a statement are those that libpq sends for pgbench (`PQsendQueryStart` …
//! `PQsendQueryGuts`, `PQsendQueryPrepared` in `fe-exec.c`), so that the server's cost is the same.

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use crate::authentication::{Authentication, SaltCache, encode_error};
use crate::conninfo::{ChannelBinding, Methods, SessionAttributes};
use crate::encode;
use crate::error::WireError;
use crate::message::{Event, TransactionStatus};
use crate::password::Password;
use crate::replies::{Kind, Pending, Replies};
use crate::starting::Starting;
use crate::tls::{Protection, TlsSettings};

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
    /// How the connection is protected; not at all if none.
    pub tls: Option<TlsLogin>,
    /// Whether signing in is bound to the server's certificate.
    pub channel_binding: ChannelBinding,
    /// The ways to authenticate that are allowed.
    pub methods: Methods,
    /// Which kind of server is wanted; another one is [`WireError::Unwanted`].
    pub wanted: SessionAttributes,
}

/// How a connection is protected.
#[derive(Clone, Debug)]
pub struct TlsLogin {
    /// What is trusted, and what the client shows.
    pub settings: TlsSettings,
    /// The host's name or address.
    pub host: String,
    /// Whether the session goes on without TLS where the server refuses it.
    pub is_required: bool,
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
    Text(&'a [u8]),
    /// Bind and execute a statement that [`Session::parse`] prepared under this name.
    Prepared(&'a [u8]),
}

/// One connection. See the module's text.
pub struct Session {
    replies: Replies,
    /// There while TLS is, or may come to be, between us and the server.
    protection: Option<Box<Protection>>,
}

impl Session {
    /// Starts a session: the output holds the start-up message. It is ready for requests after
    /// the first [`Event::Ready`].
    ///
    /// # Errors
    /// [`WireError::Encode`] where a name holds a zero byte; [`WireError::Tls`] where TLS is to
    /// begin at once and cannot.
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
        let starting = Starting::new(Authentication::new(login), login.wanted);
        let protection = login.tls.as_ref().map(Protection::start).transpose()?;
        Ok(Self {
            replies: Replies::new(starting, out.to_vec()),
            protection: protection.map(Box::new),
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
        if self.protection.is_some() {
            return self.next_protected(input);
        }
        self.replies.next(input)
    }

    #[inline(never)]
    fn next_protected<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Event<'s>>, WireError> {
        if let Some(protection) = &mut self.protection
            && protection.is_asking()
            && !protection.answered(input)?
        {
            self.protection = None;
        }
        match &mut self.protection {
            Some(protection) => protection.next(&mut self.replies, input),
            None => self.replies.next(input),
        }
    }

    /// The bytes to be written. With TLS, what was asked since the last call is sealed by this.
    #[inline]
    pub fn output(&mut self) -> &[u8] {
        if let Some(protection) = &mut self.protection {
            return protection.output(&mut self.replies.core);
        }
        &self.replies.core.out[self.replies.core.sent..]
    }

    /// Tells that so many bytes of the output were written.
    #[inline]
    pub fn sent(&mut self, count_bytes: usize) {
        if let Some(protection) = &mut self.protection {
            return protection.sent(count_bytes);
        }
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
    /// [`WireError::Encode`] where the text holds a zero byte; nothing is sent then.
    pub fn query(
        &mut self,
        sql: impl AsRef<[u8]>,
        token: u32,
        rows: bool,
    ) -> Result<(), WireError> {
        self.query_with(|out| out.extend_from_slice(sql.as_ref()), token, rows)
    }

    /// A simple query whose text `write` appends to what it is given.
    ///
    /// # Errors
    /// [`WireError::Encode`] where the text holds a zero byte; nothing is sent then.
    #[inline]
    pub fn query_with(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>),
        token: u32,
        rows: bool,
    ) -> Result<(), WireError> {
        encode::message(&mut self.replies.core.out, b'Q', "query", |out| {
            let start = out.len();
            write(out);
            encode::end_text(out, start, "query")
        })?;
        self.push(Kind::Simple, token, rows);
        Ok(())
    }

    /// Prepares a statement under a name; the types of its parameters are left to the server.
    ///
    /// # Errors
    /// [`WireError::Encode`] where name or text hold a zero byte; nothing is sent then.
    pub fn parse(
        &mut self,
        name: impl AsRef<[u8]>,
        sql: impl AsRef<[u8]>,
        token: u32,
    ) -> Result<(), WireError> {
        encode::parse(&mut self.replies.core.out, name.as_ref(), sql.as_ref())?;
        self.push(Kind::Parse, token, false);
        Ok(())
    }

    /// Binds, describes and executes a statement: libpq's `PQsendQueryParams` and
    /// `PQsendQueryPrepared`, without their Sync. Parameters and results are text.
    ///
    /// # Errors
    /// [`WireError::Encode`] where a text holds a zero byte or there are too many parameters;
    /// nothing is sent then.
    pub fn execute(
        &mut self,
        how: Execution<'_>,
        parameters: &[Option<&[u8]>],
        token: u32,
        rows: bool,
    ) -> Result<(), WireError> {
        let write = |index: usize, out: &mut Vec<u8>| {
            out.extend_from_slice(parameters[index].unwrap_or_default());
            parameters[index].is_some()
        };
        self.execute_with(how, parameters.len(), write, token, rows)
    }

    /// As [`Self::execute`]; `write` appends the parameter of an index, counted from 0, to what it
    /// is given, or returns `false` for null.
    ///
    /// # Errors
    /// As [`Self::execute`].
    #[inline]
    pub fn execute_with(
        &mut self,
        how: Execution<'_>,
        count: usize,
        write: impl FnMut(usize, &mut Vec<u8>) -> bool,
        token: u32,
        rows: bool,
    ) -> Result<(), WireError> {
        let out = &mut self.replies.core.out;
        let start = out.len();
        let name = match how {
            Execution::Text(sql) => {
                encode::parse(out, b"", sql)?;
                &[]
            }
            Execution::Prepared(name) => name,
        };
        if let Err(error) = encode::bind_describe_execute(out, name, count, write) {
            self.replies.core.out.truncate(start);
            return Err(error);
        }
        self.push(Kind::Execute, token, rows);
        Ok(())
    }

    /// Closes a prepared statement.
    ///
    /// # Errors
    /// [`WireError::Encode`] where the name holds a zero byte.
    pub fn close_statement(&mut self, name: impl AsRef<[u8]>, token: u32) -> Result<(), WireError> {
        encode::message(
            &mut self.replies.core.out,
            b'C',
            "statement's name",
            |out| {
                out.push(b'S');
                encode::text(out, name.as_ref(), "statement's name")
            },
        )?;
        self.push(Kind::Close, token, false);
        Ok(())
    }

    /// Ends a group of extended requests; [`Event::Ready`] with this token answers it.
    #[inline]
    pub fn sync(&mut self, token: u32) {
        self.replies.core.out.extend_from_slice(encode::SYNC);
        self.push(Kind::Sync, token, false);
    }

    /// Asks the server to send what it has; nothing answers it.
    pub fn flush(&mut self) {
        self.replies.core.out.extend_from_slice(b"H\0\0\0\x04");
    }

    /// Whether `COPY FROM STDIN` is answered with [`Self::copy_data`]. By default it is refused,
    /// since scripts of a load have no data to give.
    pub fn accept_copy(&mut self, accepts: bool) {
        self.replies.core.accepts_copy = accepts;
    }

    /// Data of a `COPY FROM STDIN` that the server asked for; `write` appends them to what it is
    /// given, in pieces of any length.
    ///
    /// # Errors
    /// [`WireError::Encode`] where they are too long for one message.
    pub fn copy_data(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), WireError> {
        encode::message(&mut self.replies.core.out, b'd', "data", |out| {
            write(out);
            Ok(())
        })
    }

    /// Ends the data of a `COPY FROM STDIN`.
    pub fn copy_done(&mut self) {
        self.replies.core.out.extend_from_slice(b"c\0\0\0\x04");
    }

    /// Says goodbye; the server closes the connection without an answer.
    pub fn terminate(&mut self) {
        self.replies.core.out.extend_from_slice(b"X\0\0\0\x04");
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

    /// Whether the server has let the client in, though it may still be refused its database.
    pub fn is_authenticated(&self) -> bool {
        let starting = self.replies.core.starting.as_ref();
        starting.is_none_or(|starting| starting.authentication.is_satisfied)
    }

    /// Whether what is sent and received is protected by TLS, once the session is started.
    pub fn is_protected(&self) -> bool {
        self.protection.is_some()
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
