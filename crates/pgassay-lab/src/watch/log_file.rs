//! The file that a server on this machine writes its log to: the logger's, or the postmaster's standard
//! error. Only what is written from the start of the watch on is read.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use pgassay_profile::{LiveServer, Role};

use super::log_message::LogFormat;

/// Of what was written since the last reading, the end up to this size is read.
const READ_MAX: u64 = 1 << 20;
/// Of the files in the log's directory, so many names are kept.
const KNOWN_MAX: usize = 10_000;
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
        let file = found.open(&ServerUser::of(live.postmaster_pid)?)?;
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
        let file = found.open(&ServerUser::of(self.live.postmaster_pid)?)?;
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
    path: PathBuf,
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
            path: PathBuf::from(format!("/proc/{pid}/fd/2")),
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

    fn open(&self, user: &ServerUser) -> Option<File> {
        // Opening a device could have effects.
        if !self.path.metadata().ok()?.is_file() {
            return None;
        }
        // The server may have opened a FIFO since, which must not hold up who opens it.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(&self.path)
            .ok()?;
        let found = file.metadata().ok()?;
        (found.is_file() && user.may_show(&found)).then_some(file)
    }
}

/// The user of a server: what root may read, but this user may only write, is not shown as its log. The real IDs,
/// because a program with the name of a server may have others than its user by its mode.
struct ServerUser {
    uid: u32,
    groups: Vec<u32>,
}

impl ServerUser {
    fn of(postmaster_pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{postmaster_pid}/status")).ok()?;
        let ids = |name: &str| {
            let line = status.lines().find_map(|it| it.strip_prefix(name))?;
            let ids = line.split_whitespace().map(|it| it.parse().ok());
            ids.collect::<Option<Vec<u32>>>()
        };
        let mut groups = ids("Groups:")?;
        groups.push(*ids("Gid:")?.first()?);
        let uid = *ids("Uid:")?.first()?;
        Some(Self { uid, groups })
    }

    /// Whether a file that a process of this user writes may be shown as its log.
    fn may_show(&self, file: &fs::Metadata) -> bool {
        if file.uid() == self.uid {
            // It can also change the mode.
            return true;
        }
        let is_member = self.groups.contains(&file.gid());
        let (read, write) = if is_member {
            (libc::S_IRGRP, libc::S_IWGRP)
        } else {
            (libc::S_IROTH, libc::S_IWOTH)
        };
        // What the user can open neither way was given to the server as its output, such as the standard error of a
        // server that root started.
        file.mode() & read != 0 || file.mode() & write == 0
    }
}

/// The file that a logger writes in the first of these formats that it writes. Its standard error is still the postmaster's, and so is
/// what the postmaster was started with.
fn logger_file(pid: u32, postmaster_pid: u32, formats: &[LogFormat]) -> Option<FoundFile> {
    let inherited = |number: u32| {
        let target = |pid| fs::read_link(format!("/proc/{pid}/fd/{number}"));
        target(pid).is_ok_and(|it| target(postmaster_pid).is_ok_and(|other| it == other))
    };
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let numbers = descriptors
        .flatten()
        .filter_map(|it| it.file_name().to_str()?.parse().ok());
    let numbers: BTreeSet<u32> = numbers.filter(|&it| it > 2).collect();
    let written = numbers.into_iter().filter_map(|number| {
        let flags = flags(pid, number)?;
        let path = PathBuf::from(format!("/proc/{pid}/fd/{number}"));
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
            path,
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

fn flags(pid: u32, number: u32) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
    let flags = text.lines().find_map(|it| it.strip_prefix("flags:"))?;
    i32::from_str_radix(flags.trim(), 8).ok()
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
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    use super::*;

    fn write(end: &FileEnd, text: &str) {
        let at = end.file.metadata().expect("a file").len();
        end.file.write_all_at(text.as_bytes(), at).expect("written");
    }

    /// Regression test: root showed lines of any file that a server had open for writing.
    #[test]
    fn a_file_that_the_servers_user_may_only_write_is_not_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        fs::write(&path, "ERROR:  secret\n").expect("written");
        let own = path.metadata().expect("a file");
        let found = FoundFile {
            path: path.clone(),
            name: path.clone(),
            format: LogFormat::Stderr,
            appends: true,
        };
        let owner = (own.uid(), vec![]);
        let member = (own.uid() + 1, vec![7, own.gid()]);
        let other = (own.uid() + 1, vec![own.gid() + 1]);
        for (mode, (uid, groups), is_readable) in [
            (0o600, owner, true),
            (0o620, member.clone(), false),
            (0o640, member.clone(), true),
            (0o600, member, true),
            (0o662, other.clone(), false),
            (0o604, other, true),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
            let user = ServerUser { uid, groups };
            assert_eq!(found.open(&user).is_some(), is_readable, "{mode:o} {uid}");
        }
    }

    #[test]
    fn the_user_of_a_process_may_read_what_it_writes() {
        let user = ServerUser::of(std::process::id()).expect("this process");
        let file = tempfile::tempfile().expect("a file");
        assert!(user.may_show(&file.metadata().expect("a file")));
    }

    /// Regression test: a FIFO that a server opened between the check and the opening stopped `profile`.
    #[test]
    fn a_log_that_is_swapped_with_a_fifo_does_not_hang() {
        let directory = tempfile::tempdir().expect("a directory");
        let [path, fifo] = ["log", "fifo"].map(|it| directory.path().join(it));
        fs::write(&path, "").expect("written");
        let c = |it: &Path| CString::new(it.as_os_str().as_bytes()).expect("no NUL");
        let (log_name, fifo_name) = (c(&path), c(&fifo));
        // SAFETY: the name is NUL-terminated and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(fifo_name.as_ptr(), 0o666) }, 0);
        let user = ServerUser::of(std::process::id()).expect("this process");
        let found = FoundFile {
            name: path.clone(),
            path,
            format: LogFormat::Stderr,
            appends: true,
        };
        assert!(found.open(&user).is_some());
        let (sender, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let opened = (0..20_000).filter(|_| found.open(&user).is_some());
            sender.send(opened.count())
        });
        let swapped_until = Instant::now() + Duration::from_mins(1);
        loop {
            // SAFETY: both names are NUL-terminated and outlive the call.
            let swapped = unsafe {
                let (at, flag) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
                libc::renameat2(at, log_name.as_ptr(), at, fifo_name.as_ptr(), flag)
            };
            assert_eq!(swapped, 0);
            if done.try_recv().is_ok() {
                break;
            }
            assert!(Instant::now() < swapped_until, "it hangs");
        }
    }

    /// Regression test: `top` and `profile` kept the names of all files in the log's directory, however many.
    #[test]
    fn a_log_directory_with_very_many_files_does_not_fill_the_memory() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let found = FoundFile {
            path: at("log"),
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
