//! The start-up of a session: authentication, and checking that the server is of the required type.
//!
//! Source: `CONNECTION_CHECK_TARGET` and the following states in `PQconnectPoll`, `fe-connect.c`.
//! Servers since 14 report at start-up whether they are a standby and whether transactions can
//! write; older ones are queried.

use crate::authentication::Authentication;
use crate::conninfo::SessionAttributes;
use crate::error::{ServerMessage, WireError};
use crate::message::DataRow;

/// A session that is not ready yet.
pub(crate) struct Starting {
    pub authentication: Authentication,
    /// The required type of server.
    pub wanted: SessionAttributes,
    /// The query sent to the server about its type, if any.
    asked: Option<ServerQuery>,
    /// The result: whether it is a standby, or read-only.
    answer: Option<bool>,
}

/// A property that must be queried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerQuery {
    ReadOnly,
    Standby,
}

impl ServerQuery {
    fn sql(self) -> &'static str {
        match self {
            Self::ReadOnly => "SHOW transaction_read_only",
            Self::Standby => "SELECT pg_catalog.pg_is_in_recovery()",
        }
    }
}

/// The result of checking the server's type.
pub(crate) enum ServerTypeResult {
    /// It is of the required type.
    Wanted,
    /// It must be determined with this query.
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

    /// Checks the server's type by the settings it reported or by the result of the query.
    pub fn check_server_type(
        &mut self,
        parameters: &[(String, String)],
    ) -> Result<ServerTypeResult, WireError> {
        let reported = |name: &str| {
            let found = parameters.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value == "on")
        };
        let standby = reported("in_hot_standby");
        let (known, question) = match self.wanted {
            SessionAttributes::Any => return Ok(ServerTypeResult::Wanted),
            SessionAttributes::ReadWrite | SessionAttributes::ReadOnly => (
                reported("default_transaction_read_only")
                    .zip(standby)
                    .map(|(read_only, standby)| read_only || standby),
                ServerQuery::ReadOnly,
            ),
            SessionAttributes::Primary
            | SessionAttributes::Standby
            | SessionAttributes::PreferStandby => (standby, ServerQuery::Standby),
        };
        let Some(restricted) = known.or(self.answer) else {
            if self.asked.replace(question).is_some() {
                let reason = format!("\"{}\" failed: no result", question.sql());
                return Err(WireError::Unwanted { reason });
            }
            return Ok(ServerTypeResult::Unknown(question.sql()));
        };
        let reason = match (self.wanted, restricted) {
            (SessionAttributes::ReadWrite, true) => "session is read-only",
            (SessionAttributes::ReadOnly, false) => "session is not read-only",
            (SessionAttributes::Primary, true) => "server is in hot standby mode",
            (SessionAttributes::Standby | SessionAttributes::PreferStandby, false) => {
                "server is not in hot standby mode"
            }
            _ => return Ok(ServerTypeResult::Wanted),
        };
        Err(WireError::Unwanted {
            reason: reason.into(),
        })
    }

    /// Handles the result of the query.
    pub fn handle_query_result(&mut self, row: DataRow<'_>) -> Result<(), WireError> {
        let value = row.values().next().transpose()?.flatten();
        self.answer = Some(matches!(value, Some(b"on" | b"t")));
        Ok(())
    }

    /// Whether the query is waiting for its result.
    pub fn is_asking(&self) -> bool {
        self.asked.is_some() && self.answer.is_none()
    }

    /// Whether a query was sent.
    pub fn has_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Returns the error if the query failed.
    pub fn refused(&self, error: &ServerMessage) -> Option<WireError> {
        let question = self.asked?;
        Some(WireError::Unwanted {
            reason: format!("\"{}\" failed: {}", question.sql(), error.message),
        })
    }
}
