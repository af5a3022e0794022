//! `pgassay timing`, on its own and compared with the real `pg_test_timing`.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use pgassay_profile::process_cpu_ns;
use pgassay_test_support::skip_comparison;
use serde_json::Value;

use crate::PROGRAM;

/// `pg_test_timing`, on PATH or where Debian installs server programs.
fn real() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    std::env::split_paths(&path)
        .chain(debian.map(|version| version.path().join("bin")))
        .map(|folder| folder.join("pg_test_timing"))
        .find(|program| program.is_file())
}

fn timing(arguments: &[&str]) -> Output {
    Command::new(PROGRAM)
        .arg("timing")
        .args(arguments)
        .output()
        .unwrap()
}

fn measured(duration: &str) -> Value {
    let output = timing(&["--json", "--duration", duration]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_clock_is_measured_and_its_cost_explained() {
    let output = timing(&["-d", "100ms", "-c", "50"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "clock source: ",
        "time per loop including overhead: ",
        "backwards: never",
        "   <= ns   % of total  running %       count",
        "exact steps up to a running percentage of 50%:",
        "CLOCK_MONOTONIC",
        "effect on a server on this machine",
        "EXPLAIN ANALYZE: ",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(output.stderr.is_empty());
}

#[test]
fn rows_add_up() {
    let timing = measured("100ms");
    assert_eq!(timing["schema"], "pgassay.timing/1");
    let steps = &timing["steps"];
    let rows = steps["histogram"].as_array().unwrap();
    let sum: u64 = rows.iter().map(|row| row["count"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), steps["counted"].as_u64());
    let per_loop_ns = timing["per_loop_ns"].as_f64().unwrap();
    // Longer than requested if the process was interrupted during a step.
    assert!(per_loop_ns * sum as f64 > 0.999e8, "{per_loop_ns} x {sum}");
    assert!(timing["reading_ns"]["monotonic"].as_f64().unwrap() > 1.0);
}

/// CPU time of a program that prints little, and its output. A last moment before its end may be missing.
fn cpu_s_and_output(command: &mut Command) -> (f64, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut cpu_ns = 0;
    while child.try_wait().unwrap().is_none() {
        cpu_ns = process_cpu_ns(child.id()).unwrap_or(0).max(cpu_ns);
        thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    (
        cpu_ns as f64 / 1e9,
        String::from_utf8(output.stdout).unwrap(),
    )
}

/// Both read the same clock in the same way, so the typical time per loop is the same. Other load must not count:
/// pgassay's is the median, and of theirs, which is a mean over a second, the share is taken in which it had a CPU.
#[test]
fn clock_readings_against_the_real_pg_test_timing() {
    let Some(program) = real() else {
        skip_comparison("comparison with pg_test_timing", "it is not installed");
        return;
    };
    let theirs_ns = || {
        let mut command = Command::new(&program);
        let (cpu_s, text) = cpu_s_and_output(command.args(["-d", "1"]).env("LC_ALL", "C"));
        let line = text
            .lines()
            .find_map(|line| line.split_once("loop time including overhead: "));
        let number = line
            .and_then(|(_, line)| line.split_whitespace().next())
            .expect(&text);
        number.parse::<f64>().unwrap() * cpu_s.min(1.0)
    };
    // Other load can only make a loop slower, so the best of several is compared; more on a busy machine.
    let mut best = (f64::MAX, f64::MAX);
    let is_close = |(ours, theirs): (f64, f64)| (0.4..2.5).contains(&(ours / theirs));
    for round in 0..15 {
        if round >= 3 && is_close(best) {
            break;
        }
        best.0 = best
            .0
            .min(measured("1s")["steps"]["p50_ns"].as_f64().unwrap());
        best.1 = best.1.min(theirs_ns());
    }
    assert!(is_close(best), "ours {} ns, theirs {} ns", best.0, best.1);
}
