//! Servers on which sessions wait for each other or hold something back.

use pgassay_record::activity::{
    BlockedSession, BlockingEpisode, HorizonHolder, HorizonKind, IdleLockHolder, RootBlocker,
    SessionHold, SlotState, TableActivity,
};

use super::build::{
    DAY_US, ExampleServer, WINDOW_US, blocked, blocking, episode, queued, relation, root, table,
};
use super::connections::brief_sessions;
use super::{Edge, LiveCase, case, edge};

const IDLE: &str = "idle in transaction";

pub(super) fn cases() -> Vec<LiveCase> {
    [of_blocking(), of_waits(), of_connections(), of_horizon()]
        .into_iter()
        .flatten()
        .collect()
}

/// Eight sessions that have waited this long.
fn eight(waited_us: f64) -> Vec<BlockedSession> {
    (1..=8).map(|pid| blocked(pid, waited_us)).collect()
}

/// Sessions wait for a row one after the other: the one that has it is between two statements.
fn handed_over() -> BlockingEpisode {
    episode(root(IDLE, 80.0), eight(5000.0))
}

fn of_blocking() -> Vec<LiveCase> {
    let wraparound = RootBlocker {
        prevents_wraparound: true,
        ..root("autovacuum worker", 60e6)
    };
    let yields = root("autovacuum worker", 60e6);
    let ddl = || queued(20, 4711, "AccessExclusiveLock", 6e6);
    let readers = |behind: u32| (1..=8).map(move |pid| queued(pid, behind, "AccessShareLock", 5e6));
    vec![
        case(
            "idle-blocker",
            "session 4711",
            "sessions that take turns at a row, whose holder is between two statements",
            blocking(episode(root(IDLE, 12e6), eight(11e6))),
            blocking(handed_over()),
        ),
        case(
            "long-blocker",
            "session 4711",
            "transactions of milliseconds that wait for each other's rows",
            blocking(episode(root("active", 12e6), eight(11e6))),
            blocking(episode(root("active", 900.0), eight(5000.0))),
        ),
        case(
            "wraparound-vacuum-blocks",
            "session 4711",
            "an ordinary autovacuum, which yields to DDL after deadlock_timeout",
            blocking(episode(wraparound, vec![ddl()])),
            blocking(episode(yields, vec![ddl()])),
        ),
        case(
            "ddl-queue",
            "table public.orders",
            "a command that waits for a strong lock, with no session behind it",
            blocking(episode(
                root("active", 30e6),
                [ddl()].into_iter().chain(readers(20)).collect(),
            )),
            blocking(episode(
                root("active", 30e6),
                [ddl()].into_iter().chain(readers(4711)).collect(),
            )),
        ),
    ]
}

pub(super) const UPDATE: &str = "update branch set balance = balance + $1 where id = $2";

/// As [`waiting_for_rows`], with as many sessions that may hold the rows.
pub(super) fn row_waits(first: f64, behind: f64) -> ExampleServer {
    waiting_for_rows(first, behind).idle_after(UPDATE, first + behind)
}

/// Average sessions of one statement that wait for rows: first in the queue, and behind.
fn waiting_for_rows(first: f64, behind: f64) -> ExampleServer {
    let server = ExampleServer::new().load(UPDATE, "Lock:transactionid", first);
    server.load(UPDATE, "Lock:tuple", behind)
}

/// Sessions that wait for rows of short transactions in a queue of this length, and one behind another root.
pub(super) fn row_queue(length: usize) -> ExampleServer {
    let server = row_waits(3.0, 0.0);
    let fingerprint = server.activity.statements[1].fingerprint.clone();
    let queue = |length: usize| {
        let mut queue = episode(root("active", 900.0), Vec::new());
        queue.blocked = (1..=length as u32)
            .map(|pid| BlockedSession {
                fingerprint: Some(fingerprint.clone()),
                ..blocked(pid, 900.0)
            })
            .collect();
        queue
    };
    let all = [1, length].map(queue);
    all.into_iter().fold(server, ExampleServer::blocking)
}

