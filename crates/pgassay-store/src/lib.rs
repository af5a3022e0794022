//! Stores results: one directory per run and an SQLite index.
//!
//! `<root>/<id>/` contains `run.json` (the whole run), `study.toml` (the study's original text) and the
//! caller's files: the report, folded stacks, server logs. The directory is self-contained: it can be
//! moved, mailed and read without the rest. Only its owner can read it.
//!
//! [`Store::create`] makes the directory before the first trial and saves each trial as it ends; without
//! `run.json`, such a directory is an unfinished run. [`Store::reopen`] continues it. [`Store::save`]
//! saves a run at its end.
//!
//! `<root>/index.sqlite` makes lists fast and allows SQL queries over many runs, through the stable
//! views `runs`, `points` and `comparisons`. It contains nothing that the directories do not: if the two
//! differ, the directories are right and the index is updated.
//!
//! Invariants: `run.json` gets its name only after it was synced to disk; two processes that save
//! concurrently both succeed; an index that is locked, damaged or not writable loses no run and hides
//! none; nothing here prints.

mod calibrations;
mod directories;
mod error;
mod files;
mod headline;
mod id;
mod index;
mod index_header;
mod line_file;
mod listing;
mod lookup;
mod names;
mod origin;
mod ownership;
mod pinned_directory;
mod regular_file;
mod reopen;
mod repair;
mod run_directory;
mod save;
mod unfinished;
mod upgrade;
mod writer;

use std::path::{Path, PathBuf};

pub use error::StoreError;
pub use index::{Filter, RunLine};
pub use origin::{MachineIdentity, RunOrigin, RunStart};
pub use regular_file::read_regular;
pub use reopen::ReopenedRun;
pub use unfinished::UnfinishedRun;
pub use writer::RunWriter;

/// A directory of results.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Opens the store in `root`, which is created if it does not exist.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        let store = Self::open_to_read(root)?;
        files::create_directories(root).map_err(|source| StoreError::writing(root, source))?;
        Ok(store)
    }

    /// Opens the store in `root`. If the directory does not exist, the store is empty.
    pub fn open_to_read(root: &Path) -> Result<Self, StoreError> {
        if let Some(file) = root.ancestors().find(|it| it.exists() && !it.is_dir()) {
            return Err(StoreError::NotDirectory {
                path: file.to_owned(),
            });
        }
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
}
