//! The ring buffer into which the kernel writes records, one for each CPU.
//!
//! Invariants: only the kernel writes the data and `data_head`; only this side writes `data_tail`,
//! and only after it has copied the data before it. Both count bytes since the event was opened and
//! never wrap; a position is their remainder modulo the ring's size, which is a power of two. See
//! the comment at `data_head` in `include/uapi/linux/perf_event.h`.

use perf_event_open_sys::bindings::perf_event_mmap_page;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A mapped ring buffer.
pub(crate) struct Ring {
    base: NonNull<libc::c_void>,
    map_bytes: usize,
    data_offset: usize,
    data_bytes: usize,
}

// SAFETY: only this value owns the mapping, which is not bound to the thread that created it.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of an event; `data_bytes` is a power of two and a multiple of the page size.
    pub fn map(event: BorrowedFd<'_>, data_bytes: usize) -> io::Result<Self> {
        let page_bytes = page_bytes();
        let map_bytes = page_bytes + data_bytes;
        // SAFETY: a new mapping at an address chosen by the kernel overlaps nothing.
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

    /// Appends everything that the kernel has written since the last call to `out`, and releases
    /// the space. The kernel publishes only whole records.
    pub fn drain_into(&mut self, out: &mut Vec<u8>) {
        let page = self.base.as_ptr().cast::<perf_event_mmap_page>();
        // SAFETY: the first page of the mapping contains this struct, 64-bit aligned, for the
        // lifetime of `self`; both counters are accessed only atomically.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*page).data_head),
                AtomicU64::from_ptr(&raw mut (*page).data_tail),
            )
        };
        // Acquire: the data that the kernel wrote before it moved the head must be visible.
        let written = head.load(Ordering::Acquire);
        let read = tail.load(Ordering::Relaxed);
        for range in unread(self.data_bytes, read, written) {
            // SAFETY: the range is within the data area, and the kernel writes nothing between
            // tail and head until the tail is moved.
            let part = unsafe {
                let data = self.base.as_ptr().cast::<u8>().add(self.data_offset);
                std::slice::from_raw_parts(data.add(range.start), range.len())
            };
            out.extend_from_slice(part);
        }
        // Release: the copy must be complete before the kernel may overwrite the data.
        tail.store(written, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this is the mapping created in `map`, and there are no references into it.
        // A failure would only leak address space.
        unsafe { libc::munmap(self.base.as_ptr(), self.map_bytes) };
    }
}

/// The positions of the bytes from count `tail` to count `head` in a ring of `size` bytes: up to
/// its end, and the rest from its beginning.
fn unread(size: usize, tail: u64, head: u64) -> [Range<usize>; 2] {
    debug_assert!(size.is_power_of_two(), "perf rings are powers of two");
    // There cannot be more than the ring's size, whatever the counters say.
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
    use crate::perf::record::tests::record;
    use crate::perf::record::{Record, Records};
    use perf_event_open_sys::bindings as sys;

    fn copy_between(data: &[u8], tail: u64, head: u64, out: &mut Vec<u8>) {
        for range in unread(data.len(), tail, head) {
            out.extend_from_slice(&data[range]);
        }
    }

    #[test]
    fn an_empty_ring_is_not_copied() {
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
    fn records_that_wrap_are_copied_whole_at_every_offset() {
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
    fn counters_can_overflow() {
        let data: Vec<u8> = (0..16).collect();
        let mut out = Vec::new();
        copy_between(&data, u64::MAX - 3, 4, &mut out);
        assert_eq!(out, [12, 13, 14, 15, 0, 1, 2, 3]);
    }
}