fn contended(wait: &str, sessions: f64) -> ExampleServer {
    ExampleServer::new().load("insert into log values ($1)", wait, sessions)
}

fn deadlocked(deadlocks: u64) -> ExampleServer {
    ExampleServer::new().catalog(|it| it.databases[0].deadlocks = deadlocks)
}

fn of_waits() -> Vec<LiveCase> {
    vec![
        case(
            "row-lock-queue",
            "table branch",
            "updates of many rows that meet in pairs now and then: no session waits behind another that waits",
            row_waits(1.0, 5.0),
            row_waits(1.0, 0.0),
        ),
        case(
            "deadlocks",
            "database shop",
            "sessions that wait for rows in the same order: a queue, but no deadlock",
            deadlocked(2),
            row_waits(1.0, 5.0),
        ),
        case(
            "lock-contention",
            "wait event LWLock:LockManager",
            "sessions that wait for another session's WAL write, as commits do",
            contended("LWLock:LockManager", 0.5),
            contended("LWLock:WALWrite", 0.5),
        ),
    ]
}

fn holder(mode: &str, idle_us: f64) -> ExampleServer {
    let holder = RootBlocker {
        holds: Some(SessionHold {
            mode: mode.to_owned(),
            relation: relation("orders"),
        }),
        ..root(IDLE, idle_us)
    };
    let mut server = ExampleServer::new();
    server.activity.idle_lock_holders.push(IdleLockHolder {
        ended_by: "select pg_terminate_backend(4711);".to_owned(),
        holder,
    });
    server
}

fn connecting(sessions: u64, transactions: u64) -> ExampleServer {
    ExampleServer::new().catalog(|it| {
        it.databases[0].sessions = Some(sessions);
        it.databases[0].committed = transactions;
    })
}

fn connected(used: u32) -> ExampleServer {
    ExampleServer::new().catalog(|it| {
        let connections = it.connections.as_mut().expect("connections");
        (connections.used, connections.idle) = (used, Some(used - 2));
        connections.available = 100;
    })
}

const EXPORT: &str = "select * from orders";

fn of_connections() -> Vec<LiveCase> {
    vec![
        case(
            "idle-lock-holder",
            "session 4711",
            "a session idle in a transaction that has only read: it blocks nothing but DDL",
            holder("AccessExclusiveLock", 5e6),
            holder("AccessShareLock", 3600e6),
        ),
        case(
            "connection-storm",
            "client checkout, 10.0.0.7",
            "a pool that opens its connections at the start of the application",
            connecting(3000, 6000),
            connecting(90, 10_000),
        ),
        case(
            "connections-exhausted",
            "server",
            "many idle connections, far below max_connections",
            connected(95),
            connected(60),
        ),
        case(
            "slow-client",
            "client checkout, 10.0.0.7",
            "a client that takes its time before it sends the next statement",
            ExampleServer::new().load(EXPORT, "Client:ClientWrite", 0.5),
            ExampleServer::new().idle_after(EXPORT, 0.5),
        ),
    ]
}

pub(super) fn horizon(kind: HorizonKind, name: &str, detail: &str) -> HorizonHolder {
    // Of slots and standbys, only the age in transactions is known; 100 per second are used.
    let is_local = matches!(
        kind,
        HorizonKind::Session | HorizonKind::PreparedTransaction
    );
    HorizonHolder {
        kind,
        name: name.to_owned(),
        age: 12_000,
        has_oldest_id: false,
        lasting_us: is_local.then_some(120e6),
        database: is_local.then(|| "shop".to_owned()),
        detail: detail.to_owned(),
        state: String::new(),
        wait: None,
    }
}

/// A server with this holder, and a table that was vacuumed this long ago and has kept dead rows.
pub(super) fn kept_back(holder: HorizonHolder, vacuumed_us: f64) -> ExampleServer {
    let orders = TableActivity {
        dead_rows: 400_000,
        updated: 10_000,
        vacuumed_ago_us: Some(vacuumed_us),
        ..table("orders")
    };
    let server = ExampleServer::new().table(orders);
    server.catalog(|it| it.horizon.push(holder))
}

