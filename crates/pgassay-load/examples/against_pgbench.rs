//! Alternates the load engine with pgbench on a temporary server: `against_pgbench [PAIRS]
//! [SECONDS] [MODE]`.
//!
//! Both run select-only on one thread with 1, 16 and 64 clients over the Unix socket. Prints the
//! median, minimum and maximum ratio of the pairs for transactions per second and for client CPU
//! time per transaction (pgbench's from `getrusage`, including connecting; the engine's from its
//! threads). Requires an installed PostgreSQL.

#![allow(clippy::unwrap_used, reason = "an example fails by panicking")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pgassay_load::{ClientPool, ClientPoolConfig, RunLength};
use pgassay_script::{ParseOptions, ParsedScript, QueryProtocol, VariableNames};
use pgassay_test_support::BareServer;
use pgassay_wire::conninfo::Target;

const SCRIPT: &str = "\\set aid random(1, 100000 * :scale)\n\
                      SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n";

/// Transactions per second, and client CPU time per transaction in µs.
type Figures = (f64, f64);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let pairs = arguments.first().map_or(7, |text| text.parse().unwrap());
    let seconds = arguments.get(1).map_or(2, |text| text.parse().unwrap());
    let mode = arguments.get(2).map_or("prepared", String::as_str);
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let initialized = pgbench(&server, &["-i", "-q"]).status().unwrap();
    assert!(initialized.success());
    for clients in [1, 16, 64] {
        let mut ratios = (Vec::new(), Vec::new());
        for pair in 0..pairs {
            // ABBA order, so that machine drift favors neither.
            let (theirs, ours) = if pair % 2 == 0 {
                let theirs = run_pgbench(&server, clients, seconds, mode);
                (theirs, run_ours(&server, clients, seconds, mode))
            } else {
                let ours = run_ours(&server, clients, seconds, mode);
                (run_pgbench(&server, clients, seconds, mode), ours)
            };
            ratios.0.push(ours.0 / theirs.0);
            ratios.1.push(ours.1 / theirs.1);
        }
        println!(
            "{mode} j=1 c={clients}: tps × {}, client CPU per transaction × {}",
            summary(ratios.0),
            summary(ratios.1)
        );
    }
}

fn summary(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let (least, largest) = (ratios[0], ratios[ratios.len() - 1]);
    format!("{:.2} [{least:.2}..{largest:.2}]", ratios[ratios.len() / 2])
}

fn pgbench(server: &BareServer, arguments: &[&str]) -> Command {
    let mut command = Command::new(
        pgassay_test_support::bin_directory()
            .unwrap()
            .join("pgbench"),
    );
    let (host, port) = (server.socket_directory(), server.port().to_string());
    command
        .args(["-U", "tester", "-p", &port, "-h"])
        .arg(host)
        .args(arguments)
        .arg("postgres");
    command
}

fn run_pgbench(server: &BareServer, clients: u32, seconds: u64, mode: &str) -> Figures {
    let (clients, seconds) = (clients.to_string(), seconds.to_string());
    let arguments = [
        "-S", "-n", "-j", "1", "-M", mode, "-c", &clients, "-T", &seconds,
    ];
    let before_us = children_cpu_us();
    let output = pgbench(server, &arguments).output().unwrap();
    let cpu_us = children_cpu_us() - before_us;
    let text = String::from_utf8(output.stdout).unwrap();
    let number = |label: &str| {
        let rest = &text[text.find(label).expect(label) + label.len()..];
        rest.split([' ', '\n', '/'])
            .next()
            .unwrap()
            .parse::<f64>()
            .unwrap()
    };
    (number("tps = "), cpu_us / number("actually processed: "))
}

fn children_cpu_us() -> f64 {
    // SAFETY: all zeroes is a valid rusage, and the pointer is to our own.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

fn run_ours(server: &BareServer, clients: u32, seconds: u64, mode: &str) -> Figures {
    let protocol = QueryProtocol::from_name(mode).expect("simple, extended or prepared");
    let mut names = VariableNames::new();
    let options = ParseOptions {
        protocol,
        ..ParseOptions::default()
    };
    let script = ParsedScript::parse("select-only", SCRIPT, &options, &mut names).unwrap();
    let directory = server.socket_directory();
    let target = Target::unix(
        directory.to_str().unwrap(),
        server.port(),
        "tester",
        "postgres",
    );
    let config = ClientPoolConfig {
        clients,
        protocol,
        ..ClientPoolConfig::new(target, Arc::new(script), Arc::new(names))
    };
    let mut pool = ClientPool::connect(&config, &Arc::new(AtomicBool::new(false))).unwrap();
    let measure = Duration::from_secs(seconds);
    let measured = pool
        .run(&RunLength::Timed {
            settle: Duration::ZERO,
            measure,
        })
        .unwrap();
    pool.close();
    (measured.tps(), measured.client_cpu_us_per_transaction())
}
