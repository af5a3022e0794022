//! Exact CPU totals of processes that come and go while they are watched.
//!
//! [`crate::CpuTotals`] suits processes that stay; here each reading adds what it finds. Identity,
//! for each process: what it used is its last reading less what it had used before its first,
//! which is nothing for a process that began while the log was kept. Invariant: what a process used
//! after its last reading is unknown, never guessed; [`CpuLog::ended`] says how many there are.

use crate::cpu::ProcessCpu;
use crate::live::LiveProcess;
use crate::role::Role;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What was read so far.
#[derive(Debug)]
pub struct CpuLog {
    began: Instant,
    readings: u32,
    last_reading: Instant,
    processes: Vec<LoggedProcess>,
    /// The latest process of each number, since numbers are given anew.
    by_pid: BTreeMap<u32, usize>,
}

/// A process and what it used.
#[derive(Debug, Clone)]
pub struct LoggedProcess {
    /// Its number.
    pub pid: u32,
    /// What it is for, as last known.
    pub role: Role,
    /// What it used from the log's beginning, or its own, to its last reading.
    pub used: ProcessCpu,
    /// How long it was seen.
    pub present: Duration,
    first: ProcessCpu,
    since: Instant,
    seen: Instant,
}

/// What the processes of one role used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoleCpu {
    /// How many there were, at one time or another.
    pub processes: u32,
    /// What they used.
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
        let now = Instant::now();
        if self.readings == 0 {
            self.began = now;
        }
        for process in processes {
            if let Ok(cpu) = ProcessCpu::read(process.pid) {
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
            // One that was not there at the reading before has begun since.
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

    /// From the first reading to the last.
    pub fn window(&self) -> Duration {
        self.last_reading - self.began
    }

    /// All processes that were met.
    pub fn processes(&self) -> &[LoggedProcess] {
        &self.processes
    }

    /// What all processes of each role used, parallel workers taken together whoever led them.
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

    /// Those that were there at the last reading.
    pub fn present(&self) -> impl Iterator<Item = &LoggedProcess> {
        let last_reading = self.last_reading;
        self.processes
            .iter()
            .filter(move |it| it.seen >= last_reading)
    }

    /// What those that were gone before the last reading had used when the log began to watch them.
    pub fn used_before_by_ended_ns(&self) -> u64 {
        let gone = self
            .processes
            .iter()
            .filter(|it| it.seen < self.last_reading);
        gone.map(|it| it.first.on_cpu_ns).sum()
    }

    /// How many of them were gone before the last reading.
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
    fn what_a_process_used_before_is_not_counted_and_what_a_new_one_used_is() {
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
            "a role learnt later holds"
        );
        assert_eq!(ours.present, log.window());
        assert!(childs.used.on_cpu_ns > 0, "its start took some time");
        assert!(childs.present >= Duration::from_millis(50) && childs.present < log.window());
        assert_eq!(log.ended(), 1);
        assert_eq!(log.used_before_by_ended_ns(), 0, "it began meanwhile");
    }
}
