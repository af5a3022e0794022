//! Why a load cannot start or go on.

use std::io;
use std::time::Duration;

use pgassay_script::{EvalError, InvalidName, Refusal};
use pgassay_wire::conninfo::Address;
use pgassay_wire::{ServerError, WireError};

/// An error of a crew.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The configuration asks for something impossible.
    #[error("{what}")]
    Config {
        /// What is impossible.
        what: String,
    },
    /// The system does not give what is needed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// Why it was refused.
        source: io::Error,
    },
    /// `io_uring` was asked for and cannot be had.
    #[error("{reason}")]
    NoUring {
        /// Why, and what can be done.
        reason: String,
    },
    /// No connection to the server.
    #[error("client {client}: connection to server at {address} failed: {source}")]
    Connect {
        /// The client, counted from 0.
        client: u32,
        /// The server.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// The server refused the connection.
    #[error("client {client}: connection refused by the server: {error}")]
    Refused {
        /// The client, counted from 0.
        client: u32,
        /// What the server said.
        error: Box<ServerError>,
    },
    /// The server did not answer in time.
    #[error("client {client}: no answer from the server for {waited:?}, waiting for {what}")]
    Unanswered {
        /// The client, counted from 0.
        client: u32,
        /// What it waited for.
        what: String,
        /// How long.
        waited: Duration,
    },
    /// The connection ended.
    #[error("client {client}: the connection was lost, {what}{}", last_words(.last.as_deref(), .source.as_ref()))]
    Lost {
        /// The client, counted from 0.
        client: u32,
        /// What it was doing.
        what: String,
        /// Where in its script it was, if it was in one.
        place: Option<Box<Place>>,
        /// What the server said last, such as SQLSTATE 57P01.
        last: Option<Box<ServerError>>,
        /// The system's error, where there was one.
        source: Option<io::Error>,
    },
    /// The server does not follow the protocol, or wants what is not supported.
    #[error("client {client}: {error}")]
    Wire {
        /// The client, counted from 0.
        client: u32,
        /// What is wrong.
        error: WireError,
    },
    /// A client cannot go on with its script.
    #[error("{place}: {cause}")]
    Aborted {
        /// Which client, and where it was.
        place: Box<Place>,
        /// Why.
        cause: AbortCause,
    },
    /// The stop flag was set before there was anything to measure.
    #[error("stopped")]
    Stopped,
    /// An earlier run left connections in an unknown state.
    #[error("the crew's connections are of no use after a failed or stopped run")]
    Spent,
}

fn last_words(last: Option<&ServerError>, source: Option<&io::Error>) -> String {
    match (last, source) {
        (Some(last), _) => format!("; the server's last message: {last}"),
        (None, Some(source)) => format!(": {source}"),
        (None, None) => "; the server closed it without a message".into(),
    }
}

/// A place in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The client, counted from 0.
    pub client: u32,
    /// The script's name.
    pub script: String,
    /// The script, counted from 0.
    pub script_index: usize,
    /// The command, counted from 0 as pgbench counts.
    pub command: usize,
    /// Queries of the command that were answered before, where it joins several with `\;`.
    pub query: u32,
    /// What kind of command, such as `SQL` or `set`.
    pub word: String,
    /// The line where the command begins, from 1; 0 past the script's end.
    pub line: u32,
    /// The command's first line.
    pub text: String,
    /// The SQL as it was sent with the request, unless it had been prepared.
    pub sent: Option<String>,
    /// The SQL that is prepared, with `$1` and so on.
    pub statement: Option<String>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            client,
            script,
            command,
            word,
            line,
            text,
            ..
        } = self;
        write!(
            f,
            "client {client} aborted in command {command} ({word}) of script \"{script}\""
        )?;
        if *line > 0 {
            write!(f, ", line {line}: {text}")
        } else {
            Ok(())
        }
    }
}

/// Why a client cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AbortCause {
    /// The server reports an error that is not worth a retry.
    #[error("{0}")]
    Sql(Box<ServerError>),
    /// An expression or an argument has no value.
    #[error("{0}")]
    Eval(#[from] EvalError),
    /// The script does what may not be done there.
    #[error("{0}")]
    Refusal(#[from] Refusal),
    /// A statement cannot be prepared, and so cannot be executed either.
    #[error("{prepare}")]
    Unprepared {
        /// Why it cannot be prepared.
        prepare: Box<ServerError>,
        /// What the server said to executing it nevertheless.
        execute: Box<ServerError>,
    },
    /// A column's name is no variable's name.
    #[error("{invalid}")]
    Capture {
        /// The name, and what wanted it.
        invalid: InvalidName,
    },
    /// A command of `\shell` or `\setshell` failed.
    #[error("{program}: {reason}")]
    ShellFailed {
        /// The command's first word.
        program: String,
        /// What failed.
        reason: &'static str,
    },
    /// `\gset` needs one row.
    #[error("expected one row, got {rows}")]
    Rows {
        /// How many there were.
        rows: u64,
    },
    /// The message cannot be sent, or the rows cannot be read.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// `\shell` and `\setshell` are not run here.
    #[error("\\shell and \\setshell are not supported here, only by pgassay bench")]
    Shell,
}
