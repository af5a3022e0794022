//! Exact CPU totals of processes and of the machine, which cost nothing and require no privilege.
//!
//! See `Documentation/scheduler/sched-stats.rst` in Linux for `schedstat`: nanoseconds on CPU,
//! nanoseconds in the run queue, and the number of time slices. The kernel updates them at every
//! switch and tick, so the totals of a running process can lag by a tick. Nothing here is sampled:
//! samples only allocate these totals.

use crate::proc::clocks::monotonic_ns;
use crate::proc::files::{ProcessStat, with_line};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::AddAssign;

/// Exact totals of one process since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessCpu {
    /// Time on CPU.
    pub on_cpu_ns: u64,
    /// Time in the run queue.
    pub run_queue_ns: u64,
    /// The number of time slices on a CPU.
    pub slices: u64,
    /// The user part of `on_cpu_ns`: an estimate in clock ticks, since the kernel splits the exact
    /// total by the mode in which ticks found the process.
    pub user_ns: u64,
    /// The system part, likewise.
    pub system_ns: u64,
    /// Ticks from boot to the process's start: distinguishes it from a later one with the same PID.
    started_ticks: u64,
}

impl ProcessCpu {
    /// Reads the totals of a process with all its threads.
    pub fn read(pid: u32) -> io::Result<Self> {
        Self::of(pid, &ProcessStat::read(pid)?)
    }

    /// The totals of a process whose `stat` has been read.
    pub(crate) fn of(pid: u32, stat: &ProcessStat) -> io::Result<Self> {
        let mut cpu = if stat.threads > 1 {
            Self::sum_of_threads(pid)?
        } else {
            read_schedstat(&format!("/proc/{pid}/schedstat"))?
        };
        let tick_ns = 1_000_000_000 / ticks_per_second();
        cpu.user_ns = stat.user_ticks * tick_ns;
        cpu.system_ns = stat.system_ticks * tick_ns;
        cpu.started_ticks = stat.started_ticks;
        Ok(cpu)
    }

    fn sum_of_threads(pid: u32) -> io::Result<Self> {
        let mut sum = Self::default();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let path = thread?.path().join("schedstat");
            // A thread can end after it is listed.
            if let Ok(thread) = read_schedstat(&path.to_string_lossy()) {
                sum.on_cpu_ns += thread.on_cpu_ns;
                sum.run_queue_ns += thread.run_queue_ns;
                sum.slices += thread.slices;
            }
        }
        Ok(sum)
    }

    /// Whether another reading is of the same process, not of a later one with the same PID.
    pub(crate) fn is_same_process(&self, other: &Self) -> bool {
        self.started_ticks == other.started_ticks
    }

    /// The totals of the same process at its start.
    pub(crate) fn at_its_beginning(&self) -> Self {
        Self {
            started_ticks: self.started_ticks,
            ..Self::default()
        }
    }

    #[cfg(test)]
    pub(crate) fn started_at(started_ticks: u64, on_cpu_ns: u64) -> Self {
        Self {
            on_cpu_ns,
            started_ticks,
            ..Self::default()
        }
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            on_cpu_ns: self.on_cpu_ns.saturating_sub(before.on_cpu_ns),
            run_queue_ns: self.run_queue_ns.saturating_sub(before.run_queue_ns),
            slices: self.slices.saturating_sub(before.slices),
            user_ns: self.user_ns.saturating_sub(before.user_ns),
            system_ns: self.system_ns.saturating_sub(before.system_ns),
            started_ticks: self.started_ticks,
        }
    }
}

/// A sum is not of one process, so it has no start.
impl AddAssign for ProcessCpu {
    fn add_assign(&mut self, other: Self) {
        self.on_cpu_ns += other.on_cpu_ns;
        self.run_queue_ns += other.run_queue_ns;
        self.slices += other.slices;
        self.user_ns += other.user_ns;
        self.system_ns += other.system_ns;
    }
}

/// One reading of the totals of several processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessTotals {
    /// The processes that could be read.
    pub by_pid: BTreeMap<u32, ProcessCpu>,
}

/// The CPU time used by several processes between two readings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuUse {
    /// The processes that existed at both.
    pub by_pid: BTreeMap<u32, ProcessCpu>,
    /// Processes that ended in between: their usage is unknown.
    pub ended_pids: Vec<u32>,
    /// Processes that existed only at the second reading, with their usage since their start.
    pub began: BTreeMap<u32, ProcessCpu>,
}

