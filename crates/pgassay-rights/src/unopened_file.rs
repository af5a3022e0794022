//! Files whose paths other users control, or whose directories they can write to.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat};

/// What is at a path, not opened: opening a device can have effects, and that of a pipe waits. A user who changes
/// the path later does not change what this is. See `O_PATH` in open(2).
#[derive(Debug)]
pub struct UnopenedFile {
    descriptor: File,
}

impl UnopenedFile {
    /// Follows links.
    ///
    /// # Errors
    /// As [`File::open`].
    pub fn at(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH.bits().cast_signed();
        let descriptor = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)?;
        Ok(Self { descriptor })
    }

    /// In an open directory. A link is not followed, and [`Self::open`] refuses it.
    ///
    /// # Errors
    /// As `openat(2)`.
    pub fn in_directory(directory: impl AsFd, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = File::from(openat(directory, name, flags, Mode::empty())?);
        Ok(Self { descriptor })
    }

    /// As [`Self::in_directory`], a directory.
    pub(crate) fn directory_in(directory: impl AsFd, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = File::from(openat(directory, name, flags, Mode::empty())?);
        Ok(Self { descriptor })
    }

    /// As [`Self::in_directory`], what a link leads to.
    pub(crate) fn followed(directory: impl AsFd, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let descriptor = File::from(openat(directory, name, flags, Mode::empty())?);
        Ok(Self { descriptor })
    }

    /// Its path without links, or where it was if it is deleted.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn path(&self) -> io::Result<PathBuf> {
        fs::read_link(self.link())
    }

    /// Its kind, owner and size.
    ///
    /// # Errors
    /// The system's.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.descriptor.metadata()
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if it is not a regular file, or as [`OpenOptions::open`].
    pub fn open(&self, options: &mut OpenOptions) -> io::Result<File> {
        if !self.metadata()?.is_file() {
            let words = "it is not a regular file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
        }
        // A lease of another process would hold it up.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        options.custom_flags(flags).open(self.link())
    }

    /// Opens it for writing, whatever it is.
    pub(crate) fn reopen(&self, flags: u32) -> io::Result<File> {
        let flags = (flags | OFlags::NOCTTY.bits()).cast_signed();
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(flags).open(self.link())
    }

    fn link(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.descriptor.as_raw_fd()))
    }
}

impl AsFd for UnopenedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Regression: it was opened first and then refused. As root, opening `/dev/watchdog` restarts the machine.
    #[test]
    fn a_device_is_refused_without_opening_it() {
        // Without a terminal, opening it is an error.
        let found = UnopenedFile::at(Path::new("/dev/tty")).unwrap();
        let error = found.open(OpenOptions::new().read(true)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        // An O_PATH descriptor cannot be read.
        let mut bytes = [0];
        assert!((&found.descriptor).read(&mut bytes).is_err());
    }

    #[test]
    fn a_link_in_a_directory_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", directory.path().join("link")).unwrap();
        let open = File::open(directory.path()).unwrap();
        let read = |name: &str| {
            let found = UnopenedFile::in_directory(&open, OsStr::new(name))?;
            io::read_to_string(found.open(OpenOptions::new().read(true))?)
        };
        assert_eq!(read("file").unwrap(), "text");
        assert_eq!(
            read("link").unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert_eq!(read("none").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_was_found_is_opened_although_its_path_leads_elsewhere_now() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("first"), "first").unwrap();
        std::os::unix::fs::symlink("first", at("link")).unwrap();
        let found = UnopenedFile::at(&at("link")).unwrap();
        fs::remove_file(at("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("link")).unwrap();
        assert_eq!(
            found.path().unwrap(),
            fs::canonicalize(at("first")).unwrap()
        );
        let mut text = String::new();
        let mut file = found.open(OpenOptions::new().read(true)).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "first");
        let file = found.open(OpenOptions::new().write(true)).unwrap();
        file.set_len(0).unwrap();
        assert_eq!(fs::metadata(at("first")).unwrap().len(), 0);
    }
}
