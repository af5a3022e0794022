//! The process's system environment as libpq uses it (variables, user, files), and its clocks.

use std::ffi::CStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub use pgassay_load::monotonic_ns;
use pgassay_wire::conninfo::{Environment, FileText};

/// Where distributions put the server's socket. PostgreSQL's own default is `/tmp`.
const SOCKET_DIRECTORY: &str = "/var/run/postgresql";

/// The real system environment.
pub struct RealSystem;

impl Environment for RealSystem {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn user(&self) -> Option<String> {
        account().map(|(name, _)| name)
    }

    fn home(&self) -> Option<PathBuf> {
        std::env::var_os("HOME")
            .filter(|home| !home.is_empty())
            .map(PathBuf::from)
            .or_else(|| account().map(|(_, home)| home))
    }

    fn read(&self, path: &Path) -> io::Result<Option<FileText>> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = std::fs::metadata(path)?;
        Ok(Some(FileText {
            text: String::from_utf8_lossy(&bytes).into_owned(),
            mode: metadata.mode() & 0o777,
            is_owned_by_root: metadata.uid() == 0,
        }))
    }

    fn system_roots(&self) -> Vec<Vec<u8>> {
        let loaded = rustls_native_certs::load_native_certs();
        loaded
            .certs
            .into_iter()
            .map(|certificate| certificate.to_vec())
            .collect()
    }

    fn socket_directory(&self) -> String {
        let directory = if Path::new(SOCKET_DIRECTORY).is_dir() {
            SOCKET_DIRECTORY
        } else {
            "/tmp"
        };
        directory.into()
    }
}

/// The user's name and home directory from the password database.
fn account() -> Option<(String, PathBuf)> {
    // SAFETY: geteuid has no preconditions. getpwuid's result stays valid until its next call,
    // and nothing else calls it: this runs before any thread is started.
    unsafe {
        let entry = libc::getpwuid(libc::geteuid()).as_ref()?;
        let text = |pointer| CStr::from_ptr(pointer).to_string_lossy().into_owned();
        Some((text(entry.pw_name), PathBuf::from(text(entry.pw_dir))))
    }
}

/// Now, in microseconds since 1970.
pub fn unix_us() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
