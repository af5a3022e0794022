//! Where a server's processes, data and log are, for what is counted beside its views.

use std::path::PathBuf;

use super::kernel::Kernel;
use crate::os::Pid;
use crate::processes::{self, Role};
use crate::server::Server;

/// What is beside a server's views on this machine.
#[derive(Debug, Clone)]
pub struct Beside<'a> {
    /// The processes of the load.
    pub backends: &'a [Pid],
    /// The server's other processes.
    pub background: Vec<(Pid, Role)>,
    /// Where its data are; `None` where that is not known.
    pub data_dir: Option<PathBuf>,
    /// What its log is written to; `None` where that is not known.
    pub log_files: Option<Vec<PathBuf>>,
}

impl<'a> Beside<'a> {
    /// Of a server of ours.
    pub fn of_server(server: &Server, backends: &'a [Pid]) -> Self {
        Self {
            data_dir: Some(server.data_dir()),
            log_files: Some(server.log_files()),
            ..Self::of_postmaster(server.postmaster_pid(), backends)
        }
    }

    /// Of a server of which only the first process is known.
    pub fn of_postmaster(postmaster: Pid, backends: &'a [Pid]) -> Self {
        let background = processes::of_postmaster(postmaster)
            .into_iter()
            .filter(|process| !matches!(process.role, Role::Backend | Role::Postmaster))
            .map(|process| (process.pid, process.role));
        Self {
            backends,
            background: background.collect(),
            data_dir: None,
            log_files: None,
        }
    }

    pub(super) fn kernel(&self) -> Kernel<'_> {
        Kernel {
            backends: self.backends,
            background: &self.background,
            data_dir: self.data_dir.as_deref(),
        }
    }
}
