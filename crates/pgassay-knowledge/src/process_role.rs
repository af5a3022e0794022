//! The role of a server process, from its title.
//!
//! See `init_ps_display` and its callers in PostgreSQL: 9.6 and 10 write `… process`, later versions
//! do not; a `cluster_name` and a colon come before the role.

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
    /// Parses a title as `ps` shows it; [`Role::Unknown`] if it is none of a server process.
    pub fn parse(title: &str) -> Self {
        let title = title.trim_matches(['\0', ' ']);
        let Some(title) = title.strip_prefix("postgres: ") else {
            return Self::Unknown;
        };
        // A `cluster_name`, unless it is a part of the name of a user or of an extension's worker.
        let rest = title.split_once(": ").map_or(title, |(_, rest)| rest);
        let either = |read: fn(&str) -> Option<Self>| read(title).or_else(|| read(rest));
        let backend = || has_client(title).then_some(Self::Backend);
        either(Self::before_names)
            .or_else(backend)
            .or_else(|| either(Self::without_client))
            .unwrap_or_else(|| Self::Other(without_kind(rest).to_owned()))
    }

    /// Roles whose titles go on with the names of users or databases.
    fn before_names(title: &str) -> Option<Self> {
        let roles = [
            ("autovacuum worker", Self::AutovacuumWorker),
            ("walsender", Self::WalSender),
            ("wal sender process", Self::WalSender),
        ];
        Self::first_of(roles, title).filter(|_| !is_of_user_walsender(title))
    }

    fn without_client(title: &str) -> Option<Self> {
        let title = without_kind(title);
        if let Some(rest) = title.strip_prefix("parallel worker") {
            let leader_pid = rest
                .strip_prefix(" for PID ")
                .and_then(|r| r.trim().parse().ok());
            return Some(Self::ParallelWorker { leader_pid });
        }
        let roles = [
            ("checkpointer", Self::Checkpointer),
            ("background writer", Self::BackgroundWriter),
            ("writer process", Self::BackgroundWriter),
            ("walwriter", Self::WalWriter),
            ("wal writer", Self::WalWriter),
            ("logger", Self::Logger),
            ("autovacuum launcher", Self::AutovacuumLauncher),
            ("stats collector", Self::StatsCollector),
            ("walreceiver", Self::WalReceiver),
            ("wal receiver", Self::WalReceiver),
            ("io worker", Self::IoWorker),
            ("startup", Self::Startup),
            ("archiver", Self::Archiver),
        ];
        Self::first_of(roles, title)
    }

    fn first_of<const N: usize>(roles: [(&str, Self); N], title: &str) -> Option<Self> {
        let mut roles = roles.into_iter();
        let found = roles.find(|(prefix, _)| is_followed_by_words(title, prefix));
        found.map(|(_, role)| role)
    }
}

/// A title without what 9.6 and 10 begin those of all workers with.
fn without_kind(title: &str) -> &str {
    title.strip_prefix("bgworker: ").unwrap_or(title)
}

/// Whether `walsender` is the name of a user. The title of a WAL sender for a standby has the name of its user where
/// that of a client's backend has the database, but it does something else.
fn is_of_user_walsender(title: &str) -> bool {
    const SENDING: [&str; 13] = [
        "",
        "idle",
        "startup",
        "authentication",
        "streaming",
        "sending",
        "waiting",
        "catching",
        "backup",
        "START_REPLICATION",
        "BASE_BACKUP",
        "IDENTIFY_SYSTEM",
        "TIMELINE_HISTORY",
    ];
    let words: Vec<&str> = title.split(' ').collect();
    let ["walsender", _, client, does @ ..] = &words[..] else {
        return false;
    };
    let does = does.join(" ");
    let first = does.split(' ').next().unwrap_or_default();
    let is_sending = SENDING.contains(&first) && !does.starts_with("idle in transaction");
    is_client(client) && !is_sending && !does.ends_with("_REPLICATION_SLOT") && first != "SHOW"
}

/// Whether a title has a client behind the names of a user and a database, which may contain spaces: `[local]` or
/// `host(port)`. See `BackendInitialize` in PostgreSQL; `???` is an address that could not be formatted.
fn has_client(title: &str) -> bool {
    // If there is too little room for it, the title is cut off.
    let is_cut = |word: &str| {
        let port = word.split_once('(').filter(|(host, _)| !host.is_empty());
        let is_port = port.is_some_and(|(_, port)| port.bytes().all(|it| it.is_ascii_digit()));
        is_port || (word.starts_with('[') && "[local]".starts_with(word))
    };
    let words = title.split_whitespace().skip(2);
    words.clone().any(is_client) || words.last().is_some_and(is_cut)
}

fn is_client(word: &str) -> bool {
    let host_and_port = word.strip_suffix(')').and_then(|it| it.split_once('('));
    let is_port =
        |it: &str| it == "???" || (!it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()));
    word.starts_with("[local]")
        || host_and_port.is_some_and(|(host, port)| !host.is_empty() && is_port(port))
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
            (
                "postgres: wal sender process repl 10.0.0.7(5432) idle",
                Role::WalSender,
            ),
            (
                "postgres: 17/main: walsender repl shop ::1(5432) START_REPLICATION",
                Role::WalSender,
            ),
            (
                "postgres: checkpointer performing shutdown checkpoint",
                Role::Checkpointer,
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

    /// Regression: an extension's worker was a client backend.
    #[test]
    fn workers_of_extensions_are_no_client_backends() {
        for (title, name) in [
            (
                "postgres: pg_wait_sampling collector ",
                "pg_wait_sampling collector",
            ),
            (
                "postgres: 15/main: TimescaleDB Background Worker Launcher \0",
                "TimescaleDB Background Worker Launcher",
            ),
            (
                "postgres: bgworker: pg_cron launcher   ",
                "pg_cron launcher",
            ),
            (
                "postgres: 10/main: bgworker: pg_cron launcher",
                "pg_cron launcher",
            ),
            (
                "postgres: pg_partman dynamic background worker (dbname=shop)",
                "pg_partman dynamic background worker (dbname=shop)",
            ),
        ] {
            assert_eq!(Role::parse(title), Role::Other(name.to_owned()), "{title}");
        }
    }

    /// Regression: the backends of a user with the name `archiver` were the archiver.
    #[test]
    fn a_user_with_the_name_of_a_process_has_client_backends() {
        for title in [
            "postgres: archiver shop [local] SELECT",
            "postgres: ann shop [loc",
            "postgres: ann shop 10.0.0.7(50",
            "postgres: startup shop 10.0.0.7(50000) idle in transaction",
            "postgres: 15/main: logger shop fe80::1%eth0(50000) authentication",
            "postgres: parallel worker [local] idle",
            "postgres: walreceiver shop db.example.org(50000) ",
            "postgres: ann: smith my shop [local]",
            "postgres: checkpointer shop ???(???) startup",
            "postgres: walsender shop [local] SELECT",
            "postgres: walsender shop 10.0.0.7(50000) idle in transaction",
        ] {
            assert_eq!(Role::parse(title), Role::Backend, "{title}");
        }
    }
}
