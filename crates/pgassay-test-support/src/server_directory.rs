//! Where the tests' servers have their directories.

use std::ffi::CString;
use std::path::{Path, PathBuf};

const MEMORY: &str = "/dev/shm";
/// What the servers of a run of all tests take at most, with as much to spare.
const ROOM_BYTES: u64 = 4 << 30;

/// `$TMPDIR`; without it `/dev/shm`, if it is in memory and both have room, as tests create and remove hundreds
/// of servers; otherwise [`std::env::temp_dir`].
pub fn server_directory() -> PathBuf {
    let memory = Path::new(MEMORY);
    match std::env::var_os("TMPDIR") {
        Some(chosen) => chosen.into(),
        None if is_roomy(memory) => memory.to_owned(),
        None => std::env::temp_dir(),
    }
}

fn is_roomy(directory: &Path) -> bool {
    // A tmpfs promises half of the memory by default, even if programs use it.
    free_bytes(directory) >= ROOM_BYTES && available_memory() >= 2 * ROOM_BYTES
}

/// What a directory in memory has room for; 0 if it is none.
fn free_bytes(directory: &Path) -> u64 {
    let path = CString::new(directory.as_os_str().as_encoded_bytes()).expect("a path has no NUL");
    // SAFETY: the structure is integers, for which zero is a value; the call fills it, and reads a path that ends
    // with NUL.
    let facts = unsafe {
        let mut facts: libc::statfs = std::mem::zeroed();
        (libc::statfs(path.as_ptr(), &raw mut facts) == 0).then_some(facts)
    };
    facts
        .filter(|facts| facts.f_type == libc::TMPFS_MAGIC)
        .map_or(0, |facts| facts.f_bavail * facts.f_bsize.cast_unsigned())
}

fn available_memory() -> u64 {
    let facts = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = facts
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}
