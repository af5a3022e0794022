//! What `pgassay bench` reports of the begin and end of a run, and of clients that were aborted.

use pgassay_test_support::BareServer;
use serde_json::Value;

use crate::pgbench::{Finished, Scratch};

fn json(run: &Finished) -> Value {
    serde_json::from_str(&run.out).unwrap()
}

#[test]
fn tps_of_a_run_whose_clients_were_all_aborted_count_until_then() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    let gone = "select pg_terminate_backend(pg_backend_pid()) from pg_sleep(0.2);\n";
    scratch.script("gone.sql", gone);
    let run = scratch.ours(
        Some(&server),
        "-n -f gone.sql -c 4 -j 2 -T 3600 -R 1000 --json",
    );
    run.has(2, &[], &["Run was aborted"]);
    let json = json(&run);
    assert_eq!(json["aborted_clients"], 4);
    let elapsed_s = json["elapsed_s"].as_f64().unwrap();
    assert!((0.2..1800.0).contains(&elapsed_s), "{elapsed_s}");
    assert!(json["unserved"].as_u64().unwrap() < 1_800_000, "{json}");
}
