//! Finds lost entries of a CSV or JSON log by PostgreSQL's entry numbers.
//!
//! Each process numbers its entries from 1 (`session_line_num`, `line_num`: `csvlog.c`, `jsonlog.c`,
//! until 14 `elog.c`) before it sends them to the collector. A missing number between a session's
//! first and last one is a lost entry. Entries lost before the first or after the last one leave no
//! gap and are not detected.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;

/// Columns of a CSV log, from 0; the same from 9.6 to 18.
const SESSION: usize = 5;
const NUMBER: usize = 6;

/// The longest session or number; they have at most 33 and 20 bytes.
const FIELD_BYTES_MAX: usize = 64;
/// The part of a JSON entry that has its session and number, which come before all that is long.
const JSON_BYTES_MAX: usize = 16 << 10;
/// The sessions of which entries are counted.
const SESSIONS_MAX: usize = 250_000;

/// The numbers of one session.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    first: u64,
    last: u64,
    count: u64,
}

/// Entries by session.
#[derive(Debug, Default)]
pub(super) struct Numbered {
    sessions: HashMap<String, Numbers>,
}

impl Numbered {
    /// The number of entries present, and of those missing in between.
    pub fn entries_and_lost(&self) -> (u64, u64) {
        let numbers = self.sessions.values();
        numbers.fold((0, 0), |(entries, lost), it| {
            // The server's user can write any numbers to the log.
            let span = (it.last - it.first).saturating_add(1);
            let missing = span.saturating_sub(it.count);
            (entries + it.count, lost.saturating_add(missing))
        })
    }

