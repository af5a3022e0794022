//! What a session reports, and the rows within.
//!
//! Everything here borrows from the bytes that were read; nothing is copied or checked before
//! somebody looks at it. See `src/interfaces/libpq/fe-protocol3.c` (`getAnotherTuple`).

use crate::error::{ServerError, WireError};

/// The state of the server's transaction, as `ReadyForQuery` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    /// No transaction is open.
    Idle,
    /// A transaction block is open.
    Open,
    /// A transaction block is open and failed: only a rollback is accepted.
    Failed,
}

/// Which way data was to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// `COPY … FROM STDIN`: refused with `CopyFail`, an error follows; unless the session was told
    /// to accept it.
    In,
    /// `COPY … TO STDOUT`: the data are passed over.
    Out,
}

/// Something that happened on the connection. `token` is what the caller gave with the request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The server is ready: after start-up (no token), a simple query, or a Sync.
    Ready {
        /// The query's or Sync's token.
        token: Option<u32>,
        /// The transaction's state.
        status: TransactionStatus,
    },
    /// A statement is done. A simple query with several statements has several of these.
    Complete {
        /// The request's token.
        token: u32,
        /// The command tag, such as `SELECT 1`; empty for an empty query.
        tag: &'a [u8],
    },
    /// A row, where rows were asked for.
    Row {
        /// The request's token.
        token: u32,
        /// The row.
        row: Row<'a>,
    },
    /// The columns of the rows to come, where rows were asked for.
    Described {
        /// The request's token.
        token: u32,
        /// The columns.
        columns: RowDescription<'a>,
    },
    /// A `Parse` by itself is done.
    Prepared {
        /// The request's token.
        token: u32,
    },
    /// A `Close` is done.
    Closed {
        /// The request's token.
        token: u32,
    },
    /// The server reported an error.
    Error {
        /// The failed request's token; none where the error belongs to no request, as when the
        /// server shuts down or refuses the connection.
        token: Option<u32>,
        /// Requests after the failed one that the server passes over, up to the next Sync. No
        /// event comes for them.
        skipped: u32,
        /// What the server said.
        error: Box<ServerError>,
    },
    /// A statement turned out to be a `COPY`.
    Copy {
        /// The request's token.
        token: u32,
        /// Which way.
        direction: CopyDirection,
    },
    /// A notice or warning.
    Notice(Notice<'a>),
    /// A setting that the server reports, at start-up or because it changed.
    Parameter {
        /// The setting's name.
        name: &'a str,
        /// Its value.
        value: &'a str,
    },
    /// A notification (`LISTEN`/`NOTIFY`); its content is not kept.
    Notification,
}

/// A notice, not read yet.
#[derive(Clone, Copy)]
pub struct Notice<'a>(pub(crate) &'a [u8]);

impl Notice<'_> {
    /// The SQLSTATE, without reading the rest.
    pub fn sqlstate(&self) -> Option<&[u8]> {
        let mut fields = self.0.split(|&byte| byte == 0);
        fields.find_map(|field| field.strip_prefix(b"C"))
    }

    /// Reads the notice's fields.
    ///
    /// # Errors
    /// [`WireError::Malformed`] where a field has no end.
    pub fn read(&self) -> Result<ServerError, WireError> {
        ServerError::read('N', self.0)
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
    /// The columns' names, in their order.
    ///
    /// # Errors
    /// [`WireError::Malformed`] where the message is cut off.
    pub fn names(&self) -> Result<Vec<String>, WireError> {
        const CUT: WireError = WireError::Malformed {
            tag: 'T',
            what: "a column is cut off",
        };
        // After the name come table oid, attribute number, type oid, type length, type modifier
        // and format.
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
pub struct Row<'a>(pub(crate) &'a [u8]);

impl<'a> Row<'a> {
    /// The row's values in their order; `None` is SQL's null. A cut-off row ends with one error.
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

/// Takes one length-prefixed value; a length of -1 is null.
fn take_value<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, WireError> {
    const CUT: WireError = WireError::Malformed {
        tag: 'D',
        what: "the row is cut off",
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
        let values: Vec<_> = Row(&body).values().map(Result::unwrap).collect();
        assert_eq!(values, [Some(b"ab".as_slice()), None, Some(b"".as_slice())]);
    }

    #[test]
    fn cut_off_rows_end_with_an_error() {
        let body = [0, 2, 0, 0, 0, 2, b'a', b'b', 0, 0, 0, 9, b'x'];
        for length in 0..body.len() {
            let values: Vec<_> = Row(&body[..length]).values().collect();
            assert!(values.last().unwrap().is_err(), "cut at {length}");
            assert!(values.len() <= 2);
        }
    }
}
