//! What a run that did not finish left: its plan and the trials that ended.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use pgassay_model::plan::Plan;
use pgassay_model::trial::Trial;
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::directories::{RUN_FILE, TRIALS_FILE};
use crate::error::StoreError;

/// Occupies space until the result is written.
pub(crate) const RESERVED_FILE: &str = ".reserved";
/// The format of the file of trials.
pub(crate) const TRIALS_SCHEMA: &str = "pgassay.trials/1";

/// What is known about a run before its first trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStart {
    /// The study's name.
    pub study_name: String,
    /// The study's question.
    pub question: String,
    /// When the run started, microseconds since 1970.
    pub started_us: i64,
    /// The version of pgassay.
    pub pgassay_version: String,
    /// The plan, which trials refer to by index.
    pub plan: Plan,
}

/// The first line of the file of trials.
#[derive(Serialize, Deserialize)]
pub(crate) struct FirstLine {
    pub(crate) schema: String,
    pub(crate) start: RunStart,
}

/// What a run that did not finish left.
#[derive(Debug, Clone, PartialEq)]
pub struct UnfinishedRun {
    /// The run's beginning.
    pub start: RunStart,
    /// The trials that ended, in order.
    pub trials: Vec<Trial>,
    /// Whether a process is still measuring it.
    pub is_running: bool,
}

impl Store {
    /// Reads what a run that did not finish left.
    ///
    /// # Errors
    /// [`StoreError::NoRun`] if there is no file of trials, [`StoreError::Damaged`] if its first line
    /// is not readable. A last line that was not written completely is ignored.
    pub fn unfinished(&self, id: &str) -> Result<UnfinishedRun, StoreError> {
        read(&self.root.join(id))
    }
}

/// Reads the file of trials in a run's directory.
pub(crate) fn read(directory: &Path) -> Result<UnfinishedRun, StoreError> {
    let (file, start, mut lines) = open(directory)?;
    let mut trials = Vec::new();
    let mut line = Vec::new();
    // A line that was not written completely ends the file.
    while matches!(lines.read_until(b'\n', &mut line), Ok(1..)) && line.ends_with(b"\n") {
        let Ok(trial) = serde_json::from_slice(&line) else {
            break;
        };
        trials.push(trial);
        line.clear();
    }
    Ok(UnfinishedRun {
        start,
        trials,
        is_running: is_locked(&file),
    })
}

/// The beginning of an unfinished run, its number of trials, and whether it is being measured.
pub(crate) fn summary(directory: &Path) -> Result<(RunStart, usize, bool), StoreError> {
    let (file, start, mut lines) = open(directory)?;
    let mut rest = Vec::new();
    _ = lines.read_to_end(&mut rest);
    let trials = rest
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| line.ends_with(b"\n"))
        .count();
    Ok((start, trials, is_locked(&file)))
}

/// Removes what an interrupted run no longer needs: the reserved space, and all of it if it has no
/// trials.
pub(crate) fn sweep(directory: &Path) {
    if directory.join(RUN_FILE).exists() {
        return;
    }
    // What cannot be removed stays, and is listed.
    match summary(directory) {
        Ok((_, 0, false)) => _ = fs::remove_dir_all(directory),
        Ok((_, _, false)) => _ = fs::remove_file(directory.join(RESERVED_FILE)),
        _ => {}
    }
}

/// Opens the file of trials and reads its first line.
fn open(directory: &Path) -> Result<(File, RunStart, BufReader<File>), StoreError> {
    let path = directory.join(TRIALS_FILE);
    let file = File::open(&path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => StoreError::NoRun {
            path: directory.to_owned(),
        },
        _ => StoreError::reading(&path, source),
    })?;
    let again = file
        .try_clone()
        .map_err(|source| StoreError::reading(&path, source))?;
    let mut lines = BufReader::new(again);
    let mut first = Vec::new();
    lines
        .read_until(b'\n', &mut first)
        .map_err(|source| StoreError::reading(&path, source))?;
    let parsed: FirstLine =
        serde_json::from_slice(&first).map_err(|error| StoreError::Damaged {
            path,
            line: 1,
            column: error.column(),
            message: error.to_string(),
        })?;
    Ok((file, parsed.start, lines))
}

fn is_locked(file: &File) -> bool {
    match file.try_lock_shared() {
        Ok(()) => {
            _ = file.unlock();
            false
        }
        Err(TryLockError::WouldBlock) => true,
        // Without locks, a run in progress cannot be recognized.
        Err(TryLockError::Error(_)) => false,
    }
}
