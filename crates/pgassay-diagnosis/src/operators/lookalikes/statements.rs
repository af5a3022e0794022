//! Servers whose statements, commits or checkpoints cost more than they must.

use pgassay_record::activity::{CheckpointActivity, RoleSetting, StatementCounters};
use pgassay_record::finding::{Confidence, Finding};

use super::build::{ExampleServer, PLAIN, calls};
use super::checkpoints::checkpointed;
use super::{Edge, LiveCase, case, edge};

const ITEM: &str = "select * from item where order_id = $1";
const SORT: &str = "select * from orders order by note";
const POLL: &str = "select id from job where state = $1 for update skip locked limit $2";

pub(super) fn cases() -> Vec<LiveCase> {
    [of_statements(), of_server()]
        .into_iter()
        .flatten()
        .collect()
}

/// A lookup that was seen this often, and as often in one transaction.
fn repeated(seen: u64, in_transaction: u64) -> ExampleServer {
    ExampleServer::new()
        .load(ITEM, "", 0.5)
        .idle_after(ITEM, 0.5)
        .executed(ITEM, seen, in_transaction)
}

/// A lookup in short transactions, 10,000 of which were committed: readings saw it once in each.
pub(super) fn counted_in_transactions(count: u64, idle_after: f64) -> ExampleServer {
    ExampleServer::new()
        .load(ITEM, "", 0.5)
        .idle_after(ITEM, idle_after)
        .executed(ITEM, 400, 1)
        .counted(ITEM, calls(count, 1.0))
}

/// A sort with this load, and temporary blocks per execution.
pub(super) fn sorted(load: f64, blocks: u64) -> ExampleServer {
    let counters = StatementCounters {
        temp_written: blocks * 10,
        execution_us: 1e6,
        ..calls(10, 1e6)
    };
    ExampleServer::new()
        .load(SORT, "", load)
        .counted(SORT, counters)
}

/// A lookup planned and executed in these times.
pub(super) fn planned(planning_us: f64, executed_us: f64) -> ExampleServer {
    let counters = StatementCounters {
        execution_us: executed_us * 20_000.0,
        planning_us: Some(planning_us * 20_000.0),
        ..calls(20_000, 1.0)
    };
    ExampleServer::new().counted(PLAIN, counters)
}

fn polled(calls_in_window: f64, rows: f64) -> ExampleServer {
    ExampleServer::new()
        .load(POLL, "", 0.3)
        .counted(POLL, calls(calls_in_window as u64, rows))
}

fn of_statements() -> Vec<LiveCase> {
    vec![
        case(
            "n-plus-one",
            "statement select * from item where order_id = $1",
            "a statement that is executed thousands of times per second, once per transaction",
            repeated(400, 40),
            repeated(400, 2),
        ),
        case(
            "n-plus-one",
            "statement select * from item where order_id = $1",
            "a batch of inserts in pipeline mode, one for each row, between which no session waits for its client",
            counted_in_transactions(110_000, 0.2),
            counted_in_transactions(110_000, 0.0),
        ),
        case(
            "temp-spill",
            "statement select * from orders order by note",
            "a large sort that fits into work_mem",
            sorted(1.0, 4000),
            sorted(1.0, 0),
        ),
        case(
            "planning-time",
            "statement select balance from account where id = $1",
            "a lookup of one row that is sent as text: planning takes as long as execution",
            planned(400.0, 100.0),
            planned(100.0, 100.0),
        ),
        case(
            "empty-polling",
            "statement select id from job where state = $1 for update skip locked limit $2",
            "workers that find a job in half of their executions",
            polled(9000.0, 0.0),
            polled(9000.0, 0.5),
        ),
    ]
}

fn rolled_back(count: f64) -> ExampleServer {
    ExampleServer::new().catalog(|it| {
        it.databases[0].committed = 900;
        it.databases[0].rolled_back = count as u64;
    })
}

