//! The shared memory of a server that was killed and could not release it.
//!
//! A server has a small System V segment, whose key and id are in the seventh line of
//! `postmaster.pid` (`src/include/utils/pidfile.h`), and a control segment for dynamic shared
//! memory, `/dev/shm/PostgreSQL.N`, where N is in the header of the former (`PGShmemHeader` in
//! `src/include/storage/pg_shmem.h`, the same from 9.6 to 18: magic 4 bytes, creator 4, sizes 8
//! and 8, N 4). The control segment lists the segments of queries and of statistics, which have
//! names of the same form (`dsm_control_header` in `src/backend/storage/ipc/dsm.c`: magic 4 bytes,
//! number of items 4, number of places 4; then the places, which begin with N and a count of users,
//! and have 8 bytes in 9.6, 24 until 13, and 40 since 14). PostgreSQL removes all of them at
//! the next start on the same data; here there is none. Segments are not found if a server has
//! `dynamic_shared_memory_type = sysv`.
//!
//! A server that was killed while it started may have created its control segment and not yet noted N
//! (`dsm_postmaster_startup`). Then the segment is found by its time, its contents, and that no process
//! uses it.
//!
//! Everything here was written by the server's user, who may be hostile. So only what belongs to
//! that user is removed, and nothing of root.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use crate::file_users::is_used;
use crate::open_dir::OpenDir;
use crate::os::{self, Pid};
use crate::waiting::wait_until;

/// Time limit for killed processes to lose their shared memory.
const DETACH_TIMEOUT: Duration = Duration::from_secs(10);
const PID_FILE: &str = "postmaster.pid";
const MAGIC: u32 = 679_834_894;
const DSM_CONTROL_OFFSET_BYTES: usize = 24;
const HEADER_BYTES: usize = 28;
/// Where the system keeps POSIX shared memory.
const FILES: &str = "/dev/shm";
const CONTROL_MAGIC: u32 = 0x9a50_3d32;
/// Length of a control segment's three numbers.
const CONTROL_BYTES: usize = 12;
/// The largest control segment that is read: a million places.
const CONTROL_BYTES_MAX: u64 = 40 << 20;

/// The longest time between a server's System V segment and its control segment, in nanoseconds.
const CONTROL_DELAY_NS: i64 = 10_000_000_000;

/// A server's shared memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SharedMemory {
    segment: Segment,
    /// N of the control segment; 0 if the server has not noted it.
    control: u32,
    /// When the server wrote its PID file, in nanoseconds since the epoch.
    started_ns: i64,
    owner: u32,
}

/// A System V segment, as `postmaster.pid` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// PID of its creator.
    pub creator: Pid,
    pub key: i32,
    pub id: i32,
}

impl SharedMemory {
    /// Finds the shared memory of the server in `base`, running or not, whose user has the uid
    /// `owner`. `None` if there is none, or if the id now belongs to another program's or another
    /// user's segment.
    pub(crate) fn of(base: &OpenDir, owner: u32) -> Option<Self> {
        let data = base.open_dir(OsStr::new("data")).ok()?;
        let started_ns = data.info_of(OsStr::new(PID_FILE)).ok()?.modified_ns;
        let segment = parse(&data.read_small_file(PID_FILE).ok()?)?;
        let header: [u8; HEADER_BYTES] = os::shared_memory(&segment, owner)?;
        let memory = Self {
            segment,
            control: word(&header, DSM_CONTROL_OFFSET_BYTES)?,
            started_ns,
            owner,
        };
        (word(&header, 0)? == MAGIC).then_some(memory)
    }

    /// Removes the shared memory that still exists and that no process uses. A process that ends loses
    /// its program first, by which we know it, and its shared memory later: so this waits.
    pub(crate) fn remove(&self) {
        if let Ok(files) = OpenDir::open_trusted(Path::new(FILES)) {
            let noted = (self.control != 0).then_some(self.control);
            for control in noted.map_or_else(|| self.not_noted(&files), |control| vec![control]) {
                let contents = self.read(&files, control).unwrap_or_default();
                for handle in handles(&contents) {
                    self.remove_file(&files, handle);
                }
                self.remove_file(&files, control);
            }
        }
        let remove = || os::remove_shared_memory(&self.segment, self.owner);
        if !wait_until(DETACH_TIMEOUT, remove) {
            tracing::warn!(
                id = self.segment.id,
                "a process uses a server's shared memory"
            );
        }
    }

