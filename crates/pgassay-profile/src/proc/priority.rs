//! The scheduling priority of our own threads.

use pgassay_rights::{self as rights, Purpose};

/// The lowest real-time priority: above all normal processes, below other real-time ones.
const LOWEST: libc::c_int = 1;
/// The highest nice value that normal processes have.
const NICE_MIN: libc::c_int = -20;

/// Lets the calling thread run as soon as it wakes up, also if all CPUs are busy: with real-time
/// priority or, if that is refused, the highest normal one. Returns whether either is permitted (root, or
/// `CAP_SYS_NICE`). Only for threads that sleep nearly all the time.
///
/// A sampler without it wakes up late on a saturated machine, and at moments that depend on what the
/// server does.
pub fn raise_thread_priority() -> bool {
    let parameters = libc::sched_param {
        sched_priority: LOWEST,
    };
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    let _raised = rights::raise(Purpose::Priority);
    // SAFETY: the parameters are ours; 0 is the calling thread.
    let is_real_time = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } == 0;
    // SAFETY: has no preconditions; on Linux 0 is the calling thread.
    is_real_time || unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE_MIN) } == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_of_other_threads_stays() {
        let policy = || {
            // SAFETY: has no preconditions.
            unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK }
        };
        let before = policy();
        let raised = std::thread::spawn(move || raise_thread_priority().then(policy));
        if let Some(raised) = raised.join().unwrap() {
            assert!(raised == libc::SCHED_RR || raised == before);
        }
        assert_eq!(policy(), before);
    }
}
