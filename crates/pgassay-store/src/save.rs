//! Writing a run so that it is there wholly or not at all.
//!
//! Everything is written into `<root>/.partial-<id>-<pid>`, brought to the disk, and renamed. A
//! program that dies in between leaves a directory that no look-up sees and that the next day's
//! first use of the store removes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use pgassay_core::run::Run;

use crate::error::StoreError;
use crate::{RUN_FILE, Store, index};

const STUDY_FILE: &str = "study.toml";
const PARTIAL: &str = ".partial-";
/// Nobody writes a result for this long.
const PARTIAL_AGE_MAX: Duration = Duration::from_hours(24);

impl Store {
    /// Keeps a run under its id with the study's own text and further files, each a path relative
    /// to the run's directory and its bytes. Gives the directory.
    ///
    /// # Errors
    /// See [`StoreError`]; then nothing is left behind. A failing index is logged only, since it
    /// follows the directories by itself.
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
        let directory = self.root.join(&run.id);
        let partial = self
            .root
            .join(format!("{PARTIAL}{}-{}", run.id, std::process::id()));
        let written = write_all(&partial, run, study_text, files)
            .and_then(|()| publish(&partial, &directory, &run.id, &self.root));
        if let Err(error) = written {
            // The first error is the one to report; the remains are swept later if need be.
            _ = fs::remove_dir_all(&partial);
            return Err(error);
        }
        if let Err(error) = index::add(&self.root, run) {
            tracing::warn!(%error, "the index will follow at the next use");
        }
        Ok(directory)
    }

    /// Removes what programs that died while saving left behind.
    pub(crate) fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.root) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let stale = entry
                .metadata()
                .and_then(|metadata| metadata.modified())
                .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > PARTIAL_AGE_MAX));
            if stale && name.to_str().is_some_and(|name| name.starts_with(PARTIAL)) {
                tracing::info!(path = %entry.path().display(), "removing an unfinished result");
                _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn write_all(
    partial: &Path,
    run: &Run,
    study_text: &str,
    files: &[(String, Vec<u8>)],
) -> Result<(), StoreError> {
    fs::create_dir(partial).map_err(|source| StoreError::writing(partial, source))?;
    for (name, bytes) in files {
        write(&partial.join(name), |file| file.write_all(bytes))?;
    }
    write(&partial.join(STUDY_FILE), |file| {
        file.write_all(study_text.as_bytes())
    })?;
    // Last, because it is what makes the directory a run.
    write(&partial.join(RUN_FILE), |file| {
        let mut buffered = io::BufWriter::new(file);
        serde_json::to_writer_pretty(&mut buffered, run)?;
        buffered.write_all(b"\n")?;
        buffered.flush()
    })
}

pub(crate) fn write(
    path: &Path,
    content: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), StoreError> {
    let attempt = || {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut file = File::create_new(path)?;
        content(&mut file)?;
        // Where space is only promised, a full disk shows here.
        file.sync_all()
    };
    attempt().map_err(|source| StoreError::writing(path, source))
}

fn publish(partial: &Path, directory: &Path, id: &str, root: &Path) -> Result<(), StoreError> {
    fs::rename(partial, directory).map_err(|source| {
        let taken = [
            io::ErrorKind::AlreadyExists,
            io::ErrorKind::DirectoryNotEmpty,
        ];
        if taken.contains(&source.kind()) || directory.exists() {
            StoreError::Taken {
                id: id.to_owned(),
                root: root.to_owned(),
            }
        } else {
            StoreError::writing(directory, source)
        }
    })?;
    // The rename itself reaches the disk with the directory that holds the name.
    let synced = File::open(root).and_then(|root| root.sync_all());
    synced.map_err(|source| StoreError::writing(root, source))
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
        _ if id.starts_with('.') => refuse("it begins with a dot"),
        _ if id.contains(['/', '\0']) => refuse("it holds a path"),
        _ => Ok(()),
    }
}

fn check_name(name: &str) -> Result<(), StoreError> {
    let refuse = |why| {
        Err(StoreError::FileName {
            name: name.to_owned(),
            why,
        })
    };
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    if name.is_empty() || name.contains('\0') || !Path::new(name).components().all(plain) {
        return refuse("it does not lie inside the run's directory");
    }
    if name == RUN_FILE || name == STUDY_FILE {
        return refuse("the store writes it by itself");
    }
    Ok(())
}
