//! A directory that stays the same one while others rename it, or put a link in its place.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// An open directory. Who controls a directory above it cannot lead a path of [`Self::path`] elsewhere.
#[derive(Debug)]
pub(crate) struct PinnedDirectory {
    file: File,
}

impl PinnedDirectory {
    /// Opens a directory that a link may name.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, 0)
    }

    /// Opens a directory, which must not be a link.
    pub(crate) fn open_itself(path: &Path) -> io::Result<Self> {
        Self::open_with(path, libc::O_NOFOLLOW).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOTDIR | libc::ELOOP) => {
                io::Error::new(error.kind(), "it is a link, or not a directory; remove it")
            }
            _ => error,
        })
    }

    fn open_with(path: &Path, flags: i32) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(flags | libc::O_DIRECTORY | libc::O_NONBLOCK);
        let file = options.open(path)?;
        Ok(Self { file })
    }

    /// A path that leads to this directory as long as this value exists; see `proc_pid_fd(5)`.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Its owner and mode.
    pub(crate) fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Regression: a directory above it was replaced by a link to another user's directories, one of which root then
    /// removed.
    #[test]
    fn an_open_directory_stays_the_same_one() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        for name in ["above/results/run", "theirs/results/run"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        let pinned = PinnedDirectory::open(&at("above/results")).unwrap();
        fs::rename(at("above"), at("moved")).unwrap();
        symlink(at("theirs"), at("above")).unwrap();
        fs::remove_dir_all(pinned.path().join("run")).unwrap();
        assert!(!at("moved/results/run").exists() && at("theirs/results/run").exists());

        symlink(at("theirs/results"), at("link")).unwrap();
        assert!(PinnedDirectory::open(&at("link")).is_ok());
        let error = PinnedDirectory::open_itself(&at("link")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "it is a link, or not a directory; remove it"
        );
    }
}
