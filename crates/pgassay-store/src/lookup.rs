//! Finds the run that a user names: by its name, a prefix of it, `last`, or a path.

use std::fs;
use std::path::{Path, PathBuf};

use pgassay_record::run::{Run, SCHEMA};
use serde::Deserialize;

use crate::directories::RUN_FILE;
use crate::error::StoreError;
use crate::regular_file::read_of_run;
use crate::{Store, unfinished, upgrade};

/// Number of newest runs listed if a run is not found.
const SUGGESTIONS: usize = 3;

impl Store {
    /// The directory of a run, given by a full name, `last`, a path (anything with a `/`), `run.json`, or a
    /// unique prefix of a name.
    pub fn find(&self, wanted: &str) -> Result<PathBuf, StoreError> {
        if wanted.contains('/') || [".", "..", RUN_FILE].contains(&wanted) {
            return directory_at(Path::new(wanted));
        }
        let mut ids = self.ids()?;
        ids.reverse();
        let is_unknown = wanted != "last" && ids.iter().all(|id| id != wanted);
        if is_unknown
            && !wanted.starts_with('.')
            && let Some(error) = without_result(&self.root.join(wanted))
        {
            return Err(error);
        }
        Ok(self.root.join(self.choose(wanted, &ids)?))
    }

    /// The name among `ids`, newest first, that the user means: the full name, `last`, or a unique
    /// prefix.
    pub(crate) fn choose(&self, wanted: &str, ids: &[String]) -> Result<String, StoreError> {
        if ids.iter().any(|id| id == wanted) {
            return Ok(wanted.to_owned());
        }
        let not_found = || StoreError::NotFound {
            name: wanted.to_owned(),
            root: self.root.clone(),
            runs: ids[..ids.len().min(SUGGESTIONS)].to_vec(),
        };
        if wanted == "last" {
            return ids.first().cloned().ok_or_else(not_found);
        }
        // The empty string is a prefix of every name, and most likely a mistake in a script.
        let begins = |id: &&String| !wanted.is_empty() && id.starts_with(wanted);
        let candidates: Vec<String> = ids.iter().filter(begins).cloned().collect();
        match &candidates[..] {
            [] => Err(not_found()),
            [only] => Ok(only.clone()),
            _ => Err(StoreError::Ambiguous {
                name: wanted.to_owned(),
                candidates,
            }),
        }
    }

    /// Loads a run, named as in [`Store::find`], and returns it with its directory.
    pub fn load(&self, wanted: &str) -> Result<(Run, PathBuf), StoreError> {
        let directory = self.find(wanted)?;
        Ok((read(&directory)?, directory))
    }
}

fn directory_at(path: &Path) -> Result<PathBuf, StoreError> {
    let directory = if path.file_name().is_some_and(|name| name == RUN_FILE) {
        path.parent().unwrap_or(path)
    } else {
        path
    };
    if directory.join(RUN_FILE).is_file() {
        return Ok(directory.to_owned());
    }
    if let Some(error) = without_result(directory) {
        return Err(error);
    }
    fs::metadata(path).map_err(|source| StoreError::reading(path, source))?;
    Err(StoreError::NoRun {
        path: path.to_owned(),
    })
}

/// The error on the directory of a run that has trials only; `None` if it has none.
fn without_result(directory: &Path) -> Option<StoreError> {
    let (_, trials, _) = unfinished::summary(directory).ok()?;
    Some(StoreError::Unfinished {
        path: directory.to_owned(),
        trials,
    })
}

/// The older format that is still read.
const UPGRADED_SCHEMA: &str = "pgassay.run/1";

/// Reads `run.json` of a run's directory.
pub(crate) fn read(directory: &Path) -> Result<Run, StoreError> {
    #[derive(Deserialize)]
    struct Header {
        schema: String,
    }
    let path = directory.join(RUN_FILE);
    let text = read_of_run(&path).map_err(|source| StoreError::reading(&path, source))?;
    let damaged = |error: &serde_json::Error| StoreError::Damaged {
        path: path.clone(),
        line: error.line(),
        column: error.column(),
        message: message_of(error),
    };
    // Check the format first: its error is clearer than one about the first unknown field.
    let form: Header = serde_json::from_slice(&text).map_err(|error| damaged(&error))?;
    if form.schema == SCHEMA {
        return serde_json::from_slice(&text).map_err(|error| damaged(&error));
    }
    if form.schema != UPGRADED_SCHEMA {
        return Err(unsupported_format(path, form.schema));
    }
    let mut run = serde_json::from_slice(&text).map_err(|error| damaged(&error))?;
    upgrade::to_version_2(&mut run);
    // As bytes again: code that reads a run from anything else takes the compiler ten seconds.
    serde_json::from_slice(run.to_string().as_bytes()).map_err(|error| StoreError::Damaged {
        path: path.clone(),
        line: 0,
        column: 0,
        message: message_of(&error),
    })
}

fn unsupported_format(path: PathBuf, found: String) -> StoreError {
    let number = |schema: &str| {
        let number = schema.strip_prefix("pgassay.run/")?;
        number.parse::<u32>().ok()
    };
    match (number(&found), number(SCHEMA)) {
        (Some(theirs), Some(ours)) if theirs > ours => StoreError::NewerSchema {
            path,
            found,
            known: SCHEMA,
        },
        _ => StoreError::Damaged {
            path,
            line: 0,
            column: 0,
            message: format!("its format is \"{found}\", which no version of pgassay writes"),
        },
    }
}

/// The message without the position, which [`StoreError::Damaged`] has in fields of its own.
fn message_of(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}
