//! Only reads, with few rights, on a standby.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;

use pgassay_lab::watch::catalog::{CatalogOptions, CatalogResult, CatalogWatch, OtherWaiters};
use pgassay_test_support::{BareServer, wait_until};

use crate::catalog_common::{
    VERSIONS, Waiter, exchange, execute, on_each, open, open_bare, pid, start,
};

/// The beginnings of all statements that may be sent.
const READS: [&str; 7] = [
    "begin transaction isolation level read committed read only; set local ",
    "savepoint q; select ",
    "savepoint q; with ",
    "rollback to savepoint q",
    "commit",
    "set local client_encoding",
    "savepoint q; (select ",
];

#[test]
fn everything_that_is_sent_is_a_read() {
    on_each(&VERSIONS, start, |version, server| {
        let mut connection = server.connect().expect("a connection");
        execute(
            &mut connection,
            "create extension pg_stat_statements; create table t (id int primary key, n int); \
             insert into t values (1, 1)",
        );
        execute(&mut connection, "set application_name = 'test'");
        execute(&mut connection, "begin; update t set n = 2");
        let waiter = Waiter::start(
            server,
            "set application_name = 'test'",
            "update t set n = 3",
        );
        let mut asker = server.connect().expect("a connection");
        execute(&mut asker, "set application_name = 'test'");
        let mut changed = || {
            let sql = "select array[tup_inserted, tup_updated, tup_deleted, temp_files, deadlocks]::text \
                       from pg_stat_database where datname = current_database()";
            asker.value(sql).expect("the query succeeds")
        };
        let offset = fs::read(server.log_path()).expect("a log").len();
        let before = changed();
        let mut watch = open(server);
        watch.tick(0.0, &[waiter.pid]).expect("a tick");
        watch.tick(1e6, &[waiter.pid]).expect("a tick");
        let result = watch.finish();
        assert_eq!(result.blocking.len(), 1, "{version}");
        assert!(
            result.unavailable.is_empty(),
            "{version}: {:?}",
            result.unavailable
        );
        assert_eq!(changed(), before, "{version}");
        let log = fs::read(server.log_path()).expect("a log");
        let log = String::from_utf8_lossy(&log[offset..]).into_owned();
        let own: Vec<&str> = log
            .lines()
            .filter(|line| line.split('|').nth(1) == Some("pgassay"))
            .filter_map(|line| line.split_once("statement: "))
            .map(|line| line.1)
            .collect();
        assert_eq!(own.len() as u64, result.statements_sent, "{version}");
        for sql in own {
            assert!(
                READS.iter().any(|it| sql.starts_with(it)),
                "{version}: {sql}"
            );
        }
        execute(&mut connection, "rollback");
        waiter.finish().expect("it goes on");
    });
}

/// Watches as a role. Somebody else's transaction blocks somebody else.
fn watch_as(server: &pgassay_server::Server, role: &str, waiter: u32) -> CatalogResult {
    let exchange = exchange(server, &format!("user={role} password=secret"));
    let options = CatalogOptions { keeps_text: true };
    let mut watch = CatalogWatch::open(exchange, &options).expect("the watch opens");
    watch.tick(0.0, &[waiter]).expect("a tick");
    watch.finish()
}

