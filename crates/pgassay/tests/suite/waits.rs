//! Wait events read from memory match `pg_stat_activity`, on old and new versions.
//!
//! Each wait is provoked: one connection holds what another needs. When the server reports that the
//! other waits, the event read from memory must be the same, and so must the one sampled from
//! `pg_stat_activity`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use pgassay_knowledge::{wait_event, wait_number};
use pgassay_profile::{
    ActivitySampler, KnownWaits, LiveServer, NamedWait, WaitError, WaitLog, WaitReader,
};
use pgassay_server::Server;
use pgassay_test_support::{os, servers, skip, wait_until};
use pgassay_wire::Exchange;
use pgassay_wire::conninfo::{EmptyEnvironment, Request};

type Connection = Exchange<UnixStream>;

/// The part of a wait event's number that is its class.
const CLASS: u32 = 0xff00_0000;

fn connect(server: &Server) -> Connection {
    connect_as(server, "")
}

/// Connects with additional connection parameters.
pub fn connect_as(server: &Server, words: &str) -> Connection {
    let conninfo = server.conninfo() + words;
    let request = Request::new().conninfo(&conninfo).expect("proper");
    let target = request.resolve(&EmptyEnvironment).expect("whole");
    let host = &target.hosts[0];
    let path = host.address.socket_path().expect("a socket");
    let stream = UnixStream::connect(path).expect("the server listens");
    let limit = Some(Duration::from_secs(30));
    stream.set_read_timeout(limit).expect("a limit");
    Exchange::open(
        stream,
        &target.login(host, &pgassay_wire::SaltCache::default()),
    )
    .expect("connect")
}

fn pid(connection: &Connection) -> u32 {
    let key = connection.backend().expect("backend PID");
    u32::try_from(key.pid).expect("positive")
}

fn execute(connection: &mut Connection, sql: &str) {
    connection
        .query(sql)
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

fn reader(server: &Server, live: &LiveServer, major: &str) -> WaitReader {
    match WaitReader::open(live) {
        Err(WaitError::NeedsConnection) => {
            let known = KnownWaits {
                advisory: wait_number(major, "Lock", "advisory").expect("known in all versions"),
                idle: wait_number(major, "Client", "ClientRead").unwrap_or(0),
            };
            let (mut holder, waiter) = (connect(server), connect(server));
            WaitReader::learn(live, known, &mut holder, waiter).expect("the location is found")
        }
        other => other.expect("the location is found"),
    }
}

/// A wait that a statement causes after others were executed on other connections.
struct Provocation {
    /// The statements that hold resources, each on its own connection.
    holds: &'static [&'static str],
    /// The statement that waits; empty for an idle connection.
    waits: &'static str,
    event: (&'static str, &'static str),
}

const fn provocation(
    holds: &'static [&'static str],
    waits: &'static str,
    event: (&'static str, &'static str),
) -> Provocation {
    Provocation {
        holds,
        waits,
        event,
    }
}

const UPDATE: &str = "update t set i = i where i = 1";
const IN_TRANSACTION: &str = "begin; update t set i = i where i = 1";

/// Waits that all versions report.
const EVERYWHERE: [Provocation; 6] = [
    provocation(
        &["select pg_advisory_lock(7)"],
        "select pg_advisory_lock(7)",
        ("Lock", "advisory"),
    ),
    provocation(
        &["begin; lock table t"],
        "select * from t",
        ("Lock", "relation"),
    ),
    provocation(&[IN_TRANSACTION], UPDATE, ("Lock", "transactionid")),
    // The first waiter for a row lock holds a tuple lock, for which the next one waits.
    provocation(&[IN_TRANSACTION, ""], UPDATE, ("Lock", "tuple")),
    provocation(
        &["begin isolation level repeatable read; select * from t"],
        "create index concurrently on t (i)",
        ("Lock", "virtualxid"),
    ),
    // A cursor keeps its page pinned, which blocks freezing.
    provocation(
        &["begin; declare c cursor for select * from t; fetch 1 from c"],
        "vacuum freeze t",
        ("BufferPin", "BufferPin"),
    ),
];

/// Longer than the test, however busy the machine is; the test ends it.
const SLEEP: &str = "select pg_sleep(600)";

