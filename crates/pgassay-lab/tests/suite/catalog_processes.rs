//! Processes of the server itself as blockers: a standby's startup process, and autovacuum workers.

use std::thread::{self, JoinHandle};

use pgassay_lab::watch::catalog::CatalogWatch;
use pgassay_record::activity::BlockingEpisode;
use pgassay_server::Server;
use pgassay_test_support::{BareServer, servers, wait_until};

use crate::catalog_common::{
    Waiter, bare_exchange, config, execute, lock_waiters, on_each, open, open_bare,
};

/// Starts a query that waits for a lock, on a standby; its PID, as sampling would find it.
fn waiter(standby: &BareServer, sql: &'static str) -> (u32, JoinHandle<()>) {
    let mut waiter = bare_exchange(standby);
    let pid = waiter.value("select pg_backend_pid()").expect("a PID");
    let pid: u32 = pid.and_then(|it| it.parse().ok()).expect("a number");
    let running = thread::spawn(move || {
        waiter.run(sql).expect("it goes on");
    });
    let waits =
        format!("select 1 from pg_stat_activity where pid = {pid} and wait_event_type = 'Lock'");
    wait_until("the query waits", || standby.value(&waits).is_some());
    (pid, running)
}

fn only(watch: &mut CatalogWatch, waiters: &[u32]) -> BlockingEpisode {
    watch.tick(0.0, waiters).expect("a tick");
    let mut episodes = watch.blocking();
    assert_eq!(episodes.len(), 1, "{episodes:#?}");
    episodes.remove(0)
}

/// Autovacuum is on, soon, and slow.
fn with_autovacuum(version: &str) -> Option<Server> {
    let mut config = config();
    let settings = [
        ("autovacuum", "on"),
        ("autovacuum_naptime", "1"),
        ("autovacuum_vacuum_cost_delay", "100"),
        ("autovacuum_vacuum_cost_limit", "1"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    config.settings.extend(settings);
    servers::start_with(version, &config)
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    /// The startup process holds the lock of the primary's transaction. Version 9.6 does not show it in
    /// `pg_stat_activity`.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn recovery_that_blocks_a_standby_is_the_root_and_cannot_be_ended() {
        for version in ["9.6", "10", "12", "13", "15", "18"] {
            let Some((primary, standby)) = BareServer::streaming_pair(version) else {
                continue;
            };
            let mut holder = bare_exchange(&primary);
            holder.run("create table t (n int)").expect("a table");
            let lock = "begin; lock table t in access exclusive mode; insert into t values (1)";
            holder.run(lock).expect("a lock");
            // The record of the lock is written with the next commit.
            let mut other = bare_exchange(&primary);
            other.run("create table later (n int)").expect("a table");
            let replayed = "select pid from pg_locks where mode = 'AccessExclusiveLock' and granted \
                        and relation = to_regclass('t')";
            wait_until("the standby has the lock", || {
                standby.value(replayed).is_some()
            });
            let startup = standby.value(replayed).expect("a PID");
            let (pid, running) = waiter(&standby, "select n from t");
            let mut watch = open_bare(&standby);
            let episode = only(&mut watch, &[pid]);
            let root = &episode.root;
            assert!(root.is_recovery(), "{version}: {root:?}");
            let root_pid = root.pid.map(|it| it.to_string());
            assert_eq!(root_pid, Some(startup), "{version}");
            let hold = root.holds.as_ref().expect("it holds a lock");
            assert_eq!(
                (hold.mode.as_str(), hold.relation.name.as_str()),
                ("AccessExclusiveLock", "t"),
                "{version}"
            );
            let ended_by = &episode.ended_by;
            assert!(ended_by.starts_with("-- "), "{version}: {ended_by}");
            let blocked: Vec<u32> = episode.blocked.iter().map(|it| it.pid).collect();
            assert_eq!(blocked, [pid], "{version}");
            holder.run("commit").expect("a commit");
            running.join().expect("no panic");
        }
    }

    /// A snapshot of the standby is in the way of recovery, behind which readers queue.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn recovery_that_waits_on_a_standby_is_known_as_such() {
        for version in ["9.6", "10", "12", "13", "15", "18"] {
            let Some((primary, standby)) = BareServer::streaming_pair(version) else {
                continue;
            };
            let mut writer = bare_exchange(&primary);
            writer.run("create table t (n int)").expect("a table");
            let exists = "select to_regclass('t')";
            wait_until("the standby has the table", || {
                standby.value(exists).is_some_and(|it| !it.is_empty())
            });
            let mut reader = bare_exchange(&standby);
            reader.run("begin; select n from t").expect("a snapshot");
            writer
                .run("alter table t add column more int")
                .expect("DDL");
            let waits =
                "select pid from pg_locks where mode = 'AccessExclusiveLock' and not granted";
            wait_until("recovery waits", || standby.value(waits).is_some());
            let startup = standby.value(waits).expect("a PID");
            let (pid, running) = waiter(&standby, "select n from t");
            let mut watch = open_bare(&standby);
            let episode = only(&mut watch, &[pid]);
            assert_eq!(episode.root.state, "idle in transaction", "{version}");
            let blocked = episode.blocked.iter();
            let found: Vec<_> = blocked
                .map(|it| (it.pid.to_string(), it.is_recovery))
                .collect();
            let expected = [(startup, true), (pid.to_string(), false)];
            assert_eq!(found, expected, "{version}: {episode:#?}");
            reader.run("commit").expect("a commit");
            running.join().expect("no panic");
        }
    }

    /// Its state in `pg_stat_activity` is `active`.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn an_ordinary_autovacuum_is_no_session_to_cancel() {
        on_each(
            &["9.6", "10", "12", "15", "18"],
            with_autovacuum,
            |version, server| {
                let mut connection = server.connect().expect("a connection");
                execute(
                    &mut connection,
                    "create table t (n int); insert into t select generate_series(1, 100000); delete from t",
                );
                let runs = "select 1 from pg_stat_progress_vacuum where relid = 't'::regclass";
                wait_until("autovacuum runs", || {
                    connection
                        .value(runs)
                        .expect("the query succeeds")
                        .is_some()
                });
                let alter = "alter table t add column more int";
                let ddl = Waiter::start(server, "", alter);
                let episode = only(&mut open(server), &lock_waiters(&mut connection));
                let root = &episode.root;
                assert!(root.gives_way(), "{version}: {root:?}");
                assert_eq!(root.state, "autovacuum worker", "{version}");
                assert!(
                    episode.ended_by.starts_with("-- "),
                    "{version}: {episode:?}"
                );
                let pid = root.pid.expect("a PID");
                execute(&mut connection, &format!("select pg_cancel_backend({pid})"));
                ddl.finish().expect("it goes on");
            },
        );
    }
}