impl ProcessTotals {
    /// Reads these processes; omits those that have ended.
    pub fn read(pids: &[u32]) -> Self {
        let read = |&pid: &u32| ProcessCpu::read(pid).ok().map(|cpu| (pid, cpu));
        Self {
            by_pid: pids.iter().filter_map(read).collect(),
        }
    }

    /// The CPU time used since an earlier reading.
    pub fn since(&self, before: &Self) -> CpuUse {
        let mut used = CpuUse::default();
        for (&pid, now) in &self.by_pid {
            match before.by_pid.get(&pid) {
                Some(then) if then.started_ticks == now.started_ticks => {
                    used.by_pid.insert(pid, now.since(then));
                }
                _ => {
                    used.began.insert(pid, *now);
                }
            }
        }
        let is_gone = |pid: &&u32| !used.by_pid.contains_key(pid);
        used.ended_pids = before.by_pid.keys().filter(is_gone).copied().collect();
        used
    }
}

impl CpuUse {
    /// The sum over the processes that existed at both readings.
    pub fn total(&self) -> ProcessCpu {
        let mut total = ProcessCpu::default();
        for cpu in self.by_pid.values() {
            total += *cpu;
        }
        total
    }
}

/// CPU time of the whole machine since boot, summed over its CPUs. See `/proc/stat` in proc(5).
///
/// Its busy time is sampled by ticks, which find processes that run for some µs between short sleeps
/// too rarely: by a fifth with one client and one backend. Idle time and CPU steal are exact (in
/// clock ticks) if the tick stops on idle CPUs (`get_idle_time` in Linux's `fs/proc/stat.c`), so
/// busy time is computed as the remainder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MachineCpu {
    /// All time.
    pub total_ns: u64,
    /// Idle time.
    pub idle_ns: u64,
    /// Idle time with pending disk I/O.
    pub io_wait_ns: u64,
    /// CPU steal: the hypervisor ran another guest while this one was runnable.
    pub steal_ns: u64,
}

impl MachineCpu {
    /// Reads `/proc/stat`.
    pub fn read() -> io::Result<Self> {
        Self::read_as(Self::parse)
    }

    /// Reads `/proc/stat`, and sums only these CPUs.
    pub fn read_of(cpus: &[usize]) -> io::Result<Self> {
        Self::read_as(|text, tick_ns, now_ns| Self::parse_of(cpus, text, tick_ns, now_ns))
    }

    fn read_as(parse: impl FnOnce(&str, u64, u64) -> Option<Self>) -> io::Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        let now_ns = monotonic_ns();
        parse(&text, 1_000_000_000 / ticks_per_second(), now_ns).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "/proc/stat does not have the format of proc(5)",
            )
        })
    }

    fn parse(text: &str, tick_ns: u64, now_ns: u64) -> Option<Self> {
        let is_cpu = |line: &&str| {
            let number = line.strip_prefix("cpu");
            number.is_some_and(|it| it.starts_with(|c: char| c.is_ascii_digit()))
        };
        let cpus = text.lines().filter(is_cpu).count() as u64;
        Self::parse_line(text, "cpu", tick_ns, cpus * now_ns)
    }

    fn parse_of(cpus: &[usize], text: &str, tick_ns: u64, now_ns: u64) -> Option<Self> {
        let mut sum = Self::default();
        for cpu in cpus {
            let one = Self::parse_line(text, &format!("cpu{cpu}"), tick_ns, now_ns)?;
            sum.total_ns += one.total_ns;
            sum.idle_ns += one.idle_ns;
            sum.io_wait_ns += one.io_wait_ns;
            sum.steal_ns += one.steal_ns;
        }
        Some(sum)
    }

    fn parse_line(text: &str, name: &str, tick_ns: u64, total_ns: u64) -> Option<Self> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        let ticks: Vec<u64> = line
            .split_whitespace()
            .map_while(|n| n.parse().ok())
            .collect();
        let ns = |field: usize| ticks.get(field).map(|ticks| ticks * tick_ns);
        Some(Self {
            total_ns,
            idle_ns: ns(3)?,
            io_wait_ns: ns(4)?,
            steal_ns: ns(7)?,
        })
    }

    /// The differences from an earlier reading. Idle time can go backward on some machines and then
    /// counts as 0.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            total_ns: self.total_ns.saturating_sub(before.total_ns),
            idle_ns: self.idle_ns.saturating_sub(before.idle_ns),
            io_wait_ns: self.io_wait_ns.saturating_sub(before.io_wait_ns),
            steal_ns: self.steal_ns.saturating_sub(before.steal_ns),
        }
    }

    /// Busy time of the CPUs, for all programs on this machine.
    pub fn busy_ns(&self) -> u64 {
        let not_busy = self.idle_ns + self.io_wait_ns + self.steal_ns;
        self.total_ns.saturating_sub(not_busy)
    }
}

