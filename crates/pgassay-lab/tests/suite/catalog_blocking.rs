//! Blocking trees, provoked on real servers.

use std::thread;

use pgassay_lab::watch::catalog::{CatalogOptions, CatalogWatch, OtherWaiters};
use pgassay_record::activity::{BlockingEpisode, LoadMarkKind, LockTarget};
use pgassay_server::Server;
use pgassay_test_support::wait_until;

use crate::catalog_common::{
    VERSIONS, Waiter, exchange, execute, lock_waiters, on_each, open, pid, start,
};

const TABLES: &str = "create extension pg_stat_statements; create schema shop; \
     create table shop.orders (id int primary key, n int); insert into shop.orders values (1, 0); \
     create table shop.other (id int primary key, n int); insert into shop.other values (1, 0)";
const UPDATE: &str = "update shop.orders set n = n + 1 where id = 1";

fn prepared_server(version: &str) -> Option<Server> {
    let server = start(version)?;
    execute(&mut server.connect().expect("a connection"), TABLES);
    Some(server)
}

/// PID, blocker, depth and the relation waited for, of everyone blocked.
fn places(episode: &BlockingEpisode) -> Vec<(u32, u32, u32, String)> {
    let place = |it: &pgassay_record::activity::BlockedSession| {
        let relation = it.waits_for.relation.as_ref();
        let name = relation.map_or_else(String::new, |it| format!("{}.{}", it.schema, it.name));
        (it.pid, it.blocked_by, it.depth, name)
    };
    episode.blocked.iter().map(place).collect()
}

fn held(episode: &BlockingEpisode) -> String {
    let hold = episode.root.holds.as_ref().expect("it holds a lock");
    let relation = &hold.relation;
    format!("{} on {}.{}", hold.mode, relation.schema, relation.name)
}

/// Regression: a transaction that waited for a safe snapshot was behind no blocker.
#[test]
fn a_deferrable_transaction_is_behind_those_that_may_write() {
    on_each(&["12", "18"], prepared_server, |version, server| {
        let mut root = server.connect().expect("a connection");
        execute(&mut root, "begin isolation level serializable");
        execute(&mut root, "select count(*) from shop.orders");
        let mut waiting = server.connect().expect("a connection");
        let waiter = pid(&waiting);
        let running = thread::spawn(move || {
            waiting.execute(
                "begin isolation level serializable read only deferrable; select count(*) from shop.orders",
            )
        });
        let mut asker = server.connect().expect("a connection");
        let sql = format!("select wait_event from pg_stat_activity where pid = {waiter}");
        wait_until("it waits", || {
            let found = asker.value(&sql).expect("the query succeeds");
            found.as_deref() == Some("SafeSnapshot")
        });
        let mut watch = open(server);
        watch.set_other_waiters(OtherWaiters {
            for_snapshots: vec![waiter],
            ..OtherWaiters::default()
        });
        watch.tick(0.0, &[]).expect("a tick");
        watch.last_tick(2e6, &[]).expect("a tick");
        let found = watch.blocking().pop().expect("an episode");
        assert_eq!(found.root.pid, Some(pid(&root)), "{version}");
        assert_eq!(places(&found)[0].0, waiter, "{version}");
        let blocked = &found.blocked[0];
        assert_eq!(blocked.waits_for.kind, LockTarget::SAFE_SNAPSHOT);
        assert!((blocked.waited_us - 2e6).abs() < 1.0, "{version}");
        execute(&mut root, "rollback");
        running.join().expect("no panic").expect("it goes on");
    });
}

/// A transaction that is idle blocks a second one, which blocks a third.
#[test]
fn a_tree_of_three_levels_names_its_idle_root() {
    on_each(&VERSIONS, prepared_server, |version, server| {
        check_three_levels(server, version);
    });
}

