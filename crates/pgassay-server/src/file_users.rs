//! The processes that use a file, from `/proc`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

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
    let maps = fs::read_to_string(process.join("maps"))?;
    let path_of = |line: &str| line.split_once('/').map(|(_, path)| format!("/{path}"));
    let mut paths = maps.lines().filter_map(path_of);
    Ok(paths.any(|path| Path::new(&path) == file))
}
