//! Exact CPU totals of the server's processes and of the machine, read around each trial.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use pgassay_model::cpu::{Background, CpuTotals};
use pgassay_model::trial::CrossCheckReadings;
use pgassay_profile::{
    CpuLog, LiveServer, MachineCpu, MachineProcesses, ProcessTotals, ProcessTreeCpu,
    ProcessTreesCpu, Role, own_cpu_ns, process_cpu_ns,
};

/// CPU totals at one point in time.
pub struct TotalsReading {
    backends: ProcessTotals,
    /// All processes of the machine, to separate other programs from pgassay and its servers.
    trees: ProcessTreesCpu,
    /// The server's processes by role.
    roles: CpuLog,
    /// Totals of server processes that have exited.
    ended: Option<ProcessTreeCpu>,
    machine: MachineCpu,
    /// The backends' CPU clocks, if readable.
    clocks: BTreeMap<u32, u64>,
    /// CPU time of pgassay itself, by its clock.
    own_ns: u64,
}

/// Two clock ticks, the unit in which the kernel reports the time of exited processes.
const ENDED_NS_MIN: u64 = 20_000_000;

/// CPU time between two readings. Shares are of the machine's CPU time.
#[derive(Debug, Clone)]
pub struct Passed {
    /// The backends' totals, if readable.
    pub server: Option<CpuTotals>,
    /// Share of CPU steal.
    pub steal: f64,
    /// Share of other programs.
    pub other_programs: f64,
    /// Share that was busy but cannot be attributed to a process.
    pub unaccounted: f64,
    /// Share that was busy.
    pub busy: f64,
    /// Share that was idle.
    pub idle: f64,
    /// Totals of the server's background processes.
    pub background: Vec<Background>,
    /// Independent readings for consistency checks.
    pub second: CrossCheckReadings,
}

impl TotalsReading {
    /// Reads the totals now. Skips a backend that has exited; the load engine reports why.
    pub fn take(
        server: Option<&LiveServer>,
        backend_pids: &[u32],
        server_pids: &[u32],
    ) -> Result<Self> {
        let mut roles = CpuLog::default();
        let table = machine_processes()?;
        add_roles(&mut roles, server, &table);
        Ok(Self {
            backends: table.totals(backend_pids),
            trees: trees(&table, server_pids),
            roles,
            ended: ended(server),
            machine: machine()?,
            clocks: clocks(backend_pids),
            own_ns: own_cpu_ns(),
        })
    }

    /// Reads the totals again and returns the difference.
    pub fn passed(
        mut self,
        server: Option<&LiveServer>,
        backend_pids: &[u32],
        server_pids: &[u32],
    ) -> Result<Passed> {
        let own_ns = own_cpu_ns();
        let table = machine_processes()?;
        let machine = machine()?;
        let read_ns = own_cpu_ns().saturating_sub(own_ns);
        let trees = trees(&table, server_pids);
        add_roles(&mut self.roles, server, &table);
        let ended_ns = ended(server).zip(self.ended).map_or(0, |(after, before)| {
            let used_ns = after.since_ns(before);
            used_ns.saturating_sub(self.roles.used_before_by_ended_ns())
        });
        let backends = table.totals(backend_pids).since(&self.backends);
        let total = backends.total();
        let ours_ns = trees.ours.since_ns(self.trees.ours);
        let others_ns = trees.others.since_ns(self.trees.others);
        let machine = machine.since(&self.machine);
        let others_ns = possible_others_ns(others_ns, ours_ns, &machine);
        let capacity_ns = machine.total_ns.max(1) as f64;
        Ok(Passed {
            server: (!backend_pids.is_empty()).then(|| CpuTotals {
                on_cpu_us: total.on_cpu_ns as f64 / 1e3,
                run_queue_us: total.run_queue_ns as f64 / 1e3,
                processes: backends.by_pid.len() as u32,
            }),
            steal: machine.steal_ns as f64 / capacity_ns,
            other_programs: others_ns as f64 / capacity_ns,
            unaccounted: (machine.busy_ns() as f64 - (ours_ns + others_ns) as f64) / capacity_ns,
            busy: machine.busy_ns() as f64 / capacity_ns,
            idle: (machine.idle_ns + machine.io_wait_ns) as f64 / capacity_ns,
            background: background(&self.roles, ended_ns),
            second: CrossCheckReadings {
                backends_clock_us: clocks_us(&self.clocks, &clocks(backend_pids)),
                client_process_us: Some(own_ns.saturating_sub(self.own_ns) as f64 / 1e3),
                reading_us: read_ns as f64 / 1e3,
                machine_us: Some(machine.total_ns as f64 / 1e3),
                run_us: None,
            },
        })
    }
}

