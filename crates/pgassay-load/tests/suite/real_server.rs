//! Client pools on a real server: all query protocols, errors, accounting, and a server that dies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgassay_load::{
    ClientPool, ClientPoolConfig, FailedTry, LoadError, Measurement, Observer, RunLength,
    Transaction, WeightedScript,
};
use pgassay_script::{ParseOptions, ParsedScript, QueryProtocol, VariableNames};
use pgassay_test_support::BareServer;
use pgassay_wire::conninfo::{EmptyEnvironment, Request, Target};
use pgassay_wire::{Exchange, Login};

const MODES: [QueryProtocol; 3] = [
    QueryProtocol::Simple,
    QueryProtocol::Extended,
    QueryProtocol::Prepared,
];

fn config(server: &BareServer, protocol: QueryProtocol, scripts: &[&str]) -> ClientPoolConfig {
    let mut names = VariableNames::new();
    let options = ParseOptions {
        protocol,
        ..ParseOptions::default()
    };
    let scripts: Vec<_> = scripts
        .iter()
        .map(|text| WeightedScript {
            script: Arc::new(ParsedScript::parse("test.sql", text, &options, &mut names).unwrap()),
            weight: 1,
        })
        .collect();
    let directory = server.socket_directory();
    let target = Target::unix(directory.to_str().unwrap(), 5432, "tester", "postgres");
    let first = Arc::clone(&scripts[0].script);
    ClientPoolConfig {
        clients: 4,
        threads: 2,
        protocol,
        scripts,
        io: crate::io(module_path!()),
        ..ClientPoolConfig::new(target, first, Arc::new(names))
    }
}

fn connect(config: &ClientPoolConfig) -> ClientPool {
    ClientPool::connect(config, &Arc::new(AtomicBool::new(false))).unwrap()
}

fn timed(settle_ms: u64, measure_ms: u64) -> RunLength {
    RunLength::Timed {
        settle: Duration::from_millis(settle_ms),
        measure: Duration::from_millis(measure_ms),
    }
}

fn counted(transactions_per_client: u64) -> RunLength {
    RunLength::Counted {
        transactions_per_client,
    }
}

fn admin(server: &BareServer) -> Exchange<std::os::unix::net::UnixStream> {
    let login = Login {
        user: "tester".into(),
        database: "postgres".into(),
        ..Login::default()
    };
    Exchange::open(server.connect(), &login).unwrap()
}

fn assert_closes(measured: &Measurement, clients: u64) {
    let time = measured.time;
    let sum = time.in_transaction_us + time.asleep_us + time.between_us;
    let expected = clients * measured.window_us;
    assert!(
        sum.abs_diff(expected) * 100 <= expected,
        "{sum} of {expected}: {time:?}"
    );
    assert_eq!(measured.transactions, measured.clients.iter().sum::<u64>());
    assert_eq!(measured.transactions, measured.latency_ns.len());
    assert!(measured.transactions_total >= measured.transactions + measured.settle_transactions);
}

#[test]
fn every_mode_counts_what_the_server_counts() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut admin = admin(&server);
    admin
        .query("create sequence s; create table t (client int, value text)")
        .unwrap();
    let script = "\\set a random(1, 10)\nselect nextval('s');\n\
                  insert into t values (:client_id, :a::int + 1);\n";
    let mut total = 0;
    for protocol in MODES {
        let mut pool = connect(&config(&server, protocol, &[script]));
        let mut pids = pool.backend_pids();
        pids.sort_unstable();
        pids.dedup();
        assert_eq!(pids.len(), 4);
        for window in [timed(50, 200), timed(0, 100), counted(25)] {
            let mut measured = pool.run(&window).unwrap();
            // A busy machine may run nothing in a tenth of a second.
            for _ in 0..100 {
                if measured.transactions > 0 {
                    break;
                }
                total += measured.transactions_total;
                measured = pool.run(&window).unwrap();
            }
            assert_closes(&measured, 4);
            assert!(measured.transactions > 0 && measured.failed_total == 0);
            if window == counted(25) {
                assert_eq!(measured.clients, [25; 4]);
            } else {
                assert!(measured.window_us.is_multiple_of(100_000));
            }
            total += measured.transactions_total;
            assert_eq!(measured.threads.len(), 2);
            assert!(measured.threads.iter().all(|thread| thread.cpu_us > 0));
            // Nothing runs any more: every transaction is counted, and each backend is idle.
            let rows = admin.value("select count(*) from t").unwrap().unwrap();
            assert_eq!(rows, total.to_string());
            let busy = "select count(*) from pg_stat_activity where state <> 'idle' \
                        and backend_type = 'client backend' and pid <> pg_backend_pid()";
            assert_eq!(admin.value(busy).unwrap().unwrap(), "0");
        }
        pool.close();
        let left = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
        assert_eq!(admin.value(left).unwrap().unwrap(), "1");
    }
    let clients = admin
        .value("select string_agg(distinct client::text, ' ') from t")
        .unwrap();
    assert_eq!(clients.unwrap(), "0 1 2 3");
}

