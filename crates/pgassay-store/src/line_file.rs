//! A file of JSON lines that is written while a run is measured.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;

use serde::Serialize;

use crate::error::StoreError;
use crate::run_directory::RunDirectory;
use crate::{files, regular_file};

/// A file of JSON lines. Lines that were written survive the end of the process; after [`Self::sync`],
/// also the end of the machine.
#[derive(Debug)]
pub(crate) struct LineFile {
    /// For messages.
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl LineFile {
    /// Creates a file, which must not exist.
    pub(crate) fn create(directory: &RunDirectory, name: &str) -> Result<Self, StoreError> {
        let path = directory.known().join(name);
        match files::create(&directory.path().join(name)) {
            Ok(file) => Ok(Self {
                path,
                file,
                bytes: 0,
            }),
            Err(source) => Err(StoreError::writing(&path, source)),
        }
    }

    /// Opens a file for reading and writing; `None` if there is none.
    pub(crate) fn open(directory: &RunDirectory, name: &str) -> Result<Option<Self>, StoreError> {
        let path = directory.known().join(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match regular_file::open(&directory.path().join(name), &mut options) {
            Ok(file) => Ok(Some(Self {
                path,
                file,
                bytes: 0,
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::writing(&path, source)),
        }
    }

    /// The file, to lock it.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Keeps only the first `bytes` bytes, and appends after them.
    pub(crate) fn continue_at(&mut self, bytes: u64) -> Result<(), StoreError> {
        self.bytes = bytes;
        self.rewind()
            .map_err(|source| StoreError::writing(&self.path, source))
    }

    /// Appends a line.
    ///
    /// # Errors
    /// [`StoreError::Writing`], for example if the disk is full. Earlier lines are kept, and later ones
    /// can be written once there is space again.
    pub(crate) fn append(&mut self, value: &impl Serialize) -> Result<(), StoreError> {
        let written = line(value).and_then(|line| {
            self.file.write_all(&line)?;
            Ok(line.len() as u64)
        });
        match written {
            Ok(bytes) => {
                self.bytes += bytes;
                Ok(())
            }
            Err(source) => {
                // Part of the line would make the next one unreadable.
                _ = self.rewind();
                Err(StoreError::writing(&self.path, source))
            }
        }
    }

    /// Writes all lines to disk, so that they survive a power failure.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        let synced = self.file.sync_data();
        synced.map_err(|source| StoreError::writing(&self.path, source))
    }

    fn rewind(&mut self) -> io::Result<()> {
        self.file.set_len(self.bytes)?;
        self.file.seek(SeekFrom::Start(self.bytes)).map(drop)
    }
}

fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}