fn check_three_levels(server: &Server, version: &str) {
    let mut root = server.connect().expect("a connection");
    execute(
        &mut root,
        "set application_name = 'it''s \"100%\" ünï\ncode'",
    );
    execute(&mut root, "begin");
    execute(&mut root, "update shop.orders set n = 7 where id = 1");
    let mut watch = open(server);
    let mut asker = server.connect().expect("a connection");
    let before = "begin; update shop.other set n = 1";
    let second = Waiter::start(server, before, UPDATE);
    let third = Waiter::start(server, "", "update shop.other set n = 2 where id = 1");
    let fourth = Waiter::start(server, "", UPDATE);
    watch.tick(0.0, &lock_waiters(&mut asker)).expect("a tick");
    watch.tick(1e5, &[]).expect("too early for another reading");
    watch.tick(1e6, &lock_waiters(&mut asker)).expect("a tick");
    let episodes = watch.blocking();
    assert_eq!(episodes.len(), 1, "{version}: {episodes:#?}");
    let episode = &episodes[0];
    let (orders, other) = ("shop.orders".to_owned(), "shop.other".to_owned());
    let mut found = places(episode);
    assert_eq!(
        found[0],
        (second.pid, pid(&root), 1, orders.clone()),
        "{version}"
    );
    found[1..].sort_by_key(|it| it.3.clone());
    // Who is second for the row waits for the lock on the tuple that the first waiter holds.
    assert_eq!(found[1], (fourth.pid, second.pid, 2, orders), "{version}");
    assert_eq!(found[2], (third.pid, second.pid, 2, other), "{version}");
    let blocker = &episode.root;
    assert_eq!(blocker.pid, Some(pid(&root)));
    assert_eq!(blocker.state, "idle in transaction");
    assert_eq!(blocker.user, server.superuser());
    assert_eq!(blocker.database, server.database());
    assert_eq!(blocker.client, "local");
    // The server itself replaces what is not ASCII.
    assert!(
        blocker.application.starts_with("it's \"100%\" "),
        "{blocker:?}"
    );
    let statement = blocker.statement.as_deref();
    assert_eq!(
        statement,
        Some("update shop.orders set n = $1 where id = $2"),
        "{version}"
    );
    assert_eq!(held(episode), "RowExclusiveLock on shop.orders");
    assert_eq!(
        episode.ended_by,
        format!("select pg_terminate_backend({});", pid(&root))
    );
    assert!(episode.is_lasting && blocker.transaction_age_us > Some(0.0));
    // From 14, by the server's clock, which the times of these ticks do not follow.
    if ["9.6", "12"].contains(&version) {
        assert!(
            (episode.waited_us - 3e6).abs() < 1.0,
            "{version}: {episode:?}"
        );
    }
    assert!(episode.waited_us > 0.0);

    execute(&mut root, "rollback");
    second.finish().expect("the second goes on");
    for waiter in [fourth, third] {
        waiter.finish().expect("everyone goes on");
    }
    watch.tick(2e6, &lock_waiters(&mut asker)).expect("a tick");
    let result = watch.finish();
    assert_eq!(result.blocking.len(), 1, "{version}");
    assert!(!result.blocking[0].is_lasting, "{version}");
    assert_eq!(result.blocking[0].blocked.len(), 3, "{version}");
    assert!((result.blocking[0].last_seen_us - 1e6).abs() < 1e-6);
    let storms = result.marks.iter();
    let storms: Vec<_> = storms
        .filter(|it| it.kind == LoadMarkKind::LockStorm)
        .collect();
    assert_eq!(storms.len(), 1, "{version}: {storms:?}");
    assert_eq!((storms[0].at_us, storms[0].length_us), (0.0, 1e6));
}

/// Readers would not wait for the reader in front, but for the ALTER TABLE between them.
#[test]
fn readers_queue_behind_an_alter_table_that_queues_behind_a_reader() {
    on_each(&VERSIONS, prepared_server, |version, server| {
        let mut root = server.connect().expect("a connection");
        execute(&mut root, "begin; select * from shop.orders");
        let mut watch = open(server);
        let alter = "alter table shop.orders add column more int";
        let alter = Waiter::start(server, "", alter);
        let reads = [0; 2].map(|_| Waiter::start(server, "", "select n from shop.orders"));
        let waiters = lock_waiters(&mut server.connect().expect("a connection"));
        watch.tick(0.0, &waiters).expect("a tick");
        let episodes = watch.blocking();
        assert_eq!(episodes.len(), 1, "{version}: {episodes:#?}");
        let orders = || "shop.orders".to_owned();
        let expected = [
            (alter.pid, pid(&root), 1, orders()),
            (reads[0].pid, alter.pid, 2, orders()),
            (reads[1].pid, alter.pid, 2, orders()),
        ];
        let mut found = places(&episodes[0]);
        found[1..].sort_by_key(|it| it.0 == reads[1].pid);
        assert_eq!(found, expected, "{version}");
        assert_eq!(held(&episodes[0]), "AccessShareLock on shop.orders");
        let waits_for = &episodes[0].blocked[0].waits_for;
        assert_eq!(
            (waits_for.kind.as_str(), waits_for.mode.as_str()),
            ("relation", "AccessExclusiveLock")
        );
        execute(&mut root, "rollback");
        alter.finish().expect("it goes on");
        for read in reads {
            read.finish().expect("it goes on");
        }
    });
}

