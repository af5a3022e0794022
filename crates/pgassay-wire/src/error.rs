//! Protocol errors, and the server's error and notice reports.
//!
//! Fields of a report: the manual, "Error and Notice Message Fields". The non-localized severity
//! (`V`) exists since 9.6; if it is missing, the localized one is used.

use std::fmt;

use crate::tls::TlsError;

/// A protocol error: the connection cannot be used any longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A length that is impossible for this message type, as when the peer is not PostgreSQL.
    #[error(
        "the server's message '{tag}' has an invalid length of {length_bytes} bytes: \
         is this a PostgreSQL server?"
    )]
    Length {
        /// The message's type.
        tag: char,
        /// The stated length, including the length field.
        length_bytes: u32,
    },
    /// The server refuses the connection with a text that is no message of protocol 3.0.
    #[error("{text}")]
    OldRefusal {
        /// The server's text.
        text: String,
    },
    /// A message that is longer than this client accepts.
    #[error(
        "the server's message '{tag}' has {length_bytes} bytes, and at most {max_bytes} are \
         accepted: select less data"
    )]
    TooLong {
        /// The message's type.
        tag: char,
        /// The stated length, including the length field.
        length_bytes: u32,
        /// The limit.
        max_bytes: u32,
    },
    /// A message that is not allowed in the current state.
    #[error("unexpected message '{tag}' from the server while {doing}")]
    Unexpected {
        /// The message's type.
        tag: char,
        /// What the session was doing.
        doing: &'static str,
    },
    /// A message with an invalid body.
    #[error("malformed message '{tag}' from the server: {what}")]
    Malformed {
        /// The message's type.
        tag: char,
        /// The error in it.
        what: &'static str,
    },
    /// The server requires a password, but none is known.
    #[error(
        "the server requires a password for user \"{user}\", but none was given: \
         set PGPASSWORD, or add a line to ~/.pgpass"
    )]
    PasswordNeeded {
        /// The user who signs in.
        user: String,
    },
    /// An unsupported authentication method.
    #[error(
        "the server requires {method} authentication, which is not supported: \
         use trust, peer, password, md5 or scram-sha-256 in pg_hba.conf"
    )]
    AuthenticationUnsupported {
        /// The method's name or number.
        method: String,
    },
    /// SCRAM failed in the client, or the server did not prove that it knows the password.
    #[error("SCRAM-SHA-256 authentication failed: {reason}")]
    Scram {
        /// The error.
        reason: &'static str,
    },
    /// The server requests an authentication method that `require_auth` does not allow.
    #[error("authentication method requirement \"{required}\" failed: {reason}")]
    MethodRefused {
        /// The allowed methods.
        required: String,
        /// What the server did.
        reason: &'static str,
    },
    /// Channel binding is required but not possible.
    #[error("channel binding required, but {reason}")]
    ChannelBinding {
        /// Why it is not possible.
        reason: &'static str,
    },
    /// The connection is not protected as required.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server is not of the type that `target_session_attrs` requires.
    #[error("{reason}")]
    Unwanted {
        /// How its type differs.
        reason: String,
    },
    /// A message that cannot be encoded, such as SQL that contains a zero byte.
    #[error("cannot send the {what}: {reason}")]
    Encode {
        /// The message.
        what: &'static str,
        /// Why it cannot be sent.
        reason: String,
    },
}

/// An `ErrorResponse` or `NoticeResponse` of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerMessage {
    /// `ERROR`, `FATAL` or `PANIC`; for notices `WARNING`, `NOTICE`, `DEBUG`, `INFO` or `LOG`.
    pub severity: String,
    /// The five-character SQLSTATE.
    pub sqlstate: String,
    /// The primary message, in the server's language.
    pub message: String,
    /// The secondary message.
    pub detail: Option<String>,
    /// Advice on what to do.
    pub hint: Option<String>,
    /// Position in the query text, in characters from 1.
    pub position: Option<u32>,
    /// Position in `internal_query`, in characters from 1.
    pub internal_position: Option<u32>,
    /// An internally generated query, such as one run by a function.
    pub internal_query: Option<String>,
    /// The call stack of functions.
    pub context: Option<String>,
    /// The schema of the affected object.
    pub schema: Option<String>,
    /// The affected table.
    pub table: Option<String>,
    /// The affected constraint.
    pub constraint: Option<String>,
}

impl ServerMessage {
    /// Parses the fields of a report; unknown ones are ignored, as the protocol requires.
    ///
    /// # Errors
    /// [`WireError::Malformed`] if a field is not terminated.
    pub(crate) fn read(tag: char, mut body: &[u8]) -> Result<Self, WireError> {
        let mut report = Self::default();
        while let Some((&field, rest)) = body.split_first() {
            if field == 0 {
                return Ok(report);
            }
            let end = rest
                .iter()
                .position(|&byte| byte == 0)
                .ok_or(WireError::Malformed {
                    tag,
                    what: "unterminated field",
                })?;
            report.set(field, String::from_utf8_lossy(&rest[..end]).into_owned());
            body = &rest[end + 1..];
        }
        Err(WireError::Malformed {
            tag,
            what: "unterminated report",
        })
    }

    fn set(&mut self, field: u8, value: String) {
        match field {
            b'V' => self.severity = value,
            b'S' if self.severity.is_empty() => self.severity = value,
            b'C' => self.sqlstate = value,
            b'M' => self.message = value,
            b'D' => self.detail = Some(value),
            b'H' => self.hint = Some(value),
            b'P' => self.position = value.parse().ok(),
            b'p' => self.internal_position = value.parse().ok(),
            b'q' => self.internal_query = Some(value),
            b'W' => self.context = Some(value),
            b's' => self.schema = Some(value),
            b't' => self.table = Some(value),
            b'n' => self.constraint = Some(value),
            _ => {}
        }
    }

    /// Whether the server closes the connection after this.
    pub fn is_fatal(&self) -> bool {
        matches!(self.severity.as_str(), "FATAL" | "PANIC")
    }
}

impl fmt::Display for ServerMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} (SQLSTATE {})",
            self.severity, self.message, self.sqlstate
        )?;
        for (label, text) in [
            ("DETAIL", &self.detail),
            ("HINT", &self.hint),
            ("CONTEXT", &self.context),
        ] {
            if let Some(text) = text {
                write!(f, "\n{label}: {text}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ServerMessage {}