pub(super) fn committing(wait: &str, load: f64, commits: u64) -> ExampleServer {
    let server = ExampleServer::new().load("insert into log values ($1)", wait, load);
    server.catalog(|it| it.databases[0].committed = commits)
}

fn evicting(wait: &str, load: f64) -> ExampleServer {
    let done = CheckpointActivity {
        buffers_by_backends: 9000,
        buffers_through_rings: Some(0),
        ..CheckpointActivity::default()
    };
    let server = ExampleServer::new().load("insert into log values ($1)", wait, load);
    server.catalog(|it| it.checkpoints = Some(done))
}

fn conflicts(count: f64, is_standby: bool) -> ExampleServer {
    ExampleServer::new().catalog(|it| {
        it.databases[0].conflicts = count as u64;
        it.is_standby = is_standby;
    })
}

fn of_server() -> Vec<LiveCase> {
    vec![
        case(
            "rollbacks",
            "database shop",
            "a monitor that rolls back its read-only transaction once a second",
            rolled_back(400.0),
            rolled_back(10.0).catalog(|it| it.databases[0].committed = 5),
        ),
        case(
            "synchronous-standby",
            "setting synchronous_standby_names",
            "commits that wait for the server's own disk",
            committing("IPC:SyncRep", 3.0, 10_000),
            committing("IO:WALSync", 3.0, 10_000),
        ),
        case(
            "slow-wal-sync",
            "server",
            "commits that wait for an SSD, in most of their time",
            committing("IO:WalSync", 3.0, 500),
            committing("IO:WalSync", 3.0, 10_000),
        ),
        case(
            "checkpoints-requested",
            "setting max_wal_size",
            "one CHECKPOINT by hand, or for a base backup",
            checkpointed(4, 0),
            checkpointed(1, 0),
        ),
        case(
            "buffers-written-by-backends",
            "setting shared_buffers",
            "a bulk load, which extends its table: backends write new pages, not others' buffers",
            evicting("IO:DataFileWrite", 0.5),
            evicting("IO:DataFileExtend", 0.5),
        ),
        case(
            "recovery-conflicts",
            "database shop",
            "a primary, where nothing conflicts with recovery",
            conflicts(2.0, true),
            conflicts(2.0, false),
        ),
    ]
}

pub(super) fn edges() -> Vec<Edge> {
    let spilling = |load: f64| ExampleServer::new().load(SORT, "IO:BufFileWrite", load);
    let database = |bytes: f64| {
        ExampleServer::new().catalog(|it| {
            it.databases[0].temp_files = 1000;
            it.databases[0].temp_bytes = bytes as u64;
        })
    };
    let by_count = |count: f64| counted_in_transactions(count as u64, 0.2);
    let fails = |count: f64| rolled_back(count).catalog(|it| it.databases[0].committed = 10);
    vec![
        edge("n-plus-one", |it| repeated(400, it as u64), 4.0, 3.0),
        edge("n-plus-one", by_count, 100_000.0, 99_999.0),
        edge("temp-spill", |it| sorted(it, 4000), 0.06, 0.05),
        edge("temp-spill", |it| sorted(1.0, it as u64), 123.0, 122.0),
        edge("temp-spill", spilling, 0.06, 0.05),
        edge("temp-spill", database, 1e7, 9.9e6),
        edge("planning-time", |it| planned(it, 100.0), 300.0, 299.0),
        // Regression: 15 ms of planning, for 400 partitions, before 11 ms of execution.
        edge("planning-time", |it| planned(it, 900.0), 1000.0, 999.0),
        // 0.6 of a session, of this many.
        edge(
            "planning-time",
            |all| planned(300.0, 100.0).load("select work($1)", "", all - 1.0),
            2.3,
            2.5,
        ),
        edge("empty-polling", |it| polled(it, 0.0), 100.0, 99.0),
        edge("empty-polling", |rows| polled(9000.0, rows), 0.0, 0.001),
        edge("rollbacks", rolled_back, 100.0, 99.0),
        edge("rollbacks", fails, 50.0, 49.0),
        edge(
            "synchronous-standby",
            |it| committing("IPC:SyncRep", it, 10_000),
            0.06,
            0.05,
        ),
        edge(
            "slow-wal-sync",
            |it| committing("IO:WALSync", 3.0, it as u64),
            1500.0,
            1501.0,
        ),
        edge(
            "slow-wal-sync",
            |it| committing("IO:WALSync", it, 10),
            0.26,
            0.24,
        ),
        edge(
            "checkpoints-requested",
            |it| checkpointed(it as u64, 0),
            2.0,
            1.0,
        ),
        edge(
            "checkpoints-requested",
            |timed| checkpointed(4, timed as u64),
            3.0,
            4.0,
        ),
        edge(
            "buffers-written-by-backends",
            |it| evicting("IO:DataFileWrite", it),
            0.06,
            0.05,
        ),
        edge("recovery-conflicts", |it| conflicts(it, true), 1.0, 0.0),
    ]
}

