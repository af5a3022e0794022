//! Findings for operators on real servers: each is provoked with objects of known names, and healthy
//! loads have none.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pgassay_record::finding::Finding;
use pgassay_server::{Server, ServerConfig};
use pgassay_test_support::{servers, wait_until};
use pgassay_wire::{Exchange, Login};

use crate::live_loads::{Clients, assert_found, pid, profiled, session, start, wait_for_waiters};

/// A server with `pg_stat_statements` where planning is counted.
pub fn server(version: &str, more: &[(&str, &str)]) -> Option<Server> {
    let mut settings = vec![
        ("fsync", "off"),
        ("shared_preload_libraries", "pg_stat_statements"),
        ("max_prepared_transactions", "5"),
        ("max_wal_senders", "5"),
        ("deadlock_timeout", "100ms"),
    ];
    if version == "18" {
        settings.push(("pg_stat_statements.track_planning", "on"));
    }
    settings.extend(more);
    let settings = settings.into_iter();
    let config = ServerConfig {
        settings: settings
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        ..ServerConfig::default()
    };
    let server = servers::start_with(version, &config)?;
    session(&server, &["create extension pg_stat_statements"]);
    Some(server)
}

pub fn expected(list: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    list.iter()
        .map(|(id, it)| (*id, (*it).to_owned()))
        .collect()
}

pub fn sessions_that_block_others_are_named(version: &str) {
    let Some(server) = server(version, &[]) else {
        return;
    };
    check_blocking(&server, version);
    server.stop().expect("the server stops");
}

fn check_blocking(server: &Server, version: &str) {
    session(
        server,
        &[
            "create table a (id int primary key, n int); insert into a values (1, 0)",
            "create table b (id int primary key, n int); insert into b values (1, 0)",
            "create table c (id int primary key, n int); insert into c values (1, 0)",
            "create table d (id int primary key, n int)",
            "create table e (id int primary key, n int)",
        ],
    );
    let mut waiting = Vec::new();
    let idle = session(server, &["begin", "update a set n = 1"]);
    waiting.push(start(server, &[], "update a set n = 2"));
    let (long, sleeping) = start(
        server,
        &["begin", "update b set n = 1"],
        "select pg_sleep(600)",
    );
    waiting.push(start(server, &[], "update b set n = 2"));
    session(
        server,
        &["begin", "update c set n = 1", "prepare transaction 'lost'"],
    );
    waiting.push(start(server, &[], "update c set n = 2"));
    let reader = session(server, &["begin", "select * from d"]);
    waiting.push(start(server, &[], "alter table d add x int"));
    wait_for_waiters(server, "4");
    waiting.push(start(server, &[], "select * from d"));
    let holder = session(server, &["begin", "lock table e in access exclusive mode"]);
    wait_for_waiters(server, "5");
    thread::sleep(Duration::from_millis(1500));
    let found = profiled(server, "3s");
    let cancel = format!("select pg_terminate_backend({long})");
    session(server, &["rollback prepared 'lost'", &cancel]);
    let pids = [&idle, &reader, &holder].map(pid);
    drop((idle, reader, holder));
    sleeping.join().expect("no panic");
    for (_, thread) in waiting {
        thread.join().expect("no panic");
    }
    let [idle, reader, holder] = pids.map(|pid| format!("session {pid}"));
    let expected = [
        ("idle-blocker", idle.clone()),
        ("idle-blocker", reader),
        ("long-blocker", format!("session {long}")),
        (
            "prepared-transaction",
            "prepared transaction lost".to_owned(),
        ),
        ("ddl-queue", "table public.d".to_owned()),
        ("idle-lock-holder", holder),
    ];
    assert_found(&found, &expected, version);
    let is_idle = |it: &&Finding| it.object.as_ref().is_some_and(|it| it.to_string() == idle);
    let finding = found.iter().find(is_idle).expect("found");
    let sql = format!("select pg_terminate_backend({})", pids[0]);
    assert_eq!(finding.fix_sql.as_deref(), Some(&*sql));
    assert!(finding.saved_sessions.expect("a load") > 0.4, "{finding:?}");
}

pub fn tables_and_indexes_that_cost_are_named(version: &str) {
    let Some(server) = server(version, &[]) else {
        return;
    };
    check_tables(&server, version);
    server.stop().expect("the server stops");
}