    /// The control segments that the server may have created without noting them: of its user, as old as
    /// the server, and used by no process, which a running server's control segment is.
    fn not_noted(&self, files: &OpenDir) -> Vec<u32> {
        let mut found = Vec::new();
        let times: RangeInclusive<i64> =
            self.started_ns..=self.started_ns.saturating_add(CONTROL_DELAY_NS);
        let is_as_old = |name: &OsStr| {
            let info = files.info_of(name);
            info.is_ok_and(|info| info.owner == self.owner && times.contains(&info.modified_ns))
        };
        // A directory that cannot be read has nothing that we could remove.
        let _ = files.each_name(|name| {
            found.extend(handle_of(name).filter(|_| is_as_old(name)));
            true
        });
        found.retain(|&handle| {
            let contents = self.read(files, handle).unwrap_or_default();
            let path = Path::new(FILES).join(file_name(handle));
            matches!(word(&contents, 0), None | Some(0 | CONTROL_MAGIC))
                && !is_used(&path, self.owner)
        });
        found
    }

    /// The contents of a segment, if it is a file of the server's user.
    fn read(&self, files: &OpenDir, handle: u32) -> Option<Vec<u8>> {
        let name = file_name(handle);
        if files.info_of(&name).ok()?.owner != self.owner {
            return None;
        }
        let mut bytes = Vec::new();
        let file = files.open_file(&name).ok()?;
        file.take(CONTROL_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    fn remove_file(&self, files: &OpenDir, handle: u32) {
        let name = file_name(handle);
        let is_its = files
            .info_of(&name)
            .is_ok_and(|file| file.is_file && file.owner == self.owner && self.owner != 0);
        if is_its && let Err(error) = files.remove_file(&name) {
            tracing::warn!(name = %name.display(), %error, "cannot remove shared memory");
        }
    }
}

fn file_name(handle: u32) -> OsString {
    format!("PostgreSQL.{handle}").into()
}

fn handle_of(name: &OsStr) -> Option<u32> {
    name.to_str()?.strip_prefix("PostgreSQL.")?.parse().ok()
}

/// The four bytes at an offset, as a number.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(four.try_into().ok()?))
}

/// The handles of the segments in use that a control segment lists. Empty if it is not one.
fn handles(control: &[u8]) -> Vec<u32> {
    let number = |at| word(control, at).and_then(|number| usize::try_from(number).ok());
    let (Some(used), Some(places)) = (number(4), number(8)) else {
        return Vec::new();
    };
    let room = control.len().saturating_sub(CONTROL_BYTES);
    if word(control, 0) != Some(CONTROL_MAGIC) || places == 0 {
        return Vec::new();
    }
    // The segment has no more than its places. The first place is aligned as its widest field.
    let (first, bytes) = match room / places {
        8..24 => (12, 8),
        24..40 => (16, 24),
        40.. => (16, 40),
        _ => return Vec::new(),
    };
    (0..used.min(places))
        .map(|place| first + place * bytes)
        .filter(|at| word(control, at + 4).is_some_and(|users| users > 0))
        .filter_map(|at| word(control, at))
        .collect()
}

fn parse(text: &str) -> Option<Segment> {
    // A server without a postmaster, as run by initdb, writes its PID with a minus sign.
    let creator = text
        .lines()
        .next()?
        .trim()
        .trim_start_matches('-')
        .parse()
        .ok()?;
    let mut words = text.lines().nth(6)?.split_whitespace();
    let key: i64 = words.next()?.parse().ok()?;
    let id = words.next()?.parse().ok()?;
    // The key is printed as unsigned but is signed in the kernel.
    Some(Segment {
        creator,
        key: key as i32,
        id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::process::CommandExt;

    #[test]
    fn key_and_id_are_in_the_seventh_line() {
        let text = "4711\n/data\n1795306219\n5432\n/tmp/s\n\n  10347253    294919\nready   \n";
        let segment = |creator, key, id| Some(Segment { creator, key, id });
        assert_eq!(parse(text), segment(4711, 10_347_253, 294_919));
        let alone = "-4711\n/data\n1\n0\n\n\n4294967295 7\n";
        assert_eq!(parse(alone), segment(4711, -1, 7));
        assert_eq!(parse("4711\n/data\n"), None);
        assert_eq!(parse(""), None);
    }

    fn found(base: &Path, owner: u32) -> Option<SharedMemory> {
        SharedMemory::of(&OpenDir::open_trusted(base).unwrap(), owner)
    }

    fn directory_with(pid_file: &str) -> tempfile::TempDir {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("data")).unwrap();
        fs::write(base.path().join("data/postmaster.pid"), pid_file).unwrap();
        base
    }

    #[test]
    fn a_segment_of_another_program_is_left_alone() {
        let base = directory_with("1\n/data\n1\n0\n\n\n1 2147483647\n");
        assert_eq!(found(base.path(), os::effective_uid()), None);
    }

    const OTHER: u32 = 65_432;
    const NOBODY: u32 = 65_534;

    /// Regression test: the server's user could write the id of another user's segment to a
    /// `postmaster.pid`, and the next start of root removed that segment.
    #[test]
    fn a_forged_pid_file_does_not_remove_another_users_segment() {
        if os::effective_uid() != 0 {
            pgassay_test_support::skip("segments of other users", "requires root");
            return;
        }
        // In IPC namespaces of their own, so that no other program can see the segments.
        for owner in [OTHER, 0, NOBODY] {
            let removed = std::thread::spawn(move || {
                let id = own_segment(owner);
                let pid = std::process::id();
                let base = directory_with(&format!("{pid}\n/data\n1\n0\n\n\n0 {id}\n"));
                if let Some(memory) = found(base.path(), NOBODY) {
                    memory.remove();
                }
                if owner == 0 {
                    // Not even for a directory of root.
                    assert_eq!(found(base.path(), 0), None);
                }
                os::owner_of_segment(id).is_none()
            });
            let removed = removed.join().unwrap();
            assert_eq!(removed, owner == NOBODY, "the segment of user {owner}");
        }
    }

    /// Regression test: a server that was killed between creating its control segment and noting its
    /// number left that segment for ever.
    #[test]
    fn a_control_segment_that_the_server_did_not_note_is_removed() {
        if os::effective_uid() != 0 {
            pgassay_test_support::skip("segments of other users", "requires root");
            return;
        }
        let left = std::thread::spawn(|| {
            own_files();
            let id = own_segment(NOBODY);
            let pid = std::process::id();
            shared_file(1, &CONTROL_MAGIC.to_ne_bytes(), NOBODY);
            std::thread::sleep(Duration::from_millis(20));
            let base = directory_with(&format!("{pid}\n/data\n1\n0\n\n\n0 {id}\n"));
            // The server's, complete and empty; of another user; of a parallel query; in use.
            shared_file(2, &CONTROL_MAGIC.to_ne_bytes(), NOBODY);
            shared_file(3, &[], NOBODY);
            shared_file(4, &CONTROL_MAGIC.to_ne_bytes(), OTHER);
            shared_file(5, &1_u32.to_ne_bytes(), NOBODY);
            let used = shared_file(6, &CONTROL_MAGIC.to_ne_bytes(), NOBODY);
            let mut user = std::process::Command::new("sleep")
                .arg("60")
                .uid(NOBODY)
                .stdin(used)
                .spawn()
                .unwrap();
            found(base.path(), NOBODY).unwrap().remove();
            user.kill().unwrap();
            user.wait().unwrap();
            let names = fs::read_dir(FILES).unwrap().flatten();
            let mut left: Vec<_> = names.map(|entry| entry.file_name()).collect();
            left.sort();
            left
        });
        let left = left.join().unwrap();
        assert_eq!(left, [1, 4, 5, 6].map(file_name));
    }

    /// Gives this thread a new, empty place for shared memory.
    fn own_files() {
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        let null = std::ptr::null();
        // SAFETY: the calls take integers, constant strings that end with a zero, and no data.
        unsafe {
            assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0);
            assert_eq!(
                libc::mount(null, c"/".as_ptr(), null, flags, null.cast()),
                0
            );
            let (kind, target) = (c"tmpfs".as_ptr(), c"/dev/shm".as_ptr());
            assert_eq!(libc::mount(kind, target, kind, 0, null.cast()), 0);
        }
    }

    fn shared_file(handle: u32, contents: &[u8], owner: u32) -> fs::File {
        let path = Path::new(FILES).join(file_name(handle));
        fs::write(&path, contents).unwrap();
        std::os::unix::fs::chown(&path, Some(owner), None).unwrap();
        fs::File::open(path).unwrap()
    }

    /// Regression test: a process that was being killed still had its segment when it had lost its
    /// program. So it counted as ended, the segment as used, and the segment stayed for ever.
    #[test]
    fn the_segment_of_a_process_that_is_just_ending_is_removed() {
        if os::effective_uid() != 0 {
            pgassay_test_support::skip("segments of other users", "requires root");
            return;
        }
        let removed = std::thread::spawn(|| {
            let id = own_segment(NOBODY);
            // SAFETY: the kernel maps the segment at a free address, which nothing else uses.
            let address = unsafe { libc::shmat(id, std::ptr::null(), 0) }.addr();
            let pid = std::process::id();
            let base = directory_with(&format!("{pid}\n/data\n1\n0\n\n\n0 {id}\n"));
            let memory = found(base.path(), NOBODY).unwrap();
            let ending = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(200));
                // SAFETY: it is the address of the segment, and nothing refers to it.
                unsafe { libc::shmdt(std::ptr::without_provenance(address)) }
            });
            memory.remove();
            assert_eq!(ending.join().unwrap(), 0);
            os::owner_of_segment(id).is_none()
        });
        assert!(removed.join().unwrap());
    }

    /// Creates a segment with a server's header in a new IPC namespace of this thread.
    fn own_segment(owner: u32) -> i32 {
        let mut header = [0_u8; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC.to_ne_bytes());
        // SAFETY: the calls take integers, except shmat, which maps the whole segment at a free
        // address, where the header fits.
        unsafe {
            assert_eq!(libc::unshare(libc::CLONE_NEWIPC), 0);
            let id = libc::shmget(libc::IPC_PRIVATE, 4096, 0o600 | libc::IPC_CREAT);
            assert!(id >= 0);
            let address = libc::shmat(id, std::ptr::null(), 0);
            address.cast::<[u8; HEADER_BYTES]>().write(header);
            assert_eq!(libc::shmdt(address), 0);
            let mut state: libc::shmid_ds = std::mem::zeroed();
            assert_eq!(libc::shmctl(id, libc::IPC_STAT, &raw mut state), 0);
            state.shm_perm.uid = owner;
            assert_eq!(libc::shmctl(id, libc::IPC_SET, &raw mut state), 0);
            id
        }
    }

    #[test]
    fn a_control_segment_lists_the_segments_in_use() {
        let control = |first: usize, place_bytes: usize, places: u32| {
            let mut bytes = [CONTROL_MAGIC, 3, places].map(u32::to_ne_bytes).concat();
            bytes.resize(first, 0);
            for (handle, users) in [(11_u32, 2_u32), (12, 0), (14, 1)] {
                bytes.extend([handle, users].map(u32::to_ne_bytes).concat());
                bytes.resize(bytes.len() + place_bytes - 8, 0);
            }
            bytes.resize(first + place_bytes * places as usize, 0);
            bytes
        };
        for (first, place_bytes) in [(12, 8), (16, 24), (16, 40)] {
            assert_eq!(handles(&control(first, place_bytes, 100)), [11, 14]);
        }
        let whole = control(16, 40, 100);
        for bytes in 0..whole.len().min(300) {
            // Never out of bounds, whatever is missing.
            handles(&whole[..bytes]);
        }
        let mut other = whole.clone();
        other[0] ^= 1;
        assert!(handles(&other).is_empty() && handles(&[]).is_empty());
    }
}
