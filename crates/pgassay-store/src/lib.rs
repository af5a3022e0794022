//! Stores results: one directory per run and an SQLite index.
//!
//! `<root>/<id>/` contains `run.json` (the whole run), `study.toml` (the study's original text) and the
//! caller's files: the report, folded stacks, server logs. The directory is self-contained: it can be
//! moved, mailed and read without the rest. Only its owner can read it.
//!
//! [`Store::create`] makes the directory before the first trial and saves each trial as it ends; without
//! `run.json`, such a directory is an unfinished run. [`Store::save`] saves a run at its end.
//!
//! `<root>/index.sqlite` makes lists fast and allows SQL queries over many runs, through the stable
//! views `runs`, `points` and `comparisons`. It contains nothing that the directories do not: if the two
//! differ, the directories are right and the index is updated.
//!
//! Invariants: `run.json` gets its name only after it was synced to disk; two processes that save
//! concurrently both succeed; an index that is locked, damaged or not writable loses no run and hides
//! none; nothing here prints.

mod calibrations;
mod error;
mod files;
mod headline;
mod id;
mod index;
mod lookup;
mod names;
mod repair;
mod save;
mod upgrade;
mod writer;

use std::fs;
use std::path::{Path, PathBuf};

pub use error::StoreError;
pub use index::{Filter, RunLine};
pub use writer::{RunStart, RunWriter, UnfinishedRun};

/// A directory of results.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Opens the store in `root`, which is created if it does not exist.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        files::create_directories(root).map_err(|source| StoreError::writing(root, source))?;
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

    /// Every run, newest first, unfinished ones included.
    pub fn list(&self) -> Result<Vec<RunLine>, StoreError> {
        self.list_where(&Filter::default())
    }

    /// The runs that match a filter, newest first.
    pub fn list_where(&self, filter: &Filter) -> Result<Vec<RunLine>, StoreError> {
        let mut lines = repair::list(&self.root, filter)?;
        lines.extend(index::unfinished(&self.root, filter)?);
        lines.sort_by(|a, b| (b.started_us, &b.id).cmp(&(a.started_us, &a.id)));
        if let Some(limit) = filter.limit {
            lines.truncate(limit as usize);
        }
        Ok(lines)
    }

    /// Rebuilds the index from the directories.
    pub fn rebuild_index(&self) -> Result<(), StoreError> {
        repair::rebuild(&self.root)
    }

    /// Names of the runs' directories, oldest first: an id starts with its time.
    pub(crate) fn ids(&self) -> Result<Vec<String>, StoreError> {
        directories(&self.root)
    }
}

/// Names of directories that contain a run, sorted.
pub(crate) fn directories(root: &Path) -> Result<Vec<String>, StoreError> {
    directories_with(root, |directory| directory.join(RUN_FILE).is_file())
}

/// Names of directories that contain an unfinished run, sorted.
pub(crate) fn unfinished_directories(root: &Path) -> Result<Vec<String>, StoreError> {
    directories_with(root, |directory| {
        directory.join(writer::TRIALS_FILE).is_file() && !directory.join(RUN_FILE).is_file()
    })
}

fn directories_with(
    root: &Path,
    is_wanted: impl Fn(&Path) -> bool,
) -> Result<Vec<String>, StoreError> {
    let reading = |source| StoreError::reading(root, source);
    let mut names = Vec::new();
    for entry in fs::read_dir(root).map_err(reading)? {
        let entry = entry.map_err(reading)?;
        // pgassay gives runs only names that are valid UTF-8.
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        if !name.starts_with('.') && is_wanted(&entry.path()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The file that makes a directory a run.
pub(crate) const RUN_FILE: &str = "run.json";