pub(super) fn slot(name: &str, status: &str, retained: u64) -> ExampleServer {
    let slot = SlotState {
        name: name.to_owned(),
        kind: "physical".to_owned(),
        is_active: false,
        retained_bytes: Some(retained),
        wal_status: Some(status.to_owned()),
        inactive_us: Some(DAY_US),
        is_synced: false,
    };
    ExampleServer::new().catalog(|it| it.slots.push(slot))
}

fn of_horizon() -> Vec<LiveCase> {
    let session = || HorizonHolder {
        state: IDLE.to_owned(),
        ..horizon(
            HorizonKind::Session,
            "4711",
            "user web, idle in transaction",
        )
    };
    let of = |kind, name| horizon(kind, name, "");
    vec![
        case(
            "horizon-session",
            "session 4711",
            "a long report during which no table exceeds its threshold for dead rows after VACUUM",
            kept_back(session(), 20e6),
            kept_back(session(), 600e6),
        ),
        case(
            "prepared-transaction",
            "prepared transaction tx-1",
            "prepared transactions that are committed within seconds",
            kept_back(of(HorizonKind::PreparedTransaction, "tx-1"), 20e6),
            kept_back(of(HorizonKind::PreparedTransaction, "tx-1"), 600e6),
        ),
        case(
            "slot-horizon",
            "replication slot replica",
            "a standby with feedback and a slot that follows closely",
            kept_back(of(HorizonKind::Slot, "replica"), 20e6),
            kept_back(of(HorizonKind::Slot, "replica"), 600e6),
        ),
        case(
            "standby-horizon",
            "standby walreceiver",
            "a standby with feedback whose queries are short",
            kept_back(of(HorizonKind::Standby, "walreceiver"), 20e6),
            kept_back(of(HorizonKind::Standby, "walreceiver"), 600e6),
        ),
        case(
            "slot-wal",
            "replication slot replica",
            "a slot whose standby restarts: it keeps less WAL than the server keeps for itself",
            slot("replica", "extended", 5_000_000_000),
            slot("replica", "reserved", 300_000_000),
        ),
    ]
}

fn gid_blocks(waited_us: f64) -> ExampleServer {
    gid_of_age(30e6, waited_us)
}

fn gid_of_age(age_us: f64, waited_us: f64) -> ExampleServer {
    let prepared = RootBlocker {
        pid: None,
        gid: Some("tx-1".to_owned()),
        ..root("prepared transaction", age_us)
    };
    blocking(episode(prepared, vec![blocked(1, waited_us)]))
}

pub(super) fn edges() -> Vec<Edge> {
    let mut all = edges_of_blocking();
    all.extend(edges_of_waits());
    all.extend(edges_of_horizon());
    all
}

fn edges_of_blocking() -> Vec<Edge> {
    let share = |sessions: f64| sessions * WINDOW_US;
    let ddl_waits = |waited: f64| {
        let ddl = queued(20, 4711, "AccessExclusiveLock", waited);
        let behind = queued(21, 20, "AccessShareLock", waited);
        blocking(episode(root("active", 30e6), vec![ddl, behind]))
    };
    let of_wraparound = |waited: f64| {
        let vacuum = RootBlocker {
            prevents_wraparound: true,
            ..root("autovacuum worker", 60e6)
        };
        blocking(episode(vacuum, vec![blocked(1, waited)]))
    };
    vec![
        // 1 / 19 of the load is 5.3%, and 1 / 21 is 4.8%.
        edge("idle-blocker", waiting_of, 19.0, 21.0),
        edge(
            "idle-blocker",
            |age| blocking(episode(root(IDLE, age), eight(4e6))),
            2.1e6,
            1.9e6,
        ),
        edge(
            "long-blocker",
            |age| blocking(episode(root("active", age), eight(1.5e6))),
            1.0e6,
            0.9e6,
        ),
        edge(
            "wraparound-vacuum-blocks",
            of_wraparound,
            share(0.06),
            share(0.04),
        ),
        edge("ddl-queue", ddl_waits, share(0.06), share(0.04)),
    ]
}

