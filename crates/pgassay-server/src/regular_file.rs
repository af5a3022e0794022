//! Opens files that another user may have put there: regular ones only. Opening a device can already have an effect,
//! such as starting a watchdog, so a file is looked at before it is opened.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::{self, CWD, FileType, Mode, OFlags, Stat};

/// Opens a file, relative to a directory, for reading. Does not wait for another user, as a FIFO or a leased file would
/// make us. Links are followed only if `flags` does not have `NOFOLLOW`. `check` can refuse it by what it is.
pub(crate) fn open(
    directory: impl AsFd,
    path: &Path,
    flags: OFlags,
    check: impl FnOnce(&Stat) -> io::Result<()>,
) -> io::Result<File> {
    let found = fs::openat(
        directory,
        path,
        OFlags::PATH | OFlags::CLOEXEC | flags,
        Mode::empty(),
    )?;
    let stat = fs::fstat(&found)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let words = format!("{} is not a regular file", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, words));
    }
    check(&stat)?;
    // The same file, whatever has the name by now.
    let same = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(fs::openat(CWD, same, flags, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::BuildFacts;
    use crate::open_dir::OpenDir;
    use std::ffi::OsStr;
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::thread;
    use std::time::Duration;

    /// Regression: the file was opened before it was looked at. An open for writing waits until a pipe is opened for
    /// reading, so it shows whether that happens.
    #[test]
    fn a_device_or_pipe_in_place_of_a_file_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("/dev/null", at("device")).unwrap();
        fs::mkfifoat(CWD, at("pipe"), Mode::RWXU).unwrap();
        let read = |name: &str, flags| {
            let mut text = String::new();
            let mut file = open(CWD, &at(name), flags, |_| Ok(()))?;
            file.read_to_string(&mut text).map(|_| text)
        };
        for name in ["file", "link"] {
            assert_eq!(read(name, OFlags::empty()).unwrap(), "text", "{name}");
        }
        assert_eq!(read("file", OFlags::NOFOLLOW).unwrap(), "text");
        assert!(read("link", OFlags::NOFOLLOW).is_err());
        let pipe = at("pipe");
        let writing = thread::spawn(move || File::options().write(true).open(pipe));
        let below = OpenDir::open_trusted(directory.path()).unwrap();
        for _ in 0..20 {
            for name in ["device", "pipe"] {
                assert!(read(name, OFlags::empty()).is_err(), "{name}");
                assert!(BuildFacts::of_program(&at(name)).is_err(), "{name}");
                assert!(below.open_file(OsStr::new(name)).is_err(), "{name}");
            }
            thread::sleep(Duration::from_millis(10));
            assert!(!writing.is_finished());
        }
        File::open(at("pipe")).unwrap();
        writing.join().unwrap().unwrap();
    }
}
