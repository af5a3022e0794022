//! Parsing replies: splitting bytes into messages, and matching messages with requests.
//!
//! A message that was received completely is parsed in place. The beginning of an incomplete
//! message is buffered only if its body is needed; bodies of unneeded rows are skipped by their
//! length, however they are split. See `pqParseInput3` in `src/interfaces/libpq/fe-protocol3.c` for
//! the same state machine in libpq.

use std::collections::VecDeque;

use crate::backend_key::BackendKey;
use crate::encode;
use crate::error::{ServerMessage, WireError};
use crate::limits::{
    self, KEPT_MAX_BYTES, REPORT_END, ROW_MAX_BYTES, UNLIMITED_BYTES, kept_length,
};
use crate::message::{CopyDirection, DataRow, Event, Notice, RowDescription, TransactionStatus};
use crate::starting::{self, Starting};

/// The type and the length field.
pub(crate) const HEADER_BYTES: usize = 5;
/// Most messages are short; a longer one means that client and server are out of sync. This is
/// libpq's limit (`VALID_LONG_MESSAGE_TYPE`).
const SHORT_MAX_BYTES: u32 = 30_000;
/// No message exceeds the server's largest allocation.
const LONG_MAX_BYTES: u32 = 0x3fff_ffff;
/// Limit on settings that the server reports; PostgreSQL 18 reports 15.
const PARAMETERS_MAX: usize = 256;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// `Query`; ends with `ReadyForQuery`.
    Simple,
    /// A separate `Parse`; ends with `ParseComplete`.
    Parse,
    /// `[Parse] Bind Describe Execute`; ends with `CommandComplete`.
    Execute,
    /// `Close`; ends with `CloseComplete`.
    Close,
    /// `Sync`; ends with `ReadyForQuery`.
    Sync,
}

/// A request whose reply is incomplete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub kind: RequestKind,
    /// Whether the caller wants the rows.
    pub rows: bool,
    pub token: u32,
}

/// The meaning of a message, without its body.
#[derive(Clone, Copy)]
enum ReplyKind {
    Nothing,
    Ready(Option<u32>),
    Complete(u32),
    Row(u32),
    Described(u32),
    Prepared(u32),
    Closed(u32),
    Error(Option<u32>, u32),
    Copy(u32, CopyDirection),
    Notice,
    Parameter(usize),
    Notification,
}

/// The location of a message's body.
enum Body<'a> {
    Input(&'a [u8]),
    Kept,
}

/// The receiving half of a session.
pub(crate) struct Replies {
    pub core: Core,
    /// The beginning of an incomplete message, including the header.
    kept: Vec<u8>,
    /// Whether the message in `kept` has been reported and can be discarded.
    kept_is_done: bool,
    /// Bytes of a body left to skip.
    skip_bytes: usize,
}

/// State that does not depend on how bytes are split.
pub(crate) struct Core {
    pub out: Vec<u8>,
    /// Bytes at the start of `out` that are already written.
    pub sent: usize,
    pub pending: VecDeque<Pending>,
    /// Present until start-up is complete.
    pub starting: Option<Box<Starting>>,
    pub discarding: bool,
    /// Whether the caller answers `COPY FROM STDIN` with data.
    pub accepts_copy: bool,
    /// Limit on a row that the caller wants.
    pub row_max_bytes: u32,
    pub status: TransactionStatus,
    pub backend: Option<BackendKey>,
    pub parameters: Vec<(String, String)>,
}

impl Replies {
    pub fn new(starting: Starting, out: Vec<u8>) -> Self {
        Self {
            core: Core {
                out,
                sent: 0,
                pending: VecDeque::with_capacity(4),
                starting: Some(Box::new(starting)),
                discarding: false,
                accepts_copy: false,
                row_max_bytes: ROW_MAX_BYTES,
                status: TransactionStatus::Idle,
                backend: None,
                parameters: Vec::new(),
            },
            kept: Vec::new(),
            kept_is_done: false,
            skip_bytes: 0,
        }
    }

