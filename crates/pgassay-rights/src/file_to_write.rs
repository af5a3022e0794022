//! Files that a user names for writing, in directories where other users may have put something else.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fcntl_setfl, fstatfs, openat, readlinkat, unlinkat};
use rustix::process::geteuid;

use crate::unopened_file::UnopenedFile;

/// As the kernel's limit (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;
/// The mode of new files, before the umask.
const MODE: u32 = 0o666;

/// What is at a path that a user named for writing, not opened; or the directory in which it can be created. A user
/// who changes the path later does not change what this is.
///
/// Links are followed as the kernel does, except those of another user in a directory that others can write to: they
/// can lead anywhere. There, pipes and devices of another user, and files with several names, are refused too, and
/// in a sticky directory all files of other users: see `protected_symlinks`, `protected_hardlinks`, `protected_fifos`
/// and `protected_regular` in proc(5). Those settings may be off, and then the kernel refuses none.
#[derive(Debug)]
pub struct FileToWrite {
    found: Option<UnopenedFile>,
    directory: UnopenedFile,
    name: OsString,
}

impl FileToWrite {
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] for what is refused, and the system's.
    pub fn at(path: &Path) -> io::Result<Self> {
        let start = if path.is_absolute() { "/" } else { "." };
        let mut directory = UnopenedFile::in_directory(CWD, OsStr::new(start))?;
        let mut parts = parts_of(path);
        let mut links = 0;
        while let Some(name) = parts.pop_front() {
            let is_last = parts.is_empty();
            let found = match child(&directory, &name) {
                Ok(found) => found,
                Err(error) if is_last && error.kind() == io::ErrorKind::NotFound => {
                    return Ok(Self {
                        found: None,
                        directory,
                        name,
                    });
                }
                Err(error) => return Err(error),
            };
            let metadata = found.metadata()?;
            let found = if metadata.is_symlink() {
                links += 1;
                if links > LINKS_MAX {
                    return Err(rustix::io::Errno::LOOP.into());
                }
                // PROC_SUPER_MAGIC in Linux's `magic.h`.
                if fstatfs(&directory)?.f_type != 0x9fa0 {
                    refuse_link(&directory.metadata()?, &metadata)?;
                    let target = readlinkat(&found, "", Vec::new())?.into_bytes();
                    let target = OsString::from_vec(target);
                    let target = parts_of(Path::new(&target));
                    parts = target.into_iter().chain(parts).collect();
                    continue;
                }
                // Where it leads is no path. No user can create links there.
                UnopenedFile::followed(&directory, &name)?
            } else {
                found
            };
            if is_last {
                let is_directory = found.metadata()?.is_dir();
                if is_directory {
                    return Err(rustix::io::Errno::ISDIR.into());
                }
                if !metadata.is_symlink() {
                    refuse_file(&directory.metadata()?, &metadata)?;
                }
                return Ok(Self {
                    found: Some(found),
                    directory,
                    name,
                });
            }
            directory = found;
        }
        Err(rustix::io::Errno::NOENT.into())
    }

    /// Whether there is something.
    pub fn exists(&self) -> bool {
        self.found.is_some()
    }

    /// Whether it is a pipe, a device or a socket.
    ///
    /// # Errors
    /// The system's.
    pub fn is_special(&self) -> io::Result<bool> {
        match &self.found {
            Some(found) => Ok(!found.metadata()?.is_file()),
            None => Ok(false),
        }
    }

    /// Opens a regular file at its end, or creates it with this mode.
    ///
    /// # Errors
    /// As [`OpenOptions::open`]; or it is not a regular file, or another process has just created it.
    pub fn append(&self, mode: u32) -> io::Result<File> {
        match &self.found {
            Some(found) => found.open(OpenOptions::new().append(true)),
            None => self.create(mode),
        }
    }

    /// Opens a regular file and empties it, or creates it.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn replace(&self) -> io::Result<File> {
        match &self.found {
            Some(found) => found.open(OpenOptions::new().write(true).truncate(true)),
            None => self.create(MODE),
        }
    }

    /// Opens anything for writing, and waits for the reader of a pipe.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn open_waiting(&self) -> io::Result<File> {
        match &self.found {
            Some(found) if !found.metadata()?.is_file() => found.reopen(0),
            _ => self.replace(),
        }
    }

    /// The same without waiting: a pipe without a reader is an error.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn open_at_once(&self) -> io::Result<File> {
        match &self.found {
            Some(found) if !found.metadata()?.is_file() => {
                let file = found.reopen(OFlags::NONBLOCK.bits())?;
                fcntl_setfl(&file, OFlags::empty())?;
                Ok(file)
            }
            _ => self.replace(),
        }
    }

    /// Fails if it cannot be written, and leaves it as it is.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn check(&self) -> io::Result<()> {
        // Opening a pipe would wait for its reader, and closing it would end what it reads.
        if self.is_special()? {
            return Ok(());
        }
        self.append(MODE)?;
        if self.found.is_none() {
            // What cannot be removed will be written soon.
            let _ = unlinkat(&self.directory, &*self.name, AtFlags::empty());
        }
        Ok(())
    }

    fn create(&self, mode: u32) -> io::Result<File> {
        let new = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let flags = OFlags::WRONLY | new;
        let mode = Mode::from_raw_mode(mode);
        Ok(openat(&self.directory, &*self.name, flags, mode)?.into())
    }
}

