//! Prefetches memory into the CPU caches.
//!
//! Until the next reply to a client, the server's processes and the kernel evict the client's memory from the caches.
//! Loading it while the thread serves other clients hides most of the latency: see BENCHMARKS.md.

const LINE_BYTES: usize = 64;

/// Prefetches a value, without what it points to.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    prefetch_at(std::ptr::from_ref(value).cast(), size_of::<T>());
}

/// Prefetches some memory. The address need not be valid.
#[inline]
pub(crate) fn prefetch_at(address: *const u8, bytes: usize) {
    for offset in (0..bytes).step_by(LINE_BYTES) {
        line(address.wrapping_add(offset));
    }
}

/// Prefetches the cache line at an address. Rust has no such instruction for other processors.
#[inline]
fn line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and no address is invalid for it.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
