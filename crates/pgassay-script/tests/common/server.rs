//! The real pgbench, and a temporary PostgreSQL server for it, which accepts only Unix socket
//! connections and is stopped when dropped. If the tests run as root, everything runs as `nobody`,
//! because PostgreSQL refuses to run as root.

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65534;

static SKIPPED: AtomicU32 = AtomicU32::new(0);

/// Reports a skipped test, bypassing the test harness's capture of output.
fn skip(why: &str) {
    assert!(
        std::env::var_os("PGASSAY_NO_SKIP").is_none(),
        "must not be skipped: {why}"
    );
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    let line = format!("SKIPPED ({count} in this program): comparison with pgbench: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    // The tester's own connection settings must not apply to this server.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C").stdin(Stdio::null());
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn temporary_directory() -> tempfile::TempDir {
    let directory = tempfile::Builder::new()
        .prefix("pgassay-script-")
        .tempdir()
        .unwrap();
    if is_root() {
        chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    directory
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// pgbench on PATH.
pub struct Pgbench {
    program: PathBuf,
    /// Its major version.
    pub version: u32,
}

impl Pgbench {
    pub fn find() -> Option<Pgbench> {
        let Some(program) = on_path("pgbench") else {
            skip("no pgbench on PATH");
            return None;
        };
        let output = command(&program).arg("-V").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let version = text.split_whitespace().find_map(|word| {
            word.split(|c: char| !c.is_ascii_digit())
                .next()?
                .parse()
                .ok()
        });
        match version {
            Some(version) if version >= 15 => Some(Pgbench { program, version }),
            _ => {
                skip(&format!("{} is older than 15: {text}", program.display()));
                None
            }
        }
    }

    /// Runs pgbench with a script in the file `test.sql`, and returns its standard error.
    pub fn run(&self, server: Option<&Server>, arguments: &[&str], script: &str) -> String {
        self.run_files(server, arguments, &[(script, 1)])
    }

    /// Like `run`, with several scripts; all but the first have a number in their names.
    pub fn run_files(
        &self,
        server: Option<&Server>,
        arguments: &[&str],
        scripts: &[(&str, u32)],
    ) -> String {
        let directory = temporary_directory();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let mut pgbench = command(&self.program);
        pgbench.current_dir(directory.path()).args(arguments);
        for (index, (script, weight)) in scripts.iter().enumerate() {
            let name = if index == 0 {
                "test.sql".to_owned()
            } else {
                format!("test{index}.sql")
            };
            std::fs::write(directory.path().join(&name), script).unwrap();
            pgbench.arg("-f").arg(if *weight == 1 {
                name
            } else {
                format!("{name}@{weight}")
            });
        }
        if let Some(server) = server {
            pgbench.arg("-h").arg(server.directory.path());
        }
        let output = pgbench.args(["-U", "tester", "postgres"]).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    }

    /// Runs pgbench with only these arguments.
    pub fn run_bare(&self, arguments: &[&str]) -> String {
        let output = command(&self.program)
            .current_dir("/")
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(output.stderr).unwrap()
    }
}

/// A running server.
pub struct Server {
    child: Child,
    directory: tempfile::TempDir,
}

/// pgbench and a server, or neither.
pub fn both() -> Option<(Pgbench, Server)> {
    let pgbench = Pgbench::find()?;
    let Some(folder) = server_programs() else {
        skip("no initdb and postgres on PATH or in Debian's directories");
        return None;
    };
    Some((pgbench, Server::start(&folder)))
}

fn server_programs() -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = on_path("initdb")
        .and_then(|file| file.canonicalize().ok())
        .and_then(|file| file.parent().map(Path::to_path_buf))
        .into_iter()
        .collect();
    let debian = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    folders.extend(debian.filter_map(|entry| Some(entry.ok()?.path().join("bin"))));
    let has_both = |folder: &PathBuf| {
        ["initdb", "postgres"]
            .iter()
            .all(|program| folder.join(program).is_file())
    };
    folders.into_iter().find(has_both)
}

impl Server {
    fn start(folder: &Path) -> Server {
        let directory = temporary_directory();
        let data = directory.path().join("data");
        let initdb = command(&folder.join("initdb"))
            .current_dir(directory.path())
            .args([
                "-U",
                "tester",
                "-A",
                "trust",
                "-N",
                "-E",
                "UTF8",
                "--locale=C",
                "-D",
            ])
            .arg(&data)
            .output()
            .unwrap();
        assert!(
            initdb.status.success(),
            "{}",
            String::from_utf8_lossy(&initdb.stderr)
        );
        let child = command(&folder.join("postgres"))
            .current_dir(directory.path())
            .arg("-D")
            .arg(&data)
            .args([
                "-c",
                "listen_addresses=",
                "-c",
                "fsync=off",
                "-c",
                "autovacuum=off",
                "-k",
            ])
            .arg(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server { child, directory };
        let deadline = Instant::now() + Duration::from_mins(1);
        let ready = folder.join("pg_isready");
        while !command(&ready)
            .current_dir("/")
            .arg("-q")
            .arg("-h")
            .arg(server.directory.path())
            .status()
            .unwrap()
            .success()
        {
            assert!(
                Instant::now() < deadline,
                "the server does not accept connections"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = libc::pid_t::try_from(self.child.id()).expect("a process ID fits its type");
        // SAFETY: kill has no preconditions; the process is our child and not reaped yet.
        unsafe { libc::kill(pid, libc::SIGQUIT) };
        let deadline = Instant::now() + Duration::from_secs(20);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
