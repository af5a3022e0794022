//! The memory that the kernel writes its records into, one ring for each CPU.
//!
//! Invariants: the kernel alone writes the data and `data_head`; this side alone writes
//! `data_tail`, and only after it has copied what lies before it. Both count bytes from the
//! event's beginning and never wrap; a position is their remainder by the ring's size, which is a
//! power of two. See the comment at `data_head` in `include/uapi/linux/perf_event.h`.

use perf_event_open_sys::bindings::perf_event_mmap_page;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A mapped ring.
pub(crate) struct Ring {
    base: NonNull<libc::c_void>,
    map_bytes: usize,
    data_offset: usize,
    data_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is not bound to the thread that made it.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of an event; `data_bytes` is a power of two and a multiple of the page.
    pub fn map(event: BorrowedFd<'_>, data_bytes: usize) -> io::Result<Self> {
        let page_bytes = page_bytes();
        let map_bytes = page_bytes + data_bytes;
        // SAFETY: a new mapping at an address of the kernel's choice overlays nothing.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(address).expect("mmap without MAP_FIXED never returns null");
        Ok(Self {
            base,
            map_bytes,
            data_offset: page_bytes,
            data_bytes,
        })
    }

    /// Appends to `out` all that the kernel has written since the last call, and gives the room
    /// back to it. Whole records only, since the kernel publishes whole records.
    pub fn drain_into(&mut self, out: &mut Vec<u8>) {
        let page = self.base.as_ptr().cast::<perf_event_mmap_page>();
        // SAFETY: the first page of the mapping holds this struct, 64-bit aligned, for as long as
        // `self` lives; both counters are accessed only atomically.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*page).data_head),
                AtomicU64::from_ptr(&raw mut (*page).data_tail),
            )
        };
        // Acquire: what the kernel wrote before it moved the head must be seen.
        let written = head.load(Ordering::Acquire);
        let read = tail.load(Ordering::Relaxed);
        for range in unread(self.data_bytes, read, written) {
            // SAFETY: the range lies within the data area, and the kernel writes nothing between
            // tail and head until the tail is moved.
            let part = unsafe {
                let data = self.base.as_ptr().cast::<u8>().add(self.data_offset);
                std::slice::from_raw_parts(data.add(range.start), range.len())
            };
            out.extend_from_slice(part);
        }
        // Release: the copy must be done before the kernel may write over it.
        tail.store(written, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map`, and nobody can hold a reference into it.
        // A failure would leak address space, which nobody could mend here.
        unsafe { libc::munmap(self.base.as_ptr(), self.map_bytes) };
    }
}

/// Where in a ring of `size` bytes those from count `tail` up to count `head` lie: up to the
/// ring's end, and on from its beginning.
fn unread(size: usize, tail: u64, head: u64) -> [Range<usize>; 2] {
    debug_assert!(size.is_power_of_two(), "perf rings are powers of two");
    // More than a ringful cannot be there; a kernel that says so is not believed.
    let len = head.wrapping_sub(tail).min(size as u64) as usize;
    let start = (tail & (size as u64 - 1)) as usize;
    let first = len.min(size - start);
    [start..start + first, 0..len - first]
}

/// The size of a memory page.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: sysconf only reads.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;
    use crate::record::{Record, Records};
    use perf_event_open_sys::bindings as sys;

    fn copy_between(data: &[u8], tail: u64, head: u64, out: &mut Vec<u8>) {
        for range in unread(data.len(), tail, head) {
            out.extend_from_slice(&data[range]);
        }
    }

    #[test]
    fn nothing_new_copies_nothing() {
        let mut out = Vec::new();
        copy_between(&[7; 16], 48, 48, &mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn a_full_ring_is_copied_in_order() {
        let data: Vec<u8> = (0..16).collect();
        let mut out = Vec::new();
        copy_between(&data, 20, 36, &mut out);
        let expected: Vec<u8> = (4..16).chain(0..4).collect();
        assert_eq!(out, expected);
    }

    #[test]
    fn records_that_wrap_come_out_whole_at_every_offset() {
        let mut bytes = record(
            sys::PERF_RECORD_LOST,
            0,
            &[1_u64, 77].map(u64::to_ne_bytes).concat(),
        );
        bytes.extend(record(sys::PERF_RECORD_THROTTLE, 0, &[0; 24]));
        for tail in (0..128_u64).step_by(8) {
            let mut ring = [0xee_u8; 64];
            for (i, byte) in bytes.iter().enumerate() {
                ring[(tail as usize + i) % 64] = *byte;
            }
            let mut out = Vec::new();
            copy_between(&ring, tail, tail + bytes.len() as u64, &mut out);
            let all: Result<Vec<_>, _> = Records::new(&out).collect();
            assert_eq!(
                all.unwrap(),
                [Record::Lost { count: 77 }, Record::Throttle],
                "at {tail}"
            );
        }
    }

    #[test]
    fn counters_may_pass_the_end_of_their_range() {
        let data: Vec<u8> = (0..16).collect();
        let mut out = Vec::new();
        copy_between(&data, u64::MAX - 3, 4, &mut out);
        assert_eq!(out, [12, 13, 14, 15, 0, 1, 2, 3]);
    }
}
