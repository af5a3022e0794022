//! Counters of tables, statements and databases equal known work.

use std::thread;
use std::time::{Duration, Instant};

use pgassay_lab::watch::catalog::{CatalogResult, ENDED_TRANSACTIONS};
use pgassay_record::activity::{StatementCounters, TableActivity};
use pgassay_server::{Connection, Server};
use pgassay_test_support::{servers, wait_until};

use crate::catalog_common::{VERSIONS, config, execute, on_each, open, pid, start};

const SETUP: &str = "create extension pg_stat_statements; create schema shop; \
     create table shop.items (id int primary key, n int) with (fillfactor = 50, \
       autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 7, \
       autovacuum_enabled = off); \
     insert into shop.items select g, g from generate_series(1, 1000) g; \
     create table shop.idle (id int)";

/// Executes statements on a separate connection, and waits until the counters show its end.
fn work(server: &Server, statements: &[&str], is_counted: &str) {
    let mut connection = server.connect().expect("a connection");
    for sql in statements {
        execute(&mut connection, sql);
    }
    // A backend reports its counters when it ends.
    connection.close().expect("it closes");
    let mut asker = server.connect().expect("a connection");
    wait_until(is_counted, || {
        asker
            .value(is_counted)
            .expect("the query succeeds")
            .as_deref()
            == Some("t")
    });
}

fn set_up(server: &Server) {
    let counted = "select n_tup_ins = 1000 from pg_stat_user_tables where relname = 'items'";
    work(server, &[SETUP], counted);
    let analyzed = "select last_analyze is not null and last_vacuum is not null \
                    from pg_stat_user_tables where relname = 'items'";
    work(server, &["vacuum analyze shop.items"], analyzed);
}

const READ: &str = "select sum(n) from shop.items";

/// 3 sequential scans; 5 + 4 + 2 index scans; 10 rows inserted, 4 updated, 2 deleted.
fn do_known_work(server: &Server) {
    let mut statements = vec!["set enable_bitmapscan = off", READ, READ, READ];
    statements.push("set enable_seqscan = off");
    statements.extend(["select n from shop.items where id = 7"; 5]);
    statements.push("insert into shop.items select g, g from generate_series(1001, 1010) g");
    statements.extend(["update shop.items set n = n + 1 where id = 9"; 4]);
    statements.extend([
        "delete from shop.items where id = 1",
        "delete from shop.items where id = 2",
    ]);
    let counted = "select n_tup_del = 2 from pg_stat_user_tables where relname = 'items'";
    work(server, &statements, counted);
}

fn items(result: &CatalogResult) -> TableActivity {
    let catalog = result.catalog.as_ref().expect("a catalog");
    let mut found = catalog
        .tables
        .iter()
        .filter(|it| it.relation.name == "items");
    found.next().expect("the table is reported").clone()
}

#[test]
fn counters_equal_known_work() {
    on_each(&VERSIONS, start, |version, server| {
        set_up(server);
        let mut watch = open(server);
        watch.tick(0.0, &[]).expect("a tick");
        do_known_work(server);
        let mut asker = server.connect().expect("a connection");
        let result = watch.finish();
        assert!(
            result.unavailable.is_empty(),
            "{version}: {:?}",
            result.unavailable
        );
        check_table(&items(&result), version);
        check_statement(&mut asker, &result, version);
        check_server(server, &result, version);
        // Nothing has happened since.
        let later = items(&open(server).finish());
        assert_eq!((later.sequential_scans, later.inserted), (0, 0));
    });
}

fn check_table(items: &TableActivity, version: &str) {
    let counted = [
        items.sequential_scans,
        items.sequential_rows,
        items.index_scans,
        items.inserted,
        items.updated,
        items.hot_updated,
        items.deleted,
    ];
    assert_eq!(counted, [3, 3000, 11, 10, 4, 4, 2], "{version}: {items:?}");
    assert_eq!(items.relation.schema, "shop");
    assert_eq!(items.estimated_rows, Some(1000.0));
    // Four dead rows are of HOT updates, which the next update may have removed.
    assert_eq!(items.live_rows, 1008, "{version}");
    assert!((2..=6).contains(&items.dead_rows), "{version}: {items:?}");
    assert_eq!(items.modified_since_analyze, 16, "{version}");
    assert!((items.vacuum_threshold - 7.0).abs() < 1e-9);
    assert!((items.analyze_threshold - 150.0).abs() < 1e-9);
    assert!(!items.autovacuum_enabled && items.has_statistics);
    assert!(items.vacuumed_ago_us.is_some() && items.analyzed_ago_us.is_some());
    assert!(items.blocks_hit > 0 && items.size_bytes >= 8192);
}

