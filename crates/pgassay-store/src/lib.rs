//! Keeps results: one directory per run and an SQLite index.
//!
//! `<root>/<id>/` holds `run.json` (the whole run), `study.toml` (the study's own text) and what
//! else the caller hands over: the report, folded stacks, server logs. Such a directory is all
//! there is to a result; it can be moved, mailed and read without the rest.
//!
//! `<root>/index.sqlite` only makes lists fast and lets anyone ask questions over many runs in
//! SQL, through the stable views `runs`, `points` and `comparisons`. It holds nothing that the
//! directories do not: whenever the two differ, the directories are right and the index follows.
//!
//! Invariants: a directory appears under its name only when everything in it has reached the disk;
//! two programs that save at once both succeed; nothing here prints.

mod calibrations;
mod error;
mod headline;
mod id;
mod index;
mod lookup;
mod save;

use std::fs;
use std::path::{Path, PathBuf};

pub use error::StoreError;
pub use index::{Filter, RunLine};

/// A place where results are kept.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// The store under `root`, which is made if it is not there.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        fs::create_dir_all(root).map_err(|source| StoreError::writing(root, source))?;
        let store = Self {
            root: root.to_owned(),
        };
        store.sweep();
        Ok(store)
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Every run, newest first.
    pub fn list(&self) -> Result<Vec<RunLine>, StoreError> {
        self.list_where(&Filter::default())
    }

    /// The runs that a filter lets through, newest first.
    pub fn list_where(&self, filter: &Filter) -> Result<Vec<RunLine>, StoreError> {
        index::list(&self.root, filter)
    }

    /// Writes the index anew from the directories.
    pub fn rebuild_index(&self) -> Result<(), StoreError> {
        index::rebuild(&self.root)
    }

    /// Names of the runs' directories, oldest first: an id begins with its time.
    pub(crate) fn ids(&self) -> Result<Vec<String>, StoreError> {
        directories(&self.root)
    }
}

/// Names of directories that hold a run, in the order of their names.
pub(crate) fn directories(root: &Path) -> Result<Vec<String>, StoreError> {
    let reading = |source| StoreError::reading(root, source);
    let mut names = Vec::new();
    for entry in fs::read_dir(root).map_err(reading)? {
        let entry = entry.map_err(reading)?;
        // Names of runs are written by this program and are always text.
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