/// Waits that only version 10 and later report.
const SINCE_10: [Provocation; 2] = [
    provocation(&[], "", ("Client", "ClientRead")),
    provocation(&[], SLEEP, ("Timeout", "PgSleep")),
];

/// The wait event of a process in `pg_stat_activity`, queried until it is this one or time is up.
fn shown(asker: &mut Connection, pid: u32, wanted: (&str, &str)) -> (String, String) {
    let sql = format!(
        "select coalesce(wait_event_type, ''), coalesce(wait_event, '') from pg_stat_activity \
         where pid = {pid}"
    );
    let until = Instant::now() + Duration::from_mins(1);
    loop {
        let answers = asker.query(&sql).expect("the query succeeds");
        let row = answers[0].rows.first();
        let row =
            row.unwrap_or_else(|| panic!("the process that should wait for {wanted:?} ended"));
        let text = |at: usize| row[at].clone().unwrap_or_default();
        let found = (text(0), text(1));
        if (found.0.as_str(), found.1.as_str()) == wanted || Instant::now() > until {
            return found;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a session is in this state.
fn settled(asker: &mut Connection, pid: u32, state: &str) {
    let sql = format!("select state from pg_stat_activity where pid = {pid}");
    let until = Instant::now() + Duration::from_mins(1);
    while asker.value(&sql).expect("the query succeeds").as_deref() != Some(state) {
        assert!(Instant::now() < until, "the state is not reached");
        thread::sleep(Duration::from_millis(5));
    }
}

fn provoked(server: &Server, reader: &WaitReader, major: &str, it: &Provocation) {
    let mut asker = connect(server);
    let mut others = Vec::new();
    let mut waiting = Vec::new();
    let mut start = |sql: &'static str| {
        let mut connection = connect(server);
        let pid = pid(&connection);
        if sql.is_empty() {
            others.push(connection);
        } else {
            // It may fail when the test ends the wait.
            waiting.push(thread::spawn(move || drop(connection.query(sql))));
        }
        pid
    };
    let mut holders = Vec::new();
    for sql in it.holds {
        if sql.is_empty() {
            let first = start(it.waits);
            shown(&mut asker, first, ("Lock", "transactionid"));
        } else {
            let mut holder = connect(server);
            execute(&mut holder, sql);
            holders.push(holder);
        }
    }
    let waiter = start(it.waits);
    let (kind, name) = it.event;
    let wanted = (kind.to_owned(), name.to_owned());
    // A waiting process wakes up now and then, for example to check for a deadlock, so the sources have several
    // chances to agree.
    let mut last = None;
    for _ in 0..50 {
        let says = shown(&mut asker, waiter, it.event);
        let read = reader.read(waiter).expect("memory is readable");
        let in_memory = wait_event(major, read).map(|it| (it.kind.to_owned(), it.name.to_owned()));
        let is_same = says == wanted && in_memory.as_ref() == Some(&wanted);
        let sampled = is_same.then(|| asked(server, waiter)).flatten();
        if sampled == Some(wait(kind, name)) {
            last = None;
            break;
        }
        last = Some(format!(
            "provoked {says:?}, read {read:#010x} {in_memory:?}, asked {sampled:?}"
        ));
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(last, None, "{major}: {wanted:?}");
    // Disconnecting releases what the holders hold and ends all other waits.
    drop(holders);
    if it.waits == SLEEP {
        execute(
            &mut asker,
            &format!("select pg_terminate_backend({waiter})"),
        );
    }
    for thread in waiting {
        thread.join().expect("the statement ends");
    }
}

fn wait(kind: &str, name: &str) -> NamedWait {
    let (kind, name) = (kind.to_owned(), name.to_owned());
    NamedWait { kind, name }
}

/// The wait event of a process as sampled from `pg_stat_activity`; `None` if it was not blocked.
fn asked(server: &Server, pid: u32) -> Option<NamedWait> {
    let mut activity =
        ActivitySampler::open(connect(server), true).expect("pg_stat_activity is readable");
    let mut log = WaitLog::default();
    log.ask(&mut activity, &[pid]).expect("the query succeeds");
    assert_eq!(log.unreadable, 0, "{log:?}");
    let (wait, samples) = log.blocked.pop_first()?;
    assert_eq!((samples, log.blocked.len()), (1, 0), "{log:?}");
    Some(wait)
}

/// Both sources agree for all processes that report wait events, including background processes.
fn all_agree(server: &Server, reader: &WaitReader, major: &str) -> usize {
    let mut asker = connect(server);
    // A process may continue between the two samples, so each has several chances to agree.
    let mut last = Vec::new();
    for _ in 0..50 {
        let sql = "select pid, wait_event_type, wait_event from pg_stat_activity \
                   where wait_event is not null and pid <> pg_backend_pid()";
        let rows = asker.query(sql).expect("the query succeeds").remove(0).rows;
        last = rows
            .into_iter()
            .map(|row| {
                let pid = row[0]
                    .as_deref()
                    .and_then(|it| it.parse().ok())
                    .expect("a pid");
                let says = (
                    row[1].clone().unwrap_or_default(),
                    row[2].clone().unwrap_or_default(),
                );
                let read = reader.read(pid).ok().and_then(|it| wait_event(major, it));
                let read = read.map(|it| (it.kind.to_owned(), it.name.to_owned()));
                (says, read)
            })
            .collect();
        if last.iter().all(|(says, read)| read.as_ref() == Some(says)) {
            return last.len();
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{major}: {last:?}");
}

fn memory_says_what_the_server_says(major: &str) {
    let Some(server) = servers::start(major) else {
        return;
    };
    let postmaster = u32::try_from(server.postmaster_pid()).expect("positive");
    let live = LiveServer::of_process(postmaster).expect("the process runs");
    assert_eq!(live.major.as_deref(), Some(major));
    let reader = match WaitReader::open(&live) {
        Err(WaitError::NotPermitted(refusal)) => {
            skip("wait events", &refusal.to_string());
            return;
        }
        _ => reader(&server, &live, major),
    };
    let mut connection = connect(&server);
    execute(&mut connection, "create table t as select 1 as i");
    for it in &EVERYWHERE {
        provoked(&server, &reader, major, it);
    }
    // 9.6 has no wait event for that, but reports the session as idle.
    let idle = connect(&server);
    settled(&mut connection, pid(&idle), "idle");
    assert_eq!(
        asked(&server, pid(&idle)),
        Some(wait("Client", "ClientRead")),
        "{major}"
    );
    if major != "9.6" {
        for it in &SINCE_10 {
            provoked(&server, &reader, major, it);
        }
        let compared = all_agree(&server, &reader, major);
        assert!(compared >= 4, "{major}: only {compared} processes wait");
    }
    server.stop().expect("the server stops");
}

/// Sessions that take values from one sequence wait for its page.
const SEQUENCE: &str = "select count(nextval('s')) from generate_series(1, 5000)";
/// Samples that must contain a lightweight lock.
const LOOKS: u64 = 20;
/// A stopped session may hold a lock that the query for the wait events needs.
const ANSWER: Duration = Duration::from_secs(2);

/// Sessions that do not run, so that both sources see the same wait.
struct Stopped<'a>(&'a [u32]);

impl<'a> Stopped<'a> {
    fn stop(pids: &'a [u32]) -> Self {
        let stopped = Self(pids);
        stopped.signal(libc::SIGSTOP);
        for pid in pids {
            let status = format!("/proc/{pid}/stat");
            wait_until("the session is stopped", || {
                let text = std::fs::read_to_string(&status).expect("the session exists");
                text.rsplit(") ")
                    .next()
                    .is_some_and(|it| it.starts_with('T'))
            });
        }
        stopped
    }

    fn signal(&self, signal: libc::c_int) {
        for pid in self.0 {
            os::kill(i32::try_from(*pid).expect("a PID"), signal);
        }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.signal(libc::SIGCONT);
    }
}

/// The wait events of these sessions in `pg_stat_activity`, which are stopped; `None` if one of them holds a lock that
/// the query needs.
fn reported(asker: &mut Connection, stopped: Stopped<'_>) -> Option<BTreeMap<u32, String>> {
    let pids: Vec<String> = stopped.0.iter().map(ToString::to_string).collect();
    let sql = format!(
        "select pid, wait_event from pg_stat_activity \
         where wait_event is not null and pid in ({})",
        pids.join(", ")
    );
    let (answered, answer) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let rows = asker
                .query(&sql)
                .expect("the query succeeds")
                .remove(0)
                .rows;
            // Too late if the sessions had to go on.
            let _ = answered.send(rows);
        });
        let rows = answer.recv_timeout(ANSWER);
        drop(stopped);
        let text = |it: &Option<String>| it.clone().expect("not null");
        let pair =
            |row: Vec<Option<String>>| (text(&row[0]).parse().expect("a PID"), text(&row[1]));
        Some(rows.ok()?.into_iter().map(pair).collect())
    })
}