/// CPU time of other programs, at most what the machine was busy. A process that ended while the first table was read
/// may be in none of its rows; all that it used since it started is then in its parent's row of the second one.
fn possible_others_ns(others_ns: u64, ours_ns: u64, machine: &MachineCpu) -> u64 {
    // The kernel counts busy time in ticks, so a little more is no contradiction.
    let is_possible = ours_ns + others_ns <= machine.busy_ns() + machine.total_ns / 20;
    let busy_ns = machine.busy_ns().saturating_sub(ours_ns);
    if is_possible {
        others_ns
    } else {
        busy_ns.min(others_ns)
    }
}

fn machine_processes() -> Result<MachineProcesses> {
    MachineProcesses::read().context("cannot list the processes")
}

fn machine() -> Result<MachineCpu> {
    MachineCpu::read().context("cannot read /proc/stat")
}

/// CPU time of pgassay and its servers, and of other programs.
fn trees(table: &MachineProcesses, server_pids: &[u32]) -> ProcessTreesCpu {
    let own_pid = [std::process::id()];
    let ours: Vec<u32> = server_pids.iter().chain(&own_pid).copied().collect();
    table.trees(&ours)
}

fn add_roles(roles: &mut CpuLog, server: Option<&LiveServer>, table: &MachineProcesses) {
    let processes = server.map(|it| table.of_server(it)).unwrap_or_default();
    roles.read_from(table, &processes);
}

fn clocks(pids: &[u32]) -> BTreeMap<u32, u64> {
    let read = |&pid: &u32| Some((pid, process_cpu_ns(pid)?));
    pids.iter().filter_map(read).collect()
}

/// CPU time of all processes between two readings; `None` if there are no readings.
fn clocks_us(before: &BTreeMap<u32, u64>, after: &BTreeMap<u32, u64>) -> Option<f64> {
    let used_ns = |(pid, ns): (&u32, &u64)| Some(ns.saturating_sub(*before.get(pid)?) as f64);
    let used_ns: Vec<f64> = after.iter().filter_map(used_ns).collect();
    (!used_ns.is_empty()).then(|| used_ns.iter().sum::<f64>() / 1e3)
}

fn ended(server: Option<&LiveServer>) -> Option<ProcessTreeCpu> {
    ProcessTreeCpu::of_ended_children(server?.postmaster_pid).ok()
}

/// CPU totals of background processes. Other clients' backends are excluded. For exited processes,
/// mostly parallel and autovacuum workers, only the sum is known.
fn background(roles: &CpuLog, ended_ns: u64) -> Vec<Background> {
    let by_role = roles.by_role().into_iter();
    let mut all: Vec<Background> = by_role
        .filter(|(role, _)| !matches!(role, Role::Backend))
        .map(|(role, cpu)| Background {
            role: role.to_string(),
            cpu: CpuTotals {
                on_cpu_us: cpu.used.on_cpu_ns as f64 / 1e3,
                run_queue_us: cpu.used.run_queue_ns as f64 / 1e3,
                processes: cpu.processes,
            },
        })
        .collect();
    if ended_ns >= ENDED_NS_MIN {
        all.push(Background {
            role: "ended processes".to_owned(),
            cpu: CpuTotals {
                on_cpu_us: ended_ns as f64 / 1e3,
                ..CpuTotals::default()
            },
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: "other programs used about 117% of the machine's CPU time". Single trials had 935%.
    #[test]
    fn other_programs_use_no_more_than_the_machine() {
        let machine = MachineCpu {
            total_ns: 2_000,
            idle_ns: 500,
            ..MachineCpu::default()
        };
        for (others_ns, expected_ns) in [(0, 0), (480, 480), (1_050, 1_050), (18_700, 1_000)] {
            assert_eq!(possible_others_ns(others_ns, 500, &machine), expected_ns);
        }
        assert_eq!(possible_others_ns(900, 1_600, &machine), 0);
    }
}