#[test]
fn few_executions_seen_are_a_hint_unless_counters_show_more() {
    use pgassay_record::finding::Confidence;
    let confidence =
        |server: &ExampleServer| super::of_id("n-plus-one", &server.activity)[0].confidence;
    // 10,000 transactions were committed.
    let counted = |count: u64| repeated(400, 9).counted(ITEM, calls(count, 1.0));
    assert_eq!(confidence(&repeated(400, 9)), Confidence::Hint);
    assert_eq!(confidence(&counted(90_000)), Confidence::Hint);
    assert_eq!(confidence(&counted(100_000)), Confidence::Likely);
    let many = repeated(400, 10).counted(ITEM, calls(20_000, 1.0));
    assert_eq!(confidence(&many), Confidence::Likely);
}

/// Regression: repeated updates that wait for rows were to be saved by one statement, which would wait as well.
#[test]
fn a_repeated_statement_does_not_lose_its_waits_for_locks() {
    let server = repeated(400, 20).load(ITEM, "Lock:transactionid", 2.0);
    let found = super::of_id("n-plus-one", &server.activity);
    let saved = found[0].weight_us * found[0].share.signum();
    let alone = super::of_id("n-plus-one", &repeated(400, 20).activity);
    assert!((saved - alone[0].weight_us).abs() < 1e-6, "{found:#?}");
}

/// Regression: transactions of a few milliseconds were too short for readings to see a statement in them twice.
#[test]
fn a_statement_that_is_repeated_in_short_transactions_is_found_by_its_count() {
    let found = |server: &ExampleServer| super::of_id("n-plus-one", &server.activity);
    let server = counted_in_transactions(110_000, 0.2);
    assert_eq!(found(&server)[0].confidence, Confidence::Likely);
    // The commits of another database do not count.
    let mut server = server;
    let catalog = server.activity.catalog.as_mut().expect("a catalog");
    let mut other = catalog.databases[0].clone();
    other.name = "other".to_owned();
    other.committed = 1_000_000;
    catalog.databases.push(other);
    assert_eq!(found(&server).len(), 1);
    // Sessions do not report all of their transactions.
    server.activity.transactions_seen = 3_000_000;
    assert_eq!(found(&server), []);
}

/// Regression: a slow lookup without hits was to be replaced by LISTEN before it got its index.
#[test]
fn a_slow_lookup_without_hits_lacks_an_index_before_it_is_polling() {
    let text = "select * from orders where customer = $1";
    let slow = || {
        let counters = StatementCounters {
            execution_us: 200.0 * 50_000.0,
            ..calls(200, 0.0)
        };
        super::catalog::scanned(text, 200, Some(counters))
    };
    let found = super::findings(&slow().activity);
    let ids: Vec<&str> = found.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["missing-index", "empty-polling"]);
    // The second one also if the table is not known.
    let alone = slow().catalog(|it| it.tables.clear());
    let alone = super::of_id("empty-polling", &alone.activity).remove(0);
    for polling in [&found[1], &alone] {
        assert_eq!(polling.confidence, Confidence::Hint);
        assert_eq!(polling.saved_sessions, None);
    }
}

