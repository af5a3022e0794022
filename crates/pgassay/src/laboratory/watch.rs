//! Exact CPU totals of the server's processes and of the machine, read around each trial.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result};
use pgassay_core::observation::Background;
use pgassay_core::plan::Plan;
use pgassay_core::profile::{Frame, Profile, ProfileBuilder, Quality};
use pgassay_core::subsystem::wait_event;
use pgassay_core::trial::{CpuTotals, CrossCheckReadings};
use pgassay_profile::{
    Blocked, CpuLog, LiveServer, MachineCpu, OffCpu, ProcessOffCpu, ProcessTotals, ProcessTreeCpu,
    ProcessTreesCpu, Role, Samples, Selection, Span, own_cpu_ns, process_cpu_ns,
};

use super::transactions::TransactionAccount;

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
        roles.read(&server.map(LiveServer::processes).unwrap_or_default());
        let (backends, trees, machine) = totals(backend_pids, server_pids)?;
        Ok(Self {
            backends,
            trees,
            roles,
            ended: ended(server),
            machine,
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
        let (backends, trees, machine) = totals(backend_pids, server_pids)?;
        let read_ns = own_cpu_ns().saturating_sub(own_ns);
        self.roles
            .read(&server.map(LiveServer::processes).unwrap_or_default());
        let ended_ns = ended(server).zip(self.ended).map_or(0, |(after, before)| {
            let used_ns = after.since_ns(before);
            used_ns.saturating_sub(self.roles.used_before_by_ended_ns())
        });
        let backends = backends.since(&self.backends);
        let total = backends.total();
        let ours_ns = trees.ours.since_ns(self.trees.ours);
        let others_ns = trees.others.since_ns(self.trees.others);
        let machine = machine.since(&self.machine);
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

fn totals(
    backend_pids: &[u32],
    server_pids: &[u32],
) -> Result<(ProcessTotals, ProcessTreesCpu, MachineCpu)> {
    let own_pid = [std::process::id()];
    let ours: Vec<u32> = server_pids.iter().chain(&own_pid).copied().collect();
    Ok((
        ProcessTotals::read(backend_pids),
        ProcessTreesCpu::read(&ours).context("cannot list the processes")?,
        MachineCpu::read().context("cannot read /proc/stat")?,
    ))
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

/// The samples of one profiled trial.
pub struct ProfiledTrial<'a> {
    pub samples: &'a Samples,
    /// The trial's backends.
    pub backend_pids: &'a [u32],
    /// Major version of their server.
    pub major: &'a str,
    /// The trial's window, in nanoseconds of `CLOCK_MONOTONIC`; `None` for everything observed.
    pub window: Option<Range<u64>>,
}

impl<'a> ProfiledTrial<'a> {
    /// Where backends were blocked within the window. Outside it, backends only wait for their
    /// client.
    fn blocked(&self, off_cpu: &OffCpu) -> Vec<Blocked> {
        let Some(window) = &self.window else {
            let processes = off_cpu.backends(self.backend_pids);
            return processes.flat_map(|it| &it.blocked).copied().collect();
        };
        let span = |&pid: &u32| Span {
            pid,
            start_ns: window.start,
            end_ns: window.end,
        };
        off_cpu.within(self.backend_pids.iter().map(span)).blocked
    }

    /// A stack, outermost frame first.
    fn frames(&self, stack: Option<u32>) -> impl Iterator<Item = Frame> + use<'a> {
        let samples = self.samples;
        let stack = stack.map(|at| &samples.stacks[at as usize][..]);
        let frames = stack.unwrap_or_default().iter();
        frames.map(|&at| frame(&samples.frames[at as usize]))
    }

    /// Where a process was blocked: its stack, outermost frame first, and the wait event.
    fn place(
        &self,
        blocked: &Blocked,
    ) -> (
        impl Iterator<Item = Frame> + use<'a>,
        (&'static str, &'static str),
    ) {
        let wait = blocked.wait.and_then(|info| wait_event(self.major, info));
        (
            self.frames(blocked.stack),
            wait.map_or(("", ""), |wait| (wait.kind, wait.name)),
        )
    }
}

/// The profiles of all points, filled trial by trial.
pub struct Profiles {
    builders: Vec<ProfileBuilder>,
    variants: usize,
}

impl Profiles {
    /// One empty profile per point.
    pub fn new(plan: &Plan) -> Self {
        let blocks = plan.schedule.blocks as usize;
        let builders = plan
            .points
            .iter()
            .map(|_| ProfileBuilder::new(blocks))
            .collect();
        Self {
            builders,
            variants: plan.variants.len(),
        }
    }

    /// Adds one profiled trial's samples of its backends.
    pub fn add(
        &mut self,
        condition: usize,
        variant: usize,
        block: u32,
        watched: &ProfiledTrial<'_>,
    ) {
        let builder = &mut self.builders[condition * self.variants + variant];
        let samples = watched.samples;
        let selection = samples.backends(watched.backend_pids);
        add_samples(builder, block as usize, samples, &selection);
        builder.add_quality(&Quality {
            sampled_ns: selection.quality.sampled_ns,
            ..Quality::default()
        });
        add_blocked(builder, block as usize, watched);
    }

    /// Adds what a profiled trial's backends did within its transactions.
    pub fn add_transactions(
        &mut self,
        condition: usize,
        variant: usize,
        watched: &ProfiledTrial<'_>,
        account: &TransactionAccount,
    ) {
        let builder = &mut self.builders[condition * self.variants + variant];
        builder.add_transactions(&account.transactions);
        let in_all = account
            .blocked_in_all
            .iter()
            .map(|it| (it, (it.total_ns, 0)));
        let in_tail = account
            .blocked_in_tail
            .iter()
            .map(|it| (it, (0, it.total_ns)));
        for (blocked, within_ns) in in_all.chain(in_tail) {
            let (stack, wait) = watched.place(blocked);
            builder.add_blocked_in_transactions(stack, wait, within_ns);
        }
        for (&stack, &in_all) in &account.samples_in_all {
            let in_tail = account.samples_in_tail.get(&stack).copied();
            let frames = watched.frames(Some(stack));
            builder.add_in_transactions(frames, (in_all, in_tail.unwrap_or(0)));
        }
    }

    /// The profiles, in the plan's order of points.
    pub fn finish(self) -> Vec<Profile> {
        self.builders
            .into_iter()
            .map(ProfileBuilder::finish)
            .collect()
    }
}

/// Adds the samples of some processes to a block of a profile.
pub fn add_samples(
    builder: &mut ProfileBuilder,
    block: usize,
    samples: &Samples,
    selection: &Selection<'_>,
) {
    for (stack, count) in selection.stacks() {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        builder.add(block, stack.map(frame), count);
    }
    builder.add_quality(&Quality {
        samples: selection.quality.total,
        user_samples: selection.quality.with_user,
        unwound_to_entry: selection.quality.reached_entry,
        truncated: selection.quality.truncated,
        lost: samples.lost,
        unknown_leaf: selection.quality.leaf_unknown,
        ..Quality::default()
    });
}

/// Adds where the backends were blocked, if context switches were traced.
pub fn add_blocked(builder: &mut ProfileBuilder, block: usize, watched: &ProfiledTrial<'_>) {
    let samples = watched.samples;
    let Some(off_cpu) = &samples.off_cpu else {
        return;
    };
    for process in off_cpu.backends(watched.backend_pids) {
        builder.add_quality(&Quality {
            observed_ns: process.present_ns,
            unknown_state_ns: process.unseen_ns,
            ..switched(off_cpu, process)
        });
    }
    for blocked in watched.blocked(off_cpu) {
        let (stack, wait) = watched.place(&blocked);
        builder.add_blocked(block, stack, wait, blocked.total_ns);
    }
}

/// CPU and run-queue time according to context switches. Without wake-up events, waiting for a CPU
/// cannot be distinguished from being blocked.
fn switched(off_cpu: &OffCpu, process: &ProcessOffCpu) -> Quality {
    if !off_cpu.wake_ups {
        return Quality::default();
    }
    Quality {
        switched_cpu_ns: process.on_cpu_ns,
        switched_run_queue_ns: process.preempted_ns + process.woken_ns,
        ..Quality::default()
    }
}

fn frame(frame: &pgassay_profile::StackFrame) -> Frame {
    Frame {
        symbol: frame.name().map(str::to_owned),
        object: frame.object.to_string(),
        // A named function is one row, regardless of its address.
        offset: if frame.symbol.is_some() {
            0
        } else {
            frame.offset
        },
        kernel: frame.kernel,
    }
}