/// The names on a path; one that ends in a slash ends in a directory.
fn parts_of(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().map(|part| match part {
        Component::Prefix(_) | Component::RootDir => "/".into(),
        other => other.as_os_str().to_owned(),
    });
    let end = path.as_os_str().as_bytes().ends_with(b"/");
    parts.chain(end.then(|| ".".into())).collect()
}

/// A directory is opened as such, so that it is mounted if that happens on demand.
fn child(directory: &UnopenedFile, name: &OsStr) -> io::Result<UnopenedFile> {
    match UnopenedFile::directory_in(directory, name) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            UnopenedFile::in_directory(directory, name)
        }
        found => found,
    }
}

/// Whether the owner is someone other than the current user and root.
fn is_of_another_user(found: &Metadata) -> bool {
    found.uid() != geteuid().as_raw() && found.uid() != 0
}

/// Whether others than its owner can put something into a directory.
fn is_shared(directory: &Metadata) -> bool {
    directory.mode() & 0o022 != 0
}

fn refuse_link(directory: &Metadata, link: &Metadata) -> io::Result<()> {
    // Root can write wherever a link of the directory's owner leads; other users hardly use such a directory.
    let is_of_owner = geteuid().is_root() && is_of_another_user(directory);
    if is_of_another_user(link) && (is_shared(directory) || is_of_owner) {
        return Err(refused("a link of another user"));
    }
    Ok(())
}

fn refuse_file(directory: &Metadata, found: &Metadata) -> io::Result<()> {
    let is_open_to_all = directory.mode() & 0o002 != 0;
    if !found.is_file() && is_of_another_user(found) && is_shared(directory) {
        return Err(refused("a pipe or a device of another user"));
    }
    let is_sticky = directory.mode() & 0o1000 != 0;
    if is_open_to_all && is_sticky && is_of_another_user(found) && found.uid() != directory.uid() {
        return Err(refused("a file of another user"));
    }
    // Another name can be that of any file.
    let is_of_owner = is_of_another_user(directory) && found.uid() == directory.uid();
    let can_be_linked = is_open_to_all || (geteuid().is_root() && is_of_another_user(directory));
    if found.is_file() && found.nlink() > 1 && can_be_linked && !is_of_owner {
        return Err(refused("a file with several names (hard links)"));
    }
    Ok(())
}