#[test]
fn equal_seeds_draw_equally() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut admin = admin(&server);
    admin
        .query("create table t (run int, client int, a int, b float)")
        .unwrap();
    let script = "\\set a random(1, 1000000)\n\\set b random_gaussian(1, 1000, 4)\n\
                  insert into t values (:run, :client_id, :a, :b);\n";
    for run in 0..2 {
        let mut config = config(&server, QueryProtocol::Prepared, &[script]);
        config.seed = 5432;
        config.variables = vec![("run".into(), run.to_string())];
        connect(&config).run(&counted(10)).unwrap();
    }
    let difference = "select count(*) from (select client, a, b from t where run = 0 except all \
                      select client, a, b from t where run = 1) x";
    assert_eq!(admin.value(difference).unwrap().unwrap(), "0");
    assert_eq!(
        admin
            .value("select count(distinct a) > 30 from t")
            .unwrap()
            .unwrap(),
        "t"
    );
}

#[test]
fn captured_values_come_back() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    admin(&server)
        .query("create table t (a text, b text, c text, d text)")
        .unwrap();
    let script = "select 1 as one, 'x y' as two \\gset p_\n\
                  select 5 as five\\; select 6 as six, null as nothing\\; select 7 as one where false \\aset\n\
                  insert into t values (:p_one, :p_two, :five, :six || :nothing);\n";
    let simple = script
        .replace(":p_two", "':p_two'")
        .replace(":nothing", "':nothing'");
    // In the other modes each command is one statement.
    let single = "select 1 as one, 'x y' as two \\gset p_\nselect 5 as five \\aset\n\
                  select 6 as six, null as nothing \\aset\n\
                  insert into t values (:p_one, :p_two, :five, :six::text || :nothing::text);\n";
    for (protocol, script) in [
        (MODES[0], simple.as_str()),
        (MODES[1], single),
        (MODES[2], single),
    ] {
        connect(&config(&server, protocol, &[script]))
            .run(&counted(3))
            .unwrap();
    }
    let mut admin = admin(&server);
    let wrong =
        "select count(*), count(*) filter (where (a, b, c, d) = ('1', 'x y', '5', '6')) from t";
    let answer = admin.query(wrong).unwrap().remove(0);
    assert_eq!(
        answer.rows,
        [[Some("36".to_owned()), Some("36".to_owned())]]
    );

    let script = "select generate_series(1, 3) as x \\gset\n";
    let error = connect(&config(&server, QueryProtocol::Simple, &[script])).run(&counted(1));
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("expected one row, got 3")
    );
}

