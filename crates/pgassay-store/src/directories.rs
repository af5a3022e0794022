//! The files of a run's directory, and the directories of a store.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::error::StoreError;

/// The file that makes a directory a run.
pub(crate) const RUN_FILE: &str = "run.json";
/// The study's original text.
pub(crate) const STUDY_FILE: &str = "study.toml";
/// The trials of an unfinished run: a line of [`crate::RunStart`], then a line for each trial, all JSON;
/// and among them a line when the servers run, and one when another process continues the run.
pub(crate) const TRIALS_FILE: &str = "trials.jsonl";
/// What an unfinished run gathered besides its trials: a line of JSON for each
/// [`pgassay_model::detail::RunDetail`].
pub(crate) const DETAILS_FILE: &str = "details.jsonl";

/// Names of directories that contain a run, sorted.
pub(crate) fn directories(root: &Path) -> Result<Vec<String>, StoreError> {
    directories_with(root, |directory| directory.join(RUN_FILE).is_file())
}

/// Names of directories that contain an unfinished run, sorted.
pub(crate) fn unfinished_directories(root: &Path) -> Result<Vec<String>, StoreError> {
    directories_with(root, |directory| {
        directory.join(TRIALS_FILE).is_file() && !directory.join(RUN_FILE).is_file()
    })
}

/// Names of directories with trials that a process can continue from, or is still measuring, sorted:
/// unfinished runs, and those that ended before all trials were done.
pub(crate) fn directories_with_trials(root: &Path) -> Result<Vec<String>, StoreError> {
    directories_with(root, |directory| directory.join(TRIALS_FILE).is_file())
}

fn directories_with(
    root: &Path,
    is_wanted: impl Fn(&Path) -> bool,
) -> Result<Vec<String>, StoreError> {
    let reading = |source| StoreError::reading(root, source);
    let mut names = Vec::new();
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(names),
        entries => entries.map_err(reading)?,
    };
    for entry in entries {
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
