//! A server's processes, data and log on this machine, for the statistics outside its views.

use std::path::PathBuf;

use super::kernel::Kernel;
use crate::log_files::LogFiles;
use crate::os::Pid;
use crate::processes::{self, ProcessRole};
use crate::server::Server;

/// The sources of statistics outside a server's views.
#[derive(Debug, Clone)]
pub struct ServerProcesses<'a> {
    /// The backends of the load.
    pub backends: &'a [Pid],
    /// The server's background processes.
    pub background: Vec<(Pid, ProcessRole)>,
    /// Its data directory, if known.
    pub data_dir: Option<PathBuf>,
    /// The files of its log, if known.
    log_files: Option<LogFiles>,
}

impl<'a> ServerProcesses<'a> {
    /// For a server started by pgassay.
    pub fn of_server(server: &Server, backends: &'a [Pid]) -> Self {
        Self {
            data_dir: Some(server.data_dir()),
            log_files: Some(server.log_below()),
            ..Self::of_postmaster(server.postmaster_pid(), backends)
        }
    }

    /// For a server of which only the postmaster is known.
    pub fn of_postmaster(postmaster: Pid, backends: &'a [Pid]) -> Self {
        let background = processes::of_postmaster(postmaster)
            .into_iter()
            .filter(|process| {
                !matches!(process.role, ProcessRole::Backend | ProcessRole::Postmaster)
            })
            .map(|process| (process.pid, process.role));
        Self {
            backends,
            background: background.collect(),
            data_dir: None,
            log_files: None,
        }
    }

    pub(super) fn log(&self) -> Option<&LogFiles> {
        self.log_files.as_ref()
    }

    pub(super) fn kernel(&self) -> Kernel<'_> {
        Kernel {
            backends: self.backends,
            background: &self.background,
            data_dir: self.data_dir.as_deref(),
        }
    }
}
