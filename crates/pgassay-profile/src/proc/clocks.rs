//! The kernel's clocks: monotonic time, and the CPU time of threads and processes.

/// A reading in nanoseconds of a clock that exists on every Linux.
pub(crate) fn read_clock(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to our timespec; the clocks used exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// `CLOCK_MONOTONIC`: the clock of the kernel's events and of `Instant`.
pub(crate) fn monotonic_ns() -> u64 {
    read_clock(libc::CLOCK_MONOTONIC).cast_unsigned()
}

/// CPU time of this process, including all threads that have ended (`CLOCK_PROCESS_CPUTIME_ID`).
pub fn own_cpu_ns() -> u64 {
    read_clock(libc::CLOCK_PROCESS_CPUTIME_ID).cast_unsigned()
}

/// CPU time of another process since its start, over all threads, from its CPU clock
/// (`clock_getcpuclockid(3)`): in nanoseconds, including its current time slice. `None` if there is
/// no such process.
pub fn process_cpu_ns(pid: u32) -> Option<u64> {
    let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)?;
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both pointers are to our values, and a process that has ended is an error.
    let is_read = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    is_read.then(|| (time.tv_sec * 1_000_000_000 + time.tv_nsec).cast_unsigned())
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu_ns() -> u64 {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_clock_includes_ended_threads() {
        let before_ns = own_cpu_ns();
        let busy = || {
            let until_ns = own_cpu_ns() + 20_000_000;
            while own_cpu_ns() < until_ns {}
        };
        std::thread::spawn(busy).join().unwrap();
        assert!(own_cpu_ns() - before_ns >= 20_000_000);
        let from_outside_ns = process_cpu_ns(std::process::id()).unwrap();
        assert!(from_outside_ns - before_ns >= 20_000_000);
        assert_eq!(process_cpu_ns(u32::MAX), None);
        assert_eq!(process_cpu_ns(0), None, "0 means the calling process");
    }
}
