//! Reserves names of runs.
//!
//! A name is reserved by an empty file in `<root>/.names`, until the run's directory exists. It does
//! not involve the index, which may be locked or damaged.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::StoreError;
use crate::files;

const DIRECTORY: &str = ".names";
/// Reservations expire after a week; names start with their time anyway.
const RESERVED_MAX: Duration = Duration::from_hours(7 * 24);

/// Reserves the first of `base`, `base-2`, … that neither a directory nor another process has.
pub(crate) fn reserve(root: &Path, base: &str) -> Result<String, StoreError> {
    let directory = root.join(DIRECTORY);
    files::create_directories(&directory)
        .map_err(|source| StoreError::writing(&directory, source))?;
    forget_old(&directory);
    let mut number = 1;
    loop {
        let id = if number == 1 {
            base.to_owned()
        } else {
            format!("{base}-{number}")
        };
        number += 1;
        let file = path(root, &id);
        match files::create(&file) {
            // A directory gets its name before its reservation ends, so this order misses none.
            Ok(_) if !root.join(&id).exists() => return Ok(id),
            Ok(_) => release(root, &id),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(StoreError::writing(&file, source)),
        }
    }
}

/// Ends a reservation.
pub(crate) fn release(root: &Path, id: &str) {
    // What remains expires.
    _ = fs::remove_file(path(root, id));
}

fn path(root: &Path, id: &str) -> PathBuf {
    root.join(DIRECTORY).join(id)
}

fn forget_old(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|metadata| metadata.modified());
        if age.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > RESERVED_MAX)) {
            _ = fs::remove_file(entry.path());
        }
    }
}
