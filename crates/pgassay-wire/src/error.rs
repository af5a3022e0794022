//! What can go wrong: the protocol's own errors, and what a server reports.
//!
//! Fields of a report: the manual, "Error and Notice Message Fields". The non-localised severity
//! (`V`) exists since 9.6; where it is missing the localised one is taken.

use std::fmt;

use crate::tls::TlsError;

/// An error of the protocol itself: the connection cannot be used any longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A length that no message of this kind can have, as when the other end is no PostgreSQL.
    #[error(
        "the server's message '{tag}' claims {length_bytes} bytes, which cannot be: \
         is this a PostgreSQL server?"
    )]
    Length {
        /// The message's type.
        tag: char,
        /// The claimed length, the length word included.
        length_bytes: u32,
    },
    /// A message that may not come now.
    #[error("the server sent message '{tag}' while the client was {doing}")]
    Unexpected {
        /// The message's type.
        tag: char,
        /// What the session waited for.
        doing: &'static str,
    },
    /// A message whose body does not follow its format.
    #[error("the server's message '{tag}' is malformed: {what}")]
    Malformed {
        /// The message's type.
        tag: char,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The server wants a password, and there is none.
    #[error(
        "the server asks for a password (user \"{user}\") and none was given: \
         set PGPASSWORD, or write a line into ~/.pgpass"
    )]
    PasswordNeeded {
        /// The user that signs in.
        user: String,
    },
    /// A way to authenticate that is not spoken here.
    #[error(
        "the server asks for {method} authentication, which is not supported: \
         use trust, peer, password, md5 or scram-sha-256 in pg_hba.conf"
    )]
    AuthenticationUnsupported {
        /// The method's name or number.
        method: String,
    },
    /// SCRAM failed on our side, or the server could not prove that it knows the password.
    #[error("SCRAM-SHA-256 authentication failed: {reason}")]
    Scram {
        /// What was wrong.
        reason: &'static str,
    },
    /// The server asks for a way to authenticate that `require_auth` does not allow.
    #[error("authentication method requirement \"{required}\" failed: {reason}")]
    MethodRefused {
        /// What is allowed.
        required: String,
        /// What the server did.
        reason: &'static str,
    },
    /// Channel binding is required, or offered where it cannot be.
    #[error("channel binding required, but {reason}")]
    ChannelBinding {
        /// What is in its way.
        reason: &'static str,
    },
    /// The connection is not protected as it should be.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server is not of the kind that `target_session_attrs` asks for.
    #[error("{reason}")]
    Unwanted {
        /// What it is or is not.
        reason: String,
    },
    /// A message that cannot be encoded, such as SQL with a zero byte in it.
    #[error("cannot send the {what}: {reason}")]
    Encode {
        /// What was to be sent.
        what: &'static str,
        /// Why it cannot be.
        reason: String,
    },
}

/// What a server says in an `ErrorResponse` or `NoticeResponse`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerError {
    /// `ERROR`, `FATAL`, `PANIC`; of notices `WARNING`, `NOTICE`, `DEBUG`, `INFO`, `LOG`.
    pub severity: String,
    /// The five characters of the SQLSTATE.
    pub sqlstate: String,
    /// The primary message, in the server's language.
    pub message: String,
    /// The secondary message.
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// Position in the query text in characters, the first being 1.
    pub position: Option<u32>,
    /// Position in `internal_query`, likewise.
    pub internal_position: Option<u32>,
    /// The query that a function or the server itself ran.
    pub internal_query: Option<String>,
    /// The call stack of functions.
    pub context: Option<String>,
    /// The schema of the object concerned.
    pub schema: Option<String>,
    /// The table concerned.
    pub table: Option<String>,
    /// The constraint concerned.
    pub constraint: Option<String>,
}

impl ServerError {
    /// Reads the fields of a report; unknown ones are passed over, as the protocol asks.
    ///
    /// # Errors
    /// [`WireError::Malformed`] where a field has no end.
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
                    what: "a field of the report has no end",
                })?;
            report.set(field, String::from_utf8_lossy(&rest[..end]).into_owned());
            body = &rest[end + 1..];
        }
        Err(WireError::Malformed {
            tag,
            what: "the report has no end",
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

impl fmt::Display for ServerError {
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

impl std::error::Error for ServerError {}
