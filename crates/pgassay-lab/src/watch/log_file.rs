//! The file that a server on this machine writes its log to: the logger's, or the postmaster's standard
//! error. Only what is written from the start of the watch on is read.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use pgassay_profile::{LiveServer, Role};

use super::held_file::{HeldFile, ServerUser};
use super::log_message::LogFormat;

/// Of what was written since the last reading, the end up to this size is read.
const READ_MAX: u64 = 1 << 20;
/// Of the files in the log's directory, so many names are kept.
const KNOWN_MAX: usize = 10_000;
/// Of a logger's descriptors, so many are looked at. A logger has about ten.
const DESCRIPTORS_MAX: usize = 256;
/// Longer lines are cut.
const LINE_MAX: usize = 8192;

/// A log, whichever file it is in.
pub(super) struct LogFile {
    live: LiveServer,
    logger_pid: Option<u32>,
    /// Files that existed when the watch began, or that were read since; of a directory with more than [`KNOWN_MAX`],
    /// only some.
    known: BTreeSet<PathBuf>,
    began: SystemTime,
    pub format: LogFormat,
    end: FileEnd,
}

impl LogFile {
    /// Finds the log in the first of these formats that a file has, and its present end; `None` if there is no such
    /// file or it cannot be read.
    pub fn open(live: &LiveServer, formats: &[LogFormat]) -> Option<Self> {
        let logger_pid = logger_of(live);
        let found = match logger_pid {
            Some(pid) => logger_file(pid, live.postmaster_pid, formats)?,
            None if formats.is_empty() => return None,
            None => FoundFile::of_postmaster(live.postmaster_pid),
        };
        let file = found.file.open(&ServerUser::of(live.postmaster_pid)?)?;
        let at = file.metadata().ok()?.len();
        Some(Self {
            live: live.clone(),
            logger_pid,
            began: SystemTime::now(),
            known: logger_pid.map_or_else(BTreeSet::new, |pid| found.siblings(pid)),
            format: found.format,
            end: FileEnd::new(file, at),
        })
    }

    /// Lines that were completed since the last time. After a rotation, also those of the new file.
    pub fn lines(&mut self) -> Vec<String> {
        // Before the old file is read to its end: nothing is written to it afterward.
        let next = self.next();
        let mut lines = self.end.lines();
        if let Some(next) = next {
            self.end = next;
            lines.extend(self.end.lines());
        }
        lines
    }

    /// The file that the logger has opened instead.
    fn next(&mut self) -> Option<FileEnd> {
        let find = |pid| logger_file(pid, self.live.postmaster_pid, &[self.format]);
        let found = find(self.logger_pid?).or_else(|| {
            // It may have crashed, and started anew.
            self.logger_pid = logger_of(&self.live).or(self.logger_pid);
            find(self.logger_pid?)
        })?;
        let file = found
            .file
            .open(&ServerUser::of(self.live.postmaster_pid)?)?;
        let (new, old) = (file.metadata().ok()?, self.end.file.metadata().ok()?);
        if (new.dev(), new.ino()) == (old.dev(), old.ino()) {
            return None;
        }
        // Names can recur, such as those of weekdays: an earlier file is continued where its end is now. When a file
        // was created is not known on each file system, so it decides only if there are too many names.
        let knows_all = self.known.len() < KNOWN_MAX;
        let is_recent = || new.created().is_ok_and(|it| it >= self.began);
        let is_unknown = self.known.insert(found.name) && (knows_all || is_recent());
        let is_new = is_unknown || !found.appends;
        let at = if is_new { 0 } else { new.len() };
        Some(FileEnd::new(file, at))
    }
}

fn logger_of(live: &LiveServer) -> Option<u32> {
    let mut processes = live.processes().into_iter();
    let logger = processes.find(|it| it.role == Role::Logger);
    logger.map(|it| it.pid)
}

/// A file that a process has open.
struct FoundFile {
    file: HeldFile,
    /// Its path as the process sees it.
    name: PathBuf,
    format: LogFormat,
    /// It was not truncated when it was opened.
    appends: bool,
}

impl FoundFile {
    /// Without a logger, all formats are written as `stderr` is.
    fn of_postmaster(pid: u32) -> Self {
        Self {
            file: HeldFile { pid, number: 2 },
            name: PathBuf::new(),
            format: LogFormat::Stderr,
            appends: true,
        }
    }

    /// The files in its directory. A logger in a container has another root.
    fn siblings(&self, pid: u32) -> BTreeSet<PathBuf> {
        let directory = self.name.parent().unwrap_or(Path::new("/"));
        let inside = directory.strip_prefix("/").unwrap_or(directory);
        let entries = fs::read_dir(Path::new(&format!("/proc/{pid}/root")).join(inside));
        let names = entries.into_iter().flatten().flatten();
        let names = names.take(KNOWN_MAX);
        names.map(|it| directory.join(it.file_name())).collect()
    }
}