/// Lightweight locks are short, so the sessions are stopped while both sources read them. The numbers change when a
/// release adds a lock, even a minor release: those of November 2020 added two.
fn the_lightweight_lock_is_the_one_that_the_server_names(major: &str) {
    let Some(server) = servers::start(major) else {
        return;
    };
    let postmaster = u32::try_from(server.postmaster_pid()).expect("positive");
    let live = LiveServer::of_process(postmaster).expect("the process runs");
    if let Err(WaitError::NotPermitted(refusal)) = WaitReader::open(&live) {
        skip("wait events", &refusal.to_string());
        return;
    }
    let reader = reader(&server, &live, major);
    let mut asker = connect(&server);
    execute(&mut asker, "create sequence s");
    let sessions: Vec<Connection> = (0..6).map(|_| connect(&server)).collect();
    let pids: Vec<u32> = sessions.iter().map(pid).collect();
    let over = AtomicBool::new(false);
    // If the test fails meanwhile, nothing sets `over`.
    let until = Instant::now() + Duration::from_mins(3);
    let locks = thread::scope(|scope| {
        for mut session in sessions {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) && Instant::now() < until {
                    execute(&mut session, SEQUENCE);
                }
            });
        }
        let locks = locks_in_both(&reader, &mut asker, &pids, major);
        over.store(true, Ordering::Relaxed);
        locks
    });
    assert!(locks.values().sum::<u64>() >= LOOKS, "{major}: {locks:?}");
    for (in_memory, said) in locks.keys() {
        assert_eq!(in_memory, said, "{major}: {locks:?}");
    }
    server.stop().expect("the server stops");
}