#[test]
fn pipelines() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut admin = admin(&server);
    admin.query("create table t (a int)").unwrap();
    let inserts = "insert into t values (:client_id);\n".repeat(20);
    let script = format!(
        "begin;\n\\startpipeline\n{inserts}\\syncpipeline\n{inserts}\\endpipeline\ncommit;\n"
    );
    for protocol in [QueryProtocol::Extended, QueryProtocol::Prepared] {
        let mut pool = connect(&config(&server, protocol, &[&script]));
        let measured = pool.run(&timed(20, 100)).unwrap();
        assert_closes(&measured, 4);
        let rows = admin.value("select count(*) from t").unwrap().unwrap();
        assert_eq!(rows, (measured.transactions_total * 40).to_string());
        admin.query("truncate t").unwrap();
    }
    let broken = "\\startpipeline\nselect 1;\nselect 1/:client_id;\nselect 2;\n\\endpipeline\n";
    let error = connect(&config(&server, QueryProtocol::Prepared, &[broken])).run(&timed(0, 100));
    let text = error.unwrap_err().to_string();
    for part in [
        "client 0",
        "command 2",
        "line 3",
        "select 1/",
        "22012",
        "division by zero",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn statements_of_tables_that_do_not_exist_yet() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let script = "create temp table if not exists mine (a int);\n\
                  insert into mine values (1);\n\
                  select count(*) as n from mine \\gset\n\\startpipeline\n\
                  select :n;\nselect sum(a) from mine;\n\\endpipeline\n";
    let mut pool = connect(&config(&server, QueryProtocol::Prepared, &[script, script]));
    let measured = pool.run(&counted(20)).unwrap();
    assert_eq!(measured.transactions, 80);
    assert_eq!(
        measured
            .scripts
            .iter()
            .map(|script| script.transactions)
            .sum::<u64>(),
        80
    );

    let script = "select * from nowhere;\n";
    let mut pool = connect(&config(&server, QueryProtocol::Prepared, &[script]));
    let text = pool.run(&timed(0, 100)).unwrap_err().to_string();
    for part in ["test.sql", "line 1", "42P01", "nowhere"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(matches!(pool.run(&timed(0, 1)), Err(LoadError::Spent)));
}

#[test]
fn serialization_failures_are_counted_and_rolled_back() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut admin = admin(&server);
    admin
        .query("create table t (a int); insert into t values (0)")
        .unwrap();
    let script = "begin isolation level repeatable read;\nselect a from t;\n\
                  \\sleep 1 ms\nupdate t set a = a + 1;\nend;\n";
    for protocol in MODES {
        let mut pool = connect(&config(&server, protocol, &[script]));
        let mut total = 0;
        let has_both = (0..20).any(|_| {
            let measured = pool.run(&timed(0, 300)).unwrap();
            assert_closes(&measured, 4);
            assert!(measured.time.asleep_us > 0);
            total += measured.transactions_total;
            measured.failed > 0 && measured.transactions > 0 && measured.timer_lag.wakeups > 0
        });
        assert!(has_both, "{protocol:?}");
        let updates = admin.value("select a from t").unwrap().unwrap();
        assert_eq!(updates, total.to_string());
        admin.query("update t set a = 0").unwrap();
    }
}

#[test]
fn an_open_transaction_at_the_end_is_refused() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut pool = connect(&config(
        &server,
        QueryProtocol::Simple,
        &["begin;\nselect 1;\n"],
    ));
    let text = pool.run(&timed(0, 100)).unwrap_err().to_string();
    assert!(
        text.contains("without completing the last transaction"),
        "{text}"
    );
}

#[test]
fn large_statements_and_results_pass() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let script = format!(
        "select length('{}'), repeat('y', 300000), repeat('z', 300000) as z;\n",
        "x".repeat(500_000)
    );
    for protocol in MODES {
        let measured = connect(&config(&server, protocol, &[&script]))
            .run(&counted(5))
            .unwrap();
        assert_eq!(measured.transactions, 20);
    }
    // Both directions are full at the same time: sending must not keep the client from reading.
    let statement = format!("select repeat('y', 200000) || '{}';\n", "x".repeat(200_000));
    let script = format!("\\startpipeline\n{}\\endpipeline\n", statement.repeat(20));
    let mut pool = connect(&config(&server, QueryProtocol::Extended, &[&script]));
    assert_eq!(pool.run(&counted(2)).unwrap().transactions, 8);
}

