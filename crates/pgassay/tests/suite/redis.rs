//! Studies with Redis.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};

use pgassay_test_support::os::{is_running, kill, on_path, processes_in};
use pgassay_test_support::{Scratch, servers, skip, wait_until};

use crate::PROGRAM;

const WITH_REDIS: &str = r#"question = "How fast does Redis count?"
[[script]]
name = "incr"
text = "INCR counter"
[[script]]
name = "one"
text = "select 1;"
[[variant]]
name = "PostgreSQL"
script = "one"
[[variant]]
name = "Redis"
driver = "redis"
script = "incr"
"#;

/// The scripts, and each of the two variants.
fn split_at_variants(text: &str) -> [&str; 3] {
    let [first, second] = ["PostgreSQL", "Redis"].map(|name| {
        text.find(&format!("[[variant]]\nname = \"{name}\""))
            .unwrap()
    });
    [&text[..first], &text[first..second], &text[second..]]
}

fn is_missing(test: &str) -> bool {
    let is_missing = on_path("redis-server").is_none();
    if is_missing {
        skip(test, "requires redis-server");
    }
    is_missing || !servers::is_available("18")
}

fn start(scratch: &Scratch, text: &str, length: &str) -> Child {
    let mut command = scratch.command();
    command.arg("run").arg(scratch.study(text));
    command.args(["--pairs", "2", "--length", length]);
    command.stdout(Stdio::null()).spawn().unwrap()
}

/// Regression: it was a panic.
#[test]
fn a_study_of_redis_only_is_refused() {
    let scratch = Scratch::new(PROGRAM);
    let only = WITH_REDIS.replace("name = \"PostgreSQL\"\nscript = \"one\"", "");
    let only = only.replace("[[variant]]\n\n", "");
    let path = scratch.study(&only);
    for command in [&["study", "plan"][..], &["run"]] {
        let finished = scratch.command().args(command).arg(&path).output().unwrap();
        let words = String::from_utf8(finished.stderr).unwrap();
        assert_eq!(finished.status.code(), Some(1), "{words}");
        assert!(words.contains("all variants are Redis"), "{words}");
    }
}

#[test]
fn redis_alone_is_refused_if_all_other_variants_are_skipped() {
    if is_missing("redis_alone_is_refused_if_all_other_variants_are_skipped") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let unmet = "script = \"one\"\nrequires = { program = \"no-such-program\" }\n";
    let [scripts, postgres, redis] = split_at_variants(WITH_REDIS);
    let again = redis.replace("\"Redis\"", "\"Redis again\"");
    let postgres = postgres.replace("script = \"one\"\n", unmet);
    let text = [scripts, redis, &again, &postgres].concat();
    let finished = scratch.run(&text, &[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let words = "the variants that can run here are all Redis";
    assert!(finished.stderr.contains(words), "{finished:?}");
    scratch.assert_nothing_left();
}

/// Regression: the first Ctrl-C was ignored, and there was no time limit.
#[test]
fn ctrl_c_ends_connecting_to_an_address_of_redis_that_does_not_answer() {
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let path = scratch.path().join("full");
    let listener = UnixListener::bind(&path).unwrap();
    // SAFETY: the descriptor is open; listening again only makes the queue shorter.
    let shortened = unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 0) };
    assert_eq!(shortened, 0);
    let address = format!("driver = \"redis\"\naddress = \"{}\"", path.display());
    let text = WITH_REDIS.replace("driver = \"redis\"", &address);
    // The queue holds one connection of two.
    let mut child = start(
        &scratch,
        &format!("{text}[conditions]\nclients = [8]\n"),
        "1s",
    );
    let is_connecting = || {
        let table = fs::read_to_string("/proc/net/unix").unwrap();
        table.matches(path.to_str().unwrap()).count() > 1
    };
    wait_until("a client has connected", is_connecting);
    kill(child.id().cast_signed(), libc::SIGINT);
    let mut words = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut words)
        .unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130), "{words}");
    assert!(!words.contains("not connected within"), "{words}");
}

mod slow {
    use super::*;

    /// Regression: the directory stayed forever.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn redis_leaves_nothing_after_a_kill_of_pgassay_and_its_keeper() {
        if is_missing("a kill of pgassay with Redis") {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let mut child = start(&scratch, WITH_REDIS, "1min");
        let entries = || fs::read_dir(scratch.servers()).unwrap().flatten();
        let is_socket = |path: &fs::DirEntry| {
            let found = path.path().join("socket").metadata();
            found.is_ok_and(|it| it.file_type().is_socket())
        };
        wait_until("Redis listens", || entries().any(|it| is_socket(&it)));
        let directory = entries().find(is_socket).unwrap().path();
        let redis = processes_in(&directory);
        assert_eq!(redis.len(), 1);
        let path = format!("/proc/{0}/task/{0}/children", child.id());
        let children = fs::read_to_string(path).unwrap();
        let children = children.split_whitespace().map(|it| it.parse().unwrap());
        let is_keeper = |pid: &i32| {
            let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.contains("pgassay-keeper")
        };
        let keepers: Vec<i32> = children.filter(is_keeper).collect();
        assert!(!keepers.is_empty());
        for keeper in keepers {
            kill(keeper, libc::SIGKILL);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("Redis has ended", || {
            !redis.iter().any(|it| is_running(*it))
        });
        assert!(directory.exists());
        let finished = scratch.run(WITH_REDIS, &["--pairs", "2", "--length", "0.2s"]);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        scratch.assert_nothing_left();
    }
}
