//! Exact CPU totals of processes that start and end during a measurement.
//!
//! [`crate::ProcessTotals`] is for processes that exist throughout; here each reading adds new ones.
//! Identity, for each process: its usage is its last reading minus its first one, which is 0 for a
//! process that started during the measurement. Invariant: a process's usage after its last reading
//! is unknown, never guessed; [`CpuLog::ended`] is the number of such processes.

use crate::proc::cpu::ProcessCpu;
use crate::proc::live::LiveProcess;
use crate::proc::machine_processes::MachineProcesses;
use crate::proc::role::Role;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// All readings so far.
#[derive(Debug)]
pub struct CpuLog {
    began: Instant,
    readings: u32,
    last_reading: Instant,
    processes: Vec<LoggedProcess>,
    /// The latest process of each PID, since PIDs are reused.
    by_pid: BTreeMap<u32, usize>,
}

/// A process and its CPU time.
#[derive(Debug, Clone)]
pub struct LoggedProcess {
    /// Its PID.
    pub pid: u32,
    /// Its last known role.
    pub role: Role,
    /// Its usage from the start of the log, or its own, to its last reading.
    pub used: ProcessCpu,
    /// How long it existed during the log.
    pub present: Duration,
    first: ProcessCpu,
    since: Instant,
    seen: Instant,
}

/// The CPU time of all processes of one role.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoleCpu {
    /// The number of processes in the log.
    pub processes: u32,
    /// Their usage.
    pub used: ProcessCpu,
}

impl Default for CpuLog {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            readings: 0,
            last_reading: now,
            processes: Vec::new(),
            by_pid: BTreeMap::new(),
        }
    }
}

impl CpuLog {
    /// Reads these processes now.
    pub fn read(&mut self, processes: &[LiveProcess]) {
        self.add_reading(processes, |pid| ProcessCpu::read(pid).ok());
    }

    /// Adds these processes as a table has just read them.
    pub fn read_from(&mut self, table: &MachineProcesses, processes: &[LiveProcess]) {
        self.add_reading(processes, |pid| table.cpu(pid));
    }

    fn add_reading(
        &mut self,
        processes: &[LiveProcess],
        cpu_of: impl Fn(u32) -> Option<ProcessCpu>,
    ) {
        let now = Instant::now();
        if self.readings == 0 {
            self.began = now;
        }
        for process in processes {
            if let Some(cpu) = cpu_of(process.pid) {
                self.add(process, cpu, now);
            }
        }
        self.readings += 1;
        self.last_reading = now;
    }

    fn add(&mut self, process: &LiveProcess, cpu: ProcessCpu, now: Instant) {
        let known = self.by_pid.get(&process.pid).copied();
        let known = known.filter(|&at| self.processes[at].first.is_same_process(&cpu));
        let at = known.unwrap_or_else(|| {
            // A process that was not in the previous reading has started since.
            let (first, since) = match self.readings {
                0 => (cpu, now),
                _ => (cpu.at_its_beginning(), self.last_reading),
            };
            self.processes.push(LoggedProcess {
                pid: process.pid,
                role: process.role.clone(),
                used: ProcessCpu::default(),
                present: Duration::ZERO,
                first,
                since,
                seen: now,
            });
            let at = self.processes.len() - 1;
            self.by_pid.insert(process.pid, at);
            at
        });
        let logged = &mut self.processes[at];
        if process.role != Role::Unknown {
            logged.role = process.role.clone();
        }
        logged.used = cpu.since(&logged.first);
        logged.present = now - logged.since;
        logged.seen = now;
    }

    /// The time from the first to the last reading.
    pub fn window(&self) -> Duration {
        self.last_reading - self.began
    }

    /// All processes in the log.
    pub fn processes(&self) -> &[LoggedProcess] {
        &self.processes
    }

    /// Usage by role; parallel workers of all leaders are one role.
    pub fn by_role(&self) -> BTreeMap<Role, RoleCpu> {
        let mut roles: BTreeMap<Role, RoleCpu> = BTreeMap::new();
        for process in &self.processes {
            let role = match &process.role {
                Role::ParallelWorker { .. } => Role::ParallelWorker { leader_pid: None },
                role => role.clone(),
            };
            let cpu = roles.entry(role).or_default();
            cpu.processes += 1;
            cpu.used += process.used;
        }
        roles
    }

    /// The processes in the last reading.
    pub fn present(&self) -> impl Iterator<Item = &LoggedProcess> {
        let last_reading = self.last_reading;
        self.processes
            .iter()
            .filter(move |it| it.seen >= last_reading)
    }

    /// CPU time that the ended processes had used before the log.
    pub fn used_before_by_ended_ns(&self) -> u64 {
        let gone = self
            .processes
            .iter()
            .filter(|it| it.seen < self.last_reading);
        gone.map(|it| it.first.on_cpu_ns).sum()
    }

    /// CPU time that processes which ended used after their last reading, or without any. `used_ns` is what all that
    /// ended during the log have used in their lives.
    pub fn unread_of_ended_ns(&self, used_ns: u64) -> u64 {
        let gone = self
            .processes
            .iter()
            .filter(|it| it.seen < self.last_reading);
        let read_ns: u64 = gone.map(|it| it.used.on_cpu_ns).sum();
        used_ns.saturating_sub(self.used_before_by_ended_ns() + read_ns)
    }

    /// The number of processes that ended before the last reading.
    pub fn ended(&self) -> usize {
        let is_gone = |it: &&LoggedProcess| it.seen < self.last_reading;
        self.processes.iter().filter(is_gone).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn process(pid: u32, role: Role) -> LiveProcess {
        LiveProcess { pid, role }
    }

    #[test]
    fn only_cpu_time_during_the_log_is_counted() {
        let own = std::process::id();
        let mut log = CpuLog::default();
        log.read(&[process(own, Role::Unknown)]);
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let both = [
            process(own, Role::Backend),
            process(child.id(), Role::Logger),
        ];
        log.read(&both);
        child.kill().unwrap();
        child.wait().unwrap();
        log.read(&both);
        let [ours, childs] = log.processes() else {
            panic!("{log:?}")
        };
        assert_eq!(
            (ours.pid, &ours.role),
            (own, &Role::Backend),
            "a later role replaces an unknown one"
        );
        assert_eq!(ours.present, log.window());
        assert!(childs.used.on_cpu_ns > 0, "its startup took CPU time");
        assert!(childs.present >= Duration::from_millis(50) && childs.present < log.window());
        assert_eq!(log.ended(), 1);
        assert_eq!(
            log.used_before_by_ended_ns(),
            0,
            "it started during the log"
        );
        let read_ns = childs.used.on_cpu_ns;
        assert_eq!(log.unread_of_ended_ns(read_ns + 7), 7);
        assert_eq!(log.unread_of_ended_ns(0), 0);
    }
}
