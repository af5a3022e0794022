//! The live watch against loads whose truth is known.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pgassay_lab::Interrupt;
use pgassay_lab::local_server;
use pgassay_lab::watch::{LiveWatch, WatchOptions, WatchedServer};
use pgassay_profile::LiveServer;
use pgassay_record::activity::{Activity, ActivitySource, SessionStatus};
use pgassay_server::Server;
use pgassay_test_support::{os::is_root, skip, wait_until};

use crate::catalog_common::{ParallelQuery, Waiter, exchange, execute, pid, start};

/// The versions of the tests with a load: fewer, since each loads the machine.
const VERSIONS: [&str; 3] = ["12", "15", "18"];

pub fn watch_of(server: &Server, is_local: bool, options: &WatchOptions) -> LiveWatch {
    let live = is_local.then(|| {
        local_server::find(&mut exchange(server, ""))
            .expect("local")
            .0
    });
    watch_at(server.conninfo(), live, options)
}

fn watch_at(conninfo: String, live: Option<LiveServer>, options: &WatchOptions) -> LiveWatch {
    let connect = move || {
        let request = pgassay_wire::conninfo::Request::new().conninfo(&conninfo)?;
        let target = request.resolve(&pgassay_wire::conninfo::EmptyEnvironment)?;
        Ok(pgassay_lab::connector::connect(&target, Some(Duration::from_secs(30)))?.0)
    };
    let watched = WatchedServer {
        live,
        connect: Box::new(connect),
    };
    LiveWatch::open(watched, options).expect("the watch opens")
}

pub fn run(watch: &mut LiveWatch, time: Duration) {
    let until = Instant::now() + time;
    watch
        .run_until(until, &Interrupt::default())
        .expect("the server keeps running");
}

/// Active or idle time of a statement over the window, by the beginning of its text.
fn load(activity: &Activity, text: &str, state: SessionStatus) -> f64 {
    activity.load_of(|cell| {
        let statement = cell.statement.map(|it| &activity.statements[it as usize]);
        let known = statement
            .and_then(|it| it.text.as_deref())
            .unwrap_or_default();
        known.starts_with(text) && cell.state == state
    })
}

fn wait_load(activity: &Activity, kind: &str, name: &str) -> f64 {
    activity.load_of(|cell| {
        let wait = &activity.waits[cell.wait as usize];
        (wait.kind.as_str(), wait.name.as_str()) == (kind, name)
    })
}

/// Repeats a statement on one connection each until dropped.
struct Repeating<'a> {
    is_over: &'a AtomicBool,
}

impl Drop for Repeating<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Five statements with known costs: two sleeps in fixed proportion, a session that waits for a lock all
/// the time, its holder idle in a transaction, and one that computes.
fn five_statements(version: &str, is_local: bool) {
    let Some(server) = start(version) else { return };
    let mut setup = server.connect().expect("a connection");
    execute(&mut setup, "create table t (i int)");
    execute(&mut setup, "insert into t values (1)");
    let mut holder = server.connect().expect("a connection");
    execute(&mut holder, "begin");
    execute(&mut holder, "update t set i = 2");
    let is_over = AtomicBool::new(false);
    let activity = thread::scope(|scope| {
        let repeating = Repeating { is_over: &is_over };
        let repeat = |sql: &'static [&'static str]| {
            let mut connection = server.connect().expect("a connection");
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    for sql in sql {
                        execute(&mut connection, sql);
                    }
                }
            });
        };
        // By the clock of the same session, whatever else the machine does.
        repeat(&["select pg_sleep(0.03)", "select pg_sleep(0.01), 'short'"]);
        // Not in FROM, where the rows would go to a temporary file.
        repeat(&["select sum(sqrt(i)) from (select generate_series(1, 100000) i) s"]);
        let mut waiter = server.connect().expect("a connection");
        let pid = waiter.backend_pid().expect("a backend");
        scope.spawn(move || waiter.execute("delete from t where i = 1"));
        let sql = format!(
            "select 1 from pg_stat_activity where pid = {pid} and wait_event_type = 'Lock'"
        );
        wait_until("it waits", || {
            setup.query(&sql).is_ok_and(|it| !it.is_empty())
        });
        let mut watch = watch_of(&server, is_local, &WatchOptions::default());
        run(&mut watch, Duration::from_secs(3));
        drop(repeating);
        execute(&mut holder, "rollback");
        watch.finish()
    });
    check_five(&activity, is_local);
    server.stop().expect("the server stops");
}

