//! Runs the program in a scratch directory for results, servers and files of one test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::{os, server_directory, wait_until, wait_within};

/// A study of two points that takes about two seconds.
pub const SMALL_STUDY: &str = r#"question = "Is prepared faster?"
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

/// Copies a program, by another process: a process that one of our other threads starts meanwhile has,
/// until it runs its program, our open files, and a file that is open for writing cannot be executed.
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(
        status.success(),
        "cp {} {}: {status}",
        from.display(),
        to.display()
    );
}

fn public_directory(parent: &Path) -> TempDir {
    let directory = tempfile::Builder::new().prefix("assay").tempdir_in(parent);
    let directory = directory.expect("a scratch directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).expect("its mode");
    directory
}

/// A scratch directory, and one for servers, writable by the user that servers run as.
pub struct Scratch {
    directory: TempDir,
    servers: TempDir,
    program: PathBuf,
}

impl Scratch {
    /// For a program: `env!("CARGO_BIN_EXE_pgassay")`, which cargo defines for integration tests only.
    pub fn new(program: &str) -> Self {
        Self::with_servers_in(&server_directory(), program)
    }

    /// The same with servers on disk, for tests whose outcome depends on how long a disk takes.
    pub fn on_disk(program: &str) -> Self {
        Self::with_servers_in(Path::new("/tmp"), program)
    }

    fn with_servers_in(parent: &Path, program: &str) -> Self {
        Self {
            directory: public_directory(Path::new("/tmp")),
            servers: public_directory(parent),
            program: program.into(),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The directory for servers' data.
    pub fn servers(&self) -> &Path {
        self.servers.path()
    }

    /// The directory of stored runs.
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
        self.command_of(&self.program)
    }

    /// Another program, restricted to this directory.
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

    /// Runs the program with these arguments to its end.
    pub fn finished(&self, arguments: &[&str]) -> Finished {
        let output = self.command().args(arguments).output();
        Finished::of(&output.expect("the program runs"))
    }

    /// The same for arguments with which it must succeed; returns its output.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let finished = self.finished(arguments);
        assert_eq!(finished.code, Some(0), "{arguments:?}: {}", finished.stderr);
        finished.stdout
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
        wait_within(
            "no server's directory is left",
            Duration::from_mins(1),
            || left().is_empty(),
        );
        let at_work = os::processes_in(self.servers());
        assert_eq!(at_work, Vec::<i32>::new(), "a server's process is left");
    }

    /// The number of trials that runs in progress have saved.
    pub fn saved_trials(&self) -> usize {
        let entries = fs::read_dir(self.results()).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path().join("trials.jsonl"));
        let texts = files.filter_map(|path| fs::read_to_string(path).ok());
        let is_trial = |line: &&str| line.contains("\"window_us\":");
        texts
            .map(|text| text.lines().filter(is_trial).count())
            .sum()
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
    /// `None` if a signal ended it.
    pub code: Option<i32>,
    /// All of it.
    pub stdout: String,
    /// All of it.
    pub stderr: String,
}

impl Finished {
    /// Of a finished process; bytes that are not UTF-8 are replaced.
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

/// The words of a text, with single spaces: output wraps lines.
pub fn collapse_whitespace(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
