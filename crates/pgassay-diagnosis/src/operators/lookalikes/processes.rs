//! Processes of the server itself that block sessions: autovacuum workers, and a standby's startup process.

use pgassay_record::activity::{
    ActivitySession, BlockedSession, BlockingEpisode, RootBlocker, SessionHold,
};
use pgassay_record::finding::Finding;

use super::super::share_without_rows;
use super::build::{ExampleServer, blocked, blocking, episode, queued, relation, root};
use super::{Edge, LiveCase, case, edge, findings, of_id};

/// A standby on which recovery holds the lock of a table, and eight sessions have waited for this long.
fn replayed(waited_us: f64) -> ExampleServer {
    let startup = RootBlocker {
        user: String::new(),
        statement: None,
        fingerprint: None,
        transaction_age_us: None,
        holds: Some(SessionHold {
            mode: "AccessExclusiveLock".to_owned(),
            relation: relation("orders"),
        }),
        ..root(RootBlocker::RECOVERY, waited_us)
    };
    let readers = (1..=8).map(|pid| queued(pid, 4711, "AccessShareLock", waited_us));
    let server = blocking(episode(startup, readers.collect()));
    server.catalog(|it| it.is_standby = true)
}

pub(super) fn cases() -> Vec<LiveCase> {
    vec![case(
        "recovery-blocks",
        "table public.orders",
        "a standby that replays short DDL, whose locks readers wait for in milliseconds",
        replayed(5e6),
        replayed(8000.0),
    )]
}

pub(super) fn edges() -> Vec<Edge> {
    vec![edge("recovery-blocks", replayed, 1.0e6, 0.9e6)]
}

/// Findings that suggest ending a process.
fn ending(server: &ExampleServer) -> Vec<Finding> {
    let mut found = findings(&server.activity);
    found.retain(|it| {
        let sql = it.fix_sql.as_deref().unwrap_or_default();
        sql.contains("_backend(")
    });
    found
}

fn behind(root: RootBlocker) -> BlockingEpisode {
    let ddl = queued(20, 4711, "AccessExclusiveLock", 6e6);
    let readers = (1..=8).map(|pid| queued(pid, 20, "AccessShareLock", 5e6));
    episode(root, [ddl].into_iter().chain(readers).collect())
}

#[test]
fn an_ordinary_autovacuum_is_neither_a_blocker_nor_ended() {
    for text in ["VACUUM ANALYZE public.orders", "ANALYZE public.orders"] {
        let worker = RootBlocker {
            statement: Some(format!("autovacuum: {text}")),
            ..root(RootBlocker::AUTOVACUUM, 60e6)
        };
        assert_eq!(ending(&blocking(behind(worker))), [], "{text}");
    }
    // A VACUUM by hand does not give way.
    let manual = RootBlocker {
        statement: Some("VACUUM public.orders".to_owned()),
        ..root("active", 60e6)
    };
    let server = blocking(behind(manual));
    let found = of_id("long-blocker", &server.activity);
    assert_eq!(
        found[0].fix_sql.as_deref(),
        Some("select pg_cancel_backend(4711)")
    );
}

#[test]
fn recovery_that_blocks_a_standby_is_named_and_never_ended() {
    let server = replayed(5e6);
    let found = of_id("recovery-blocks", &server.activity);
    assert_eq!(found[0].fix_sql, None);
    let names_it = |it: &pgassay_record::finding::Fact| it.what.contains("startup process 4711");
    assert!(found[0].evidence.iter().any(names_it), "{found:#?}");
    assert_eq!(ending(&server), []);
}

/// Recovery waits for a session of the standby, and readers queue behind recovery.
#[test]
fn recovery_that_waits_for_a_session_is_not_ended() {
    let mut waiting = behind(root("active", 30e6));
    waiting.blocked[0] = BlockedSession {
        is_recovery: true,
        statement: None,
        ..waiting.blocked[0].clone()
    };
    let server = blocking(waiting);
    let found = of_id("ddl-queue", &server.activity);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].fix_sql, None, "{found:#?}");
    let ended = ending(&server);
    let sql: Vec<_> = ended.iter().flat_map(|it| &it.fix_sql).collect();
    assert_eq!(sql, ["select pg_cancel_backend(4711)"]);
}

