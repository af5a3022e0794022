//! The processes of a server, from `/proc`.
//!
//! Two questions: which processes belong to a server's directory (every process of a server has the
//! data directory as its working directory; see `ChangeToDataDir` in
//! `src/backend/utils/init/miscinit.c`), and the role of each child of a postmaster, which is in its
//! title ([`Role::parse`]).

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pgassay_knowledge::Role;

use crate::file_users::user_of;
use crate::os::Pid;
use crate::server_dir::ServerDir;

const POLL: Duration = Duration::from_millis(1);

/// More than the kernel writes into the files of a process that are read here, `status` with the masks of
/// thousands of CPUs included.
const PROC_FILE_BYTES_MAX: usize = 8192;

/// One process of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerProcess {
    /// Its PID.
    pub pid: Pid,
    /// Its role.
    pub role: ProcessRole,
    /// Its current title, without `postgres: `.
    pub title: String,
}

/// The role of a server process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProcessRole {
    /// The parent of all other processes.
    Postmaster,
    /// Serves a client connection.
    Backend,
    /// Performs checkpoints.
    Checkpointer,
    /// Writes dirty buffers in the background.
    BackgroundWriter,
    /// Flushes WAL in the background.
    WalWriter,
    /// Starts autovacuum workers.
    AutovacuumLauncher,
    /// Vacuums or analyzes tables.
    AutovacuumWorker,
    /// Collects the log (`logging_collector`).
    Logger,
    /// Collects statistics (until 14).
    StatsCollector,
    /// Performs I/O for other processes (since 18).
    IoWorker,
    /// Replays WAL.
    Startup,
    /// Archives WAL.
    Archiver,
    /// Streams WAL to a standby.
    WalSender,
    /// Starts logical replication workers.
    LogicalLauncher,
    /// Executes part of a backend's query.
    ParallelWorker,
    /// Any other process; see its title.
    Other,
}

/// The name in reports, as PostgreSQL 18 titles its processes.
impl fmt::Display for ProcessRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Postmaster => "postmaster",
            Self::Backend => "backend",
            Self::Checkpointer => "checkpointer",
            Self::BackgroundWriter => "background writer",
            Self::WalWriter => "walwriter",
            Self::AutovacuumLauncher => "autovacuum launcher",
            Self::AutovacuumWorker => "autovacuum worker",
            Self::Logger => "logger",
            Self::StatsCollector => "stats collector",
            Self::IoWorker => "io worker",
            Self::Startup => "startup",
            Self::Archiver => "archiver",
            Self::WalSender => "walsender",
            Self::LogicalLauncher => "logical replication launcher",
            Self::ParallelWorker => "parallel worker",
            Self::Other => "other",
        })
    }
}

impl ProcessRole {
    /// The role in a title as `ps` shows it.
    fn of_title(title: &str) -> Self {
        match Role::parse(title) {
            Role::Backend => Self::Backend,
            Role::ParallelWorker { .. } => Self::ParallelWorker,
            Role::Checkpointer => Self::Checkpointer,
            Role::BackgroundWriter => Self::BackgroundWriter,
            Role::WalWriter => Self::WalWriter,
            Role::Logger => Self::Logger,
            Role::AutovacuumLauncher => Self::AutovacuumLauncher,
            Role::AutovacuumWorker => Self::AutovacuumWorker,
            Role::StatsCollector => Self::StatsCollector,
            Role::Startup => Self::Startup,
            Role::Archiver => Self::Archiver,
            Role::WalSender => Self::WalSender,
            Role::IoWorker => Self::IoWorker,
            Role::Other(name) if name.starts_with("logical replication launcher") => {
                Self::LogicalLauncher
            }
            Role::Postmaster | Role::WalReceiver | Role::Other(_) | Role::Unknown => Self::Other,
        }
    }
}

