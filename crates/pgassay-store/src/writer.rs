//! Saves a run while it is measured, so that no measured trial is lost.
//!
//! [`Store::create`] makes the run's directory before the first trial, and so finds a directory that
//! is read-only or full. Each trial is appended to `trials.jsonl` as it ends. [`RunWriter::finish`]
//! writes `run.json`, which makes the directory a finished run; the index has no part in this. Some
//! space is reserved from the beginning, for a disk that fills up meanwhile.
//!
//! A directory with `trials.jsonl` and without `run.json` is an unfinished run. While it is being
//! measured, its file of trials is locked (`flock`). [`Store::reopen`] continues it. A run that ended
//! before all trials were done keeps its trials next to its result, and can be continued as well.
//!
//! A power failure loses no round that had ended: [`RunWriter::sync`].

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use pgassay_model::detail::RunDetail;
use pgassay_model::trial::Trial;
use pgassay_record::run::{Run, ServerFacts};

use crate::directories::{DETAILS_FILE, RUN_FILE, STUDY_FILE, TRIALS_FILE};
use crate::error::StoreError;
use crate::line_file::LineFile;
use crate::origin::{FirstLine, RunMarker, RunStart, TRIALS_SCHEMA};
use crate::run_directory::RunDirectory;
use crate::save::check_name;
use crate::unfinished::RESERVED_FILE;
use crate::{Store, files, index, names};

/// `run.json` before it is complete.
const NEW_RUN_FILE: &str = ".run.json.new";
/// More than the `run.json` of most studies takes.
const RESERVED_BYTES: usize = 4 << 20;

/// A run that is being measured.
#[derive(Debug)]
pub struct RunWriter {
    pub(crate) root: PathBuf,
    pub(crate) id: String,
    pub(crate) directory: RunDirectory,
    pub(crate) study_text: String,
    pub(crate) trials: LineFile,
    /// Created when there is something to write.
    pub(crate) details: Option<LineFile>,
    /// Number of trials that were saved.
    pub(crate) count: u64,
}

impl Store {
    /// Creates the directory of a run, named after its start and study, and writes a probe to it:
    /// the study's text, the file of trials, and a few megabytes that are reserved for the result.
    ///
    /// # Errors
    /// [`StoreError::Writing`] if the directory is read-only or full, or does not accept files.
    pub fn create(&self, start: RunStart, study_text: &str) -> Result<RunWriter, StoreError> {
        let base = crate::id::base(start.started_us, &start.study_name);
        let id = names::reserve(&self.root, &base)?;
        let created = RunDirectory::create(&self.root, &id);
        names::release(&self.root, &id);
        let directory = created?;
        let trials = match probe(&directory, study_text, start) {
            Ok(trials) => trials,
            Err(error) => {
                let error = directory.known_in(error);
                directory.remove();
                return Err(error);
            }
        };
        Ok(RunWriter {
            root: self.root.clone(),
            id,
            directory,
            study_text: study_text.to_owned(),
            trials,
            details: None,
            count: 0,
        })
    }
}

/// Writes and syncs the first files of a run's directory; returns the file of trials, locked.
fn probe(
    directory: &RunDirectory,
    study_text: &str,
    start: RunStart,
) -> Result<LineFile, StoreError> {
    reserve(&directory.path())?;
    files::write(&directory.path().join(STUDY_FILE), |file| {
        file.write_all(study_text.as_bytes())
    })?;
    let mut trials = LineFile::create(directory, TRIALS_FILE)?;
    // A file system without locks makes the run look interrupted, which hurts less than failing.
    _ = trials.file().try_lock();
    trials.append(&FirstLine {
        schema: TRIALS_SCHEMA.to_owned(),
        start,
    })?;
    trials.sync()?;
    directory.sync()?;
    Ok(trials)
}

/// Reserves space for the result.
pub(crate) fn reserve(directory: &Path) -> Result<(), StoreError> {
    files::write(&directory.join(RESERVED_FILE), |file| {
        // Not zeros, which some file systems do not store.
        file.write_all(&vec![0xaa; RESERVED_BYTES])
    })
}

impl RunWriter {
    /// The run's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The run's directory.
    pub fn directory(&self) -> &Path {
        self.directory.known()
    }

    /// Number of trials that were saved.
    pub fn trials(&self) -> u64 {
        self.count
    }

    /// Saves a trial. It survives the end of this process, however that ends.
    ///
    /// # Errors
    /// [`StoreError::Writing`], for example if the disk is full. Earlier trials are kept, and later
    /// ones can be saved once there is space again.
    pub fn append(&mut self, trial: &Trial) -> Result<(), StoreError> {
        self.trials.append(trial)?;
        self.count += 1;
        Ok(())
    }