/// A prepared transaction has no process; its identifier can contain anything.
#[test]
fn a_prepared_transaction_is_a_root_with_the_statement_that_ends_it() {
    on_each(&VERSIONS, prepared_server, |version, server| {
        let mut root = server.connect().expect("a connection");
        execute(&mut root, "begin; update shop.orders set n = 1");
        execute(&mut root, "prepare transaction 'it''s \"x\"\n%\\'");
        let mut watch = open(server);
        let waiters = [0; 2].map(|_| Waiter::start(server, "", UPDATE));
        watch
            .tick(0.0, &waiters.each_ref().map(|it| it.pid))
            .expect("a tick");
        let episodes = watch.blocking();
        assert_eq!(episodes.len(), 1, "{version}: {episodes:#?}");
        let episode = &episodes[0];
        assert_eq!(episode.root.pid, None);
        assert_eq!(episode.root.gid.as_deref(), Some("it's \"x\"\n%\\"));
        assert_eq!(episode.root.state, "prepared transaction");
        assert_eq!(episode.root.database, server.database());
        assert_eq!(held(episode), "RowExclusiveLock on shop.orders");
        let places = places(episode);
        let first = (waiters[0].pid, 0, 1, "shop.orders".to_owned());
        assert_eq!(places[0], first, "{version}");
        assert_eq!((places[1].1, places[1].2), (waiters[0].pid, 2), "{version}");
        // What it says works.
        execute(&mut root, &episode.ended_by);
        for waiter in waiters {
            waiter.finish().expect("it goes on");
        }
    });
}

/// Two sessions wait for each other, and a third for one of them.
#[test]
fn a_cycle_is_cut_where_the_wait_is_longest() {
    on_each(&["12", "18"], prepared_server, |version, server| {
        let mut watch = open(server);
        let mut asker = server.connect().expect("a connection");
        execute(&mut asker, "select pg_advisory_lock(9)");
        let mut one = server.connect().expect("a connection");
        let mut two = server.connect().expect("a connection");
        execute(&mut one, "select pg_advisory_lock(1)");
        execute(&mut two, "select pg_advisory_lock(2)");
        let one = Waiter::start_on(server, one, "select pg_advisory_lock(2)");
        watch.tick(0.0, &lock_waiters(&mut asker)).expect("a tick");
        let two = Waiter::start_on(server, two, "select pg_advisory_lock(1)");
        let third = Waiter::start(server, "", "select pg_advisory_lock(1)");
        watch.tick(1e6, &lock_waiters(&mut asker)).expect("a tick");
        let lasting: Vec<_> = watch
            .blocking()
            .into_iter()
            .filter(|it| it.is_lasting)
            .collect();
        assert_eq!(lasting.len(), 1, "{version}: {lasting:#?}");
        assert_eq!(lasting[0].root.pid, Some(one.pid), "{version}");
        let places = places(&lasting[0]);
        let behind: Vec<_> = places.iter().map(|it| (it.0, it.1, it.2)).collect();
        assert_eq!(behind, [(two.pid, one.pid, 1), (third.pid, one.pid, 1)]);
        assert_eq!(lasting[0].blocked[0].waits_for.kind, "advisory");
        execute(
            &mut asker,
            &format!("select pg_terminate_backend({})", one.pid),
        );
        one.finish().expect_err("it was terminated");
        two.finish().expect("it goes on");
        third.finish().expect("it goes on");
    });
}

