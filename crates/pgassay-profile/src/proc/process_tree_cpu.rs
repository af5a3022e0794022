//! CPU time of process trees: processes including their ended children.
//!
//! When a process has ended and is reaped, its CPU time is added to its parent's (`cutime` and
//! `cstime` in proc(5)). So a sum of both over processes grows exactly by the CPU time used, even if
//! processes start and end in between. The children's times are exact sums, in clock ticks.

use std::collections::BTreeMap;
use std::fs;
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
        Self::of(pid, &ProcessStat::read(pid)?)
    }

    fn of(pid: u32, stat: &ProcessStat) -> io::Result<Self> {
        let tick_ns = 1_000_000_000 / ticks_per_second();
        let own_ns = if stat.threads > 1 {
            // Only these include threads that have ended.
            (stat.user_ticks + stat.system_ticks) * tick_ns
        } else {
            read_schedstat(&format!("/proc/{pid}/schedstat"))?.on_cpu_ns
        };
        Ok(Self {
            ns: own_ns + stat.children_ticks * tick_ns,
        })
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

impl ProcessTreesCpu {
    /// Reads all processes; `roots` and their descendants are ours.
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn read(roots: &[u32]) -> io::Result<Self> {
        let mut parents = BTreeMap::new();
        let mut used = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|it| it.parse::<u32>().ok()) else {
                continue;
            };
            // A process that has just ended is included in its parent's time.
            let Ok(stat) = ProcessStat::read(pid) else {
                continue;
            };
            parents.insert(pid, stat.parent_pid);
            if let Ok(cpu) = ProcessTreeCpu::of(pid, &stat) {
                used.push((pid, cpu));
            }
        }
        let mut families = Self::default();
        for (pid, cpu) in used {
            let mut lineage = std::iter::successors(Some(pid), |it| parents.get(it).copied());
            if lineage.any(|it| roots.contains(&it)) {
                families.ours += cpu;
            } else {
                families.others += cpu;
            }
        }
        Ok(families)
    }
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
    #[test]
    fn processes_that_start_and_end_in_between_are_counted_in_their_tree() {
        let before = ProcessTreesCpu::read(&[std::process::id()]).unwrap();
        let busy = "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done'; true";
        let status = Command::new("sh").args(["-c", busy]).status().unwrap();
        assert!(status.success());
        let after = ProcessTreesCpu::read(&[std::process::id()]).unwrap();
        assert!(after.ours.since_ns(before.ours) >= 20_000_000, "{after:?}");
        let none = ProcessTreesCpu::read(&[]).unwrap();
        assert_eq!(none.ours, ProcessTreeCpu::default());
        assert!(none.others.ns >= after.ours.ns + after.others.ns);
    }
}