/// Regression: a statement that was seen 40 times in a transaction was executed "0.28 times per committed transaction",
/// because most transactions were others.
#[test]
fn executions_per_commit_are_shown_only_if_they_are_more_than_those_seen() {
    let shows = |count: u64| {
        let server = repeated(400, 40).counted(ITEM, calls(count, 1.0));
        let found = super::of_id("n-plus-one", &server.activity).remove(0);
        let mut facts = found.evidence.iter();
        facts.any(|it| it.what == "executions per transaction")
    };
    assert_eq!([shows(2800), shows(500_000)], [false, true]);
}

#[test]
fn work_mem_is_set_for_the_user_and_within_reason() {
    let sql = |blocks: u64| {
        let found = super::of_id("temp-spill", &sorted(1.0, blocks).activity);
        found[0].fix_sql.clone()
    };
    // 4 times 31 MiB.
    assert_eq!(
        sql(4000).as_deref(),
        Some("alter role web set work_mem = '128MB'")
    );
    assert_eq!(
        sql(123).as_deref(),
        Some("alter role web set work_mem = '8MB'")
    );
    assert_eq!(
        sql(400_000),
        None,
        "no statement should sort 3 GB in memory"
    );
}

/// The findings of a command that writes these temporary blocks in its one execution; `None` if the server
/// has no counters for it, only waits.
fn spilling_command(text: &str, blocks: Option<u64>) -> Vec<Finding> {
    let server = ExampleServer::new().load(text, "IO:BufFileWrite", 1.0);
    let server = match blocks {
        Some(blocks) => server.counted(
            text,
            StatementCounters {
                temp_written: blocks,
                ..calls(1, 0.0)
            },
        ),
        None => server,
    };
    let server = server.catalog(|it| {
        let memory = ("maintenance_work_mem".to_owned(), "64MB".to_owned());
        it.settings.push(memory);
        it.databases[0].temp_files = 1000;
        it.databases[0].temp_bytes = 1_000_000_000;
    });
    super::of_id("temp-spill", &server.activity)
}

/// Regression: the files of a parallel build, which waits for none of them, called for more `work_mem` of the database.
#[test]
fn the_files_of_an_index_build_that_still_runs_are_not_those_of_sorts() {
    let found = |text| {
        let server = ExampleServer::new().load(text, "", 1.0).catalog(|it| {
            it.databases[0].temp_files = 1000;
            it.databases[0].temp_bytes = 1_000_000_000;
        });
        super::of_id("temp-spill", &server.activity).len()
    };
    assert_eq!(found("create index concurrently on orders (note)"), 0);
    assert_eq!(found("select count(*) from orders"), 1);
}

#[test]
fn an_index_build_that_spills_does_not_need_more_work_mem() {
    for text in [
        "create index concurrently orders_note on orders (note)",
        "CREATE UNIQUE INDEX on orders (note)",
        "reindex table orders",
        "cluster orders using orders_pkey",
        "alter table orders add primary key (id)",
        "vacuum full orders",
    ] {
        // Four times 63 MiB: it does not fit into 64 MB.
        let found = spilling_command(text, Some(8000));
        assert_eq!(found.len(), 1, "{text}");
        let sql = found[0].fix_sql.as_deref();
        let expected = "set maintenance_work_mem = '256MB' -- in the session that runs the command";
        assert_eq!(sql, Some(expected), "{text}");
        let fix = &found[0].suggested_fix;
        assert!(fix.contains("maintenance_work_mem"), "{text}: {fix}");
        let unknown = spilling_command(text, None);
        let sql = unknown[0].fix_sql.as_deref();
        let expected = "set maintenance_work_mem = '128MB' -- in the session that runs the command";
        assert_eq!(sql, Some(expected), "{text}");
        assert_eq!(unknown[0].confidence, Confidence::Hint, "{text}");
        // One fits, whose parallel workers write files all the same; the other is sorted on disk anyway.
        // Neither makes its database one whose statements need more work_mem.
        assert_eq!(spilling_command(text, Some(1000)), [], "{text}");
        assert_eq!(spilling_command(text, Some(400_000)), [], "{text}");
    }
    for text in ["create table b as select * from orders order by note", SORT] {
        let found = spilling_command(text, Some(8000));
        let sql = found[0].fix_sql.as_deref();
        assert_eq!(sql, None, "{text}");
        assert!(
            found[0]
                .suggested_fix
                .contains("set local work_mem = '256MB'")
        );
    }
}

