//! CPU time of the backends that serve pgassay.

use std::collections::BTreeMap;

/// What each backend has used for the watch, by PID. One that has ended keeps what it had when it was last read.
#[derive(Debug, Default)]
pub struct BackendCpu(BTreeMap<u32, UsedCpu>);

/// In nanoseconds.
#[derive(Debug)]
struct UsedCpu {
    before: u64,
    used: u64,
}

impl BackendCpu {
    /// Counts what a backend uses beyond so many nanoseconds.
    pub fn add(&mut self, pid: u32, before: u64) {
        let new = UsedCpu { before, used: 0 };
        self.0.entry(pid).or_insert(new);
    }

    /// What all have used, in nanoseconds. `now` is the CPU time of a process, `None` if it has ended.
    pub fn used_ns(&mut self, now: impl Fn(u32) -> Option<u64>) -> u64 {
        for (&pid, backend) in &mut self.0 {
            if let Some(now) = now(pid) {
                backend.used = backend.used.max(now.saturating_sub(backend.before));
            }
        }
        self.0.values().map(|it| it.used).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: after a connection was lost, "its backends -0.4%" of a CPU in a snapshot of `top`: what the ended
    /// backend had used was no longer in the sum.
    #[test]
    fn a_backend_that_has_ended_keeps_what_it_used() {
        let mut cpu = BackendCpu::default();
        cpu.add(45, 1000);
        cpu.add(46, 0);
        assert_eq!(cpu.used_ns(|pid| Some(u64::from(pid) * 100)), 3500 + 4600);
        cpu.add(47, 0);
        let now = |pid| (pid != 45).then_some(5000);
        assert_eq!(cpu.used_ns(now), 3500 + 5000 + 5000);
        // Another process has its PID.
        assert_eq!(cpu.used_ns(|_| Some(0)), 3500 + 5000 + 5000);
    }
}
