//! Sessions read from memory match `pg_stat_activity`, on old and new versions.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pgassay_profile::{
    KnownWaits, LiveServer, SessionQuery, SessionReader, SessionReading, SessionState,
    SessionSweep, SessionWait, SessionsError, WaitError, WaitReader,
};
use pgassay_server::{Server, ServerConfig};
use pgassay_test_support::{os::is_root, servers, skip, wait_until};
use pgassay_wire::Exchange;
use pgassay_wire::conninfo::{EmptyEnvironment, Request};

type Connection = Exchange<UnixStream>;

const VERSIONS: [&str; 6] = ["9.6", "10", "12", "14", "15", "18"];

fn connect(server: &Server, words: &str) -> Connection {
    let conninfo = format!("{} {words}", server.conninfo());
    let request = Request::new().conninfo(&conninfo).unwrap();
    let target = request.resolve(&EmptyEnvironment).unwrap();
    let host = &target.hosts[0];
    let stream = UnixStream::connect(host.address.socket_path().unwrap()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_mins(1)))
        .unwrap();
    let login = target.login(host, &pgassay_wire::SaltCache::default());
    Exchange::open(stream, &login).unwrap()
}

fn wait_reader(server: &Server, live: &LiveServer, version: &str) -> WaitReader {
    match WaitReader::open(live) {
        Err(WaitError::NeedsConnection) => {
            // See `LockTagType` and `pgstat.h`.
            let known = KnownWaits {
                advisory: if version == "13" {
                    0x0300_000a
                } else {
                    0x0300_0009
                },
                idle: if version == "9.6" { 0 } else { 0x0600_0000 },
            };
            let (mut holder, waiter) = (connect(server, ""), connect(server, ""));
            WaitReader::learn(live, known, &mut holder, waiter).unwrap()
        }
        other => other.unwrap(),
    }
}

fn learn(server: &Server, version: &str) -> Result<SessionReader, SessionsError> {
    let live = LiveServer::of_postmaster(server.postmaster_pid().cast_unsigned());
    let waits = wait_reader(server, &live, version);
    let (mut subject, mut observer) = (connect(server, ""), connect(server, ""));
    SessionReader::learn(&live, waits, &mut subject, &mut observer)
}

fn start(version: &str) -> Option<Server> {
    if !is_root() {
        skip("sessions in memory", "reading memory needs root");
        return None;
    }
    let mut config = servers::config();
    if ["14", "15", "18"].contains(&version) {
        let on = ("compute_query_id".to_owned(), "on".to_owned());
        config.settings.extend([on]);
    }
    servers::start_with(version, &config)
}

/// What memory and `pg_stat_activity` must agree on.
fn comparable(reading: &SessionReading) -> String {
    let identity = &reading.identity;
    format!(
        "{identity:?} {:?} {:?} {} {} {} {} {}",
        reading.state,
        reading.transaction_started_us,
        reading.activity_started_us,
        reading.state_changed_us,
        reading.query_id,
        String::from_utf8_lossy(&reading.text),
        reading.is_cut,
    )
}

fn with_user(sweep: &SessionSweep) -> BTreeMap<u32, String> {
    let of_clients = sweep.sessions.iter().filter(|it| it.identity.database != 0);
    of_clients
        .map(|it| (it.identity.pid, comparable(it)))
        .collect()
}

fn background(sweep: &SessionSweep) -> BTreeSet<(u32, String)> {
    let others = sweep.sessions.iter().filter(|it| it.identity.user == 0);
    // The title of a background worker has more words than its type.
    let kind = |it: &SessionReading| (it.identity.pid, it.identity.backend_type.clone());
    others.map(kind).collect()
}

/// Sessions in all states, of several users and databases. Returns the connections that keep them.
fn sessions(server: &Server) -> (Vec<Connection>, Vec<thread::JoinHandle<()>>) {
    let mut setup = connect(server, "");
    for sql in [
        "create role \"ann \"\" O'Neill\" login superuser password 'x'",
        "create database \"shöp\"",
        "create table t (i int)",
        "insert into t values (1)",
    ] {
        setup.query(sql).unwrap();
    }
    let mut kept = vec![setup];
    let name = "application_name='ä\"<b>'";
    let mut holder = connect(server, name);
    holder.query("begin").unwrap();
    holder.query("update t set i = 2 /* ä */").unwrap();
    kept.push(holder);
    let mut other = connect(server, "user='ann \" O\\'Neill' dbname='shöp' password=x");
    other.query("begin").unwrap();
    other.query("select no_such_column").unwrap_err();
    kept.push(other);
    kept.push(connect(server, "application_name=idle"));
    let long = format!("select pg_sleep(600), '{}'", "x".repeat(3000));
    let waiting = ["update t set i = 3".to_owned(), long].map(|sql| {
        let mut connection = connect(server, "");
        // Ends with the server.
        thread::spawn(move || drop(connection.query(&sql)))
    });
    (kept, waiting.into())
}

