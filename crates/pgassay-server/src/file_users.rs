//! The processes that use a file, from `/proc`.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How much of the list of a process's mappings is read. That of a server's process has some 100 KB.
const MAPS_BYTES_MAX: u64 = 16 << 20;
/// More than a mapping's line has before its path.
const LINE_START_BYTES_MAX: usize = 160;

/// Whether a process of the user `owner` (a uid) has a file open or mapped. Also true if a process does not
/// let us see.
pub(crate) fn is_used(file: &Path, owner: u32) -> bool {
    let uses =
        |process: &Path| Ok::<bool, io::Error>(opens(process, file)? || maps(process, file)?);
    processes()
        .filter(|process| user_of(process) == Some(owner))
        .any(|process| uses(&process).unwrap_or_else(|_| user_of(&process).is_some()))
}

/// The real uid of a process, by its directory.
pub(crate) fn user_of(process: &Path) -> Option<u32> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &str| name.parse::<u32>().is_ok();
    entries
        .filter(move |entry| entry.file_name().to_str().is_some_and(is_process))
        .map(|entry| entry.path())
}

/// A file that is being created is open until it is mapped. So this is asked first.
fn opens(process: &Path, file: &Path) -> io::Result<bool> {
    let mut open = fs::read_dir(process.join("fd"))?.flatten();
    Ok(open.any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == file)))
}

fn maps(process: &Path, file: &Path) -> io::Result<bool> {
    let maps = File::open(process.join("maps"))?;
    names(maps, file)
}

/// Whether a list of mappings, as in `/proc/PID/maps`, has a file. A user's process can have 65,530, each of a path of
/// any length: so their text is limited, and of a line no more is kept than what can be that file's.
fn names(maps: impl Read, file: &Path) -> io::Result<bool> {
    let file = file.as_os_str().as_bytes();
    let line_max = LINE_START_BYTES_MAX + file.len() + 1;
    let mut maps = BufReader::new(maps.take(MAPS_BYTES_MAX));
    let mut line = Vec::with_capacity(line_max);
    loop {
        line.clear();
        (&mut maps)
            .take(line_max as u64)
            .read_until(b'\n', &mut line)?;
        if line.is_empty() {
            break;
        }
        let is_whole = line.pop_if(|byte| *byte == b'\n').is_some();
        let start = line.iter().position(|byte| *byte == b'/');
        if is_whole && start.is_some_and(|start| line[start..] == *file) {
            return Ok(true);
        }
        if !is_whole {
            maps.skip_until(b'\n')?;
        }
    }
    if maps.into_inner().limit() == 0 {
        return Err(io::Error::other("the process has too many mappings"));
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the text was read whole, gigabytes of a process with many mappings of a file in deep directories.
    #[test]
    fn mappings_without_end_do_not_fill_the_memory() {
        let file = Path::new("/dev/shm/PostgreSQL.7");
        let line =
            |path: &str| format!("7f0000000000-7f0000001000 rw-s 00000000 00:1b 7    {path}\n");
        let long = line(&format!("/{}", "x".repeat(100_000)));
        let others = [
            long.as_str(),
            &line(""),
            &line("/dev/shm/PostgreSQL.70"),
            &line("/a/dev/shm/PostgreSQL.7"),
        ]
        .concat();
        assert!(!names(others.as_bytes(), file).unwrap());
        let its = line("/dev/shm/PostgreSQL.7");
        for (before, after) in [("", ""), (others.as_str(), ""), ("", others.as_str())] {
            let maps = [before, &its, after].concat();
            assert!(names(maps.as_bytes(), file).unwrap());
        }
        // It would be read forever.
        assert!(names(io::repeat(b'x'), file).is_err());
    }

    #[test]
    fn a_file_that_this_process_maps_is_used() {
        let program = fs::canonicalize("/proc/self/exe").unwrap();
        let us = Path::new("/proc/self");
        assert!(maps(us, &program).unwrap());
        assert!(!maps(us, Path::new("/no/such/file")).unwrap());
    }
}
