//! Restarts a server from a copy of its data.

use std::io;
use std::time::Duration;

use super::{Server, ServerConfig};
use crate::error::ServerError;

/// Enough for some gigabytes on a slow disk.
const COPY_TIMEOUT: Duration = Duration::from_mins(10);
/// Runs as the server's user, who could otherwise misdirect us with a symbolic link. The rename
/// makes sure that a copy is complete.
const RESTORE: &str = "set -e
if [ -d kept ]; then rm -rf data; cp -a kept data
else rm -rf unfinished; cp -a data unfinished; mv unfinished kept
fi";

impl Server {
    /// Restarts with changes to the configuration, as [`Server::restart_with`], and with the data
    /// as they were at the first call of this function. The copy is next to the data directory and
    /// is removed with it.
    pub fn restart_with_initial_data(
        &mut self,
        change: impl FnOnce(&mut ServerConfig),
    ) -> Result<(), ServerError> {
        self.is_alive()?;
        self.shut_down()?;
        self.restore()?;
        change(&mut self.config);
        self.cluster().configure()?;
        self.launch()
    }

    fn restore(&self) -> Result<(), ServerError> {
        let base = self.home.base();
        let failed = |source| ServerError::writing("copy the data in", base, source);
        let output = self
            .account
            .run_script(RESTORE, &[], base, b"", COPY_TIMEOUT)
            .map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(failed(io::Error::other(words.clone())).or_disk_full(base, &words))
    }
}
