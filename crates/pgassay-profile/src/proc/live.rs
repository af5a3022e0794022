//! An external server: finds it by one of its processes, and lists its processes.
//!
//! Every process of a server is a child of its postmaster and has the program's name in the
//! kernel; `role` reads its title. The postmaster and its children have the data directory as
//! their working directory (`ChangeToDataDir` in `miscinit.c`), where `PG_VERSION` is.

use crate::proc::cpu::ticks_per_second;
use crate::proc::files::ProcessStat;
use crate::proc::process_list::ProcessList;
use crate::proc::role::Role;
use crate::regular_file;
use std::fs;
use std::io;
use std::path::Path;

/// More than `PG_VERSION` has in any version.
const VERSION_BYTES_MAX: u64 = 64;

/// Why a process cannot be profiled as part of a server.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// There is no such process.
    #[error("there is no process {pid}")]
    NoSuchProcess {
        /// The requested PID.
        pid: u32,
    },
    /// It belongs to another program.
    #[error(
        "process {pid} is {command:?}, not a PostgreSQL server; specify the PID of a postmaster or \
         a backend"
    )]
    NotPostgres {
        /// The requested PID.
        pid: u32,
        /// The kernel's name for the process.
        command: String,
    },
    /// Its entry under `/proc` cannot be read.
    #[error("cannot read /proc/{pid}: {source}")]
    Unreadable {
        /// The requested PID.
        pid: u32,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A running server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveServer {
    /// The postmaster.
    pub postmaster_pid: u32,
    /// The major version, as `18` or `9.6`; `None` if its data directory is not readable.
    pub major: Option<String>,
}

/// One process of a live server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveProcess {
    /// Its PID.
    pub pid: u32,
    /// Its role, from its current title.
    pub role: Role,
}

impl LiveServer {
    /// The server of a known postmaster, whatever the kernel's name for the process: under
    /// valgrind it has valgrind's name.
    pub fn of_postmaster(postmaster_pid: u32) -> Self {
        Self {
            postmaster_pid,
            major: major(postmaster_pid),
        }
    }

    /// The server that a process belongs to: its postmaster, or any child of one.
    pub fn of_process(pid: u32) -> Result<Self, LiveError> {
        let unreadable = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => LiveError::NoSuchProcess { pid },
            _ => LiveError::Unreadable { pid, source },
        };
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).map_err(unreadable)?;
        if !is_postgres(&command) {
            let command = command.trim().to_owned();
            return Err(LiveError::NotPostgres { pid, command });
        }
        // Only a postmaster forks server processes, and its own parent is another program.
        let parent_pid = ProcessStat::read(pid).map_err(unreadable)?.parent_pid;
        let of_parent = fs::read_to_string(format!("/proc/{parent_pid}/comm"));
        let postmaster_pid = match of_parent {
            Ok(command) if is_postgres(&command) => parent_pid,
            _ => pid,
        };
        Ok(Self::of_postmaster(postmaster_pid))
    }

    /// The postmaster's current children.
    pub fn processes(&self) -> Vec<LiveProcess> {
        ProcessList::of_server(self).read()
    }

    /// When it started, in seconds since 1970, according to the kernel's boot time.
    pub fn started_s(&self) -> io::Result<f64> {
        let ticks = ProcessStat::read(self.postmaster_pid)?.started_ticks;
        let text = fs::read_to_string("/proc/stat")?;
        let boot = text.lines().find_map(|line| line.strip_prefix("btime "));
        let boot_s: f64 = boot.and_then(|it| it.trim().parse().ok()).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "/proc/stat has no boot time")
        })?;
        Ok(boot_s + ticks as f64 / ticks_per_second() as f64)
    }

    /// Whether the server is still running.
    pub fn is_there(&self) -> bool {
        Path::new(&format!("/proc/{}", self.postmaster_pid)).exists()
    }
}

/// Forks of PostgreSQL with other program names keep `postgres` in them.
fn is_postgres(command: &str) -> bool {
    ["postgres", "postmaster"]
        .iter()
        .any(|it| command.contains(it))
}

fn major(postmaster_pid: u32) -> Option<String> {
    let path = format!("/proc/{postmaster_pid}/cwd/PG_VERSION");
    let text = regular_file::read_small(Path::new(&path), VERSION_BYTES_MAX).ok()?;
    let major = text.trim();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    major.split('.').all(is_number).then(|| major.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_programs_and_unused_pids_are_rejected() {
        let own = LiveServer::of_process(std::process::id()).unwrap_err();
        assert!(matches!(own, LiveError::NotPostgres { .. }), "{own}");
        // Above the largest PID (PID_MAX_LIMIT).
        let none = LiveServer::of_process(1 << 23).unwrap_err();
        assert!(matches!(none, LiveError::NoSuchProcess { .. }), "{none}");
        assert!(is_postgres("edb-postgres\n") && is_postgres("postmaster\n"));
    }
}
