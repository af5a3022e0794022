//! The role of a server process, from its title.
//!
//! See `init_ps_display` and its callers in PostgreSQL: 9.6 and 10 write `… process`, later versions
//! do not; a `cluster_name` and a colon come before the role.

use crate::proc::files::with_line;
use std::fmt;

/// The role of a server process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The parent of all other processes.
    Postmaster,
    /// Serves a client connection.
    Backend,
    /// Executes part of a backend's query.
    ParallelWorker {
        /// Its leader, if it is in the title.
        leader_pid: Option<u32>,
    },
    /// Performs checkpoints.
    Checkpointer,
    /// Writes dirty buffers in the background.
    BackgroundWriter,
    /// Flushes WAL in the background.
    WalWriter,
    /// Collects the server log.
    Logger,
    /// Starts autovacuum workers.
    AutovacuumLauncher,
    /// Vacuums or analyzes tables.
    AutovacuumWorker,
    /// Collects statistics, until 14.
    StatsCollector,
    /// Replays WAL.
    Startup,
    /// Archives WAL.
    Archiver,
    /// Streams WAL to a standby.
    WalSender,
    /// Receives WAL.
    WalReceiver,
    /// Performs I/O for other processes, since 18.
    IoWorker,
    /// Any other process, with its title.
    Other(String),
    /// It has no title yet, or has executed another program.
    Unknown,
}

impl Role {
    /// Reads the title of a process; [`Role::Unknown`] if it has ended or has no title yet.
    pub(crate) fn read(pid: u32) -> Self {
        let path = format!("/proc/{pid}/cmdline");
        with_line(path, |title| Self::parse(&String::from_utf8_lossy(title)))
            .unwrap_or(Self::Unknown)
    }

    /// Parses a title as `ps` shows it.
    fn parse(title: &str) -> Self {
        let title = title.trim_matches(['\0', ' ']);
        let Some(title) = title.strip_prefix("postgres: ") else {
            return Self::Unknown;
        };
        let behind_cluster_name = || title.split_once(": ").and_then(|(_, t)| Self::known(t));
        Self::known(title)
            .or_else(behind_cluster_name)
            .unwrap_or(Self::Backend)
    }

    fn known(title: &str) -> Option<Self> {
        let title = title.trim();
        let title = title.strip_prefix("bgworker: ").unwrap_or(title);
        for (prefix, role) in [
            ("autovacuum worker", Self::AutovacuumWorker),
            ("walsender", Self::WalSender),
            ("wal sender", Self::WalSender),
            ("walreceiver", Self::WalReceiver),
            ("wal receiver", Self::WalReceiver),
            ("io worker", Self::IoWorker),
            ("startup", Self::Startup),
            ("archiver", Self::Archiver),
        ] {
            if is_followed_by_words(title, prefix) {
                return Some(role);
            }
        }
        if let Some(rest) = title.strip_prefix("parallel worker") {
            let leader_pid = rest
                .strip_prefix(" for PID ")
                .and_then(|r| r.trim().parse().ok());
            return Some(Self::ParallelWorker { leader_pid });
        }
        for other in ["logical replication", "slotsync worker", "walsummarizer"] {
            if title.starts_with(other) {
                return Some(Self::Other(title.to_owned()));
            }
        }
        Some(match title.strip_suffix(" process").unwrap_or(title) {
            "checkpointer" => Self::Checkpointer,
            "background writer" | "writer" => Self::BackgroundWriter,
            "walwriter" | "wal writer" => Self::WalWriter,
            "logger" => Self::Logger,
            "autovacuum launcher" => Self::AutovacuumLauncher,
            "stats collector" => Self::StatsCollector,
            _ => return None,
        })
    }
}

/// The title of a process that serves no client, without what the titles of all processes begin with;
/// `None` if it has ended or has no title yet.
pub(crate) fn worker_title(pid: u32) -> Option<String> {
    let path = format!("/proc/{pid}/cmdline");
    with_line(path, |title| parse_worker(&String::from_utf8_lossy(title))).ok()?
}

