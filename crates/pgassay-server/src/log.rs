//! A server's log: its standard error, and the logging collector's files if a study enables it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

/// The part of a log's end that is read.
const TAIL_BYTES: u64 = 64 << 10;

/// The file that receives a server's standard error.
#[derive(Debug)]
pub(crate) struct ServerLog {
    path: PathBuf,
    file: File,
    /// Offset of the first line of the last server start.
    start: AtomicU64,
}

impl ServerLog {
    /// Creates the file, before the directory is handed over to the server's user, and keeps it
    /// open, so that nobody can replace it with another file.
    pub(crate) fn create(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let start = AtomicU64::new(0);
        Ok(Self { path, file, start })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The last lines, oldest first.
    pub(crate) fn tail(&self, lines_max: usize) -> String {
        readable(tail(&self.file, 0, lines_max))
    }

    /// Marks the beginning of a server start.
    pub(crate) fn mark_start(&self) -> io::Result<()> {
        self.start.store(self.file.metadata()?.len(), Relaxed);
        Ok(())
    }

    /// Truncates the file. The server appends, so it continues at the beginning.
    pub(crate) fn empty(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.start.store(0, Relaxed);
        Ok(())
    }

    /// As [`Self::tail`], but only since the last server start.
    pub(crate) fn tail_since_start(&self, lines_max: usize) -> String {
        readable(tail(&self.file, self.start.load(Relaxed), lines_max))
    }
}

/// The last lines of the newest file in these directories, if there is any. With the logging
/// collector, standard error only says where the log continues.
pub(crate) fn collected_tail(directories: &[PathBuf], lines_max: usize) -> Option<String> {
    let modified = |path: &PathBuf| {
        fs::symlink_metadata(path)
            .and_then(|m| m.modified())
            .unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let newest = directories
        .iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .max_by_key(modified)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(newest)
        .ok()?;
    tail(&file, 0, lines_max).ok()
}

fn readable(lines: io::Result<String>) -> String {
    lines.unwrap_or_else(|error| format!("(cannot read the log: {error})"))
}

fn tail(file: &File, from: u64, lines_max: usize) -> io::Result<String> {
    let end = file.metadata()?.len();
    let start = end.saturating_sub(TAIL_BYTES).max(from);
    let mut bytes = vec![0; usize::try_from(end - start).unwrap_or_default()];
    file.read_exact_at(&mut bytes, start)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines: Vec<&str> = text.lines().collect();
    if start > from && lines.len() > 1 {
        // The first line may be incomplete.
        lines.remove(0);
    }
    Ok(lines[lines.len().saturating_sub(lines_max)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_tail_consists_of_the_last_complete_lines() {
        let directory = tempfile::tempdir().unwrap();
        let log = ServerLog::create(directory.path().join("log")).unwrap();
        assert_eq!(log.tail(3), "");
        for line in 0..20_000 {
            writeln!(log.file(), "line {line}").unwrap();
        }
        assert_eq!(log.tail(2), "line 19998\nline 19999");
        assert!(
            log.tail(usize::MAX)
                .lines()
                .all(|line| line.starts_with("line 1"))
        );
        log.mark_start().unwrap();
        assert_eq!(log.tail_since_start(9), "");
        writeln!(log.file(), "line after").unwrap();
        assert_eq!(log.tail_since_start(9), "line after");
        log.empty().unwrap();
        writeln!(log.file(), "first").unwrap();
        assert_eq!(
            (log.tail(9), log.tail_since_start(9)),
            ("first".to_owned(), "first".to_owned())
        );
    }

    #[test]
    fn the_collectors_newest_file_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("old.log"), "old\n").unwrap();
        fs::write(at("new.log"), "new\n").unwrap();
        let past = SystemTime::now() - std::time::Duration::from_mins(1);
        File::open(at("old.log"))
            .unwrap()
            .set_modified(past)
            .unwrap();
        let directories = [at("missing"), directory.path().to_owned()];
        assert_eq!(collected_tail(&directories, 5).as_deref(), Some("new"));
        assert_eq!(collected_tail(&directories[..1], 5), None);
    }
}
