//! The processes of a server, read from `/proc`.
//!
//! Two questions: which processes still live in a server's directory (every process of a server
//! has its data directory as its working directory; see `ChangeToDataDir` in
//! `src/backend/utils/init/miscinit.c`), and what each child of a postmaster does. The latter
//! stands in its title; see `src/backend/utils/misc/ps_status.c`. 9.6 and 10 write
//! `postgres: writer process`, 11 and later `postgres: background writer`; with a
//! `cluster_name` that name and a colon come before.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::os::Pid;

const POLL: Duration = Duration::from_millis(1);

/// One process of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerProcess {
    /// Its number.
    pub pid: Pid,
    /// What it is for.
    pub role: Role,
    /// What stands behind `postgres: ` in its title, as it was at this moment.
    pub title: String,
}

/// What a process of a server is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The first process, parent of all others.
    Postmaster,
    /// Serves one client's connection.
    Backend,
    /// Writes checkpoints.
    Checkpointer,
    /// Writes dirty buffers ahead of need.
    BackgroundWriter,
    /// Writes the log of changes ahead of need.
    WalWriter,
    /// Starts the workers of autovacuum.
    AutovacuumLauncher,
    /// Vacuums or analyses tables.
    AutovacuumWorker,
    /// Collects the log (`logging_collector`).
    Logger,
    /// Collects statistics (until 14).
    StatsCollector,
    /// Reads and writes for the others (since 18).
    IoWorker,
    /// Replays the log of changes.
    Startup,
    /// Archives the log of changes.
    Archiver,
    /// Sends the log of changes to a replica.
    WalSender,
    /// Starts the workers of logical replication.
    LogicalLauncher,
    /// Helps a backend with one query.
    ParallelWorker,
    /// Anything else; its title tells.
    Other,
}

/// Beginnings of titles and what they mean; the first that fits counts.
const TITLES: [(&str, Role); 19] = [
    ("checkpointer", Role::Checkpointer),
    ("background writer", Role::BackgroundWriter),
    ("writer process", Role::BackgroundWriter),
    ("walwriter", Role::WalWriter),
    ("wal writer", Role::WalWriter),
    ("autovacuum launcher", Role::AutovacuumLauncher),
    ("autovacuum worker", Role::AutovacuumWorker),
    ("logger", Role::Logger),
    ("stats collector", Role::StatsCollector),
    ("io worker", Role::IoWorker),
    ("startup", Role::Startup),
    ("archiver", Role::Archiver),
    ("walsender", Role::WalSender),
    ("wal sender", Role::WalSender),
    ("logical replication launcher", Role::LogicalLauncher),
    (
        "bgworker: logical replication launcher",
        Role::LogicalLauncher,
    ),
    ("parallel worker", Role::ParallelWorker),
    ("bgworker: parallel worker", Role::ParallelWorker),
    ("bgworker:", Role::Other),
];

/// The name in reports, as PostgreSQL 18 titles its processes.
impl fmt::Display for Role {
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

impl Role {
    /// Reads a title without its `postgres: `.
    fn of_title(title: &str) -> Self {
        // A cluster's name, if there is one, ends with the first colon; `bgworker:` does too.
        let own = |title: &str| TITLES.iter().find(|(start, _)| title.starts_with(start));
        let after_name = title.split_once(": ").map_or("", |(_, rest)| rest);
        if let Some((_, role)) = own(title).or_else(|| own(after_name)) {
            return role.clone();
        }
        // USER DATABASE CLIENT ACTIVITY, where a client is `[local]` or `address(port)`.
        let is_client =
            |word: &str| word == "[local]" || (word.contains('(') && word.ends_with(')'));
        if title.split(' ').any(is_client) {
            Self::Backend
        } else {
            Self::Other
        }
    }
}

/// The postmaster and its children, by their numbers. Empty once the postmaster has gone.
pub fn of_postmaster(postmaster: Pid) -> Vec<ServerProcess> {
    let mut found: Vec<ServerProcess> = all_pids()
        .filter_map(|pid| {
            let title = title(pid)?;
            if pid == postmaster {
                return Some(ServerProcess {
                    pid,
                    role: Role::Postmaster,
                    title,
                });
            }
            if parent(pid)? != postmaster {
                return None;
            }
            let title = title
                .strip_prefix("postgres: ")
                .unwrap_or(&title)
                .to_owned();
            Some(ServerProcess {
                pid,
                role: Role::of_title(&title),
                title,
            })
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

/// Waits until a process has ended and its parent has seen that; false if it goes on after
/// `timeout`. A server that has seen the end of its last client's process treats the next client
/// as it did the last.
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

/// The programs that run in a server's directory, as their names begin.
/// The last two are what a server is to the kernel that runs under valgrind: before and after
/// it was loaded.
pub(crate) const PROGRAMS: [&str; 4] = ["postgres", "initdb", "valgrind", "callgrind-"];

/// The processes of these programs whose working directory is `base` or lies in it. Processes of
/// other programs are left out: somebody may just be looking around there.
pub(crate) fn living_in(base: &Path, programs: &[&str]) -> Vec<Pid> {
    all_pids()
        .filter(|&pid| runs_in(pid, base, programs))
        .collect()
}

pub(crate) fn lives_in(pid: Pid, base: &Path) -> bool {
    runs_in(pid, base, &PROGRAMS)
}

fn runs_in(pid: Pid, base: &Path, programs: &[&str]) -> bool {
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).ok();
    let is_one = |program: PathBuf| {
        let name = program
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| programs.iter().any(|program| name.starts_with(program)))
    };
    link("cwd").is_some_and(|cwd| cwd.starts_with(base)) && link("exe").is_some_and(is_one)
}

/// The postmaster's number that a data directory tells, if that process is really there.
pub(crate) fn postmaster_of(base: &Path) -> Option<Pid> {
    let text = fs::read_to_string(base.join("data/postmaster.pid")).ok()?;
    let pid: Pid = text.lines().next()?.trim().parse().ok()?;
    (pid > 1 && lives_in(pid, base)).then_some(pid)
}

fn all_pids() -> impl Iterator<Item = Pid> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in parentheses and may hold anything, even parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}

fn title(pid: Pid) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    let text = text.trim_end().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_of_old_and_new_versions_tell_the_role() {
        let cases = [
            ("checkpointer process", Role::Checkpointer),
            ("checkpointer ", Role::Checkpointer),
            ("study 1: checkpointer", Role::Checkpointer),
            ("writer process", Role::BackgroundWriter),
            ("background writer", Role::BackgroundWriter),
            ("wal writer process", Role::WalWriter),
            ("walwriter", Role::WalWriter),
            ("stats collector process", Role::StatsCollector),
            ("io worker 2", Role::IoWorker),
            (
                "bgworker: logical replication launcher",
                Role::LogicalLauncher,
            ),
            ("parallel worker for PID 12", Role::ParallelWorker),
            ("bgworker: pg_cron", Role::Other),
            ("postgres postgres [local] idle", Role::Backend),
            ("study 1: app bench 127.0.0.1(4242) SELECT", Role::Backend),
            ("app bench ::1(4242) idle in transaction", Role::Backend),
        ];
        for (title, role) in cases {
            assert_eq!(Role::of_title(title), role, "{title}");
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
    fn a_program_that_is_not_postgres_is_not_counted() {
        let base = tempfile::tempdir().unwrap();
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("30").current_dir(base.path()).spawn().unwrap();
        assert!(living_in(base.path(), &PROGRAMS).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
