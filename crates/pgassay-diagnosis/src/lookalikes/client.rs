//! Between client and server.

use pgassay_account::ledger::{Divider, Nature, Part, Row};

use super::super::evidence::Evidence;
use super::{Case, case, load, stacks};

/// A transaction of five statements between which the server waits for 5 ms, with this row of the client in the ledger.
fn between_statements(mechanism: &str) -> Evidence {
    let row = |part, nature, mechanism: &str, us| Row {
        part,
        nature,
        phase: String::new(),
        mechanism: mechanism.to_owned(),
        us,
        system_us: 0.0,
        possible_us: 0.0,
    };
    let nature = match mechanism {
        "client sleep" => Nature::Think,
        "client CPU" => Nature::Service,
        _ => Nature::Queueing,
    };
    let rows = [
        row(Part::OnCpu, Nature::Service, "executor", 100.0),
        row(Part::Client, nature, mechanism, 5000.0),
        row(Part::Client, Nature::Queueing, "network and wake-up", 60.0),
    ];
    let evidence = Evidence {
        statements: Some(5.0),
        ..load(&[], &[], &[("backends.voluntary_switches", 6.0)])
    };
    evidence.with_rows(&rows, Divider::MemoryWaitEvents)
}

pub(super) fn of_client() -> Vec<Case> {
    let trips = |count: f64| {
        let switches = [("backends.voluntary_switches", count)];
        load(&[], &[("client", 400.0)], &switches)
    };
    let limited = |share: f64| Evidence {
        client_limited: share,
        client_cpu_us: 90.0,
        ..stacks(&[])
    };
    vec![
        case(
            "round-trips",
            "one statement per transaction and long think time: a long wait, one round trip",
            trips(12.0),
            trips(1.0),
        ),
        // Regression: five statements with 5 ms of `\\sleep` were to be sent in a pipeline.
        case(
            "round-trips",
            "several statements and a client that thinks between them, or whose thread serves another client",
            between_statements("network and wake-up"),
            between_statements("client sleep"),
        ),
        case(
            "round-trips",
            "several statements and a client that thinks between them, or whose thread serves another client",
            between_statements("client CPU"),
            between_statements("client thread busy"),
        ),
        case(
            "client-limited",
            "a load generator that uses much CPU time but is saturated in few trials",
            limited(1.0),
            limited(0.1),
        ),
        case(
            "connection-churn",
            "parallel workers: processes that start and end, but not for a client",
            stacks(&[(
                "BackendStartup;InitPostgres;RelationCacheInitializePhase3",
                40,
            )]),
            stacks(&[(
                "BackgroundWorkerMain;InitPostgres;RelationCacheInitializePhase3",
                40,
            )]),
        ),
        // Regression: reconnecting had no finding, because the processes end before they are sampled.
        case(
            "connection-churn",
            "connections that are opened for each transaction, which takes much longer",
            Evidence {
                reconnects: true,
                ..stacks(&[])
            },
            Evidence {
                reconnects: true,
                tps: 8.0 * 1e6 / 150.0,
                ..stacks(&[])
            },
        ),
    ]
}

pub(super) fn of_tls() -> Vec<Case> {
    let message = "secure_write;be_tls_write;SSL_write;libssl";
    let encryption = format!("{message};EVP_EncryptUpdate;libcrypto");
    let sending = format!("{message};BIO_write;libcrypto;port_bio_write;send;tcp_sendmsg");
    let receiving = "secure_read;be_tls_read;SSL_read;libssl;my_sock_read;secure_raw_read;recv";
    vec![
        case(
            "tls",
            "encrypted connections that stay open, with CPU-intensive statements",
            stacks(&[("secure_read;be_tls_read", 20)]),
            stacks(&[("secure_read;be_tls_read", 4)]),
        ),
        // Regression: of +131 µs for TLS, +50 µs were in the measured difference. Sending is the rest.
        case(
            "tls",
            "encrypted connections whose time is in send() and recv(), which plain ones call, too",
            stacks(&[(encryption.as_str(), 10), (sending.as_str(), 25)]),
            stacks(&[
                (encryption.as_str(), 3),
                (sending.as_str(), 25),
                (receiving, 8),
            ]),
        ),
        case(
            "tls",
            "md5() and other functions that use the same library without TLS",
            stacks(&[("secure_write;be_tls_write;libssl;libcrypto", 20)]),
            stacks(&[("md5_text;pg_cryptohash_update;libcrypto", 60)]),
        ),
    ]
}