fn memory_is_as_pg_stat_activity(version: &str) {
    let Some(server) = start(version) else {
        return;
    };
    let (kept, waiting) = sessions(&server);
    let mut reader = learn(&server, version).unwrap();
    assert!(reader.slots() >= 100, "max_connections: {}", reader.slots());
    let major: f64 = version.parse().unwrap();
    assert_eq!(reader.has_query_ids(), major >= 14.0);
    let mut query = SessionQuery::open(connect(&server, "")).unwrap();
    let own_pid = query.own_pid();
    let mut seen = (SessionSweep::default(), SessionSweep::default());
    wait_until("memory and the view agree", || {
        seen = (reader.sweep().unwrap(), query.sweep().unwrap());
        let expected = with_user(&seen.1);
        let is_same = with_user(&seen.0) == expected && expected.len() == 4;
        is_same && (major < 10.0 || background(&seen.0) == background(&seen.1))
    });
    let states = |state| seen.0.sessions.iter().filter(move |it| it.state == state);
    assert_eq!(states(SessionState::Active).count(), 2);
    assert_eq!(states(SessionState::IdleInTransaction).count(), 1);
    assert_eq!(states(SessionState::IdleInAbortedTransaction).count(), 1);
    assert!(seen.0.idle.len() >= 3, "{:?}", seen.0.idle);
    assert!(seen.0.sessions.iter().any(|it| it.is_cut));
    assert!(seen.0.idle.contains(&own_pid));
    let is_lock = |wait: &SessionWait| matches!(wait, SessionWait::Number(n) if n >> 24 == 3);
    let waiters = states(SessionState::Active).filter(|it| is_lock(&it.wait));
    assert_eq!(waiters.count(), 1);
    drop(kept);
    server.stop().unwrap();
    for thread in waiting {
        thread.join().unwrap();
    }
}

#[test]
fn memory_shows_what_pg_stat_activity_shows() {
    thread::scope(|scope| {
        for version in VERSIONS {
            scope.spawn(move || memory_is_as_pg_stat_activity(version));
        }
    });
}

/// Among hundreds of idle sessions, those that work are seen as in `pg_stat_activity`, and one that runs
/// short statements is seen as often as it runs them.
#[test]
fn a_few_active_sessions_among_hundreds_of_idle_ones_are_seen() {
    if !is_root() {
        return skip("sessions in memory", "reading memory needs root");
    }
    let mut config = servers::config();
    let many = ("max_connections".to_owned(), "420".to_owned());
    config.settings.extend([many]);
    let Some(server) = servers::start_with("15", &config) else {
        return;
    };
    let (kept, waiting) = sessions(&server);
    let mut reader = learn(&server, "15").unwrap();
    let idle: Vec<Connection> = (0..300).map(|_| connect(&server, "")).collect();
    let mut query = SessionQuery::open(connect(&server, "")).unwrap();
    let mut seen = (SessionSweep::default(), SessionSweep::default());
    wait_until("memory and the view agree", || {
        seen = (reader.sweep().unwrap(), query.sweep().unwrap());
        with_user(&seen.0) == with_user(&seen.1) && with_user(&seen.1).len() == 4
    });
    let pids: BTreeSet<u32> = seen.0.idle.iter().copied().collect();
    assert!(pids.len() == seen.0.idle.len() && pids.len() >= 300);

    let mut busy = connect(&server, "application_name=busy");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                busy.query("select 'short'").unwrap();
            }
        });
        let mut active = 0;
        wait_until("it is seen working", || {
            for reading in reader.sweep().unwrap().sessions {
                if reading.identity.application == "busy" && reading.state == SessionState::Active {
                    assert_eq!(String::from_utf8_lossy(&reading.text), "select 'short'");
                    active += 1;
                }
            }
            active >= 10
        });
        is_over.store(true, Ordering::Relaxed);
    });
    drop((kept, idle));
    server.stop().unwrap();
    for thread in waiting {
        thread.join().unwrap();
    }
}

/// Two statements of different lengths, each with its own transaction state and query ID: a torn
/// reading would mix them.
#[test]
fn readings_of_sessions_that_change_all_the_time_are_consistent() {
    let Some(server) = start("15") else {
        return;
    };
    let mut reader = learn(&server, "15").unwrap();
    let is_over = AtomicBool::new(false);
    let texts = [
        "select 'b'",
        "select 1 /* 1111111111111111111111111111 */ + 1",
    ];
    let mut by_text: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut connection = connect(&server, "application_name=busy");
                while !is_over.load(Ordering::Relaxed) {
                    for text in texts {
                        connection.query(text).unwrap();
                    }
                }
            });
        }
        let mut seen = 0;
        wait_until("enough readings", || {
            for _ in 0..50 {
                for reading in reader.sweep().unwrap().sessions {
                    // It has no state while it starts.
                    let is_busy = reading.identity.application == "busy";
                    if is_busy && reading.state == SessionState::Active {
                        let text = String::from_utf8(reading.text).unwrap();
                        by_text.entry(text).or_default().insert(reading.query_id);
                        seen += 1;
                        assert!(reading.activity_started_us <= reading.state_changed_us);
                    }
                }
            }
            seen > 2000
        });
        is_over.store(true, Ordering::Relaxed);
    });
    let known: Vec<&str> = by_text.keys().map(String::as_str).collect();
    assert_eq!(known, texts, "{by_text:?}");
    // An ID, and 0 while it is not known yet.
    let ids: Vec<Vec<i64>> = by_text
        .into_values()
        .map(|ids| ids.into_iter().filter(|&id| id != 0).collect())
        .collect();
    assert!(
        ids[0].len() == 1 && ids[1].len() == 1 && ids[0] != ids[1],
        "{ids:?}"
    );
    server.stop().unwrap();
}

