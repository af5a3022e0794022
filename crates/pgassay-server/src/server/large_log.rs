//! Limits the log size of a running server.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use super::Server;
use crate::account::SHORT_TIMEOUT;
use crate::error::ServerError;

impl Server {
    /// Truncates the log if it is larger than `bytes_max`, including the collector's files in the
    /// data directory: a server that logs every statement can fill a disk quickly. Both writers
    /// append, so they continue at the beginning of the file.
    pub fn truncate_log_above(&self, bytes_max: u64) -> Result<(), ServerError> {
        let data = self.data_dir();
        let sizes = self.log_below().sizes();
        if sizes
            .values()
            .fold(0_u64, |sum, it| sum.saturating_add(*it))
            <= bytes_max
        {
            return Ok(());
        }
        let files: Vec<PathBuf> = sizes
            .keys()
            .map(|path| self.home.base().join(path))
            .collect();
        let path = self.log.path();
        let emptied = self.log.empty();
        emptied.map_err(|source| ServerError::writing("empty", path, source))?;
        // Runs as the server's user, who could otherwise misdirect us with a symbolic link.
        let theirs: Vec<&OsStr> = files
            .iter()
            .filter(|path| path.starts_with(&data))
            .map(|path| path.as_os_str())
            .collect();
        let script = "for file; do [ ! -f \"$file\" ] || : >\"$file\" || exit; done";
        let output = self
            .account
            .run_script(script, &theirs, &data, b"", SHORT_TIMEOUT)
            .map_err(|source| ServerError::writing("empty the log in", &data, source))?;
        if output.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let source = io::Error::other(words);
        Err(ServerError::writing("empty the log in", &data, source))
    }
}
