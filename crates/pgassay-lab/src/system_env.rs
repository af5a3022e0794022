//! The process's system environment as libpq uses it (variables, user, files), and its clocks.

use std::ffi::CStr;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub use pgassay_load::monotonic_ns;
use pgassay_rights::UnopenedFile;
use pgassay_wire::conninfo::{Environment, FileText};

/// Where distributions put the server's socket. PostgreSQL's own default is `/tmp`.
const SOCKET_DIRECTORY: &str = "/var/run/postgresql";

/// The real system environment.
pub struct RealSystem;

impl Environment for RealSystem {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn is_garbled(&self, name: &str) -> bool {
        std::env::var_os(name).is_some_and(|value| value.to_str().is_none())
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

    fn read(&self, path: &Path, max_bytes: u64) -> io::Result<Option<FileText>> {
        let found = UnopenedFile::at(path);
        let opened = found.and_then(|it| it.open(OpenOptions::new().read(true)));
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        let mut bytes = Vec::new();
        // One more than allowed. The size is not asked for: some files of the system have none, and no end.
        file.take(max_bytes + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max_bytes {
            let words = format!("it is larger than {} MiB", max_bytes >> 20);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, words));
        }
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

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    /// Regression: `passfile=/dev/zero` took all memory, and a pipe in place of `~/.pgpass` held up the program, which
    /// ignored the first Ctrl-C.
    #[test]
    fn a_pipe_a_device_or_an_endless_file_in_place_of_a_connection_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        mkfifoat(CWD, at("pipe"), Mode::RWXU).unwrap();
        // It has no blocks on the disk.
        let sparse = fs::File::create(at("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        let kind = |path: &Path| RealSystem.read(path, 1 << 20).unwrap_err().kind();
        for path in [&at("pipe"), Path::new("/dev/zero"), directory.path()] {
            assert_eq!(kind(path), io::ErrorKind::InvalidInput, "{path:?}");
        }
        assert_eq!(kind(&at("sparse")), io::ErrorKind::FileTooLarge);
        assert!(RealSystem.read(&at("none"), 1).unwrap().is_none());

        fs::write(at("file"), "text").unwrap();
        fs::set_permissions(at("file"), Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        let read = RealSystem.read(&at("link"), 4).unwrap().unwrap();
        assert_eq!((read.text.as_str(), read.mode), ("text", 0o640));
        assert!(RealSystem.read(&at("link"), 3).is_err());
    }
}
