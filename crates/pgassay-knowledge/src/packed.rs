//! The format of the embedded tables of names: a zlib stream of grouped lines.
//!
//! Functions, format 1 (the letters number the major versions on line 2, from `a`):
//! ```text
//! pgassay functions 1
//! 9.6 10 11 … 19
//! @src/backend/parser/parser.c
//! raw_parser             (in all versions)
//! base_yylex dk          (from the 4th to the 11th)
//! ```
//! Wait events, format 1: `@18` starts a major version; the lines that follow are like
//! `01000001 LWLock ShmemIndex`.
//!
//! Invariant: paths and symbols are sorted, so the same rows always give the same bytes. The writer is in
//! `xtask`, which has a test of the committed files.

use thiserror::Error;

/// The first line of a table of functions.
pub const FUNCTIONS_HEADER: &str = "pgassay functions 1";
/// The first line of a table of wait events.
pub const WAIT_EVENTS_HEADER: &str = "pgassay wait events 1";

/// An error in a packed table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PackedError {
    /// Not a zlib stream, or a truncated one.
    #[error("cannot unpack the table: {0}")]
    NotZlib(String),
    /// Unpacked, but not UTF-8.
    #[error("the table is not UTF-8 text")]
    NotText,
    /// Another format or version.
    #[error("the table starts with `{found}` instead of `{expected}`")]
    Header {
        /// First line found.
        found: String,
        /// First line expected.
        expected: &'static str,
    },
    /// An invalid line.
    #[error("line {line} of the table is invalid: `{text}`")]
    Line {
        /// Line number from 1.
        line: usize,
        /// The line.
        text: String,
    },
}

/// A function in one source file, in a range of major versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FunctionRow<'a> {
    /// Name without compiler suffixes.
    pub symbol: &'a str,
    /// Source path, such as `src/backend/parser/parser.c`.
    pub path: &'a str,
    /// First major version, as an index into [`FunctionTable::majors`].
    pub first: u8,
    /// Last major version, as an index into [`FunctionTable::majors`].
    pub last: u8,
}

/// A table of functions, sorted by symbol, then by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionTable<'a> {
    /// Major versions in the table, oldest first: `9.6`, `10`, …
    pub majors: Vec<&'a str>,
    /// The rows.
    pub rows: Vec<FunctionRow<'a>>,
}

/// A wait event of one major version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitEventRow<'a> {
    /// Major version.
    pub major: &'a str,
    /// `wait_event_info`, as in the server's memory.
    pub info: u32,
    /// `wait_event_type` in `pg_stat_activity`.
    pub kind: &'a str,
    /// `wait_event` in `pg_stat_activity`.
    pub name: &'a str,
}

/// Unpacks the text of a table.
pub fn unpack(packed: &[u8]) -> Result<String, PackedError> {
    let bytes = miniz_oxide::inflate::decompress_to_vec_zlib(packed)
        .map_err(|error| PackedError::NotZlib(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| PackedError::NotText)
}

/// Parses the text of a table of functions.
pub fn functions(text: &str) -> Result<FunctionTable<'_>, PackedError> {
    let mut lines = body(text, FUNCTIONS_HEADER)?;
    let majors: Vec<&str> = lines
        .next()
        .map_or("", |(_, majors)| majors)
        .split(' ')
        .collect();
    let everywhere = (0, (majors.len() - 1) as u8);
    let (mut path, mut rows) = ("", Vec::new());
    for (line, content) in lines {
        if let Some(opened) = content.strip_prefix('@') {
            path = opened;
            continue;
        }
        let wrong = || PackedError::Line {
            line,
            text: content.to_owned(),
        };
        let (symbol, (first, last)) = match content.split_once(' ') {
            None => (content, everywhere),
            Some((symbol, letters)) => match *letters.as_bytes() {
                [first @ b'a'..=b'z', last @ b'a'..=b'z'] => (symbol, (first - b'a', last - b'a')),
                _ => return Err(wrong()),
            },
        };
        if path.is_empty() || symbol.is_empty() || first > last || usize::from(last) >= majors.len()
        {
            return Err(wrong());
        }
        rows.push(FunctionRow {
            symbol,
            path,
            first,
            last,
        });
    }
    rows.sort_unstable();
    Ok(FunctionTable { majors, rows })
}

/// Parses the text of a table of wait events, keeping its order.
pub fn wait_events(text: &str) -> Result<Vec<WaitEventRow<'_>>, PackedError> {
    let (mut major, mut rows) = ("", Vec::new());
    for (line, content) in body(text, WAIT_EVENTS_HEADER)? {
        if let Some(opened) = content.strip_prefix('@') {
            major = opened;
            continue;
        }
        // Names can contain a space: `speculative token`.
        let mut fields = content.splitn(3, ' ');
        let row = (|| {
            let info = u32::from_str_radix(fields.next()?, 16).ok()?;
            let row = WaitEventRow {
                major,
                info,
                kind: fields.next()?,
                name: fields.next()?,
            };
            (!major.is_empty() && !row.name.is_empty()).then_some(row)
        })();
        rows.push(row.ok_or_else(|| PackedError::Line {
            line,
            text: content.to_owned(),
        })?);
    }
    Ok(rows)
}

/// The lines after the header, with their line numbers (from 1).
fn body<'a>(
    text: &'a str,
    expected: &'static str,
) -> Result<impl Iterator<Item = (usize, &'a str)>, PackedError> {
    let mut lines = (1..).zip(text.lines());
    match lines.next() {
        Some((_, header)) if header == expected => Ok(lines),
        other => {
            let found = other.map_or("", |(_, header)| header).to_owned();
            Err(PackedError::Header { found, expected })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_come_sorted_with_their_majors() {
        let text = "pgassay functions 1\n9.6 10 11\n@src/b.c\nzeta\nalpha bc\n@src/a.c\nalpha aa\n";
        let table = functions(text).unwrap();
        assert_eq!(table.majors, ["9.6", "10", "11"]);
        let rows: Vec<_> = table
            .rows
            .iter()
            .map(|r| (r.symbol, r.path, r.first, r.last))
            .collect();
        assert_eq!(
            rows,
            [
                ("alpha", "src/a.c", 0, 0),
                ("alpha", "src/b.c", 1, 2),
                ("zeta", "src/b.c", 0, 2)
            ]
        );
    }

    #[test]
    fn invalid_tables_are_rejected() {
        for bad in [
            "@src/a.c\nx cb",
            "@src/a.c\nx ad",
            "@src/a.c\nx 12",
            "orphan",
        ] {
            let text = format!("pgassay functions 1\n9.6 10 11\n{bad}\n");
            assert!(
                matches!(functions(&text), Err(PackedError::Line { .. })),
                "{bad}"
            );
        }
        assert!(matches!(functions("else"), Err(PackedError::Header { .. })));
        assert!(matches!(unpack(b"nonsense"), Err(PackedError::NotZlib(_))));
        let text = "pgassay wait events 1\n@18\n0100000x LWLock ShmemIndex\n";
        assert!(matches!(
            wait_events(text),
            Err(PackedError::Line { line: 3, .. })
        ));
    }

    #[test]
    fn wait_events_keep_their_numbers() {
        let text = "pgassay wait events 1\n@18\n01000001 LWLock ShmemIndex\n";
        let expected = WaitEventRow {
            major: "18",
            info: 0x0100_0001,
            kind: "LWLock",
            name: "ShmemIndex",
        };
        assert_eq!(wait_events(text).unwrap(), [expected]);
    }
}
