//! What a session does before it is ready: signing in, and looking whether this is the kind of
//! server that was asked for.
//!
//! Source: `CONNECTION_CHECK_TARGET` and the states after it in `PQconnectPoll`, `fe-connect.c`.
//! Servers since 14 tell at start-up whether they are a standby and whether transactions can
//! write; older ones are asked.

use crate::authentication::Authentication;
use crate::conninfo::SessionAttributes;
use crate::error::{ServerError, WireError};
use crate::message::Row;

/// A session that is not ready yet.
pub(crate) struct Starting {
    pub authentication: Authentication,
    /// The kind of server that is wanted.
    pub wanted: SessionAttributes,
    /// What the server was asked about itself, once it was.
    asked: Option<Question>,
    /// What it answered: whether it is a standby, or cannot write.
    answer: Option<bool>,
}

/// What only a question tells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Question {
    ReadOnly,
    Standby,
}

impl Question {
    fn sql(self) -> &'static str {
        match self {
            Self::ReadOnly => "SHOW transaction_read_only",
            Self::Standby => "SELECT pg_catalog.pg_is_in_recovery()",
        }
    }
}

/// What is known of the server.
pub(crate) enum Kind {
    /// It is what was asked for.
    Wanted,
    /// It has to be asked this.
    Unknown(&'static str),
}

impl Starting {
    pub fn new(authentication: Authentication, wanted: SessionAttributes) -> Self {
        Self {
            authentication,
            wanted,
            asked: None,
            answer: None,
        }
    }

    /// Looks whether the server is wanted, by the settings it reported or by its answer.
    pub fn judge(&mut self, parameters: &[(String, String)]) -> Result<Kind, WireError> {
        let reported = |name: &str| {
            let found = parameters.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value == "on")
        };
        let standby = reported("in_hot_standby");
        let (known, question) = match self.wanted {
            SessionAttributes::Any => return Ok(Kind::Wanted),
            SessionAttributes::ReadWrite | SessionAttributes::ReadOnly => (
                reported("default_transaction_read_only")
                    .zip(standby)
                    .map(|(read_only, standby)| read_only || standby),
                Question::ReadOnly,
            ),
            SessionAttributes::Primary
            | SessionAttributes::Standby
            | SessionAttributes::PreferStandby => (standby, Question::Standby),
        };
        let Some(restricted) = known.or(self.answer) else {
            if self.asked.replace(question).is_some() {
                let reason = format!("\"{}\" failed: it was not answered", question.sql());
                return Err(WireError::Unwanted { reason });
            }
            return Ok(Kind::Unknown(question.sql()));
        };
        let reason = match (self.wanted, restricted) {
            (SessionAttributes::ReadWrite, true) => "session is read-only",
            (SessionAttributes::ReadOnly, false) => "session is not read-only",
            (SessionAttributes::Primary, true) => "server is in hot standby mode",
            (SessionAttributes::Standby | SessionAttributes::PreferStandby, false) => {
                "server is not in hot standby mode"
            }
            _ => return Ok(Kind::Wanted),
        };
        Err(WireError::Unwanted {
            reason: reason.into(),
        })
    }

    /// Takes the server's answer to the question.
    pub fn answered(&mut self, row: Row<'_>) -> Result<(), WireError> {
        let value = row.values().next().transpose()?.flatten();
        self.answer = Some(matches!(value, Some(b"on" | b"t")));
        Ok(())
    }

    /// Whether an answer is awaited.
    pub fn is_asking(&self) -> bool {
        self.asked.is_some() && self.answer.is_none()
    }

    /// Whether the server was asked anything.
    pub fn has_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// The error that the server answers with instead.
    pub fn refused(&self, error: &ServerError) -> Option<WireError> {
        let question = self.asked?;
        Some(WireError::Unwanted {
            reason: format!("\"{}\" failed: {}", question.sql(), error.message),
        })
    }
}