const TABLES: [&str; 11] = [
    "create table orders (id serial primary key, customer int, at timestamptz default now())",
    "insert into orders (customer) select i % 5000 from generate_series(1, 100000) i",
    "create table parent (id int primary key)",
    "insert into parent select generate_series(1, 100000)",
    "create table child (id serial primary key, parent_id int references parent)",
    "insert into child (parent_id) select 100000 - i % 10 from generate_series(1, 50000) i",
    "create table log (id serial primary key, a int, b int, words tsvector)",
    "insert into log (a, b, words) select i, i, 'word' from generate_series(1, 20000) i",
    "create index log_a on log (a); create index log_a_b on log (a, b); \
     create index log_unused on log (b); create index log_words on log using gin (words) \
     with (gin_pending_list_limit = 65536)",
    "create table queue (id serial primary key, n int) with (autovacuum_enabled = off)",
    "insert into queue (n) select 0 from generate_series(1, 2000)",
];

fn check_tables(server: &Server, version: &str) {
    session(server, &TABLES);
    session(server, &["vacuum analyze"]);
    session(
        server,
        &[
            "create table stale (id int, k int) with (autovacuum_enabled = off)",
            "insert into stale select i, i % 7 from generate_series(1, 20000) i",
        ],
    );
    let mut connection = server.connect().expect("a connection");
    let failed =
        connection.execute("create unique index concurrently orders_bad on orders (customer)");
    assert!(failed.is_err(), "there are duplicates");
    let clients = Clients::none()
        .repeat(
            server,
            1,
            &["select id, at from orders where customer = 42"],
        )
        .repeat(server, 1, &["select k, count(*) from stale group by k"])
        .repeat(server, 1, &["update queue set n = n + 1"])
        .repeat(
            server,
            1,
            &["insert into log (a, b, words) values (1, 2, 'word')"],
        )
        .work(server, 1, |connection, number| {
            let _ = connection.execute(&format!("delete from parent where id = {}", number + 1));
        })
        .repeat(
            server,
            1,
            &[
                "set enable_seqscan = off",
                "select id from log where words @@ 'nothing'::tsquery",
                "select pg_sleep(0.05)",
            ],
        );
    // So many updates that more dead rows stay than the threshold.
    thread::sleep(Duration::from_secs(1));
    let found = profiled(server, "5s");
    clients.stop();
    let list = [
        ("missing-index", "table public.orders"),
        ("foreign-key-index", "table public.child"),
        ("unused-index", "index public.log_unused"),
        ("redundant-index", "index public.log_a"),
        ("invalid-index", "index public.orders_bad"),
        ("gin-pending-list", "index public.log_words"),
        ("stale-statistics", "table public.stale"),
        ("autovacuum-disabled", "table public.queue"),
    ];
    assert_found(&found, &expected(&list), version);
    let missing = found.iter().find(|it| it.id == "missing-index");
    let sql = missing.and_then(|it| it.fix_sql.clone());
    let index = "create index concurrently on public.orders (customer)";
    assert_eq!(sql.as_deref(), Some(index));
}

pub fn what_sessions_wait_for_together_is_named(version: &str) {
    let Some(server) = server(version, &[]) else {
        return;
    };
    check_waits(&server, version);
    server.stop().expect("the server stops");
}

fn check_waits(server: &Server, version: &str) {
    session(
        server,
        &[
            "create table hot (id int primary key, n int); insert into hot values (1, 0)",
            "create table pair (id int primary key, n int); insert into pair values (1, 0), (2, 0)",
            "create table wide (note text)",
            "insert into wide select repeat('x', 1000) from generate_series(1, 100000) i",
        ],
    );
    let slow = unread(server, "select note from wide");
    let clients = Clients::none()
        .repeat(
            server,
            6,
            &[
                "begin",
                "update hot set n = n + 1 where id = 1",
                "select pg_sleep(0.01)",
                "commit",
            ],
        )
        .repeat(
            server,
            4,
            &[
                "begin",
                "select pg_advisory_xact_lock(7)",
                "select pg_sleep(0.01)",
                "commit",
            ],
        )
        .work(server, 2, |connection, number| {
            let (one, two) = if number % 2 == 0 { (1, 2) } else { (2, 1) };
            for sql in [
                "begin",
                &format!("update pair set n = n + 1 where id = {one}"),
                "select pg_sleep(0.02)",
                &format!("update pair set n = n + 1 where id = {two}"),
                "rollback",
            ] {
                let _ = connection.execute(sql);
            }
        });
    let found = profiled(server, "4s");
    clients.stop();
    drop(slow);
    let list = [
        ("row-lock-queue", "table hot"),
        ("lock-contention", "wait event Lock:advisory"),
        ("deadlocks", "database postgres"),
        ("slow-client", "client unread, local"),
    ];
    assert_found(&found, &expected(&list), version);
}