#[test]
fn a_server_that_dies_is_an_error() {
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        let Some(server) = BareServer::trusting() else {
            return;
        };
        let mut pool = connect(&config(&server, QueryProtocol::Prepared, &["select 1;\n"]));
        pool.run(&timed(0, 50)).unwrap();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                server.signal(signal);
            });
            pool.run(&timed(0, 20_000)).unwrap_err()
        });
        assert!(matches!(error, LoadError::Lost { .. }), "{error}");
        let text = error.to_string();
        // During an immediate shutdown, a backend that is sending reports nothing.
        assert!(signal == libc::SIGQUIT || text.contains("57P0"), "{text}");
    }
    // A server that dies between runs is noticed too.
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut pool = connect(&config(&server, QueryProtocol::Simple, &["select 1;\n"]));
    drop(server);
    let error = pool.run(&timed(0, 1_000)).unwrap_err();
    assert!(
        matches!(error, LoadError::Lost { last: Some(_), .. }),
        "{error}"
    );
}

#[test]
fn stop_flag_ends_a_run() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let stop = Arc::new(AtomicBool::new(false));
    let config = config(&server, QueryProtocol::Prepared, &["select 1;\n"]);
    let mut pool = ClientPool::connect(&config, &stop).unwrap();
    let measured = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            stop.store(true, Ordering::Relaxed);
        });
        pool.run(&timed(50, 60_000)).unwrap()
    });
    assert!(measured.interrupted && measured.unfinished == 0);
    assert!(measured.window_us < 30_000_000, "{}", measured.window_us);
    assert_closes(&measured, 4);
    // All clients finished, so the connections are still usable.
    stop.store(false, Ordering::Relaxed);
    assert_eq!(pool.run(&counted(3)).unwrap().transactions, 12);
}

#[test]
fn tcp_passwords_and_several_hosts() {
    let hba = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    let Some(server) = BareServer::start_with_tcp(hba) else {
        return;
    };
    let directory = server.socket_directory();
    let mut local = config(&server, QueryProtocol::Simple, &["select 1;\n"]);
    let port = server.port();
    local.target = Target::unix(directory.to_str().unwrap(), port, "tester", "postgres");
    local.scripts[0] = {
        let mut names = VariableNames::new();
        let text = "alter role tester password 'secret';\n";
        let script =
            ParsedScript::parse("test.sql", text, &ParseOptions::default(), &mut names).unwrap();
        WeightedScript {
            script: Arc::new(script),
            weight: 1,
        }
    };
    local.clients = 1;
    connect(&local).run(&counted(1)).unwrap();

    let request = |text: &str| {
        let request = Request::new()
            .conninfo(text)
            .unwrap()
            .option("dbname", "postgres")
            .unwrap();
        request
            .option("user", "tester")
            .unwrap()
            .resolve(&EmptyEnvironment)
            .unwrap()
    };
    let mut config = config(&server, QueryProtocol::Prepared, &["select :client_id;\n"]);
    config.clients = 30;
    // Nothing listens on port 1.
    config.target = request(&format!("postgres://:secret@127.0.0.1:1,localhost:{port}/"));
    let mut pool = connect(&config);
    let measured = pool.run(&counted(5)).unwrap();
    assert_eq!(measured.transactions, 150);
    pool.close();

    let stop = Arc::new(AtomicBool::new(false));
    config.target = request(&format!("postgres://:wrong@127.0.0.1:{port}/"));
    let error = ClientPool::connect(&config, &stop).err().unwrap();
    assert!(error.to_string().contains("28P01"), "{error}");
    config.target = request("postgres://:secret@127.0.0.1:1/");
    let error = ClientPool::connect(&config, &stop).err().unwrap();
    assert!(matches!(&error, LoadError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("port 1"), "{error}");
}

#[test]
fn connection_refusals_are_reported() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut crowd = config(&server, QueryProtocol::Simple, &["select 1;\n"]);
    crowd.clients = 400;
    let stop = Arc::new(AtomicBool::new(false));
    let error = ClientPool::connect(&crowd, &stop).err().unwrap();
    assert!(
        matches!(&error, LoadError::Refused { error, .. } if error.sqlstate == "53300"),
        "{error}"
    );
    crowd.clients = 1;
    crowd.target.database = "nowhere".into();
    let error = ClientPool::connect(&crowd, &stop).err().unwrap();
    assert!(error.to_string().contains("3D000"), "{error}");
    crowd.clients = 0;
    assert!(matches!(
        ClientPool::connect(&crowd, &stop),
        Err(LoadError::Config { .. })
    ));
}

