//! A server that somebody else runs: found by one of its processes, and its processes by it.
//!
//! Every process of a server is a child of its postmaster; the kernel's name for all of them is
//! the program's, and titles are told apart by `role`. The postmaster and its children have the data directory as their working
//! directory (`ChangeToDataDir` in `miscinit.c`), and its `PG_VERSION` tells the major version.

use crate::cpu::ticks_per_second;
use crate::procfs::ProcessStat;
use crate::role::Role;
use std::fs;
use std::io;
use std::path::Path;

/// Why a process is not one of a server that can be watched.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// There is no such process.
    #[error("there is no process {pid}")]
    NoSuchProcess {
        /// The number asked for.
        pid: u32,
    },
    /// It is another program's.
    #[error(
        "process {pid} is no PostgreSQL server but {command:?}; give the number of a postmaster or \
         a backend, as ps shows them"
    )]
    NotPostgres {
        /// The number asked for.
        pid: u32,
        /// The name that the kernel has for it.
        command: String,
    },
    /// Its entry under `/proc` cannot be read.
    #[error("cannot read about process {pid}: {source}")]
    Unreadable {
        /// The number asked for.
        pid: u32,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A running server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveServer {
    /// Its first process.
    pub postmaster_pid: u32,
    /// The major version, as `18` or `9.6`, where its data directory may be read.
    pub major: Option<String>,
}

/// One process of a live server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveProcess {
    /// Its number.
    pub pid: u32,
    /// What it is for, as its title says now.
    pub role: Role,
}

impl LiveServer {
    /// The server of a postmaster that is known to be one, whatever the kernel calls its process: under
    /// valgrind it has that program's name.
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
        // Nothing but a postmaster begets servers' processes, and it is itself begotten by others.
        let parent_pid = ProcessStat::read(pid).map_err(unreadable)?.parent_pid;
        let of_parent = fs::read_to_string(format!("/proc/{parent_pid}/comm"));
        let postmaster_pid = match of_parent {
            Ok(command) if is_postgres(&command) => parent_pid,
            _ => pid,
        };
        Ok(Self::of_postmaster(postmaster_pid))
    }

    /// The postmaster's children as they are now.
    pub fn processes(&self) -> Vec<LiveProcess> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|&pid| {
            ProcessStat::read(pid).is_ok_and(|stat| stat.parent_pid == self.postmaster_pid)
        })
        .map(|pid| LiveProcess {
            pid,
            role: Role::read(pid),
        })
        .collect()
    }

    /// When it was started, seconds since 1970, by the kernel's present idea of when it booted.
    pub fn started_s(&self) -> io::Result<f64> {
        let ticks = ProcessStat::read(self.postmaster_pid)?.started_ticks;
        let text = fs::read_to_string("/proc/stat")?;
        let boot = text.lines().find_map(|line| line.strip_prefix("btime "));
        let boot_s: f64 = boot.and_then(|it| it.trim().parse().ok()).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "/proc/stat has no time of boot")
        })?;
        Ok(boot_s + ticks as f64 / ticks_per_second() as f64)
    }

    /// The server still runs.
    pub fn is_there(&self) -> bool {
        Path::new(&format!("/proc/{}", self.postmaster_pid)).exists()
    }
}

/// Forks that go by names of their own keep `postgres` in it.
fn is_postgres(command: &str) -> bool {
    ["postgres", "postmaster"]
        .iter()
        .any(|it| command.contains(it))
}

fn major(postmaster_pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{postmaster_pid}/cwd/PG_VERSION")).ok()?;
    let major = text.trim();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    major.split('.').all(is_number).then(|| major.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_programs_and_numbers_without_a_process_are_refused() {
        let own = LiveServer::of_process(std::process::id()).unwrap_err();
        assert!(matches!(own, LiveError::NotPostgres { .. }), "{own}");
        // Above the largest number that the kernel gives (PID_MAX_LIMIT).
        let none = LiveServer::of_process(1 << 23).unwrap_err();
        assert!(matches!(none, LiveError::NoSuchProcess { .. }), "{none}");
        assert!(is_postgres("edb-postgres\n") && is_postgres("postmaster\n"));
    }
}
