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

use crate::regular_file;

/// The longest file whose checksum is computed: longer than debugging information is.
const DEBUG_BYTES_MAX: u64 = 4 << 30;
const DEBUG_DIRECTORY: &str = "/usr/lib/debug";

/// An object's references to its debug file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DebugLinks<'a> {
    pub build_id: Option<&'a [u8]>,
    /// Name and checksum.
    pub link: Option<(&'a [u8], u32)>,
}

/// Opens the debug file of an object that a process has mapped from a path.
pub(crate) fn open(pid: u32, object: &Path, links: DebugLinks<'_>) -> Option<File> {
    let by_build_id = links.build_id.and_then(build_id_path);
    let by_build_id = by_build_id.and_then(|path| open_seen_by(pid, &path));
    by_build_id.or_else(|| {
        let (name, checksum) = links.link?;
        let mut candidates = linked_paths(object, OsStr::from_bytes(name)).into_iter();
        candidates.find_map(|path| {
            let mut file = open_seen_by(pid, &path)?;
            // A debug file of another build would give wrong names.
            let is_short = file.metadata().ok()?.len() <= DEBUG_BYTES_MAX;
            let is_it = is_short && crc32(&mut file).ok()? == checksum && file.rewind().is_ok();
            is_it.then_some(file)
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
        std::fs::create_dir(directory.path().join(".debug")).unwrap();
        std::fs::write(directory.path().join("postgres.debug"), "another build's").unwrap();
        std::fs::write(directory.path().join(".debug/postgres.debug"), "123456789").unwrap();
        let open = |checksum| {
            let links = DebugLinks {
                build_id: None,
                link: Some((b"postgres.debug", checksum)),
            };
            open(std::process::id(), &object, links)
        };
        // The check value of CRC-32.
        let mut text = String::new();
        let mut file = open(0xcbf4_3926).expect("the second file matches");
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "123456789");
        assert!(open(7).is_none());
    }
}
