//! Stores results: one directory per run and an SQLite index.
//!
//! `<root>/<id>/` contains `run.json` (the whole run), `study.toml` (the study's original text) and the
//! caller's files: the report, folded stacks, server logs. The directory is self-contained: it can be
//! moved, mailed and read without the rest.
//!
//! `<root>/index.sqlite` makes lists fast and allows SQL queries over many runs, through the stable
//! views `runs`, `points` and `comparisons`. It contains nothing that the directories do not: if the two
//! differ, the directories are right and the index is updated.
//!
//! Invariants: a directory gets its name only after everything in it was synced to disk; two processes
//! that save concurrently both succeed; nothing here prints.

mod calibrations;
mod error;
mod headline;
mod id;
mod index;
mod lookup;
mod save;
mod upgrade;

use std::fs;
use std::path::{Path, PathBuf};

pub use error::StoreError;
pub use index::{Filter, RunLine};

/// A directory of results.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Opens the store in `root`, which is created if it does not exist.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        fs::create_dir_all(root).map_err(|source| StoreError::writing(root, source))?;
        let store = Self {
            root: root.to_owned(),
        };
        store.sweep();
        Ok(store)
    }

    /// The store's directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Names of the runs' directories, oldest first: an id starts with its time.
    pub(crate) fn ids(&self) -> Result<Vec<String>, StoreError> {
        directories(&self.root)
    }
}

/// Names of directories that contain a run, sorted.
pub(crate) fn directories(root: &Path) -> Result<Vec<String>, StoreError> {
    let reading = |source| StoreError::reading(root, source);
    let mut names = Vec::new();
    for entry in fs::read_dir(root).map_err(reading)? {
        let entry = entry.map_err(reading)?;
        // pgassay gives runs only names that are valid UTF-8.
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        if !name.starts_with('.') && entry.path().join(RUN_FILE).is_file() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The file that makes a directory a run.
pub(crate) const RUN_FILE: &str = "run.json";
