//! How much the server has written to its log: `log.bytes` and `log.lines`.
//!
//! A message of several lines counts as several; what a rotated file held before it was removed is
//! lost to us.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The logger may lag behind; it is waited for until its files no longer grow, …
const QUIET: Duration = Duration::from_millis(3);
/// … or for this long.
const PATIENCE: Duration = Duration::from_millis(500);
/// As much is read at a time.
const CHUNK_BYTES: usize = 256 << 10;

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

    /// Bytes and lines that were written since.
    pub fn since(&self, earlier: &Self) -> (u64, u64) {
        let (mut bytes, mut lines) = (0, 0);
        for (path, &size) in &self.sizes {
            let before = earlier.sizes.get(path).copied().unwrap_or(0);
            // A file that shrank was begun anew.
            let from = if before > size { 0 } else { before };
            bytes += size - from;
            if size > from {
                lines += lines_between(path, from, size).unwrap_or(0);
            }
        }
        (bytes, lines)
    }
}

/// Ends of lines within a part of a file. A link is not followed: the server's user could lead us
/// anywhere with one.
fn lines_between(path: &PathBuf, from: u64, to: u64) -> io::Result<u64> {
    let mut file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut rest = file.take(to - from);
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut lines = 0;
    loop {
        let count = rest.read(&mut buffer)?;
        if count == 0 {
            return Ok(lines);
        }
        let parts = buffer[..count].split(|byte| *byte == b'\n');
        lines += parts.count() as u64 - 1;
    }
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
        assert_eq!(after.since(&before), (10 + 4 + 3, 2 + 1 + 1));
        assert_eq!(after.since(&after), (0, 0));
    }
}
