//! Errors of starting, using and stopping a server.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::connection::ConnectionError;
use crate::version::Version;

/// Why a server could not be started, used or stopped. The message includes the server's own
/// message, if there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The user to run the server as does not exist.
    #[error("operating-system user {user} does not exist")]
    NoSuchUser {
        /// Its name or uid.
        user: String,
    },
    /// The password database could not be read.
    #[error("cannot look up operating-system user {user}: {source}")]
    UserLookUp {
        /// Its name or uid.
        user: String,
        /// The system's error.
        source: io::Error,
    },
    /// PostgreSQL refuses to run as root.
    #[error("PostgreSQL cannot run as root: specify another user to run it as")]
    RootNotAllowed,
    /// Only root can run a server as another user.
    #[error("only root can run a server as {user}; the current user is {ourselves}")]
    NotRoot {
        /// The requested user.
        user: String,
        /// The current user.
        ourselves: String,
    },
    /// A setting that cannot be written to the configuration.
    #[error("cannot set {name}: {reason}")]
    Setting {
        /// The setting.
        name: String,
        /// Why not.
        reason: String,
    },
    /// The server's directory could not be created or filled.
    #[error("cannot {doing} {}: {source}", path.display())]
    Directory {
        /// Such as `create the server's directory in`.
        doing: &'static str,
        /// The directory or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The server's file system is full.
    #[error(
        "the file system of {} is full: {words}. \
         Free disk space, or use another directory for the servers' data",
        path.display()
    )]
    DiskFull {
        /// The server's directory (already removed).
        path: PathBuf,
        /// The failing program's message.
        words: String,
    },
    /// A PostgreSQL program could not be executed.
    #[error("cannot run {} as user {user}: {source}{}", program.display(), barrier_words(barrier.as_ref(), user))]
    Program {
        /// The program.
        program: PathBuf,
        /// The user to run it as.
        user: String,
        /// The system's error.
        source: io::Error,
        /// A parent directory that the user has no access to.
        barrier: Option<PathBuf>,
    },
    /// The server program is not the one that the server was first started with.
    #[error(
        "{} was replaced or removed since this server first started, so its measurements are not of one build: \
         build into another directory",
        program.display()
    )]
    Rebuilt {
        /// The program.
        program: PathBuf,
    },
    /// `initdb` failed.
    #[error("initdb of PostgreSQL {version} failed: {words}")]
    Initdb {
        /// Its version.
        version: Version,
        /// Its output.
        words: String,
    },
    /// The server exited during startup, for example because of a wrong setting.
    #[error("PostgreSQL {version} did not start ({how}). Its log ends with:\n{log}")]
    NotStarted {
        /// Its version.
        version: Version,
        /// How it ended, such as `exit status: 1`.
        how: String,
        /// The last lines of its log.
        log: String,
    },
    /// The server rejected a setting.
    #[error(
        "PostgreSQL {version} rejected the setting {name} = \"{value}\": {words}{}",
        lacks(version, name, value)
    )]
    SettingRefused {
        /// Its version.
        version: Version,
        /// The setting's name, as specified.
        name: String,
        /// Its value.
        value: String,
        /// The server's message.
        words: String,
    },
    /// The server did not accept connections in time.
    #[error(
        "PostgreSQL {version} did not accept connections within {} s ({last}). \
         Its log ends with:\n{log}",
        timeout.as_secs()
    )]
    NotReady {
        /// Its version.
        version: Version,
        /// The time limit.
        timeout: Duration,
        /// The result of the last attempt.
        last: String,
        /// The last lines of its log.
        log: String,
    },
    /// A running server ended unexpectedly.
    #[error("the PostgreSQL {version} server died ({how}). Its log ends with:\n{log}")]
    Died {
        /// Its version.
        version: Version,
        /// How it ended, such as `signal: 9 (SIGKILL)`.
        how: String,
        /// The last lines of its log.
        log: String,
    },
    /// The server's processes or directories could not be removed.
    #[error("cannot remove the server in {}: {source}", path.display())]
    Leftover {
        /// The server's directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The server could not be reached, or returned an error.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
}

/// Explains a missing permission, if there is a directory that `user` cannot enter.
pub(crate) fn barrier_words(barrier: Option<&PathBuf>, user: &str) -> String {
    barrier.map_or_else(String::new, |directory| {
        format!(
            " (user {user} has no access to the directory {}: grant it, or use another directory)",
            directory.display()
        )
    })
}

/// Settings with values for which a build needs a library, and the first release that knows them.
const OPTIONAL: [(&str, &str, u16); 4] = [
    ("default_toast_compression", "lz4", 14),
    ("wal_compression", "lz4", 15),
    ("wal_compression", "zstd", 15),
    ("io_method", "io_uring", 18),
];

/// Which option gives a build that has what a refused value needs; empty if no build knows the value.
fn lacks(version: &Version, name: &str, value: &str) -> String {
    let is_optional = OPTIONAL.iter().any(|(setting, optional, since)| {
        name.eq_ignore_ascii_case(setting)
            && value.eq_ignore_ascii_case(optional)
            && version.series().major() >= *since
    });
    if is_optional {
        format!(" This build has no {value}: use a build that has it (--binaries DIR)")
    } else {
        String::new()
    }
}

/// The line in which a PostgreSQL program reports a full disk: the system's message, or a short
/// write, which only the hint explains.
fn disk_full_words(words: &str) -> Option<String> {
    let mut before = "";
    for line in words.lines() {
        if line.contains("No space left on device") {
            return Some(line.trim().to_owned());
        }
        if line.contains("Check free disk space") {
            return Some(before.trim().to_owned());
        }
        before = line;
    }
    None
}

impl ServerError {
    /// Turns the error into `DiskFull` if a program's output reports a full disk.
    pub(crate) fn or_disk_full(self, path: &std::path::Path, words: &str) -> Self {
        match disk_full_words(words) {
            Some(words) => Self::DiskFull {
                path: path.to_owned(),
                words,
            },
            None => self,
        }
    }

    /// An error of writing a file or directory: `DiskFull` if that is the cause.
    pub(crate) fn writing(doing: &'static str, path: &std::path::Path, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::StorageFull {
            let words = source.to_string();
            return Self::DiskFull {
                path: path.to_owned(),
                words,
            };
        }
        Self::Directory {
            doing,
            path: path.to_owned(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_recognized_in_a_programs_output() {
        let short = "LOG:  x\nFATAL:  wrote only 4096 of 8192 bytes\nHINT:  Check free disk space.";
        assert_eq!(
            disk_full_words(short).as_deref(),
            Some("FATAL:  wrote only 4096 of 8192 bytes")
        );
        let system = "a\nPANIC:  could not write: No space left on device\nb";
        assert_eq!(
            disk_full_words(system).as_deref(),
            Some("PANIC:  could not write: No space left on device")
        );
        assert_eq!(disk_full_words("FATAL:  could not open file"), None);
    }
}
