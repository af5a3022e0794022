//! Results of `pgassay calibrate`, one file each, in `<root>/calibration`.

use std::fs;
use std::io::ErrorKind;

use pgassay_account::calibration::{AaComparison, Calibration, CalibrationSummary};

use crate::error::StoreError;
use crate::pinned_directory::PinnedDirectory;
use crate::regular_file::read_ours;
use crate::{Store, files};

const DIRECTORY: &str = "calibration";
/// More than any calibration has: 50,000 comparisons.
const BYTES_MAX: u64 = 16 << 20;

impl Store {
    /// Saves a calibration, unless it has no comparisons.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn save_calibration(&self, calibration: &Calibration) -> Result<(), StoreError> {
        if calibration.comparisons.is_empty() {
            return Ok(());
        }
        let path = self.root.join(DIRECTORY);
        let opened =
            files::create_directories(&path).and_then(|()| PinnedDirectory::open_itself(&path));
        let directory = opened.map_err(|source| StoreError::writing(&path, source))?;
        let name = format!("{}-{}", calibration.machine_key, calibration.started_us);
        let partial = directory
            .path()
            .join(format!(".{name}-{}", std::process::id()));
        let path = directory.path().join(format!("{name}.json"));
        let written = files::write(&partial, |file| {
            serde_json::to_writer_pretty(file, calibration).map_err(Into::into)
        });
        written.and_then(|()| {
            fs::rename(&partial, &path).map_err(|source| StoreError::writing(&path, source))
        })
    }

    /// The A/A comparisons of a machine and a version of pgassay, over all calibrations; `None` if there
    /// are none. Files that cannot be read, or that another user can have written, are skipped: no run fails because of
    /// them, and their figures are not this user's.
    ///
    /// # Errors
    /// If the directory exists and cannot be listed.
    pub fn calibration(
        &self,
        machine_key: &str,
        pgassay: &str,
    ) -> Result<Option<CalibrationSummary>, StoreError> {
        let path = self.root.join(DIRECTORY);
        let reading = |source| StoreError::reading(&path, source);
        let directory = match PinnedDirectory::open_itself(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(reading)?,
        };
        let mut found: Vec<AaComparison> = Vec::new();
        let mut ended_us = 0;
        for entry in fs::read_dir(directory.path()).map_err(reading)? {
            let path = entry.map_err(reading)?.path();
            let Ok(text) = read_ours(&path, BYTES_MAX) else {
                continue;
            };
            let Ok(one) = serde_json::from_slice::<Calibration>(&text) else {
                continue;
            };
            if one.machine_key == machine_key && one.pgassay_version == pgassay {
                ended_us = ended_us.max(one.ended_us);
                found.extend(one.comparisons);
            }
        }
        Ok(CalibrationSummary::of(&found, ended_us))
    }
}