/// Regression: more fast-path slots were suggested to sessions that queue for a row.
#[test]
fn waits_for_the_lock_table_in_a_queue_for_a_row_are_no_contention() {
    let found = |rows| {
        let server = ExampleServer::new().load(PLAIN, "LWLock:LockManager", 2.0);
        let server = server.load(PLAIN, "Lock:transactionid", rows);
        super::of_id("lock-contention", &server.activity).len()
    };
    assert_eq!([found(8.0), found(1.0)], [0, 1]);
}

/// Regression: locks of the application were called internal ones.
#[test]
fn advisory_locks_are_those_of_the_application() {
    let title = |wait| {
        let server = ExampleServer::new().load(PLAIN, wait, 2.0);
        super::of_id("lock-contention", &server.activity)
            .remove(0)
            .title
    };
    let advisory = title("Lock:advisory");
    assert_eq!(
        advisory,
        "Sessions wait for the application's advisory locks"
    );
    assert_eq!(
        title("LWLock:ProcArray"),
        "Sessions contend for an internal lock"
    );
}

#[test]
fn the_errors_of_the_log_are_a_second_source() {
    use pgassay_record::activity::{LoadMark, LoadMarkKind};
    use pgassay_record::finding::Confidence;
    let mut server = rolled_back(400.0);
    let confidence =
        |server: &ExampleServer| super::of_id("rollbacks", &server.activity)[0].confidence;
    assert_eq!(confidence(&server), Confidence::Hint);
    let mut log = |count| {
        server.activity.marks = vec![LoadMark {
            at_us: 1e6,
            length_us: 0.0,
            kind: LoadMarkKind::LogError,
            text: "duplicate key value violates unique constraint".to_owned(),
            count: Some(count),
        }];
        confidence(&server)
    };
    // One error does not explain 400 of them.
    assert_eq!(log(1), Confidence::Hint);
    assert_eq!(log(400), Confidence::Likely);
}

#[test]
fn a_repeated_statement_over_a_slow_network_has_no_load_and_is_found() {
    let server = ExampleServer::new()
        .load(ITEM, "", 0.02)
        .idle_after(ITEM, 3.0)
        .executed(ITEM, 400, 40);
    let found = super::of_id("n-plus-one", &server.activity);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].saved_sessions, None);
}

/// Sessions that wait for writes, and the writes of backends, as version 16 counts them.
fn writing(loads: &[(&str, f64)], normal: u64, rings: Option<u64>) -> Option<Finding> {
    let done = CheckpointActivity {
        buffers_by_backends: normal,
        buffers_through_rings: rings,
        ..CheckpointActivity::default()
    };
    let server = ExampleServer::new().catalog(|it| it.checkpoints = Some(done));
    let server = loads.iter().fold(server, |server, (text, load)| {
        server.load(text, "IO:DataFileWrite", *load)
    });
    super::of_id("buffers-written-by-backends", &server.activity).pop()
}