#[test]
fn a_hook_sees_every_request_and_its_backend() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let config = ClientPoolConfig {
        clients: 1,
        threads: 1,
        ..config(
            &server,
            QueryProtocol::Prepared,
            &["select 1;\nselect 2;\n"],
        )
    };
    let mut pool = connect(&config);
    let pids = pool.backend_pids();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    pool.before_requests(Arc::new(move |pid| sink.lock().unwrap().push(pid)));
    pool.run(&counted(3)).unwrap();
    assert_eq!(*seen.lock().unwrap(), vec![pids[0]; 6]);
}

/// Counts transactions by client.
struct CountingObserver(Arc<Mutex<Vec<u64>>>);

impl Observer for CountingObserver {
    fn transaction(&mut self, transaction: &Transaction) {
        assert!(transaction.begin_ns < transaction.end_ns);
        self.0.lock().unwrap()[transaction.client as usize] += 1;
    }
    fn failed_try(&mut self, _: &FailedTry<'_>) {}
    fn aborted(&mut self, _: u32, _: &LoadError) {}
}

#[test]
fn a_run_is_observed_and_the_next_one_is_not() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut pool = connect(&config(&server, QueryProtocol::Simple, &["select 1;\n"]));
    let known = Arc::new(Mutex::new(vec![0; 4]));
    for threads_told in [2, 1, 0] {
        let known = Arc::clone(&known);
        known.lock().unwrap().fill(0);
        pool.observe(|thread| {
            let observer = || Box::new(CountingObserver(Arc::clone(&known))) as Box<dyn Observer>;
            (thread < threads_told).then(observer)
        });
        pool.run(&counted(7)).unwrap();
        // Two clients on each thread.
        let expected: Vec<u64> = (0..4)
            .map(|at| u64::from(at < 2 * threads_told) * 7)
            .collect();
        assert_eq!(*known.lock().unwrap(), expected);
    }
    assert_eq!(pool.threads(), 2);
    pool.close();
}

/// Time in transactions, between them and asleep adds up to clients × window in every case.
#[test]
fn client_time_adds_up() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    for (clients, script, rate_per_s) in [
        (1, "select 1;\n", None),
        (16, "select 1;\n\\sleep 2 ms\nselect 2;\n", None),
        (16, "select 1;\n", Some(3000.0)),
        (64, "select 1;\n", None),
        (64, "\\sleep 500 us\nselect 1;\n", Some(2000.0)),
    ] {
        let mut config = config(&server, QueryProtocol::Prepared, &[script]);
        (config.clients, config.threads) = (clients, 1);
        config.options.rate_per_s = rate_per_s;
        let mut pool = connect(&config);
        let measured = pool.run(&timed(50, 300)).unwrap();
        pool.close();
        assert_closes(&measured, u64::from(clients));
        let sleeps = script.contains("sleep");
        assert_eq!(measured.time.asleep_us > 0, sleeps, "{:?}", measured.time);
        if rate_per_s.is_some() {
            assert!(measured.time.between_us > 0);
            let since_begin = measured.since_begin_ns.unwrap();
            assert_eq!(since_begin.len(), measured.transactions);
            assert!(since_begin.mean() <= measured.latency_ns.mean());
        }
    }
}

#[test]
fn a_connection_for_each_transaction_is_timed_in_parts() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut config = config(&server, QueryProtocol::Prepared, &["select 1;\n"]);
    config.options.reconnects = true;
    let mut pool = connect(&config);
    let measured = pool.run(&counted(10)).unwrap();
    pool.close();
    assert_eq!(measured.transactions, 40);
    assert_closes(&measured, 4);
    let openings = measured.openings.unwrap();
    for part in [
        &openings.connect_ns,
        &openings.authenticate_ns,
        &openings.first_query_ns,
    ] {
        assert_eq!(part.len(), 40);
    }
    // Starting a backend takes longer than connecting to the postmaster.
    assert!(openings.authenticate_ns.mean() > openings.connect_ns.mean());
}
