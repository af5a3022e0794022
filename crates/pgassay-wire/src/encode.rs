//! Encodes the messages of a load: appends bytes to the output.
//!
//! `postgres-protocol` encodes rare messages (start-up, passwords). These are encoded here because
//! scripts are bytes, not text, and so that a parameter is written directly into the output.
//! Formats: the manual, "Message Formats".

use crate::error::WireError;

/// Describe of the unnamed portal, then Execute of it without a row limit.
const DESCRIBE_EXECUTE: &[u8] = b"D\0\0\0\x06P\0E\0\0\0\x09\0\0\0\0\0";
/// Sync.
pub(crate) const SYNC: &[u8] = b"S\0\0\0\x04";

/// Appends a message whose body `fill` writes.
#[inline]
pub(crate) fn message(
    out: &mut Vec<u8>,
    tag: u8,
    what: &'static str,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), WireError>,
) -> Result<(), WireError> {
    let start = out.len();
    out.extend_from_slice(&[tag, 0, 0, 0, 0]);
    let filled = fill(out).and_then(|()| {
        i32::try_from(out.len() - start - 1).map_err(|_| WireError::Encode {
            what,
            reason: "it is too long".into(),
        })
    });
    match filled {
        Ok(length) => {
            out[start + 1..start + 5].copy_from_slice(&length.to_be_bytes());
            Ok(())
        }
        Err(error) => {
            // An incomplete message would break the protocol.
            out.truncate(start);
            Err(error)
        }
    }
}

/// Appends a zero-terminated string.
#[inline]
pub(crate) fn text(out: &mut Vec<u8>, text: &[u8], what: &'static str) -> Result<(), WireError> {
    out.extend_from_slice(text);
    end_text(out, out.len() - text.len(), what)
}

/// Terminates the string that was written from `start` on.
#[inline]
pub(crate) fn end_text(
    out: &mut Vec<u8>,
    start: usize,
    what: &'static str,
) -> Result<(), WireError> {
    if out[start..].contains(&0) {
        return Err(WireError::Encode {
            what,
            reason: "it contains a zero byte".into(),
        });
    }
    out.push(0);
    Ok(())
}

/// Appends `Parse`; the server determines the parameter types.
pub(crate) fn parse(out: &mut Vec<u8>, name: &[u8], sql: &[u8]) -> Result<(), WireError> {
    message(out, b'P', "statement", |out| {
        text(out, name, "statement's name")?;
        text(out, sql, "statement")?;
        out.extend_from_slice(&[0, 0]);
        Ok(())
    })
}

/// Appends `Bind` of the unnamed portal, `Describe` and `Execute`; parameters and results are text.
/// `write` appends a parameter and returns whether it is not null.
#[inline]
pub(crate) fn bind_describe_execute(
    out: &mut Vec<u8>,
    name: &[u8],
    count: usize,
    mut write: impl FnMut(usize, &mut Vec<u8>) -> bool,
) -> Result<(), WireError> {
    message(out, b'B', "parameters", |out| {
        out.push(0);
        text(out, name, "statement's name")?;
        let count_word = u16::try_from(count).map_err(|_| WireError::Encode {
            what: "parameters",
            reason: format!("{count} parameters, but the protocol allows only 65535"),
        })?;
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&count_word.to_be_bytes());
        for index in 0..count {
            let start = out.len();
            out.extend_from_slice(&(-1_i32).to_be_bytes());
            if write(index, out) {
                let length = (out.len() - start - 4) as u32;
                out[start..start + 4].copy_from_slice(&length.to_be_bytes());
            }
        }
        // One format for all columns: text, as in libpq.
        out.extend_from_slice(&[0, 1, 0, 0]);
        Ok(())
    })?;
    out.extend_from_slice(DESCRIBE_EXECUTE);
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use postgres_protocol::IsNull;
    use postgres_protocol::message::frontend;

    use super::*;

    #[test]
    fn matches_postgres_protocol() {
        let mut expected = BytesMut::new();
        frontend::parse("name", "select $1, $2", [], &mut expected).unwrap();
        let values = [Some("one"), None, Some("")];
        let write = |value: Option<&str>, out: &mut BytesMut| {
            let Some(value) = value else {
                return Ok(IsNull::Yes);
            };
            out.extend_from_slice(value.as_bytes());
            Ok(IsNull::No)
        };
        assert!(frontend::bind("", "name", [], values, write, [0], &mut expected).is_ok());
        frontend::describe(b'P', "", &mut expected).unwrap();
        frontend::execute("", 0, &mut expected).unwrap();
        frontend::sync(&mut expected);

        let mut out = Vec::new();
        parse(&mut out, b"name", b"select $1, $2").unwrap();
        bind_describe_execute(&mut out, b"name", 3, |index, out| {
            out.extend_from_slice(values[index].unwrap_or("").as_bytes());
            values[index].is_some()
        })
        .unwrap();
        out.extend_from_slice(SYNC);
        assert_eq!(out, &expected[..]);
    }

    #[test]
    fn rejected_message_leaves_output_unchanged() {
        let mut out = vec![1, 2, 3];
        assert!(parse(&mut out, b"a", b"b\0c").is_err());
        assert!(bind_describe_execute(&mut out, b"", 65536, |_, _| false).is_err());
        assert_eq!(out, [1, 2, 3]);
    }
}
