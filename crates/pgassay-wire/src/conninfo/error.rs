//! What can be wrong with connection parameters. No message shows a connection string, since it
//! may hold a password.

use std::io;

/// An error in connection parameters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConninfoError {
    /// The text does not follow the syntax.
    #[error("connection string, byte {at_byte}: {what}")]
    Syntax {
        /// Where, counted from 0.
        at_byte: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// No such option.
    #[error("invalid connection option \"{name}\"")]
    UnknownOption {
        /// The option as given.
        name: String,
    },
    /// A value that means nothing for its option.
    #[error("invalid value \"{value}\" for connection option \"{option}\": expected {expected}")]
    Value {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// Something libpq can do and pgassay cannot.
    #[error("{option}={value} is not supported: {reason}")]
    Unsupported {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// Why, or what to do instead.
        reason: &'static str,
    },
    /// An option that promises security beside a mode that does not give it.
    #[error("weak sslmode \"{mode}\" may not be used with {beside} ({instead})")]
    WeakMode {
        /// The mode.
        mode: String,
        /// The option beside it.
        beside: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// Lists of hosts, addresses or ports that do not match.
    #[error("{count} values of \"{option}\" do not match {hosts} hosts")]
    Count {
        /// The list that does not match.
        option: &'static str,
        /// How many it has.
        count: usize,
        /// How many hosts there are.
        hosts: usize,
    },
    /// The service is nowhere defined.
    #[error("definition of service \"{name}\" not found")]
    ServiceNotFound {
        /// The service.
        name: String,
    },
    /// The service file is wrong.
    #[error("service file \"{path}\", line {line}: {what}")]
    ServiceFile {
        /// The file.
        path: String,
        /// The line, the first being 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// A file cannot be read.
    #[error("cannot read \"{path}\": {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// Nobody knows as whom to connect.
    #[error("no user name: set PGUSER or name one")]
    NoUser,
}