/// The postmaster and its children, sorted by PID. Empty after the postmaster has ended.
pub fn of_postmaster(postmaster: Pid) -> Vec<ServerProcess> {
    let mut found: Vec<ServerProcess> = all_pids()
        .filter_map(|pid| {
            if pid == postmaster {
                return Some(ServerProcess {
                    pid,
                    role: ProcessRole::Postmaster,
                    title: title(pid)?,
                });
            }
            if parent(pid)? != postmaster {
                return None;
            }
            let title = title(pid)?;
            Some(ServerProcess {
                pid,
                role: ProcessRole::of_title(&title),
                title: title
                    .strip_prefix("postgres: ")
                    .unwrap_or(&title)
                    .to_owned(),
            })
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

/// Waits until a process has ended and its parent has reaped it; false after `timeout`. Once a
/// server has reaped the last client's backend, it treats the next client in the same way.
pub fn wait_until_gone(pid: Pid, timeout: Duration) -> bool {
    let path = format!("/proc/{pid}");
    let start = Instant::now();
    while Path::new(&path).exists() {
        if start.elapsed() >= timeout {
            return false;
        }
        std::thread::sleep(POLL);
    }
    true
}

/// Prefixes of the names of the programs that run in a server's directory. The last two are the
/// kernel's names for a server under valgrind, before and after it is loaded.
pub(crate) const PROGRAMS: [&str; 4] = ["postgres", "initdb", "valgrind", "callgrind-"];

/// The processes of these programs that run as the user `owner` (a uid) and whose working directory
/// is `base` or below it. Other programs, such as a user's shell, are ignored.
pub(crate) fn living_in(base: &Path, owner: u32, programs: &[&str]) -> Vec<Pid> {
    all_pids()
        .filter(|&pid| runs_in(pid, base, owner, programs))
        .collect()
}

pub(crate) fn lives_in(pid: Pid, base: &Path, owner: u32) -> bool {
    runs_in(pid, base, owner, &PROGRAMS)
}

fn runs_in(pid: Pid, base: &Path, owner: u32, programs: &[&str]) -> bool {
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).ok();
    let is_one = |program: PathBuf| {
        let name = program
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| programs.iter().any(|program| name.starts_with(program)))
    };
    link("cwd").is_some_and(|cwd| cwd.starts_with(base))
        && link("exe").is_some_and(is_one)
        && user(pid) == Some(owner)
}

fn user(pid: Pid) -> Option<u32> {
    user_of(Path::new(&format!("/proc/{pid}")))
}

/// The PID in a data directory's `postmaster.pid`, if that process is running there.
pub(crate) fn postmaster_of(base: &ServerDir, owner: u32) -> Option<Pid> {
    let data = base.directory().open_dir(OsStr::new("data")).ok()?;
    let text = data.read_small_file("postmaster.pid").ok()?;
    let pid: Pid = text.lines().next()?.trim().parse().ok()?;
    (pid > 1 && lives_in(pid, base.path(), owner)).then_some(pid)
}

fn all_pids() -> impl Iterator<Item = Pid> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Reads a small file of `/proc` as one text. The kernel writes it at the first read, so one is enough;
/// [`fs::read_to_string`] needs up to eight system calls, and a trial reads hundreds of these files.
pub(crate) fn read_at_once(path: &str) -> io::Result<String> {
    let mut bytes = [0; PROC_FILE_BYTES_MAX];
    let mut file = File::open(path)?;
    let length = loop {
        match file.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

fn parent(pid: Pid) -> Option<Pid> {
    let stat = read_at_once(&format!("/proc/{pid}/stat")).ok()?;
    // The program's name is in parentheses and can contain any character, even parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}

fn title(pid: Pid) -> Option<String> {
    let text = read_at_once(&format!("/proc/{pid}/cmdline")).ok()?;
    let text = text.replace('\0', " ");
    let text = text.trim_end().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_of_old_and_new_versions_give_the_role() {
        let cases = [
            ("checkpointer process", ProcessRole::Checkpointer),
            ("checkpointer ", ProcessRole::Checkpointer),
            ("study 1: checkpointer", ProcessRole::Checkpointer),
            ("writer process", ProcessRole::BackgroundWriter),
            ("background writer", ProcessRole::BackgroundWriter),
            ("wal writer process", ProcessRole::WalWriter),
            ("walwriter", ProcessRole::WalWriter),
            ("stats collector process", ProcessRole::StatsCollector),
            ("io worker 2", ProcessRole::IoWorker),
            (
                "bgworker: logical replication launcher",
                ProcessRole::LogicalLauncher,
            ),
            ("parallel worker for PID 12", ProcessRole::ParallelWorker),
            ("bgworker: pg_cron", ProcessRole::Other),
            ("postgres postgres [local] idle", ProcessRole::Backend),
            (
                "study 1: app bench 127.0.0.1(4242) SELECT",
                ProcessRole::Backend,
            ),
            (
                "app bench ::1(4242) idle in transaction",
                ProcessRole::Backend,
            ),
            // Regression: the backends of such users were background processes.
            ("archiver bench [local] SELECT", ProcessRole::Backend),
            ("walsender bench [local] INSERT", ProcessRole::Backend),
            (
                "walsender repl [local] streaming 0/3000148",
                ProcessRole::WalSender,
            ),
        ];
        for (title, role) in cases {
            let shown = format!("postgres: {title}");
            assert_eq!(ProcessRole::of_title(&shown), role, "{title}");
        }
    }

    #[test]
    fn the_parent_of_a_child_is_this_process() {
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        assert_eq!(parent(pid), Pid::try_from(std::process::id()).ok());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(title(pid), None);
    }

    #[test]
    fn other_programs_in_the_directory_are_ignored() {
        let base = tempfile::tempdir().unwrap();
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("30").current_dir(base.path()).spawn().unwrap();
        assert!(living_in(base.path(), crate::os::effective_uid(), &PROGRAMS).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
