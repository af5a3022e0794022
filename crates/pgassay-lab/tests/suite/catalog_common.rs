//! What the tests of the catalog watch share.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use pgassay_lab::connector::{TimedStream, connect};
use pgassay_lab::watch::catalog::{CatalogOptions, CatalogWatch};
use pgassay_server::{Connection, ConnectionError, Server, ServerConfig};
use pgassay_test_support::{BareServer, servers, wait_until};
use pgassay_wire::Exchange;
use pgassay_wire::conninfo::{EmptyEnvironment, Request};

/// The oldest, the last before statistics in shared memory, and the newest.
pub const VERSIONS: [&str; 4] = ["9.6", "12", "15", "18"];

/// A server with everything that the watch reads, and a log of all statements.
pub fn start(version: &str) -> Option<Server> {
    servers::start_with(version, &config())
}

/// Runs a test on a new server of each version, unless it is not available here.
pub fn on_each(
    versions: &[&str],
    start: impl Fn(&str) -> Option<Server>,
    test: impl Fn(&str, &Server),
) {
    for version in versions {
        if let Some(server) = start(version) {
            test(version, &server);
            server.stop().expect("the server stops");
        }
    }
}

pub fn config() -> ServerConfig {
    let mut config = servers::config();
    let settings = [
        ("shared_preload_libraries", "pg_stat_statements"),
        ("max_prepared_transactions", "5"),
        ("max_replication_slots", "5"),
        ("wal_level", "logical"),
        ("autovacuum", "off"),
        ("deadlock_timeout", "10min"),
        ("log_statement", "all"),
        ("log_line_prefix", "%p|%a|"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    config.settings.extend(settings);
    config
}

/// A connection as the watch uses it.
pub fn exchange(server: &Server, more: &str) -> Exchange<TimedStream> {
    let conninfo = format!("{} application_name=pgassay {more}", server.conninfo());
    let request = Request::new().conninfo(&conninfo).expect("proper");
    let target = request.resolve(&EmptyEnvironment).expect("whole");
    let limit = Some(Duration::from_secs(30));
    connect(&target, limit).expect("connect").0
}

/// A connection to a server that was started by hand.
pub fn bare_exchange(server: &BareServer) -> Exchange<TimedStream> {
    bare_exchange_with(server, "")
}

/// The same with more options.
pub fn bare_exchange_with(server: &BareServer, more: &str) -> Exchange<TimedStream> {
    let conninfo = format!(
        "host='{}' port={} user=tester dbname=postgres {more}",
        server.socket_directory().display(),
        server.port()
    );
    let request = Request::new().conninfo(&conninfo).expect("proper");
    let target = request.resolve(&EmptyEnvironment).expect("whole");
    connect(&target, None).expect("connect").0
}

pub fn open_bare(server: &BareServer) -> CatalogWatch {
    let options = CatalogOptions { keeps_text: true };
    CatalogWatch::open(bare_exchange(server), &options).expect("the watch opens")
}

pub fn open(server: &Server) -> CatalogWatch {
    let options = CatalogOptions { keeps_text: true };
    CatalogWatch::open(exchange(server, ""), &options).expect("the watch opens")
}

pub fn execute(connection: &mut Connection, sql: &str) {
    connection
        .execute(sql)
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

pub fn pid(connection: &Connection) -> u32 {
    let pid = connection.backend_pid().expect("backend PID");
    u32::try_from(pid).expect("positive")
}

/// A statement that waits for a lock on a separate connection.
pub struct Waiter {
    pub pid: u32,
    running: JoinHandle<Result<(), ConnectionError>>,
}

impl Waiter {
    /// Starts the statement, and waits until it waits. `before` is executed first.
    pub fn start(server: &Server, before: &str, sql: &'static str) -> Self {
        let mut connection = server.connect().expect("a connection");
        if !before.is_empty() {
            execute(&mut connection, before);
        }
        Self::start_on(server, connection, sql)
    }

    pub fn start_on(server: &Server, mut connection: Connection, sql: &'static str) -> Self {
        let pid = pid(&connection);
        let running = thread::spawn(move || connection.execute(sql));
        let mut asker = server.connect().expect("a connection");
        wait_until(&format!("{sql} waits"), || {
            lock_waiters(&mut asker).contains(&pid)
        });
        Self { pid, running }
    }

    /// Waits until the statement ends.
    pub fn finish(self) -> Result<(), ConnectionError> {
        self.running.join().expect("no panic")
    }
}

/// A query that two workers execute with their leader, for minutes.
pub struct ParallelQuery {
    pub leader_pid: u32,
    running: JoinHandle<Result<(), ConnectionError>>,
}

impl ParallelQuery {
    pub const TEXT: &str = "select count(*) from parallel where pg_sleep(0.1) is not null";

    /// Starts it, and waits until all execute it.
    pub fn start(version: &str, server: &Server) -> Self {
        let mut leader = server.connect().expect("a connection");
        execute(
            &mut leader,
            "create table parallel as select generate_series(1, 20000) as n",
        );
        execute(&mut leader, "analyze parallel");
        let size = if version == "9.6" {
            "min_parallel_relation_size"
        } else {
            "min_parallel_table_scan_size"
        };
        for cost in ["parallel_setup_cost", "parallel_tuple_cost", size] {
            execute(&mut leader, &format!("set {cost} = 0"));
        }
        execute(&mut leader, "set max_parallel_workers_per_gather = 2");
        let leader_pid = pid(&leader);
        let running = thread::spawn(move || leader.execute(Self::TEXT));
        let mut asker = server.connect().expect("a connection");
        let holders = "select count(*) >= 3 from pg_stat_activity \
                       where backend_xmin is not null and pid <> pg_backend_pid()";
        wait_until("two workers run", || {
            let found = asker.value(holders).expect("the query succeeds");
            found.as_deref() == Some("t")
        });
        Self {
            leader_pid,
            running,
        }
    }

    /// Cancels it, and waits until it ends.
    pub fn cancel(self, server: &Server) {
        let mut canceler = server.connect().expect("a connection");
        let cancel = format!("select pg_cancel_backend({})", self.leader_pid);
        execute(&mut canceler, &cancel);
        let ended = self.running.join().expect("no panic");
        ended.expect_err("it is canceled");
    }
}

/// The PIDs that wait for locks, as sampling would find them.
pub fn lock_waiters(asker: &mut Connection) -> Vec<u32> {
    let sql = "select pid from pg_stat_activity where wait_event_type = 'Lock' order by pid";
    let rows = asker.query(sql).expect("the query succeeds");
    let pid = |row: &Vec<Option<String>>| row[0].as_ref()?.parse().ok();
    rows.iter().filter_map(pid).collect()
}
