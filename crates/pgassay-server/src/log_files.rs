//! The files of a server's log, below the server's directory. Its user could redirect a path to files of root, with
//! a link or with `log_directory`, so they are found and opened from the open directory, and no link is followed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::log::{LOG_FILE, collected_tail};
use crate::open_dir::OpenDir;

/// A directory with more files than this is listed in part: a study's SQL can create any number.
const FILES_MAX: usize = 10_000;

/// The file of standard error, and those of the logging collector. Paths are relative to the server's directory.
#[derive(Clone, Debug)]
pub(crate) struct LogFiles {
    base: Arc<OpenDir>,
    /// The directories that the logging collector may write to; empty if it is off.
    directories: Vec<PathBuf>,
}

impl LogFiles {
    pub(crate) fn new(base: Arc<OpenDir>, directories: Vec<PathBuf>) -> Self {
        Self { base, directories }
    }

    /// Whether there are files of the logging collector.
    pub(crate) fn has_collector(&self) -> bool {
        !self.directories.is_empty()
    }

    /// The regular files with their sizes.
    pub(crate) fn sizes(&self) -> BTreeMap<PathBuf, u64> {
        let mut sizes = BTreeMap::new();
        if let Ok(own) = self.base.info_of(OsStr::new(LOG_FILE))
            && own.is_file
        {
            sizes.insert(PathBuf::from(LOG_FILE), own.bytes);
        }
        for path in &self.directories {
            let Ok(directory) = self.base.open_below(path) else {
                continue;
            };
            let listed = directory.each_name(|name| {
                if let Ok(found) = directory.info_of(name)
                    && found.is_file
                {
                    sizes.insert(path.join(name), found.bytes);
                }
                sizes.len() < FILES_MAX
            });
            // A file that is not found is not counted.
            drop(listed);
        }
        sizes
    }

    /// Opens one of the files for reading.
    pub(crate) fn open(&self, path: &Path) -> io::Result<File> {
        let name = path.file_name().unwrap_or_default();
        match path.parent().filter(|it| !it.as_os_str().is_empty()) {
            Some(parent) => self.base.open_below(parent)?.open_file(name),
            None => self.base.open_file(name),
        }
    }

    /// The last lines of the logging collector's newest file, if there is one.
    pub(crate) fn collected_tail(&self, lines_max: usize) -> Option<String> {
        collected_tail(&self.base, &self.directories, lines_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Regression: a study's SQL replaced the log directory with a link, and root listed and read the files of the
    /// directory that it led to: their sizes and numbers of lines were in the result. `log_directory` could name one.
    #[test]
    fn a_log_directory_that_leads_elsewhere_is_not_read() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "one\ntwo\n").unwrap();
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        fs::create_dir_all(at("data/real")).unwrap();
        fs::write(at("log"), "own\n").unwrap();
        fs::write(at("data/real/a.log"), "a\n").unwrap();
        symlink(outside.path(), at("data/log")).unwrap();
        symlink(outside.path().join("secret"), at("data/real/link.log")).unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            at("data/real/fifo"),
            rustix::fs::Mode::RWXU,
        )
        .unwrap();
        let open = Arc::new(OpenDir::open_trusted(base.path()).unwrap());
        let up = "data/../../".to_owned() + outside.path().file_name().unwrap().to_str().unwrap();
        let named = ["data/log", "data/real", "data/missing", &up].map(PathBuf::from);
        let directories = named
            .into_iter()
            .chain([outside.path().to_owned()])
            .collect();
        let files = LogFiles::new(open, directories);
        let expected = [("data/real/a.log", 2), ("log", 4)];
        let expected = expected.map(|(path, bytes)| (PathBuf::from(path), bytes));
        assert_eq!(files.sizes(), BTreeMap::from(expected));
        assert!(files.open(Path::new("data/real/a.log")).is_ok());
        for path in ["data/log/secret", "data/real/link.log", "data/real/fifo"] {
            assert!(files.open(Path::new(path)).is_err(), "{path}");
        }
    }
}