/// Texts of 100 kB, in a database with another encoding, and without texts.
#[test]
fn a_statement_of_100_kb_is_named_whole() {
    let mut config = crate::catalog_common::config();
    let size = ("track_activity_query_size".to_owned(), "102400".to_owned());
    config.settings.extend([size]);
    for version in ["10", "18"] {
        let Some(server) = pgassay_test_support::servers::start_with(version, &config) else {
            continue;
        };
        let mut root = server.connect().expect("a connection");
        execute(&mut root, TABLES);
        let names: Vec<String> = (0..9000).map(|i| format!("n as n{i:05}")).collect();
        let long = format!(
            "select {} from shop.orders limit 0",
            names[..1600].join(", ")
        );
        let longer = format!("{long} /* {} */", "x".repeat(200_000));
        execute(&mut root, "begin; update shop.orders set n = 1");
        execute(&mut root, &longer);
        let waiter = Waiter::start(&server, "", UPDATE);
        for keeps_text in [true, false] {
            let options = CatalogOptions { keeps_text };
            let mut watch =
                CatalogWatch::open(exchange(&server, ""), &options).expect("the watch opens");
            watch.tick(0.0, &[waiter.pid]).expect("a tick");
            let episode = watch.blocking().pop().expect("an episode");
            let text = keeps_text.then(|| pgassay_script::normalize(&longer[..102_399]).text);
            assert!(episode.root.statement == text, "{version} {keeps_text}");
            assert!(episode.root.fingerprint.is_some());
            let waits = &episode.blocked[0];
            assert_eq!(waits.statement.is_some(), keeps_text);
        }
        execute(&mut root, "rollback");
        waiter.finish().expect("it goes on");
        server.stop().expect("the server stops");
    }
}

/// The server converts texts from the encoding of our database, although those of other databases have
/// others, and fails if it cannot.
#[test]
fn a_text_of_a_database_with_another_encoding_is_no_error() {
    on_each(&["9.6", "18"], prepared_server, |version, server| {
        let mut root = server.connect().expect("a connection");
        execute(
            &mut root,
            "create database japanese encoding 'EUC_JP' lc_collate 'C' lc_ctype 'C' \
             template template0",
        );
        execute(&mut root, "begin");
        execute(&mut root, "update shop.orders as \"\u{c0}t\" set n = 1");
        let waiter = Waiter::start(server, "", UPDATE);
        let options = CatalogOptions { keeps_text: true };
        let exchange = exchange(server, "dbname=japanese");
        let mut watch = CatalogWatch::open(exchange, &options).expect("the watch opens");
        watch.tick(0.0, &[waiter.pid]).expect("a tick");
        let result = watch.finish();
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
        let episode = &result.blocking[0];
        let statement = episode.root.statement.as_deref();
        let expected = "update shop.orders as \"\u{c0}t\" set n = $1";
        assert_eq!(statement, Some(expected), "{version}");
        // The name of a relation is known only within its database.
        let hold = episode.root.holds.as_ref().expect("it holds a lock");
        assert_eq!(hold.relation.database, server.database());
        assert_eq!(
            (hold.relation.name.as_str(), hold.relation.oid > 0),
            ("", true)
        );
        assert_eq!(episode.root.database, server.database());
        execute(&mut root, "rollback");
        waiter.finish().expect("it goes on");
    });
}