/// How often stopped sessions waited for which lightweight lock: its name in memory and in `pg_stat_activity`.
fn locks_in_both(
    reader: &WaitReader,
    asker: &mut Connection,
    pids: &[u32],
    major: &str,
) -> BTreeMap<(String, String), u64> {
    let mut locks = BTreeMap::new();
    let until = Instant::now() + Duration::from_mins(1);
    while locks.values().sum::<u64>() < LOOKS && Instant::now() < until {
        thread::sleep(Duration::from_millis(2));
        let stopped = Stopped::stop(pids);
        let read = pids.iter().filter_map(|pid| {
            let wait = wait_event(major, reader.read(*pid).ok()?)?;
            let is_lock = wait.kind.starts_with("LWLock");
            is_lock.then(|| (*pid, wait.name.to_owned()))
        });
        let read: Vec<(u32, String)> = read.collect();
        let Some(says) = reported(asker, stopped) else {
            continue;
        };
        for (pid, name) in read {
            let said = says.get(&pid).cloned().unwrap_or_default();
            *locks.entry((name, said)).or_default() += 1;
        }
    }
    locks
}

#[test]
fn memory_says_what_the_server_says_on_9_6() {
    memory_says_what_the_server_says("9.6");
}

#[test]
fn memory_says_what_the_server_says_on_10() {
    memory_says_what_the_server_says("10");
}

#[test]
fn memory_says_what_the_server_says_on_13() {
    memory_says_what_the_server_says("13");
}

#[test]
fn memory_says_what_the_server_says_on_14() {
    memory_says_what_the_server_says("14");
}

#[test]
fn memory_says_what_the_server_says_on_18() {
    memory_says_what_the_server_says("18");
}

