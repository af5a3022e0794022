//! Random kills: whatever is killed or stopped, and whenever, nothing is left after the next start.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pgassay_server::{Finder, Server, ServerConfig, VersionRequest};
use pgassay_test_support::{servers, skip};

use crate::common;

/// The keeper needs at most half a minute for a server that does not end.
const BOUND: Duration = Duration::from_mins(2);
/// Versions with different shared memory.
const VERSIONS: [&str; 3] = ["18", "9.6", "13"];

/// Runs in a separate process: starts a server and runs until it is killed; with
/// `PGASSAY_TEST_STOP` it stops at once.
#[test]
#[ignore = "run by the other tests in a separate process"]
fn a_process_with_a_server() {
    let mut finder = Finder::new("/nonexistent");
    finder.named_dir = std::env::var_os("PGASSAY_TEST_BIN_DIR").map(PathBuf::from);
    let installation = finder.find(&VersionRequest::Latest, &mut |_| ()).unwrap();
    let config = ServerConfig {
        settings: [("fsync".to_owned(), "off".to_owned())].into(),
        ..ServerConfig::default()
    };
    let server = Server::start(&installation, &config).unwrap();
    if std::env::var_os("PGASSAY_TEST_STOP").is_some() {
        server.stop().unwrap();
        return;
    }
    common::query_in_parallel(&server);
    sleep(Duration::from_mins(2));
}

/// A small random number generator (xorshift), so that a seed repeats the choices, although not the
/// exact times.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn pick(&mut self, pids: &[i32]) -> Vec<i32> {
        match self.below(3) {
            0 => pids.to_vec(),
            1 => pids
                .iter()
                .copied()
                .filter(|_| self.below(2) == 0)
                .collect(),
            // The first is the postmaster, unless initdb is running.
            _ => pids.iter().copied().take(1).collect(),
        }
    }
}

/// The processes whose program's name begins with one of these.
fn running(programs: &[&str]) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_one = |pid: &i32| {
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        programs.iter().any(|program| name.starts_with(program))
    };
    let mut found: Vec<i32> = pids.filter(is_one).collect();
    found.sort_unstable();
    found
}

/// Signals processes that may have ended already.
fn signal(pids: &[i32], signal: libc::c_int) {
    for &pid in pids {
        assert!(pid > 1);
        // SAFETY: kill takes two integers and touches no memory of ours.
        unsafe { libc::kill(pid, signal) };
    }
}

fn start(version: &str, stop: bool) -> Child {
    let directory = Path::new("/tmp");
    let mut command = common::helper("kills::a_process_with_a_server", directory, None);
    command.env("PGASSAY_TEST_BIN_DIR", format!("/tmp/{version}/bin"));
    if stop {
        command.env("PGASSAY_TEST_STOP", "1");
    }
    command.stderr(Stdio::null()).spawn().unwrap()
}

/// Stops and kills at random, and returns what it did. In the end the program is dead.
fn strike(program: &mut Child, random: &mut Random) -> String {
    sleep(Duration::from_millis(random.below(2500)));
    let servers = || running(&["postgres", "initdb"]);
    let mut done = String::new();
    if random.below(2) == 0 {
        let stopped = random.pick(&servers());
        signal(&stopped, libc::SIGSTOP);
        write!(done, "stopped {}, ", stopped.len()).unwrap();
    }
    if random.below(3) == 0 {
        let killed = random.pick(&servers());
        signal(&killed, libc::SIGKILL);
        write!(done, "killed {} of the server, ", killed.len()).unwrap();
        sleep(Duration::from_millis(random.below(300)));
    }
    let with_keeper = random.below(2) == 0;
    if with_keeper {
        signal(&common::keepers_in(Path::new("/tmp")), libc::SIGKILL);
        done.push_str("killed the keeper, ");
        if random.below(2) == 0 {
            sleep(Duration::from_millis(random.below(300)));
        }
    }
    // It can have ended with an error, because of what was killed.
    let _ = program.kill();
    program.wait().unwrap();
    done.push_str("killed the program");
    done
}

/// What is left: processes, directories, System V segments and files of shared memory.
fn left() -> Vec<String> {
    let mut left = Vec::new();
    for pid in running(&["postgres", "initdb"])
        .into_iter()
        .chain(common::keepers_in(Path::new("/tmp")))
    {
        left.push(format!("process {pid}"));
    }
    for path in common::places(Path::new("/tmp")) {
        left.push(format!("directory {}", path.display()));
    }
    for line in fs::read_to_string("/proc/sysvipc/shm")
        .unwrap()
        .lines()
        .skip(1)
    {
        left.push(format!("segment {line}"));
    }
    for entry in fs::read_dir("/dev/shm").unwrap() {
        left.push(format!("file {}", entry.unwrap().path().display()));
    }
    left
}

