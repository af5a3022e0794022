//! The form in which the tables of names are kept: a zlib stream of grouped lines.
//!
//! Functions, format 1 (`x` stands for a name, letters count the majors of line 2 from `a`):
//! ```text
//! pgassay functions 1
//! 9.6 10 11 … 19
//! @src/backend/parser/parser.c
//! raw_parser             (in all majors)
//! base_yylex dk          (from the 4th to the 11th)
//! ```
//! Wait events, format 1: `@18` opens a major, then `01000001 LWLock ShmemIndex` a line.
//!
//! Invariant: paths and symbols are sorted, so the same rows always give the same bytes; the
//! writer is in `xtask`, whose test holds the committed files to that.

use thiserror::Error;

/// The first line of a table of functions.
pub const FUNCTIONS_HEADER: &str = "pgassay functions 1";
/// The first line of a table of wait events.
pub const WAIT_EVENTS_HEADER: &str = "pgassay wait events 1";

/// What is wrong with a packed table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PackedError {
    /// Not a zlib stream, or one that was cut off.
    #[error("the table cannot be unpacked: {0}")]
    NotZlib(String),
    /// Unpacked, but not text.
    #[error("the table is not UTF-8 text")]
    NotText,
    /// Another format or version.
    #[error("the table begins with `{found}` instead of `{expected}`")]
    Header {
        /// First line found.
        found: String,
        /// First line expected.
        expected: &'static str,
    },
    /// A line that the format does not know.
    #[error("line {line} of the table: `{text}`")]
    Line {
        /// Line number from 1.
        line: usize,
        /// The line.
        text: String,
    },
}

/// A function in one source file, in a run of majors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FunctionRow<'a> {
    /// Name without compiler suffixes.
    pub symbol: &'a str,
    /// Source path, as `src/backend/parser/parser.c`.
    pub path: &'a str,
    /// First major, as an index into [`FunctionTable::majors`].
    pub first: u8,
    /// Last major, likewise.
    pub last: u8,
}

/// A table of functions, sorted by symbol, then path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionTable<'a> {
    /// Majors that the table knows, oldest first: `9.6`, `10`, …
    pub majors: Vec<&'a str>,
    /// The rows.
    pub rows: Vec<FunctionRow<'a>>,
}

/// A wait event of one major.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitEventRow<'a> {
    /// Major version.
    pub major: &'a str,
    /// `wait_event_info` as a server's memory holds it.
    pub info: u32,
    /// `wait_event_type` as `pg_stat_activity` shows it.
    pub kind: &'a str,
    /// `wait_event` as `pg_stat_activity` shows it.
    pub name: &'a str,
}

/// The text inside a packed table.
pub fn unpack(packed: &[u8]) -> Result<String, PackedError> {
    let bytes = miniz_oxide::inflate::decompress_to_vec_zlib(packed)
        .map_err(|error| PackedError::NotZlib(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| PackedError::NotText)
}

/// Reads the text of a table of functions.
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

/// Reads the text of a table of wait events, in the order of the text.
pub fn wait_events(text: &str) -> Result<Vec<WaitEventRow<'_>>, PackedError> {
    let (mut major, mut rows) = ("", Vec::new());
    for (line, content) in body(text, WAIT_EVENTS_HEADER)? {
        if let Some(opened) = content.strip_prefix('@') {
            major = opened;
            continue;
        }
        // Names may hold a space: `speculative token`.
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

/// The lines behind the header with their numbers from 1.
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
    fn what_the_format_does_not_know_is_refused() {
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
