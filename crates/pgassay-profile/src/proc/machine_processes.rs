//! All processes of this machine, from one pass over `/proc`.
//!
//! A trial of a server with hundreds of backends needs the same files for several sums. Each is read once: two
//! files per process, which take some 10 µs.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use crate::proc::cpu::{ProcessCpu, ProcessTotals};
use crate::proc::files::ProcessStat;
use crate::proc::live::{LiveProcess, LiveServer};
use crate::proc::process_tree_cpu::{ProcessTreeCpu, ProcessTreesCpu};
use crate::proc::role::read_role;

/// All visible processes with their CPU totals at one point in time.
#[derive(Debug, Clone)]
pub struct MachineProcesses {
    by_pid: BTreeMap<u32, ListedProcess>,
}

#[derive(Debug, Clone, Copy)]
struct ListedProcess {
    stat: ProcessStat,
    /// `None` for a process with several threads: their totals are in a file each, which few callers need.
    cpu: Option<ProcessCpu>,
}

impl MachineProcesses {
    /// Reads all processes. Omits those that end meanwhile.
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn read() -> io::Result<Self> {
        let mut by_pid = BTreeMap::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|it| it.parse::<u32>().ok()) else {
                continue;
            };
            // A process that has just ended is included in its parent's time.
            let Ok(stat) = ProcessStat::read(pid) else {
                continue;
            };
            let is_single = stat.threads <= 1;
            let cpu = is_single.then(|| ProcessCpu::of(pid, &stat).ok());
            by_pid.insert(
                pid,
                ListedProcess {
                    stat,
                    cpu: cpu.flatten(),
                },
            );
        }
        Ok(Self { by_pid })
    }

    /// The CPU totals of a process; `None` if it has ended.
    pub(crate) fn cpu(&self, pid: u32) -> Option<ProcessCpu> {
        let entry = self.by_pid.get(&pid)?;
        entry.cpu.or_else(|| ProcessCpu::of(pid, &entry.stat).ok())
    }

    /// The CPU totals of these processes; omits those that have ended.
    pub fn totals(&self, pids: &[u32]) -> ProcessTotals {
        let of_process = |&pid: &u32| Some((pid, self.cpu(pid)?));
        ProcessTotals {
            by_pid: pids.iter().filter_map(of_process).collect(),
        }
    }

    /// The CPU time of all processes; `roots` and their descendants are ours.
    pub fn trees(&self, roots: &[u32]) -> ProcessTreesCpu {
        let parent = |pid: &u32| Some(self.by_pid.get(pid)?.stat.parent_pid);
        let mut trees = ProcessTreesCpu::default();
        for (&pid, entry) in &self.by_pid {
            let on_cpu_ns = entry.cpu.map(|it| it.on_cpu_ns);
            let cpu = ProcessTreeCpu::from_stat(&entry.stat, on_cpu_ns);
            let mut lineage = std::iter::successors(Some(pid), parent);
            if lineage.any(|it| roots.contains(&it)) {
                trees.ours += cpu;
            } else {
                trees.others += cpu;
            }
        }
        trees
    }

    /// The children of a server's postmaster, with their roles.
    pub fn of_server(&self, server: &LiveServer) -> Vec<LiveProcess> {
        let is_child = |it: &(&u32, &ListedProcess)| it.1.stat.parent_pid == server.postmaster_pid;
        let children = self.by_pid.iter().filter(is_child);
        let with_role = |(&pid, _)| LiveProcess {
            pid,
            role: read_role(pid),
        };
        children.map(with_role).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn processes_that_start_and_end_in_between_are_counted_in_their_tree() {
        let own = [std::process::id()];
        let before = MachineProcesses::read().unwrap().trees(&own);
        let busy = "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done'; true";
        let status = Command::new("sh").args(["-c", busy]).status().unwrap();
        assert!(status.success());
        let table = MachineProcesses::read().unwrap();
        let after = table.trees(&own);
        assert!(after.ours.since_ns(before.ours) >= 20_000_000, "{after:?}");
        let none = table.trees(&[]);
        assert_eq!(none.ours, ProcessTreeCpu::default());
        let sum = after.ours.total_ns() + after.others.total_ns();
        assert_eq!(none.others.total_ns(), sum);
    }

    #[test]
    fn totals_are_those_of_the_process_itself_also_with_several_threads() {
        let own = std::process::id();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stopped.recv().is_err());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        // Threads of other tests that end in between take their time with them.
        let is_between = (0..200).any(|_| {
            let before = ProcessTotals::read(&[own]).by_pid[&own];
            let totals = MachineProcesses::read().unwrap().totals(&[own]);
            let after = ProcessTotals::read(&[own]).by_pid[&own];
            let within = before.on_cpu_ns..=after.on_cpu_ns;
            within.contains(&totals.by_pid[&own].on_cpu_ns)
        });
        let table = MachineProcesses::read().unwrap();
        let totals = table.totals(&[own, child.id(), u32::MAX]);
        child.kill().unwrap();
        child.wait().unwrap();
        drop(stop);
        assert!(thread.join().unwrap());
        assert!(is_between, "{totals:?}");
        assert_eq!(totals.by_pid.len(), 2, "the last PID is of no process");
        let of_server = table.of_server(&LiveServer::of_postmaster(own));
        assert!(of_server.iter().any(|it| it.pid == child.id()));
    }
}