    /// Saves what the run gathered besides the figures of its trials, before the trial that it belongs to.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn append_detail(&mut self, detail: &RunDetail) -> Result<(), StoreError> {
        if self.details.is_none() {
            self.directory.check_place()?;
            self.details = Some(LineFile::create(&self.directory, DETAILS_FILE)?);
            // If this fails, only a power failure loses the file, and the result says so.
            _ = self.directory.sync();
        }
        let details = self.details.as_mut();
        details.map_or(Ok(()), |details| details.append(detail))
    }

    /// Saves the facts about the servers, once they run.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn servers_started(&mut self, servers: &[ServerFacts]) -> Result<(), StoreError> {
        self.trials.append(&RunMarker::Servers(servers.to_vec()))
    }

    /// Marks that this process continues the run: trials that follow replace those in the same place.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn resumed(&mut self, at_us: i64) -> Result<(), StoreError> {
        self.trials.append(&RunMarker::Resumed { at_us })
    }

    /// Writes what was saved to disk, so that it survives a power failure.
    ///
    /// # Errors
    /// [`StoreError::Writing`].
    pub fn sync(&self) -> Result<(), StoreError> {
        if let Some(details) = &self.details {
            details.sync()?;
        }
        self.trials.sync()
    }

    /// Saves the result and further files, each a path relative to the run's directory and its bytes.
    /// Returns the directory. `run.id` must be [`Self::id`]. The trials of a run that is not complete
    /// stay next to it, so that it can be continued.
    ///
    /// # Errors
    /// [`StoreError::FilesMissing`] if the run was saved, but not all of the files.
    /// [`StoreError::Unsaved`] if the run was not saved; its trials are still in the directory. An
    /// error of the index is only logged, since the next use updates it from the directories.
    pub fn finish(mut self, run: &Run, files: &[(String, Vec<u8>)]) -> Result<PathBuf, StoreError> {
        let saved = self.save_run(run, files);
        let missing = saved.map_err(|source| StoreError::Unsaved {
            directory: self.directory.current(),
            trials: self.count,
            source: Box::new(self.directory.known_in(source)),
        })?;
        let of_unfinished = [TRIALS_FILE, DETAILS_FILE].into_iter();
        for done in of_unfinished.filter(|_| run.complete) {
            if let Err(error) = files::remove(&self.directory.path().join(done)) {
                tracing::warn!(%error, "cannot remove a file that is no longer needed");
            }
        }
        if let Err(error) = index::add(&self.root, run) {
            tracing::warn!(%error, "cannot update the index now; the next use updates it");
        }
        let directory = self.directory.current();
        match missing {
            None => Ok(directory),
            Some(source) => Err(StoreError::FilesMissing {
                directory,
                source: Box::new(self.directory.known_in(source)),
            }),
        }
    }

    /// Writes `run.json` under another name, then the files, and then gives it its name. Returns the
    /// first error of the files, which do not prevent the rest.
    fn save_run(
        &mut self,
        run: &Run,
        files: &[(String, Vec<u8>)],
    ) -> Result<Option<StoreError>, StoreError> {
        if run.id != self.id {
            return Err(StoreError::FileName {
                name: run.id.clone(),
                why: "the run was created under another name",
            });
        }
        self.directory.make_if_missing()?;
        let directory = self.directory.path();
        _ = fs::remove_file(directory.join(RESERVED_FILE));
        let new = directory.join(NEW_RUN_FILE);
        files::remove(&new)?;
        write_run(&new, run).inspect_err(|_| _ = fs::remove_file(&new))?;
        let mut missing = None;
        for (name, bytes) in files {
            let path = directory.join(name);
            let write = || {
                check_name(name)?;
                // A run that is continued may have left one.
                files::remove(&path)?;
                files::write(&path, |file| file.write_all(bytes))
            };
            let written = write();
            if let Err(error) = written {
                _ = fs::remove_file(&path);
                missing.get_or_insert(error);
            }
        }
        let study = directory.join(STUDY_FILE);
        if !study.exists() {
            // The directory vanished meanwhile.
            let text = self.study_text.as_bytes();
            if let Err(error) = files::write(&study, |file| file.write_all(text)) {
                missing.get_or_insert(error);
            }
        }
        let path = directory.join(RUN_FILE);
        fs::rename(&new, &path).map_err(|source| StoreError::writing(&path, source))?;
        self.directory.sync()?;
        Ok(missing)
    }

    /// Removes the directory, if no trial was saved.
    pub fn discard(self) {
        if self.count == 0 {
            // What remains is listed as unfinished.
            self.directory.remove();
        }
    }
}

/// Writes `run.json` to a path.
pub(crate) fn write_run(path: &Path, run: &Run) -> Result<(), StoreError> {
    files::write(path, |file| {
        let mut buffered = BufWriter::new(file);
        serde_json::to_writer_pretty(&mut buffered, run)?;
        buffered.write_all(b"\n")?;
        buffered.flush()
    })
}
