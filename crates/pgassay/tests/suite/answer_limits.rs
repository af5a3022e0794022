//! A server that answers late or never ends a command at its time limit.
//!
//! These tests wait for most of a minute, so they are among the first.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use pgassay_test_support::os;

use crate::terminal::{Mode, STUDY, control_characters, pgassay, serve};

fn assert_ends_within(limit: Duration, child: &mut Child) {
    let deadline = Instant::now() + limit;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("it still runs after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A run on an external server that falls silent after signing in.
fn run_on_a_silent_server(directory: &Path, options: &[&str]) -> Child {
    serve(directory, Mode::Silent);
    start_run(directory, "", options)
}

fn start_run(directory: &Path, parameters: &str, options: &[&str]) -> Child {
    let place = directory.display();
    let dsn = format!("host={place} user=me dbname=me {parameters}");
    let study = directory.join("study.toml");
    std::fs::write(&study, STUDY.replace("NAME", "v")).unwrap();
    let mut command = pgassay(&["run", study.to_str().unwrap(), "--dsn", &dsn]);
    command
        .args(options)
        .arg("--results")
        .arg(directory.join("runs"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Regression: the first Ctrl-C did not end a run that waited for the answer of a server, for a minute or more.
#[test]
fn an_interrupt_ends_a_run_whose_server_falls_silent() {
    let directory = tempfile::tempdir().unwrap();
    interrupt_while_connecting(run_on_a_silent_server(directory.path(), &[]));
}

/// Regression: the first Ctrl-C did not end a connection in progress, for 10 s or the `connect_timeout`.
#[test]
fn an_interrupt_ends_a_run_whose_server_does_not_answer_a_new_connection() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join(".s.PGSQL.5432");
    let _silent = UnixListener::bind(socket).unwrap();
    let child = start_run(directory.path(), "connect_timeout=120", &[]);
    interrupt_while_connecting(child);
}

fn interrupt_while_connecting(mut child: Child) {
    let mut line = String::new();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    while !line.contains("external server") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0);
    }
    os::kill(child.id().cast_signed(), libc::SIGINT);
    // Without it, the answer is awaited for 70 s.
    assert_ends_within(Duration::from_secs(30), &mut child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_server_that_falls_silent_after_signing_in_does_not_hold_up_a_run() {
        let directory = tempfile::tempdir().unwrap();
        let options = ["--allow-writes", "--allow-superuser"];
        let mut child = run_on_a_silent_server(directory.path(), &options);
        assert_ends_within(Duration::from_mins(2), &mut child);
        assert_eq!(child.wait().unwrap().code(), Some(1));
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_notice_now_and_then_does_not_extend_the_time_limit_of_profile() {
        let directory = tempfile::tempdir().unwrap();
        serve(directory.path(), Mode::Notices);
        let dsn = format!("host={} user=me dbname=me", directory.path().display());
        let mut child = pgassay(&["profile", "--dsn", &dsn])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The limit is 10 s.
        assert_ends_within(Duration::from_mins(1), &mut child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(control_characters(&output.stderr, &[]), [char::MAX; 0]);
    }
}
