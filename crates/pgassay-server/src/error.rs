//! What can go wrong with a server, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::connection::ConnectionError;
use crate::version::Version;

/// Why a server could not be started, used or stopped. Where the server itself had something to
/// say, its words stand in the message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The user to run as is not known here.
    #[error("there is no operating-system user {user}, and PostgreSQL has to run as one")]
    NoSuchUser {
        /// Its name or number.
        user: String,
    },
    /// The password database could not be read.
    #[error("cannot look up the operating-system user {user}: {source}")]
    UserLookUp {
        /// Its name or number.
        user: String,
        /// What the system said.
        source: io::Error,
    },
    /// PostgreSQL refuses to run as root.
    #[error("PostgreSQL refuses to run as root: name another user to run it as")]
    RootCannotServe,
    /// Only root may run a server as somebody else.
    #[error("only root can run a server as {user}; this is {ourselves}")]
    CannotBecome {
        /// Who was asked for.
        user: String,
        /// Who we are.
        ourselves: String,
    },
    /// A setting that cannot be written into the configuration.
    #[error("cannot set {name}: {reason}")]
    Setting {
        /// The setting.
        name: String,
        /// Why not.
        reason: String,
    },
    /// The directory for a server could not be made or filled.
    #[error("cannot {doing} {}: {source}", path.display())]
    Directory {
        /// Such as `make the server's directory in`.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No room is left where the server keeps its data.
    #[error(
        "the file system of {} is full: {words}. \
         Make room there, or have servers keep their data in another directory",
        path.display()
    )]
    DiskFull {
        /// The server's directory (removed by now).
        path: PathBuf,
        /// The failing program's words.
        words: String,
    },
    /// A program of PostgreSQL could not be run at all.
    #[error("cannot run {} as user {user}: {source}{}", program.display(), barrier_words(barrier.as_ref(), user))]
    Program {
        /// The program.
        program: PathBuf,
        /// As whom.
        user: String,
        /// What the system said.
        source: io::Error,
        /// A directory on the way that the user may not pass.
        barrier: Option<PathBuf>,
    },
    /// `initdb` failed.
    #[error("initdb of PostgreSQL {version} failed: {words}")]
    Initdb {
        /// Its version.
        version: Version,
        /// What it printed.
        words: String,
    },
    /// The server ended while it started, as it does when a setting is wrong.
    #[error("PostgreSQL {version} did not start ({how}). Its log ends with:\n{log}")]
    NotStarted {
        /// Its version.
        version: Version,
        /// How it ended, such as `exit status: 1`.
        how: String,
        /// The last lines of its log.
        log: String,
    },
    /// The server refused one of the settings.
    #[error("PostgreSQL {version} refuses the setting {name} = \"{value}\": {words}")]
    SettingRefused {
        /// Its version.
        version: Version,
        /// The setting, as it was given.
        name: String,
        /// Its value.
        value: String,
        /// What the server said.
        words: String,
    },
    /// The server did not take connections in time.
    #[error(
        "PostgreSQL {version} took no connection within {} s ({last}). Its log ends with:\n{log}",
        timeout.as_secs()
    )]
    NotReady {
        /// Its version.
        version: Version,
        /// How long it had.
        timeout: Duration,
        /// What the last try to connect said.
        last: String,
        /// The last lines of its log.
        log: String,
    },
    /// A server that ran ended by itself.
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
    #[error("cannot clear away the server in {}: {source}", path.display())]
    Leftover {
        /// The server's directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The server was not reached, or answered with an error.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
}

fn barrier_words(barrier: Option<&PathBuf>, user: &str) -> String {
    barrier.map_or_else(String::new, |directory| {
        format!(
            " (the directory {} is closed to {user}: open it, or use another)",
            directory.display()
        )
    })
}

/// The line in which a program of PostgreSQL complains about a full disk: the system's words, or
/// a short write, which only the hint explains.
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
    /// The same failure as a full disk, if that is what the words of a program tell.
    pub(crate) fn or_disk_full(self, path: &std::path::Path, words: &str) -> Self {
        match disk_full_words(words) {
            Some(words) => Self::DiskFull {
                path: path.to_owned(),
                words,
            },
            None => self,
        }
    }

    /// A failure to write somewhere, which a full disk may be the cause of.
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
    fn a_full_disk_is_told_from_other_failures() {
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