/// The server lists its wait events since 17. Those of most classes are in the order of their numbers.
#[test]
fn the_wait_events_are_those_that_the_server_lists() {
    for major in ["17", "18"] {
        let Some(server) = servers::start(major) else {
            return;
        };
        let sql = "select type, name from pg_wait_events \
                   where type not in ('Extension', 'InjectionPoint')";
        let results = connect(&server).query(sql).expect("the view");
        let mut next: BTreeMap<String, u32> = BTreeMap::new();
        for row in &results[0].rows {
            let [Some(kind), Some(name)] = &row[..] else {
                panic!("{row:?}")
            };
            let number = wait_number(major, kind, name);
            let number = number.unwrap_or_else(|| panic!("{major}: {kind} {name} is unknown"));
            let expected = next.get(kind).copied().unwrap_or(number & CLASS);
            if !kind.ends_with("Lock") {
                assert_eq!(number, expected, "{major}: {kind} {name}");
            }
            next.insert(kind.clone(), number + 1);
        }
        for (kind, end) in next.iter().filter(|(kind, _)| !kind.ends_with("Lock")) {
            assert_eq!(wait_event(major, *end), None, "{major}: {kind} has more");
        }
        server.stop().expect("the server stops");
    }
}

/// The last bytes of a text; wait events have longer names.
fn end(text: &[u8]) -> &[u8] {
    &text[text.len().saturating_sub(3)..]
}

/// A CPU-bound session has no wait event; one that has ended or is hidden cannot be read.
#[test]
fn running_and_hidden_sessions_are_not_blocked() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let mut first = connect(&server);
    execute(&mut first, "create role nosy login password 'secret'");
    let mut busy = connect(&server);
    let busy_pid = pid(&busy);
    let compute = thread::spawn(move || {
        execute(
            &mut busy,
            "select sum(i) from generate_series(1, 3000000) i",
        );
    });
    settled(&mut first, busy_pid, "active");
    let ask = |user: &str| {
        let exchange = connect_as(&server, user);
        let mut activity =
            ActivitySampler::open(exchange, true).expect("pg_stat_activity is readable");
        let mut log = WaitLog::default();
        log.ask(&mut activity, &[busy_pid, 1])
            .expect("the query succeeds");
        log
    };
    let log = ask("");
    assert_eq!((log.runnable, log.unreadable), (1, 1), "{log:?}");
    // Roles without pg_monitor see that a session exists, but not what it does.
    let log = ask(" user=nosy password=secret");
    assert_eq!((log.runnable, log.unreadable), (0, 2), "{log:?}");
    assert!(log.blocked.is_empty(), "{log:?}");
    compute.join().expect("the statement ends");
    server.stop().expect("the server stops");
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn the_lightweight_lock_is_the_one_that_the_server_names_on_each_release() {
        for major in ["9.6", "10", "11", "12", "13", "14", "16", "18"] {
            the_lightweight_lock_is_the_one_that_the_server_names(major);
        }
    }

    /// A misspelled name would hide its waits from the findings that ask for them.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn each_wait_event_is_a_text_in_the_server_program() {
        for major in ["9.6", "10", "11", "12", "13", "14", "15", "16", "17", "18"] {
            let Some(installation) = servers::installation(major) else {
                return;
            };
            let program = std::fs::read(installation.program("postgres")).expect("the program");
            let numbers =
                (0..=0x0b_u32).flat_map(|class| (0..0x80).map(move |it| class << 24 | it));
            let known: BTreeSet<&str> = numbers
                .filter_map(|number| wait_event(major, number))
                .filter(|it| !it.name.eq_ignore_ascii_case("extension"))
                .map(|it| it.name)
                .collect();
            assert!(known.len() > 60, "{major}: {known:?}");
            // The linker merges texts with others that end in them.
            let mut by_end: BTreeMap<&[u8], Vec<&str>> = BTreeMap::new();
            for name in &known {
                by_end.entry(end(name.as_bytes())).or_default().push(name);
            }
            let mut missing = known.clone();
            for text in program.split(|byte| *byte == 0) {
                let similar = by_end.get(end(text)).into_iter().flatten();
                for name in similar.filter(|it| text.ends_with(it.as_bytes())) {
                    missing.remove(name);
                }
            }
            assert_eq!(missing, BTreeSet::new(), "{major}");
        }
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn memory_says_what_the_server_says_on_16() {
        memory_says_what_the_server_says("16");
    }
}