fn check_five(activity: &Activity, is_local: bool) {
    let active = SessionStatus::Active;
    let expected = if is_local {
        ActivitySource::Memory
    } else {
        ActivitySource::PgStatActivity
    };
    assert_eq!(activity.source, expected, "{:?}", activity.unavailable);
    let waiting = load(activity, "delete", active);
    assert!((waiting - 1.0).abs() < 0.01, "{waiting}");
    let transactionid = wait_load(activity, "Lock", "transactionid");
    assert!((transactionid - 1.0).abs() < 0.01, "{transactionid}");
    let holding = load(activity, "update t", SessionStatus::IdleInTransaction);
    assert!((holding - 1.0).abs() < 0.01, "{holding}");
    let both = load(activity, "select pg_sleep($1)", active);
    let short = load(activity, "select pg_sleep($1),", active);
    // A quarter on a quiet machine, as `benchmarks/statement-shares` measures; on a busy one readings are
    // few, and each sleep ends late.
    let share = short / both;
    assert!(both > 0.5 && (0.01..0.6).contains(&share), "{both} {short}");
    let computing = load(activity, "select sum(sqrt(i))", active);
    assert!(computing > 0.5, "{computing}");
    assert!(wait_load(activity, "", "") >= computing);
    let clients = activity.sessions.iter();
    let clients = clients.filter(|it| it.backend_type == "client backend");
    assert_eq!(
        clients.count(),
        4,
        "ours are left out: {:?}",
        activity.sessions
    );
    let total: f64 = activity
        .timeline
        .iter()
        .map(|it| it.length_us * it.active.iter().map(|it| it.1).sum::<f64>())
        .sum();
    assert!((total / activity.window_us / activity.active_sessions() - 1.0).abs() < 1e-6);
    let blocking = &activity.blocking;
    assert_eq!(blocking.len(), 1, "{blocking:?}");
    assert_eq!(blocking[0].blocked.len(), 1);
    assert!(activity.catalog.is_some() && activity.cost.statements_sent > 0);
    let of_sessions = u32::from(expected == ActivitySource::PgStatActivity);
    assert_eq!(activity.cost.connections, of_sessions + 1);
}

#[test]
fn five_statements_of_a_remote_server_have_the_load_that_they_cause() {
    five_statements("15", false);
}

#[test]
fn parts_add_up_to_the_whole_and_texts_are_left_out_on_request() {
    let Some(server) = start("18") else { return };
    let mut sleeper = server.connect().expect("a connection");
    let mut asker = server.connect().expect("a connection");
    let sleeping = thread::spawn(move || sleeper.execute("select pg_sleep(600)").is_err());
    wait_until("it sleeps", || {
        let sql = "select 1 from pg_stat_activity where wait_event = 'PgSleep'";
        asker.query(sql).is_ok_and(|it| !it.is_empty())
    });
    let options = WatchOptions {
        keeps_text: false,
        ..WatchOptions::default()
    };
    let mut watch = watch_of(&server, true, &options);
    let mut parts_us = 0.0;
    let mut sent = 0;
    for _ in 0..3 {
        run(&mut watch, Duration::from_millis(300));
        // Regression: in snapshots of `top`, 0 statements were sent in the intervals in which the views were read.
        watch.read_catalog();
        let part = watch.take();
        assert!(part.cost.statements_sent > sent, "{:?}", part.cost);
        sent = part.cost.statements_sent;
        parts_us += part.window_us;
        assert!((part.active_sessions() - 1.0).abs() < 0.01);
        assert!(part.statements.iter().all(|it| it.text.is_none()));
    }
    let whole = watch.finish();
    assert!((whole.window_us - parts_us).abs() < 1.0, "{parts_us}");
    assert!((whole.active_sessions() - 1.0).abs() < 0.01);
    assert_eq!(whole.statements.len(), 1, "{:?}", whole.statements);
    assert_eq!(whole.statements[0].executions_seen, 1);
    server.stop().expect("the server stops");
    assert!(sleeping.join().expect("no panic"));
}

