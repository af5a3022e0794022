//! The separate debug file with the symbols stripped from an object, if installed.
//!
//! See "Debugging Information in Separate Files" in gdb's manual: by build ID under
//! `/usr/lib/debug`, or by the name and checksum in `.gnu_debuglink`, in the object's directory, in
//! its `.debug` subdirectory, or under `/usr/lib/debug`. Each path is tried in the process's mount
//! namespace, then in ours.

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::elf;

use crate::regular_file;

/// So much is read for checksums, of all files together. The debug files of PostgreSQL take 30 to 60 MB, those of LLVM
/// 1.5 GB. Most systems name them by build ID, which takes no checksum.
const CHECKSUM_BYTES_MAX: u64 = 2 << 30;
const DEBUG_DIRECTORY: &str = "/usr/lib/debug";

/// An object's references to its debug file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DebugLinks<'a> {
    pub build_id: Option<&'a [u8]>,
    /// Name and checksum.
    pub link: Option<(&'a [u8], u32)>,
}

/// What may still be read for checksums: which files a process maps, and to what they refer, is up to its user.
#[derive(Debug)]
pub(crate) struct ChecksumBudget {
    bytes_left: u64,
    has_warned: bool,
}

impl Default for ChecksumBudget {
    fn default() -> Self {
        Self {
            bytes_left: CHECKSUM_BYTES_MAX,
            has_warned: false,
        }
    }
}

impl ChecksumBudget {
    /// Whether an object file has this checksum; `None` if it cannot be read, or not any more.
    fn has(&mut self, file: &mut File, checksum: u32) -> Option<bool> {
        let mut magic = [0; elf::ELFMAG.len()];
        file.read_exact(&mut magic).ok()?;
        if magic != elf::ELFMAG {
            return Some(false);
        }
        let length = file.metadata().ok()?.len();
        let Some(left) = self.bytes_left.checked_sub(length) else {
            if !std::mem::replace(&mut self.has_warned, true) {
                let gib = CHECKSUM_BYTES_MAX >> 30;
                tracing::warn!(
                    "debug files are left out: their checksums take more than {gib} GiB"
                );
            }
            return None;
        };
        self.bytes_left = left;
        file.rewind().ok()?;
        // It can grow while it is read.
        let found = crc32(&mut file.take(length)).ok()?;
        file.rewind().ok()?;
        Some(found == checksum)
    }
}

/// Opens the debug file of an object that a process has mapped from a path.
pub(crate) fn open(
    pid: u32,
    object: &Path,
    links: DebugLinks<'_>,
    budget: &mut ChecksumBudget,
) -> Option<File> {
    let by_build_id = links.build_id.and_then(build_id_path);
    let by_build_id = by_build_id.and_then(|path| open_seen_by(pid, &path));
    by_build_id.or_else(|| {
        let (name, checksum) = links.link?;
        let mut candidates = linked_paths(object, OsStr::from_bytes(name)).into_iter();
        candidates.find_map(|path| {
            let mut file = open_seen_by(pid, &path)?;
            // A debug file of another build would give wrong names.
            budget.has(&mut file, checksum)?.then_some(file)
        })
    })
}

fn open_seen_by(pid: u32, path: &Path) -> Option<File> {
    let mut inside = PathBuf::from(format!("/proc/{pid}/root"));
    inside.push(path.strip_prefix("/").ok()?);
    let file = regular_file::open(&inside).or_else(|_| regular_file::open(path));
    file.ok()
}

fn build_id_path(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let mut path = format!("{DEBUG_DIRECTORY}/.build-id/{first:02x}/");
    for byte in rest {
        write!(path, "{byte:02x}").expect("writing to a String cannot fail");
    }
    Some((path + ".debug").into())
}

fn linked_paths(object: &Path, name: &OsStr) -> Vec<PathBuf> {
    let Some(directory) = object.parent() else {
        return Vec::new();
    };
    let below = directory.strip_prefix("/").unwrap_or(directory);
    vec![
        directory.join(name),
        directory.join(".debug").join(name),
        Path::new(DEBUG_DIRECTORY).join(below).join(name),
    ]
}

/// The checksum of `.gnu_debuglink`.
fn crc32(from: &mut impl Read) -> io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(hasher.finalize());
        }
        hasher.update(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debug_file_is_found_by_build_id() {
        let path = build_id_path(&[0xab, 0x0c, 0xff]);
        assert_eq!(
            path.as_deref(),
            Some(Path::new("/usr/lib/debug/.build-id/ab/0cff.debug"))
        );
        assert_eq!(build_id_path(&[]), None);
    }

    #[test]
    fn a_linked_file_requires_a_matching_checksum() {
        let directory = tempfile::tempdir().unwrap();
        let object = directory.path().join("postgres");
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at(".debug")).unwrap();
        std::fs::write(at("postgres.debug"), "\x7fELF another build's").unwrap();
        std::fs::write(at(".debug/postgres.debug"), "\x7fELF").unwrap();
        // The check value of CRC-32.
        assert_eq!(crc32(&mut "123456789".as_bytes()).unwrap(), 0xcbf4_3926);
        let checksum = crc32(&mut "\x7fELF".as_bytes()).unwrap();
        let mut budget = ChecksumBudget::default();
        let mut open = |checksum| open(std::process::id(), &object, link(checksum), &mut budget);
        let mut text = String::new();
        let mut file = open(checksum).expect("the second file matches");
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "\x7fELF");
        assert!(open(7).is_none());
    }

    fn link(checksum: u32) -> DebugLinks<'static> {
        DebugLinks {
            build_id: None,
            link: Some((b"postgres.debug", checksum)),
        }
    }

    /// Regression test: the checksums of sparse files of 4 GiB were computed, 9 s for each file that a program named
    /// `postgres` had mapped.
    #[test]
    fn debug_files_without_end_do_not_hold_up_a_profile() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("postgres.debug");
        let object = directory.path().join("postgres");
        let mut budget = ChecksumBudget::default();
        let open = |budget: &mut ChecksumBudget, contents: &str, length: u64| {
            std::fs::write(&path, contents).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(length).unwrap();
            let mut bytes = contents.as_bytes().to_vec();
            bytes.resize(length.min(64) as usize, 0);
            let checksum = crc32(&mut &bytes[..]).unwrap();
            super::open(std::process::id(), &object, link(checksum), budget).is_some()
        };
        // Nothing is read of what is not an object file, or longer than all may be.
        assert!(!open(&mut budget, "text", CHECKSUM_BYTES_MAX));
        assert!(!open(&mut budget, "\x7fELF", CHECKSUM_BYTES_MAX + 1));
        assert_eq!(budget.bytes_left, CHECKSUM_BYTES_MAX);
        // Each file counts, and the last one is that which exceeds the limit.
        budget.bytes_left = 150;
        assert!(open(&mut budget, "\x7fELF", 64));
        assert!(open(&mut budget, "\x7fELF", 64));
        assert_eq!(budget.bytes_left, 150 - 2 * 64);
        assert!(!open(&mut budget, "\x7fELF", 64));
    }
}