/// A client that sends a query and reads nothing of its result.
fn unread(server: &Server, sql: &str) -> UnixStream {
    let socket = format!(".s.PGSQL.{}", server.port());
    let stream = UnixStream::connect(server.socket_dir().join(socket)).expect("the socket");
    let mut asker = server.connect().expect("a connection");
    let user = asker.value("select current_user").expect("a user");
    let login = Login {
        user: user.expect("not null").as_str().into(),
        database: "postgres".into(),
        ..Login::default()
    };
    let copy = stream.try_clone().expect("another handle");
    let mut exchange = Exchange::open(copy, &login).expect("a session");
    exchange
        .query("set application_name = unread")
        .expect("it is set");
    let mut message = vec![b'Q'];
    message.extend(u32::try_from(sql.len() + 5).expect("short").to_be_bytes());
    message.extend(sql.as_bytes());
    message.push(0);
    (&stream).write_all(&message).expect("it is sent");
    // Dropping the exchange would end the session.
    std::mem::forget(exchange);
    wait_until("the server waits for its client", || {
        let sql = "select count(*) from pg_stat_activity where wait_event = 'ClientWrite'";
        asker.value(sql).expect("a count").as_deref() == Some("1")
    });
    stream
}

pub fn what_the_server_suffers_from_is_named(version: &str) {
    let settings = [
        ("max_wal_size", "32MB"),
        ("min_wal_size", "32MB"),
        ("max_connections", "40"),
    ];
    let Some(server) = server(version, &settings) else {
        return;
    };
    check_checkpoints_and_slots(&server, version);
    check_connections(&server, version);
    check_held_back(&server, version);
    check_standby(&server, version);
    server.stop().expect("the server stops");
}

fn check_checkpoints_and_slots(server: &Server, version: &str) {
    session(
        server,
        &[
            "create table w (i int, note text)",
            "select pg_create_physical_replication_slot('gone', true)",
        ],
    );
    let insert = "insert into w select i, repeat('x', 200) from generate_series(1, 20000) i";
    let clients = Clients::none().repeat(server, 2, &[insert]);
    let found = profiled(server, "5s");
    clients.stop();
    session(
        server,
        &["select pg_drop_replication_slot('gone')", "truncate w"],
    );
    let list = [
        ("checkpoints-requested", "setting max_wal_size"),
        ("slot-wal", "replication slot gone"),
    ];
    assert_found(&found, &expected(&list), version);
}

fn check_connections(server: &Server, version: &str) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let mut connection = server.connect().expect("a connection");
                    let _ = connection.execute("select pg_sleep(0.02)");
                }
            });
        }
        let found = profiled(server, "3s");
        is_over.store(true, Ordering::Relaxed);
        let storms = found.iter().filter(|it| it.id == "connection-storm");
        assert_eq!(storms.count(), 1, "{version}: {found:#?}");
    });
    let many: Vec<_> = (0..34).map(|_| session(server, &["select 1"])).collect();
    let found = profiled(server, "1s");
    drop(many);
    assert_found(
        &found,
        &expected(&[("connections-exhausted", "server")]),
        version,
    );
}

fn check_held_back(server: &Server, version: &str) {
    session(
        server,
        &[
            "create table kept (i int, n int) with (autovacuum_enabled = off)",
            "insert into kept select i, 0 from generate_series(1, 5000) i",
            "create table slow (i int, n int) with (autovacuum_vacuum_threshold = 1000000)",
            "insert into slow select i, 0 from generate_series(1, 50000) i",
            "analyze kept",
            "analyze slow",
        ],
    );
    let holder = session(
        server,
        &[
            "begin isolation level repeatable read",
            "select count(*) from kept",
        ],
    );
    session(
        server,
        &[
            "update kept set n = 1",
            "update kept set n = 2",
            "vacuum kept",
        ],
    );
    let found = profiled(server, "2s");
    let name = format!("session {}", pid(&holder));
    assert_found(&found, &[("horizon-session", name)], version);
    drop(holder);
    session(
        server,
        &[
            "update slow set n = 1; update slow set n = 2; update slow set n = 3",
            "alter table slow set (autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1)",
            "alter table slow reset (autovacuum_vacuum_threshold)",
            "alter system set autovacuum_naptime = '1s'",
            "select pg_reload_conf()",
        ],
    );
    let mut asker = server.connect().expect("a connection");
    wait_until("autovacuum vacuums the table", || {
        let running = "select count(*) from pg_stat_progress_vacuum where relid = 'slow'::regclass";
        asker.value(running).expect("a count").as_deref() == Some("1")
    });
    let clients = Clients::none().repeat(
        server,
        1,
        &[
            "update slow set n = n + 1 where i = 7",
            "select pg_sleep(0.01)",
        ],
    );
    let found = profiled(server, "3s");
    clients.stop();
    // This cancels the vacuum.
    session(
        server,
        &["alter system reset autovacuum_naptime", "drop table slow"],
    );
    assert_found(
        &found,
        &expected(&[("dead-rows", "table public.slow")]),
        version,
    );
}

