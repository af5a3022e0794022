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

/// What to add to a time on the load generator's clock to get the time since 1970, in µs.
pub fn epoch_shift_us() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_us = since_1970.map_or(0, |since| since.as_micros() as u64);
    now_us.saturating_sub(monotonic_ns() / 1000)
}

/// The hard limit on open files.
pub fn open_files_max() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to our rlimit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_max)
}

/// Prompts for a password on the terminal, without echo.
pub fn ask_password() -> io::Result<String> {
    use io::{BufRead, Write};
    use std::os::fd::AsRawFd;

    let mut terminal = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/tty")?;
    terminal.write_all(b"Password: ")?;
    // SAFETY: all zeroes is a valid termios.
    let mut before: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the pointer is to our termios.
    let is_terminal = unsafe { libc::tcgetattr(terminal.as_raw_fd(), &raw mut before) } == 0;
    if is_terminal {
        let mut silent = before;
        silent.c_lflag &= !libc::ECHO;
        // SAFETY: the pointer is to our termios.
        unsafe { libc::tcsetattr(terminal.as_raw_fd(), libc::TCSAFLUSH, &raw const silent) };
    }
    let mut line = String::new();
    let read = io::BufReader::new(&terminal).read_line(&mut line);
    if is_terminal {
        // SAFETY: as above.
        unsafe { libc::tcsetattr(terminal.as_raw_fd(), libc::TCSAFLUSH, &raw const before) };
    }
    terminal.write_all(b"\n")?;
    read?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
