//! The memory that the kernel reads requests from and writes replies to: one region per slot.
//!
//! Untouched pages cost nothing, and a request is placed directly before its reply, so a client
//! with short messages uses a page or two however large the regions are. Raw pointers are used
//! throughout because the kernel writes without the compiler's knowledge. The caller must access a
//! region only when no operation on it is in flight.

use std::io;
use std::ptr::NonNull;

/// The longest piece that one receive returns.
const RECEIVE_BYTES: usize = 16 << 10;
/// The longest request stored here.
pub(super) const SEND_BYTES: usize = 8 << 10;
/// Distance between slots: requests, then replies. The extra cache lines spread slots over the
/// cache sets; regions at equal page offsets would share only a few.
const STRIDE_BYTES: usize = RECEIVE_BYTES + SEND_BYTES + 5 * 64;

/// Regions for a number of slots.
pub(super) struct Arena {
    base: NonNull<u8>,
    slots: usize,
    is_leaked: bool,
}

// SAFETY: the memory is owned and not bound to a thread.
unsafe impl Send for Arena {}

impl Arena {
    /// Maps the memory directly: an allocator might write zeroes to all of it.
    pub fn new(slots: usize) -> io::Result<Self> {
        let slots = slots.max(1);
        let bytes = slots * STRIDE_BYTES;
        // SAFETY: a new private mapping has no preconditions.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Huge pages would make all of it resident: 25 kB per client. If the kernel ignores the
        // advice, that is the cost.
        // SAFETY: the range is the mapping, and the advice does not change its content.
        unsafe { libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            base,
            slots,
            is_leaked: false,
        })
    }

    #[inline]
    fn place(&self, slot: usize, offset: usize) -> *mut u8 {
        assert!(slot < self.slots && offset < STRIDE_BYTES);
        // SAFETY: within the allocation, as just asserted.
        unsafe { self.base.as_ptr().add(slot * STRIDE_BYTES + offset) }
    }

    /// Returns a slot's receive buffer and its length.
    #[inline]
    pub fn receiving(&self, slot: usize) -> (*mut u8, u32) {
        (self.place(slot, SEND_BYTES), RECEIVE_BYTES as u32)
    }

    /// Returns what a slot received.
    #[inline]
    pub fn received(&self, slot: usize, count: usize) -> &[u8] {
        assert!(count <= RECEIVE_BYTES);
        // SAFETY: within the region; no receive is in flight while its bytes are lent.
        unsafe { std::slice::from_raw_parts(self.place(slot, SEND_BYTES), count) }
    }

    /// Copies a request into a slot's send buffer.
    #[inline]
    pub fn put(&mut self, slot: usize, bytes: &[u8]) -> *const u8 {
        assert!(bytes.len() <= SEND_BYTES);
        let place = self.place(slot, SEND_BYTES - bytes.len());
        // SAFETY: the region is long enough, and no send of this slot is in flight.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        place
    }

    /// Returns the last `count` bytes of the send buffer.
    pub fn sending(&self, slot: usize, count: usize) -> &[u8] {
        assert!(count <= SEND_BYTES);
        // SAFETY: within the region; the kernel only reads it.
        unsafe { std::slice::from_raw_parts(self.place(slot, SEND_BYTES - count), count) }
    }

    /// Leaks the memory instead of freeing it.
    pub fn leak(&mut self) {
        self.is_leaked = true;
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if !self.is_leaked {
            // SAFETY: mapped with this length, and not unmapped before.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.slots * STRIDE_BYTES) };
        }
    }
}
