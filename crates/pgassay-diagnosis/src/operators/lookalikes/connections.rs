//! Sessions that come and go, and those for which there is no connection.

use pgassay_record::activity::{LoadMark, LoadMarkKind};

use super::build::ExampleServer;
use super::of_id;

/// Sessions that were seen to last for a moment, and thousands of transactions.
pub(super) fn brief_sessions(counted: Option<u64>, seen: u64) -> ExampleServer {
    ExampleServer::new().catalog(|it| {
        it.databases[0].sessions = counted;
        let connections = it.connections.as_mut().expect("connections");
        connections.brief_seen = Some(seen);
    })
}

/// Regression: before version 14, which does not count sessions, `pgbench -C` was no storm of connections.
#[test]
fn sessions_of_a_moment_are_a_storm_where_they_are_not_counted() {
    let found = |counted| {
        let server = brief_sessions(counted, 1000);
        of_id("connection-storm", &server.activity)
    };
    assert!(found(Some(2)).is_empty());
    let storm = found(None).remove(0);
    let facts: Vec<&str> = storm.evidence.iter().map(|it| &*it.what).collect();
    assert!(
        facts.iter().any(|it| it.starts_with("sessions of less")),
        "{facts:?}"
    );
    assert!(!facts.contains(&"sessions established"), "{facts:?}");
}

/// Regression: connections that were refused in the window were no finding if there were free ones at its end.
#[test]
fn refused_connections_are_a_lack_of_them() {
    let found = |text: &str| {
        let mut server = ExampleServer::new();
        server.activity.marks.push(LoadMark {
            at_us: 2e6,
            length_us: 3e6,
            kind: LoadMarkKind::LogError,
            text: text.to_owned(),
            count: Some(40),
        });
        of_id("connections-exhausted", &server.activity)
    };
    for refused in [
        "FATAL: sorry, too many clients already (and 39 more)",
        "FATAL: remaining connection slots are reserved for roles with the SUPERUSER attribute (and 39 more)",
    ] {
        let found = found(refused).remove(0);
        let fact = found.evidence.iter();
        let mut fact = fact.filter(|it| it.what.starts_with("refused"));
        let count = fact.next().and_then(|it| it.value);
        assert!(
            count.is_some_and(|it| (it - 40.0).abs() < 1e-9),
            "{found:?}"
        );
    }
    for other in [
        "ERROR: division by zero (and 39 more)",
        "FATAL: too many connections for role \"web\" (and 39 more)",
    ] {
        assert!(found(other).is_empty(), "{other}");
    }
}

/// Regression: before version 14, 12 short sessions per second were a storm among 20,000 transactions per second.
#[test]
fn a_few_short_sessions_among_many_transactions_are_no_storm() {
    let found = |committed: u64| {
        let server = brief_sessions(None, 120).catalog(|it| it.databases[0].committed = committed);
        of_id("connection-storm", &server.activity).len()
    };
    assert_eq!(found(200_000), 0);
    assert_eq!(found(10_000), 1);
}
