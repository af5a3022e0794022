//! Questions and answers over a stream that the caller opened.
//!
//! For set-up and inspection, where one waits for each answer. The stream is the caller's, with
//! whatever time limits it set: a read that times out ends the exchange with
//! [`ExchangeError::Stream`], and the exchange cannot go on after that.

use std::io::{self, Read, Write};

use crate::authentication::SaltCache;
use crate::conninfo::{Address, Attempts, Endpoint, Failure, Target};
use crate::error::{ServerError, WireError};
use crate::message::{CopyDirection, Event};
use crate::session::{BackendKey, Execution, Login, Session};

/// Room for one read; rows of set-up work are few.
const READ_BYTES: usize = 8192;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The server reported an error. The exchange can go on, unless the error is fatal.
    #[error("{0}")]
    Server(Box<ServerError>),
    /// The protocol was violated.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The stream failed or a time limit passed.
    #[error("the connection to the server failed: {0}")]
    Stream(#[from] io::Error),
    /// The server closed the connection without a word.
    #[error("the server closed the connection")]
    Closed,
}

impl ExchangeError {
    /// What it means for the connection that was to be opened.
    fn failure(&self, is_authenticated: bool) -> Failure {
        match self {
            Self::Server(error) => Failure::of_server(error, is_authenticated),
            Self::Wire(error) => Failure::of_wire(error),
            // A read that takes longer than it may fails in one of two ways.
            Self::Stream(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                Failure::Unreachable
            }
            Self::Stream(_) | Self::Closed => Failure::Other,
        }
    }
}

/// What a statement answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The columns' names; empty for a command without rows.
    pub columns: Vec<String>,
    /// The rows, each with a text or null per column. Bytes that are no UTF-8 are replaced.
    pub rows: Vec<Vec<Option<String>>>,
    /// The command tag, such as `INSERT 0 1`.
    pub tag: String,
}

/// A connection for questions and answers.
pub struct Exchange<S> {
    stream: S,
    session: Session,
    notices: Vec<ServerError>,
}

impl<S: Read + Write> Exchange<S> {
    /// Signs in over an opened stream.
    ///
    /// # Errors
    /// The server's refusal, a protocol violation, or the stream's failure.
    pub fn open(stream: S, login: &Login) -> Result<Self, ExchangeError> {
        Self::sign_in(stream, login).map_err(|(error, _)| error)
    }

