//! The directory of a run that is being written. Who may write to the results directory can put a link or another
//! directory in its place at any time: it is opened once, and everything in it is written through that.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::pinned_directory::PinnedDirectory;
use crate::{files, ownership};

/// Created and removed in a new directory, to learn who owns new files there.
const OWNER_FILE: &str = ".owner";

/// The directory of a run, and the results directory with it, both open.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    root: PinnedDirectory,
    pinned: PinnedDirectory,
    name: String,
    /// The path for messages: that of an open directory says nothing to a user.
    known: PathBuf,
}

impl RunDirectory {
    /// Creates a directory, which must not exist.
    pub(crate) fn create(root: &Path, name: &str) -> Result<Self, StoreError> {
        let known = root.join(name);
        let attempt = || {
            let root = PinnedDirectory::open(root)?;
            let pinned = create_in(&root, name)?;
            Ok((root, pinned))
        };
        let (root, pinned) = attempt().map_err(|source| StoreError::writing(&known, source))?;
        Ok(Self {
            root,
            pinned,
            name: name.to_owned(),
            known,
        })
    }

    /// Opens a directory that no other user can have written; `None` if there is none.
    pub(crate) fn open(root: &Path, name: &str) -> Result<Option<Self>, StoreError> {
        let known = root.join(name);
        let reading = |source| StoreError::reading(&known, source);
        let opened = PinnedDirectory::open(root).map_err(|it| StoreError::reading(root, it))?;
        let place = opened.path().join(name);
        let found = match place.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            found => found.map_err(reading)?,
        };
        let of_others = |path: &Path| StoreError::OfOthers {
            path: path.to_owned(),
        };
        if !found.is_dir() {
            return Err(of_others(&known));
        }
        let pinned = PinnedDirectory::open_itself(&place).map_err(reading)?;
        let directory = Self {
            root: opened,
            pinned,
            name: name.to_owned(),
            known: known.clone(),
        };
        let of_root = directory.root.metadata().map_err(reading)?;
        if !ownership::keeps_names(&of_root) {
            return Err(of_others(root));
        }
        if !ownership::is_ours(&directory.pinned.metadata().map_err(reading)?) {
            return Err(of_others(&known));
        }
        Ok(Some(directory))
    }

    /// Its name in the results directory.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The path that a user knows.
    pub(crate) fn known(&self) -> &Path {
        &self.known
    }

    /// Where it is now: if something else is in its place, the path to which it was renamed.
    pub(crate) fn current(&self) -> PathBuf {
        let renamed = || fs::read_link(self.pinned.path());
        let current = match self.is_in_place() {
            Err(_) => renamed().ok().filter(|it| it.exists()),
            Ok(_) => None,
        };
        current.unwrap_or_else(|| self.known.clone())
    }

    /// The path that leads here, whatever is in the place of the known one.
    pub(crate) fn path(&self) -> PathBuf {
        self.pinned.path()
    }

    /// An error with the path that a user knows.
    pub(crate) fn known_in(&self, error: StoreError) -> StoreError {
        error.with_path(&self.pinned.path(), &self.known)
    }

    /// Writes the entries of the directory and its name to disk.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        files::sync_directory(&self.path()).map_err(|error| self.known_in(error))?;
        let of_root = self.known.parent().unwrap_or(&self.known);
        files::sync_directory(&self.root.path())
            .map_err(|error| error.with_path(&self.root.path(), of_root))
    }

    /// Returns an error if something else is in its place.
    pub(crate) fn check_place(&self) -> Result<(), StoreError> {
        self.is_in_place().map(drop)
    }

    /// The same, and makes the directory again if there is nothing in its place.
    pub(crate) fn make_if_missing(&mut self) -> Result<(), StoreError> {
        if self.is_in_place()? {
            return Ok(());
        }
        let writing = |source| StoreError::writing(&self.known, source);
        let root = self.known.parent().unwrap_or(&self.known);
        match fs::metadata(root) {
            Ok(found) if is_same(&found, &self.root.metadata().map_err(writing)?) => {}
            Ok(_) => return Err(writing(replaced())),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.root = create_root(root).map_err(writing)?;
            }
            Err(error) => return Err(writing(error)),
        }
        self.pinned = create_in(&self.root, &self.name).map_err(writing)?;
        Ok(())
    }

    /// Renames it to `name` in the same directory.
    pub(crate) fn rename(&mut self, name: &str) -> io::Result<()> {
        let place = |name: &str| self.root.path().join(name);
        fs::rename(place(&self.name), place(name))?;
        let found = place(name).symlink_metadata()?;
        if !is_same(&found, &self.pinned.metadata()?) {
            return Err(replaced());
        }
        name.clone_into(&mut self.name);
        self.known.set_file_name(name);
        Ok(())
    }

    /// Removes it with its content. What cannot be removed stays.
    pub(crate) fn remove(self) {
        for entry in fs::read_dir(self.path()).into_iter().flatten().flatten() {
            let is_directory = entry.file_type().is_ok_and(|it| it.is_dir());
            _ = if is_directory {
                fs::remove_dir_all(entry.path())
            } else {
                fs::remove_file(entry.path())
            };
        }
        // If another directory is in its place, this removes only an empty one.
        _ = fs::remove_dir(self.root.path().join(&self.name));
    }

    /// Whether it is where it was created; false if nothing is there.
    fn is_in_place(&self) -> Result<bool, StoreError> {
        let attempt = || match self.known.symlink_metadata() {
            Ok(found) if is_same(&found, &self.pinned.metadata()?) => Ok(true),
            Ok(_) => Err(replaced()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        };
        attempt().map_err(|source| StoreError::writing(&self.known, source))
    }
}

fn is_same(left: &Metadata, right: &Metadata) -> bool {
    (left.dev(), left.ino()) == (right.dev(), right.ino())
}

fn replaced() -> io::Error {
    io::Error::other("it was replaced since the run began, so nothing is written to it")
}

/// Makes the results directory again.
fn create_root(path: &Path) -> io::Result<PinnedDirectory> {
    files::create_directories(path)?;
    let root = PinnedDirectory::open(path)?;
    check_new(&root)?;
    Ok(root)
}

/// Creates a directory in another, and opens it.
fn create_in(root: &PinnedDirectory, name: &str) -> io::Result<PinnedDirectory> {
    let place = root.path().join(name);
    files::create_directory(&place)?;
    let attempt = || {
        let pinned = PinnedDirectory::open_itself(&place)?;
        check_new(&pinned)?;
        Ok(pinned)
    };
    // Only an empty one is removed.
    attempt().inspect_err(|_| _ = fs::remove_dir(&place))
}

/// Returns an error if a directory was not created by this user just now.
fn check_new(directory: &PinnedDirectory) -> io::Result<()> {
    let owner = directory.metadata()?.uid();
    let is_empty = fs::read_dir(directory.path())?.next().is_none();
    if is_empty && (owner == ownership::user() || owner == owner_of_new_files(directory)?) {
        return Ok(());
    }
    Err(replaced())
}

/// The owner of files that this user creates in a directory: a network file system may change that of all that root
/// creates.
fn owner_of_new_files(directory: &PinnedDirectory) -> io::Result<u32> {
    let path = directory.path().join(OWNER_FILE);
    let owner = files::create(&path).and_then(|file: File| file.metadata());
    _ = fs::remove_file(&path);
    Ok(owner?.uid())
}
