//! `pgassay profile` of a server whose processes are invisible.

use std::thread;

use crate::PROGRAM;
use crate::profiling::{Load, observed, run};
use pgassay_account::ledger::Part;
use pgassay_record::observation::Observation;
use pgassay_server::ServerConfig;
use pgassay_test_support::{
    Finished, Scratch, collapse_whitespace, os::is_root, servers, skip, wait_until,
};

/// Runs `pgassay profile` in a separate PID namespace, where the server's processes are as invisible
/// as those of another machine.
fn run_in_pid_namespace(scratch: &Scratch, dsn: &str, arguments: &[&str]) -> Finished {
    let program = scratch.command();
    let mut command = std::process::Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--"]);
    command
        .arg(program.get_program())
        .args(["profile", "--dsn", dsn]);
    command.args(arguments);
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    run(&mut command)
}

fn check_profile_by_activity(server: &pgassay_server::Server, version: &str) {
    let mut holder = server.connect().expect("a connection");
    for sql in [
        "create role watcher login password 'secret'",
        "select pg_advisory_lock(1)",
    ] {
        holder.query(sql).expect("the query succeeds");
    }
    let mut waiter = server.connect().expect("a connection");
    let waiting = thread::spawn(move || waiter.query("select pg_advisory_lock(1)").map(drop));
    // Not in FROM, where the rows would go to a temporary file, and the backend would wait for it. Transactions that
    // use no table would not be counted. Long ones: between two, the session waits for a client that a busy machine
    // lets run late.
    let sql = "select sum(sqrt(i)), (select count(*) from pg_class) \
               from (select generate_series(1, 1500000) i) s";
    let working = Load::of(server, 1, sql);
    let scratch = Scratch::new(PROGRAM);
    let page = scratch.path().join("page.html");
    let page_name = page.to_string_lossy();
    let dsn = server.conninfo();
    let seen = observed(&run_in_pid_namespace(
        &scratch,
        &dsn,
        &["--duration", "4s", "--json", "--html", &page_name],
    ));
    let text = run_in_pid_namespace(&scratch, &dsn, &["--duration", "1s"]);
    let port = server.tcp_address().expect("the server listens").port();
    let theirs = format!("host=127.0.0.1 port={port} user=watcher password=secret dbname=postgres");
    let strangers = run_in_pid_namespace(&scratch, &theirs, &["--duration", "1s"]);
    let pid = run_in_pid_namespace(&scratch, &dsn, &["--pid", "1"]);
    let stacks = run_in_pid_namespace(
        &scratch,
        &dsn,
        &["--duration", "1s", "--export", "folded=-"],
    );
    drop(holder);
    waiting
        .join()
        .expect("the thread does not panic")
        .expect("the lock");
    let done = working.stop();

    assert_eq!(seen.subject.postmaster_pid, None);
    assert_eq!(seen.subject.major.as_deref(), Some(version));
    assert_eq!(
        (seen.backends, seen.sessions),
        (None, 3),
        "own connections are excluded"
    );
    let there_us = 3.0 * seen.window_us;
    assert!(
        (seen.backends_present_us / there_us - 1.0).abs() < 0.02,
        "{seen:?}"
    );
    let rows = seen.ledger();
    let share = |part: Part| {
        let of_part = rows.iter().filter(|row| row.part == part);
        of_part.map(|row| row.us).sum::<f64>() / seen.backends_present_us
    };
    for part in [Part::Running, Part::Client, Part::Blocked] {
        assert!((share(part) - 1.0 / 3.0).abs() < 0.05, "{rows:?}");
    }
    let lock = rows.iter().find(|row| row.part == Part::Blocked);
    assert_eq!(lock.map(|row| &*row.mechanism), Some("Lock advisory"));
    let counted = seen.transactions.expect("transactions were counted");
    let of_others = done + 5;
    assert!(
        counted <= of_others,
        "{counted} of {done}: pgassay's own are excluded"
    );
    for part in [
        "at socket ",
        "All time by samples of pg_stat_activity",
        "on CPU or in run queue",
        "run pgassay on the server's host",
    ] {
        assert!(
            collapse_whitespace(&text.stdout).contains(part),
            "{part}: {text:?}"
        );
    }
    let named = |it: &&str| text.stdout.contains(*it);
    let unknown = ["\nTIME", "\nBLOCKED", "  run queue", "99th percentile"];
    assert_eq!(
        unknown.iter().copied().find(|it| named(it)),
        None,
        "{text:?}"
    );
    assert!(strangers.stdout.contains("pg_monitor"), "{strangers:?}");
    assert_eq!(pid.code, Some(1), "{pid:?}");
    assert!(
        pid.error_message().contains("--pid cannot be one"),
        "{pid:?}"
    );
    assert_eq!(stacks.code, Some(1), "{stacks:?}");
    assert!(
        stacks.error_message().contains("no stacks to export"),
        "{stacks:?}"
    );
    let page = std::fs::read_to_string(page).expect("the file was written");
    assert!(page.contains("All time by samples"), "{page}");
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_remote_server_is_profiled_by_pg_stat_activity() {
        if !is_root() {
            skip("a remote server", "a PID namespace requires root");
            return;
        }
        let config = ServerConfig {
            tcp: true,
            ..servers::config()
        };
        for version in ["9.6", "18"] {
            let Some(server) = servers::start_with(version, &config) else {
                continue;
            };
            check_profile_by_activity(&server, version);
            server.stop().expect("the server stops");
        }
    }

    /// Regression: with `repeatable read` by default, VACUUM removed no row that died during the profile of a remote
    /// server.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn the_profile_of_a_remote_server_holds_no_snapshot() {
        if !is_root() {
            skip("a remote server", "a PID namespace requires root");
            return;
        }
        for version in ["9.6", "12", "18"] {
            let mut config = servers::config();
            let level = "default_transaction_isolation";
            let repeatable = "repeatable read".to_owned();
            config.settings.insert(level.to_owned(), repeatable);
            let Some(server) = servers::start_with(version, &config) else {
                continue;
            };
            let dsn = server.conninfo();
            let profile = thread::spawn(move || {
                let scratch = Scratch::new(PROGRAM);
                run_in_pid_namespace(&scratch, &dsn, &["--duration", "2s", "--json"])
            });
            let mut asker = server.connect().expect("a connection");
            let (mut idle, mut held) = (0, 0);
            while !profile.is_finished() {
                let sql = "select concat(count(*), ' ', count(backend_xmin)) from pg_stat_activity \
                           where application_name = 'pgassay' and state = 'idle in transaction'";
                let seen = asker.value(sql).expect("an answer").unwrap_or_default();
                idle += usize::from(!seen.starts_with('0'));
                held += usize::from(!seen.ends_with(" 0"));
                thread::sleep(std::time::Duration::from_millis(20));
            }
            observed(&profile.join().expect("it does not panic"));
            assert!(idle > 10, "{version}: {idle}");
            assert_eq!(held, 0, "{version}");
            server.stop().expect("the server stops");
        }
    }

    /// Regression: the transaction of all samples lasted longer than the server permits, and everything that had been
    /// sampled was lost.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn limits_on_transactions_do_not_end_the_profile_of_a_remote_server() {
        if !is_root() {
            skip("a remote server", "a PID namespace requires root");
            return;
        }
        for version in ["9.6", "17", "18"] {
            let mut config = servers::config();
            let idle = "idle_in_transaction_session_timeout";
            config.settings.insert(idle.to_owned(), "20ms".to_owned());
            if version != "9.6" {
                let limit = ("transaction_timeout".to_owned(), "1s".to_owned());
                config.settings.extend([limit]);
            }
            let Some(server) = servers::start_with(version, &config) else {
                continue;
            };
            let scratch = Scratch::new(PROGRAM);
            let arguments = ["--duration", "3s", "--json"];
            let seen = observed(&run_in_pid_namespace(
                &scratch,
                &server.conninfo(),
                &arguments,
            ));
            assert!(seen.window_us >= 3e6, "{version}: {}", seen.window_us);
            assert!(seen.transactions.is_some(), "{version}");
            let cut_off = seen.limitations.iter();
            let cut_off: Vec<_> = cut_off.filter(|it| it.value == "incomplete").collect();
            assert!(cut_off.is_empty(), "{version}: {cut_off:?}");
            server.stop().expect("the server stops");
        }
    }

    /// Regression: all samples were discarded, and the exit status was 1.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn samples_of_a_remote_server_remain_if_their_connection_is_terminated() {
        if !is_root() {
            skip("a remote server", "a PID namespace requires root");
            return;
        }
        for version in ["9.6", "18"] {
            let Some(server) = servers::start(version) else {
                continue;
            };
            let mut admin = server.connect().expect("a connection");
            let scratch = Scratch::new(PROGRAM);
            let dsn = server.conninfo();
            let arguments = ["--duration", "4s", "--json"];
            let finished = thread::scope(|scope| {
                let profiling = scope.spawn(|| run_in_pid_namespace(&scratch, &dsn, &arguments));
                let sampler = "from pg_stat_activity where application_name = 'pgassay' \
                               and query like '%pg_stat_clear_snapshot%' and pid <> pg_backend_pid()";
                wait_until("it samples for half a second", || {
                    let seen = format!("select 1 {sampler} and now() - xact_start > '500ms'");
                    admin.value(&seen).expect("the query succeeds").is_some()
                });
                let terminate = format!("select pg_terminate_backend(pid) {sampler}");
                admin.query(&terminate).expect("the query succeeds");
                profiling.join().expect("no panic")
            });
            // What was seen is printed, and the exit status says that it is not all.
            assert_eq!(finished.code, Some(2), "{finished:?}");
            let reason = "pgassay: the profile is incomplete: ";
            assert!(finished.stderr.contains(reason), "{finished:?}");
            let seen: Observation = serde_json::from_str(&finished.stdout).expect("JSON on stdout");
            let waits = seen.waits.as_ref().expect("waits");
            assert!(
                waits.samples() > 0 && seen.transactions.is_none(),
                "{version}: {seen:?}"
            );
            let sampled = seen.limitations.iter();
            let sampled = sampled.filter(|it| it.name == "pg_stat_activity").count();
            assert_eq!(sampled, 1, "{version}: {:?}", seen.limitations);
            let activity = seen.activity.as_ref().expect("the watch went on");
            assert!(activity.window_us > seen.window_us, "{version}");
            server.stop().expect("the server stops");
        }
    }
}