    #[inline]
    pub fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Event<'s>>, WireError> {
        if input.is_empty() {
            return Ok(None);
        }
        if self.skip_bytes == 0
            && self.kept.is_empty()
            && self.core.starting.is_none()
            && let Some(event) = self.core.expected(input)
        {
            return Ok(Some(event));
        }
        let (outcome, body) = loop {
            match self.step(input)? {
                None => return Ok(None),
                Some((ReplyKind::Nothing, _)) => {}
                Some(found) => break found,
            }
        };
        let body = match body {
            Body::Input(body) => body,
            Body::Kept => &self.kept[HEADER_BYTES..],
        };
        self.core.event(outcome, body).map(Some)
    }

    /// Handles one message, or the received part of it.
    #[inline]
    fn step<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<(ReplyKind, Body<'a>)>, WireError> {
        if self.skip_bytes > 0 {
            let here = self.skip_bytes.min(input.len());
            *input = &input[here..];
            self.skip_bytes -= here;
            if self.skip_bytes > 0 {
                return Ok(None);
            }
        }
        if !self.kept.is_empty() {
            return self.step_kept(input);
        }
        let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>() else {
            self.kept.extend_from_slice(input);
            *input = &[];
            return Ok(None);
        };
        let (tag, length) = match read_header(*header) {
            Ok(found) => found,
            Err(error) => return self.read_old_refusal(input, error),
        };
        if length > UNLIMITED_BYTES || self.core.starting.is_some() {
            if let Err(error) = self.core.check_length(tag, length) {
                return self.read_old_refusal(input, error);
            }
            if kept_length(tag, length) < length {
                self.kept.extend_from_slice(header);
                *input = rest;
                return self.step_kept(input);
            }
        }
        if !self.core.wants_body(tag) {
            let here = length.min(rest.len());
            self.skip_bytes = length - here;
            *input = &rest[here..];
            return Ok(Some((self.core.handle(tag, &[])?, Body::Input(&[]))));
        }
        let Some((body, rest)) = rest.split_at_checked(length) else {
            self.kept.extend_from_slice(input);
            *input = &[];
            return Ok(None);
        };
        *input = rest;
        Ok(Some((self.core.handle(tag, body)?, Body::Input(body))))
    }

    /// Like [`Self::step`], for a message whose beginning was buffered. Rare: only at the end of a
    /// full buffer.
    #[cold]
    fn step_kept<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<(ReplyKind, Body<'a>)>, WireError> {
        if self.kept_is_done {
            self.kept.clear();
            self.kept.shrink_to(KEPT_MAX_BYTES);
            self.kept_is_done = false;
            return self.step(input);
        }
        self.buffer_up_to(HEADER_BYTES, input);
        let Some(header) = self.kept.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let (tag, length) = match read_header(*header) {
            Ok(found) => found,
            Err(error) => return self.read_old_refusal(input, error),
        };
        if let Err(error) = self.core.check_length(tag, length) {
            return self.read_old_refusal(input, error);
        }
        if !self.core.wants_body(tag) {
            self.kept.clear();
            self.skip_bytes = length;
            return Ok(Some((self.core.handle(tag, &[])?, Body::Input(&[]))));
        }
        let keep = kept_length(tag, length);
        self.buffer_up_to(HEADER_BYTES + keep, input);
        if self.kept.len() < HEADER_BYTES + keep {
            return Ok(None);
        }
        if keep < length {
            self.kept.extend_from_slice(REPORT_END);
            self.skip_bytes = length - keep;
        }
        self.kept_is_done = true;
        Ok(Some((
            self.core.handle(tag, &self.kept[HEADER_BYTES..])?,
            Body::Kept,
        )))
    }

    /// Reads a refusal in the format before protocol 3.0, a text without a length; returns `error` if it is none.
    #[cold]
    fn read_old_refusal<'a>(
        &mut self,
        input: &mut &'a [u8],
        error: WireError,
    ) -> Result<Option<(ReplyKind, Body<'a>)>, WireError> {
        if self.core.is_accepted() {
            return Err(error);
        }
        self.buffer_up_to(limits::OLD_REFUSAL_MAX_BYTES, input);
        limits::old_refusal(&self.kept, error).map(|()| None)
    }

    fn buffer_up_to(&mut self, total: usize, input: &mut &[u8]) {
        let here = total.saturating_sub(self.kept.len()).min(input.len());
        self.kept.extend_from_slice(&input[..here]);
        *input = &input[here..];
    }
}

