//! Saves a run atomically.
//!
//! Everything is written into `<root>/.partial-<id>-<pid>`, synced to disk, and renamed. A process that
//! dies in between leaves a directory that lookups ignore; opening the store removes it once it is a day
//! old.

use std::fs::{self, Metadata};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use pgassay_record::run::Run;

use crate::directories::{DETAILS_FILE, RUN_FILE, STUDY_FILE, TRIALS_FILE};
use crate::error::StoreError;
use crate::pinned_directory::PinnedDirectory;
use crate::run_directory::RunDirectory;
use crate::{Store, files, index, names, ownership, unfinished, writer};

const PARTIAL: &str = ".partial-";
/// Saving a result never takes this long.
const PARTIAL_AGE_MAX: Duration = Duration::from_hours(24);

impl Store {
    /// Saves a run under its id with the study's original text and further files, each a path relative
    /// to the run's directory and its bytes. Returns the directory.
    ///
    /// # Errors
    /// See [`StoreError`]; nothing is left behind then. An error of the index is only logged, since the
    /// next use updates it from the directories.
    pub fn save(
        &self,
        run: &Run,
        study_text: &str,
        files: &[(String, Vec<u8>)],
    ) -> Result<PathBuf, StoreError> {
        check_id(&run.id)?;
        for (name, _) in files {
            check_name(name)?;
        }
        let partial = format!("{PARTIAL}{}-{}", run.id, std::process::id());
        let mut directory = RunDirectory::create(&self.root, &partial)?;
        let written = write_all(&directory.path(), run, study_text, files)
            .map_err(|error| directory.known_in(error))
            .and_then(|()| self.publish(&mut directory, &run.id));
        if let Err(error) = written {
            // Report the first error; if removal fails as well, `sweep` does it later.
            directory.remove();
            return Err(error);
        }
        names::release(&self.root, &run.id);
        if let Err(error) = index::add(&self.root, run) {
            tracing::warn!(%error, "cannot update the index now; the next use updates it");
        }
        Ok(directory.known().to_owned())
    }

    /// Gives a complete directory the name of its run.
    fn publish(&self, directory: &mut RunDirectory, id: &str) -> Result<(), StoreError> {
        let path = self.root.join(id);
        directory.rename(id).map_err(|source| {
            let taken = [
                io::ErrorKind::AlreadyExists,
                io::ErrorKind::DirectoryNotEmpty,
            ];
            if taken.contains(&source.kind()) || path.exists() {
                StoreError::AlreadyExists {
                    id: id.to_owned(),
                    root: self.root.clone(),
                }
            } else {
                StoreError::writing(&path, source)
            }
        })?;
        // The rename is durable only after its directory is synced.
        directory.sync()
    }

    /// Removes what processes of this user that died while saving left behind. Does nothing in a directory in which
    /// another user can rename it.
    pub(crate) fn sweep(&self) {
        let Ok(root) = PinnedDirectory::open(&self.root) else {
            return;
        };
        if !root.metadata().is_ok_and(|it| ownership::keeps_names(&it)) {
            return;
        }
        for entry in fs::read_dir(root.path()).into_iter().flatten().flatten() {
            let is_left = |it: &Metadata| {
                let age = it.modified().ok().and_then(|time| time.elapsed().ok());
                it.is_dir()
                    && ownership::is_ours(it)
                    && age.is_some_and(|age| age > PARTIAL_AGE_MAX)
            };
            if !entry.metadata().is_ok_and(|it| is_left(&it)) {
                continue;
            }
            unfinished::sweep(&entry.path());
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.starts_with(PARTIAL)) {
                let path = self.root.join(&name);
                tracing::info!(path = %path.display(), "removing an unfinished result");
                _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn write_all(
    directory: &Path,
    run: &Run,
    study_text: &str,
    more: &[(String, Vec<u8>)],
) -> Result<(), StoreError> {
    for (name, bytes) in more {
        files::write(&directory.join(name), |file| file.write_all(bytes))?;
    }
    files::write(&directory.join(STUDY_FILE), |file| {
        file.write_all(study_text.as_bytes())
    })?;
    // Last, because this file makes the directory a run.
    writer::write_run(&directory.join(RUN_FILE), run)
}

fn check_id(id: &str) -> Result<(), StoreError> {
    let refuse = |why| {
        Err(StoreError::FileName {
            name: id.to_owned(),
            why,
        })
    };
    match id {
        "" => refuse("it is empty"),
        "last" => refuse("\"last\" means the newest run"),
        _ if id.starts_with('.') => refuse("it starts with a dot"),
        _ if id.contains(['/', '\0']) => refuse("it contains a slash or a NUL"),
        _ => Ok(()),
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), StoreError> {
    let refuse = |why| {
        Err(StoreError::FileName {
            name: name.to_owned(),
            why,
        })
    };
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    if name.is_empty() || name.contains('\0') || !Path::new(name).components().all(plain) {
        return refuse("it is not a path inside the run's directory");
    }
    if [RUN_FILE, STUDY_FILE, TRIALS_FILE, DETAILS_FILE].contains(&name) {
        return refuse("the store writes this file itself");
    }
    Ok(())
}