pub(crate) fn read_schedstat(path: &str) -> io::Result<ProcessCpu> {
    let cpu = with_line(path, |line| {
        std::str::from_utf8(line).ok().and_then(parse_schedstat)
    })?;
    cpu.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{path} is not three numbers"),
        )
    })
}

fn parse_schedstat(text: &str) -> Option<ProcessCpu> {
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    Some(ProcessCpu {
        on_cpu_ns: next()?,
        run_queue_ns: next()?,
        slices: next()?,
        ..ProcessCpu::default()
    })
}

/// `USER_HZ`, usually 100.
pub(crate) fn ticks_per_second() -> u64 {
    // SAFETY: sysconf only reads.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks)
        .ok()
        .filter(|&ticks| ticks > 0)
        .unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn schedstat_is_three_numbers() {
        let cpu = parse_schedstat("123 45 6\n").unwrap();
        assert_eq!((cpu.on_cpu_ns, cpu.run_queue_ns, cpu.slices), (123, 45, 6));
        assert_eq!(parse_schedstat("123 45"), None);
        assert_eq!(parse_schedstat("a b c"), None);
    }

    #[test]
    fn machine_totals_come_from_the_line_of_all_cpus() {
        let text = "cpu  10 1 5 100 2 3 4 6 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n\
                    cpu1 9 0 4 99 1 2 3 5 0 0\nbtime 1\n";
        let cpu = MachineCpu::parse(text, 10, 1_500).unwrap();
        assert_eq!(cpu.steal_ns, 60);
        assert_eq!(cpu.total_ns, 2 * 1_500);
        assert_eq!(cpu.busy_ns(), 2 * 1_500 - 10 * (100 + 2 + 6));
        assert_eq!(MachineCpu::parse("cpu 1 2 3\n", 10, 1), None);
    }

    #[test]
    fn totals_of_some_cpus_come_from_their_lines() {
        let text = "cpu  60 0 24 30 3 0 0 3\ncpu0 20 0 8 10 1 0 0 1\ncpu1 20 0 8 10 1 0 0 1\n\
                    cpu10 20 0 8 10 1 0 0 1\nintr 1\n";
        let machine = MachineCpu::parse_of(&[1, 10], text, 10, 400).unwrap();
        let (idle_ns, io_wait_ns, steal_ns) = (200, 20, 20);
        assert_eq!(
            machine,
            MachineCpu {
                total_ns: 800,
                idle_ns,
                io_wait_ns,
                steal_ns,
            }
        );
        assert_eq!(MachineCpu::parse_of(&[2], text, 10, 400), None);
    }

    #[test]
    fn a_difference_lists_ended_and_new_processes() {
        let cpu = |on_cpu_ns, started_ticks| ProcessCpu {
            on_cpu_ns,
            started_ticks,
            ..ProcessCpu::default()
        };
        let before = ProcessTotals {
            by_pid: BTreeMap::from([(1, cpu(10, 1)), (2, cpu(20, 1)), (3, cpu(30, 1))]),
        };
        let after = ProcessTotals {
            by_pid: BTreeMap::from([(1, cpu(15, 1)), (3, cpu(4, 99)), (4, cpu(7, 2))]),
        };
        let used = after.since(&before);
        assert_eq!(used.total().on_cpu_ns, 5);
        assert_eq!(used.ended_pids, [2, 3], "PID 3 was reused");
        assert_eq!(used.began.keys().copied().collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn a_busy_process_shows_in_the_totals() {
        // Not our own process: other tests' threads end in the meantime, and their time is lost.
        let busy =
            "read -r line; i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; echo; read -r line";
        let mut child = Command::new("sh")
            .args(["-c", busy])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let before = ProcessTotals::read(&[child.id(), u32::MAX]);
        let processes = before.by_pid.len();
        assert_eq!(processes, 1, "the largest number is not a PID");
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin).unwrap();
        let mut done = [0];
        child.stdout.take().unwrap().read_exact(&mut done).unwrap();
        let used = ProcessTotals::read(&[child.id()]).since(&before);
        drop(stdin);
        child.wait().unwrap();
        assert!(used.total().on_cpu_ns > 5_000_000, "{used:?}");
        assert!(used.total().slices > 0, "{used:?}");
        assert!(used.ended_pids.is_empty());
    }
}