/// Returns the type and the length of the body, with the same checks as in libpq.
#[inline]
fn read_header(header: [u8; HEADER_BYTES]) -> Result<(u8, usize), WireError> {
    let [tag, length @ ..] = header;
    let length = u32::from_be_bytes(length);
    let long = matches!(tag, b'T' | b'D' | b'd' | b'V' | b'E' | b'N' | b'A' | b't');
    let max = if long {
        LONG_MAX_BYTES
    } else {
        SHORT_MAX_BYTES
    };
    if length < 4 || length > max {
        return Err(WireError::Length {
            tag: char::from(tag),
            length_bytes: length,
        });
    }
    Ok((tag, length as usize - 4))
}

impl Core {
    #[inline]
    pub fn push(&mut self, pending: Pending) {
        if self.discarding {
            if pending.kind != RequestKind::Sync {
                return;
            }
            self.discarding = false;
        }
        self.pending.push_back(pending);
    }

    /// Whether the body of such a message is needed in the current state.
    #[inline]
    pub fn wants_body(&self, tag: u8) -> bool {
        match tag {
            // During start-up nothing is pending, and a row answers a query about the server.
            b'D' | b'T' => {
                let front = self.pending.front();
                front.map_or(self.starting.is_some(), |front| front.rows)
            }
            b'1' | b'2' | b'3' | b'n' | b't' | b's' | b'I' | b'd' | b'c' | b'G' | b'H' | b'A' => {
                false
            }
            _ => true,
        }
    }

    /// Updates the state for one message.
    #[inline]
    fn handle(&mut self, tag: u8, body: &[u8]) -> Result<ReplyKind, WireError> {
        if self.starting.is_some() {
            return self.handle_start(tag, body);
        }
        match tag {
            b'D' => Ok(match self.statement(tag)? {
                Pending {
                    rows: true, token, ..
                } => ReplyKind::Row(token),
                _ => ReplyKind::Nothing,
            }),
            b'C' | b'I' | b's' => {
                let front = self.statement(tag)?;
                if front.kind == RequestKind::Execute {
                    self.pending.pop_front();
                }
                Ok(ReplyKind::Complete(front.token))
            }
            b'Z' => self.ready(body),
            b'T' => Ok(match self.statement(tag)? {
                Pending {
                    rows: true, token, ..
                } => ReplyKind::Described(token),
                _ => ReplyKind::Nothing,
            }),
            b'2' | b'n' => self
                .expect(tag, &[RequestKind::Execute])
                .map(|_| ReplyKind::Nothing),
            b'1' => {
                let front = self.expect(tag, &[RequestKind::Execute, RequestKind::Parse])?;
                if front.kind == RequestKind::Execute {
                    return Ok(ReplyKind::Nothing);
                }
                self.pending.pop_front();
                Ok(ReplyKind::Prepared(front.token))
            }
            _ => self.handle_rare(tag, body),
        }
    }

    #[cold]
    fn handle_rare(&mut self, tag: u8, body: &[u8]) -> Result<ReplyKind, WireError> {
        match tag {
            b'E' => Ok(self.failed(ServerMessage::read('E', body)?.is_fatal())),
            b'N' => Ok(ReplyKind::Notice),
            b'S' => self.parameter(body),
            b'A' => Ok(ReplyKind::Notification),
            b'3' => {
                let front = self.expect(tag, &[RequestKind::Close])?;
                self.pending.pop_front();
                Ok(ReplyKind::Closed(front.token))
            }
            b'G' => {
                let token = self.statement(tag)?.token;
                if !self.accepts_copy {
                    self.reject_copy();
                }
                Ok(ReplyKind::Copy(token, CopyDirection::In))
            }
            b'H' => Ok(ReplyKind::Copy(
                self.statement(tag)?.token,
                CopyDirection::Out,
            )),
            b'd' | b'c' => self.statement(tag).map(|_| ReplyKind::Nothing),
            _ => Err(self.unexpected(tag)),
        }
    }

