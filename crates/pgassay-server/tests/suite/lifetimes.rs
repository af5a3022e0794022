//! A server ends with the process that started it, however that ends, and leaves nothing behind.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use pgassay_server::{Finder, Installation, Server, ServerConfig, VersionRequest};
use pgassay_test_support::{
    os::{NOBODY, is_root, is_running, kill, processes_in},
    servers, skip, wait_until,
};

use crate::common;

/// Runs in a separate process: starts a server, writes a file when it is ready, and runs until it
/// is killed; with `PGASSAY_TEST_STOP` it stops at once.
#[test]
#[ignore = "run by the other tests in a separate process"]
fn a_process_with_a_server() {
    // A shell makes its background processes ignore the terminal's interrupt.
    // SAFETY: the default action is not a function of ours.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    let mut finder = Finder::new("/nonexistent");
    finder.named_dir = std::env::var_os("PGASSAY_TEST_BIN_DIR").map(PathBuf::from);
    let installation = finder.find(&VersionRequest::Latest, &mut |_| ()).unwrap();
    let server = Server::start(&installation, &ServerConfig::default()).unwrap();
    assert_eq!(
        server
            .connect()
            .unwrap()
            .value("select 1")
            .unwrap()
            .as_deref(),
        Some("1")
    );
    if std::env::var_os("PGASSAY_TEST_STOP").is_some() {
        server.stop().unwrap();
        return;
    }
    // A connection that is busy must not keep the server from ending.
    common::query_in_parallel(&server);
    let known = format!(
        "{}\n{}\n",
        server.data_dir().display(),
        server.postmaster_pid()
    );
    let file = std::env::temp_dir().join("known");
    fs::write(file.with_extension("new"), known).unwrap();
    fs::rename(file.with_extension("new"), file).unwrap();
    sleep(Duration::from_mins(2));
}

/// A helper process with its server, killed when the test ends.
struct Helper {
    child: Child,
    data: PathBuf,
    postmaster: i32,
}

impl Helper {
    fn start(installation: &Installation, directory: &Path, uid: Option<u32>) -> Self {
        let mut command = common::helper("lifetimes::a_process_with_a_server", directory, uid);
        let child = command
            .env("PGASSAY_TEST_BIN_DIR", &installation.bin_dir)
            .spawn()
            .unwrap();
        let mut helper = Self {
            child,
            data: PathBuf::new(),
            postmaster: 0,
        };
        let known = directory.join("known");
        wait_until("the helper has a server", || {
            assert_eq!(helper.child.try_wait().unwrap(), None);
            known.exists()
        });
        let text = fs::read_to_string(&known).unwrap();
        fs::remove_file(&known).unwrap();
        let (data, postmaster) = text.trim().split_once('\n').unwrap();
        (helper.data, helper.postmaster) = (data.into(), postmaster.parse().unwrap());
        assert!(helper.data.starts_with(directory) && is_running(helper.postmaster));
        helper
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    fn keeper(&self) -> i32 {
        let keepers = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| {
                let read = |name| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
                let is_child = read("status").contains(&format!("PPid:\t{}\n", self.pid()));
                let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
                (is_child && read("cmdline").contains("pgassay-keeper")).then_some(pid)
            });
        let keepers: Vec<i32> = keepers.collect();
        assert_eq!(keepers.len(), 1);
        keepers[0]
    }

    /// Waits for the server's shared memory, and returns its segment and its files: at least the
    /// control segment and that of a parallel query.
    fn shared_memory(&self) -> (i32, Vec<PathBuf>) {
        let pid_file = fs::read_to_string(self.data.join("postmaster.pid")).unwrap();
        let mut files = Vec::new();
        wait_until("a parallel query runs", || {
            files = common::shared_files(&self.data);
            files.len() >= 2
        });
        (common::segment(&pid_file), files)
    }

