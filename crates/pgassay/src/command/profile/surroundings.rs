//! The process's environment, user and files, as libpq looks at them.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use pgassay_wire::conninfo::{FileText, Surroundings};

/// Where distributions put the server's socket; elsewhere it is in `/tmp`.
const SOCKET_DIRECTORY: &str = "/var/run/postgresql";

/// What really surrounds this process.
pub struct Real;

impl Surroundings for Real {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn user(&self) -> Option<String> {
        account(0).or_else(|| self.variable("USER"))
    }

    fn home(&self) -> Option<PathBuf> {
        let home = self.variable("HOME").filter(|home| !home.is_empty());
        home.or_else(|| account(5)).map(PathBuf::from)
    }

    fn read(&self, path: &Path) -> io::Result<Option<FileText>> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mode = std::fs::metadata(path)?.permissions().mode() & 0o777;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Some(FileText { text, mode }))
    }

    fn socket_directory(&self) -> String {
        let is_there = Path::new(SOCKET_DIRECTORY).is_dir();
        let directory = if is_there { SOCKET_DIRECTORY } else { "/tmp" };
        directory.to_owned()
    }
}

/// A field of the user's line in `/etc/passwd`; see passwd(5). Accounts that live elsewhere are
/// told by the environment.
fn account(field: usize) -> Option<String> {
    // The directory of a process belongs to its effective user.
    let user = std::fs::metadata("/proc/self").ok()?.uid().to_string();
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut lines = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let own = lines.find(|fields| fields.get(2) == Some(&user.as_str()))?;
    own.get(field).map(|&it| it.to_owned())
}
