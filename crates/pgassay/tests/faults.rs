//! Failures: each gives a clear error and the right exit code, and leaves nothing behind.

mod support;

use std::fs;
use std::process::Command;
use std::time::Duration;

use support::{Finished, SMALL, Scratch, is_root, signal, wait};

/// A study of 20 s, long enough to be interrupted.
fn long() -> String {
    SMALL
        .replace("full = \"2s\"", "full = \"20s\"")
        .replace("pairs = 2", "pairs = 20")
}

fn server_or_skip() -> bool {
    pgassay_server::testing::installation("18").is_some()
}

#[test]
fn a_study_that_cannot_be_run_is_refused_with_its_line_before_any_server_starts() {
    let table = [
        (
            SMALL.replace("[length]", "[lenght]"),
            "study.toml:22:2: unknown field `lenght`",
            "did you mean \"length\"?",
        ),
        (
            SMALL.replace("protocol = \"prepared\"", "protocol = \"preparde\""),
            "study.toml:19:12: unknown variant `preparde`",
            "did you mean \"prepared\"?",
        ),
        (
            SMALL.replace("\"18\"", "\"eighteen\""),
            "study.toml:3:11: \"eighteen\" is not a PostgreSQL version",
            "specify a series",
        ),
        (
            SMALL.replace("random(1, 10)", "random(1,"),
            "study.toml:12:1: one:1: syntax error in command \"set\"",
            "",
        ),
        (
            SMALL.replace("pairs = 2", "pairs = two"),
            "study.toml:24:9:",
            "",
        ),
        (
            SMALL.replace("insert into t", "copy t from stdin; insert into t"),
            "",
            "COPY FROM STDIN is not supported here",
        ),
    ];
    for (study, beginning, part) in table {
        let scratch = Scratch::new();
        let finished = scratch.run(&study, &["--offline"]);
        if beginning.is_empty() && !server_or_skip() {
            continue;
        }
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert!(
            finished.error_message().contains(beginning),
            "{finished:?} should name {beginning}"
        );
        assert!(
            finished.error_message().contains(part),
            "{finished:?} should say {part}"
        );
        assert_eq!(finished.stdout, "", "errors go to stderr");
        assert!(scratch.kept().is_empty());
        scratch.assert_nothing_left();
    }
}

#[test]
fn no_network_and_an_empty_cache_say_what_to_do() {
    let scratch = Scratch::new();
    let empty = scratch.path().join("empty");
    let study = SMALL.replace("\"18\"", "\"18.0\"");
    let finished = scratch.run(
        &study,
        &["--offline", "--cache", &empty.display().to_string()],
    );
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(
        finished
            .error_message()
            .contains("study.toml:3:11: PostgreSQL 18.0 is not in the cache"),
        "{finished:?}"
    );
    assert!(
        finished
            .error_message()
            .contains("Run once without --offline"),
        "{finished:?}"
    );
}