/// The file that a logger writes in the first of these formats that it writes. Its standard error is still the postmaster's, and so is
/// what the postmaster was started with.
fn logger_file(pid: u32, postmaster_pid: u32, formats: &[LogFormat]) -> Option<FoundFile> {
    let inherited = |number: u32| {
        let target = |pid| fs::read_link(format!("/proc/{pid}/fd/{number}"));
        target(pid).is_ok_and(|it| target(postmaster_pid).is_ok_and(|other| it == other))
    };
    let written = descriptors(pid)?.into_iter().filter_map(|number| {
        let file = HeldFile { pid, number };
        let flags = file.flags()?;
        let path = file.path();
        let is_it = flags & libc::O_ACCMODE == libc::O_WRONLY
            && path.metadata().is_ok_and(|it| it.is_file())
            && !inherited(number);
        let name = fs::read_link(&path).ok().filter(|_| is_it)?;
        let name = name.to_string_lossy();
        let name = name.trim_end_matches(" (deleted)");
        let format = match name.rsplit_once('.') {
            Some((_, "csv")) => LogFormat::Csv,
            Some((_, "json")) => LogFormat::Json,
            _ => LogFormat::Stderr,
        };
        let appends = flags & libc::O_APPEND != 0;
        Some(FoundFile {
            file,
            name: PathBuf::from(name),
            format,
            appends,
        })
    });
    let written: Vec<FoundFile> = written.collect();
    let format = formats
        .iter()
        .find(|&&format| written.iter().any(|it| it.format == format))?;
    // During a rotation, the old one is open as well.
    written.into_iter().find(|it| it.format == *format)
}

/// The numbers of a process's descriptors, but for the standard ones. The kernel lists the lowest first.
fn descriptors(pid: u32) -> Option<BTreeSet<u32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let entries = entries.flatten().take(DESCRIPTORS_MAX);
    let numbers = entries.filter_map(|it| it.file_name().to_str()?.parse().ok());
    Some(numbers.filter(|&it| it > 2).collect())
}

/// The end of a file that grows.
struct FileEnd {
    file: File,
    /// So much of it was read.
    at: u64,
    /// The beginning of a line whose end was not written yet.
    rest: Vec<u8>,
}

impl FileEnd {
    fn new(file: File, at: u64) -> Self {
        Self {
            file,
            at,
            rest: Vec::new(),
        }
    }

    fn lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for byte in self.written() {
            if byte != b'\n' {
                if self.rest.len() < LINE_MAX {
                    self.rest.push(byte);
                }
                continue;
            }
            let line = std::mem::take(&mut self.rest);
            lines.push(String::from_utf8_lossy(&line).into_owned());
        }
        lines
    }

    fn written(&mut self) -> Vec<u8> {
        let end = self.file.metadata().map_or(self.at, |it| it.len());
        if end < self.at {
            // It was truncated.
            self.at = 0;
            self.rest.clear();
        }
        if end - self.at > READ_MAX {
            self.at = end - READ_MAX;
            self.rest.clear();
        }
        let mut bytes = vec![0; (end - self.at) as usize];
        let read = self.file.read_at(&mut bytes, self.at).unwrap_or(0);
        bytes.truncate(read);
        self.at += read as u64;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn write(end: &FileEnd, text: &str) {
        let at = end.file.metadata().expect("a file").len();
        end.file.write_all_at(text.as_bytes(), at).expect("written");
    }

    /// Regression test: `top` and `profile` kept the names of all files in the log's directory, however many.
    #[test]
    fn a_log_directory_with_very_many_files_does_not_fill_the_memory() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let found = FoundFile {
            file: HeldFile {
                pid: std::process::id(),
                number: 2,
            },
            name: at("log"),
            format: LogFormat::Stderr,
            appends: true,
        };
        fs::write(at("log"), "").expect("written");
        assert_eq!(
            found.siblings(std::process::id()),
            BTreeSet::from([at("log")])
        );
        for number in 0..=KNOWN_MAX {
            fs::hard_link(at("log"), at(&number.to_string())).expect("linked");
        }
        assert_eq!(found.siblings(std::process::id()).len(), KNOWN_MAX);
    }

    /// Regression test: `top` and `profile` kept the names of all files that a logger had open, however many.
    #[test]
    fn a_logger_with_very_many_descriptors_does_not_fill_the_memory() {
        let file = tempfile::tempfile().expect("a file");
        let open = || file.try_clone().expect("a descriptor");
        let first = open();
        let found = || descriptors(std::process::id()).expect("descriptors");
        assert!(found().contains(&first.as_raw_fd().cast_unsigned()));
        let many: Vec<File> = (0..2 * DESCRIPTORS_MAX).map(|_| open()).collect();
        let found = found();
        assert!(found.len() <= DESCRIPTORS_MAX, "{}", found.len());
        assert!(found.len() < many.len());
    }

    #[test]
    fn a_line_is_read_once_it_is_complete() {
        let mut end = FileEnd::new(tempfile::tempfile().expect("a file"), 0);
        write(&end, "first\n[12] ERR");
        assert_eq!(end.lines(), ["first"]);
        write(&end, "OR:  deadlock detected\n");
        assert_eq!(end.lines(), ["[12] ERROR:  deadlock detected"]);
    }

    #[test]
    fn a_log_that_grows_without_bounds_or_is_truncated_is_read_at_its_end() {
        let mut end = FileEnd::new(tempfile::tempfile().expect("a file"), 0);
        write(&end, &"x".repeat(3 << 20));
        write(&end, "\nERROR:  last\n");
        assert_eq!(end.lines().last().map(String::as_str), Some("ERROR:  last"));
        end.file.set_len(0).expect("truncated");
        write(&end, "PANIC:  new\n");
        assert_eq!(end.lines(), ["PANIC:  new"]);
    }
}
