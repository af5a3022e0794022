//! Continues a run that did not finish: finds it, locks it, and appends to what it saved.

use std::fs::{self, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pgassay_model::detail::RunDetail;
use serde::Deserialize;

use crate::directories::{
    DETAILS_FILE, RUN_FILE, STUDY_FILE, TRIALS_FILE, directories_with_trials,
};
use crate::error::StoreError;
use crate::line_file::LineFile;
use crate::run_directory::RunDirectory;
use crate::unfinished::{self, RESERVED_FILE, UnfinishedRun};
use crate::writer::{self, RunWriter};
use crate::{Store, files, ownership, read_regular, regular_file};

/// A run that this process may continue.
#[derive(Debug)]
pub struct ReopenedRun {
    /// Appends to what the run saved. The run is locked until this is dropped.
    pub writer: RunWriter,
    /// What the run saved.
    pub unfinished: UnfinishedRun,
    /// What the run gathered besides the figures of its trials.
    pub details: Vec<RunDetail>,
    /// The study's text, as it was when the run began.
    pub study_text: String,
}

impl Store {
    /// The name of the run to continue: given by its name, a unique prefix, its directory, or `last`;
    /// otherwise the newest one that did not finish and is not being measured.
    ///
    /// # Errors
    /// [`StoreError::Finished`] if that run is over, [`StoreError::NoneUnfinished`] or
    /// [`StoreError::Running`] if there is none to continue, [`StoreError::Elsewhere`] for a directory outside of
    /// the store's, and as [`Store::find`].
    pub fn find_unfinished(&self, wanted: Option<&str>) -> Result<String, StoreError> {
        let mut with_trials = directories_with_trials(&self.root)?;
        with_trials.retain(|id| !is_complete(&self.root.join(id)));
        let Some(wanted) = wanted else {
            return self.newest_unfinished(with_trials);
        };
        let mut ids = self.ids()?;
        ids.extend(with_trials.iter().cloned());
        ids.sort();
        ids.dedup();
        ids.reverse();
        let id = if wanted.contains('/') {
            self.name_of_directory(Path::new(wanted))?
        } else {
            self.choose(wanted, &ids)?
        };
        if with_trials.contains(&id) {
            Ok(id)
        } else {
            Err(StoreError::Finished { id })
        }
    }

    /// The name of a run that is given by its directory.
    fn name_of_directory(&self, path: &Path) -> Result<String, StoreError> {
        let elsewhere = || StoreError::Elsewhere {
            path: path.to_owned(),
            root: self.root.clone(),
        };
        let reading = |source| StoreError::reading(path, source);
        let directory = fs::canonicalize(path).map_err(reading)?;
        let root = fs::canonicalize(&self.root).map_err(reading)?;
        let name = directory.file_name().and_then(|name| name.to_str());
        let name = name.filter(|_| directory.parent() == Some(&root));
        name.map(str::to_owned).ok_or_else(elsewhere)
    }

    fn newest_unfinished(&self, with_trials: Vec<String>) -> Result<String, StoreError> {
        let mut running = None;
        for id in with_trials.into_iter().rev() {
            let directory = self.root.join(&id);
            let checked = ownership::open_run(&self.root, &id);
            match checked.and_then(|_| unfinished::summary(&directory)) {
                Ok((start, _, false)) if start.origin.is_some() => return Ok(id),
                Ok((_, _, false)) => {}
                Ok((_, _, true)) => running = running.or(Some(id)),
                Err(error) => tracing::warn!(%error, "unfinished run left out"),
            }
        }
        Err(match running {
            Some(id) => StoreError::Running { id },
            None => StoreError::NoneUnfinished {
                root: self.root.clone(),
            },
        })
    }

    /// Opens a run that did not finish, and locks it.
    ///
    /// # Errors
    /// [`StoreError::Running`] if another process measures it, [`StoreError::Finished`] if it is over,
    /// [`StoreError::Damaged`] if a line in the middle of its trials cannot be read,
    /// [`StoreError::OfOthers`] if another user may have written it.
    pub fn reopen(&self, id: &str) -> Result<ReopenedRun, StoreError> {
        let finished = || StoreError::Finished { id: id.to_owned() };
        let directory = ownership::open_run(&self.root, id)?.ok_or_else(finished)?;
        let trials = LineFile::open(&directory, TRIALS_FILE)?.ok_or_else(finished)?;
        if is_complete(&directory.path()) {
            return Err(finished());
        }
        if matches!(trials.file().try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(StoreError::Running { id: id.to_owned() });
        }
        // The process that measured it may have finished it before this one got the lock.
        if !is_same_file(&trials, &directory.path().join(TRIALS_FILE)) {
            return Err(finished());
        }
        let path = directory.path();
        self.continue_in(directory, trials)
            .map_err(|error| error.with_path(&path, &self.root.join(id)))
    }

    /// Reads what a run saved, and prepares to append to it.
    fn continue_in(
        &self,
        directory: RunDirectory,
        mut trials: LineFile,
    ) -> Result<ReopenedRun, StoreError> {
        let path = directory.path();
        let (mut unfinished, length) = unfinished::read(&path)?;
        unfinished.is_running = false;
        if let Some(line) = length.damaged_line {
            return Err(StoreError::Damaged {
                path: path.join(TRIALS_FILE),
                line,
                column: 1,
                message: "it is neither a trial nor a marker; to continue without it, remove this \
                          line and those after it"
                    .to_owned(),
            });
        }
        let study = path.join(STUDY_FILE);
        let study_text = read_regular(&study)
            .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other))
            .map_err(|source| StoreError::reading(&study, source))?;
        let (gathered, details_bytes) = unfinished::details(&path)?;
        // The last lines may be incomplete.
        trials.continue_at(length.bytes)?;
        let mut details = LineFile::open(&directory, DETAILS_FILE)?;
        if let Some(details) = &mut details {
            details.continue_at(details_bytes)?;
        }
        files::remove(&path.join(RESERVED_FILE))?;
        writer::reserve(&path)?;
        Ok(ReopenedRun {
            writer: RunWriter {
                root: self.root.clone(),
                id: directory.name().to_owned(),
                directory,
                study_text: study_text.clone(),
                trials,
                details,
                count: unfinished.trials.len() as u64,
            },
            unfinished,
            details: gathered,
            study_text,
        })
    }
}

/// Whether a run has a complete result: its process may have been killed before it removed the trials.
fn is_complete(directory: &Path) -> bool {
    #[derive(Deserialize)]
    struct Completeness {
        complete: bool,
    }
    let text = regular_file::read_of_run(&directory.join(RUN_FILE));
    let parsed = text.map(|text| serde_json::from_slice::<Completeness>(&text));
    matches!(parsed, Ok(Ok(it)) if it.complete)
}

fn is_same_file(opened: &LineFile, path: &Path) -> bool {
    match (opened.file().metadata(), fs::metadata(path)) {
        (Ok(opened), Ok(there)) => (opened.dev(), opened.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}
