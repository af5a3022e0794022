//! Directories and files by descriptor, for directories that another user may own.
//!
//! A path can be redirected between two uses of it; a descriptor cannot. So every file in a server's
//! directory is opened relative to the directory's descriptor, without following symbolic links,
//! and without waiting: opening a FIFO or a leased file would otherwise wait for its other user.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};
use std::time::Instant;

use pgassay_rights::{self as rights, Purpose, UnopenedFile};
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags};
use rustix::process::geteuid;

/// The largest file that holds a path or a few numbers.
const SMALL_FILE_BYTES_MAX: u64 = 4 << 10;
/// The deepest tree that is removed. A data directory has five levels.
const DEPTH_MAX: u32 = 64;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// In a directory with this bit, only the owner of a file can rename it.
const STICKY: u32 = 0o1000;

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDir {
    fd: OwnedFd,
}

/// What a name in a directory refers to, without following a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameInfo {
    pub is_dir: bool,
    pub is_file: bool,
    /// uid of its owner.
    pub owner: u32,
    /// gid of its group.
    pub group: u32,
    /// Its permission bits, with set-user-ID, set-group-ID and sticky.
    pub mode: u32,
    /// Number of its names (hard links).
    pub names: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Time of its last change, in nanoseconds since the epoch.
    pub modified_ns: i64,
    /// Device and inode.
    pub identity: (u64, u64),
}

impl NameInfo {
    /// Why the user `us` (a uid) cannot rely on the names in this directory: another user can rename what is in it.
    fn danger(&self, us: u32, is_mapped: impl Fn(u32) -> bool) -> Option<&'static str> {
        // Root of the machine, seen from a user namespace in which it has no number.
        if ![us, 0].contains(&self.owner) && is_mapped(self.owner) {
            return Some(
                "it belongs to another user, who can rename directories in it; \
                 choose another with --data-parent or TMPDIR",
            );
        }
        // A user's group often has no other member, and the usual umask then lets it write.
        let others = if us == 0 && self.group != 0 {
            GROUP_WRITES | OTHERS_WRITE
        } else {
            OTHERS_WRITE
        };
        (self.mode & others != 0 && self.mode & STICKY == 0).then_some(
            "other users can rename directories in it; \
             set its sticky bit (chmod +t) or choose another with --data-parent or TMPDIR",
        )
    }
}

/// Whether a uid is one of a user namespace, by its `/proc/PID/uid_map`. `None` if that is not as expected.
fn maps_user(map: &str, uid: u32) -> Option<bool> {
    let mut is_mapped = None;
    for line in map.lines() {
        let mut words = line.split_whitespace();
        let first: u32 = words.next()?.parse().ok()?;
        let length: u32 = words.nth(1)?.parse().ok()?;
        let is_here = uid.checked_sub(first).is_some_and(|it| it < length);
        is_mapped = Some(is_here || is_mapped == Some(true));
    }
    is_mapped
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC
}

#[allow(
    clippy::useless_conversion,
    reason = "the width of these fields depends on the architecture"
)]
fn info(stat: &fs::Stat) -> NameInfo {
    let kind = FileType::from_raw_mode(stat.st_mode);
    NameInfo {
        is_dir: kind == FileType::Directory,
        is_file: kind == FileType::RegularFile,
        owner: stat.st_uid,
        group: stat.st_gid,
        mode: stat.st_mode & 0o7777,
        names: stat.st_nlink.into(),
        bytes: u64::try_from(stat.st_size).unwrap_or(0),
        modified_ns: i64::from(stat.st_mtime)
            .saturating_mul(1_000_000_000)
            .saturating_add(i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        identity: (stat.st_dev, stat.st_ino),
    }
}

fn refused(name: &OsStr, why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{} {why}", name.display()),
    )
}

