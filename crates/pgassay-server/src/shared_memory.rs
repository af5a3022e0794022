//! The shared memory of a server that was killed and could not release it.
//!
//! A server has a small System V segment, whose key and id are in the seventh line of
//! `postmaster.pid` (`src/include/utils/pidfile.h`), and a control segment for dynamic shared
//! memory, `/dev/shm/PostgreSQL.N`, where N is in the header of the former (`PGShmemHeader` in
//! `src/include/storage/pg_shmem.h`, the same from 9.6 to 18: magic 4 bytes, creator 4, sizes 8
//! and 8, N 4). PostgreSQL removes both at the next start on the same data; here there is none.
//! Segments of queries that were running are not found.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::os::{self, Pid};

const MAGIC: u32 = 679_834_894;
const DSM_CONTROL_OFFSET_BYTES: usize = 24;
const HEADER_BYTES: usize = 28;

/// A server's shared memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SharedMemory {
    segment: i32,
    control: PathBuf,
    owner: u32,
}

/// The creator and the segment in `postmaster.pid`.
#[derive(Debug, PartialEq, Eq)]
struct Made {
    by: Pid,
    key: i32,
    segment: i32,
}

impl SharedMemory {
    /// Finds the shared memory of the server in `base`, running or not. `None` if there is none, or
    /// if the id now belongs to another program's segment.
    pub(crate) fn of(base: &Path) -> Option<Self> {
        let made = parse(&fs::read_to_string(base.join("data/postmaster.pid")).ok()?)?;
        let header: [u8; HEADER_BYTES] = os::shared_memory(made.segment, made.key, made.by)?;
        let word = |at: usize| {
            u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let control = format!("/dev/shm/PostgreSQL.{}", word(DSM_CONTROL_OFFSET_BYTES));
        let owner = fs::metadata(base).ok()?.uid();
        let memory = Self {
            segment: made.segment,
            control: control.into(),
            owner,
        };
        (word(0) == MAGIC).then_some(memory)
    }

    /// Removes the shared memory that still exists. No process may be using it.
    pub(crate) fn remove(&self) {
        os::remove_shared_memory(self.segment);
        let is_its = fs::symlink_metadata(&self.control).is_ok_and(|file| file.uid() == self.owner);
        if is_its && let Err(error) = fs::remove_file(&self.control) {
            tracing::warn!(path = %self.control.display(), %error, "cannot remove shared memory");
        }
    }
}

fn parse(text: &str) -> Option<Made> {
    // A server without a postmaster, as run by initdb, writes its PID with a minus sign.
    let by = text
        .lines()
        .next()?
        .trim()
        .trim_start_matches('-')
        .parse()
        .ok()?;
    let mut words = text.lines().nth(6)?.split_whitespace();
    let key: i64 = words.next()?.parse().ok()?;
    let segment = words.next()?.parse().ok()?;
    // The key is printed as unsigned but is signed in the kernel.
    Some(Made {
        by,
        key: key as i32,
        segment,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_and_id_are_in_the_seventh_line() {
        let text = "4711\n/data\n1795306219\n5432\n/tmp/s\n\n  10347253    294919\nready   \n";
        assert_eq!(
            parse(text),
            Some(Made {
                by: 4711,
                key: 10_347_253,
                segment: 294_919
            })
        );
        let alone = "-4711\n/data\n1\n0\n\n\n4294967295 7\n";
        assert_eq!(
            parse(alone),
            Some(Made {
                by: 4711,
                key: -1,
                segment: 7
            })
        );
        assert_eq!(parse("4711\n/data\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_segment_of_another_program_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("data")).unwrap();
        let text = "1\n/data\n1\n0\n\n\n1 2147483647\n";
        fs::write(base.path().join("data/postmaster.pid"), text).unwrap();
        assert_eq!(SharedMemory::of(base.path()), None);
    }
}