    /// Signs in at the first server of a target that can be reached and is wanted, over streams
    /// that `connect` opens; `first` is the endpoint that is tried first. Also tells which
    /// endpoint it was.
    ///
    /// # Errors
    /// Every attempt that failed, with its address, in their order.
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
                Err(error) => (error.into(), Failure::Unreachable),
                Ok(stream) => match Self::sign_in(stream, &login) {
                    Ok(exchange) => return Ok((exchange, attempt.endpoint)),
                    Err((error, is_authenticated)) => {
                        let failure = error.failure(is_authenticated);
                        (error, failure)
                    }
                },
            };
            failed.push((endpoint.address.clone(), error));
            if !attempts.after(failure) {
                return Err(failed);
            }
        }
    }

    /// Signs in; else why not, and whether the server had let the client in before.
    fn sign_in(stream: S, login: &Login) -> Result<Self, (ExchangeError, bool)> {
        let session = Session::start(login).map_err(|error| (error.into(), false))?;
        let mut exchange = Self {
            stream,
            session,
            notices: Vec::new(),
        };
        match exchange.wait() {
            Ok(_) => Ok(exchange),
            Err(error) => Err((error, exchange.session.is_authenticated())),
        }
    }

    /// Sends a simple query and collects what each of its statements answers. Statements of one
    /// query form one transaction, unless they say otherwise.
    ///
    /// # Errors
    /// The first error the server reports, or whatever ended the connection.
    pub fn query(&mut self, sql: &str) -> Result<Vec<Answer>, ExchangeError> {
        self.session.query(sql, 0, true)?;
        self.wait()
    }

    /// Sends `COPY … FROM STDIN` and the data that `write` appends to what it is given, as often
    /// as it returns `true`.
    ///
    /// # Errors
    /// The error the server reports, or whatever ended the connection. An error in the middle is
    /// met at the end, since the server reads on until then.
    pub fn copy_in(
        &mut self,
        sql: &str,
        mut write: impl FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<Answer, ExchangeError> {
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
    /// The error the server reports, or whatever ended the connection.
    pub fn execute(
        &mut self,
        sql: &str,
        parameters: &[Option<&str>],
    ) -> Result<Answer, ExchangeError> {
        let values: Vec<_> = parameters
            .iter()
            .map(|value| value.map(str::as_bytes))
            .collect();
        self.session
            .execute(Execution::Text(sql.as_bytes()), &values, 0, true)?;
        self.session.sync(0);
        Ok(self.wait()?.pop().unwrap_or_default())
    }

    /// The first column of a statement's first row, if there is one that is not null.
    ///
    /// # Errors
    /// The error the server reports, or whatever ended the connection.
    pub fn value(&mut self, sql: &str) -> Result<Option<String>, ExchangeError> {
        let answer = self.query(sql)?.pop().unwrap_or_default();
        Ok(answer
            .rows
            .into_iter()
            .next()
            .and_then(|row| row.into_iter().next().flatten()))
    }

    /// The server process, and the key to cancel its work.
    pub fn backend(&self) -> Option<BackendKey> {
        self.session.backend()
    }

    /// A setting that the server reported, such as `server_version`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.session.parameter(name)
    }

    /// Whether what is sent and received is protected by TLS.
    pub fn is_protected(&self) -> bool {
        self.session.is_protected()
    }

    /// Takes the notices that came since the last call.
    pub fn take_notices(&mut self) -> Vec<ServerError> {
        std::mem::take(&mut self.notices)
    }

    /// The same connection over a stream that was made of this one's, as a boxed one.
    pub fn map<T>(self, change: impl FnOnce(S) -> T) -> Exchange<T> {
        Exchange {
            stream: change(self.stream),
            session: self.session,
            notices: self.notices,
        }
    }

    /// The stream, for setting its time limits.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Says goodbye and gives the stream back.
    ///
    /// # Errors
    /// The stream's failure, which hardly matters any more.
    pub fn close(mut self) -> Result<S, ExchangeError> {
        self.session.terminate();
        self.send()?;
        Ok(self.stream)
    }

    fn send(&mut self) -> Result<(), ExchangeError> {
        let output = self.session.output();
        let count_bytes = output.len();
        self.stream.write_all(output)?;
        self.stream.flush()?;
        self.session.sent(count_bytes);
        Ok(())
    }

    /// Sends what there is and collects answers until the server is ready.
    fn wait(&mut self) -> Result<Vec<Answer>, ExchangeError> {
        let mut collected = Collected::default();
        self.collect(&mut collected, |collected| collected.ready)?;
        match collected.error {
            Some(error) => Err(ExchangeError::Server(error)),
            None => Ok(collected.answers),
        }
    }

    /// Sends what there is and collects answers until there are enough.
    fn collect(
        &mut self,
        collected: &mut Collected,
        is_enough: impl Fn(&Collected) -> bool,
    ) -> Result<(), ExchangeError> {
        let mut buffer = [0; READ_BYTES];
        while !is_enough(collected) {
            // A server that is gone may have left its last words, which tell more than the error
            // of the stream does; so reading goes on after a failed write.
            let sent = self.send();
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

#[derive(Default)]
struct Collected {
    answers: Vec<Answer>,
    current: Answer,
    error: Option<Box<ServerError>>,
    ready: bool,
    wants_data: bool,
}

impl Collected {
    fn take(&mut self, event: Event<'_>, notices: &mut Vec<ServerError>) -> Result<(), WireError> {
        match event {
            Event::Ready { .. } => self.ready = true,
            Event::Copy {
                direction: CopyDirection::In,
                ..
            } => self.wants_data = true,
            Event::Complete { tag, .. } => {
                self.current.tag = String::from_utf8_lossy(tag).into_owned();
                self.answers.push(std::mem::take(&mut self.current));
            }
            Event::Described { columns, .. } => self.current.columns = columns.names()?,
            Event::Row { row, .. } => {
                let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
                let values = row.values().map(|value| Ok(value?.map(text)));
                self.current
                    .rows
                    .push(values.collect::<Result<_, WireError>>()?);
            }
            Event::Error { error, .. } if self.error.is_none() => self.error = Some(error),
            Event::Notice(notice) => notices.push(notice.read()?),
            _ => {}
        }
        Ok(())
    }
}