#[test]
fn sessions_come_and_go() {
    let Some(server) = start("12") else {
        return;
    };
    let mut reader = learn(&server, "12").unwrap();
    for round in 0..20 {
        let mut connection = connect(&server, &format!("application_name=round{round}"));
        connection.query("begin").unwrap();
        let pid = connection.backend().unwrap().pid.cast_unsigned();
        wait_until("it is in a transaction", || {
            let sweep = reader.sweep().unwrap();
            sweep.sessions.iter().any(|it| {
                it.identity.pid == pid && it.identity.application == format!("round{round}")
            })
        });
        drop(connection);
        wait_until("it has ended", || {
            let sweep = reader.sweep().unwrap();
            sweep.sessions.iter().all(|it| it.identity.pid != pid)
        });
    }
    server.stop().unwrap();
    assert!(reader.sweep().is_err(), "the server has stopped");
}

/// Forwards the first message of a client to a server, and the others once it may.
fn forward_slowly(client: TcpStream, server: TcpStream, may_continue: &AtomicBool) {
    let (mut to_client, mut from_server) =
        (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::spawn(move || std::io::copy(&mut from_server, &mut to_client));
    let (mut client, mut server) = (client, server);
    let mut first = [0; 1024];
    let length = client.read(&mut first).unwrap();
    server.write_all(&first[..length]).unwrap();
    while !may_continue.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(1));
    }
    _ = std::io::copy(&mut client, &mut server);
}

/// Sets a flag also if a test fails, so that the thread that waits for it ends.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Regression: since 18, a session that was seen while it was authenticated had no user and no database until its end.
#[test]
fn a_session_that_is_seen_during_authentication_has_its_user_later() {
    if !is_root() {
        return skip("sessions in memory", "reading memory needs root");
    }
    let config = ServerConfig {
        tcp: true,
        ..servers::config()
    };
    for version in ["17", "18"] {
        let Some(server) = servers::start_with(version, &config) else {
            continue;
        };
        let mut reader = learn(&server, version).unwrap();
        let mut seen = |is_wanted: &dyn Fn(&SessionReading) -> bool| {
            let sessions = reader.sweep().unwrap().sessions;
            sessions.into_iter().find(|it| is_wanted(it))
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let upstream = TcpStream::connect(server.tcp_address().unwrap()).unwrap();
        let (user, password) = (server.superuser(), server.password().reveal());
        let request = Request::new()
            .conninfo(&format!(
                "host=127.0.0.1 port={port} user={user} password={password} dbname=postgres sslmode=disable"
            ))
            .unwrap();
        let target = request.resolve(&EmptyEnvironment).unwrap();
        let may_continue = AtomicBool::new(version == "17");
        thread::scope(|scope| {
            scope.spawn(|| forward_slowly(listener.accept().unwrap().0, upstream, &may_continue));
            let _continues = SetOnDrop(&may_continue);
            let connecting = scope.spawn(|| {
                let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                let login = target.login(&target.hosts[0], &pgassay_wire::SaltCache::default());
                Exchange::open(stream, &login).unwrap()
            });
            let is_starting = |it: &SessionReading| it.identity.client == "127.0.0.1";
            if version == "18" {
                wait_until("it is seen", || seen(&is_starting).is_some());
                may_continue.store(true, Ordering::Relaxed);
            }
            let mut connection = connecting.join().unwrap();
            connection.query("begin").unwrap();
            let pid = connection.backend().unwrap().pid.cast_unsigned();
            let mut identity = None;
            wait_until("it is in a transaction", || {
                identity = seen(&|it| it.identity.pid == pid && it.state != SessionState::None);
                identity.is_some()
            });
            let identity = identity.unwrap().identity;
            assert!(identity.user != 0 && identity.database != 0, "{identity:?}");
            drop(connection);
        });
        server.stop().unwrap();
    }
}

#[test]
fn without_activity_tracking_nothing_is_learned() {
    if !is_root() {
        return skip("sessions in memory", "reading memory needs root");
    }
    let mut config = servers::config();
    let off = ("track_activities".to_owned(), "off".to_owned());
    config.settings.extend([off]);
    let Some(server) = servers::start_with("18", &config) else {
        return;
    };
    let refused = learn(&server, "18").unwrap_err();
    assert!(matches!(refused, SessionsError::TrackingOff), "{refused}");
    server.stop().unwrap();
}
