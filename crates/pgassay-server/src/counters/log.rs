//! How much the server has written to its log: `log.bytes` and `log.lines`, and for a CSV or JSON
//! log `log.entries` and the number of missing ones, `log.entries_lost`.
//!
//! A message with several lines is one entry. Log files that are rotated and removed between two
//! readings are not counted.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::numbered::{EntryReader, Numbered};
use crate::log_files::LogFiles;

/// The logger may lag behind, so a reading waits until its files do not grow for this time, …
const QUIET: Duration = Duration::from_millis(3);
/// … or at most for this time.
const QUIET_TIMEOUT: Duration = Duration::from_millis(500);

/// Read size.
const BUFFER_BYTES: usize = 256 << 10;
/// How much is read between two readings of the counters: a study's SQL can make a file of any length. Of the
/// rest, only the bytes are counted.
const READ_BYTES_MAX: u64 = 1 << 30;

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
#[derive(Debug, Clone)]
pub(super) struct LogSizes {
    files: LogFiles,
    sizes: BTreeMap<PathBuf, u64>,
}

impl LogSizes {
    /// The sizes after all pending writes.
    pub fn settled(files: &LogFiles) -> Self {
        let until = Instant::now() + QUIET_TIMEOUT;
        let mut sizes = files.sizes();
        // Without the collector, the processes write to standard error themselves, so it is
        // complete.
        while files.has_collector() {
            std::thread::sleep(QUIET);
            let now = files.sizes();
            if now == sizes || Instant::now() > until {
                sizes = now;
                break;
            }
            sizes = now;
        }
        Self {
            files: files.clone(),
            sizes,
        }
    }

    /// The amount written since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Written {
        let mut written = Written::default();
        let mut numbered = Numbered::default();
        let mut left = READ_BYTES_MAX;
        for (path, &size) in &self.sizes {
            let before = earlier.sizes.get(path).copied().unwrap_or(0);
            // A file that shrank was truncated in between.
            let from = if before > size { 0 } else { before };
            written.bytes = written.bytes.saturating_add(size - from);
            let length = (size - from).min(left);
            if length == 0 {
                continue;
            }
            left -= length;
            // The lines of a file that has been removed by rotation are not counted.
            let lines = self.read(path, from, length, &mut numbered);
            written.lines += lines.unwrap_or(0);
        }
        if left == 0 {
            tracing::warn!(
                bytes = written.bytes,
                "log.lines is of the first {READ_BYTES_MAX} bytes"
            );
        }
        (written.entries, written.entries_lost) = numbered.entries_and_lost();
        written
    }

    /// Collects the entries of a part of a file and counts its lines, in pieces: lines may be long.
    fn read(
        &self,
        path: &Path,
        from: u64,
        length: u64,
        numbered: &mut Numbered,
    ) -> io::Result<u64> {
        let mut file = self.files.open(path)?;
        file.seek(SeekFrom::Start(from))?;
        let mut part = file.take(length);
        let mut reader = EntryReader::of(path);
        let mut piece = vec![0; BUFFER_BYTES];
        let mut lines = 0;
        loop {
            let read = match part.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => &piece[..read],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            lines += read.iter().map(|it| u64::from(*it == b'\n')).sum::<u64>();
            reader.read(read, numbered);
        }
        reader.end(numbered);
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_dir::OpenDir;
    use std::fs::{self, File};
    use std::sync::Arc;

    fn directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("data/log")).unwrap();
        directory
    }

    fn files(directory: &tempfile::TempDir) -> LogFiles {
        let base = Arc::new(OpenDir::open_trusted(directory.path()).unwrap());
        LogFiles::new(base, vec!["data/log".into()])
    }

    #[test]
    fn writes_to_new_and_truncated_files_are_counted() {
        let directory = directory();
        let at = |name: &str| directory.path().join("data/log").join(name);
        fs::write(at("a"), "one\n").unwrap();
        fs::write(at("b"), "a long line before\n").unwrap();
        let files = files(&directory);
        let before = LogSizes::settled(&files);
        fs::write(at("a"), "one\ntwo\nthree\n").unwrap();
        fs::write(at("b"), "new\n").unwrap();
        fs::write(at("c"), "x\ny").unwrap();
        let after = LogSizes::settled(&files);
        let written = after.since(&before);
        assert_eq!((written.bytes, written.lines), (10 + 4 + 3, 2 + 1 + 1));
        assert_eq!(after.since(&after), Written::default());
    }

    /// The most memory that this process has had, in bytes.
    fn peak_bytes() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|it| it.strip_prefix("VmHWM:"));
        let kb = line.unwrap().trim().trim_end_matches(" kB");
        kb.parse::<u64>().unwrap() << 10
    }

    /// Regression: a study's SQL made a log file of 3 GiB without a newline, and root's memory grew by as much.
    #[test]
    fn a_log_without_line_ends_does_not_fill_the_memory() {
        const BYTES: u64 = 300 << 20;
        for name in ["z.log", "z.csv", "z.json"] {
            let directory = directory();
            let files = files(&directory);
            let before = LogSizes::settled(&files);
            let path = directory.path().join("data/log").join(name);
            File::create(&path).unwrap().set_len(BYTES).unwrap();
            let peak = peak_bytes();
            let written = LogSizes::settled(&files).since(&before);
            assert_eq!((written.bytes, written.lines), (BYTES, 0), "{name}");
            assert!(peak_bytes() - peak < BYTES / 2, "{name}");
        }
    }

    #[test]
    fn of_an_endless_log_the_bytes_are_counted_and_not_read() {
        let directory = directory();
        let files = files(&directory);
        let before = LogSizes::settled(&files);
        let at = |name: &str| directory.path().join("data/log").join(name);
        fs::write(at("a.log"), "one\n").unwrap();
        File::create(at("b.log")).unwrap().set_len(1 << 42).unwrap();
        fs::write(at("c.log"), "not read\n").unwrap();
        let written = LogSizes::settled(&files).since(&before);
        let bytes = 4 + (1 << 42) + 9;
        assert_eq!((written.bytes, written.lines), (bytes, 1));
    }
}
