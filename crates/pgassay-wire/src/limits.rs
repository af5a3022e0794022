//! Limits on what a server may send, so that a hostile one cannot exhaust the client's memory.

use crate::error::WireError;
use crate::replies::Core;

/// Limit on an authentication request, before the server has accepted the client, as in libpq
/// (`PQconnectPoll` in `fe-connect.c`, PostgreSQL 18).
const REQUEST_MAX_BYTES: u32 = 2_000;
/// Limit on an error before the server has accepted the client: libpq's `MAX_ERRLEN`.
const REFUSAL_MAX_BYTES: u32 = 30_000;
/// As much of an error in the format before protocol 3.0, with its tag.
pub(crate) const OLD_REFUSAL_MAX_BYTES: usize = 1 + REFUSAL_MAX_BYTES as usize;
/// The rest of a longer error or notice is skipped: no reader needs it, and every client of a run may
/// receive one.
const REPORT_MAX_BYTES: usize = 64 << 10;
/// What a report that was cut ends with: a mark, and the ends of the field and of the report.
pub(crate) const REPORT_END: &[u8] = "…\0\0".as_bytes();
/// Limit on a description of columns. A server has at most 1664 columns with names of 63 bytes.
const DESCRIPTION_MAX_BYTES: u32 = 1 << 20;
/// Limit on a row that the caller wants, unless the caller sets another one.
pub(crate) const ROW_MAX_BYTES: u32 = 1 << 20;
/// Shorter messages are within every limit.
pub(crate) const UNLIMITED_BYTES: usize = 1_900;
/// Larger buffers are freed after use.
pub(crate) const KEPT_MAX_BYTES: usize = 128 << 10;

/// Returns how many bytes of a body are used; the rest is skipped.
#[inline]
pub(crate) fn kept_length(tag: u8, length: usize) -> usize {
    match tag {
        b'E' | b'N' => length.min(REPORT_MAX_BYTES),
        _ => length,
    }
}

/// Checks the beginning of a text that refuses a connection, with its tag: `Ok` if more has to be read, and `error` if
/// it is no such text.
pub(crate) fn old_refusal(kept: &[u8], error: WireError) -> Result<(), WireError> {
    let Some((b'E', text)) = kept.split_first() else {
        return Err(error);
    };
    match text.iter().position(|&byte| byte == 0) {
        None if kept.len() < OLD_REFUSAL_MAX_BYTES => Ok(()),
        Some(end) if !text[..end].trim_ascii().is_empty() => Err(WireError::OldRefusal {
            text: String::from_utf8_lossy(text[..end].trim_ascii_end()).into_owned(),
        }),
        _ => Err(error),
    }
}

impl Core {
    /// Whether the server has accepted the client.
    pub fn is_accepted(&self) -> bool {
        let starting = self.starting.as_ref();
        starting.is_none_or(|starting| starting.authentication.is_accepted)
    }

    /// Checks the length of a body against the limits that apply in the current state, so that a
    /// hostile server cannot exhaust memory.
    #[cold]
    pub fn check_length(&self, tag: u8, length: usize) -> Result<(), WireError> {
        let length_bytes = length as u32 + 4;
        if !self.is_accepted() {
            let max = match tag {
                b'R' | b'v' => REQUEST_MAX_BYTES,
                b'E' => REFUSAL_MAX_BYTES,
                _ => return Err(self.unexpected(tag)),
            };
            if length_bytes > max {
                return Err(WireError::Length {
                    tag: char::from(tag),
                    length_bytes,
                });
            }
        }
        let max = match tag {
            b'T' => DESCRIPTION_MAX_BYTES,
            b'D' => self.row_max_bytes,
            _ => return Ok(()),
        };
        if length_bytes > max && self.wants_body(tag) {
            return Err(WireError::TooLong {
                tag: char::from(tag),
                length_bytes,
                max_bytes: max,
            });
        }
        Ok(())
    }
}
