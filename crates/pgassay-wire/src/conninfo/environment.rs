//! Where missing parameters come from: the process's environment.

use std::io;
use std::path::{Path, PathBuf};

/// The largest connection file, such as a password file, a service file or a key.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 20;
/// The largest file of root certificates, which may be a bundle of all public ones.
pub(super) const ROOTS_BYTES_MAX: u64 = 16 << 20;

/// A file that [`Environment`] has read.
#[derive(Clone, Debug, Default)]
pub struct FileText {
    /// Its content.
    pub text: String,
    /// Its permission bits, as in `st_mode & 0o777`.
    pub mode: u32,
    /// Whether root owns it.
    pub is_owned_by_root: bool,
}

/// The process's environment: variables, user and files.
pub trait Environment {
    /// Returns an environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// Whether an environment variable is set, but not to text: [`Self::variable`] then returns `None`.
    fn is_garbled(&self, _name: &str) -> bool {
        false
    }
    /// Returns the operating system's user name.
    fn user(&self) -> Option<String>;
    /// Returns the user's home directory.
    fn home(&self) -> Option<PathBuf>;
    /// Returns the content of a regular file of at most `max_bytes`, or `None` if the file does not exist.
    ///
    /// # Errors
    /// The file exists but cannot be read, or is larger. [`io::ErrorKind::InvalidInput`] if it is a pipe, a device or
    /// a directory: opening those can wait or have an effect, and reading them may not end.
    fn read(&self, path: &Path, max_bytes: u64) -> io::Result<Option<FileText>>;
    /// Returns the certificates, in DER, that the system trusts.
    fn system_roots(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
    /// Returns the default directory of Unix sockets; in libpq it is set at build time.
    fn socket_directory(&self) -> String {
        "/tmp".into()
    }
}

/// An empty environment: the request is complete. Used for pgassay's own servers, which `PGHOST`
/// and similar variables must not redirect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmptyEnvironment;

impl Environment for EmptyEnvironment {
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    fn user(&self) -> Option<String> {
        None
    }

    fn home(&self) -> Option<PathBuf> {
        None
    }

    fn read(&self, _path: &Path, _max_bytes: u64) -> io::Result<Option<FileText>> {
        Ok(None)
    }
}
