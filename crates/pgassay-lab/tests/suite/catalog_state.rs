//! Horizon, slots, and marks.

use std::cell::Cell;

use anyhow::{Result, bail};
use pgassay_lab::connector::TimedStream;
use pgassay_record::activity::{Activity, HorizonKind, LoadMarkKind};
use pgassay_test_support::{BareServer, servers, wait_until};
use pgassay_wire::Exchange;

use crate::catalog_common::{
    ParallelQuery, VERSIONS, Waiter, config, exchange, execute, on_each, open, open_bare, pid,
    start,
};

#[test]
fn whoever_holds_back_the_horizon_is_listed_oldest_first() {
    on_each(&VERSIONS, start, |version, server| {
        let mut connection = server.connect().expect("a connection");
        execute(&mut connection, "create table t (n int)");
        execute(
            &mut connection,
            "begin; insert into t values (1); prepare transaction 'old one'",
        );
        let mut session = server.connect().expect("a connection");
        execute(&mut session, "begin isolation level repeatable read");
        execute(&mut session, "select n from t where n = 7");
        execute(&mut connection, "rollback prepared 'old one'");
        execute(
            &mut connection,
            "begin; insert into t values (1); prepare transaction 'it''s'",
        );
        for _ in 0..5 {
            execute(&mut connection, "insert into t values (2)");
        }
        let catalog = open(server).finish().catalog.expect("a catalog");
        let found: Vec<_> = catalog
            .horizon
            .iter()
            .map(|it| (it.kind, it.name.clone(), it.database.as_deref()))
            .collect();
        let database = Some(server.database());
        let expected = [
            (HorizonKind::Session, pid(&session).to_string(), database),
            (
                HorizonKind::PreparedTransaction,
                "it's".to_owned(),
                database,
            ),
        ];
        assert_eq!(found, expected, "{version}");
        let detail = &catalog.horizon[0].detail;
        let user = server.superuser();
        assert_eq!(
            *detail,
            format!("{user}, idle in transaction: select n from t where n = $1"),
            "{version}"
        );
        let ages: Vec<u64> = catalog.horizon.iter().map(|it| it.age).collect();
        // The session's snapshot begins with the first prepared transaction, which has ended.
        assert_eq!(ages, [7, 6], "{version}");
        assert!(catalog.horizon.iter().all(|it| it.lasting_us > Some(0.0)));
        let by_id: Vec<bool> = catalog.horizon.iter().map(|it| it.has_oldest_id).collect();
        assert_eq!(by_id, [false, true], "{version}");
        execute(&mut connection, "rollback prepared 'it''s'");
    });
}

/// Regression: a session that had written, and was idle in a transaction without a snapshot, had "the oldest snapshot".
#[test]
fn a_writer_without_a_snapshot_holds_the_horizon_by_its_transaction_id() {
    on_each(&VERSIONS, start, |version, server| {
        let mut connection = server.connect().expect("a connection");
        execute(&mut connection, "create table t (n int)");
        let mut session = server.connect().expect("a connection");
        execute(&mut session, "begin");
        execute(&mut session, "insert into t values (1)");
        execute(&mut connection, "insert into t values (2)");
        let catalog = open(server).finish().catalog.expect("a catalog");
        let found = catalog
            .horizon
            .iter()
            .map(|it| (&*it.name, it.has_oldest_id));
        let found: Vec<_> = found.collect();
        assert_eq!(found, [(&*pid(&session).to_string(), true)], "{version}");
    });
}

/// More of them than are listed, and older than the snapshot of this database. The server itself says which
/// ones count: only without that snapshot does VACUUM make the table empty.
#[test]
fn snapshots_of_another_database_neither_hold_vacuum_nor_hide_those_of_this_one() {
    on_each(
        &["9.6", "10", "12", "13", "15", "18"],
        start,
        check_two_databases,
    );
}

