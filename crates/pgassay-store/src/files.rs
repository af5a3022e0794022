//! Files and directories that only their owner can read: results contain SQL and settings.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::error::StoreError;

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Creates a directory, and those above it that do not exist.
pub(crate) fn create_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path)
}

/// Creates a directory, which must not exist.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIRECTORY_MODE).create(path)
}

/// Creates a file for writing, which must not exist.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(path)
}

/// Creates a file, which must not exist, with this content, and syncs it to disk. Creates the
/// directories above it if necessary.
pub(crate) fn write(
    path: &Path,
    content: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), StoreError> {
    let attempt = || {
        if let Some(parent) = path.parent() {
            create_directories(parent)?;
        }
        let mut file = create(path)?;
        content(&mut file)?;
        // With delayed allocation, a full disk shows only here.
        file.sync_all()
    };
    attempt().map_err(|source| StoreError::writing(path, source))
}

/// Syncs a directory's entries: a new or renamed file is durable only after that.
pub(crate) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|source| StoreError::writing(path, source))
}

/// Removes a file; it is no error if there is none.
pub(crate) fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::writing(path, error))
        }
        _ => Ok(()),
    }
}
