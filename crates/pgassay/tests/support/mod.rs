//! Runs the program in a scratch directory for results, servers and files of one test.

// Each test program uses only part of it.
#![allow(dead_code)]

pub mod profiling;
pub mod quiet;
pub mod refusal;

/// Tests of the timing tier, by the names of functions; see [`quiet`].
#[allow(unused_macros)]
macro_rules! timing_tests {
    ($($name:ident,)+) => {
        mod timing {
            $(
                #[test]
                fn $name() {
                    crate::support::quiet::timing(super::$name);
                }
            )+
        }
    };
}
#[allow(unused_imports)]
pub(crate) use timing_tests;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A study of two points that takes about two seconds.
pub const SMALL: &str = r#"question = "Is prepared faster?"
[server]
version = "18"
[data]
setup = '''
create table t(i int);
insert into t select 1;
'''
[[script]]
name = "one"
text = '''
\set x random(1, 10)
select i from t where i < :x;
'''
[[variant]]
name = "simple"
[[variant]]
name = "prepared"
protocol = "prepared"
[conditions]
clients = [2]
[length]
full = "2s"
pairs = 2
"#;

/// A scratch directory, writable by the user that servers run as.
pub struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    pub fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("assay")
            .tempdir_in("/tmp")
            .expect("a scratch directory");
        let scratch = Self { directory };
        for path in [scratch.path().to_owned(), scratch.servers()] {
            fs::create_dir_all(&path).expect("a directory");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("its mode");
        }
        scratch
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The directory for servers' data.
    pub fn servers(&self) -> PathBuf {
        self.path().join("servers")
    }

    pub fn results(&self) -> PathBuf {
        self.path().join("results")
    }

    /// Writes a study and returns its path.
    pub fn study(&self, text: &str) -> PathBuf {
        let path = self.path().join("study.toml");
        fs::write(&path, text).expect("the study is written");
        path
    }

    /// The program, restricted to this directory.
    pub fn command(&self) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_pgassay")))
    }

    pub fn command_of(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("PGASSAY_RESULTS", self.results())
            .env("TMPDIR", self.servers())
            .env_remove("CLICOLOR_FORCE")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .current_dir(self.path());
        command
    }

    /// Runs a study to its end.
    pub fn run(&self, study: &str, arguments: &[&str]) -> Finished {
        let path = self.study(study);
        let output = self
            .command()
            .arg("run")
            .arg(path)
            .args(arguments)
            .output()
            .expect("the program runs");
        Finished::of(&output)
    }

    /// Starts a study and waits until its trials have begun.
    pub fn start(&self, study: &str, arguments: &[&str]) -> Child {
        let path = self.study(study);
        let stderr = fs::File::create(self.path().join("stderr")).expect("a file");
        let child = self
            .command()
            .arg("run")
            .arg(path)
            .args(arguments)
            .stderr(stderr)
            .spawn();
        let child = child.expect("the program runs");
        wait_until("trials begin", || self.stderr().contains("trial "));
        child
    }

    /// The stderr of a started run so far.
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.path().join("stderr")).unwrap_or_default()
    }

    /// The postmaster of the server that runs here.
    pub fn postmaster_pid(&self) -> i32 {
        let entries = fs::read_dir(self.servers())
            .expect("the servers' directory")
            .flatten();
        let pid = entries
            .filter_map(|entry| fs::read_to_string(entry.path().join("data/postmaster.pid")).ok())
            .find_map(|text| text.lines().next()?.parse().ok());
        pid.expect("a server runs")
    }

    /// Checks that no directory and no process of a server is left.
    pub fn assert_nothing_left(&self) {
        let left = || {
            fs::read_dir(self.servers())
                .expect("the directory")
                .flatten()
                .map(|e| e.path())
                .collect::<Vec<_>>()
        };
        let until = Instant::now() + Duration::from_secs(20);
        while !left().is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(
            left(),
            Vec::<PathBuf>::new(),
            "a server's directory is left"
        );
        let at_work: Vec<String> = fs::read_dir("/proc")
            .expect("proc")
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path().join("cwd")).ok())
            .filter(|directory| directory.starts_with(self.servers()))
            .map(|directory| directory.display().to_string())
            .collect();
        assert_eq!(at_work, Vec::<String>::new(), "a server's process is left");
    }

    /// Directories of stored runs.
    pub fn kept(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.results()).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.join("run.json").exists())
            .collect()
    }
}

/// Exit code and output of a run.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    pub fn of(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The error message.
    pub fn error_message(&self) -> &str {
        self.stderr
            .lines()
            .find(|line| line.starts_with("pgassay: "))
            .unwrap_or_default()
    }
}

/// Waits for a child, with a timeout.
pub fn wait(child: &mut Child, limit: Duration) -> Option<i32> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status.code();
        }
        if Instant::now() > until {
            // Killing it lets its keeper clean up before the test fails.
            let _ = child.kill();
            let _ = child.wait();
            panic!("the program did not end within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_mins(2);
    while !is_so() {
        assert!(Instant::now() < until, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn signal(pid: i32, number: i32) {
    // SAFETY: kill only sends a signal, to a process that the test started.
    let sent = unsafe { libc::kill(pid, number) };
    assert_eq!(sent, 0, "signal {number} to {pid}");
}

pub fn is_root() -> bool {
    // SAFETY: geteuid always succeeds.
    unsafe { libc::geteuid() == 0 }
}

/// The words of a text, with single spaces: output wraps lines.
pub fn collapse_whitespace(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