fn check_two_databases(version: &str, server: &pgassay_server::Server) {
    let mut connection = server.connect().expect("a connection");
    execute(&mut connection, "create database other");
    execute(&mut connection, "create table t (n int)");
    let snapshot = "begin isolation level repeatable read; select 1";
    let others = [0; 25].map(|_| {
        let mut other = exchange(server, "dbname=other");
        other.run(snapshot).expect("a snapshot");
        other
    });
    let fill = "insert into t select generate_series(1, 1000)";
    execute(&mut connection, fill);
    execute(&mut connection, "delete from t");
    execute(&mut connection, "vacuum t");
    let size = "select pg_relation_size('t')";
    let blocks = |connection: &mut pgassay_server::Connection| {
        let bytes = connection.value(size).expect("the size").expect("a value");
        bytes.parse::<u64>().expect("a number") / 8192
    };
    assert_eq!(blocks(&mut connection), 0, "{version}");

    let mut own = server.connect().expect("a connection");
    execute(&mut own, snapshot);
    execute(&mut connection, fill);
    execute(&mut connection, "delete from t");
    execute(&mut connection, "vacuum t");
    assert!(blocks(&mut connection) > 0, "{version}");
    let catalog = open(server).finish().catalog.expect("a catalog");
    let of = |database: &str| {
        let its = catalog.horizon.iter();
        let its = its.filter(|it| it.database.as_deref() == Some(database));
        its.map(|it| it.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(of(server.database()), [pid(&own).to_string()], "{version}");
    assert_eq!(of("other").len(), 20, "{version}");
    drop(others);
}

/// Each worker has the snapshot of its leader.
#[test]
fn a_parallel_query_holds_the_horizon_once_and_not_with_each_worker() {
    on_each(
        &["9.6", "10", "12", "13", "15", "18"],
        start,
        |version, server| {
            let parallel = ParallelQuery::start(version, server);
            let catalog = open(server).finish().catalog.expect("a catalog");
            let names: Vec<&str> = catalog.horizon.iter().map(|it| &*it.name).collect();
            assert_eq!(names, [parallel.leader_pid.to_string()], "{version}");
            parallel.cancel(server);
        },
    );
}

#[test]
fn a_slot_holds_the_catalog_horizon_and_wal() {
    on_each(&["10", "12", "15", "18"], start, |version, server| {
        let mut connection = server.connect().expect("a connection");
        execute(&mut connection, "create table t (n int)");
        execute(
            &mut connection,
            "select pg_create_logical_replication_slot('logical', 'pgoutput')",
        );
        execute(
            &mut connection,
            "select pg_create_physical_replication_slot('physical')",
        );
        execute(
            &mut connection,
            "insert into t select generate_series(1, 10000)",
        );
        let catalog = open(server).finish().catalog.expect("a catalog");
        let holder = catalog
            .horizon
            .iter()
            .find(|it| it.kind == HorizonKind::SlotCatalog);
        let holder = holder.expect("the slot holds the horizon");
        assert_eq!(
            (holder.name.as_str(), holder.age),
            ("logical", 1),
            "{version}"
        );
        let [logical, physical] = &catalog.slots[..] else {
            panic!("{version}: {:?}", catalog.slots);
        };
        assert_eq!(
            (logical.name.as_str(), logical.kind.as_str()),
            ("logical", "logical")
        );
        assert!(
            logical.retained_bytes > Some(500_000),
            "{version}: {logical:?}"
        );
        assert!(!logical.is_active);
        assert_eq!(physical.retained_bytes, None, "{version}");
        let number: u32 = version.parse().expect("a number");
        assert_eq!(logical.wal_status.is_some(), number >= 13, "{version}");
        assert_eq!(logical.inactive_us.is_some(), number >= 17, "{version}");
    });
}

/// Regression: a slot whose WAL was removed was said to hold back the removal of dead rows.
#[test]
fn an_invalid_slot_does_not_hold_the_horizon() {
    on_each(&["13", "18"], start, |version, server| {
        let mut connection = server.connect().expect("a connection");
        execute(
            &mut connection,
            "select pg_create_logical_replication_slot('lost', 'pgoutput')",
        );
        execute(&mut connection, "create table t (n int)");
        execute(
            &mut connection,
            "alter system set max_slot_wal_keep_size = '1MB'",
        );
        execute(&mut connection, "select pg_reload_conf()");
        let slot = || {
            let catalog = open(server).finish().catalog.expect("a catalog");
            let slot = catalog.slots.first().expect("a slot");
            (slot.wal_status.clone(), catalog.horizon.len())
        };
        let mut seen = slot();
        wait_until("the slot is invalid", || {
            execute(&mut connection, "insert into t values (1)");
            execute(&mut connection, "select pg_switch_wal()");
            execute(&mut connection, "checkpoint");
            seen = slot();
            seen.0.as_deref() == Some("lost")
        });
        assert_eq!(seen.1, 0, "{version}");
    });
}

/// Regression: a standby that was promoted remained one, and its checkpoints were compared with the restartpoints
/// before.
#[test]
fn a_standby_that_is_promoted_is_a_primary() {
    let Some((_primary, standby)) = BareServer::streaming_pair("18") else {
        return;
    };
    let all = "select num_requested + restartpoints_req from pg_stat_checkpointer";
    let requested = || -> u64 {
        let count = standby.value(all).and_then(|it| it.parse().ok());
        count.expect("a number")
    };
    let watch = open_bare(&standby);
    let before = requested();
    standby.value("select pg_promote()");
    standby.value("checkpoint");
    // The checkpointer reports what it did a moment later.
    wait_until("the checkpoint is counted", || requested() > before);
    let catalog = watch.finish().catalog.expect("a catalog");
    assert!(!catalog.is_standby);
    let done = catalog.checkpoints.expect("counters").requested;
    let all = requested();
    assert!((1..=all).contains(&done), "{done} of {all}");
}

#[test]
fn checkpoints_and_vacuums_are_marked() {
    on_each(&VERSIONS, start, |version, server| {
        let mut connection = server.connect().expect("a connection");
        execute(
            &mut connection,
            "create table t (n int); insert into t select generate_series(1, 100000); \
             delete from t",
        );
        let mut asker = server.connect().expect("a connection");
        let requested = match version.parse::<f64>() {
            Ok(17.0..) => "select num_requested from pg_stat_checkpointer",
            _ => "select checkpoints_req from pg_stat_bgwriter",
        };
        let before = asker.value(requested).expect("the query succeeds");
        let mut watch = open(server);
        watch.tick(0.0, &[]).expect("a tick");
        // The control file has seconds.
        execute(&mut connection, "select pg_sleep(1.1); checkpoint");
        // The checkpointer counts it later, and up to 14 another process writes down what it counts.
        wait_until("the checkpoint is counted", || {
            asker.value(requested).expect("the query succeeds") != before
        });
        execute(
            &mut connection,
            "set vacuum_cost_delay = 100; set vacuum_cost_limit = 1",
        );
        let vacuuming = pid(&connection);
        let vacuum = std::thread::spawn(move || connection.execute("vacuum t"));
        let running = format!("select 1 from pg_stat_progress_vacuum where pid = {vacuuming}");
        wait_until("the vacuum runs", || {
            asker.value(&running).expect("the query succeeds").is_some()
        });
        watch.tick(2e9, &[]).expect("a tick");
        let end = format!("select pg_terminate_backend({vacuuming})");
        execute(&mut asker, &end);
        vacuum
            .join()
            .expect("no panic")
            .expect_err("it was terminated");
        let result = watch.finish();
        let marks: Vec<_> = result
            .marks
            .iter()
            .map(|it| (it.kind, it.text.as_str()))
            .collect();
        let expected = [
            (LoadMarkKind::Checkpoint, "checkpoint"),
            (LoadMarkKind::Vacuum, "vacuum of public.t"),
        ];
        assert_eq!(marks, expected, "{version}");
        let checkpoints = result
            .catalog
            .and_then(|it| it.checkpoints)
            .expect("checkpoints");
        assert_eq!(
            (checkpoints.timed, checkpoints.requested),
            (0, 1),
            "{version}"
        );
    });
}

/// The watch goes on without its connection, and says so.
#[test]
fn a_lost_connection_is_said_and_ends_nothing() {
    let Some(server) = start("18") else {
        return;
    };
    let mut watch = open(&server);
    let mut asker = server.connect().expect("a connection");
    execute(
        &mut asker,
        &format!("select pg_terminate_backend({})", watch.own_pid()),
    );
    wait_until("its backend ends", || {
        let sql = format!(
            "select 1 from pg_stat_activity where pid = {}",
            watch.own_pid()
        );
        asker.value(&sql).expect("the query succeeds").is_none()
    });
    watch.tick(0.0, &[1]).expect("a tick");
    let result = watch.finish();
    assert!(result.catalog.is_none());
    let names: Vec<&str> = result
        .unavailable
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    assert!(names.contains(&"catalog connection"), "{names:?}");
    server.stop().expect("the server stops");
}

/// With several hosts in the connection string, the next connection can lead to another server.
#[test]
fn another_server_does_not_continue_the_readings_of_a_lost_one() {
    let (Some(one), Some(other)) = (start("18"), start("18")) else {
        return;
    };
    let mut watch = open(&one);
    let mut root = one.connect().expect("a connection");
    let terminate = format!("select pg_terminate_backend({})", watch.own_pid());
    execute(&mut root, &terminate);
    let mut asked = 0;
    wait_until("another server was asked", || {
        watch.last_tick(0.0, &[1]).expect("a tick");
        let mut connect = || {
            asked += 1;
            Ok(exchange(&other, ""))
        };
        assert!(!watch.reconnect(&mut connect));
        asked > 0
    });
    let lost = watch.unavailable();
    assert!(
        lost.iter()
            .any(|it| it.name == Activity::CATALOG_CONNECTION)
    );
    assert!(watch.finish().catalog.is_none());
    one.stop().expect("the server stops");
    other.stop().expect("the server stops");
}

#[test]
fn values_set_for_roles_and_databases_are_read() {
    on_each(&VERSIONS, start, |version, server| {
        let mut connection = server.connect().expect("a connection");
        for sql in [
            "create role \"we,ird\" login",
            "create database shop",
            "alter role \"we,ird\" in database shop set work_mem = '32MB'",
            "alter role \"we,ird\" set work_mem = 65536",
            "alter database shop set synchronous_commit = off",
            "alter role all set idle_in_transaction_session_timeout = 5000",
            "alter database shop set enable_seqscan = off",
        ] {
            execute(&mut connection, sql);
        }
        let catalog = open(server).finish().catalog.expect("a catalog");
        let found = catalog.role_settings.iter().map(|it| {
            let (role, database) = (it.role.as_deref(), it.database.as_deref());
            (
                role.unwrap_or("all"),
                database.unwrap_or("all"),
                &*it.name,
                &*it.value,
            )
        });
        let mut found: Vec<_> = found.collect();
        found.sort_unstable();
        let expected = [
            (
                "all",
                "all",
                "idle_in_transaction_session_timeout",
                "5000ms",
            ),
            ("all", "shop", "synchronous_commit", "off"),
            ("we,ird", "all", "work_mem", "65536kB"),
            ("we,ird", "shop", "work_mem", "32MB"),
        ];
        assert_eq!(found, expected, "{version}");
    });
}

mod slow {
    use super::*;

    /// Regression: after one lost connection, the views were never read again.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_terminated_connection_is_opened_again_and_reads_the_difference() {
        on_each(&VERSIONS, start, |version, server| {
            let mut root = server.connect().expect("a connection");
            execute(
                &mut root,
                "create table t (n int); insert into t values (1)",
            );
            let mut watch = open(server);
            let first = watch.own_pid();
            execute(&mut root, &format!("select pg_terminate_backend({first})"));
            wait_until("the loss is noticed", || {
                watch.tick(0.0, &[]).expect("a tick");
                watch.last_tick(0.0, &[1]).expect("a tick");
                let lost = watch.unavailable();
                lost.iter()
                    .any(|it| it.name == Activity::CATALOG_CONNECTION)
            });
            assert!(watch.refresh().is_none(), "{version}");
            let asked = Cell::new(0);
            let mut refuse = || -> Result<Exchange<TimedStream>> {
                asked.set(asked.get() + 1);
                bail!("too many clients")
            };
            wait_until("it is tried again", || {
                assert!(!watch.reconnect(&mut refuse), "{version}");
                asked.get() > 0
            });
            // Regression: after the loss, the reason for which there was no new connection was missing, such as that the
            // database was dropped.
            let lost = watch.unavailable();
            let mut whys = lost.iter().filter_map(|it| it.limitation.as_deref());
            let why = "; it cannot be opened again: too many clients";
            assert!(whys.any(|it| it.ends_with(why)), "{version}: {lost:?}");
            for _ in 0..100 {
                assert!(!watch.reconnect(&mut refuse), "{version}");
            }
            assert_eq!(asked.get(), 1, "{version}: not all the time");
            wait_until("it is opened again", || {
                watch.reconnect(&mut || Ok(exchange(server, "")))
            });
            assert_ne!(watch.own_pid(), first, "{version}");
            let lost = watch.unavailable();
            let mut lost = lost.iter().map(|it| it.name.as_str());
            assert!(
                lost.all(|it| it != Activity::CATALOG_CONNECTION),
                "{version}"
            );
            execute(&mut root, "begin; update t set n = 2");
            let waiter = Waiter::start(server, "", "update t set n = 3");
            watch.last_tick(1e6, &[waiter.pid]).expect("a tick");
            assert_eq!(watch.blocking().len(), 1, "{version}");
            execute(&mut root, "commit");
            waiter.finish().expect("it goes on");
            let result = watch.finish();
            let catalog = result.catalog.expect("a catalog");
            assert!(catalog.window_us > 0.0, "{version}");
            let said = result.unavailable.iter();
            let said: Vec<(&str, &str)> = said.map(|it| (&*it.name, &*it.value)).collect();
            let expected = (Activity::CATALOG_CONNECTION, Activity::AT_TIMES);
            assert!(said.contains(&expected), "{version}: {said:?}");
        });
    }

    /// Regression: nothing read the archiver's view, so an `archive_command` that failed was not found.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_wal_file_that_cannot_be_archived_is_named_with_the_wal_behind_it() {
        let start = |version: &str| {
            let mut config = config();
            for (name, value) in [
                ("archive_mode", "on"),
                ("archive_command", "test ! -e refuse"),
            ] {
                config.settings.insert(name.to_owned(), value.to_owned());
            }
            servers::start_with(version, &config)
        };
        on_each(&["9.6", "10", "18"], start, |version, server| {
            let mut connection = server.connect().expect("a connection");
            let wal = if version == "9.6" { "xlog" } else { "wal" };
            let mut run = |sql: &str| execute(&mut connection, sql);
            let write = format!("create table t (n int); drop table t; select pg_switch_{wal}()");
            let archiver = || {
                let catalog = open(server).finish().catalog.expect("a catalog");
                catalog.archiver.expect("WAL is archived")
            };
            run(&write);
            wait_until("a file is archived", || archiver().backlog_bytes.is_some());
            assert_eq!(archiver().failed_wal, None, "{version}");

            run("do $$ begin execute format('copy (select 1) to %L', \
             current_setting('data_directory') || '/refuse'); end $$");
            run(&write);
            wait_until("a file fails", || archiver().failed_wal.is_some());
            let failing = archiver();
            let (name, behind) = (failing.failed_wal, failing.backlog_bytes);
            assert!(name.is_some_and(|it| it.len() == 24), "{version}");
            assert!(behind >= Some(16 << 20), "{version}: {behind:?}");
            assert!(failing.failures > 0, "{version}");
        });
    }
}