#[test]
fn a_bulk_load_that_writes_its_own_pages_does_not_need_more_shared_buffers() {
    let insert = ("insert into log values ($1)", 0.5);
    for bulk in [
        "copy log from stdin",
        "create table b as select * from log",
        "select * into b from log",
        "vacuum log",
        "alter table log alter n type bigint",
    ] {
        assert_eq!(writing(&[(bulk, 0.5)], 9000, None), None, "{bulk}");
        assert_eq!(writing(&[(bulk, 0.5)], 9000, Some(0)), None, "{bulk}");
        // Only what other sessions wait for counts.
        let found = writing(&[(bulk, 0.9), insert], 9000, None).expect(bulk);
        let saved = found.saved_sessions.expect("a load");
        assert!((saved - 0.5).abs() < 1e-9, "{bulk}: {saved}");
    }
    let confidence = |rings| writing(&[insert], 9000, rings).map(|it| it.confidence);
    assert_eq!(confidence(None), Some(Confidence::Hint));
    assert_eq!(confidence(Some(0)), Some(Confidence::Likely));
}

#[test]
fn a_large_scan_that_writes_through_its_ring_does_not_need_more_shared_buffers() {
    let scan = [("select sum(total) from orders", 0.5)];
    assert_eq!(writing(&scan, 90, Some(9000)), None);
    let found = writing(&scan, 9000, Some(9000)).expect("half of them are not through rings");
    let saved = found.saved_sessions.expect("a load");
    assert!((saved - 0.25).abs() < 1e-9, "{saved}");
}

#[test]
fn no_suggested_setting_is_below_the_present_one() {
    let with = |server: ExampleServer, name: &str, value: &str| {
        let (name, value) = (name.to_owned(), value.to_owned());
        server
            .catalog(|it| it.settings.push((name, value)))
            .activity
    };
    let sql = |id: &str, activity| super::of_id(id, &activity).remove(0).fix_sql;
    let waits = || ExampleServer::new().load(PLAIN, "LWLock:LockManager", 2.0);
    let locks = |value| {
        sql(
            "lock-contention",
            with(waits(), "max_locks_per_transaction", value),
        )
    };
    let larger = "alter system set max_locks_per_transaction = '1024'".to_owned();
    assert_eq!([locks("64"), locks("2048")], [Some(larger), None]);
    let delay = |value| {
        let server = conflicts(3.0, true);
        sql(
            "recovery-conflicts",
            with(server, "max_standby_streaming_delay", value),
        )
        .is_some()
    };
    assert_eq!(
        [delay("30s"), delay("5min"), delay("1h"), delay("-1")],
        [true, false, false, false]
    );
}

#[test]
fn a_setting_of_a_role_in_a_database_is_changed_where_it_is_set() {
    let sql = |role: Option<&str>, database: Option<&str>, value: &str| {
        let setting = RoleSetting {
            role: role.map(str::to_owned),
            database: database.map(str::to_owned),
            name: "work_mem".to_owned(),
            value: value.to_owned(),
        };
        let server = sorted(1.0, 123).catalog(|it| it.role_settings.push(setting));
        let found = super::of_id("temp-spill", &server.activity);
        found[0].fix_sql.clone().expect("a statement")
    };
    let (web, shop) = (Some("web"), Some("shop"));
    let in_database = "alter role web in database shop set work_mem = '64MB'";
    assert_eq!(sql(web, shop, "32MB"), in_database);
    // The value of the role comes before the one of the database, which comes before the server's.
    let of_role = "alter role web set work_mem = '64MB'";
    assert_eq!(sql(web, None, "32MB"), of_role);
    assert_eq!(sql(None, shop, "32MB"), of_role);
    assert_eq!(sql(None, None, "32MB"), of_role);
    let others = [(Some("other"), None), (web, Some("other"))];
    for (role, database) in others {
        let of_server = "alter role web set work_mem = '8MB'";
        assert_eq!(sql(role, database, "32MB"), of_server);
    }
}