#[test]
fn sql_that_fails_in_the_set_up_names_its_line() {
    if !server_or_skip() {
        return;
    }
    let scratch = Scratch::new();
    let finished = scratch.run(&SMALL.replace("select 1;", "select\n  nope;"), &[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(
        finished
            .error_message()
            .contains("study.toml:8:1: ERROR: column \"nope\" does not exist"),
        "{finished:?}"
    );
    scratch.assert_nothing_left();
}

#[test]
fn a_script_whose_sql_fails_names_its_line_and_variant() {
    if !server_or_skip() {
        return;
    }
    let scratch = Scratch::new();
    let finished = scratch.run(&SMALL.replace("select i from t", "select nope from t"), &[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let error_message = finished.error_message();
    assert!(
        error_message.contains("variant \"") && error_message.contains("study.toml:13:1: client"),
        "{finished:?}"
    );
    assert!(
        error_message.contains("column \"nope\" does not exist"),
        "{finished:?}"
    );
    scratch.assert_nothing_left();
}

#[test]
fn a_server_crash_is_reported_and_completed_trials_are_saved() {
    if !server_or_skip() {
        return;
    }
    let scratch = Scratch::new();
    let mut child = scratch.start(&long(), &[]);
    std::thread::sleep(Duration::from_secs(3));
    signal(scratch.postmaster_pid(), libc::SIGKILL);
    let code = wait(&mut child, Duration::from_mins(1));
    assert_eq!(code, Some(2), "{}", scratch.stderr());
    assert!(
        scratch
            .stderr()
            .contains("server died (signal: 9 (SIGKILL))"),
        "{}",
        scratch.stderr()
    );
    assert_eq!(scratch.kept().len(), 1, "the partial result is stored");
    scratch.assert_nothing_left();
}

#[test]
fn the_first_ctrl_c_stops_after_the_current_step_and_saves_trials() {
    if !server_or_skip() {
        return;
    }
    let scratch = Scratch::new();
    let mut child = scratch.start(&long(), &[]);
    std::thread::sleep(Duration::from_secs(3));
    signal(child.id().cast_signed(), libc::SIGINT);
    assert_eq!(
        wait(&mut child, Duration::from_secs(30)),
        Some(130),
        "{}",
        scratch.stderr()
    );
    assert_eq!(scratch.kept().len(), 1, "{}", scratch.stderr());
    let output = scratch
        .command()
        .args(["show", "last"])
        .output()
        .expect("the program runs");
    assert!(
        Finished::of(&output).stdout.contains("ended after"),
        "the result is marked as partial"
    );
    scratch.assert_nothing_left();
}

#[test]
fn the_second_ctrl_c_ends_at_once_and_leaves_nothing() {
    if !server_or_skip() {
        return;
    }
    let scratch = Scratch::new();
    // A statement that does not end.
    let study = long().replace("select i from t where i < :x;", "select pg_sleep(30);");
    let mut child = scratch.start(&study, &[]);
    signal(child.id().cast_signed(), libc::SIGINT);
    std::thread::sleep(Duration::from_millis(100));
    signal(child.id().cast_signed(), libc::SIGINT);
    assert_eq!(
        wait(&mut child, Duration::from_secs(5)),
        Some(130),
        "{}",
        scratch.stderr()
    );
    scratch.assert_nothing_left();
}

#[test]
fn a_killed_run_takes_its_server_with_it() {
    if !server_or_skip() {
        return;
    }
    let scratch = Scratch::new();
    let mut child = scratch.start(&long(), &[]);
    child.kill().expect("the process runs");
    assert_eq!(wait(&mut child, Duration::from_secs(5)), None);
    scratch.assert_nothing_left();
}

#[test]
fn a_full_disk_under_the_data_directory_is_reported() {
    if !is_root() {
        pgassay_server::testing::skip("a full disk", "only root can mount a small one");
        return;
    }
    if !server_or_skip() {
        return;
    }
    let scratch = Scratch::new();
    let disk = scratch.path().join("disk");
    fs::create_dir(&disk).expect("a mount point");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=80m,mode=777", "none"])
        .arg(&disk)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        pgassay_server::testing::skip("a full disk", "no small disk can be mounted here");
        return;
    }
    let study = SMALL.replace(
        "insert into t select 1;",
        "insert into t select generate_series(1, 10000000);",
    );
    let finished = scratch.run(&study, &["--data-parent", &disk.display().to_string()]);
    let left: Vec<_> = fs::read_dir(&disk)
        .expect("the disk")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    let unmounted = Command::new("umount").arg(&disk).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(
        finished.error_message().contains("No space left on device"),
        "{finished:?}"
    );
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn without_permission_to_sample_the_study_runs_and_names_the_fix() {
    if !is_root() || !server_or_skip() {
        pgassay_server::testing::skip(
            "a study without sampling",
            "only root can switch to an unprivileged user",
        );
        return;
    }
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if paranoid.trim().parse::<i32>().is_ok_and(|level| level <= 0) {
        pgassay_server::testing::skip("a study without sampling", "any user may sample here");
        return;
    }
    let scratch = Scratch::new();
    let program = scratch.path().join("pgassay");
    fs::copy(env!("CARGO_BIN_EXE_pgassay"), &program).expect("a copy of the program");
    let study = scratch.study(SMALL);
    let mut command = scratch.command_of("setpriv".as_ref());
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .arg("run")
        .arg(study);
    if let Some(cache) = pgassay_server::default_cache_dir() {
        command.env("PGASSAY_CACHE", cache);
    }
    let finished = Finished::of(&command.output().expect("setpriv runs"));
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.contains("no CPU profile"), "{finished:?}");
    assert!(
        finished.stdout.contains("perf_event_paranoid"),
        "{finished:?}"
    );
    scratch.assert_nothing_left();
}