/// Regression: sessions that create slots, which waits for all transactions to end, were said to wait for a row.
#[test]
fn a_slot_that_waits_for_transactions_to_end_waits_for_no_row() {
    for (text, share) in [
        ("select pg_create_logical_replication_slot($1, $2)", 1.0),
        (
            "select * from pg_catalog.pg_create_logical_replication_slot($1, $2)",
            1.0,
        ),
        ("CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput", 1.0),
        ("create index concurrently on t (a)", 1.0),
        ("update t set created = $1 where id = $2", 0.0),
        ("select * from t for update", 0.0),
    ] {
        let waiter = |pid| BlockedSession {
            fingerprint: Some(format!("{:016x}", 2)),
            ..blocked(pid, 9e6)
        };
        let behind = [1, 2, 3].map(waiter).into();
        let server = ExampleServer::new().load(text, "Lock:transactionid", 3.0);
        let server = server.blocking(BlockingEpisode {
            waited_us: 1e6,
            ..episode(root("active", 0.5e6), behind)
        });
        let found = of_id("row-lock-queue", &server.activity);
        assert_eq!(found.is_empty(), share > 0.5, "{text}: {found:?}");
        let seen = share_without_rows(&server.activity);
        assert!((seen - share).abs() < 1e-9, "{text}");
    }
}

/// Regression: a client that reads slowly was said to read the result of another client's statement.
#[test]
fn each_slow_client_has_its_own_statement() {
    let mut server = ExampleServer::new()
        .load("select * from orders", "Client:ClientWrite", 1.0)
        .load("select * from parts", "Client:ClientWrite", 0.5);
    let last = server.activity.cells.last().expect("a cell").session as usize;
    server.activity.sessions[last].application = "reports".to_owned();
    let found = of_id("slow-client", &server.activity);
    let mostly = |client: &str| {
        let object = |it: &&Finding| {
            it.object
                .as_ref()
                .is_some_and(|it| it.name.starts_with(client))
        };
        let finding = found.iter().find(object).expect("a finding");
        let mut facts = finding.evidence.iter().map(|it| it.what.clone());
        facts.find(|it| it.starts_with("mostly in: "))
    };
    assert_eq!(
        mostly("reports").as_deref(),
        Some("mostly in: select * from parts")
    );
    assert_ne!(mostly("checkout"), mostly("reports"));
}

/// A standby on which this many of 400 transactions that are rolled back are canceled by recovery.
fn canceled(conflicts: u64, feedback: &str) -> ExampleServer {
    ExampleServer::new().catalog(|it| {
        it.is_standby = true;
        let database = &mut it.databases[0];
        (database.committed, database.rolled_back) = (900, 400);
        database.conflicts = conflicts;
        it.settings
            .push(("hot_standby_feedback".to_owned(), feedback.to_owned()));
    })
}

/// Regression: queries that recovery canceled had a second finding, which advised INSERT … ON CONFLICT on a standby.
#[test]
fn what_recovery_cancels_is_not_a_failure_of_the_application() {
    let of = |conflicts| of_id("rollbacks", &canceled(conflicts, "off").activity).len();
    assert_eq!((of(400), of(10)), (0, 1));
    assert_eq!(
        of_id("recovery-conflicts", &canceled(400, "off").activity).len(),
        1
    );
}

/// Regression: "or set `hot_standby_feedback` = on", where it was on.
#[test]
fn feedback_that_is_on_is_not_advised() {
    let fix = |feedback| {
        let found = of_id("recovery-conflicts", &canceled(400, feedback).activity);
        found[0].suggested_fix.clone()
    };
    let (off, on) = (fix("off"), fix("on"));
    let advice = "set hot_standby_feedback = on";
    assert!(off.contains(advice) && !on.contains(advice), "{on}");
    assert!(on.contains("vacuum_truncate"), "{on}");
}

/// Regression: the sessions of a pool, which had started at once before the window, were "sessions established 29/s".
#[test]
fn a_pool_that_was_opened_before_the_window_is_no_storm_of_connections() {
    // 300 sessions were at work, and this many are connected at the end.
    let found = |connected: u32, sessions: Option<u64>| {
        let mut server = ExampleServer::new().catalog(|it| {
            it.connections.as_mut().expect("connections").used = connected;
            (it.databases[0].committed, it.databases[0].sessions) = (30, sessions);
        });
        let session = |number: u32| ActivitySession {
            pid: 5000 + number,
            started_us: 1_700_000_000_000_000 + i64::from(number) * 10_000,
            backend_type: "client backend".to_owned(),
            application: "checkout".to_owned(),
            ..ActivitySession::default()
        };
        server = server.load("select work($1)", "", 1.0);
        server.activity.sessions.extend((1..300).map(session));
        of_id("connection-storm", &server.activity).len()
    };
    // Before 14, and from 14 on, when the server counts sessions.
    assert_eq!((found(300, None), found(300, Some(0))), (0, 0));
    assert_eq!(
        (found(5, None), found(5, Some(0)), found(5, Some(290))),
        (1, 0, 1)
    );
}
