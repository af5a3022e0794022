//! pgbench's built-in select-only script against a server that has its tables: `select_only
//! SOCKET_DIRECTORY PORT USER DATABASE CLIENTS SECONDS [THREADS] [MODE] [SCRIPT]`.
//!
//! Prints one line: tps, client CPU time per transaction, p50 and p99, fairness. `against_pgbench`
//! compares these with pgbench.

#![allow(clippy::unwrap_used, reason = "an example fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pgassay_load::{ClientPool, ClientPoolConfig, RunLength};
use pgassay_script::{ParseOptions, ParsedScript, QueryProtocol, VariableNames};
use pgassay_wire::conninfo::Target;

const SCRIPT: &str = "\\set aid random(1, 100000 * :scale)\n\
                      SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, port, user, database, clients, seconds, rest @ ..] = &arguments[..] else {
        panic!("usage: select_only DIRECTORY PORT USER DATABASE CLIENTS SECONDS [THREADS] [MODE]")
    };
    let threads = rest.first().map_or(1, |threads| threads.parse().unwrap());
    let mode = rest.get(1).map_or("prepared", String::as_str);
    let protocol = QueryProtocol::from_name(mode).expect("simple, extended or prepared");
    let text = rest
        .get(2)
        .map_or(SCRIPT.into(), |path| std::fs::read_to_string(path).unwrap());
    let mut names = VariableNames::new();
    let options = ParseOptions {
        protocol,
        ..ParseOptions::default()
    };
    let script = ParsedScript::parse("script", &text, &options, &mut names).unwrap();
    let target = Target::unix(directory, port.parse().unwrap(), user, database);
    let config = ClientPoolConfig {
        clients: clients.parse().unwrap(),
        threads,
        protocol,
        seed: 42,
        ..ClientPoolConfig::new(target, Arc::new(script), Arc::new(names))
    };
    let mut pool = ClientPool::connect(&config, &Arc::new(AtomicBool::new(false))).unwrap();
    let measure = Duration::from_secs_f64(seconds.parse().unwrap());
    let window = RunLength::Timed {
        settle: Duration::from_millis(200),
        measure,
    };
    let measured = pool.run(&window).unwrap();
    pool.close();
    println!(
        "tps {:.0} cpu_us {:.3} p50_us {:.1} p99_us {:.1} limited {} fairness {}..{}",
        measured.tps(),
        measured.client_cpu_us_per_transaction(),
        measured.latency_ns.value_at_quantile(0.5) as f64 / 1e3,
        measured.latency_ns.value_at_quantile(0.99) as f64 / 1e3,
        measured.client_limited,
        measured.clients.iter().min().unwrap(),
        measured.clients.iter().max().unwrap(),
    );
}
