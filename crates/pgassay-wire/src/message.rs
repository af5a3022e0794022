//! Events of a session, and the rows in them.
//!
//! Everything here borrows from the received bytes; nothing is copied or checked before it is used.
//! See `src/interfaces/libpq/fe-protocol3.c` (`getAnotherTuple`).

use crate::error::{ServerMessage, WireError};

/// The server's transaction status, from `ReadyForQuery`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    /// No transaction is open.
    Idle,
    /// A transaction block is open.
    Open,
    /// A transaction block is open and has failed: only a rollback is accepted.
    Failed,
}

impl TransactionStatus {
    /// The status in the body of `ReadyForQuery`; `None` if it is not one.
    #[inline]
    pub(crate) fn of(body: &[u8]) -> Option<Self> {
        match body {
            b"I" => Some(Self::Idle),
            b"T" => Some(Self::Open),
            b"E" => Some(Self::Failed),
            _ => None,
        }
    }
}

/// The direction of a COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// `COPY … FROM STDIN`: rejected with `CopyFail`, and an error follows, unless the session
    /// accepts it.
    In,
    /// `COPY … TO STDOUT`: the data is discarded.
    Out,
}

/// An event on the connection. `token` is the value that the caller passed with the request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The server is ready: after start-up (no token), a simple query, or a Sync.
    Ready {
        /// The query's or Sync's token.
        token: Option<u32>,
        /// The transaction status.
        status: TransactionStatus,
    },
    /// A statement is complete. A simple query with several statements causes several of these.
    Complete {
        /// The request's token.
        token: u32,
        /// The command tag, such as `SELECT 1`; empty for an empty query.
        tag: &'a [u8],
    },
    /// A row, if the request asked for rows.
    DataRow {
        /// The request's token.
        token: u32,
        /// The row.
        row: DataRow<'a>,
    },
    /// The columns of the following rows, if the request asked for rows.
    Described {
        /// The request's token.
        token: u32,
        /// The columns.
        columns: RowDescription<'a>,
    },
    /// A separate `Parse` is complete.
    Prepared {
        /// The request's token.
        token: u32,
    },
    /// A `Close` is complete.
    Closed {
        /// The request's token.
        token: u32,
    },
    /// The server reported an error.
    Error {
        /// The failed request's token; none if the error does not belong to a request, as when the
        /// server shuts down or rejects the connection.
        token: Option<u32>,
        /// The number of requests after the failed one that the server skips, up to the next Sync.
        /// They cause no events.
        skipped: u32,
        /// The server's report.
        error: Box<ServerMessage>,
    },
    /// A statement started a `COPY`.
    Copy {
        /// The request's token.
        token: u32,
        /// Its direction.
        direction: CopyDirection,
    },
    /// A notice or warning.
    Notice(Notice<'a>),
    /// A setting that the server reports, at start-up or after it changed.
    Parameter {
        /// The setting's name.
        name: &'a str,
        /// Its value.
        value: &'a str,
    },
    /// A notification (`LISTEN`/`NOTIFY`); its content is discarded.
    Notification,
}

impl<'a> Event<'a> {
    /// The completion of a statement, from the body of `CommandComplete`.
    #[inline]
    pub(crate) fn completed(token: u32, body: &'a [u8]) -> Self {
        Self::Complete {
            token,
            tag: body.strip_suffix(&[0]).unwrap_or(body),
        }
    }
}

/// A notice that is not parsed yet.
#[derive(Clone, Copy)]
pub struct Notice<'a>(pub(crate) &'a [u8]);

impl Notice<'_> {
    /// Returns the SQLSTATE without parsing the rest.
    pub fn sqlstate(&self) -> Option<&[u8]> {
        let mut fields = self.0.split(|&byte| byte == 0);
        fields.find_map(|field| field.strip_prefix(b"C"))
    }

    /// Parses the notice's fields.
    ///
    /// # Errors
    /// [`WireError::Malformed`] if a field is not terminated.
    pub fn read(&self) -> Result<ServerMessage, WireError> {
        ServerMessage::read('N', self.0)
    }
}

impl std::fmt::Debug for Notice<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.read().fmt(f)
    }
}

/// The columns of a result.
#[derive(Clone, Copy, Debug)]
pub struct RowDescription<'a>(pub(crate) &'a [u8]);

impl RowDescription<'_> {
    /// Returns the column names in order.
    ///
    /// # Errors
    /// [`WireError::Malformed`] if the message is truncated.
    pub fn names(&self) -> Result<Vec<String>, WireError> {
        const CUT: WireError = WireError::Malformed {
            tag: 'T',
            what: "truncated column",
        };
        // After the name: table OID, attribute number, type OID, type length, type modifier and
        // format.
        const FIXED_BYTES: usize = 18;
        let (count, mut rest) = self.0.split_at_checked(2).ok_or(CUT)?;
        let count = u16::from_be_bytes([count[0], count[1]]);
        let mut names = Vec::new();
        for _ in 0..count {
            let end = rest.iter().position(|&byte| byte == 0).ok_or(CUT)?;
            names.push(String::from_utf8_lossy(&rest[..end]).into_owned());
            rest = rest.get(end + 1 + FIXED_BYTES..).ok_or(CUT)?;
        }
        Ok(names)
    }
}

/// A row of values in text format.
#[derive(Clone, Copy, Debug)]
pub struct DataRow<'a>(pub(crate) &'a [u8]);

impl<'a> DataRow<'a> {
    /// Returns the row's values in order; `None` is NULL. A truncated row ends with one error.
    pub fn values(&self) -> impl Iterator<Item = Result<Option<&'a [u8]>, WireError>> + use<'a> {
        let (count, mut rest) = self.0.split_at_checked(2).unwrap_or((&[0, 1], &[]));
        let mut left = u16::from_be_bytes([count[0], count[1]]);
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let value = take_value(&mut rest);
            if value.is_err() {
                left = 0;
            }
            Some(value)
        })
    }
}

/// Parses one length-prefixed value; a length of -1 is NULL.
fn take_value<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, WireError> {
    const CUT: WireError = WireError::Malformed {
        tag: 'D',
        what: "truncated row",
    };
    let (length, after) = rest.split_first_chunk::<4>().ok_or(CUT)?;
    let length = i32::from_be_bytes(*length);
    if length == -1 {
        *rest = after;
        return Ok(None);
    }
    let length = usize::try_from(length).map_err(|_| CUT)?;
    let (value, after) = after.split_at_checked(length).ok_or(CUT)?;
    *rest = after;
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sqlstate_of_a_notice() {
        assert_eq!(
            Notice(b"SCRASH\0C57P02\0MCome back\0\0").sqlstate(),
            Some(&b"57P02"[..])
        );
        assert_eq!(Notice(b"SNOTICE\0\0").sqlstate(), None);
    }

    #[test]
    fn values_of_a_row() {
        let body = [
            0, 3, 0, 0, 0, 2, b'a', b'b', 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
        ];
        let values: Vec<_> = DataRow(&body).values().map(Result::unwrap).collect();
        assert_eq!(values, [Some(b"ab".as_slice()), None, Some(b"".as_slice())]);
    }

    #[test]
    fn cut_off_rows_end_with_an_error() {
        let body = [0, 2, 0, 0, 0, 2, b'a', b'b', 0, 0, 0, 9, b'x'];
        for length in 0..body.len() {
            let values: Vec<_> = DataRow(&body[..length]).values().collect();
            assert!(values.last().unwrap().is_err(), "cut at {length}");
            assert!(values.len() <= 2);
        }
    }
}