/// Regression: a query of locks that failed once, as by its limit of 2 s in a lock storm, ended all episodes and
/// the storm. The next reading began new ones, which counted the same waits again.
#[test]
fn a_lock_query_that_fails_once_ends_no_episode_and_counts_no_wait_twice() {
    on_each(&VERSIONS, prepared_server, |version, server| {
        let mut root = server.connect().expect("a connection");
        execute(&mut root, "create role watcher login password 'secret'");
        execute(&mut root, "begin; update shop.orders set n = 7");
        let options = CatalogOptions { keeps_text: true };
        let exchange = exchange(server, "user=watcher password=secret");
        let mut watch = CatalogWatch::open(exchange, &options).expect("the watch opens");
        let waiters = [0; 3].map(|_| Waiter::start(server, "", UPDATE));
        let pids = waiters.each_ref().map(|it| it.pid);
        watch.tick(10e6, &pids).expect("a tick");
        let mut admin = server.connect().expect("a connection");
        execute(&mut admin, "revoke select on pg_locks from public");
        // On a busy machine the last reading may have taken so long that an ordinary tick takes none.
        watch.last_tick(11e6, &pids).expect("a tick");
        let during = watch.blocking();
        execute(&mut admin, "grant select on pg_locks to public");
        watch.last_tick(12e6, &pids).expect("a tick");
        let after = watch.blocking();
        let result = watch.finish();
        for episodes in [&during, &after, &result.blocking] {
            assert_eq!(episodes.len(), 1, "{version}: {episodes:#?}");
            assert!(episodes[0].is_lasting, "{version}: {episodes:#?}");
            assert!((episodes[0].first_seen_us - 10e6).abs() < 1.0, "{version}");
        }
        // From 14 on by the server's clock, which the times of these ticks do not follow.
        if ["9.6", "12"].contains(&version) {
            let waited = after[0].waited_us;
            assert!((waited - 6e6).abs() < 1.0, "{version}: {waited}");
        }
        let storms = result.marks.iter();
        let storms: Vec<_> = storms
            .filter(|it| it.kind == LoadMarkKind::LockStorm)
            .map(|it| (it.at_us, it.length_us))
            .collect();
        assert_eq!(storms, [(10e6, 0.0)], "{version}");
        let refused = result.unavailable.iter();
        let refused: Vec<&str> = refused.map(|it| it.name.as_str()).collect();
        assert!(
            refused.contains(&"blocking sessions"),
            "{version}: {refused:?}"
        );
        execute(&mut root, "rollback");
        for waiter in waiters {
            waiter.finish().expect("it goes on");
        }
    });
}

/// Regression: a blocker was not to be terminated anymore once the connection that had shown it was lost.
#[test]
fn a_lost_connection_ends_blocking_only_if_the_server_is_gone() {
    on_each(&["18"], prepared_server, |version, server| {
        let mut root = server.connect().expect("a connection");
        execute(&mut root, "begin; update shop.orders set n = 7");
        let waiter = Waiter::start(server, "", UPDATE);
        let mut admin = server.connect().expect("a connection");
        for is_gone in [false, true] {
            let mut watch = open(server);
            watch.tick(10e6, &[waiter.pid]).expect("a tick");
            let terminate = format!("select pg_terminate_backend({})", watch.own_pid());
            execute(&mut admin, &terminate);
            let result = watch.finish_with(false, || is_gone);
            assert!(result.catalog.is_none(), "{version}");
            let lasting: Vec<bool> = result.blocking.iter().map(|it| it.is_lasting).collect();
            assert_eq!(lasting, [!is_gone], "{version}");
        }
        execute(&mut root, "rollback");
        waiter.finish().expect("it goes on");
    });
}

mod slow {
    use super::*;

    /// Before anyone waits: who is idle with locks, and who only reads.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn an_idle_transaction_with_row_locks_is_listed_before_it_blocks() {
        on_each(&VERSIONS, prepared_server, |version, server| {
            let mut writer = server.connect().expect("a connection");
            execute(&mut writer, "begin; update shop.orders set n = 1");
            let mut reader = server.connect().expect("a connection");
            execute(&mut reader, "begin; select * from shop.orders");
            let mut prepared = server.connect().expect("a connection");
            execute(
                &mut prepared,
                "begin; lock shop.other; prepare transaction 'gone'",
            );
            let watch = open(server);
            let mut asker = server.connect().expect("a connection");
            let idle = "select count(*) from pg_stat_activity where state = 'idle in transaction' \
                    and clock_timestamp() - state_change > '1100 ms'";
            pgassay_test_support::wait_until("both are idle for a second", || {
                asker.value(idle).expect("the query succeeds").as_deref() == Some("2")
            });
            let result = watch.finish();
            let mut found: Vec<_> = result
                .idle_lock_holders
                .iter()
                .map(|it| {
                    let hold = it.holder.holds.as_ref().expect("it holds a lock");
                    (
                        hold.mode.as_str(),
                        hold.relation.name.as_str(),
                        it.ended_by.clone(),
                    )
                })
                .collect();
            found.sort_unstable();
            let terminate = format!("select pg_terminate_backend({});", pid(&writer));
            let rollback = "rollback prepared 'gone';".to_owned();
            let expected = [
                ("AccessExclusiveLock", "other", rollback),
                ("RowExclusiveLock", "orders", terminate),
            ];
            assert_eq!(found, expected, "{version}");
            assert!(result.unavailable.is_empty(), "{:?}", result.unavailable);
            execute(&mut asker, "rollback prepared 'gone'");
        });
    }
}
