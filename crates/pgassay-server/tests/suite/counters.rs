//! Counters of real servers.

use std::thread;

use pgassay_server::{CounterReader, CounterReading};
use pgassay_test_support::servers;

/// Regression: pgassay asks `pg_stat_activity` for wait events in the server's first database; of 2,208 transactions
/// on version 10, 2,223 were counted.
#[test]
fn statements_in_other_databases_are_not_counted() {
    for version in ["10", "18"] {
        let Some(server) = servers::start(version) else {
            return;
        };
        let mut first = server.connect().unwrap();
        first.execute("create database load").unwrap();
        let mut load = server.connect_as(server.superuser(), "load", None).unwrap();
        let mut reader = CounterReader::open(&server, &["load".to_owned()]).unwrap();
        let mut read = |asks: u32| {
            for _ in 0..asks {
                first.execute("select count(*) from pg_class").unwrap();
                load.execute("select count(*) from pg_class").unwrap();
                first.execute("select count(*) from pg_class").unwrap();
            }
            thread::sleep(reader.flush_wait());
            for connection in [&mut first, &mut load] {
                connection.execute(reader.flush_statement()).unwrap();
            }
            let mut reading = CounterReading::default();
            reader.read_views(&mut reading).unwrap();
            reading
        };
        let before = read(1);
        let counted = read(20).since(&before);
        // With the statement that makes the backend report.
        let commits = counted["pg_stat_database.xact_commit"];
        assert!((commits - 21.0).abs() < 0.1, "{version}: {counted:?}");
        server.stop().unwrap();
    }
}