    fn die(&mut self) {
        self.child.kill().unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Only in a failing test is the helper still running here.
        let _ = self.child.kill().and_then(|()| self.child.wait());
        // Its server may be stopped or without a keeper, and would stay. The path is empty before there
        // is a server.
        if std::thread::panicking() && self.data.is_absolute() {
            for pid in processes_in(&self.data) {
                // SAFETY: kill takes two integers. It may fail: the process may have ended meanwhile.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
    }
}

fn nothing_is_left(directory: &Path) {
    wait_until("nothing is left", || {
        common::places(directory).is_empty() && processes_in(directory).is_empty()
    });
}

/// The users to test: the current user and, for root, an unprivileged one.
fn users() -> Vec<Option<u32>> {
    if is_root() {
        return vec![None, Some(NOBODY)];
    }
    skip(
        "servers of another user",
        "only root can become another user",
    );
    vec![None]
}

#[test]
fn a_killed_process_of_any_user_leaves_nothing() {
    for version in ["9.6", "18"] {
        let Some(installation) = servers::installation(version) else {
            continue;
        };
        for uid in users() {
            let directory = common::open_directory();
            let mut helper = Helper::start(&installation, directory.path(), uid);
            let pid_file = fs::read_to_string(helper.data.join("postmaster.pid")).unwrap();
            let segment = common::segment(&pid_file);
            let control = common::control_segment(helper.postmaster);
            assert!(common::segment_exists(segment) && control.exists());
            helper.die();
            nothing_is_left(directory.path());
            assert!(!is_running(helper.postmaster));
            let given_back = !common::segment_exists(segment) && !control.exists();
            assert!(given_back, "the shared memory is released");
        }
    }
}

#[test]
fn the_next_start_removes_what_a_process_killed_during_startup_left() {
    let Some(installation) = servers::installation("18") else {
        return;
    };
    let directory = common::open_directory();
    for delay_ms in [5, 20, 40, 80, 160, 240, 320] {
        let mut command =
            common::helper("lifetimes::a_process_with_a_server", directory.path(), None);
        let mut child = command
            .env("PGASSAY_TEST_BIN_DIR", &installation.bin_dir)
            .spawn()
            .unwrap();
        sleep(Duration::from_millis(delay_ms));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    wait_until("the keepers are done", || {
        common::keepers_in(directory.path()).is_empty() && processes_in(directory.path()).is_empty()
    });
    // A process killed before it has a keeper leaves a directory; the next start removes it, but within a minute only
    // if it has a lock.
    for place in common::places(directory.path()) {
        if !place.join("lock").exists() {
            let past = SystemTime::now() - Duration::from_mins(2);
            fs::File::open(&place).unwrap().set_modified(past).unwrap();
        }
    }
    let mut command = common::helper("lifetimes::a_process_with_a_server", directory.path(), None);
    command
        .env("PGASSAY_TEST_STOP", "1")
        .env("PGASSAY_TEST_BIN_DIR", &installation.bin_dir);
    assert!(command.status().unwrap().success());
    nothing_is_left(directory.path());
}

#[test]
fn the_terminals_interrupt_does_not_reach_server_or_keeper() {
    let Some(installation) = servers::installation("18") else {
        return;
    };
    let directory = common::open_directory();
    let mut helper = Helper::start(&installation, directory.path(), None);
    // A terminal sends Ctrl-C to the foreground process group and hangup to the session.
    let ours = session_and_group(helper.pid());
    assert_eq!(common::keepers_in(directory.path()), [helper.keeper()]);
    for pid in [helper.postmaster, helper.keeper()] {
        assert_eq!(session_and_group(pid), (pid, pid));
        assert_ne!(session_and_group(pid), ours);
    }
    kill(-helper.pid(), libc::SIGINT);
    assert_eq!(helper.child.wait().unwrap().signal(), Some(libc::SIGINT));
    nothing_is_left(directory.path());
}

fn session_and_group(pid: i32) -> (i32, i32) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    (fields[3].parse().unwrap(), fields[2].parse().unwrap())
}

#[test]
fn the_next_start_removes_what_is_left_if_the_keeper_died_too() {
    let Some(installation) = servers::installation("18") else {
        return;
    };
    for uid in users() {
        let directory = common::open_directory();
        let mut helper = Helper::start(&installation, directory.path(), uid);
        kill(helper.keeper(), libc::SIGKILL);
        helper.die();
        sleep(Duration::from_millis(300));
        assert!(
            is_running(helper.postmaster) && helper.data.exists(),
            "the server is orphaned"
        );
        let mut command =
            common::helper("lifetimes::a_process_with_a_server", directory.path(), uid);
        command
            .env("PGASSAY_TEST_STOP", "1")
            .env("PGASSAY_TEST_BIN_DIR", &installation.bin_dir);
        assert!(command.status().unwrap().success());
        assert!(!is_running(helper.postmaster));
        nothing_is_left(directory.path());
    }
}

#[test]
fn servers_do_not_sweep_each_other() {
    let Some(installation) = servers::installation("18") else {
        return;
    };
    let directory = common::open_directory();
    let mut first = Helper::start(&installation, directory.path(), None);
    let mut second = Helper::start(&installation, directory.path(), None);
    assert!(is_running(first.postmaster) && is_running(second.postmaster));
    first.die();
    wait_until("the first one's server ends", || {
        !is_running(first.postmaster)
    });
    assert!(is_running(second.postmaster) && second.data.exists());
    second.die();
    nothing_is_left(directory.path());
}

/// The next start, by the same user, and with the same temporary directory.
fn start_and_stop(installation: &Installation, directory: &Path, uid: Option<u32>) {
    let mut command = common::helper("lifetimes::a_process_with_a_server", directory, uid);
    command
        .env("PGASSAY_TEST_STOP", "1")
        .env("PGASSAY_TEST_BIN_DIR", &installation.bin_dir);
    assert!(command.status().unwrap().success());
}

fn no_shared_memory_is_left(segment: i32, files: &[PathBuf]) {
    let left: Vec<_> = files.iter().filter(|file| file.exists()).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!common::segment_exists(segment));
}

/// Whether the data of a server are there: a keeper leaves at most the file with its PID.
fn has_base(directory: &Path) -> bool {
    common::places(directory)
        .iter()
        .any(|place| place.join("data/base").exists())
}

/// Regression test, as above, in the process that started the server.
#[test]
fn a_killed_postmaster_leaves_no_shared_memory() {
    for version in ["9.6", "13", "18"] {
        let Some(server) = servers::start(version) else {
            continue;
        };
        common::query_in_parallel(&server);
        let data = server.data_dir();
        let mut files = Vec::new();
        wait_until("a parallel query runs", || {
            files = common::shared_files(&data);
            files.len() >= 2
        });
        let segment = fs::read_to_string(data.join("postmaster.pid")).unwrap();
        let segment = common::segment(&segment);
        let all = processes_in(&data);
        for &pid in &all {
            kill(pid, libc::SIGSTOP);
        }
        for &pid in &all {
            kill(pid, libc::SIGKILL);
        }
        wait_until("the server has died", || server.is_alive().is_err());
        assert!(server.stop().is_err());
        no_shared_memory_is_left(segment, &files);
        assert!(!data.exists());
    }
}

/// Regression: the data, which describe the shared memory, were replaced before the next start. `pgassay count` does
/// this between its rounds.
#[test]
fn a_server_that_is_killed_while_it_shuts_down_leaves_no_shared_memory_when_its_data_are_replaced()
{
    let Some(mut server) = servers::start("18") else {
        return;
    };
    server.restart_with_initial_data(|_| {}).unwrap();
    let postmaster = server.postmaster_pid();
    let pid_file = fs::read_to_string(server.data_dir().join("postmaster.pid")).unwrap();
    let segment = common::segment(&pid_file);
    let control = common::control_segment(postmaster);
    assert!(common::segment_exists(segment) && control.exists());
    // SAFETY: kill takes two integers; the postmaster is our child and not reaped.
    unsafe { libc::kill(postmaster, libc::SIGSTOP) };
    // Of two pending signals, SIGINT would be handled first.
    wait_until("the postmaster is stopped", || {
        let status = fs::read_to_string(format!("/proc/{postmaster}/status")).unwrap();
        status.contains("State:\tT")
    });
    let killer = std::thread::spawn(move || {
        // A fast shutdown is SIGINT, which waits for the stopped process.
        wait_until("the server is asked to shut down", || {
            let status = fs::read_to_string(format!("/proc/{postmaster}/status")).unwrap();
            let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
            let pending = u64::from_str_radix(pending.unwrap().trim(), 16).unwrap();
            pending & (1 << (libc::SIGINT - 1)) != 0
        });
        // SAFETY: as above.
        unsafe { libc::kill(postmaster, libc::SIGKILL) };
    });
    server.restart_with_initial_data(|_| {}).unwrap();
    killer.join().unwrap();
    assert!(!common::segment_exists(segment) && !control.exists());
    server.connect().unwrap();
    server.stop().unwrap();
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    /// Regression test: a stopped server does not act on a signal, was killed, and its shared memory
    /// stayed for ever.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_stopped_server_of_a_killed_process_leaves_nothing() {
        for version in ["9.6", "18"] {
            let Some(installation) = servers::installation(version) else {
                continue;
            };
            for uid in users() {
                for with_keeper in [true, false] {
                    let directory = common::open_directory();
                    let mut helper = Helper::start(&installation, directory.path(), uid);
                    let (segment, files) = helper.shared_memory();
                    for pid in processes_in(&helper.data) {
                        kill(pid, libc::SIGSTOP);
                    }
                    if !with_keeper {
                        kill(helper.keeper(), libc::SIGKILL);
                    }
                    helper.die();
                    if with_keeper {
                        // The keeper needs no help.
                        nothing_is_left(directory.path());
                    }
                    start_and_stop(&installation, directory.path(), uid);
                    nothing_is_left(directory.path());
                    no_shared_memory_is_left(segment, &files);
                }
            }
        }
    }

    /// Regression test: a killed postmaster left its dynamic shared memory. After the keeper, the next
    /// start removes it.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_killed_postmaster_leaves_no_shared_memory_after_the_next_start() {
        for version in ["9.6", "13", "18"] {
            let Some(installation) = servers::installation(version) else {
                continue;
            };
            for uid in users() {
                let directory = common::open_directory();
                let mut helper = Helper::start(&installation, directory.path(), uid);
                let (segment, files) = helper.shared_memory();
                // The others are killed too, since they would release what they use.
                for pid in processes_in(&helper.data) {
                    kill(pid, libc::SIGSTOP);
                }
                for pid in processes_in(&helper.data) {
                    kill(pid, libc::SIGKILL);
                }
                helper.die();
                wait_until("the keeper is done", || {
                    common::keepers_in(directory.path()).is_empty()
                        && processes_in(directory.path()).is_empty()
                        && !has_base(directory.path())
                });
                start_and_stop(&installation, directory.path(), uid);
                nothing_is_left(directory.path());
                no_shared_memory_is_left(segment, &files);
            }
        }
    }
}
