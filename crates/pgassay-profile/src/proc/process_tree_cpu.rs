//! CPU time of process trees: processes including their ended children.
//!
//! When a process has ended and is reaped, its CPU time is added to its parent's (`cutime` and
//! `cstime` in proc(5)). So a sum of both over processes grows exactly by the CPU time used, even if
//! processes start and end in between. The children's times are exact sums, in clock ticks.

use std::io;
use std::ops::AddAssign;

use crate::proc::cpu::{read_schedstat, ticks_per_second};
use crate::proc::files::ProcessStat;

/// CPU time of processes including their ended children.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessTreeCpu {
    ns: u64,
}

impl ProcessTreeCpu {
    /// Reads the CPU time of a process and its ended children.
    ///
    /// # Errors
    /// There is no such process.
    pub fn read(pid: u32) -> io::Result<Self> {
        let stat = ProcessStat::read(pid)?;
        let path = format!("/proc/{pid}/schedstat");
        let of_one_thread = (stat.threads <= 1).then(|| read_schedstat(&path));
        let on_cpu_ns = of_one_thread.transpose()?.map(|it| it.on_cpu_ns);
        Ok(Self::from_stat(&stat, on_cpu_ns))
    }

    /// `on_cpu_ns` is the exact time of a process's only thread. Only the ticks include threads that have ended; they
    /// are rounded down.
    pub(crate) fn from_stat(stat: &ProcessStat, on_cpu_ns: Option<u64>) -> Self {
        let tick_ns = 1_000_000_000 / ticks_per_second();
        let in_ticks_ns = (stat.user_ticks + stat.system_ticks) * tick_ns;
        let own_ns = on_cpu_ns.map_or(in_ticks_ns, |exact_ns| exact_ns.max(in_ticks_ns));
        Self {
            ns: own_ns + stat.children_ticks * tick_ns,
        }
    }

    /// Reads only the CPU time of a process's ended children.
    ///
    /// # Errors
    /// There is no such process.
    pub fn of_ended_children(pid: u32) -> io::Result<Self> {
        let tick_ns = 1_000_000_000 / ticks_per_second();
        let ns = ProcessStat::read(pid)?.children_ticks * tick_ns;
        Ok(Self { ns })
    }

    /// The CPU time since the process's start.
    #[cfg(test)]
    pub(crate) fn total_ns(self) -> u64 {
        self.ns
    }

    /// The CPU time used since an earlier reading.
    pub fn since_ns(self, earlier: Self) -> u64 {
        self.ns.saturating_sub(earlier.ns)
    }
}

impl AddAssign for ProcessTreeCpu {
    fn add_assign(&mut self, other: Self) {
        self.ns += other.ns;
    }
}

/// CPU time of all processes of this machine, in two groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessTreesCpu {
    /// Some processes and all their descendants.
    pub ours: ProcessTreeCpu,
    /// All other visible processes.
    pub others: ProcessTreeCpu,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Regression: other programs used 114% to 224% of the machine. The time of ended threads was missing while a
    /// process had one thread, and was counted at once when it had several again, or had ended.
    #[test]
    fn time_of_ended_threads_is_counted_while_there_is_a_single_one() {
        let stat = |threads, user_ticks| ProcessStat {
            parent_pid: 1,
            user_ticks,
            system_ticks: 100,
            children_ticks: 0,
            threads,
            started_ticks: 0,
        };
        let tick_ns = 1_000_000_000 / ticks_per_second();
        let before = ProcessTreeCpu::from_stat(&stat(1, 900), Some(5 * tick_ns));
        let after = ProcessTreeCpu::from_stat(&stat(3, 901), None);
        assert_eq!(after.since_ns(before), tick_ns);
        // The rest of a tick is not lost.
        let exact = ProcessTreeCpu::from_stat(&stat(1, 0), Some(101 * tick_ns + 7));
        assert_eq!(exact.total_ns(), 101 * tick_ns + 7);
    }

    #[test]
    fn a_child_that_has_ended_is_counted() {
        let pid = std::process::id();
        let before = ProcessTreeCpu::read(pid).unwrap();
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        let status = Command::new("sh").args(["-c", busy]).status().unwrap();
        assert!(status.success());
        let used_us = ProcessTreeCpu::read(pid).unwrap().since_ns(before) / 1000;
        assert!(used_us >= 20_000, "{used_us}");
    }
}
