//! Failures: each gives a clear error and the right exit code, and leaves nothing behind.

use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use pgassay_record::run::{Run, WarningKind};
use pgassay_test_support::os::{is_root, kill, refuse};
use pgassay_test_support::{
    Finished, SMALL_STUDY, Scratch, SmallDisk, collapse_whitespace, copy_program, not_applicable,
    servers, skip, wait_for_exit, wait_within,
};

use crate::PROGRAM;

/// A study of 20 s, long enough to be interrupted. Its server is not restarted.
fn long() -> String {
    SMALL_STUDY
        .replace("full = \"2s\"", "full = \"20s\"")
        .replace("pairs = 2", "pairs = 20\nrestart_every = 20")
}

/// Waits until a few trials have ended.
fn wait_for_trials(scratch: &Scratch) {
    wait_within("three trials end", Duration::from_mins(1), || {
        scratch.saved_trials() >= 3
    });
}

#[test]
fn a_study_that_cannot_be_run_is_refused_with_its_line_before_any_server_starts() {
    let table = [
        (
            SMALL_STUDY.replace("[length]", "[lenght]"),
            "study.toml:22:2: unknown key `lenght`",
            "did you mean \"length\"?",
        ),
        (
            SMALL_STUDY.replace("protocol = \"prepared\"", "protocol = \"preparde\""),
            "study.toml:19:12: unknown value `preparde`",
            "did you mean \"prepared\"?",
        ),
        (
            SMALL_STUDY.replace("\"18\"", "\"eighteen\""),
            "study.toml:3:11: \"eighteen\" is not a PostgreSQL version",
            "specify a series",
        ),
        (
            SMALL_STUDY.replace("random(1, 10)", "random(1,"),
            "study.toml:12:1: one:1: syntax error in command \"set\"",
            "",
        ),
        (
            SMALL_STUDY.replace("pairs = 2", "pairs = two"),
            "study.toml:24:9:",
            "",
        ),
        (
            SMALL_STUDY.replace("insert into t", "copy t from stdin; insert into t"),
            "",
            "COPY FROM STDIN is not supported here",
        ),
    ];
    for (study, beginning, part) in table {
        let scratch = Scratch::new(PROGRAM);
        let finished = scratch.run(&study, &["--offline"]);
        if beginning.is_empty() && !servers::is_available("18") {
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
    let scratch = Scratch::new(PROGRAM);
    let empty = scratch.path().join("empty");
    let study = SMALL_STUDY.replace("\"18\"", "\"18.0\"");
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
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let finished = scratch.run(&SMALL_STUDY.replace("select 1;", "select\n  nope;"), &[]);
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
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let finished = scratch.run(
        &SMALL_STUDY.replace("select i from t", "select nope from t"),
        &[],
    );
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
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let mut child = scratch.start(&long(), &[]);
    wait_for_trials(&scratch);
    kill(scratch.postmaster_pid(), libc::SIGKILL);
    let code = wait_for_exit(&mut child, Duration::from_mins(1));
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
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let mut child = scratch.start(&long(), &[]);
    wait_for_trials(&scratch);
    kill(child.id().cast_signed(), libc::SIGINT);
    assert_eq!(
        wait_for_exit(&mut child, Duration::from_mins(2)),
        Some(130),
        "{}",
        scratch.stderr()
    );
    assert_eq!(scratch.kept().len(), 1, "{}", scratch.stderr());
    // Regression: it was said twice, in two lines.
    let said = scratch.stderr().matches("pgassay: interrupted").count();
    assert_eq!(said, 1, "{}", scratch.stderr());
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
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    // A statement that does not end.
    let study = long().replace("select i from t where i < :x;", "select pg_sleep(30);");
    let mut child = scratch.start(&study, &[]);
    // Until it ends, since two signals that arrive before the program runs again count as one.
    wait_within("the second signal ends it", Duration::from_secs(20), || {
        kill(child.id().cast_signed(), libc::SIGINT);
        child.try_wait().expect("our child").is_some()
    });
    let code = child.wait().expect("our child").code();
    assert_eq!(code, Some(130), "{}", scratch.stderr());
    scratch.assert_nothing_left();
}

#[test]
fn a_killed_run_takes_its_server_with_it() {
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let mut child = scratch.start(&long(), &[]);
    child.kill().expect("the process runs");
    assert_eq!(wait_for_exit(&mut child, Duration::from_mins(1)), None);
    scratch.assert_nothing_left();
}

#[test]
fn a_full_disk_under_the_data_directory_is_reported() {
    let Some(disk) = SmallDisk::mount("80m") else {
        return;
    };
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let study = SMALL_STUDY.replace(
        "insert into t select 1;",
        "insert into t select generate_series(1, 10000000);",
    );
    let finished = scratch.run(
        &study,
        &["--data-parent", &disk.path().display().to_string()],
    );
    let left: Vec<_> = fs::read_dir(disk.path())
        .expect("the disk")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(
        finished.error_message().contains("No space left on device"),
        "{finished:?}"
    );
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn data_in_memory_are_reported_once() {
    let Some(disk) = SmallDisk::mount("400m") else {
        return;
    };
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let study = SMALL_STUDY.replace(
        "protocol = \"prepared\"",
        "settings = { synchronous_commit = \"off\" }",
    );
    let parent = disk.path().display().to_string();
    let finished = scratch.run(&study, &["--json", "--data-parent", &parent]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let run: Run = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
    assert_eq!(run.plan.servers.len(), 2);
    let warnings = run.warnings.iter();
    let about_memory: Vec<_> = warnings
        .filter(|it| it.kind == WarningKind::DataInMemory)
        .collect();
    assert_eq!(about_memory.len(), 1, "{:?}", run.warnings);
    assert!(about_memory[0].message.contains("--data-parent"));
}

#[test]
fn without_permission_to_sample_the_study_runs_and_names_the_fix() {
    if !is_root() {
        skip("a study without sampling", "only root can switch users");
        return;
    }
    if !servers::is_available("18") {
        return;
    }
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if paranoid.trim().parse::<i32>().is_ok_and(|level| level <= 0) {
        not_applicable("a study without sampling", "any user may sample here");
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let program = scratch.path().join("pgassay");
    copy_program(PROGRAM.as_ref(), &program);
    let study = scratch.study(SMALL_STUDY);
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
    let text = collapse_whitespace(&finished.stdout);
    assert!(
        text.contains("T2 is not permitted: CPU stacks cannot be sampled"),
        "{finished:?}"
    );
    assert!(text.contains("perf_event_paranoid=0"), "{finished:?}");
    scratch.assert_nothing_left();
}

/// Regression test: it was a panic.
#[test]
fn a_thread_that_the_system_refuses_is_an_error_and_not_a_panic() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let dsn = server.conninfo();
    let study = scratch.study(SMALL_STUDY).display().to_string();
    let script = scratch.path().join("one.sql").display().to_string();
    fs::write(&script, "select 1;").expect("a script");
    let table = [
        (
            vec![
                "bench", "-n", "-c", "2", "-j", "2", "-t", "1", "-f", &script, &dsn,
            ],
            "cannot start a client thread",
        ),
        (
            vec!["bench", "-n", "-P", "1", "-t", "1", "-f", &script, &dsn],
            "cannot start a",
        ),
        (vec!["run", &study], "Resource temporarily unavailable"),
    ];
    for (arguments, words) in table {
        let mut command = scratch.command();
        command.args(&arguments);
        refuse(
            &mut command,
            &[libc::SYS_clone, libc::SYS_clone3],
            libc::EAGAIN,
        );
        let finished = Finished::of(&command.output().expect("the program runs"));
        assert_eq!(finished.code, Some(1), "{arguments:?}: {finished:?}");
        assert!(
            finished.stderr.contains(words),
            "{arguments:?}: {finished:?}"
        );
    }
    // Without its thread, only the sessions are missing.
    let mut command = scratch.command();
    command.args(["profile", "--duration", "100ms", "--dsn", &dsn]);
    refuse(
        &mut command,
        &[libc::SYS_clone, libc::SYS_clone3],
        libc::EAGAIN,
    );
    let finished = Finished::of(&command.output().expect("the program runs"));
    assert!(finished.code.is_some_and(|code| code <= 1), "{finished:?}");
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
    scratch.assert_nothing_left();
}

/// Regression: SIGXFSZ ended the program without a message; also where a failure is harmless, as when it keeps a data
/// directory for later.
#[test]
fn a_file_beyond_the_limit_of_ulimit_is_an_error_with_a_message() {
    let scratch = Scratch::new(PROGRAM);
    let program = scratch.command().get_program().to_owned();
    let mut command = scratch.command_of(Path::new("/bin/sh"));
    // Half a kilobyte.
    command
        .arg("-c")
        .arg("ulimit -f 1; exec \"$0\" study show uuid-keys >study.toml")
        .arg(program)
        .current_dir(scratch.path());
    let finished = Finished::of(&command.output().unwrap());
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(
        finished.stderr.contains("File too large"),
        "{}",
        finished.stderr
    );
}

/// Regression: the first Ctrl-C did not end waiting for the reader of a pipe.
#[test]
fn a_signal_ends_waiting_for_the_reader_of_a_pipe() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let fifo = scratch.path().join("page.html");
    let name = CString::new(fifo.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the path is a C string, and the call touches no other memory.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut command = scratch.command();
        command.args(["profile", "--duration", "100ms", "--dsn"]);
        command.arg(server.conninfo()).arg("--html").arg(&fifo);
        let mut child = command.spawn().unwrap();
        let tasks = format!("/proc/{}/task", child.id());
        let opens = |task: fs::DirEntry| {
            let call = fs::read_to_string(task.path().join("syscall"));
            call.is_ok_and(|call| call.starts_with(&format!("{} ", libc::SYS_openat)))
        };
        // The first one may be another file.
        for _ in 0..2 {
            wait_within("it opens the pipe", Duration::from_mins(1), || {
                fs::read_dir(&tasks).unwrap().flatten().any(opens)
            });
        }
        kill(child.id().cast_signed(), signal);
        let code = wait_for_exit(&mut child, Duration::from_mins(1));
        let finished = Finished::of(&child.wait_with_output().unwrap());
        assert_eq!(code, Some(130), "{finished:?}");
        assert!(finished.error_message().contains("page.html"));
        // The report is printed nevertheless.
        assert!(!finished.stdout.is_empty(), "{finished:?}");
    }
    server.stop().unwrap();
}
