//! `pgassay bench -i` on real servers: the tables it creates and how it fills them.

use std::process::Command;

use pgassay_server::Server;
use pgassay_test_support::servers;

use crate::PROGRAM;

/// Runs `pgassay bench` as a version of pgbench and returns its output.
fn bench(server: &Server, compat: &str, arguments: &str) -> String {
    let output = Command::new(PROGRAM)
        .arg("bench")
        .args(arguments.split_whitespace())
        .arg(format!("--compat={compat}"))
        .arg(server.conninfo())
        .env_remove("PGDATABASE")
        .output()
        .unwrap();
    let version = server.installation().version.to_string();
    assert!(
        output.status.success(),
        "{arguments} as {compat} on {version}: {output:?}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The tables by name, each with its kind (`r`, or `p` for a partitioned one) and its persistence
/// (`p` for permanent, or `u` for unlogged).
fn tables(server: &Server) -> Vec<String> {
    let mut connection = server.connect().unwrap();
    let rows = connection
        .query(
            "select replace(relname, 'pgbench_', '') || ' ' || relkind::text || relpersistence::text \
             from pg_class where relname like 'pgbench%' and relkind in ('r', 'p') \
             order by relname",
        )
        .unwrap();
    connection.close().unwrap();
    rows.into_iter()
        .map(|row| row[0].clone().unwrap())
        .collect()
}

fn rows_of_accounts(server: &Server) -> Option<String> {
    let mut connection = server.connect().unwrap();
    let count = connection.value("select count(*) from pgbench_accounts");
    connection.close().unwrap();
    count.unwrap()
}

const ALL_UNLOGGED: [&str; 4] = ["accounts ru", "branches ru", "history ru", "tellers ru"];
const ONLY_PARTITIONS_UNLOGGED: [&str; 6] = [
    "accounts pp",
    "accounts_1 ru",
    "accounts_2 ru",
    "branches rp",
    "history rp",
    "tellers rp",
];
const ALL_UNLOGGED_AND_PARTITIONED: [&str; 6] = [
    "accounts pu",
    "accounts_1 ru",
    "accounts_2 ru",
    "branches ru",
    "history ru",
    "tellers ru",
];

#[test]
fn unlogged_partitions_fail_on_server_18() {
    let Some(server) = servers::start("18") else {
        return;
    };
    for (compat, method) in [
        ("18", "range"),
        ("18", "hash"),
        ("17", "hash"),
        ("15", "range"),
    ] {
        let options = format!("-i -q --unlogged-tables --partitions=2 --partition-method={method}");
        bench(&server, compat, &options);
        assert_eq!(tables(&server), ONLY_PARTITIONS_UNLOGGED, "{compat}");
        assert_eq!(rows_of_accounts(&server).as_deref(), Some("100000"));
        let report = bench(&server, compat, "-S -n -t 1");
        assert!(report.contains("partitions: 2\n"), "{report}");
    }
    bench(&server, "18", "-i -q --unlogged-tables");
    assert_eq!(tables(&server), ALL_UNLOGGED);
}

#[test]
fn filling_tables_that_an_earlier_run_partitioned_fails() {
    let Some(server) = servers::start("18") else {
        return;
    };
    bench(&server, "18", "-i -q -I dt --partitions=3");
    // Only the server knows that the table is partitioned, which rules out COPY … FREEZE.
    bench(&server, "18", "-i -q -I g");
    assert_eq!(rows_of_accounts(&server).as_deref(), Some("100000"));
}

mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn unlogged_partitions_on_older_servers_are_those_of_the_pgbench_that_is_asked_for() {
        // Partitioned tables have no primary key before version 11 and do not exist before 10.
        for (version, steps) in [("15", "dtgvp"), ("10", "dtg")] {
            let Some(server) = servers::start(version) else {
                return;
            };
            let options = format!("-i -q -I {steps} --unlogged-tables --partitions=2");
            bench(&server, "18", &options);
            assert_eq!(tables(&server), ONLY_PARTITIONS_UNLOGGED, "{version}");
            bench(&server, "15", &options);
            assert_eq!(tables(&server), ALL_UNLOGGED_AND_PARTITIONED, "{version}");
            assert_eq!(rows_of_accounts(&server).as_deref(), Some("100000"));
        }
        let Some(server) = servers::start("9.6") else {
            return;
        };
        bench(&server, "18", "-i -q --unlogged-tables");
        assert_eq!(tables(&server), ALL_UNLOGGED);
    }
}
