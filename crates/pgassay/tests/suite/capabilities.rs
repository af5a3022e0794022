//! The capabilities of the program, when root runs it: SECURITY.md promises which.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use pgassay_rights::Purpose;
use pgassay_test_support::os::{is_root, kill, refuse};
use pgassay_test_support::{Finished, Scratch, servers, skip, wait_for_exit, wait_until};

use crate::PROGRAM;

/// In the order of the bits; `CAP_IPC_LOCK` has number 14.
const IPC_LOCK: u64 = 1 << 14;
/// `CAP_DAC_OVERRIDE`, `CAP_DAC_READ_SEARCH`, `CAP_FOWNER`, `CAP_IPC_LOCK` and `CAP_SYS_PTRACE`.
const REST: u64 = 1 << 1 | 1 << 2 | 1 << 3 | IPC_LOCK | 1 << 19;
/// `REST` and `CAP_CHOWN`, `CAP_KILL`, `CAP_SETGID`, `CAP_SETUID`, `CAP_IPC_OWNER`, `CAP_SYS_CHROOT`, `CAP_SYS_ADMIN`,
/// `CAP_SYS_NICE`, `CAP_SYSLOG`, `CAP_PERFMON`, `CAP_CHECKPOINT_RESTORE`.
const ALL: u64 = REST
    | 1
    | 1 << 5
    | 1 << 6
    | 1 << 7
    | 1 << 15
    | 1 << 18
    | 1 << 21
    | 1 << 23
    | 1 << 34
    | 1 << 38
    | 1 << 40;

/// The permitted and the effective capabilities that a process's threads have now, or `None` if it has ended.
fn of_threads(child: &Child) -> Option<BTreeSet<(u64, u64)>> {
    let threads = fs::read_dir(format!("/proc/{}/task", child.id())).ok()?;
    let sets = threads
        .flatten()
        .filter_map(|thread| status_of(&thread.path()));
    Some(sets.collect())
}

fn status_of(process: &Path) -> Option<(u64, u64)> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    Some((set("CapPrm:")?, set("CapEff:")?))
}

fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let pids = fs::read_to_string(path).unwrap_or_default();
    pids.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// Watches a process until a thread of a load has been seen, and returns what its threads had.
fn watched(child: &Child) -> BTreeSet<(u64, u64)> {
    let mut seen = BTreeSet::new();
    wait_until("a thread of the load has few capabilities", || {
        seen.extend(of_threads(child).into_iter().flatten());
        seen.iter().any(|&(_, effective)| effective == IPC_LOCK)
    });
    seen
}

fn is_here() -> bool {
    if !is_root() {
        skip("capabilities", "only root has them");
    }
    is_root() && servers::is_available("18")
}

#[test]
fn a_run_holds_no_capability_that_it_does_not_need() {
    if !is_here() {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let mut command = scratch.command();
    let mut child = command
        .args([
            "compare",
            "select 1",
            "select 2",
            "--pairs",
            "40",
            "--servers",
            "18",
        ])
        .spawn()
        .expect("the program runs");
    // Before its first statement it is as the shell started it.
    wait_until("it has given up the others", || {
        of_threads(&child).is_some_and(|sets| sets.iter().all(|&(permitted, _)| permitted == ALL))
    });
    let seen = watched(&child);
    let keeper = children(child.id()).into_iter().filter_map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (name == "sh\n").then(|| status_of(&Path::new("/proc").join(pid.to_string())))?
    });
    assert!(
        keeper
            .into_iter()
            .any(|(permitted, _)| permitted == REST | 1 << 5),
        "the keeper has no more, and CAP_KILL"
    );
    for (permitted, effective) in seen {
        assert!(
            permitted & !ALL == 0 && effective & !permitted == 0,
            "{permitted:x} {effective:x}"
        );
    }
    kill(child.id().cast_signed(), libc::SIGINT);
    let ended = wait_for_exit(&mut child, Duration::from_mins(1));
    assert_eq!(ended, Some(130));
    scratch.assert_nothing_left();
}

#[test]
fn bench_gives_up_what_only_servers_need() {
    if !is_here() {
        return;
    }
    let Some(server) = servers::start("18") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let script = scratch.path().join("one.sql");
    fs::write(&script, "select 1;").expect("a script");
    let mut command = scratch.command();
    // A connection for each transaction, to a socket in a directory that is closed to other users.
    command
        .args(["bench", "-n", "-C", "-T", "60", "-f"])
        .arg(script)
        .arg(server.conninfo());
    let mut child = command.spawn().expect("the program runs");
    wait_until("it has given up the others", || {
        of_threads(&child).is_some_and(|sets| sets.iter().all(|&(permitted, _)| permitted == REST))
    });
    for (permitted, effective) in watched(&child) {
        assert_eq!((permitted, effective & !REST), (REST, 0));
    }
    kill(child.id().cast_signed(), libc::SIGINT);
    wait_for_exit(&mut child, Duration::from_mins(1));
    let mut printed = String::new();
    let stdout = child.stdout.as_mut().expect("a pipe");
    stdout.read_to_string(&mut printed).expect("a report");
    assert!(
        printed.contains("number of failed transactions: 0 "),
        "{printed}"
    );
}

/// In a sandbox that refuses the system call, a load runs as before, after a warning.
#[test]
fn a_load_runs_where_capabilities_cannot_be_given_up() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let mut command = scratch.command();
    command.args(["bench", "-i", "-q"]).arg(server.conninfo());
    assert!(command.output().expect("the program runs").status.success());
    let mut command = scratch.command();
    command.args(["bench", "-n", "-S", "-c", "2", "-j", "2", "-t", "1"]);
    command.arg(server.conninfo());
    refuse(&mut command, &[libc::SYS_capset], libc::EPERM);
    let finished = Finished::of(&command.output().expect("the program runs"));
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(
        finished.stderr.contains("cannot give up capabilities"),
        "{finished:?}"
    );
}

#[test]
fn doctor_prints_the_capabilities_that_are_documented() {
    let security = include_str!("../../../../SECURITY.md");
    let section = security
        .split("## What needs root")
        .nth(1)
        .expect("the section");
    let table = section.split("A: commands").next().unwrap_or_default();
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| line.contains("`CAP_"))
        .collect();
    assert_eq!(rows.len(), Purpose::ALL.len());
    for (row, purpose) in rows.iter().zip(Purpose::ALL) {
        let documented: BTreeSet<&str> = row
            .split('`')
            .filter(|word| word.starts_with("CAP_"))
            .collect();
        let names = purpose.names();
        assert_eq!(
            documented,
            names.iter().map(String::as_str).collect(),
            "{purpose:?}"
        );
    }
    let scratch = Scratch::new(PROGRAM);
    let printed = scratch.ok(&["doctor"]);
    let line = printed
        .lines()
        .find(|line| line.contains("capabilities: "))
        .expect("a line");
    if !is_root() {
        skip("the capabilities of root", "this user has none");
        return;
    }
    for name in Purpose::ALL.into_iter().flat_map(Purpose::names) {
        assert!(line.contains(&name), "{name}: {line}");
    }
    let (always, needed) = line.split_once(" all the time; ").expect("two lists");
    for name in Purpose::Rest.names() {
        assert!(
            always.contains(&name) && !needed.contains(&name),
            "{name}: {line}"
        );
    }
}
