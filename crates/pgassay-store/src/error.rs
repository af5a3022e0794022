//! Errors of the store; their messages say what to do.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a result could not be saved or found.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A file or directory could not be written.
    #[error("cannot write {}: {source}{}", path.display(), writing_hint(source))]
    Writing {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is where results should be.
    #[error(
        "{} is a file, but results need a directory; name a directory with --results DIR, which may not exist yet",
        path.display()
    )]
    NotDirectory {
        /// The file.
        path: PathBuf,
    },
    /// A file or directory could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Reading {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// There is no run of that name.
    #[error("no run \"{name}\" in {}; {}", root.display(), known(runs))]
    NotFound {
        /// The name that was looked up.
        name: String,
        /// The store's directory.
        root: PathBuf,
        /// The newest runs in it.
        runs: Vec<String>,
    },
    /// A path that contains no run.
    #[error("{} contains no run: a run is a directory with a file run.json", path.display())]
    NoRun {
        /// The path.
        path: PathBuf,
    },
    /// A run to continue that is in another directory of results.
    #[error("{} is not in {}: name the directory that contains it with --results", path.display(), root.display())]
    Elsewhere {
        /// The run's directory.
        path: PathBuf,
        /// The store's directory.
        root: PathBuf,
    },
    /// A run that has no result, because it was interrupted or is not over.
    #[error("{} has no result: its run is not over or was interrupted; its {trials} trials are in trials.jsonl; to continue it: pgassay resume {}", path.display(), path.display())]
    Unfinished {
        /// The directory.
        path: PathBuf,
        /// Number of its trials.
        trials: usize,
    },
    /// A run that a process is still measuring.
    #[error("run \"{id}\" is still being measured by another process")]
    Running {
        /// The run.
        id: String,
    },
    /// A run that cannot be continued because it is over.
    #[error("run \"{id}\" is finished: there is nothing to continue")]
    Finished {
        /// The run.
        id: String,
    },
    /// A run that is not continued, because another user may have written what it would execute.
    #[error(
        "{} belongs to another user, is a link, or others may write to it, so they decide what the run executes. If \
         you trust its content: make a copy that only you can write (cp -r, chmod -R go-w) in a directory for results \
         that only you can write to", path.display()
    )]
    OfOthers {
        /// The file or directory.
        path: PathBuf,
    },
    /// There is no run to continue.
    #[error("there is no unfinished run in {}", root.display())]
    NoneUnfinished {
        /// The store's directory.
        root: PathBuf,
    },
    /// The result could not be written; the trials are saved.
    #[error("{source}; the {trials} trials measured so far are in {}/trials.jsonl", directory.display())]
    Unsaved {
        /// The run's directory.
        directory: PathBuf,
        /// Number of trials in it.
        trials: u64,
        /// The cause.
        source: Box<StoreError>,
    },
    /// The result was saved, but one of its files could not be written.
    #[error("the result was saved in {}, but not all of its files: {source}", directory.display())]
    FilesMissing {
        /// The run's directory.
        directory: PathBuf,
        /// The first cause.
        source: Box<StoreError>,
    },
    /// A prefix of several names.
    #[error("\"{name}\" matches {} runs: {}; give more of the name", candidates.len(), shortened(candidates))]
    Ambiguous {
        /// The prefix.
        name: String,
        /// The matching runs, newest first.
        candidates: Vec<String>,
    },
    /// A `run.json` that was truncated or changed.
    #[error("{}:{line}:{column}: this result is damaged: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Line, from 1; 0 for the file as a whole.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// A result in a newer format than this version supports.
    #[error("{}: this result has the format \"{found}\", and this version of pgassay supports \"{known}\" at most; use a newer version", path.display())]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: String,
        /// The newest supported format.
        known: &'static str,
    },
    /// A run of that name already exists.
    #[error("run \"{id}\" already exists in {}; nothing was overwritten", root.display())]
    AlreadyExists {
        /// The name.
        id: String,
        /// The store's directory.
        root: PathBuf,
    },
    /// An invalid name for a run or one of its files.
    #[error("invalid name \"{name}\" for a run or one of its files: {why}")]
    FileName {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The index failed; results are not affected.
    #[error("cannot use the index {}: {source}; results are not affected; to rebuild the index, remove that file", path.display())]
    Index {
        /// The index's file.
        path: PathBuf,
        /// The error from `SQLite`.
        source: rusqlite::Error,
    },
}

impl StoreError {
    pub(crate) fn writing(path: &Path, source: io::Error) -> Self {
        Self::Writing {
            path: path.to_owned(),
            source,
        }
    }

    /// The same error with the path `known` in place of `opened`.
    pub(crate) fn with_path(mut self, opened: &Path, known: &Path) -> Self {
        if let Self::Writing { path, .. }
        | Self::Reading { path, .. }
        | Self::NoRun { path }
        | Self::OfOthers { path }
        | Self::Damaged { path, .. } = &mut self
            && let Ok(rest) = path.strip_prefix(opened)
        {
            // Joined with nothing, a path would end with a slash.
            *path = known.components().chain(rest.components()).collect();
        }
        self
    }

    pub(crate) fn reading(path: &Path, source: io::Error) -> Self {
        Self::Reading {
            path: path.to_owned(),
            source,
        }
    }
}

fn writing_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free disk space or store results elsewhere"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; store results in a writable directory"
        }
        _ => "",
    }
}

fn known(runs: &[String]) -> String {
    if runs.is_empty() {
        "there are no runs yet".to_owned()
    } else {
        format!("the newest runs are {}", shortened(runs))
    }
}

/// Longer lists of names are cut.
const NAMES_MAX: usize = 8;

fn shortened(names: &[String]) -> String {
    let mut text = names[..names.len().min(NAMES_MAX)].join(", ");
    if names.len() > NAMES_MAX {
        text.push_str(", …");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_says_what_to_do() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let message = StoreError::writing(Path::new("/r/run.json"), full).to_string();
        assert!(
            message.starts_with("cannot write /r/run.json: "),
            "{message}"
        );
        assert!(message.ends_with("; free disk space or store results elsewhere"));
    }
}