fn edges_of_waits() -> Vec<Edge> {
    vec![
        edge(
            "row-lock-queue",
            |behind| row_waits(0.6, behind),
            0.21,
            0.19,
        ),
        edge(
            "row-lock-queue",
            |all| row_waits(all / 2.0, all / 2.0),
            0.26,
            0.24,
        ),
        edge("row-lock-queue", |it| row_queue(it as usize), 2.0, 1.0),
        edge("deadlocks", |count| deadlocked(count as u64), 1.0, 0.0),
        // 0.18 / 1.18 is 15.3%, and 0.17 / 1.17 is 14.5%.
        edge(
            "lock-contention",
            |it| contended("LWLock:LockManager", it),
            0.18,
            0.17,
        ),
        edge(
            "idle-lock-holder",
            |us| holder("ExclusiveLock", us),
            1e6,
            0.9e6,
        ),
        edge(
            "idle-lock-holder",
            |us| holder("RowExclusiveLock", us),
            60e6,
            59e6,
        ),
        edge(
            "connection-storm",
            |it| connecting(it as u64, 500),
            100.0,
            99.0,
        ),
        edge(
            "connection-storm",
            |it| connecting(200, it as u64),
            1990.0,
            2010.0,
        ),
        edge(
            "connection-storm",
            |it| brief_sessions(None, it as u64),
            100.0,
            99.0,
        ),
        edge(
            "connections-exhausted",
            |it| connected(it as u32),
            90.0,
            89.0,
        ),
        edge(
            "slow-client",
            |it| ExampleServer::new().load(EXPORT, "Client:ClientWrite", it),
            0.06,
            0.05,
        ),
    ]
}

fn edges_of_horizon() -> Vec<Edge> {
    let share = |sessions: f64| sessions * WINDOW_US;
    let vacuumed = |kind, name: &'static str| {
        move |seconds: f64| kept_back(horizon(kind, name, ""), seconds * 1e6)
    };
    let frozen = |age: f64| {
        let mut it = horizon(HorizonKind::Session, "4711", "");
        it.age = age as u64;
        kept_back(it, 600e6)
    };
    vec![
        edge(
            "horizon-session",
            vacuumed(HorizonKind::Session, "4711"),
            119.0,
            120.0,
        ),
        edge("horizon-session", frozen, 100_000_000.0, 99_999_999.0),
        edge(
            "prepared-transaction",
            vacuumed(HorizonKind::PreparedTransaction, "g"),
            119.0,
            120.0,
        ),
        edge("prepared-transaction", gid_blocks, share(0.06), share(0.04)),
        edge(
            "slot-horizon",
            vacuumed(HorizonKind::Slot, "replica"),
            119.0,
            120.0,
        ),
        edge(
            "standby-horizon",
            vacuumed(HorizonKind::Standby, "s"),
            119.0,
            120.0,
        ),
        edge(
            "slot-wal",
            |it| slot("s", "extended", it as u64),
            1_073_741_825.0,
            1_073_741_824.0,
        ),
    ]
}

/// One session waits all the time, of this many average active sessions, for an idle one.
fn waiting_of(active: f64) -> ExampleServer {
    let one = blocked(1, 9e6);
    let server = blocking(BlockingEpisode {
        waited_us: WINDOW_US,
        ..episode(root(IDLE, 9e6), vec![one])
    });
    // The plain load is 1, and so is the waiting session's.
    server.load("select work($1)", "", active - 2.0)
}

#[test]
fn a_long_wait_counts_on_a_large_server() {
    let long = |waited_us: f64| {
        let server = blocking(episode(root(IDLE, 60e6), vec![blocked(1, waited_us)]));
        server.load("select work($1)", "", 60.0)
    };
    let found = super::of_id("idle-blocker", &long(11e6).activity);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].saved_sessions, None);
    assert_eq!(super::of_id("idle-blocker", &long(9e6).activity), []);
}

