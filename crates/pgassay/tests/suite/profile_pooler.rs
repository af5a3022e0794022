//! `pgassay profile` and `pgassay run` through `PgBouncer`, which gives a server's session to one client after the other.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::PROGRAM;
use crate::profiling::observed;
use pgassay_server::{Server, ServerConfig};
use pgassay_test_support::{
    Scratch,
    os::{NOBODY, is_root, on_path},
    servers, skip, wait_until,
};

/// A pooler that assigns sessions by transaction.
struct Pooler {
    child: Child,
    dsn: String,
}

impl Pooler {
    /// `None`, with a visible skip, if there is no pooler on this machine.
    fn start(server: &Server, directory: &Path) -> Option<Self> {
        // Debian installs it where only root's PATH leads.
        let installed = Path::new("/usr/sbin/pgbouncer");
        let installed = installed.exists().then(|| installed.to_owned());
        let Some(program) = on_path("pgbouncer").or(installed) else {
            skip("a pooler", "there is no pgbouncer");
            return None;
        };
        let at = directory.display();
        let (file, port) = (directory.join("pooler.ini"), 6432);
        let text = format!(
            "[databases]\n\
             postgres = host=127.0.0.1 port={} user=pooled password=secret\n[pgbouncer]\npool_mode = transaction\n\
             default_pool_size = 5\nlisten_port = {port}\nunix_socket_dir = {at}\n\
             auth_type = any\nlogfile = {at}/pooler.log\n",
            server.tcp_address().expect("the server listens").port()
        );
        let role = "create role pooled superuser login password 'secret'";
        let mut connection = server.connect().expect("a connection");
        connection.execute(role).expect("the role is new");
        fs::write(&file, text).expect("a file");
        let mut command = Command::new(program);
        if is_root() {
            chown(directory, Some(NOBODY), Some(NOBODY)).expect("root may");
            command.uid(NOBODY).gid(NOBODY);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.arg(&file).spawn().expect("the pooler starts");
        let socket = directory.join(format!(".s.PGSQL.{port}"));
        wait_until("the pooler listens", || socket.exists());
        let dsn = format!("host={at} port={port} dbname=postgres user=postgres");
        Some(Self { child, dsn })
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A study that only reads a server.
fn study(dsn: &str) -> String {
    format!(
        "question = \"?\"\nserver.dsn = \"{dsn}\"\n[[script]]\nname = \"s\"\ntext = \"select 1\"\n\
         [[variant]]\nname = \"a\"\nsession = {{ work_mem = \"1MB\" }}\n[[variant]]\nname = \"b\"\n"
    )
}

/// Regression: the statement that counts transactions waited for five seconds behind a lock on the catalog, and behind a
/// pooler without a limit.
#[test]
fn no_statement_of_a_profile_waits_long_behind_a_lock() {
    let mut config = servers::config();
    let log = ("log_statement".to_owned(), "all".to_owned());
    config.settings.extend([log]);
    let Some(server) = servers::start_with("18", &config) else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let arguments = ["profile", "--dsn", &server.conninfo(), "--duration", "1s"];
    let profile = scratch.finished(&arguments);
    assert_eq!(profile.code, Some(0), "{profile:?}");
    let log = fs::read_to_string(server.log_path()).expect("a log");
    let sent = log
        .lines()
        .filter(|line| line.contains("statement: begin transaction"));
    let limits = [
        "set local statement_timeout = ",
        "set local lock_timeout = '100ms'",
    ];
    let (limited, unlimited): (Vec<_>, Vec<_>) =
        sent.partition(|sql| limits.iter().all(|limit| sql.contains(limit)));
    assert!(limited.len() > 1, "{log}");
    assert!(unlimited.is_empty(), "{unlimited:?}");
    server.stop().expect("the server stops");
}

/// Regression: the second run executed the statement that the first had prepared, without a message. Later it failed,
/// because it gave its statement the same name.
#[test]
fn a_run_does_not_execute_what_another_has_prepared_behind_a_pooler() {
    let config = ServerConfig {
        tcp: true,
        ..servers::config()
    };
    let Some(server) = servers::start_with("18", &config) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let Some(pooler) = Pooler::start(&server, directory.path()) else {
        return;
    };
    let mut connection = server.connect().expect("a connection");
    let tables = "create table aa (i int); create table bb (i int)";
    connection.execute(tables).expect("the tables are new");
    let scratch = Scratch::new(PROGRAM);
    let run = |table: &str, protocol: &str| {
        let file = scratch.path().join(format!("{table}.sql"));
        fs::write(&file, format!("insert into {table} values (1);\n")).expect("a file");
        let file = file.to_str().expect("it is text");
        scratch.finished(&[
            "bench",
            "-n",
            "-M",
            protocol,
            "-t",
            "5",
            "-f",
            file,
            &pooler.dsn,
        ])
    };
    assert_eq!(run("aa", "prepared").code, Some(0));
    let second = run("bb", "prepared");
    assert_eq!(second.code, Some(0), "{second:?}");
    assert_eq!(run("bb", "extended").code, Some(0));
    let counts = "select (select count(*) from aa) || ' ' || (select count(*) from bb)";
    assert_eq!(
        connection
            .value(counts)
            .expect("they can be read")
            .as_deref(),
        Some("5 10")
    );
    drop(pooler);
    server.stop().expect("the server stops");
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    /// Regression: a run set the time limits of its sessions, which stayed. Regression: before 14, `set statement_timeout` outside of a transaction stayed in the pooled session.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn nothing_that_is_set_stays_in_the_sessions_of_a_pooler() {
        let mut config = ServerConfig {
            tcp: true,
            ..servers::config()
        };
        let log = ("log_statement".to_owned(), "all".to_owned());
        config.settings.extend([log]);
        for version in ["9.6", "12", "18"] {
            let Some(server) = servers::start_with(version, &config) else {
                continue;
            };
            let directory = tempfile::tempdir().expect("a directory");
            let Some(pooler) = Pooler::start(&server, directory.path()) else {
                return;
            };
            let scratch = Scratch::new(PROGRAM);
            let arguments = [
                "profile",
                "--dsn",
                &pooler.dsn,
                "--duration",
                "1s",
                "--json",
            ];
            let seen = observed(&scratch.finished(&arguments));
            let seen = seen.activity.expect("sessions are read");
            assert!(seen.sweeps > 0, "{version}");
            // The backends also serve others, so their CPU time is not the watch's.
            assert_eq!(seen.cost.backend_cpu_us, None, "{version}");
            let refused = scratch.run(&study(&pooler.dsn), &["--allow-superuser"]);
            assert_eq!(refused.code, Some(1), "{refused:?}");
            assert!(refused.stderr.contains("study.toml:2:14: "), "{refused:?}");
            let advice = "specify the address of the PostgreSQL server itself";
            assert!(refused.stderr.contains(advice), "{refused:?}");
            let log = fs::read_to_string(server.log_path()).expect("a log");
            let sent = log
                .lines()
                .filter_map(|line| line.split_once("statement: "));
            // The pooler itself sets what clients name at their start.
            let kept: Vec<&str> = sent
                .map(|(_, sql)| sql)
                .filter(|sql| sql.starts_with("set ") || sql.contains("pg_advisory_lock("))
                .collect();
            assert!(kept.is_empty(), "{version}: {kept:?}");
            drop(pooler);
            server.stop().expect("the server stops");
        }
    }
}
