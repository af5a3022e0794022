//! Files that another user can replace: everything that a server's process maps or has in its working
//! directory belongs to that server's user, and any user can name a program `postgres`. So a FIFO must
//! not hold up who opens it, and an endless file must not exhaust who reads it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use pgassay_rights::UnopenedFile;

/// Opens a file for reading.
///
/// # Errors
/// As `File::open`; or it is not a regular file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    UnopenedFile::at(path)?.open(OpenOptions::new().read(true))
}

/// The text of a file of at most `bytes_max` bytes.
///
/// # Errors
/// As [`open`]; or it is longer, or not text.
pub(crate) fn read_small(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = open(path)?.take(bytes_max + 1).read_to_string(&mut text)?;
    if read as u64 > bytes_max {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use crate::proc::live::LiveServer;

    const LIMIT: Duration = Duration::from_mins(1);

    fn fifo(path: &Path) {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the name is NUL-terminated and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
    }

    /// The result of work that an attack must not hold up.
    fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = channel();
        std::thread::spawn(move || sender.send(work()));
        receiver.recv_timeout(LIMIT).expect("it ends in time")
    }

    /// Puts a FIFO, an endless file and a directory at a path in turn.
    fn attacks(path: &Path, check: impl Fn(&str)) {
        fifo(path);
        check("a FIFO");
        std::fs::remove_file(path).unwrap();
        for target in ["/dev/zero", "/proc/kmsg"] {
            symlink(target, path).unwrap();
            check(target);
            std::fs::remove_file(path).unwrap();
        }
        File::create(path).unwrap().set_len(1 << 40).unwrap();
        check("a file of a terabyte");
    }

    #[test]
    fn only_regular_files_are_opened_and_only_short_ones_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        attacks(&path, |what| {
            let path = path.clone();
            assert!(in_time(move || read_small(&path, 64)).is_err(), "{what}");
        });
        std::fs::write(&path, "18\n").unwrap();
        assert_eq!(read_small(&path, 3).unwrap(), "18\n");
        assert!(read_small(&path, 2).is_err());
    }

    /// Regression test: a program of any user that was named `postgres`, with a FIFO as its
    /// `PG_VERSION`, stopped every command that searches for servers.
    #[test]
    fn a_fifo_or_an_endless_file_in_place_of_a_servers_version_does_not_hang() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("postgres");
        symlink("/bin/sleep", &program).unwrap();
        let mut server = Command::new(&program)
            .arg("300")
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = server.id();
        // `spawn` may return before the kernel has changed the process's name.
        while std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() != "postgres\n" {
            std::thread::yield_now();
        }
        attacks(&directory.path().join("PG_VERSION"), |what| {
            let found = in_time(move || LiveServer::of_process(pid));
            assert_eq!(found.unwrap().major, None, "{what}");
        });
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// Regression test: so did a FIFO in place of a file that a server has mapped, or of the file with its
    /// debugging information.
    #[test]
    fn a_fifo_in_place_of_a_mapped_file_does_not_hang() {
        use crate::unwind::object_functions::ObjectFunctions;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("library.so");
        fifo(&path);
        assert!(in_time(move || ObjectFunctions::read(&path).is_err()));
    }
}
