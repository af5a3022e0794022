//! The real pgbench. If the tests run as root, it runs as `nobody`, as its server does.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pgassay_test_support::os::{NOBODY, is_root, on_path};
use pgassay_test_support::{BareServer, skip_comparison};

fn skip(why: &str) {
    skip_comparison("comparison with pgbench", why);
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
    pub fn run(&self, server: Option<&BareServer>, arguments: &[&str], script: &str) -> String {
        self.run_files(server, arguments, &[(script, 1)])
    }

    /// Like `run`, with several scripts; all but the first have a number in their names.
    pub fn run_files(
        &self,
        server: Option<&BareServer>,
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
            pgbench.arg("-h").arg(server.socket_directory());
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

/// pgbench and a server, or neither.
pub fn both() -> Option<(Pgbench, BareServer)> {
    let pgbench = Pgbench::find()?;
    Some((pgbench, BareServer::trusting()?))
}
