//! Finds lost entries of a CSV or JSON log by PostgreSQL's entry numbers.
//!
//! Each process numbers its entries from 1 (`session_line_num`, `line_num`: `csvlog.c`, `jsonlog.c`,
//! until 14 `elog.c`) before it sends them to the collector. A missing number between a session's
//! first and last one is a lost entry. Entries lost before the first or after the last one leave no
//! gap and are not detected.

use std::collections::HashMap;

/// Columns of a CSV log, from 0; the same from 9.6 to 18.
const SESSION: usize = 5;
const NUMBER: usize = 6;

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
            let span = it.last - it.first + 1;
            (entries + it.count, lost + span.saturating_sub(it.count))
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
        let is_session =
            |it: &&str| it.contains('.') && it.chars().all(|c| c == '.' || c.is_ascii_hexdigit());
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
                _ if self.column == SESSION => self.session.push(*byte),
                _ if self.column == NUMBER => self.number.push(*byte),
                _ => {}
            }
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

    #[test]
    fn gaps_in_a_sessions_numbers_are_lost_entries() {
        let mut numbered = Numbered::default();
        let csv: &[u8] = b"2026-01-01 00:00:00.000 UTC,\"a,\"\"b\",\"d\",7,\"[local]\",69.7,4,\"SELECT\",,,,,\"x,\ny\"\n\
              2026-01-01 00:00:00.000 UTC,\"a\",\"d\",8,\"[local]\",69.8,1,\"SELECT\"\n\
              2026-01-01 00:00:00.000 UTC,\"a\",\"d\",7,\"[local]\",69.7,7,\"SELECT\"\n\
              2026-01-01 00:00:00.000 UTC,\"a\",\"d\",7,\"[local]\",69.7,5,\"SELECT\"\n\
              2026-01-01 00:00:00.000 UTC,\"a\",\"d\",7,\"[loc";
        // Read in pieces that split entries anywhere.
        let mut entry = CsvEntry::default();
        for piece in csv.chunks(7) {
            entry.read(piece, &mut numbered);
        }
        assert_eq!(numbered.entries_and_lost(), (4, 1));
        let mut numbered = Numbered::default();
        for line in [
            &br#"{"timestamp":"t","user":"\"line_num\":9,","session_id":"69.7","line_num":1,"message":"x"}"#[..],
            br#"{"timestamp":"t","session_id":"69.7","line_num":4,"message":"x"}"#,
            br#"{"timestamp":"t","session_"#,
        ] {
            numbered.read_json(line);
        }
        assert_eq!(numbered.entries_and_lost(), (2, 2));
        assert_eq!(Numbered::default().entries_and_lost(), (0, 0));
    }
}
