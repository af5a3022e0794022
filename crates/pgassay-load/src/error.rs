//! Errors that prevent or end a load.

use std::io;
use std::time::Duration;

use pgassay_script::{EvalError, InvalidName, Refusal};
use pgassay_wire::conninfo::Address;
use pgassay_wire::{ServerMessage, WireError};

/// The SQLSTATE of a Parse whose name another prepared statement has.
pub(crate) const DUPLICATE_STATEMENT: &str = "42P05";

/// An error of a client pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The configuration is invalid.
    #[error("{what}")]
    Config {
        /// What is invalid.
        what: String,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// `io_uring` was requested but is not available.
    #[error("{reason}")]
    NoUring {
        /// Why, and what the user can do about it.
        reason: String,
    },
    /// A connection attempt failed.
    #[error("client {client}: connection to server at {address} failed: {source}")]
    Connect {
        /// The client, counted from 0.
        client: u32,
        /// The server.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The server refused the connection.
    #[error("client {client}: connection refused by the server: {error}")]
    Refused {
        /// The client, counted from 0.
        client: u32,
        /// The server.
        address: Address,
        /// The server's error.
        error: Box<ServerMessage>,
    },
    /// A new connection already has a prepared statement with the name of one of the run's.
    #[error(
        "client {client}: {error}\nHINT: A pooler gave the client a connection that others have used before. \
         Use another protocol (-M simple or extended), or a pooler that keeps the connections' prepared statements \
         apart, such as PgBouncer with max_prepared_statements."
    )]
    StatementExists {
        /// The client, counted from 0.
        client: u32,
        /// The server's error.
        error: Box<ServerMessage>,
    },
    /// The server did not answer in time.
    #[error("client {client}: no answer from the server for {waited:?} {what}")]
    Unanswered {
        /// The client, counted from 0.
        client: u32,
        /// What the client was doing.
        what: String,
        /// The time limit that passed.
        waited: Duration,
    },
    /// The connection ended unexpectedly.
    #[error(
        "client {client}: connection lost {}{}",
        what.trim_end_matches(';'),
        last_server_message(.last.as_deref(), .source.as_ref())
    )]
    Lost {
        /// The client, counted from 0.
        client: u32,
        /// What the client was doing.
        what: String,
        /// Its position in the script, if it was executing one.
        place: Option<Box<ScriptLocation>>,
        /// The server's last message, such as SQLSTATE 57P01.
        last: Option<Box<ServerMessage>>,
        /// The system's error, if any.
        source: Option<io::Error>,
    },
    /// The server violated the protocol, or requires something that is not supported.
    #[error("client {client}: {error}")]
    Wire {
        /// The client, counted from 0.
        client: u32,
        /// The protocol error.
        error: WireError,
    },
    /// A script error ended a client.
    #[error("{place}: {cause}")]
    Aborted {
        /// The client and its position in the script.
        place: Box<ScriptLocation>,
        /// The cause.
        cause: AbortCause,
    },
    /// The stop flag was set before there was anything to measure.
    #[error("stopped")]
    Stopped,
    /// An earlier run left connections in an unknown state.
    #[error("these connections cannot be used again after a failed or stopped run")]
    Spent,
}

fn last_server_message(last: Option<&ServerMessage>, source: Option<&io::Error>) -> String {
    match (last, source) {
        (Some(last), _) => format!("; last message from the server: {last}"),
        (None, Some(source)) => format!(": {source}"),
        (None, None) => "; the server closed it without an error message".into(),
    }
}

/// A position in a script during a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptLocation {
    /// The client, counted from 0.
    pub client: u32,
    /// The script's name.
    pub script: String,
    /// The script, counted from 0.
    pub script_index: usize,
    /// The command, counted from 0 as pgbench counts.
    pub command: usize,
    /// Queries of the command that completed before this one, if it joins several with `\;`.
    pub query: u32,
    /// The kind of command, such as `SQL` or `set`.
    pub word: String,
    /// The line where the command begins, from 1; 0 after the script's end.
    pub line: u32,
    /// The command's first line.
    pub text: String,
    /// The SQL that was sent with the request, unless it was prepared before.
    pub sent: Option<String>,
    /// The SQL to be prepared, with `$1` and so on.
    pub statement: Option<String>,
}

impl std::fmt::Display for ScriptLocation {
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
            // What follows begins with a colon.
            write!(f, ", line {line}: {}", text.trim_end_matches([';', ' ']))
        } else {
            Ok(())
        }
    }
}

/// Why a client was aborted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AbortCause {
    /// The server reported an error that is not retried.
    #[error("{0}")]
    Sql(Box<ServerMessage>),
    /// Evaluating an expression or an argument failed.
    #[error("{0}")]
    Eval(#[from] EvalError),
    /// The script uses a command where it is not allowed.
    #[error("{0}")]
    Refusal(#[from] Refusal),
    /// A statement could not be prepared, and therefore not executed either.
    #[error("{error}")]
    Unprepared {
        /// The error from preparing it.
        error: Box<ServerMessage>,
        /// Its name, which no statement has.
        name: String,
    },
    /// A column's name is not a valid variable name.
    #[error("{invalid}")]
    Capture {
        /// The name, and the command that used it.
        invalid: InvalidName,
    },
    /// A shell command of `\shell` or `\setshell` failed.
    #[error("{program}: {reason}")]
    ShellFailed {
        /// The shell command's first word.
        program: String,
        /// What failed.
        reason: &'static str,
    },
    /// `\gset` requires exactly one row.
    #[error("expected one row, got {rows}")]
    Rows {
        /// The number of rows.
        rows: u64,
    },
    /// The message could not be sent, or the rows could not be read.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// `\shell` and `\setshell` are not available in this kind of run.
    #[error("\\shell and \\setshell are supported only by pgassay bench")]
    Shell,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: "line 1: select 1/0;: ERROR:  division by zero".
    #[test]
    fn a_statement_does_not_end_with_a_semicolon_before_a_colon() {
        let place = ScriptLocation {
            client: 0,
            script: "a".to_owned(),
            script_index: 0,
            command: 0,
            query: 0,
            word: "SQL".to_owned(),
            line: 1,
            text: "select 1/0;".to_owned(),
            sent: None,
            statement: None,
        };
        assert!(place.to_string().ends_with("line 1: select 1/0"), "{place}");
    }

    /// Regression: "select 1;; the server closed it".
    #[test]
    fn a_statement_ends_with_one_semicolon_in_the_message_of_a_lost_connection() {
        let lost = LoadError::Lost {
            client: 0,
            what: "in command 0 (SQL) of script \"a\", line 1: select 1;".to_owned(),
            place: None,
            last: None,
            source: None,
        };
        assert!(
            lost.to_string()
                .ends_with("line 1: select 1; the server closed it without an error message"),
            "{lost}"
        );
    }
}