#[test]
fn the_statement_that_ends_a_blocker_fits_its_state() {
    let sql = |episode: BlockingEpisode| {
        let found = super::findings(&blocking(episode).activity);
        found[0].fix_sql.clone().expect("a statement")
    };
    let idle = episode(root(IDLE, 12e6), eight(11e6));
    assert_eq!(sql(idle.clone()), "select pg_terminate_backend(4711)");
    let over = BlockingEpisode {
        is_lasting: false,
        ..idle
    };
    assert_eq!(
        sql(over),
        "alter role web set idle_in_transaction_session_timeout = '1min'"
    );
    let busy = episode(root("active", 12e6), eight(11e6));
    assert_eq!(sql(busy), "select pg_cancel_backend(4711)");
    // One that is being committed must not be rolled back; one that was forgotten may be.
    let prepared = |age_us: f64| {
        let found = super::of_id("prepared-transaction", &gid_of_age(age_us, 9e6).activity);
        found[0].fix_sql.clone()
    };
    assert_eq!(prepared(9e6), None);
    assert_eq!(
        prepared(400e6).as_deref(),
        Some("rollback prepared 'tx-1' -- in the database of the transaction")
    );
}

#[test]
fn a_row_queue_behind_one_session_is_that_sessions_finding() {
    let server = blocking(episode(root(IDLE, 12e6), eight(11e6)));
    let text = "update orders set paid = $1 where id = $2";
    let server = server.load(text, "Lock:tuple", 4.0);
    assert_eq!(super::of_id("row-lock-queue", &server.activity), []);
    assert_eq!(super::of_id("idle-blocker", &server.activity).len(), 1);
}

#[test]
fn a_younger_holder_waits_for_the_oldest_one() {
    let young = HorizonHolder {
        age: 10_000,
        ..horizon(HorizonKind::Session, "4712", "")
    };
    let server = kept_back(horizon(HorizonKind::Session, "4711", ""), 20e6);
    let server = server.catalog(|it| it.horizon.push(young));
    let found = super::of_id("horizon-session", &server.activity);
    let names: Vec<_> = found.iter().filter_map(|it| it.object.as_ref()).collect();
    assert_eq!(names.len(), 1);
    assert_eq!(names[0].name, "4711");
}

/// Canceling an idle session would do nothing.
#[test]
fn an_idle_session_that_holds_an_advisory_lock_is_ended_not_canceled() {
    let holder = RootBlocker {
        transaction_age_us: None,
        ..root("idle", 12e6)
    };
    let server = blocking(episode(holder, eight(11e6)));
    let found = super::of_id("long-blocker", &server.activity);
    let sql: Vec<_> = found.iter().flat_map(|it| &it.fix_sql).collect();
    assert_eq!(sql.len(), 1, "{found:?}");
    assert!(sql[0].contains("pg_terminate_backend(4711)"), "{sql:?}");
}

/// Regression: on a saturated machine, who blocks whom was read too late, and no queue for a row was found.
#[test]
fn more_waiting_sessions_than_can_hold_locks_are_in_queues() {
    let found = |idle| {
        let server = waiting_for_rows(11.0, 1.0).load("commit", "IO:WalSync", 2.0);
        let server = server.idle_after(UPDATE, idle);
        super::of_id("row-lock-queue", &server.activity).len()
    };
    assert_eq!([found(2.0), found(10.0)], [1, 0]);
}

/// Regression: "117% of the connections are in use".
#[test]
fn no_more_than_all_connections_are_in_use() {
    let found = super::of_id("connections-exhausted", &connected(117).activity);
    let facts = found[0].evidence.iter();
    let mut shares = facts.filter(|it| it.what.ends_with("are in use"));
    let share = shares.next().and_then(|it| it.value);
    assert!(
        share.is_some_and(|it| it.total_cmp(&1.0).is_eq()),
        "{found:?}"
    );
}
