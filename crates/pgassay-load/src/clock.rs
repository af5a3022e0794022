//! The clocks of the load: monotonic time, and what a thread used of the processor.
//!
//! Everything the load times is in nanoseconds of `CLOCK_MONOTONIC`, which other observers of the
//! same machine can read too.

use std::os::unix::fs::FileExt as _;

/// A moment on `CLOCK_MONOTONIC`, in ns.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// The processor time of the calling thread, user and system, in ns.
pub(crate) fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of ours; both clocks exist on every Linux, so the call
    // cannot fail.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Opens what tells how long the calling thread was ready to run but had no processor, for being
/// read often; none where the kernel does not tell.
pub(crate) fn thread_run_queue_reader() -> impl FnMut() -> Option<u64> + Send + 'static {
    let file = std::fs::File::open("/proc/thread-self/schedstat").ok();
    move || {
        let mut text = [0; 80];
        let count = file.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..count]).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse().ok()
    }
}

/// How long the calling thread was ready to run but had no processor, in ns, where the kernel
/// tells: the second number of `/proc/thread-self/schedstat`.
pub(crate) fn thread_run_queue_wait_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_move_forward() {
        let (wall, cpu) = (monotonic_ns(), thread_cpu_ns());
        let mut sum = 0_u64;
        while thread_cpu_ns() < cpu + 2_000_000 {
            sum = sum.wrapping_add(monotonic_ns());
        }
        assert_ne!(sum, 0);
        assert!(monotonic_ns() >= wall + 2_000_000);
    }
}