fn parse_worker(title: &str) -> Option<String> {
    let title = title.trim_matches(['\0', ' ']).strip_prefix("postgres: ")?;
    // A cluster name; version 10 has `bgworker: ` behind it.
    let title = title.split_once(": ").map_or(title, |it| it.1);
    let title = title.strip_prefix("bgworker: ").unwrap_or(title);
    Some(title.to_owned())
}

/// The name in reports, as PostgreSQL 18 titles its processes.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Postmaster => "postmaster",
            Self::Backend => "backend",
            Self::ParallelWorker { .. } => "parallel worker",
            Self::Checkpointer => "checkpointer",
            Self::BackgroundWriter => "background writer",
            Self::WalWriter => "walwriter",
            Self::Logger => "logger",
            Self::AutovacuumLauncher => "autovacuum launcher",
            Self::AutovacuumWorker => "autovacuum worker",
            Self::StatsCollector => "stats collector",
            Self::Startup => "startup",
            Self::Archiver => "archiver",
            Self::WalSender => "walsender",
            Self::WalReceiver => "walreceiver",
            Self::IoWorker => "io worker",
            Self::Other(title) => title,
            Self::Unknown => "unknown",
        })
    }
}

fn is_followed_by_words(title: &str, prefix: &str) -> bool {
    title
        .strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_of_all_versions_are_parsed() {
        for (title, role) in [
            ("postgres: checkpointer ", Role::Checkpointer),
            ("postgres: checkpointer process   ", Role::Checkpointer),
            ("postgres: 15/main: walwriter ", Role::WalWriter),
            ("postgres: wal writer process   ", Role::WalWriter),
            ("postgres: background writer ", Role::BackgroundWriter),
            ("postgres: writer process   ", Role::BackgroundWriter),
            ("postgres: logger process   ", Role::Logger),
            ("postgres: autovacuum launcher ", Role::AutovacuumLauncher),
            (
                "postgres: autovacuum worker process   postgres",
                Role::AutovacuumWorker,
            ),
            ("postgres: stats collector process   ", Role::StatsCollector),
            ("postgres: io worker 1", Role::IoWorker),
            (
                "postgres: startup recovering 000000010000000000000003",
                Role::Startup,
            ),
            (
                "postgres: walsender repl [local] streaming 0/3000148",
                Role::WalSender,
            ),
            ("postgres: nobody postgres [local] idle", Role::Backend),
            (
                "postgres: 15/main: ann shop 127.0.0.1(5000) SELECT",
                Role::Backend,
            ),
            (
                "postgres: parallel worker for PID 4711  ",
                Role::ParallelWorker {
                    leader_pid: Some(4711),
                },
            ),
            (
                "postgres: bgworker: parallel worker for PID 12   ",
                Role::ParallelWorker {
                    leader_pid: Some(12),
                },
            ),
            (
                "postgres: logical replication launcher ",
                Role::Other("logical replication launcher".to_owned()),
            ),
            (
                "/usr/lib/postgresql/15/bin/postgres\0-D\0/x\0",
                Role::Unknown,
            ),
            ("", Role::Unknown),
        ] {
            assert_eq!(Role::parse(title), role, "{title:?}");
        }
    }

    #[test]
    fn workers_of_extensions_have_the_names_in_their_titles() {
        for (title, name) in [
            (
                "postgres: pg_wait_sampling collector ",
                Some("pg_wait_sampling collector"),
            ),
            (
                "postgres: 15/main: TimescaleDB Background Worker Launcher \0",
                Some("TimescaleDB Background Worker Launcher"),
            ),
            (
                "postgres: bgworker: pg_cron launcher   ",
                Some("pg_cron launcher"),
            ),
            (
                "postgres: 10/main: bgworker: pg_cron launcher",
                Some("pg_cron launcher"),
            ),
            ("/usr/lib/postgresql/15/bin/postgres\0-D\0/x\0", None),
        ] {
            assert_eq!(parse_worker(title).as_deref(), name, "{title:?}");
        }
    }
}