#[test]
fn with_few_rights_it_says_what_is_hidden() {
    on_each(&VERSIONS, start, |version, server| {
        let mut root = server.connect().expect("a connection");
        execute(
            &mut root,
            "create extension pg_stat_statements; create table t (id int primary key, n int); \
             insert into t values (1, 1); create role unprivileged login password 'secret'; \
             create role monitor login password 'secret'",
        );
        if version != "9.6" {
            execute(&mut root, "grant pg_monitor to monitor");
        }
        execute(&mut root, "begin");
        execute(&mut root, "update t set n = 2");
        let waiter = Waiter::start(server, "", "update t set n = 3");
        let poor = watch_as(server, "unprivileged", waiter.pid);
        let [check] = &poor.unavailable[..] else {
            panic!("{version}: {:?}", poor.unavailable);
        };
        assert_eq!(check.name, "privileges");
        let fix = check.fix.as_deref().unwrap_or_default();
        if version == "9.6" {
            assert!(fix.starts_with("connect as a superuser"), "{fix}");
        } else {
            assert_eq!(fix, "grant pg_monitor to \"unprivileged\"");
            let rich = watch_as(server, "monitor", waiter.pid);
            assert!(
                rich.unavailable.is_empty(),
                "{version}: {:?}",
                rich.unavailable
            );
            let found = &rich.blocking[0].root;
            assert_eq!(found.state, "idle in transaction", "{version}");
            assert_eq!(found.statement.as_deref(), Some("update t set n = $1"));
            assert!(rich.statements.counters.values().any(|it| it.calls > 0));
        }
        // The tree is there without any rights.
        let found = &poor.blocking[0];
        assert_eq!(found.root.pid, Some(pid(&root)), "{version}");
        assert_eq!(
            (found.root.state.as_str(), &found.root.statement),
            ("unknown", &None)
        );
        assert_eq!(found.blocked[0].pid, waiter.pid);
        let hold = found.root.holds.as_ref().expect("it holds a lock");
        assert_eq!(hold.relation.name, "t");
        assert!(poor.catalog.is_some_and(|it| it.ages.len() == 3));
        execute(&mut root, "rollback");
        waiter.finish().expect("it goes on");
    });
}

#[test]
fn a_root_with_track_activities_off_has_no_statement() {
    let Some(server) = start("18") else {
        return;
    };
    let mut root = server.connect().expect("a connection");
    execute(
        &mut root,
        "create table t (n int); insert into t values (1)",
    );
    execute(&mut root, "set track_activities = off");
    execute(&mut root, "begin; update t set n = 2");
    let waiter = Waiter::start(&server, "", "update t set n = 3");
    let mut watch = open(&server);
    watch.tick(0.0, &[waiter.pid]).expect("a tick");
    let found = watch.blocking().pop().expect("an episode").root;
    assert_eq!(
        (found.pid, found.state.as_str()),
        (Some(pid(&root)), "disabled")
    );
    assert_eq!((found.statement, found.fingerprint), (None, None));
    execute(&mut root, "rollback");
    waiter.finish().expect("it goes on");
    server.stop().expect("the server stops");
}

/// Regression: with `track_activities` off, a session that waited was behind no blocker.
#[test]
fn without_track_activities_it_is_known_who_blocks_whom() {
    on_each(&["12", "18"], start, |version, server| {
        let untracked = || {
            let mut connection = server.connect().expect("a connection");
            execute(&mut connection, "set track_activities = off");
            connection
        };
        let (mut root, mut waiting) = (untracked(), untracked());
        execute(
            &mut root,
            "create table t (n int); insert into t values (1)",
        );
        execute(&mut root, "begin; update t set n = 2");
        let waiter = pid(&waiting);
        let running = thread::spawn(move || waiting.execute("update t set n = 3"));
        let mut asker = server.connect().expect("a connection");
        let sql = format!("select count(*) from pg_locks where pid = {waiter} and not granted");
        wait_until("it waits", || {
            let found = asker.value(&sql).expect("the query succeeds");
            found.as_deref() == Some("1")
        });
        let mut watch = open(server);
        watch.set_other_waiters(OtherWaiters {
            untracked: vec![waiter],
            ..OtherWaiters::default()
        });
        watch.tick(0.0, &[]).expect("a tick");
        watch.last_tick(2e6, &[]).expect("a tick");
        let found = watch.blocking().pop().expect("an episode");
        assert_eq!(found.root.pid, Some(pid(&root)), "{version}");
        assert!(found.root.is_unknown() && found.root.state_age_us > 0.0);
        assert_eq!(found.blocked[0].pid, waiter, "{version}");
        assert_eq!(found.blocked[0].statement, None, "{version}");
        execute(&mut root, "rollback");
        running.join().expect("no panic").expect("it goes on");
    });
}

