//! Runs `pgassay bench` under mpirun, in a temporary directory.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use pgassay_test_support::os::{on_path, processes_in};
use pgassay_test_support::{BareServer, skip, wait_for_exit, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pgassay");
/// Only a hang exceeds it.
const LIMIT: Duration = Duration::from_mins(2);

/// A directory with scripts, in which ranks run.
pub struct Ranks {
    directory: tempfile::TempDir,
}

/// What a run left.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ended {
    pub fn has(&self, code: i32, out: &[&str], err: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for line in out {
            assert!(self.out.contains(line), "no {line:?} in {self:?}");
        }
        for line in err {
            assert!(self.err.contains(line), "no {line:?} in {self:?}");
        }
    }
}

impl Ranks {
    /// `None` if there is no mpirun.
    pub fn new() -> Option<Self> {
        if on_path("mpirun").is_none() {
            skip("several ranks", "no mpirun");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("tmp")).unwrap();
        Some(Self { directory })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn script(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    /// A command in the directory that connects to the server and finds no other by chance.
    fn prepare(&self, mut command: Command, server: Option<&BareServer>) -> Command {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        command
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env("OMPI_MCA_mpi_yield_when_idle", "1")
            // Where Open MPI keeps its session files.
            .env("TMPDIR", self.path().join("tmp"))
            .env("PGUSER", "tester")
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(self.path().join("out")).unwrap())
            .stderr(std::fs::File::create(self.path().join("err")).unwrap())
            .current_dir(self.path());
        if let Some(server) = server {
            command
                .env("PGHOST", server.socket_directory())
                .env("PGDATABASE", "postgres");
        }
        command
    }

    /// Starts ranks.
    pub fn start(
        &self,
        ranks: u32,
        server: Option<&BareServer>,
        arguments: &[&str],
    ) -> Running<'_> {
        let mut command = Command::new("mpirun");
        command
            .args(["--oversubscribe", "-np", &ranks.to_string()])
            .args([PROGRAM, "bench", "-n"])
            .args(arguments);
        Running {
            ranks: self,
            child: self.prepare(command, server).spawn().unwrap(),
        }
    }

    /// Runs ranks.
    pub fn run(&self, ranks: u32, server: Option<&BareServer>, arguments: &str) -> Ended {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        self.start(ranks, server, &words).end()
    }

    /// Runs one process, without mpirun.
    pub fn run_alone(&self, server: Option<&BareServer>, arguments: &str) -> Ended {
        let mut command = Command::new(PROGRAM);
        command.arg("bench").args(arguments.split_whitespace());
        let output: Output = self.prepare(command, server).output().unwrap();
        self.ended(output.status.code())
    }

    fn ended(&self, code: Option<i32>) -> Ended {
        let text = |name: &str| {
            let bytes = std::fs::read(self.path().join(name)).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Ended {
            code,
            out: text("out"),
            err: text("err"),
        }
    }
}

/// Ranks that run.
pub struct Running<'a> {
    ranks: &'a Ranks,
    child: Child,
}

impl Running<'_> {
    /// The process of mpirun.
    pub fn mpirun(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// The process of a rank.
    pub fn rank(&self, rank: u32) -> i32 {
        let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
        let is_it = |pid: &i32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == wanted.as_bytes())
        };
        let found = processes_in(self.ranks.path()).into_iter().find(is_it);
        found.unwrap_or_else(|| panic!("no rank {rank}"))
    }

    /// Waits for its end. Neither processes nor Open MPI's session files must be left.
    pub fn end(mut self) -> Ended {
        let code = wait_for_exit(&mut self.child, LIMIT);
        wait_until("no process is left", || {
            processes_in(self.ranks.path()).is_empty()
        });
        let session = std::fs::read_dir(self.ranks.path().join("tmp")).unwrap();
        let left: Vec<_> = session.flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{left:?}");
        self.ranks.ended(code)
    }
}