#[test]
fn a_server_that_stops_ends_the_watch_and_leaves_what_was_seen() {
    let Some(server) = start("15") else { return };
    let live = LiveServer::of_postmaster(server.postmaster_pid().cast_unsigned());
    let mut watch = watch_of(&server, true, &WatchOptions::default());
    run(&mut watch, Duration::from_millis(200));
    server.stop().expect("the server stops");
    assert!(!live.is_there());
    let until = Instant::now() + Duration::from_mins(1);
    assert!(watch.run_until(until, &Interrupt::default()).is_err());
    assert!(Instant::now() < until);
    let activity = watch.finish();
    assert!(activity.window_us > 0.0 && activity.sessions.is_empty());
    let alone = activity.unavailable.iter().any(|it| {
        let limitation = it.limitation.as_deref().unwrap_or_default();
        limitation.contains("no other client is connected")
    });
    assert!(alone, "{:?}", activity.unavailable);
}

fn names(activity: &Activity) -> Vec<&str> {
    activity.unavailable.iter().map(|it| &*it.name).collect()
}

/// Regression: sessions that the server does not show counted as idle, and the reason came only at the end.
#[test]
fn sessions_that_cannot_be_seen_are_said_while_watching() {
    for version in ["9.6", "18"] {
        let Some(server) = start(version) else {
            continue;
        };
        let mut admin = server.connect().expect("a connection");
        execute(&mut admin, "create role watcher login password 'secret'");
        let mut off = server.connect().expect("a connection");
        execute(&mut off, "set track_activities = off");
        let conninfo = format!("{} user=watcher password=secret", server.conninfo());
        let mut watch = watch_at(conninfo, None, &WatchOptions::default());
        run(&mut watch, Duration::from_millis(400));
        let seen = watch.take();
        let hidden = seen.unavailable.iter();
        let hidden: Vec<_> = hidden
            .filter(|it| it.name == Activity::HIDDEN_SESSIONS)
            .collect();
        assert_eq!(hidden.len(), 1, "{version}: {:?}", seen.unavailable);
        let limitation = hidden[0].limitation.as_deref().unwrap_or_default();
        assert!(
            limitation.starts_with("2 sessions belong"),
            "{version}: {limitation}"
        );
        let fix = hidden[0].fix.as_deref().unwrap_or_default();
        let grant = if version == "9.6" {
            execute(&mut admin, "alter role watcher superuser");
            "connect as a superuser"
        } else {
            execute(&mut admin, "grant pg_monitor to watcher");
            "grant pg_monitor to \"watcher\""
        };
        assert!(fix.starts_with(grant), "{version}: {fix}");
        // Regression: a sentence ended with a semicolon.
        assert!(!fix.ends_with(';'), "{version}: {fix}");
        run(&mut watch, Duration::from_millis(400));
        let seen = watch.take();
        let said = names(&seen);
        assert!(
            !said.contains(&Activity::HIDDEN_SESSIONS),
            "{version}: {said:?}"
        );
        assert!(
            said.contains(&Activity::DISABLED_SESSIONS),
            "{version}: {said:?}"
        );
        // Regression: while watching, the server was to switch on what it had on.
        let mut disabled = seen.unavailable.iter();
        let disabled = disabled.find(|it| it.name == Activity::DISABLED_SESSIONS);
        let fix = disabled.and_then(|it| it.fix.as_deref());
        assert!(
            fix.is_some_and(|it| it.starts_with("the server has it on")),
            "{version}: {fix:?}"
        );
        let whole = watch.finish();
        assert!(
            names(&whole).contains(&Activity::HIDDEN_SESSIONS),
            "{version}"
        );
        server.stop().expect("the server stops");
    }
}

