//! A server's log: its standard error, and the logging collector's files if a study enables it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::open_dir::OpenDir;

/// The file that receives standard error, in the server's directory.
pub(crate) const LOG_FILE: &str = "log";
/// The part of a log's end that is read.
const TAIL_BYTES: u64 = 64 << 10;

/// The last message about a server process that a signal ended, such as
/// `client backend (PID 9067) was terminated by signal 6: Aborted`.
pub fn crash_in(log: &str) -> Option<&str> {
    let messages = log
        .lines()
        .rev()
        .filter_map(|line| line.split_once("LOG:  "));
    let mut messages = messages.map(|(_, message)| message);
    messages.find(|message| message.contains(") was terminated by signal "))
}

/// The file that receives a server's standard error.
#[derive(Debug)]
pub(crate) struct ServerLog {
    path: PathBuf,
    file: File,
    /// Offset of the first line of the last server start.
    start: AtomicU64,
}

impl ServerLog {
    /// Creates the file in the directory of this path, before that is handed over to the server's user, and
    /// keeps it open, so that no one can replace it with another file.
    pub(crate) fn create(directory: &OpenDir, path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.join(LOG_FILE),
            file: directory.create_file(LOG_FILE)?,
            start: AtomicU64::new(0),
        })
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
/// collector, standard error only says where the log continues. The paths are relative to the
/// server's directory `base`: the server's user could redirect others to files of root.
pub(crate) fn collected_tail(
    base: &OpenDir,
    directories: &[PathBuf],
    lines_max: usize,
) -> Option<String> {
    let mut newest: Option<(i64, File)> = None;
    for directory in directories {
        let Ok(directory) = base.open_below(directory) else {
            continue;
        };
        let listed = directory.each_name(|name| {
            let Ok(found) = directory.info_of(name) else {
                return true;
            };
            let is_newer = newest
                .as_ref()
                .is_none_or(|(modified_ns, _)| found.modified_ns > *modified_ns);
            if found.is_file
                && is_newer
                && let Ok(file) = directory.open_file(name)
            {
                newest = Some((found.modified_ns, file));
            }
            true
        });
        // What was read before an error is still useful in a message.
        drop(listed);
    }
    let (_, file) = newest?;
    tail(&file, 0, lines_max).ok()
}

fn readable(lines: io::Result<String>) -> String {
    lines.unwrap_or_else(|error| format!("(cannot read the log: {error})"))
}

fn tail(file: &File, from: u64, lines_max: usize) -> io::Result<String> {
    let end = file.metadata()?.len();
    let start = end.saturating_sub(TAIL_BYTES).max(from);
    // The server can truncate its log at any time.
    let length = end.saturating_sub(start);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
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
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    #[test]
    fn the_end_of_a_process_by_a_signal_is_found_in_the_log() {
        let log = "2026-11-28 14:51:54.142 UTC [9052] LOG:  client backend (PID 9067) was terminated by signal 6: Aborted\n\
            2026-11-28 14:51:54.142 UTC [9052] DETAIL:  Failed process was running: select 1\n\
            2026-11-28 14:51:54.142 UTC [9052] LOG:  terminating any other active server processes";
        assert_eq!(
            crash_in(log),
            Some("client backend (PID 9067) was terminated by signal 6: Aborted")
        );
        assert_eq!(
            crash_in("[1] LOG:  database system is ready to accept connections"),
            None
        );
    }

    #[test]
    fn the_tail_consists_of_the_last_complete_lines() {
        let directory = tempfile::tempdir().unwrap();
        let base = OpenDir::open_trusted(directory.path()).unwrap();
        let log = ServerLog::create(&base, directory.path()).unwrap();
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
        log.file().set_len(0).unwrap();
        assert_eq!(log.tail_since_start(9), "", "truncated by the server");
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
        fs::create_dir(at("log")).unwrap();
        fs::write(at("log/old.log"), "old\n").unwrap();
        fs::write(at("log/new.log"), "new\n").unwrap();
        // Neither a link nor a FIFO is read, and a directory that is a link is not entered.
        symlink("/etc/passwd", at("log/link")).unwrap();
        symlink("/etc", at("linked")).unwrap();
        let past = SystemTime::now() - std::time::Duration::from_mins(1);
        File::open(at("log/old.log"))
            .unwrap()
            .set_modified(past)
            .unwrap();
        let base = OpenDir::open_trusted(directory.path()).unwrap();
        let directories = ["missing", "linked", "log"].map(PathBuf::from);
        let found = collected_tail(&base, &directories, 5);
        assert_eq!(found.as_deref(), Some("new"));
        assert_eq!(collected_tail(&base, &directories[..2], 5), None);
    }
}
