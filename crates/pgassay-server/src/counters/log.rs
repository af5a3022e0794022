//! How much the server has written to its log: `log.bytes` and `log.lines`, and for a CSV or JSON
//! log `log.entries` and the number of missing ones, `log.entries_lost`.
//!
//! A message with several lines is one entry. Log files that are rotated and removed between two
//! readings are not counted.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::numbered::{CsvEntry, Numbered};

/// The logger may lag behind, so a reading waits until its files do not grow for this time, …
const QUIET: Duration = Duration::from_millis(3);
/// … or at most for this time.
const QUIET_TIMEOUT: Duration = Duration::from_millis(500);

/// Read size.
const BUFFER_BYTES: usize = 256 << 10;

/// The amount written between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub bytes: u64,
    pub lines: u64,
    /// Numbered entries; 0 if the log format has no numbers.
    pub entries: u64,
    /// Entries whose numbers are missing within their session.
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

    /// The sizes after all pending writes.
    pub fn settled(files: &[PathBuf]) -> Self {
        let until = Instant::now() + QUIET_TIMEOUT;
        let mut last = Self::of(files);
        // Without the collector, the processes write to standard error themselves, so it is
        // complete.
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

    /// The amount written since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Written {
        let mut written = Written::default();
        let mut numbered = Numbered::default();
        for (path, &size) in &self.sizes {
            let before = earlier.sizes.get(path).copied().unwrap_or(0);
            // A file that shrank was truncated in between.
            let from = if before > size { 0 } else { before };
            written.bytes += size - from;
            if size == from {
                continue;
            }
            // The lines of a file that has been removed by rotation are not counted.
            let lines = part(path, from, size).and_then(|part| read(path, part, &mut numbered));
            written.lines += lines.unwrap_or(0);
        }
        (written.entries, written.entries_lost) = numbered.entries_and_lost();
        written
    }
}

/// A part of a file. Does not follow symbolic links, which the server's user could point anywhere.
fn part(path: &Path, from: u64, to: u64) -> io::Result<impl BufRead> {
    let mut file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    file.seek(SeekFrom::Start(from))?;
    Ok(BufReader::with_capacity(BUFFER_BYTES, file.take(to - from)))
}

/// Collects the entries and counts the lines. Keeps one line at a time in memory, since the log
/// may be large.
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
    fn writes_to_new_and_truncated_files_are_counted() {
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
