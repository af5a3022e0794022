//! Errors in connection parameters. No message contains a connection string, because it may contain
//! a password.

use std::io;

/// An error in connection parameters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConninfoError {
    /// A syntax error.
    #[error("connection string, byte {at_byte}: {what}")]
    Syntax {
        /// The byte position, counted from 0.
        at_byte: usize,
        /// The error.
        what: &'static str,
    },
    /// Unknown option.
    #[error("invalid connection option \"{name}\"")]
    UnknownOption {
        /// The name.
        name: String,
    },
    /// Invalid value for an option.
    #[error("invalid value \"{value}\" for connection option \"{option}\": expected {expected}")]
    Value {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// Supported by libpq but not by pgassay.
    #[error("{option}={value} is not supported: {reason}")]
    Unsupported {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// Why, or what to do instead.
        reason: &'static str,
    },
    /// The option requires a stronger `sslmode`.
    #[error("weak sslmode \"{mode}\" may not be used with {conflicting_option} ({instead})")]
    WeakMode {
        /// The mode.
        mode: String,
        /// The option that conflicts with it.
        conflicting_option: &'static str,
        /// What to use instead.
        instead: &'static str,
    },
    /// Lists of hosts, addresses or ports with different lengths.
    #[error("{count} values of \"{option}\" do not match {hosts} hosts")]
    Count {
        /// The list with the wrong length.
        option: &'static str,
        /// Its length.
        count: usize,
        /// The number of hosts.
        hosts: usize,
    },
    /// The service is not defined.
    #[error("definition of service \"{name}\" not found")]
    ServiceNotFound {
        /// The name.
        name: String,
    },
    /// The service file that the user has named does not exist.
    #[error("service file \"{path}\" not found")]
    NoServiceFile {
        /// The file.
        path: String,
    },
    /// A syntax error in the service file.
    #[error("service file \"{path}\", line {line}: {what}")]
    ServiceFile {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The error.
        what: String,
    },
    /// A file cannot be read.
    #[error("cannot read \"{path}\": {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's error; not a source, because the message has it.
        error: io::Error,
    },
    /// No user name is known.
    #[error("no user name: set PGUSER or specify one")]
    NoUser,
}
