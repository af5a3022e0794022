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

/// Processes that are kept singly: 0.3 MB. With more, those that have ended are added up by role.
const KEPT_MAX: usize = 1024;

/// All readings so far.
#[derive(Debug)]
pub struct CpuLog {
    began: Instant,
    readings: u32,
    last_reading: Instant,
    processes: Vec<LoggedProcess>,
    /// With more processes than this, those that have ended are added up.
    kept_max: usize,
    /// The latest process of each PID, since PIDs are reused.
    by_pid: BTreeMap<u32, usize>,
}

/// A process and its CPU time, or several of the same role that have ended.
#[derive(Debug, Clone)]
pub struct LoggedProcess {
    /// Its PID; `None` for several.
    pub pid: Option<u32>,
    /// How many they are.
    pub processes: u32,
    /// Its last known role.
    pub role: Role,
    /// Its usage from the start of the log, or its own, to its last reading.
    pub used: ProcessCpu,
    /// How long it existed during the log.
    pub present: Duration,
    /// Its usage before the log.
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
            kept_max: KEPT_MAX,
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
        if self.processes.len() > self.kept_max {
            self.add_up_ended(cpu_of);
        }
    }

    fn add_up_ended(&mut self, cpu_of: impl Fn(u32) -> Option<ProcessCpu>) {
        let now = self.last_reading;
        let is_there = |it: &LoggedProcess| {
            let cpu = it.pid.and_then(&cpu_of);
            it.seen >= now || cpu.is_some_and(|cpu| it.first.is_same_process(&cpu))
        };
        let all = std::mem::take(&mut self.processes);
        let (mut kept, ended): (Vec<_>, Vec<_>) = all.into_iter().partition(is_there);
        self.kept_max = KEPT_MAX.max(2 * kept.len());
        let mut sums: BTreeMap<Role, LoggedProcess> = BTreeMap::new();
        for process in ended {
            if let Some(sum) = sums.get_mut(&process.role) {
                sum.add(&process);
            } else {
                let role = process.role.clone();
                sums.insert(
                    role,
                    LoggedProcess {
                        pid: None,
                        ..process
                    },
                );
            }
        }
        kept.extend(sums.into_values());
        let numbered = kept.iter().enumerate();
        self.by_pid = numbered
            .filter_map(|(at, it)| Some((it.pid?, at)))
            .collect();
        self.processes = kept;
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
                pid: Some(process.pid),
                processes: 1,
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
            cpu.processes += process.processes;
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
        let gone = self.processes.iter().filter(is_gone);
        gone.map(|it| it.processes as usize).sum()
    }
}

impl LoggedProcess {
    fn add(&mut self, other: &Self) {
        self.processes += other.processes;
        self.used += other.used;
        self.present += other.present;
        self.first += other.first;
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
            (Some(own), &Role::Backend),
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
    /// Regression: with a connection per transaction, each process took 250 bytes, and each reading searched all.
    #[test]
    fn processes_without_end_do_not_fill_memory_and_all_count() {
        let own = std::process::id();
        let mut log = CpuLog::default();
        let table = |now: u32| {
            move |pid: u32| {
                let cpu = ProcessCpu::started_at(u64::from(pid), u64::from(pid) * 10);
                (pid == own || pid / 3 == now).then_some(cpu)
            }
        };
        log.add_reading(&[process(own, Role::Checkpointer)], table(0));
        let turns = KEPT_MAX as u32;
        let first = 10_000_000;
        for turn in 0..turns {
            let pids = (0..3).map(|n| (first + turn) * 3 + n);
            let mut all: Vec<_> = pids.map(|pid| process(pid, Role::Backend)).collect();
            all.push(process(own, Role::Checkpointer));
            log.add_reading(&all, table(first + turn));
            assert!(log.processes().len() <= KEPT_MAX + 4);
        }
        assert_eq!(log.ended(), 3 * (turns as usize - 1));
        assert_eq!(log.present().count(), 4);
        let roles = log.by_role();
        assert_eq!(roles[&Role::Backend].processes, 3 * turns);
        let pids = first * 3..(first + turns) * 3;
        let used_ns: u64 = pids.map(|pid| u64::from(pid) * 10).sum();
        assert_eq!(roles[&Role::Backend].used.on_cpu_ns, used_ns);
        assert_eq!(log.used_before_by_ended_ns(), 0);
        // One that is not listed, but still there, is not counted again when it is.
        log.add_reading(&[], table(first + turns - 1));
        log.kept_max = 0;
        log.add_reading(&[], table(first + turns - 1));
        let last = [process((first + turns) * 3 - 1, Role::Backend)];
        log.add_reading(&last, table(first + turns - 1));
        assert_eq!(log.by_role()[&Role::Backend], roles[&Role::Backend]);
    }
}
