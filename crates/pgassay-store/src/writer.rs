//! Saves a run while it is measured, so that no measured trial is lost.
//!
//! [`Store::create`] makes the run's directory before the first trial, and so finds a directory that
//! is read-only or full. Each trial is appended to `trials.jsonl` as it ends. [`RunWriter::finish`]
//! writes `run.json`, which makes the directory a finished run; the index has no part in this. Some
//! space is reserved from the beginning, for a disk that fills up meanwhile.
//!
//! A directory with `trials.jsonl` and without `run.json` is an unfinished run. While it is being
//! measured, its file of trials is locked (`flock`).

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use pgassay_model::trial::Trial;
use pgassay_record::run::Run;
use serde::Serialize;

use crate::directories::{RUN_FILE, STUDY_FILE, TRIALS_FILE};
use crate::error::StoreError;
use crate::save::check_name;
use crate::unfinished::{FirstLine, RESERVED_FILE, RunStart, TRIALS_SCHEMA};
use crate::{Store, files, index, names};

/// `run.json` before it is complete.
const NEW_RUN_FILE: &str = ".run.json.new";
/// More than the `run.json` of most studies takes.
const RESERVED_BYTES: usize = 4 << 20;
/// A run that is being measured.
#[derive(Debug)]
pub struct RunWriter {
    root: PathBuf,
    id: String,
    directory: PathBuf,
    study_text: String,
    trials: File,
    /// Number and bytes of the lines written.
    count: u64,
    bytes: u64,
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
        let directory = self.root.join(&id);
        let created = files::create_directory(&directory)
            .map_err(|source| StoreError::writing(&directory, source));
        names::release(&self.root, &id);
        created?;
        let probed = probe(&directory, study_text, start);
        let trials = probed.inspect_err(|_| {
            // Report the first error; an empty directory does no harm.
            _ = fs::remove_dir_all(&directory);
        })?;
        Ok(RunWriter {
            root: self.root.clone(),
            id,
            directory,
            study_text: study_text.to_owned(),
            bytes: trials.metadata().map_or(0, |it| it.len()),
            trials,
            count: 0,
        })
    }
}

/// Writes and syncs the first files of a run's directory; returns the file of trials, locked.
fn probe(directory: &Path, study_text: &str, start: RunStart) -> Result<File, StoreError> {
    files::write(&directory.join(RESERVED_FILE), |file| {
        // Not zeros, which some file systems do not store.
        file.write_all(&vec![0xaa; RESERVED_BYTES])
    })?;
    files::write(&directory.join(STUDY_FILE), |file| {
        file.write_all(study_text.as_bytes())
    })?;
    let path = directory.join(TRIALS_FILE);
    let attempt = || {
        let mut trials = files::create(&path)?;
        // A file system without locks makes the run look interrupted, which hurts less than failing.
        _ = trials.try_lock();
        let first = FirstLine {
            schema: TRIALS_SCHEMA.to_owned(),
            start,
        };
        trials.write_all(&line(&first)?)?;
        trials.sync_all()?;
        Ok(trials)
    };
    let trials = attempt().map_err(|source| StoreError::writing(&path, source))?;
    files::sync_directory(directory)?;
    if let Some(root) = directory.parent() {
        files::sync_directory(root)?;
    }
    Ok(trials)
}

impl RunWriter {
    /// The run's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The run's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
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
        let written = line(trial).and_then(|line| {
            self.trials.write_all(&line)?;
            Ok(line.len() as u64)
        });
        match written {
            Ok(bytes) => {
                self.bytes += bytes;
                self.count += 1;
                Ok(())
            }
            Err(source) => {
                // Part of the line would make the next one unreadable.
                _ = self.trials.set_len(self.bytes);
                _ = self.seek_to_end();
                Err(StoreError::writing(
                    &self.directory.join(TRIALS_FILE),
                    source,
                ))
            }
        }
    }

    fn seek_to_end(&mut self) -> io::Result<()> {
        io::Seek::seek(&mut self.trials, io::SeekFrom::Start(self.bytes)).map(drop)
    }

    /// Saves the result and further files, each a path relative to the run's directory and its bytes.
    /// Returns the directory. `run.id` must be [`Self::id`].
    ///
    /// # Errors
    /// [`StoreError::FilesMissing`] if the run was saved, but not all of the files.
    /// [`StoreError::Unsaved`] if the run was not saved; its trials are still in the directory. An
    /// error of the index is only logged, since the next use updates it from the directories.
    pub fn finish(self, run: &Run, files: &[(String, Vec<u8>)]) -> Result<PathBuf, StoreError> {
        let saved = self.save_run(run, files);
        let missing = saved.map_err(|source| StoreError::Unsaved {
            directory: self.directory.clone(),
            trials: self.count,
            source: Box::new(source),
        })?;
        for done in [TRIALS_FILE, RESERVED_FILE] {
            if let Err(error) = files::remove(&self.directory.join(done)) {
                tracing::warn!(%error, "cannot remove a file that is no longer needed");
            }
        }
        if let Err(error) = index::add(&self.root, run) {
            tracing::warn!(%error, "cannot update the index now; the next use updates it");
        }
        match missing {
            None => Ok(self.directory),
            Some(source) => Err(StoreError::FilesMissing {
                directory: self.directory,
                source: Box::new(source),
            }),
        }
    }

    /// Writes `run.json` under another name, then the files, and then gives it its name. Returns the
    /// first error of the files, which do not prevent the rest.
    fn save_run(
        &self,
        run: &Run,
        files: &[(String, Vec<u8>)],
    ) -> Result<Option<StoreError>, StoreError> {
        if run.id != self.id {
            return Err(StoreError::FileName {
                name: run.id.clone(),
                why: "the run was created under another name",
            });
        }
        files::create_directories(&self.directory)
            .map_err(|source| StoreError::writing(&self.directory, source))?;
        _ = fs::remove_file(self.directory.join(RESERVED_FILE));
        let new = self.directory.join(NEW_RUN_FILE);
        files::remove(&new)?;
        write_run(&new, run).inspect_err(|_| _ = fs::remove_file(&new))?;
        let mut missing = None;
        for (name, bytes) in files {
            let path = self.directory.join(name);
            let written =
                check_name(name).and_then(|()| files::write(&path, |file| file.write_all(bytes)));
            if let Err(error) = written {
                _ = fs::remove_file(&path);
                missing.get_or_insert(error);
            }
        }
        let study = self.directory.join(STUDY_FILE);
        if !study.exists() {
            // The directory vanished meanwhile.
            let text = self.study_text.as_bytes();
            if let Err(error) = files::write(&study, |file| file.write_all(text)) {
                missing.get_or_insert(error);
            }
        }
        let path = self.directory.join(RUN_FILE);
        fs::rename(&new, &path).map_err(|source| StoreError::writing(&path, source))?;
        files::sync_directory(&self.directory)?;
        files::sync_directory(&self.root)?;
        Ok(missing)
    }

    /// Removes the directory, if no trial was saved.
    pub fn discard(self) {
        if self.count == 0 {
            // What remains is listed as unfinished.
            _ = fs::remove_dir_all(&self.directory);
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

fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}
