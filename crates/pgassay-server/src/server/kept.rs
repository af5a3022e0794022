//! A copy of a server's data, from which it starts again.

use std::io;
use std::time::Duration;

use super::{Server, ServerConfig};
use crate::error::ServerError;

/// For some gigabytes on a slow disk.
const COPY_TIMEOUT: Duration = Duration::from_mins(10);
/// A copy that was not finished is none. Its user copies what is its user's: a link could lead us anywhere.
const RESTORE: &str = "set -e
if [ -d kept ]; then rm -rf data; cp -a kept data
else rm -rf unfinished; cp -a data unfinished; mv unfinished kept
fi";

impl Server {
    /// Restarts with changes to the configuration, as [`Server::restart_with`], and with the data as they
    /// were the first time that this was called. The copy lies beside the data and goes with them.
    pub fn restart_afresh(
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
