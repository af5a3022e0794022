//! How much the server has written to its log: `log.bytes` and `log.lines`, and of a CSV or JSON log
//! `log.entries` and how many of them are missing, `log.entries_lost`.
//!
//! A message of several lines is several lines and one entry; what a rotated file held before it was removed is
//! lost to us.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::numbered::{CsvEntry, Numbered};

/// The logger may lag behind; it is waited for until its files no longer grow, …
const QUIET: Duration = Duration::from_millis(3);
/// … or for this long.
const PATIENCE: Duration = Duration::from_millis(500);

/// Read of a file at a time.
const BUFFER_BYTES: usize = 256 << 10;

/// What was written between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub bytes: u64,
    pub lines: u64,
    /// Entries with numbers; none where the log's form has none.
    pub entries: u64,
    /// Entries whose numbers are missing between others of their session.
    pub entries_lost: u64,
}

/// The log's files and their sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LogSizes {
    sizes: BTreeMap<PathBuf, u64>,
}

impl LogSizes {
    fn of(files: &[PathBuf]) -> Self {
        let size = |path: &PathBuf| Some((path.clone(), fs::symlink_metadata(path).ok()?.len()));
        Self {
            sizes: files.iter().filter_map(size).collect(),
        }
    }

    /// The sizes once nothing is written any more.
    pub fn settled(files: &[PathBuf]) -> Self {
        let until = Instant::now() + PATIENCE;
        let mut last = Self::of(files);
        // The standard error alone is written by those who log, and they have ended.
        if files.len() < 2 {
            return last;
        }
        loop {
            std::thread::sleep(QUIET);
            let now = Self::of(files);
            if now == last || Instant::now() > until {
                return now;
            }
            last = now;
        }
    }

    /// What was written since.
    pub fn since(&self, earlier: &Self) -> Written {
        let mut written = Written::default();
        let mut numbered = Numbered::default();
        for (path, &size) in &self.sizes {
            let before = earlier.sizes.get(path).copied().unwrap_or(0);
            // A file that shrank was begun anew.
            let from = if before > size { 0 } else { before };
            written.bytes += size - from;
            if size == from {
                continue;
            }
            // One that rotation has removed by now has no lines to tell.
            let lines = part(path, from, size).and_then(|part| read(path, part, &mut numbered));
            written.lines += lines.unwrap_or(0);
        }
        (written.entries, written.entries_lost) = numbered.entries_and_lost();
        written
    }
}

/// A part of a file. A link is not followed: the server's user could lead us anywhere with one.
fn part(path: &Path, from: u64, to: u64) -> io::Result<impl BufRead> {
    let mut file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    file.seek(SeekFrom::Start(from))?;
    Ok(BufReader::with_capacity(BUFFER_BYTES, file.take(to - from)))
}

/// Takes note of the entries, and counts the lines. A trial's log may be large: one line of it is held
/// at a time.
fn read(path: &Path, mut part: impl BufRead, numbered: &mut Numbered) -> io::Result<u64> {
    let form = path.extension().and_then(OsStr::to_str);
    let mut entry = CsvEntry::default();
    let mut line = Vec::new();
    let mut lines = 0;
    while part.read_until(b'\n', &mut line)? > 0 {
        lines += u64::from(line.ends_with(b"\n"));
        match form {
            Some("csv") => entry.read(&line, numbered),
            Some("json") => numbered.read_json(&line),
            _ => {}
        }
        line.clear();
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_in_between_is_counted_in_new_and_truncated_files_too() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("a"), "one\n").unwrap();
        fs::write(at("b"), "a long line before\n").unwrap();
        let files = [at("a"), at("b"), at("c")];
        let before = LogSizes::settled(&files);
        fs::write(at("a"), "one\ntwo\nthree\n").unwrap();
        fs::write(at("b"), "new\n").unwrap();
        fs::write(at("c"), "x\ny").unwrap();
        let after = LogSizes::settled(&files);
        let written = after.since(&before);
        assert_eq!((written.bytes, written.lines), (10 + 4 + 3, 2 + 1 + 1));
        assert_eq!(after.since(&after), Written::default());
    }
}
