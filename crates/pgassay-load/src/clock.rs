//! Clocks: monotonic time, and the CPU time of a thread.
//!
//! All times are nanoseconds of `CLOCK_MONOTONIC`, which other processes on the same machine can
//! read too.

use std::os::unix::fs::FileExt as _;

/// Returns the current `CLOCK_MONOTONIC` time in ns.
#[inline]
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns the CPU time of the calling thread, user and system, in ns.
pub(crate) fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to our own timespec. Both clocks exist on every Linux, so the call
    // cannot fail.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns a reader of the calling thread's run-queue wait that keeps its file open for frequent
/// reads. The reader returns `None` if the kernel does not report it.
pub(crate) fn thread_run_queue_reader() -> impl FnMut() -> Option<u64> + Send + 'static {
    let file = std::fs::File::open("/proc/thread-self/schedstat").ok();
    move || {
        let mut text = [0; 80];
        let count = file.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..count]).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse().ok()
    }
}

/// Returns the total run-queue wait of the calling thread in ns: the second number of
/// `/proc/thread-self/schedstat`. `None` if the kernel does not report it.
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