    /// Adds a line of a JSON log, which is one entry.
    pub fn read_json(&mut self, line: &[u8]) {
        // Quotes within values are escaped, so these texts are keys wherever they occur.
        let session = after(line, br#""session_id":""#, b'"');
        let number = after(line, br#""line_num":"#, b',');
        if let (Some(session), Some(number)) = (session, number) {
            self.add(session, number);
        }
    }

    /// Adds an entry; ignores a truncated one.
    fn add(&mut self, session: &[u8], number: &[u8]) {
        let text = |bytes| std::str::from_utf8(bytes).ok();
        let is_session = |it: &&str| {
            it.contains('.')
                && it.len() <= FIELD_BYTES_MAX
                && it.chars().all(|c| c == '.' || c.is_ascii_hexdigit())
        };
        let session = text(session).filter(is_session);
        let number = text(number).and_then(|it| it.parse::<u64>().ok());
        let (Some(session), Some(number)) = (session, number) else {
            return;
        };
        if let Some(known) = self.sessions.get_mut(session) {
            known.first = known.first.min(number);
            known.last = known.last.max(number);
            known.count += 1;
            return;
        }
        if self.sessions.len() >= SESSIONS_MAX {
            return;
        }
        let numbers = Numbers {
            first: number,
            last: number,
            count: 1,
        };
        self.sessions.insert(session.to_owned(), numbers);
    }
}

/// The parser's state within an entry of a CSV log.
#[derive(Debug, Default)]
pub(super) struct CsvEntry {
    is_quoted: bool,
    column: usize,
    session: Vec<u8>,
    number: Vec<u8>,
}

impl CsvEntry {
    /// Parses the next part of a log and adds complete entries to `numbered`. Quotes, newlines
    /// within them and doubled quotes are as in `COPY … CSV`.
    pub fn read(&mut self, text: &[u8], numbered: &mut Numbered) {
        for byte in text {
            match byte {
                b'"' => self.is_quoted = !self.is_quoted,
                b',' if !self.is_quoted => self.column += 1,
                b'\n' if !self.is_quoted => {
                    numbered.add(&self.session, &self.number);
                    self.session.clear();
                    self.number.clear();
                    self.column = 0;
                }
                _ if self.column == SESSION => push(&mut self.session, *byte),
                _ if self.column == NUMBER => push(&mut self.number, *byte),
                _ => {}
            }
        }
    }
}

/// Adds a byte to a column. One that is too long stays so, and is not a session or a number.
fn push(column: &mut Vec<u8>, byte: u8) {
    if column.len() <= FIELD_BYTES_MAX {
        column.push(byte);
    }
}

/// Reads a log, by its format, in pieces.
#[derive(Debug)]
pub(super) enum EntryReader {
    Csv(CsvEntry),
    /// The beginning of a line.
    Json(Vec<u8>),
    /// Its entries have no numbers.
    Text,
}

impl EntryReader {
    /// The reader of a file, by its name.
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(OsStr::to_str) {
            Some("csv") => Self::Csv(CsvEntry::default()),
            Some("json") => Self::Json(Vec::new()),
            _ => Self::Text,
        }
    }

    /// Adds the entries of the next piece.
    pub fn read(&mut self, piece: &[u8], numbered: &mut Numbered) {
        match self {
            Self::Csv(entry) => entry.read(piece, numbered),
            Self::Json(line) => {
                for part in piece.split_inclusive(|byte| *byte == b'\n') {
                    let room = JSON_BYTES_MAX.saturating_sub(line.len());
                    line.extend_from_slice(&part[..part.len().min(room)]);
                    if part.ends_with(b"\n") {
                        numbered.read_json(line);
                        line.clear();
                    }
                }
            }
            Self::Text => {}
        }
    }

    /// Adds the last entry if its line has no end.
    pub fn end(&mut self, numbered: &mut Numbered) {
        if let Self::Json(line) = self {
            numbered.read_json(line);
        }
    }
}

/// The text between a key and the end of its value.
fn after<'a>(line: &'a [u8], key: &[u8], end: u8) -> Option<&'a [u8]> {
    let at = line.windows(key.len()).position(|it| it == key)?;
    line[at + key.len()..].split(|byte| *byte == end).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In pieces that split entries anywhere.
    fn read_in_pieces(name: &str, text: &[u8], numbered: &mut Numbered) {
        let mut reader = EntryReader::of(Path::new(name));
        for piece in text.chunks(7) {
            reader.read(piece, numbered);
        }
        reader.end(numbered);
    }

    /// The server's user can write to the log.
    #[test]
    fn forged_numbers_of_entries_neither_overflow_nor_fill_the_memory() {
        let mut numbered = Numbered::default();
        let entry = |session: &str, number: u64| format!("t,u,d,7,h,{session},{number},x\n");
        let long = "1".repeat(FIELD_BYTES_MAX) + ".7";
        let csv = [
            entry("69.7", 0),
            entry("69.7", u64::MAX),
            entry("69.8", 0),
            entry("69.8", u64::MAX),
            entry(&long, 1),
        ];
        read_in_pieces("a.csv", csv.concat().as_bytes(), &mut numbered);
        assert_eq!(numbered.entries_and_lost(), (4, u64::MAX));
        for session in 0..=SESSIONS_MAX as u64 {
            numbered.add(format!("{session:x}.1").as_bytes(), b"1");
        }
        assert_eq!(numbered.sessions.len(), SESSIONS_MAX);
    }

    #[test]
    fn gaps_in_a_sessions_numbers_are_lost_entries() {
        let mut numbered = Numbered::default();
        let csv: &[u8] = b"2026-01-01 00:00:00.000 UTC,\"a,\"\"b\",\"d\",7,\"[local]\",69.7,4,\"SELECT\",,,,,\"x,\ny\"\n\
              2026-01-01 00:00:00.000 UTC,\"a\",\"d\",8,\"[local]\",69.8,1,\"SELECT\"\n\
              2026-01-01 00:00:00.000 UTC,\"a\",\"d\",7,\"[local]\",69.7,7,\"SELECT\"\n\
              2026-01-01 00:00:00.000 UTC,\"a\",\"d\",7,\"[local]\",69.7,5,\"SELECT\"\n\
              2026-01-01 00:00:00.000 UTC,\"a\",\"d\",7,\"[loc";
        read_in_pieces("a.csv", csv, &mut numbered);
        assert_eq!(numbered.entries_and_lost(), (4, 1));
        let mut numbered = Numbered::default();
        let long = "x".repeat(2 * JSON_BYTES_MAX);
        let json = [
            r#"{"timestamp":"t","user":"\"line_num\":9,","session_id":"69.7","line_num":1,"message":"x"}"#,
            &format!(r#"{{"timestamp":"t","session_id":"69.7","line_num":4,"message":"{long}"}}"#),
            r#"{"timestamp":"t","session_"#,
        ];
        read_in_pieces("a.json", json.join("\n").as_bytes(), &mut numbered);
        assert_eq!(numbered.entries_and_lost(), (2, 2));
        assert_eq!(Numbered::default().entries_and_lost(), (0, 0));
    }
}