/// Regression: after the connection that reads the views was terminated, no blocker was ever seen again, and
/// nothing said so.
#[test]
fn a_terminated_connection_is_said_and_blockers_are_seen_again() {
    if !is_root() {
        return skip("sessions in memory", "reading memory needs root");
    }
    for version in ["12", "18"] {
        let Some(server) = start(version) else {
            continue;
        };
        let mut root = server.connect().expect("a connection");
        execute(
            &mut root,
            "create table t (n int); insert into t values (1)",
        );
        execute(&mut root, "begin; update t set n = 2");
        let waiter = Waiter::start(&server, "", "update t set n = 3");
        let mut watch = watch_of(&server, true, &WatchOptions::default());
        let pids = watch.own_pids();
        let mut admin = server.connect().expect("a connection");
        for own in &pids {
            execute(&mut admin, &format!("select pg_terminate_backend({own})"));
        }
        let mut is_said = false;
        wait_until("blockers are seen again", || {
            run(&mut watch, Duration::from_millis(300));
            let seen = watch.take();
            let is_lost = names(&seen).contains(&Activity::CATALOG_CONNECTION);
            is_said |= is_lost;
            !is_lost && is_said && seen.blocking.len() == 1
        });
        assert!(watch.own_pids().len() > pids.len(), "{version}");
        let whole = watch.finish();
        let clients = whole.sessions.iter();
        let clients = clients.filter(|it| it.backend_type == "client backend");
        let seen: BTreeSet<u32> = clients.map(|it| it.pid).collect();
        let expected = [waiter.pid, pid(&root)].into();
        assert_eq!(seen, expected, "{version}: ours are left out");
        assert!(
            whole.catalog.is_some() && whole.blocking.len() == 1,
            "{version}"
        );
        execute(&mut root, "rollback");
        waiter.finish().expect("it goes on");
        server.stop().expect("the server stops");
    }
}

/// Regression: the load by relation was empty, although sessions waited for a table.
#[test]
fn sessions_that_wait_for_a_lock_have_the_relation_that_they_wait_for() {
    for (version, is_local) in [("12", is_root()), ("18", false)] {
        let Some(server) = start(version) else {
            continue;
        };
        let mut holder = server.connect().expect("a connection");
        execute(&mut holder, "create table busy (n int)");
        execute(
            &mut holder,
            "create table hot (n int); insert into hot values (1)",
        );
        execute(&mut holder, "begin; lock table busy; update hot set n = 2");
        let of_table = [(); 2].map(|()| Waiter::start(&server, "", "select n from busy"));
        // The second one waits behind the first.
        let of_row = [(); 2].map(|()| Waiter::start(&server, "", "update hot set n = 3"));
        let advisory = "select pg_advisory_xact_lock(1)";
        execute(&mut holder, advisory);
        let other = Waiter::start(&server, "", advisory);
        let mut watch = watch_of(&server, is_local, &WatchOptions::default());
        run(&mut watch, Duration::from_millis(700));
        let part = watch.take();
        let whole = watch.finish();
        for activity in [&part, &whole] {
            let of = |name: &str| {
                activity.load_of(|cell| {
                    let relation = cell.relation.map(|it| &activity.relations[it as usize]);
                    relation.is_some_and(|it| (&*it.schema, &*it.name) == ("public", name))
                })
            };
            for name in ["busy", "hot"] {
                let load = of(name);
                assert!((load - 2.0).abs() < 0.05, "{version} {name}: {load}");
            }
            assert_eq!(activity.relations.len(), 2, "{version}");
            let locks = activity.load_of(|it| activity.waits[it.wait as usize].kind == "Lock");
            assert!((locks - 5.0).abs() < 0.1, "{version}: {locks}");
        }
        execute(&mut holder, "rollback");
        for waiter in of_table.into_iter().chain(of_row).chain([other]) {
            waiter.finish().expect("it goes on");
        }
        server.stop().expect("the server stops");
    }
}

mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn five_statements_have_the_load_that_they_cause() {
        if !is_root() {
            return skip("sessions in memory", "reading memory needs root");
        }
        for version in VERSIONS {
            five_statements(version, true);
        }
    }

    /// Its workers execute it too, but not once more.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_parallel_query_is_one_execution_with_the_load_of_its_workers() {
        for version in ["9.6", "10", "12", "15", "18"] {
            let Some(server) = start(version) else {
                continue;
            };
            let parallel = ParallelQuery::start(version, &server);
            for is_local in [false, is_root()] {
                let mut watch = watch_of(&server, is_local, &WatchOptions::default());
                run(&mut watch, Duration::from_millis(500));
                let activity = watch.finish();
                let parts = activity.active_sessions();
                assert!(parts > 2.9, "{version} {is_local}: {parts}");
                let start = &ParallelQuery::TEXT[..20];
                let its = activity.statements.iter().filter(|it| {
                    let text = it.text.as_deref().unwrap_or_default();
                    text.starts_with(start)
                });
                let seen: Vec<u64> = its.map(|it| it.executions_seen).collect();
                assert_eq!(seen, [1], "{version} {is_local}");
            }
            parallel.cancel(&server);
            server.stop().expect("the server stops");
        }
    }
}