fn check_standby(server: &Server, version: &str) {
    session(
        server,
        &[
            "alter system set synchronous_standby_names = 'missing'",
            "select pg_reload_conf()",
        ],
    );
    let clients = Clients::none().repeat(server, 2, &["insert into w values (1, 'x')"]);
    let found = profiled(server, "2s");
    session(
        server,
        &[
            "alter system reset synchronous_standby_names",
            "select pg_reload_conf()",
        ],
    );
    clients.stop();
    let list = [("synchronous-standby", "setting synchronous_standby_names")];
    assert_found(&found, &expected(&list), version);
}

pub fn wraparound_ahead_and_what_prevents_freezing_are_named(version: &str) {
    let settings = [("autovacuum_freeze_max_age", "100000")];
    let Some(server) = server(version, &settings) else {
        return;
    };
    session(
        &server,
        &[
            "create table x (i int)",
            "begin",
            "insert into x values (0)",
            "prepare transaction 'lost'",
            "do $$ begin for i in 1 .. 150000 loop begin insert into x values (i); \
             exception when others then null; end; end loop; end $$",
        ],
    );
    let found = profiled(&server, "1s");
    let list = [
        ("wraparound", "database postgres"),
        ("prepared-transaction", "prepared transaction lost"),
    ];
    assert_found(&found, &expected(&list), version);
    session(&server, &["rollback prepared 'lost'"]);
    server.stop().expect("the server stops");
}

pub fn healthy_loads_have_no_findings_for_operators(version: &str) {
    let Some(server) = server(version, &[]) else {
        return;
    };
    check_healthy(&server, version);
    server.stop().expect("the server stops");
}

const TPC_B: [&str; 8] = [
    "create table branches (bid int primary key, bbalance int)",
    "create table tellers (tid int primary key, bid int, tbalance int)",
    "create table accounts (aid int primary key, bid int, abalance int)",
    "create table history (tid int, bid int, aid int, delta int, at timestamptz)",
    "insert into branches select i, 0 from generate_series(1, 100) i",
    "insert into tellers select i, i % 100, 0 from generate_series(1, 1000) i",
    "insert into accounts select i, i % 100, 0 from generate_series(1, 100000) i",
    "create table events (id serial primary key, note text)",
];

fn check_healthy(server: &Server, version: &str) {
    session(server, &TPC_B);
    session(server, &["vacuum analyze"]);
    let none = |load: &str, clients: Clients| {
        let found = profiled(server, "3s");
        clients.stop();
        assert_eq!(found, [], "{version}: {load}");
    };
    let tpc_b = Clients::none().work(server, 4, |connection, number| {
        let random = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        let (aid, bid) = (1 + random % 100_000, 1 + random % 100);
        let tid = 1 + random % 1000;
        for sql in [
            "begin",
            &format!("update accounts set abalance = abalance + 1 where aid = {aid}"),
            &format!("select abalance from accounts where aid = {aid}"),
            &format!("update tellers set tbalance = tbalance + 1 where tid = {tid}"),
            &format!("update branches set bbalance = bbalance + 1 where bid = {bid}"),
            &format!("insert into history values ({tid}, {bid}, {aid}, 1, now())"),
            "commit",
        ] {
            connection.execute(sql).expect("it succeeds");
        }
    });
    none("TPC-B", tpc_b);
    let lookups = Clients::none().work(server, 4, |connection, number| {
        let sql = format!("execute one ({})", 1 + number * 7919 % 100_000);
        if connection.execute(&sql).is_err() {
            let sql = "prepare one (int) as select abalance from accounts where aid = $1";
            connection.execute(sql).expect("it is prepared");
        }
    });
    none("select-only", lookups);
    let inserts = ["insert into events (note) values ('a note')"];
    none("inserts", Clients::none().repeat(server, 4, &inserts));
    let idle: Vec<_> = (0..60).map(|_| session(server, &["select 1"])).collect();
    none("idle connections", Clients::none());
    drop(idle);
    let report = Clients::none().work(server, 1, |connection, number| {
        thread::sleep(Duration::from_millis(1500));
        if number == 0 {
            let sql = "select bid, sum(abalance) from accounts, generate_series(1, 20) \
                       where aid > 10 group by bid order by bid";
            connection.execute(sql).expect("it succeeds");
        }
    });
    none("a report", report);
}