/// Runs in namespaces of its own, with the servers' programs in `/tmp/VERSION`.
#[test]
#[ignore = "run by the other tests in namespaces of its own"]
fn rounds_of_random_kills() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let Some(rounds) = number("PGASSAY_TEST_ROUNDS") else {
        return;
    };
    let seed: u64 = number("PGASSAY_TEST_SEED").unwrap();
    let mut random = Random(seed);
    let begin = Instant::now();
    let mut failures = Vec::new();
    for round in 1..=rounds {
        // Old versions take longer to start.
        let version = match random.below(10) {
            0 => VERSIONS[1],
            1 => VERSIONS[2],
            _ => VERSIONS[0],
        };
        let mut program = start(version, false);
        let done = strike(&mut program, &mut random);
        let waiting = Instant::now();
        while !common::keepers_in(Path::new("/tmp")).is_empty() && waiting.elapsed() < BOUND {
            sleep(Duration::from_millis(20));
        }
        let status = start(VERSIONS[0], true).wait().unwrap();
        let left = left();
        let line = format!("round {round}: PostgreSQL {version}, {done}: {status}, left {left:?}");
        eprintln!("{line}");
        if !status.success() || !left.is_empty() {
            failures.push(line);
            // The rounds are independent.
            signal(&running(&["postgres", "initdb"]), libc::SIGKILL);
        }
    }
    eprintln!(
        "{rounds} rounds, seed {seed}, {} s",
        begin.elapsed().as_secs()
    );
    assert!(failures.is_empty(), "seed {seed}: {failures:#?}");
}

/// New PID, IPC and mount namespaces, in which `/tmp` and `/dev/shm` are empty, except for copies of
/// this program and of the servers' programs. The shell reaps orphans.
const NAMESPACES: &str = "set -e
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
new=$1
mount -t tmpfs -o mode=1777 tmpfs \"$new\"
cp \"$2\" \"$new/helper\"
chmod 755 \"$new/helper\"
shift 2
for version in 18 9.6 13; do cp -a \"$1\" \"$new/$version\"; shift; done
mount --bind \"$new\" /tmp
cd /
/tmp/helper kills::rounds_of_random_kills --exact --ignored --nocapture
";

fn kill_at_random(rounds: u32) {
    if !pgassay_test_support::os::is_root() {
        skip("random kills", "only root can create namespaces");
        return;
    }
    let mut prefixes = Vec::new();
    for version in VERSIONS {
        let Some(installation) = servers::installation(version) else {
            return;
        };
        prefixes.push(installation.bin_dir.parent().unwrap().to_owned());
    }
    let unshare = [
        "--pid",
        "--mount",
        "--ipc",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ];
    let can = Command::new("unshare").args(unshare).arg("true").output();
    if !can.is_ok_and(|output| output.status.success()) {
        skip("random kills", "this machine does not allow new namespaces");
        return;
    }
    let directory = common::open_directory();
    let mut command = Command::new("unshare");
    command
        .args(unshare)
        .args(["/bin/sh", "-c", NAMESPACES, "sh"]);
    command
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args(&prefixes);
    let seed = std::env::var("PGASSAY_TEST_SEED").unwrap_or_else(|_| {
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        since.subsec_nanos().max(1).to_string()
    });
    command
        .env("TMPDIR", "/tmp")
        // A directory of PATH in /tmp is hidden there, and servers need the system's programs.
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("PGASSAY_TEST_ROUNDS", rounds.to_string())
        .env("PGASSAY_TEST_SEED", seed)
        .current_dir("/");
    assert!(command.status().unwrap().success());
}

#[test]
fn random_kills_leave_nothing_after_the_next_start() {
    kill_at_random(4);
}

/// The same for longer: `PGASSAY_TEST_KILLS` rounds, by default 500, of about 5 seconds each.
#[test]
#[ignore = "takes most of an hour"]
fn many_random_kills_leave_nothing_after_the_next_start() {
    let rounds = std::env::var("PGASSAY_TEST_KILLS").ok();
    kill_at_random(rounds.map_or(500, |rounds| rounds.parse().unwrap()));
}