fn check_statement(asker: &mut Connection, result: &CatalogResult, version: &str) {
    let sql = format!("select queryid from pg_stat_statements where query like '{READ}%'");
    let id = asker.value(&sql).expect("the query succeeds");
    let id: i64 = id.and_then(|it| it.parse().ok()).expect("it has an ID");
    let counters: StatementCounters = result.statements.counters[&id];
    assert_eq!((counters.calls, counters.rows), (3, 3), "{version}");
    assert!(
        counters.execution_us > 0.0 && counters.shared_hit > 0,
        "{counters:?}"
    );
    let has_wal = !["9.6", "12"].contains(&version);
    assert_eq!(counters.wal_bytes.is_some(), has_wal, "{version}");
    // track_planning is off.
    assert_eq!(counters.planning_us, None, "{version}");
}

fn check_server(server: &Server, result: &CatalogResult, version: &str) {
    let catalog = result.catalog.as_ref().expect("a catalog");
    assert_eq!(catalog.database, server.database());
    assert!(!catalog.is_standby && catalog.window_us > 0.0);
    assert!(catalog.uptime_us > catalog.window_us);
    let name = |it: &&pgassay_record::activity::DatabaseActivity| it.name == server.database();
    let database = catalog.databases.iter().find(name).expect("the database");
    assert!(database.committed >= 17, "{version}: {database:?}");
    assert_eq!(
        database.sessions.is_some(),
        !["9.6", "12"].contains(&version)
    );
    let age = &catalog.ages[0];
    assert_eq!(age.freeze_max_age, 200_000_000);
    assert!(age.left > 2_140_000_000 && age.age < 1_000_000, "{age:?}");
    // 1 insert, 4 updates and 2 deletes have a transaction ID.
    assert!(
        (age.consumed_per_s * catalog.window_us / 1e6 - 7.0).abs() < 1e-6,
        "{version}"
    );
    let connections = catalog.connections.expect("connections");
    assert!(
        connections.used >= 2 && connections.available == 97,
        "{connections:?}"
    );
    let setting = |name: &str| {
        let found = catalog.settings.iter().find(|it| it.0 == name);
        found.map(|it| it.1.as_str())
    };
    assert_eq!(setting("work_mem"), Some("4MB"));
    // Not the limit of our own transaction.
    assert_eq!(setting("lock_timeout"), Some("0"), "{version}");
    assert_eq!(setting("autovacuum"), Some("off"));
}

#[test]
fn statements_without_the_extension_are_said_to_be_missing() {
    let Some(server) = start("18") else {
        return;
    };
    let result = open(&server).finish();
    let [check] = &result.unavailable[..] else {
        panic!("{:?}", result.unavailable);
    };
    assert_eq!(
        (check.name.as_str(), check.value.as_str()),
        ("pg_stat_statements", "not installed")
    );
    // The library is loaded: no restart is needed.
    let fix = check.fix.as_deref();
    assert_eq!(fix, Some("run create extension pg_stat_statements there"));
    server.stop().expect("the server stops");
    let config = pgassay_test_support::servers::config();
    let Some(server) = pgassay_test_support::servers::start_with("18", &config) else {
        return;
    };
    let mut connection = server.connect().expect("a connection");
    execute(&mut connection, "create extension pg_stat_statements");
    let result = open(&server).finish();
    let check = &result.unavailable[0];
    assert_eq!(
        (check.name.as_str(), check.value.as_str()),
        ("pg_stat_statements", "not read")
    );
    assert!(
        check
            .fix
            .as_ref()
            .is_some_and(|it| it.contains("shared_preload_libraries"))
    );
    assert!(result.catalog.is_some() && result.statements.counters.is_empty());
    server.stop().expect("the server stops");
}

/// With a buffer cache of 8 MB, whose pages only backends write.
fn with_few_buffers(version: &str) -> Option<Server> {
    let mut config = config();
    let settings = [("shared_buffers", "8MB"), ("bgwriter_lru_maxpages", "0")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    config.settings.extend(settings);
    servers::start_with(version, &config)
}

/// Regression: four parallel queries were 20 transactions.
#[test]
fn transactions_of_parallel_workers_are_not_those_of_clients() {
    on_each(&["18"], start, |_, server| {
        let mut asker = server.connect().expect("a connection");
        let mut ended = || {
            execute(&mut asker, "select pg_stat_force_next_flush()");
            let value = asker.value(ENDED_TRANSACTIONS).expect("the query succeeds");
            value.and_then(|it| it.parse().ok()).unwrap_or(0)
        };
        let before: i64 = ended();
        let statements = [
            "create table large as select generate_series(1, 100000) id",
            "set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0",
        ];
        let queries = ["select count(*) from large"; 20];
        let launched = "select sum(parallel_workers_launched) >= 20 from pg_stat_database";
        work(server, &[&statements[..], &queries].concat(), launched);
        // With those of this test's connections; the workers have ended 40 or more.
        let transactions = ended() - before;
        assert!((22..40).contains(&transactions), "{transactions}");
    });
}

/// Regression: a client that connected for each of its transactions had two of them.
#[test]
fn connecting_is_no_transaction_of_a_client() {
    on_each(&["16", "18"], start, |version, server| {
        let mut asker = server.connect().expect("a connection");
        let mut ended = || {
            let value = asker.value(ENDED_TRANSACTIONS).expect("the query succeeds");
            value.and_then(|it| it.parse::<i64>().ok()).unwrap_or(0)
        };
        let before = ended();
        for _ in 0..40 {
            let mut client = server.connect().expect("a connection");
            execute(&mut client, "select count(*) from pg_class");
        }
        // Sessions report when they end. Those of the one that asks, and of what runs at the start, are few.
        let deadline = Instant::now() + Duration::from_secs(10);
        while ended() - before < 40 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
        }
        thread::sleep(Duration::from_millis(300));
        let transactions = ended() - before;
        assert!(
            (40..80).contains(&transactions),
            "{version}: {transactions}"
        );
    });
}