#[test]
fn a_standby_is_read_like_a_primary() {
    for version in ["12", "18"] {
        let Some((_primary, standby)) = BareServer::pair(version) else {
            continue;
        };
        let mut watch = open_bare(&standby);
        watch.tick(0.0, &[]).expect("a tick");
        let result = watch.finish();
        let catalog = result.catalog.expect("a catalog");
        assert!(catalog.is_standby, "{version}");
        assert_eq!(catalog.ages.len(), 3, "{version}: {:?}", catalog.ages);
        let names: Vec<&str> = result
            .unavailable
            .iter()
            .map(|it| it.name.as_str())
            .collect();
        assert_eq!(
            names,
            ["pg_stat_statements"],
            "{version}: {:?}",
            result.unavailable
        );
    }
}

#[test]
fn a_standby_says_whether_its_replay_is_paused_and_what_waits() {
    for (version, wal, lsn) in [("9.6", "xlog", "location"), ("18", "wal", "lsn")] {
        let Some((primary, standby)) = BareServer::streaming_pair(version) else {
            continue;
        };
        let read = |server| open_bare(server).finish().catalog.expect("a catalog");
        assert_eq!(read(&primary).replay, None, "{version}");
        let received = format!("select 1 where pg_last_{wal}_receive_{lsn}() is not null");
        wait_until("the standby receives WAL", || {
            standby.value(&received).is_some()
        });
        let replay = read(&standby).replay.expect("a standby");
        assert!(!replay.is_paused, "{version}: {replay:?}");

        standby.value(&format!("select pg_{wal}_replay_pause()"));
        let written = "select pg_logical_emit_message(false, '', repeat('x', 100000)) is null";
        primary.value(written);
        wait_until("it receives more", || {
            let replay = read(&standby).replay.expect("a standby");
            replay.is_paused && replay.waiting_bytes.is_some_and(|it| it >= 100_000)
        });
    }
}

/// A program that only receives WAL, as `pg_receivewal` does, under a name of an administrator's choice.
fn archiver(primary: &BareServer) -> UnixStream {
    let mut stream = primary.connect();
    let mut startup = 196_608_u32.to_be_bytes().to_vec();
    startup.extend(b"user\0tester\0replication\0true\0application_name\0archiver\0\0");
    send(&mut stream, b"", &startup);
    send(&mut stream, b"Q", b"START_REPLICATION PHYSICAL 0/1000000\0");
    // Standby status update: written and flushed, but nothing replayed.
    let mut status = vec![b'r'];
    for position in [0x0100_0000_u64, 0x0100_0000, 0, 0] {
        status.extend(position.to_be_bytes());
    }
    status.push(0);
    send(&mut stream, b"d", &status);
    stream
}

/// Sends a message with its length.
fn send(stream: &mut UnixStream, kind: &[u8], body: &[u8]) {
    let length = u32::try_from(body.len() + 4).expect("short").to_be_bytes();
    let message = [kind, &length, body].concat();
    stream.write_all(&message).expect("it is sent");
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_program_that_only_receives_wal_is_not_listed_as_a_standby() {
        for version in ["9.6", "12", "15", "18"] {
            let Some((primary, standby)) = BareServer::streaming_pair(version) else {
                continue;
            };
            drop(standby);
            let _archiver = archiver(&primary);
            // 10: xlog locations became LSNs.
            let write = if version == "9.6" {
                "write_location"
            } else {
                "write_lsn"
            };
            let reported = format!(
                "select 1 from pg_stat_replication \
             where application_name = 'archiver' and {write} is not null"
            );
            wait_until("the archiver has reported", || {
                primary.value(&reported).is_some()
            });
            let catalog = open_bare(&primary).finish().catalog.expect("a catalog");
            assert!(
                !catalog.standbys.contains(&"archiver".to_owned()),
                "{version}: {:?}",
                catalog.standbys
            );
        }
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_standby_without_slot_and_feedback_is_listed() {
        for version in ["9.6", "12", "15", "18"] {
            let Some((primary, _standby)) = BareServer::streaming_pair(version) else {
                continue;
            };
            let standbys = || {
                open_bare(&primary)
                    .finish()
                    .catalog
                    .expect("a catalog")
                    .standbys
            };
            wait_until("the standby is connected", || !standbys().is_empty());
            assert_eq!(standbys(), ["walreceiver"], "{version}");
        }
    }
}
