//! Reserves names of runs.
//!
//! A name is reserved by an empty file in `<root>/.names`, until the run's directory exists. It does
//! not involve the index, which may be locked or damaged.

use std::fs::{self, Metadata};
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::error::StoreError;
use crate::files;
use crate::pinned_directory::PinnedDirectory;

const DIRECTORY: &str = ".names";
/// Reservations expire after a week; names start with their time anyway.
const RESERVED_MAX: Duration = Duration::from_hours(7 * 24);

/// Reserves the first of `base`, `base-2`, … that neither a directory nor another process has.
pub(crate) fn reserve(root: &Path, base: &str) -> Result<String, StoreError> {
    let path = root.join(DIRECTORY);
    let opened =
        files::create_directories(&path).and_then(|()| PinnedDirectory::open_itself(&path));
    let directory = opened.map_err(|source| StoreError::writing(&path, source))?;
    forget_old(&directory);
    let mut number = 1;
    loop {
        let id = if number == 1 {
            base.to_owned()
        } else {
            format!("{base}-{number}")
        };
        number += 1;
        match files::create(&directory.path().join(&id)) {
            // A directory gets its name before its reservation ends, so this order misses none.
            Ok(_) if !root.join(&id).exists() => return Ok(id),
            Ok(_) => release(root, &id),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(StoreError::writing(&path.join(&id), source)),
        }
    }
}

/// Ends a reservation.
pub(crate) fn release(root: &Path, id: &str) {
    // What remains expires.
    if let Ok(directory) = PinnedDirectory::open_itself(&root.join(DIRECTORY)) {
        _ = fs::remove_file(directory.path().join(id));
    }
}

fn forget_old(directory: &PinnedDirectory) {
    let is_expired = |it: &Metadata| {
        let age = it.modified().ok().and_then(|time| time.elapsed().ok());
        it.is_file() && it.len() == 0 && age.is_some_and(|age| age > RESERVED_MAX)
    };
    let entries = fs::read_dir(directory.path());
    for entry in entries.into_iter().flatten().flatten() {
        if entry.metadata().is_ok_and(|it| is_expired(&it)) {
            _ = fs::remove_file(entry.path());
        }
    }
}