const ANALYZED_TABLES: u64 = 60;

fn start_with_autovacuum(version: &str) -> Option<Server> {
    let mut config = config();
    let settings = [("autovacuum", "on"), ("autovacuum_naptime", "5s")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    config.settings.extend(settings);
    servers::start_with(version, &config)
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    /// Regression: of 120 transactions per second, 85 were autovacuum's, and all seemed to be clients'.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn transactions_of_autovacuum_are_not_those_of_clients() {
        on_each(
            &["12", "15", "18"],
            start_with_autovacuum,
            |version, server| {
                let mut watch = open(server);
                watch.tick(0.0, &[]).expect("a tick");
                // Two transactions of clients: this one, and the one that creates and fills the tables.
                let mut asker = server.connect().expect("a connection");
                execute(&mut asker, "begin");
                let fill = format!(
                    "do $$ begin for i in 1..{ANALYZED_TABLES} loop \
                 execute 'create table t' || i || ' as select generate_series(1, 200) id'; end loop; end $$"
                );
                let mut client = server.connect().expect("a connection");
                execute(&mut client, &fill);
                client.close().expect("it closes");
                let done = format!(
                    "select count(*) filter (where autoanalyze_count > 0) = {ANALYZED_TABLES} and not exists (select 1 \
                   from pg_stat_activity where datname = current_database() and usesysid is null) \
                 from pg_stat_user_tables"
                );
                wait_until("autovacuum has analyzed all tables", || {
                    execute(&mut asker, "select pg_stat_clear_snapshot()");
                    asker.value(&done).expect("the query succeeds").as_deref() == Some("t")
                });
                // Before 15, statistics are up to half a second old.
                thread::sleep(Duration::from_secs(1));
                let result = watch.finish();
                let mut refused = result.unavailable.iter();
                assert!(
                    refused.all(|it| it.name != "autovacuum"),
                    "{:?}",
                    result.unavailable
                );
                let catalog = result.catalog.expect("a catalog");
                let autovacuum = result.transactions.of_autovacuum(catalog.window_us);
                // At least two for each table.
                assert!(
                    autovacuum.is_some_and(|it| it >= 2.0 * ANALYZED_TABLES as f64),
                    "{version}: {autovacuum:?}"
                );
                // If workers started late, more were expected than started, and the number can be unknown.
                let clients = result.transactions.counted();
                assert!(
                    clients.is_none_or(|it| it < ANALYZED_TABLES as f64),
                    "{version}: {clients:?}"
                );
                let databases = catalog.databases.iter();
                let committed: u64 = databases
                    .filter(|it| it.name == catalog.database)
                    .map(|it| it.committed)
                    .sum();
                assert!(committed < ANALYZED_TABLES, "{version}: {committed}");
            },
        );
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn writes_of_a_bulk_command_are_not_those_of_sessions_that_need_buffers() {
        on_each(&["12", "15", "18"], with_few_buffers, |version, server| {
            let written = |sql: &str| {
                let mut watch = open(server);
                let mut connection = server.connect().expect("a connection");
                execute(&mut connection, sql);
                // Statistics are sent when the session ends, at the latest.
                let pid = pid(&connection);
                connection.close().expect("it closes");
                let mut asker = server.connect().expect("a connection");
                let ended = format!("select count(*) from pg_stat_activity where pid = {pid}");
                wait_until("the session ends", || {
                    asker.value(&ended).expect("a count").as_deref() == Some("0")
                });
                let catalog = watch.refresh().expect("a catalog");
                catalog.checkpoints.expect("counters")
            };
            let create = "create table bulk as select i, repeat('x', 500) as note \
                          from generate_series(1, 100000) i";
            let done = written(create);
            if version != "18" {
                assert_eq!(done.buffers_through_rings, None, "{version}");
                return;
            }
            let rings = done.buffers_through_rings.expect("they are counted");
            // The table has more than 6000 blocks, and the cache 1024.
            assert!(rings > 3000, "{done:?}");
            assert!(done.buffers_by_backends < rings / 10, "{done:?}");
            // Lookups by index in random order use the whole cache.
            let lookups = "create index on bulk (i); set enable_seqscan = off; \
                           set enable_bitmapscan = off; \
                           do $$ begin for n in 1..20000 loop \
                             update bulk set note = 'y' where i = n * 7919 % 100000; \
                           end loop; end $$";
            let done = written(lookups);
            assert!(done.buffers_by_backends > 3000, "{done:?}");
        });
    }
}
