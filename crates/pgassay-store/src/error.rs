//! What can go wrong with kept results, each with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a result could not be kept or found.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Something could not be written.
    #[error("cannot write {}: {source}{}", path.display(), writing_hint(source))]
    Writing {
        /// What was to be written.
        path: PathBuf,
        /// Why it was not.
        source: io::Error,
    },
    /// Something could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Reading {
        /// What was to be read.
        path: PathBuf,
        /// Why it was not.
        source: io::Error,
    },
    /// No run of that name.
    #[error("no run \"{wanted}\" in {}: {}", root.display(), known(runs))]
    NotFound {
        /// What was asked for.
        wanted: String,
        /// Where it was looked for.
        root: PathBuf,
        /// The newest runs there.
        runs: Vec<String>,
    },
    /// A path that holds no run.
    #[error("{} holds no run: a run is a directory with a file run.json", path.display())]
    NoRun {
        /// The path.
        path: PathBuf,
    },
    /// A beginning that several runs share.
    #[error("\"{wanted}\" may be any of {}: {}; write more of the name", candidates.len(), shortened(candidates))]
    Ambiguous {
        /// What was asked for.
        wanted: String,
        /// The runs that begin so, newest first.
        candidates: Vec<String>,
    },
    /// A `run.json` that is cut off or was changed.
    #[error("{}:{line}:{column}: this result is damaged: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Line, from 1; 0 where the file as a whole is wrong.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// A result in a form that this version does not know.
    #[error("{}: this result has the form \"{found}\", and this version of pgassay knows \"{known}\" at most; use a newer version", path.display())]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its form.
        found: String,
        /// The newest form that is known here.
        known: &'static str,
    },
    /// A run of that name is there already.
    #[error("a run \"{id}\" is kept already in {}; nothing was overwritten", root.display())]
    Taken {
        /// The name.
        id: String,
        /// Where.
        root: PathBuf,
    },
    /// A name that cannot be a file of a run.
    #[error("\"{name}\" cannot be the name of a file of a run: {why}")]
    FileName {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The index failed; results themselves are not harmed.
    #[error("the index {}: {source}; the results themselves are not harmed, and the index is written anew when that file is removed", path.display())]
    Index {
        /// The index's file.
        path: PathBuf,
        /// What `SQLite` says.
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
            "; nothing was kept: make room or keep results elsewhere"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; keep results in a directory that you may write"
        }
        _ => "",
    }
}

fn known(runs: &[String]) -> String {
    if runs.is_empty() {
        "there is none yet".to_owned()
    } else {
        format!("the newest there: {}", shortened(runs))
    }
}

/// More names than this help nobody.
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
        assert!(message.ends_with("nothing was kept: make room or keep results elsewhere"));
    }
}
