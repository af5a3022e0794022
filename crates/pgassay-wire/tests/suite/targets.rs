//! `target_session_attrs` with a primary and a standby, of a version that reports its type and one
//! that must be queried, and with unresponsive servers; compared with psql.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pgassay_test_support::BareServer;

use crate::connecting::{ProcessEnvironment, compare, ours, psql_major};

const RESTRICTED: &[(&str, &str)] = &[("PGOPTIONS", "-c default_transaction_read_only=on")];

fn around(variables: &[(&str, &str)]) -> ProcessEnvironment {
    let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    ProcessEnvironment {
        variables: variables.iter().map(owned).collect(),
        home: PathBuf::from("/nonexistent"),
    }
}

#[test]
fn the_kind_of_server_is_chosen_against_the_real_psql() {
    let Some(_) = psql_major("kinds of servers against the real psql") else {
        return;
    };
    for version in ["18", "13"] {
        let Some((primary, standby)) = BareServer::pair(version) else {
            continue;
        };
        let (first, second) = (primary.port().to_string(), standby.port().to_string());
        // The letters are the servers in order (primary or standby), then the one expected, or
        // none.
        for (ports, kind, variables, leads_to) in [
            ("ps", "any", &[][..], "p"),
            ("sp", "any", &[], "s"),
            ("sp", "read-write", &[], "p"),
            ("ps", "read-only", &[], "s"),
            ("sp", "primary", &[], "p"),
            ("ps", "standby", &[], "s"),
            ("ps", "prefer-standby", &[], "s"),
            ("pp", "prefer-standby", &[], "p"),
            ("p", "standby", &[], "-"),
            ("s", "primary", &[], "-"),
            ("ss", "read-write", &[], "-"),
            ("pp", "read-only", &[], "-"),
            ("ps", "read-write", RESTRICTED, "-"),
            ("ps", "read-only", RESTRICTED, "p"),
            ("sp", "primary", RESTRICTED, "p"),
        ] {
            let port = |letter| if letter == 'p' { &first[..] } else { &second };
            let ports: Vec<_> = ports.chars().map(port).collect();
            let hosts = vec!["127.0.0.1"; ports.len()].join(",");
            let text = format!(
                "host={hosts} port={} user=tester dbname=postgres target_session_attrs={kind}",
                ports.join(",")
            );
            let came = compare(&text, &around(variables));
            match (leads_to, &came) {
                ("-", Err(_)) => {}
                ("p", Ok(who)) => assert!(who.contains(&first), "{version} {text}: {who}"),
                ("s", Ok(who)) => assert!(who.contains(&second), "{version} {text}: {who}"),
                _ => panic!("{version} {text} {variables:?}: {came:?}"),
            }
        }
        let reason = |kind: &str, port: &str| {
            let text = format!(
                "host=127.0.0.1 port={port} user=tester dbname=postgres target_session_attrs={kind}"
            );
            ours(&text, &around(&[])).unwrap_err()
        };
        for (kind, port, words) in [
            ("read-write", &second, "session is read-only"),
            ("read-only", &first, "session is not read-only"),
            ("primary", &second, "server is in hot standby mode"),
            ("standby", &first, "server is not in hot standby mode"),
        ] {
            assert!(reason(kind, port).ends_with(words), "{version} {kind}");
        }
    }
}

#[test]
fn silent_server_times_out_to_next_host() {
    let Some(server) = BareServer::start_with_tcp("host all all 127.0.0.1/32 trust\n") else {
        return;
    };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        "host=127.0.0.1,127.0.0.1 port={},{} user=tester dbname=postgres connect_timeout=2",
        silent.local_addr().unwrap().port(),
        server.port()
    );
    let begin = Instant::now();
    for mode in ["disable", "prefer"] {
        let came = ours(&format!("{text} sslmode={mode}"), &around(&[]));
        assert!(came.unwrap().contains(&server.port().to_string()));
    }
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
}
