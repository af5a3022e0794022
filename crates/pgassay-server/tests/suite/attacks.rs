//! Attacks by another user of this machine on the start of a server, and by the author of a study
//! on root. Every attack takes place in a temporary directory of its own.

use std::ffi::CString;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pgassay_server::{Finder, Installation, Server, ServerConfig, VersionRequest};
use pgassay_test_support::os::{NOBODY, is_root};
use pgassay_test_support::{servers, skip};

use crate::common;

/// Enough for a start on a busy machine, and less than any attack lasts.
const BOUND: Duration = Duration::from_mins(2);

/// Runs in a separate process: starts a server and stops it.
#[test]
#[ignore = "run by the other tests in a separate process"]
fn a_process_that_starts_a_server() {
    let mut finder = Finder::new("/nonexistent");
    finder.named_dir = std::env::var_os("PGASSAY_TEST_BIN_DIR").map(PathBuf::from);
    let installation = finder.find(&VersionRequest::Latest, &mut |_| ()).unwrap();
    let server = Server::start(&installation, &ServerConfig::default()).unwrap();
    server.connect().unwrap().close().unwrap();
    server.stop().unwrap();
}

/// Starts and stops a server with `directory` as the temporary directory. Fails if that takes too
/// long.
fn start_and_stop(installation: &Installation, directory: &Path) {
    let mut command = common::helper("attacks::a_process_that_starts_a_server", directory, None);
    // A start that an endless file can exhaust must not exhaust the machine of the test.
    let limit = libc::rlimit {
        rlim_cur: 4 << 30,
        rlim_max: 4 << 30,
    };
    // SAFETY: setrlimit is async-signal-safe and reads a struct that the closure owns.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut command, move || {
            match libc::setrlimit(libc::RLIMIT_AS, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let mut child = command
        .env("PGASSAY_TEST_BIN_DIR", &installation.bin_dir)
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > BOUND {
            end(&mut child);
            panic!("the start did not end within {BOUND:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
}

fn end(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The user who attacks: with the same name for its directories as ours. For root, the user that its
/// servers run as, since root believes no other; otherwise the current user.
fn attacker() -> u32 {
    if is_root() {
        NOBODY
    } else {
        // SAFETY: geteuid takes nothing and cannot fail.
        unsafe { libc::geteuid() }
    }
}

/// A directory of the attacker whose name is that of a server's directory.
fn bait(parent: &Path, number: u64) -> PathBuf {
    let path = parent.join(format!("pgassay-{number:016x}"));
    fs::create_dir(&path).unwrap();
    give(&path);
    path
}

fn give(path: &Path) {
    std::os::unix::fs::lchown(path, Some(attacker()), Some(attacker())).unwrap();
}

fn file(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    give(path);
}

fn fifo(path: &Path) {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name is NUL-terminated and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
    give(path);
}

/// Puts something in place of each file that a start reads in a directory of an earlier server.
fn in_every_place(parent: &Path, put: impl Fn(&Path)) {
    let with_lock = |number| {
        let base = bait(parent, number);
        file(&base.join("lock"), "");
        base
    };
    put(&bait(parent, 1).join("lock"));
    put(&with_lock(2).join("elsewhere"));
    put(&with_lock(3).join("data"));
    let data = with_lock(4).join("data");
    fs::create_dir(&data).unwrap();
    give(&data);
    put(&data.join("postmaster.pid"));
}

#[test]
fn a_fifo_in_the_temporary_directory_does_not_hang_a_start() {
    let Some(installation) = servers::installation("18") else {
        return;
    };
    let directory = common::open_directory();
    in_every_place(directory.path(), fifo);
    start_and_stop(&installation, directory.path());
}

#[test]
fn a_link_to_an_endless_file_does_not_exhaust_a_start() {
    let Some(installation) = servers::installation("18") else {
        return;
    };
    for target in ["/dev/zero", "/dev/random", "/proc/kmsg"] {
        let directory = common::open_directory();
        in_every_place(directory.path(), |path| {
            symlink(target, path).unwrap();
            give(path);
        });
        start_and_stop(&installation, directory.path());
    }
    // A file that is as long as an endless one.
    let directory = common::open_directory();
    in_every_place(directory.path(), |path| {
        fs::File::create(path).unwrap().set_len(1 << 40).unwrap();
        give(path);
    });
    start_and_stop(&installation, directory.path());
}

/// `pgassay count` reads these files of callgrind, in a directory of the server's user.
#[test]
fn a_link_or_a_pipe_or_an_endless_file_in_place_of_a_count_is_an_error() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let put = |number: u32| server.own_dir().join(format!("callgrind.out.{number}"));
    file(&put(1), "counts");
    fifo(&put(2));
    for (number, target) in [(3, "/etc/passwd"), (4, "/dev/zero"), (5, "callgrind.out.1")] {
        symlink(target, put(number)).unwrap();
        give(&put(number));
    }
    let endless = fs::File::create(put(6)).unwrap();
    endless.set_len(1 << 40).unwrap();
    let read = |number| server.read_own_file(&format!("callgrind.out.{number}"));
    assert_eq!(read(1).unwrap(), "counts");
    let start = Instant::now();
    for number in 2..=6 {
        assert!(read(number).is_err(), "{number}");
    }
    assert!(start.elapsed() < BOUND);
    server.stop().unwrap();
}

#[test]
fn a_directory_of_another_user_is_not_opened() {
    if !is_root() {
        skip("directories of other users", "requires root");
        return;
    }
    let Some(installation) = servers::installation("18") else {
        return;
    };
    let directory = common::open_directory();
    in_every_place(directory.path(), fifo);
    let theirs = common::places(directory.path());
    for path in &theirs {
        chown(path, Some(4321), Some(4321)).unwrap();
    }
    start_and_stop(&installation, directory.path());
    for path in &theirs {
        assert!(path.exists(), "{}", path.display());
    }
}

/// A directory of root that an attacker wants root to remove.
fn victim(parent: &Path) -> PathBuf {
    let path = parent.join("pgassay-00000000000000ff");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("lock"), "").unwrap();
    fs::write(path.join("keep"), "").unwrap();
    path
}

#[test]
fn the_users_directory_cannot_make_root_remove_another_one() {
    if !is_root() {
        skip("attacks on root", "requires root");
        return;
    }
    let Some(installation) = servers::installation("18") else {
        return;
    };
    // Outside of the temporary directory, where it would be removed as an earlier server's.
    let outside = common::open_directory();
    let victim = victim(outside.path());
    let directory = common::open_directory();
    let base = bait(directory.path(), 1);
    file(&base.join("lock"), "");
    file(&base.join("elsewhere"), victim.to_str().unwrap());
    let linked = bait(directory.path(), 2);
    file(&linked.join("lock"), "");
    symlink(outside.path(), linked.join("data")).unwrap();
    // A hard link to a file of root, which names root's directory.
    let named = outside.path().join("elsewhere");
    fs::write(&named, victim.to_str().unwrap()).unwrap();
    let hard = bait(directory.path(), 3);
    file(&hard.join("lock"), "");
    fs::hard_link(&named, hard.join("elsewhere")).unwrap();
    start_and_stop(&installation, directory.path());
    assert!(victim.join("keep").exists() && named.exists());
}

#[test]
fn a_directory_that_is_swapped_with_a_link_does_not_mislead_a_start() {
    let Some(installation) = servers::installation("18") else {
        return;
    };
    let outside = common::open_directory();
    let victim = victim(outside.path());
    let directory = common::open_directory();
    // It is sticky: of what is in it, the attacker can rename what is the attacker's.
    let stop = Arc::new(AtomicBool::new(false));
    let swapping = {
        let (stop, parent) = (Arc::clone(&stop), directory.path().to_owned());
        let victim = victim.clone();
        std::thread::spawn(move || {
            let path = parent.join("pgassay-0000000000000001");
            let mut swaps = 0;
            while !stop.load(Ordering::Relaxed) {
                // Any of these can fail, since the start removes the directory at some point.
                if fs::create_dir(&path).is_ok() {
                    let _ = fs::write(path.join("lock"), "");
                    let _ = chown(&path, Some(attacker()), Some(attacker()));
                }
                let _ = fs::rename(&path, parent.join("aside"));
                let _ = symlink(&victim, &path);
                swaps += 1;
                let _ = fs::remove_file(&path);
                let _ = fs::rename(parent.join("aside"), &path);
            }
            swaps
        })
    };
    start_and_stop(&installation, directory.path());
    stop.store(true, Ordering::Relaxed);
    let swaps: u32 = swapping.join().unwrap();
    assert!(swaps > 100, "only {swaps} swaps");
    assert!(victim.join("keep").exists() && victim.join("lock").exists());
}

/// Programs that write what they run as to a file, and that know a version.
fn spying_programs(directory: &Path) -> PathBuf {
    let bin = directory.join("bin");
    fs::create_dir(&bin).unwrap();
    let spied = directory.join("spied");
    fs::write(&spied, "").unwrap();
    fs::set_permissions(&spied, Permissions::from_mode(0o666)).unwrap();
    for name in ["postgres", "initdb"] {
        let script = format!(
            "#!/bin/sh\n{{ id -u; id -G; env; }} >>'{}'\necho '{name} (PostgreSQL) 18.6'\n",
            spied.display()
        );
        fs::write(bin.join(name), script).unwrap();
        fs::set_permissions(bin.join(name), Permissions::from_mode(0o755)).unwrap();
    }
    spied
}

/// Runs in a separate process with a secret in its environment.
#[test]
#[ignore = "run by another test in a separate process"]
fn a_process_that_finds_programs() {
    let mut finder = Finder::from_environment().unwrap();
    finder.offline = true;
    if std::env::var_os("PGASSAY_TEST_CACHED").is_none() {
        finder.named_dir = std::env::var_os("PGASSAY_TEST_BIN_DIR").map(PathBuf::from);
    }
    let installation = finder.find(&VersionRequest::Latest, &mut |_| ()).unwrap();
    assert_eq!(installation.version.to_string(), "18.6");
    assert!(Server::start(&installation, &ServerConfig::default()).is_err());
}

/// Regression test: `postgres --version` ran as root and with root's environment.
#[test]
fn a_studys_programs_run_as_the_servers_user_and_see_no_secret() {
    for cached in [false, true] {
        let directory = common::open_directory();
        let entry = format!("cache/postgresql/18.6-{}", std::env::consts::ARCH);
        let home = directory.path().join(entry);
        fs::create_dir_all(&home).unwrap();
        let spied = spying_programs(&home);
        let mut command = common::helper(
            "attacks::a_process_that_finds_programs",
            directory.path(),
            None,
        );
        command
            .env("PGASSAY_TEST_BIN_DIR", home.join("bin"))
            .env("PGASSAY_CACHE", directory.path().join("cache"))
            .env("PGPASSWORD", "this is secret");
        if cached {
            command.env("PGASSAY_TEST_CACHED", "1");
        }
        assert!(command.status().unwrap().success());
        let seen = fs::read_to_string(&spied).unwrap();
        let lines: Vec<&str> = seen.lines().collect();
        assert!(!lines.is_empty(), "the programs ran");
        assert!(!seen.contains("secret"), "{seen}");
        for line in &lines {
            if let Some((name, _)) = line.split_once('=') {
                // The last three are the shell's own.
                let allowed = ["PATH", "TZ", "LD_LIBRARY_PATH", "LC_ALL", "LANG"];
                let own = ["PWD", "SHLVL", "_", "OLDPWD"];
                assert!(allowed.contains(&name) || own.contains(&name), "{line}");
            } else if is_root() {
                assert_eq!(*line, NOBODY.to_string(), "a user or a group: {seen}");
            }
        }
    }
}

mod slow {
    use super::*;

    /// Regression test: a program that does not end, or prints without end, hung or exhausted a start.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_studys_program_that_prints_without_end_is_killed() {
        let directory = common::open_directory();
        let bin = directory.path().join("bin");
        fs::create_dir(&bin).unwrap();
        for name in ["postgres", "initdb"] {
            fs::write(bin.join(name), "#!/bin/sh\ncat /dev/zero\n").unwrap();
            fs::set_permissions(bin.join(name), Permissions::from_mode(0o755)).unwrap();
        }
        let mut finder = Finder::new("/nonexistent");
        finder.named_dir = Some(bin);
        let start = Instant::now();
        let error = finder
            .find(&VersionRequest::Latest, &mut |_| ())
            .unwrap_err();
        assert!(start.elapsed() < BOUND);
        assert!(error.to_string().contains("timed out after"), "{error}");
        assert!(pgassay_test_support::os::processes_in(directory.path()).is_empty());
    }
}
