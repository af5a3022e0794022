//! Times of the statements of a pipeline in a long run, which times one statement per transaction.

use std::process::{Command, Stdio};

use pgassay_test_support::{BareServer, timing_tests};

use crate::PROGRAM;

const INSERT: &str = "insert into tbl values (1, 2);";

timing_tests! {
    statements_of_a_pipeline_take_longer_the_later_they_are,
}

fn statements_of_a_pipeline_take_longer_the_later_they_are() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    server.value("create table tbl (id int, info text)");
    let directory = tempfile::tempdir().unwrap();
    let inserts = format!("{INSERT}\n").repeat(50);
    let script = format!("\\startpipeline\n{inserts}\\endpipeline\n");
    std::fs::write(directory.path().join("p.sql"), script).unwrap();
    let arguments = "-M prepared -n -r -f p.sql -c 2 -t 1000 --json --latency-percentiles=10";
    let output = Command::new(PROGRAM)
        .arg("bench")
        .args(arguments.split_whitespace())
        .env("PGHOST", server.socket_directory())
        .env("PGPORT", server.port().to_string())
        .env("PGUSER", "tester")
        .env("PGDATABASE", "postgres")
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let statements = report["scripts"][0]["statements"].as_array().unwrap();
    // The fastest 10% of the times, because others may include waiting for a CPU.
    let quick: Vec<f64> = statements
        .iter()
        .filter(|it| it["text"] == INSERT)
        .map(|it| it["latency_ms"]["percentiles"]["10"].as_f64().unwrap())
        .collect();
    assert_eq!(quick.len(), 50, "{report}");
    let of_ten = |from: usize| {
        let mut ten = quick[from..from + 10].to_vec();
        ten.sort_by(f64::total_cmp);
        ten[5]
    };
    assert!(
        of_ten(0) < of_ten(20) && of_ten(20) < of_ten(40),
        "{quick:?}"
    );
}