impl OpenDir {
    /// Opens a directory whose path the current user chose, so links in it are followed.
    pub(crate) fn open_trusted(path: &Path) -> io::Result<Self> {
        let flags = directory_flags() - OFlags::NOFOLLOW;
        let fd = fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { fd })
    }

    /// Opens a directory in this one, unless it is a link.
    pub(crate) fn open_dir(&self, name: &OsStr) -> io::Result<Self> {
        let fd = fs::openat(&self.fd, name, directory_flags(), Mode::empty())?;
        Ok(Self { fd })
    }

    /// As [`Self::open_trusted`], unless another user can put another directory in place of one in it.
    pub(crate) fn open_parent(path: &Path) -> io::Result<Self> {
        let opened = Self::open_trusted(path)?;
        // Without it, there are no user namespaces.
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let is_mapped = |uid| maps_user(&map, uid).unwrap_or(true);
        match opened.info()?.danger(geteuid().as_raw(), is_mapped) {
            Some(words) => Err(io::Error::other(words)),
            None => Ok(opened),
        }
    }

    /// Creates a directory in this one that only the current user can access.
    pub(crate) fn create_dir(&self, name: &OsStr) -> io::Result<Self> {
        fs::mkdirat(&self.fd, name, Mode::RWXU)?;
        self.open_dir(name)
    }

    /// The directory itself.
    pub(crate) fn info(&self) -> io::Result<NameInfo> {
        Ok(info(&fs::fstat(&self.fd)?))
    }

    /// What a name refers to. Opens nothing.
    pub(crate) fn info_of(&self, name: &OsStr) -> io::Result<NameInfo> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        Ok(info(&fs::statat(&self.fd, name, flags)?))
    }

    /// Opens a regular file for reading. A file with a second name is refused: that may be in a
    /// directory of another user.
    pub(crate) fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let found = UnopenedFile::in_directory(&self.fd, name)?;
        let facts = found.metadata()?;
        if !facts.is_file() {
            return Err(refused(name, "is not a regular file"));
        }
        if facts.nlink() > 1 {
            return Err(refused(name, "has a second name"));
        }
        found.open(OpenOptions::new().read(true))
    }

    /// Reads a regular file of at most `bytes_max` bytes. Invalid UTF-8 is replaced.
    pub(crate) fn read_file(&self, name: &OsStr, bytes_max: u64) -> io::Result<String> {
        let mut bytes = Vec::new();
        let file = self.open_file(name)?;
        file.take(bytes_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            return Err(refused(
                name,
                &format!("is larger than {bytes_max} bytes, which is not expected"),
            ));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads a regular file of at most `bytes_max` bytes in this directory or below it.
    pub(crate) fn read_below(&self, path: &Path, bytes_max: u64) -> io::Result<String> {
        let name = path.file_name().unwrap_or_default();
        match path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            Some(parent) => self.open_below(parent)?.read_file(name, bytes_max),
            None => self.read_file(name, bytes_max),
        }
    }

    /// Opens a directory below this one. No part of the path can be a link or `..`.
    pub(crate) fn open_below(&self, path: &Path) -> io::Result<Self> {
        let mut opened: Option<Self> = None;
        for part in path.components() {
            let Component::Normal(name) = part else {
                return Err(refused(path.as_os_str(), "is not below the directory"));
            };
            opened = Some(opened.as_ref().unwrap_or(self).open_dir(name)?);
        }
        opened.ok_or_else(|| refused(path.as_os_str(), "is not below the directory"))
    }

    /// Reads a regular file of at most 4 KiB.
    pub(crate) fn read_small_file(&self, name: &str) -> io::Result<String> {
        self.read_file(OsStr::new(name), SMALL_FILE_BYTES_MAX)
    }

    /// Creates a file that only the current user can access. It is open for reading and appending.
    pub(crate) fn create_file(&self, name: &str) -> io::Result<File> {
        let new = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let flags = OFlags::RDWR | OFlags::APPEND | new;
        let fd = fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(File::from(fd))
    }

    /// Renames a file in this directory.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Makes a user and a group the owners of the directory.
    pub(crate) fn set_owner(&self, uid: u32, gid: u32) -> io::Result<()> {
        let (uid, gid) = (fs::Uid::from_raw(uid), fs::Gid::from_raw(gid));
        let _raised = rights::raise(Purpose::Owners);
        Ok(fs::fchown(&self.fd, Some(uid), Some(gid))?)
    }

    /// Calls `act` for each name until it returns false.
    pub(crate) fn each_name(&self, mut act: impl FnMut(&OsStr) -> bool) -> io::Result<()> {
        for entry in fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." && !act(name) {
                break;
            }
        }
        Ok(())
    }

    /// Removes a file. Not an error if it does not exist.
    pub(crate) fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        absent_is_ok(fs::unlinkat(&self.fd, name, AtFlags::empty()))
    }

    /// Removes an empty directory. Not an error if it does not exist.
    pub(crate) fn remove_empty_dir(&self, name: &OsStr) -> io::Result<()> {
        absent_is_ok(fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR))
    }

    /// Removes everything in this directory, but for the file `kept`. Returns an error at the deadline, and for
    /// a tree that is deeper than any server's.
    pub(crate) fn remove_contents_but(&self, kept: &str, deadline: Instant) -> io::Result<()> {
        self.remove_level(Some(kept), deadline, 0)
    }

    fn remove_level(&self, kept: Option<&str>, deadline: Instant, depth: u32) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(io::Error::other(format!(
                "the directory has more than {DEPTH_MAX} levels"
            )));
        }
        // Removing names while reading them can hide others, so this repeats until none is left.
        loop {
            let mut found = false;
            let mut result = Ok(());
            self.each_name(|name| {
                if kept.is_some_and(|kept| name == kept) {
                    return true;
                }
                found = true;
                result = self.remove_one(name, deadline, depth);
                result.is_ok()
            })?;
            result?;
            if !found {
                return Ok(());
            }
        }
    }

    fn remove_one(&self, name: &OsStr, deadline: Instant, depth: u32) -> io::Result<()> {
        if Instant::now() > deadline {
            let words = "removing it takes too long; the next start continues";
            return Err(io::Error::new(io::ErrorKind::TimedOut, words));
        }
        match self.info_of(name) {
            Ok(found) if found.is_dir => {
                self.open_dir(name)?
                    .remove_level(None, deadline, depth + 1)?;
                self.remove_empty_dir(name)
            }
            Ok(_) => self.remove_file(name),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn absent_is_ok(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::BuildFacts;
    use std::os::unix::fs::symlink;
    use std::thread;
    use std::time::Duration;

    fn open(directory: &tempfile::TempDir) -> OpenDir {
        OpenDir::open_trusted(directory.path()).unwrap()
    }

    #[test]
    fn only_small_regular_files_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("small"), "text").unwrap();
        std::fs::write(at("large"), vec![b'x'; 4097]).unwrap();
        std::fs::write(at("named twice"), "text").unwrap();
        std::fs::hard_link(at("named twice"), at("other name")).unwrap();
        symlink("/dev/zero", at("endless")).unwrap();
        symlink(at("small"), at("link")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        rustix::fs::mkfifoat(CWD, at("fifo"), Mode::RWXU).unwrap();
        let dir = open(&directory);
        assert_eq!(dir.read_small_file("small").unwrap(), "text");
        for name in [
            "large",
            "named twice",
            "endless",
            "link",
            "directory",
            "fifo",
        ] {
            assert!(dir.read_small_file(name).is_err(), "{name}");
        }
    }

    /// Regression: the file was opened before it was looked at, and opening a device can have effects. An open for
    /// writing waits until a pipe is opened for reading, so it shows whether that happens.
    #[test]
    fn a_device_or_pipe_in_place_of_a_file_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        symlink("/dev/null", at("device")).unwrap();
        fs::mkfifoat(CWD, at("pipe"), Mode::RWXU).unwrap();
        let pipe = at("pipe");
        let writing = thread::spawn(move || File::options().write(true).open(pipe));
        let dir = open(&directory);
        for _ in 0..20 {
            for name in ["device", "pipe"] {
                assert!(BuildFacts::of_program(&at(name)).is_err(), "{name}");
                assert!(dir.open_file(OsStr::new(name)).is_err(), "{name}");
            }
            thread::sleep(Duration::from_millis(10));
            assert!(!writing.is_finished());
        }
        File::open(at("pipe")).unwrap();
        writing.join().unwrap().unwrap();
    }

    #[test]
    fn files_below_are_reached_by_names_only() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
        std::fs::write(directory.path().join("a/b/file"), "text").unwrap();
        symlink("a", directory.path().join("link")).unwrap();
        let read = |path: &str| open(&directory).read_below(Path::new(path), 4);
        assert_eq!(read("a/b/file").unwrap(), "text");
        for path in ["link/b/file", "a/../a/b/file", "/etc/passwd", "a", "", ".."] {
            assert!(read(path).is_err(), "{path}");
        }
    }

    #[test]
    fn removing_follows_no_link_and_ends_at_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let victim = tempfile::tempdir().unwrap();
        std::fs::write(victim.path().join("keep"), "").unwrap();
        std::fs::create_dir_all(directory.path().join("a/b/c")).unwrap();
        for file in ["kept", "a/kept", "a/b/file"] {
            std::fs::write(directory.path().join(file), "").unwrap();
        }
        symlink(victim.path(), directory.path().join("a/link")).unwrap();
        let dir = open(&directory);
        let past = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
        let error = dir.remove_contents_but("", past).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let soon = Instant::now() + Duration::from_mins(1);
        dir.remove_contents_but("kept", soon).unwrap();
        assert!(directory.path().join("kept").exists() && !directory.path().join("a").exists());
        dir.remove_file(OsStr::new("kept")).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(victim.path().join("keep").exists());
    }

    #[test]
    fn names_are_relied_on_only_where_no_other_user_can_rename() {
        let of = |owner, group, mode| NameInfo {
            owner,
            group,
            mode,
            ..open(&tempfile::tempdir().unwrap()).info().unwrap()
        };
        let cases = [
            ("of root and sticky, as /tmp", 0, 0, 0o1777, true, true),
            ("of root and closed", 0, 0, 0o755, true, true),
            ("of root and open to all", 0, 0, 0o777, false, false),
            ("of root and open to a group", 0, 50, 0o2775, false, true),
            (
                "of root and open to a group, but sticky",
                0,
                50,
                0o1775,
                true,
                true,
            ),
            ("of a user", 1000, 1000, 0o755, false, true),
            (
                "of a user, with a umask of 002",
                1000,
                1000,
                0o775,
                false,
                true,
            ),
            ("of a user and open to all", 1000, 1000, 0o777, false, false),
            ("of a user and sticky", 1000, 1000, 0o1777, false, true),
            ("of a third user", 1001, 1001, 0o1777, false, false),
        ];
        for (what, owner, group, mode, for_root, for_user) in cases {
            let found = of(owner, group, mode);
            assert_eq!(found.danger(0, |_| true).is_none(), for_root, "{what}");
            assert_eq!(found.danger(1000, |_| true).is_none(), for_user, "{what}");
        }
    }

    /// In a user namespace of one user, as sandboxes have, `/tmp` belongs to a user who is not mapped.
    #[test]
    fn a_tmp_of_root_outside_of_the_user_namespace_is_relied_on() {
        let all = "         0          0 4294967295\n";
        let one = "      1000       1000          1\n";
        let container = "0 1000 1\n1 100000 65536\n";
        for (map, is_mapped) in [(all, true), (one, false), (container, true)] {
            assert_eq!(maps_user(map, 65534), Some(is_mapped), "{map}");
            assert_eq!(maps_user(map, 1000), Some(true), "{map}");
        }
        assert_eq!(maps_user("", 65534), None);
        let outside = |mode| NameInfo {
            owner: 65534,
            group: 65534,
            mode,
            ..open(&tempfile::tempdir().unwrap()).info().unwrap()
        };
        let is_reliable = |mode, map| {
            let is_mapped = |uid| maps_user(map, uid).unwrap();
            outside(mode).danger(1000, is_mapped).is_none()
        };
        assert!(is_reliable(0o1777, one) && !is_reliable(0o777, one));
        assert!(!is_reliable(0o1777, all) && !is_reliable(0o1777, container));
    }

    #[test]
    fn a_tree_that_is_too_deep_is_an_error_and_not_a_crash() {
        let directory = tempfile::tempdir().unwrap();
        let deep: std::path::PathBuf = std::iter::repeat_n("d", 200).collect();
        std::fs::create_dir_all(directory.path().join(deep)).unwrap();
        let end = Instant::now() + Duration::from_mins(1);
        let error = open(&directory).remove_contents_but("", end).unwrap_err();
        assert!(error.to_string().contains("levels"), "{error}");
    }
}
