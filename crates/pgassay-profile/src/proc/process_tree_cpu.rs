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

    /// `on_cpu_ns` is the exact time of a process with one thread. Of several, only the ticks include those
    /// that have ended.
    pub(crate) fn from_stat(stat: &ProcessStat, on_cpu_ns: Option<u64>) -> Self {
        let tick_ns = 1_000_000_000 / ticks_per_second();
        let own_ns = on_cpu_ns.unwrap_or((stat.user_ticks + stat.system_ticks) * tick_ns);
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
