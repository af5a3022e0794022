//! A file that a process of a server has open, opened anew for reading.
//!
//! The process belongs to the server's user, and any user can name a program `postgres`. So what root reads here is
//! only what this user can read, or what the process was given as its output.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// A descriptor of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeldFile {
    pub pid: u32,
    pub number: u32,
}

/// What is known of how a process has a file open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownBy {
    /// By a descriptor for writing, of a process with only the rights of the server's user.
    Output,
    /// By a descriptor of which only the number is known: what has this number may have changed since.
    Number,
}

impl HeldFile {
    pub fn path(self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", self.pid, self.number))
    }

    /// As `open(2)` and `F_GETFL` have them.
    pub fn flags(self) -> Option<i32> {
        let text = fs::read_to_string(format!("/proc/{}/fdinfo/{}", self.pid, self.number)).ok()?;
        let flags = text.lines().find_map(|it| it.strip_prefix("flags:"))?;
        i32::from_str_radix(flags.trim(), 8).ok()
    }

    /// Opens it if it may be shown as the log of a server of this user.
    pub fn open(self, user: &ServerUser) -> Option<File> {
        // What the number stands for can change between any two calls; a copy stays the same file.
        match self.copy() {
            Ok(copy) => {
                let known_by = self.known_by(&copy, user)?;
                let own = format!("/proc/self/fd/{}", copy.as_raw_fd());
                open_regular(own.as_ref(), |found| user.may_show(found, known_by))
            }
            Err(_) => self.open_by_number(user),
        }
    }

    /// For a kernel before 5.6, or without the right to trace the process: as the server's user, only files that this
    /// user can read.
    fn open_by_number(self, user: &ServerUser) -> Option<File> {
        open_regular(&self.path(), |found| user.may_show(found, KnownBy::Number))
    }

    /// The same descriptor in our process (Linux 5.6).
    fn copy(self) -> io::Result<OwnedFd> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let number = i32::try_from(self.number).map_err(io::Error::other)?;
        let process = pidfd_open(pid.ok_or(io::ErrorKind::InvalidInput)?, PidfdFlags::empty())?;
        Ok(pidfd_getfd(process, number, PidfdGetfdFlags::empty())?)
    }

    /// `None` if the process cannot write through the descriptor: with `O_PATH`, any user has descriptors of files
    /// that only root can open.
    fn known_by(self, copy: &OwnedFd, user: &ServerUser) -> Option<KnownBy> {
        let flags = fcntl_getfl(copy).ok()?;
        let is_written = !flags.contains(OFlags::PATH)
            && (flags.contains(OFlags::WRONLY) || flags.contains(OFlags::RDWR));
        // A program with another user's rights, by its mode, opens files of that user. The owner of its directory
        // in `/proc` is another one.
        let holder = fs::metadata(format!("/proc/{}", self.pid)).ok()?;
        let has_only_rights_of_user = holder.uid() == user.uid;
        is_written.then_some(if has_only_rights_of_user {
            KnownBy::Output
        } else {
            KnownBy::Number
        })
    }
}

fn open_regular(path: &Path, may_show: impl FnOnce(&fs::Metadata) -> bool) -> Option<File> {
    // Opening a device could have effects.
    if !path.metadata().ok()?.is_file() {
        return None;
    }
    // The server may have opened a FIFO since, which must not hold up who opens it.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .ok()?;
    let found = file.metadata().ok()?;
    (found.is_file() && may_show(&found)).then_some(file)
}

/// The user of a server: what root may read, but this user may only write, is not shown as its log. The real IDs,
/// because a program with the name of a server may have others than its user by its mode.
pub(super) struct ServerUser {
    uid: u32,
    groups: Vec<u32>,
}

impl ServerUser {
    /// `None` for root, as whom PostgreSQL refuses to run: any user can start programs that become root.
    pub fn of(postmaster_pid: u32) -> Option<Self> {
        Self::read(postmaster_pid).filter(|it| it.uid != 0)
    }

