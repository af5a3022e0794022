//! One connection as a state machine: requests become messages, and replies become events.
//!
//! A request appends its messages to the output and one entry to the queue of pending replies. The
//! caller writes [`Session::output`] and reports with [`Session::sent`] how much was written. A
//! statement consists of the same messages that libpq sends for pgbench (`PQsendQueryStart` …
//! `PQsendQueryGuts`, `PQsendQueryPrepared` in `fe-exec.c`), so that it costs the server the same.

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use crate::authentication::{Authentication, encode_error};
use crate::backend_key::BackendKey;
use crate::encode;
use crate::error::WireError;
use crate::login::Login;
use crate::message::{Event, TransactionStatus};
use crate::replies::{Pending, Replies, RequestKind};
use crate::starting::Starting;
use crate::tls::Protection;

/// How [`Session::execute`] executes a statement.
#[derive(Clone, Copy, Debug)]
pub enum Execution<'a> {
    /// Parse the text as the unnamed statement, then bind and execute it: pgbench's extended mode.
    Text(&'a [u8]),
    /// Bind and execute a statement that [`Session::parse`] prepared under this name.
    Prepared(&'a [u8]),
}

/// One connection; see the module documentation.
pub struct Session {
    replies: Replies,
    /// Present while the connection uses TLS or may start to use it.
    protection: Option<Box<Protection>>,
}

impl Session {
    /// Starts a session; the output contains the start-up message. The session accepts requests
    /// after the first [`Event::Ready`].
    ///
    /// # Errors
    /// [`WireError::Encode`] if a name contains a zero byte; [`WireError::Tls`] if TLS must start
    /// immediately but cannot.
    pub fn start(login: &Login) -> Result<Self, WireError> {
        let mut out = BytesMut::with_capacity(512);
        let mut parameters = vec![("user", login.user.as_str())];
        if !login.database.is_empty() {
            parameters.push(("database", &login.database));
        }
        for (name, value) in &login.settings {
            // An empty name would terminate the list, and the server uses the last user and database.
            if matches!(name.as_str(), "" | "user" | "database" | "replication") {
                return Err(WireError::Encode {
                    what: "start-up message",
                    reason: format!("a setting cannot be named \"{name}\""),
                });
            }
            parameters.push((name, value));
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

    /// Starts a session that only cancels a query: the output contains the request, after TLS has
    /// started if `login` uses it. The server closes the connection without a reply.
    ///
    /// # Errors
    /// [`WireError::Tls`] if TLS must start immediately but cannot.
    pub(crate) fn cancel(login: &Login, key: BackendKey) -> Result<Self, WireError> {
        let starting = Starting::new(Authentication::new(login), login.wanted);
        let protection = login.tls.as_ref().map(Protection::start).transpose()?;
        Ok(Self {
            replies: Replies::new(starting, key.cancel_request()),
            protection: protection.map(Box::new),
        })
    }

    /// Whether some of the output has not been taken yet, because TLS has not started.
    pub(crate) fn has_unsent(&self) -> bool {
        self.replies.core.sent < self.replies.core.out.len()
    }

    /// Returns the next event in the received bytes, and advances `input`; `None` once it is
    /// consumed. Call it until then: an incomplete message is buffered.
    ///
    /// # Errors
    /// A protocol violation; the connection cannot be used after that.
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

    /// Returns the bytes to write. With TLS, this encrypts the requests made since the last call.
    #[inline]
    pub fn output(&mut self) -> &[u8] {
        if let Some(protection) = &mut self.protection {
            return protection.output(&mut self.replies.core);
        }
        &self.replies.core.out[self.replies.core.sent..]
    }

    /// Reports how many bytes of the output were written.
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

    /// Sends a simple query, which may contain several statements.
    ///
    /// # Errors
    /// [`WireError::Encode`] if the text contains a zero byte; then nothing is sent.
    pub fn query(
        &mut self,
        sql: impl AsRef<[u8]>,
        token: u32,
        rows: bool,
    ) -> Result<(), WireError> {
        self.query_with(|out| out.extend_from_slice(sql.as_ref()), token, rows)
    }

    /// Sends a simple query whose text `write` appends to its argument.
    ///
    /// # Errors
    /// [`WireError::Encode`] if the text contains a zero byte; then nothing is sent.
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
        self.push(RequestKind::Simple, token, rows);
        Ok(())
    }

    /// Prepares a named statement; the server determines the types of its parameters.
    ///
    /// # Errors
    /// [`WireError::Encode`] if the name or the text contains a zero byte; then nothing is sent.
    pub fn parse(
        &mut self,
        name: impl AsRef<[u8]>,
        sql: impl AsRef<[u8]>,
        token: u32,
    ) -> Result<(), WireError> {
        encode::parse(&mut self.replies.core.out, name.as_ref(), sql.as_ref())?;
        self.push(RequestKind::Parse, token, false);
        Ok(())
    }

    /// Binds, describes and executes a statement, like libpq's `PQsendQueryParams` and
    /// `PQsendQueryPrepared` without their Sync. Parameters and results are text.
    ///
    /// # Errors
    /// [`WireError::Encode`] if a text contains a zero byte or there are too many parameters; then
    /// nothing is sent.
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

    /// Like [`Self::execute`]; `write` appends the parameter with an index, counted from 0, to its
    /// argument, or returns `false` for NULL.
    ///
    /// # Errors
    /// As for [`Self::execute`].
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
        self.push(RequestKind::Execute, token, rows);
        Ok(())
    }

    /// Closes a prepared statement.
    ///
    /// # Errors
    /// [`WireError::Encode`] if the name contains a zero byte.
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
        self.push(RequestKind::Close, token, false);
        Ok(())
    }

    /// Ends a group of extended requests with a Sync; [`Event::Ready`] with this token is the
    /// reply.
    #[inline]
    pub fn sync(&mut self, token: u32) {
        self.replies.core.out.extend_from_slice(encode::SYNC);
        self.push(RequestKind::Sync, token, false);
    }

    /// Requests that the server send its pending output; there is no reply.
    pub fn flush(&mut self) {
        self.replies.core.out.extend_from_slice(b"H\0\0\0\x04");
    }

    /// Sets whether the caller answers `COPY FROM STDIN` with [`Self::copy_data`]. By default it is
    /// rejected, because load scripts have no data to send.
    pub fn accept_copy(&mut self, accepts: bool) {
        self.replies.core.accepts_copy = accepts;
    }

    /// Sets the limit on a row that a request asks for, in bytes; 1 MiB by default. A longer one
    /// ends the connection with [`WireError::TooLong`].
    pub fn limit_rows(&mut self, max_bytes: u32) {
        self.replies.core.row_max_bytes = max_bytes;
    }

    /// Sends data of a `COPY FROM STDIN`; `write` appends it to its argument, in pieces of any
    /// length.
    ///
    /// # Errors
    /// [`WireError::Encode`] if the data is too long for one message.
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

    /// Sends Terminate; the server closes the connection without a reply.
    pub fn terminate(&mut self) {
        self.replies.core.out.extend_from_slice(b"X\0\0\0\x04");
    }

    /// Returns the backend's process ID and cancel key, once known.
    pub fn backend(&self) -> Option<BackendKey> {
        self.replies.core.backend
    }

    /// Returns a setting that the server reported, such as `server_version`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let known = &self.replies.core.parameters;
        known
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns the transaction status at the last [`Event::Ready`].
    pub fn status(&self) -> TransactionStatus {
        self.replies.core.status
    }

    /// Whether start-up is complete and requests are accepted.
    pub fn is_started(&self) -> bool {
        self.replies.core.starting.is_none()
    }

    /// Whether the server has accepted the client; it may still reject the database.
    pub fn is_authenticated(&self) -> bool {
        let starting = self.replies.core.starting.as_ref();
        starting.is_none_or(|starting| starting.authentication.is_accepted)
    }

    /// Whether the connection uses TLS, once the session has started.
    pub fn is_protected(&self) -> bool {
        self.protection.is_some()
    }

    /// Returns the addresses of the next request and of the queue of pending replies, for prefetching.
    #[inline]
    pub fn buffers(&self) -> (*const u8, *const u8) {
        let core = &self.replies.core;
        let pending = core.pending.as_slices().0.as_ptr();
        (core.out.as_ptr(), pending.cast())
    }

    /// Returns the number of requests waiting for a reply, including Syncs.
    #[inline]
    pub fn pending(&self) -> usize {
        self.replies.core.pending.len()
    }

    #[inline]
    fn push(&mut self, kind: RequestKind, token: u32, rows: bool) {
        self.replies.core.push(Pending { kind, rows, token });
    }
}