fn refused(what: &str) -> io::Error {
    let words = format!("it is {what}, in a directory that others can write to");
    io::Error::new(io::ErrorKind::PermissionDenied, words)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};
    use std::path::PathBuf;

    use super::*;

    const OTHER: Option<u32> = Some(65534);

    fn directory(mode: u32) -> (tempfile::TempDir, impl Fn(&str) -> PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
        let path = directory.path().to_owned();
        (directory, move |name| path.join(name))
    }

    fn error_at(path: &Path) -> String {
        FileToWrite::at(path).unwrap_err().to_string()
    }

    #[test]
    fn a_file_is_created_replaced_and_appended_to_also_through_own_links() {
        let (_directory, at) = directory(0o1777);
        fs::create_dir(at("below")).unwrap();
        symlink("below", at("directory")).unwrap();
        symlink("directory/../below/file", at("link")).unwrap();
        let found = FileToWrite::at(&at("link")).unwrap();
        assert!(!found.exists());
        found.check().unwrap();
        assert!(!at("below/file").exists());
        found.replace().unwrap().write_all(b"long").unwrap();
        let again = FileToWrite::at(&at("link")).unwrap();
        again.check().unwrap();
        assert!(again.exists() && !again.is_special().unwrap());
        assert_eq!(fs::read_to_string(at("below/file")).unwrap(), "long");
        again.replace().unwrap().write_all(b"x").unwrap();
        again.append(0o600).unwrap().write_all(b"y").unwrap();
        assert_eq!(fs::read_to_string(at("below/file")).unwrap(), "xy");
        // What was not there is never one that someone has put there since.
        assert!(found.replace().is_err());
    }

    #[test]
    fn what_is_no_file_is_an_error() {
        let (_directory, at) = directory(0o700);
        symlink("round", at("round")).unwrap();
        fs::write(at("file"), "").unwrap();
        for (name, words) in [
            ("", "directory"),
            ("new/", "No such file"),
            ("file/", "Not a directory"),
            ("none/file", "No such file"),
            ("round", "symbolic links"),
        ] {
            let error = error_at(&at(name));
            assert!(error.contains(words), "{name}: {error}");
        }
        assert!(error_at(Path::new("")).contains("No such file"));
    }

    #[test]
    fn standard_output_and_devices_are_opened() {
        for name in ["/dev/stdout", "/dev/null", "/proc/self/fd/1"] {
            FileToWrite::at(Path::new(name)).unwrap().check().unwrap();
        }
        let full = FileToWrite::at(Path::new("/dev/full")).unwrap();
        assert!(full.is_special().unwrap());
        assert!(full.open_waiting().unwrap().write_all(b"x").is_err());
        assert!(full.replace().is_err());
    }

    #[test]
    fn a_pipe_without_a_reader_is_an_error_at_once() {
        let (_directory, at) = directory(0o700);
        let path = at("pipe");
        rustix::fs::mknodat(
            CWD,
            &path,
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        let found = FileToWrite::at(&path).unwrap();
        assert!(found.is_special().unwrap() && found.replace().is_err());
        assert!(found.open_at_once().is_err());
        let _reader = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        found.open_at_once().unwrap().write_all(b"x").unwrap();
    }

    /// Regression: root overwrote what a link led to that another user had put into a directory open to all.
    #[test]
    fn what_another_user_put_into_a_directory_open_to_all_is_refused() {
        if !geteuid().is_root() {
            pgassay_test_support::skip("files of another user", "requires root");
            return;
        }
        for mode in [0o1777, 0o777, 0o770] {
            let (_directory, at) = directory(mode);
            fs::create_dir(at("private")).unwrap();
            fs::write(at("private/file"), "text").unwrap();
            symlink("private/file", at("link")).unwrap();
            symlink("private", at("directory")).unwrap();
            symlink("private/none", at("dangling")).unwrap();
            FileToWrite::at(&at("directory/file")).unwrap();
            for name in ["link", "directory", "dangling"] {
                lchown(at(name), OTHER, None).unwrap();
            }
            for name in ["link", "directory/file", "dangling"] {
                let error = error_at(&at(name));
                assert!(error.contains("a link of another user"), "{error}");
            }
            rustix::fs::mknodat(CWD, at("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
                .unwrap();
            lchown(at("pipe"), OTHER, None).unwrap();
            assert!(error_at(&at("pipe")).contains("a pipe or a device of another user"));
        }
        let (_directory, at) = directory(0o1777);
        fs::write(at("file"), "").unwrap();
        fs::hard_link(at("file"), at("other")).unwrap();
        assert!(error_at(&at("file")).contains("several names"));
        fs::remove_file(at("other")).unwrap();
        lchown(at("file"), OTHER, None).unwrap();
        assert!(error_at(&at("file")).contains("a file of another user"));
    }

    /// A user's own directory, with sudo: only links are refused.
    #[test]
    fn root_replaces_files_of_a_directory_of_a_user_and_follows_no_link_there() {
        if !geteuid().is_root() {
            pgassay_test_support::skip("a directory of another user", "requires root");
            return;
        }
        let (directory, at) = directory(0o700);
        fs::write(at("file"), "").unwrap();
        fs::hard_link(at("file"), at("other")).unwrap();
        symlink("file", at("link")).unwrap();
        for path in [directory.path().to_owned(), at("file"), at("link")] {
            lchown(path, OTHER, None).unwrap();
        }
        FileToWrite::at(&at("file")).unwrap().check().unwrap();
        assert!(error_at(&at("link")).contains("a link of another user"));
        lchown(at("file"), Some(0), None).unwrap();
        assert!(error_at(&at("file")).contains("several names"));
    }
}