    fn read(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
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

    /// Whether a file that a process of this user has open may be shown as its log.
    fn may_show(&self, file: &fs::Metadata, known_by: KnownBy) -> bool {
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
        // What the user can open neither way, but the server writes, was given to it as its output, such as the
        // standard error of a server that root started.
        let is_given = known_by == KnownBy::Output && file.mode() & write == 0;
        file.mode() & read != 0 || is_given
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use super::KnownBy::{Number, Output};
    use super::*;

    fn this_user() -> ServerUser {
        ServerUser::read(std::process::id()).expect("this process")
    }

    fn held(file: &impl AsRawFd) -> HeldFile {
        HeldFile {
            pid: std::process::id(),
            number: file.as_raw_fd().cast_unsigned(),
        }
    }

    fn writing(path: &Path) -> File {
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        options.open(path).expect("opened")
    }

    fn without_rights(path: &Path) -> File {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_PATH);
        options.open(path).expect("opened")
    }

    /// Regression test: root showed lines of any file that a server had open for writing.
    #[test]
    fn a_file_that_the_servers_user_may_only_write_is_not_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        fs::write(&path, "ERROR:  secret\n").expect("written");
        let own = path.metadata().expect("a file");
        let owner = (own.uid(), vec![]);
        let member = (own.uid() + 1, vec![7, own.gid()]);
        let other = (own.uid() + 1, vec![own.gid() + 1]);
        for (mode, (uid, groups), known_by, is_shown) in [
            (0o600, owner, Number, true),
            (0o620, member.clone(), Output, false),
            (0o640, member.clone(), Number, true),
            (0o600, member.clone(), Output, true),
            (0o600, member, Number, false),
            (0o662, other.clone(), Output, false),
            (0o604, other.clone(), Number, true),
            (0o600, other, Number, false),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
            let file = path.metadata().expect("a file");
            let user = ServerUser { uid, groups };
            let shown = user.may_show(&file, known_by);
            assert_eq!(shown, is_shown, "{mode:o} {uid} {known_by:?}");
        }
    }

    #[test]
    fn the_user_of_a_process_may_read_what_it_writes() {
        let file = tempfile::tempfile().expect("a file");
        assert!(held(&file).open(&this_user()).is_some());
        assert!(held(&file).open_by_number(&this_user()).is_some());
    }

    /// Regression test: root showed what was appended to a file that only root can read, because the standard error
    /// of a program named `postgres` was a descriptor of it with `O_PATH`, which any user can have.
    #[test]
    fn a_file_that_the_server_has_open_without_rights_is_not_shown() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("secret");
        let written = writing(&path);
        assert!(held(&written).open(&this_user()).is_some());
        assert!(held(&without_rights(&path)).open(&this_user()).is_none());
        let read = File::open(&path).expect("opened");
        assert!(held(&read).open(&this_user()).is_none());
    }

    /// Regression test: such a file was also shown if its descriptor took the place of the log's after the check.
    #[test]
    fn a_descriptor_that_changes_between_two_files_does_not_show_the_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let [own, secret] = ["own", "secret"].map(|it| directory.path().join(it));
        let log = writing(&own);
        fs::write(&secret, "ERROR:  secret\n").expect("written");
        let hidden = without_rights(&secret);
        let number = log.try_clone().expect("a copy");
        let inode = log.metadata().expect("a file").ino();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    for file in [&hidden, &log] {
                        // SAFETY: the three are open for longer than this thread runs.
                        let number = unsafe { libc::dup2(file.as_raw_fd(), number.as_raw_fd()) };
                        assert!(number >= 0);
                    }
                }
            });
            let opened = (0..20_000).filter_map(|_| held(&number).open(&this_user()));
            let shown: Vec<u64> = opened
                .map(|it| it.metadata().expect("a file").ino())
                .filter(|&it| it != inode)
                .collect();
            is_done.store(true, Ordering::Relaxed);
            assert!(shown.is_empty(), "{} times", shown.len());
        });
    }

    /// Regression test: a program that becomes root by its mode, with the name of a server, has files of root open.
    #[test]
    fn a_program_of_root_or_another_user_gives_no_output_to_a_server() {
        let user = this_user();
        let of = ServerUser::of(std::process::id());
        assert_eq!(of.is_some(), user.uid != 0);
        let file = tempfile::tempfile().expect("a file");
        let mode = fs::Permissions::from_mode(0o600);
        file.set_permissions(mode).expect("a mode");
        let copy = held(&file).copy().expect("a copy");
        let known_by = |user: &ServerUser| held(&file).known_by(&copy, user);
        assert_eq!(known_by(&user), Some(Output));
        let other = ServerUser {
            uid: user.uid + 1,
            groups: vec![],
        };
        assert_eq!(known_by(&other), Some(Number));
        assert!(held(&file).open(&other).is_none());
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
        let open = move || open_regular(&path, |_| true);
        assert!(open().is_some());
        let (sender, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let opened = (0..20_000).filter(|_| open().is_some());
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
}
