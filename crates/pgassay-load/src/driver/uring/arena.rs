//! The memory that the kernel reads requests from and writes replies to: one place for each slot.
//!
//! Pages that are never touched cost nothing, and a request is put right before the place of its
//! reply, so that a client with short ones takes a page or two however long the places are. Raw pointers are used throughout, since the kernel writes behind the compiler's
//! back; a place is looked at only when no operation on it is under way, which is the caller's to
//! see to.

use std::io;
use std::ptr::NonNull;

/// The longest piece that one receive brings.
const RECEIVE_BYTES: usize = 16 << 10;
/// The longest request that is kept here.
pub(super) const SEND_BYTES: usize = 8 << 10;
/// From one slot to the next: requests, then replies. The odd cache lines spread the slots over the cache's sets, of
/// which places that begin alike in their pages would share a few.
const STRIDE_BYTES: usize = RECEIVE_BYTES + SEND_BYTES + 5 * 64;

/// Places for a number of slots.
pub(super) struct Arena {
    base: NonNull<u8>,
    slots: usize,
    is_leaked: bool,
}

// SAFETY: the memory is owned; nothing about it is bound to a thread.
unsafe impl Send for Arena {}

impl Arena {
    /// Maps the memory by itself: an allocator may write zeroes to all of it.
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
        // Huge pages would make all of it resident, 25 kB for each client. Where the advice is not
        // taken, that is what it costs.
        // SAFETY: the range is the mapping, and the advice changes nothing of its content.
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
        // SAFETY: within the allocation, as was just checked.
        unsafe { self.base.as_ptr().add(slot * STRIDE_BYTES + offset) }
    }

    /// Where a slot receives, and how much.
    #[inline]
    pub fn receiving(&self, slot: usize) -> (*mut u8, u32) {
        (self.place(slot, SEND_BYTES), RECEIVE_BYTES as u32)
    }

    /// What a slot received.
    #[inline]
    pub fn received(&self, slot: usize, count: usize) -> &[u8] {
        assert!(count <= RECEIVE_BYTES);
        // SAFETY: within the place; no receive is under way while its bytes are lent.
        unsafe { std::slice::from_raw_parts(self.place(slot, SEND_BYTES), count) }
    }

    /// Puts a request into a slot's place to be sent from.
    #[inline]
    pub fn put(&mut self, slot: usize, bytes: &[u8]) -> *const u8 {
        assert!(bytes.len() <= SEND_BYTES);
        let place = self.place(slot, SEND_BYTES - bytes.len());
        // SAFETY: the place is long enough, and no send of this slot is under way.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        place
    }

    /// What was put there.
    pub fn sending(&self, slot: usize, count: usize) -> &[u8] {
        assert!(count <= SEND_BYTES);
        // SAFETY: within the place; the kernel only reads it.
        unsafe { std::slice::from_raw_parts(self.place(slot, SEND_BYTES - count), count) }
    }

    /// Never frees the memory.
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