    fn handle_start(&mut self, tag: u8, body: &[u8]) -> Result<ReplyKind, WireError> {
        let Some(starting) = &mut self.starting else {
            return Err(self.unexpected(tag));
        };
        match tag {
            b'R' => {
                starting.authentication.answer(body, &mut self.out)?;
                Ok(ReplyKind::Nothing)
            }
            b'K' => {
                let key: &[u8; 8] = body.try_into().map_err(|_| WireError::Malformed {
                    tag: 'K',
                    what: "the cancel key's length is invalid in protocol 3.0",
                })?;
                let word = |at: usize| {
                    i32::from_be_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]])
                };
                self.backend = Some(BackendKey::new(word(0), word(4)));
                Ok(ReplyKind::Nothing)
            }
            b'S' => self.parameter(body),
            b'N' => Ok(ReplyKind::Notice),
            b'E' => match starting.refused(&ServerMessage::read('E', body)?) {
                Some(unwanted) => Err(unwanted),
                None => Ok(ReplyKind::Error(None, 0)),
            },
            b'Z' => {
                self.status = read_status(body)?;
                if let starting::ServerTypeResult::Unknown(question) =
                    starting.check_server_type(&self.parameters)?
                {
                    encode::message(&mut self.out, b'Q', "question", |out| {
                        encode::text(out, question.as_bytes(), "question")
                    })?;
                    return Ok(ReplyKind::Nothing);
                }
                self.starting = None;
                Ok(ReplyKind::Ready(None))
            }
            b'D' if starting.is_asking() => {
                starting.handle_query_result(DataRow(body))?;
                Ok(ReplyKind::Nothing)
            }
            b'T' | b'C' if starting.has_asked() => Ok(ReplyKind::Nothing),
            // The server negotiates the minor version. The session requests the oldest one, so
            // nothing changes.
            b'v' => Ok(ReplyKind::Nothing),
            _ => Err(self.unexpected(tag)),
        }
    }

    fn ready(&mut self, body: &[u8]) -> Result<ReplyKind, WireError> {
        let front = self.expect(b'Z', &[RequestKind::Sync, RequestKind::Simple])?;
        self.status = read_status(body)?;
        self.pending.pop_front();
        Ok(ReplyKind::Ready(Some(front.token)))
    }

    /// Handles an error: it ends the first pending request, and all others up to the next Sync.
    fn failed(&mut self, fatal: bool) -> ReplyKind {
        let Some(front) = self.pending.front().copied() else {
            return ReplyKind::Error(None, 0);
        };
        // After a fatal error the connection closes, so the queue stays unchanged. The first
        // request may be unrelated to the error (for example, after an administrator's command).
        if fatal || matches!(front.kind, RequestKind::Simple | RequestKind::Sync) {
            return ReplyKind::Error(Some(front.token), 0);
        }
        let mut skipped = 0;
        self.pending.pop_front();
        while self
            .pending
            .front()
            .is_some_and(|next| next.kind != RequestKind::Sync)
        {
            self.pending.pop_front();
            skipped += 1;
        }
        self.discarding = self.pending.is_empty();
        ReplyKind::Error(Some(front.token), skipped)
    }

    /// Answers `CopyInResponse`. While the server waits for data it discards Syncs, so those after
    /// the COPY get no reply, except for one, which is sent again. Any other request after it makes
    /// the server close the connection with a fatal error that states the reason (`CopyGetData` in
    /// `src/backend/commands/copyfromparse.c`).
    fn reject_copy(&mut self) {
        const REASON: &[u8] = b"COPY FROM STDIN is not supported here";
        encode::message(&mut self.out, b'f', "refusal", |out| {
            encode::text(out, REASON, "refusal")
        })
        .expect("the constant is short and contains no zero byte");
        let copy_is_extended = self
            .pending
            .front()
            .is_some_and(|front| front.kind == RequestKind::Execute);
        let only_syncs_follow = self
            .pending
            .iter()
            .skip(1)
            .all(|next| next.kind == RequestKind::Sync);
        if copy_is_extended && only_syncs_follow && self.pending.len() > 1 {
            let last = self.pending.len() - 1;
            self.pending.drain(1..last);
            self.out.extend_from_slice(encode::SYNC);
        }
    }

    /// Stores a reported setting and returns its index.
    fn parameter(&mut self, body: &[u8]) -> Result<ReplyKind, WireError> {
        const CUT: WireError = WireError::Malformed {
            tag: 'S',
            what: "truncated setting",
        };
        let mut parts = body.split(|&byte| byte == 0);
        let (Some(name), Some(value), Some([])) = (parts.next(), parts.next(), parts.next()) else {
            return Err(CUT);
        };
        let name = String::from_utf8_lossy(name);
        let value = String::from_utf8_lossy(value);
        let place = self.parameters.iter().position(|(known, _)| *known == name);
        if let Some(place) = place {
            value.as_ref().clone_into(&mut self.parameters[place].1);
            return Ok(ReplyKind::Parameter(place));
        }
        if self.parameters.len() >= PARAMETERS_MAX {
            return Err(WireError::Malformed {
                tag: 'S',
                what: "more settings than any server reports",
            });
        }
        self.parameters
            .push((name.into_owned(), value.into_owned()));
        Ok(ReplyKind::Parameter(self.parameters.len() - 1))
    }

    /// Returns the first pending request, which must be one that returns rows.
    #[inline]
    fn statement(&self, tag: u8) -> Result<Pending, WireError> {
        self.expect(tag, &[RequestKind::Execute, RequestKind::Simple])
    }

    #[inline]
    fn expect(&self, tag: u8, kinds: &[RequestKind]) -> Result<Pending, WireError> {
        match self.pending.front() {
            Some(front) if kinds.contains(&front.kind) => Ok(*front),
            _ => Err(self.unexpected(tag)),
        }
    }

    #[cold]
    pub fn unexpected(&self, tag: u8) -> WireError {
        let doing = match self.pending.front().map(|front| front.kind) {
            _ if self.starting.is_some() => "signing in",
            None => "idle",
            Some(RequestKind::Simple) => "waiting for a simple query to complete",
            Some(RequestKind::Parse) => "waiting for Parse to complete",
            Some(RequestKind::Execute) => "waiting for Execute to complete",
            Some(RequestKind::Close) => "waiting for Close to complete",
            Some(RequestKind::Sync) => "waiting for Sync to complete",
        };
        WireError::Unexpected {
            tag: char::from(tag),
            doing,
        }
    }

    #[inline]
    fn event<'a>(&'a self, outcome: ReplyKind, body: &'a [u8]) -> Result<Event<'a>, WireError> {
        Ok(match outcome {
            ReplyKind::Ready(token) => Event::Ready {
                token,
                status: self.status,
            },
            ReplyKind::Complete(token) => Event::completed(token, body),
            ReplyKind::Row(token) => Event::DataRow {
                token,
                row: DataRow(body),
            },
            ReplyKind::Described(token) => Event::Described {
                token,
                columns: RowDescription(body),
            },
            ReplyKind::Prepared(token) => Event::Prepared { token },
            ReplyKind::Closed(token) => Event::Closed { token },
            ReplyKind::Error(token, skipped) => {
                let error = Box::new(ServerMessage::read('E', body)?);
                Event::Error {
                    token,
                    skipped,
                    error,
                }
            }
            ReplyKind::Copy(token, direction) => Event::Copy { token, direction },
            ReplyKind::Notice => Event::Notice(Notice(body)),
            ReplyKind::Parameter(place) => {
                let (name, value) = &self.parameters[place];
                Event::Parameter { name, value }
            }
            // `next` loops past `Nothing`, so it can share this arm.
            ReplyKind::Notification | ReplyKind::Nothing => Event::Notification,
        })
    }
}

fn read_status(body: &[u8]) -> Result<TransactionStatus, WireError> {
    TransactionStatus::of(body).ok_or(WireError::Malformed {
        tag: 'Z',
        what: "invalid transaction state",
    })
}
