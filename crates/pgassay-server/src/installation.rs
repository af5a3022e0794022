//! The programs of one PostgreSQL version on this machine.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::account::{OsAccount, run_program};
use crate::error::barrier_words;
use crate::facts::BuildFacts;
use crate::version::Version;
use crate::waiting::wait_until;

/// Time limit of `postgres --version`.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a program that was just unpacked can be busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// The programs that a server needs.
const NEEDED: [&str; 2] = ["postgres", "initdb"];

/// An installed or unpacked PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The directory of its programs.
    pub bin_dir: PathBuf,
    /// Its exact version, as the server program reports it.
    pub version: Version,
    /// Where it comes from.
    pub source: InstallationSource,
    /// How it was built.
    pub build: BuildFacts,
}

/// What identifies a server program's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerFile {
    inode: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
}

/// Where an installation comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallationSource {
    /// A directory that the user specified.
    Named,
    /// The cache, from an earlier run.
    Cache,
    /// Just downloaded into the cache.
    Fetched,
    /// Installed on this machine, used because the other sources failed.
    Installed {
        /// Why it is used, for the user.
        note: String,
    },
}

impl Installation {
    /// Inspects a directory of programs. The error says what is missing. A study can name the
    /// directory, and a download can bring it, so its programs run as the server's user only.
    pub(crate) fn inspect(
        bin_dir: &Path,
        source: InstallationSource,
        account: &OsAccount,
    ) -> io::Result<Self> {
        for name in NEEDED {
            let program = bin_dir.join(name);
            if !program.is_file() {
                let words = format!("{} does not exist", program.display());
                return Err(io::Error::new(io::ErrorKind::NotFound, words));
            }
        }
        let program = bin_dir.join("postgres");
        let version = version_of(&program, account)?;
        let build = BuildFacts::of_program(&program)?;
        Ok(Self {
            bin_dir: bin_dir.to_owned(),
            version,
            source,
            build,
        })
    }

    /// Which file the server program is now, if there is one. It changes if the installation is rebuilt.
    pub(crate) fn server_file(&self) -> Option<ServerFile> {
        let facts = std::fs::metadata(self.program("postgres")).ok()?;
        Some(ServerFile {
            inode: (facts.dev(), facts.ino()),
            bytes: facts.len(),
            modified: (facts.mtime(), facts.mtime_nsec()),
        })
    }

    /// The path of one of its programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin_dir.join(name)
    }

    /// Whether `create extension` can find an extension. Checks the locations used by PostgreSQL's
    /// own make and by Debian's and Red Hat's packages.
    pub fn has_extension(&self, name: &str) -> bool {
        let base = self.bin_dir.parent().unwrap_or(&self.bin_dir);
        let major = base.file_name().unwrap_or_default();
        let shares = [
            base.join("share"),
            base.join("share/postgresql"),
            Path::new("/usr/share/postgresql").join(major),
        ];
        let control = format!("{name}.control");
        shares
            .iter()
            .any(|share| share.join("extension").join(&control).is_file())
    }
}

fn version_of(program: &Path, account: &OsAccount) -> io::Result<Version> {
    let ask = || {
        let mut command = account.command(program);
        command.arg("--version");
        run_program(command, VERSION_TIMEOUT)
    };
    let mut result = ask();
    // A program that was just unpacked can be busy for a moment: a child forked by another thread
    // holds it open for writing until it calls exec.
    wait_until(BUSY_TIMEOUT, || {
        let busy =
            matches!(&result, Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy);
        if busy {
            result = ask();
        }
        !busy
    });
    let is_unexecutable = !account.can_execute(program);
    let output = result.map_err(|error| {
        let user = &account.user.name;
        let directory = account.barrier(program);
        let program = program.display();
        let why = if directory.is_none() && is_unexecutable {
            format!(" (the file is not executable for this user: chmod a+rx {program})")
        } else {
            barrier_words(directory.as_ref(), user)
        };
        let words = format!("cannot run {program} as user {user}: {error}{why}");
        io::Error::new(error.kind(), words)
    })?;
    let printed = String::from_utf8_lossy(&output.stdout);
    Version::from_program_output(&printed).ok_or_else(|| {
        let words = String::from_utf8_lossy(&output.stderr);
        let mut lines = words.lines().chain(printed.lines()).map(str::trim);
        let line = lines.find(|line| !line.is_empty());
        let line = line.map_or_else(|| output.status.to_string(), str::to_owned);
        let program = program.display();
        io::Error::other(if output.status.success() {
            format!("{program} is not PostgreSQL's server: --version prints \"{line}\"")
        } else {
            format!("{program} --version: {line}")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn account() -> OsAccount {
        OsAccount::choose(None).unwrap()
    }

    /// A directory that the server's user can enter.
    fn open_directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), mode).unwrap();
        directory
    }

    fn program(directory: &Path, name: &str, script: &str) {
        let path = directory.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn the_version_is_read_from_the_server_program() {
        let directory = open_directory();
        program(directory.path(), "initdb", "exit 0");
        program(
            directory.path(),
            "postgres",
            "echo 'postgres (PostgreSQL) 16.4 (Vendor 1)'",
        );
        let installation =
            Installation::inspect(directory.path(), InstallationSource::Named, &account()).unwrap();
        assert_eq!(installation.version.to_string(), "16.4");
    }

    /// Regression: "Permission denied (os error 13)" did not say what to do.
    #[test]
    fn a_program_without_the_executable_bit_is_said_to_be_one() {
        let directory = open_directory();
        program(directory.path(), "initdb", "exit 0");
        program(directory.path(), "postgres", "exit 0");
        let path = directory.path().join("postgres");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = version_of(&path, &account()).unwrap_err().to_string();
        let expected = format!(
            "not executable for this user: chmod a+rx {}",
            path.display()
        );
        assert!(error.contains(&expected), "{error}");
    }

    #[test]
    fn the_error_includes_why_a_program_does_not_run() {
        let directory = open_directory();
        let inspect = || {
            Installation::inspect(directory.path(), InstallationSource::Named, &account())
                .unwrap_err()
                .to_string()
        };
        program(
            directory.path(),
            "postgres",
            "echo 'libicu.so.53: cannot open' >&2; exit 127",
        );
        assert!(inspect().contains("does not exist") && inspect().contains("initdb"));
        program(directory.path(), "initdb", "exit 0");
        program(directory.path(), "silent", "kill -SEGV $$");
        let silent = version_of(&directory.path().join("silent"), &account()).unwrap_err();
        assert!(
            silent.to_string().contains("--version: signal: 11"),
            "{silent}"
        );
        assert!(
            inspect().contains("libicu.so.53: cannot open"),
            "{}",
            inspect()
        );
    }
}
