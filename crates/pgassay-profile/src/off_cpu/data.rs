//! Off-CPU time of processes: plain data.
//!
//! Off-CPU time is recorded in *slices*: short periods in which every context switch is recorded.
//! Within its slices the account of a process is complete, and the slices are a sample of the
//! window: shares of slices estimate shares of the window, whose exact totals come from the kernel
//! (`CpuTotals`). Every interval is clipped to its slice.
//!
//! Identity, for each process and each sum of them, in nanoseconds:
//! `present = on_cpu + preempted + woken + Σ blocked + unseen`.
//!
//! All times are on `CLOCK_MONOTONIC`, as `std::time::Instant`.

use crate::machine::conditions::Limit;
use crate::proc::role::Role;
use crate::unwind::quality::SampleQuality;
use std::time::Duration;

/// How to record off-CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffCpuConfig {
    /// The length of a slice.
    pub slice: Duration,
    /// Average time from the start of one slice to the start of the next. The gaps vary randomly by
    /// a quarter, so that slices do not synchronize with the load.
    pub every: Duration,
    /// Approximate number of switches per CPU and slice whose stacks are copied, estimated from the
    /// previous slice; other switches are identified by stack pointer and instruction.
    pub stacks_per_slice: u32,
    /// Maximum number of individual intervals; intervals beyond it are only counted. 0 if none are required.
    pub intervals_max: usize,
}

impl Default for OffCpuConfig {
    fn default() -> Self {
        Self {
            // A fifteenth of the time, in slices short enough for the shortest trials of studies.
            slice: Duration::from_millis(10),
            every: Duration::from_millis(150),
            stacks_per_slice: 20,
            intervals_max: 500_000,
        }
    }
}

/// A limitation that affects less of the blocked time than this is not reported.
const REPORTED_SHARE_MIN: f64 = 0.02;

/// The off-CPU time of one window. Stacks are those of the same [`crate::Samples`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OffCpu {
    /// The recorded slices.
    pub slices: Vec<Slice>,
    /// Wake-ups were recorded too. Without them, the run-queue wait after a wake-up is included in
    /// `Blocked::total_ns`, and `woken_ns` is 0.
    pub wake_ups: bool,
    /// Every process of the profiled servers that existed in a slice.
    pub processes: Vec<ProcessOffCpu>,
    /// Individual off-CPU intervals, ordered by their ends.
    pub intervals: Vec<OffCpuInterval>,
    /// The number of intervals beyond those.
    pub intervals_dropped: u64,
    /// The number of leading `slices` whose intervals are all in `intervals`.
    pub whole_slices: usize,
    /// Switches and wake-ups that the kernel lost.
    pub lost: u64,
    /// Stacks that the kernel lost: the stacks of their call sites may be unknown.
    pub stacks_lost: u64,
    /// The quality of the copied stacks. They identify call sites; their counts do not represent
    /// time.
    pub quality: SampleQuality,
    /// Slices dropped because some of their records were lost.
    pub slices_dropped: u64,
    /// Blocked time at stack pointers and instructions with several stacks; attributed to the most
    /// frequent one.
    pub ambiguous_ns: u64,
}

/// A period in which every context switch is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Its start.
    pub start_ns: u64,
    /// Its end, exclusive.
    pub end_ns: u64,
}

/// The slices of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOffCpu {
    /// The process.
    pub pid: u32,
    /// The postmaster of its server.
    pub postmaster_pid: u32,
    /// Its role.
    pub role: Role,
    /// How long it existed, within slices.
    pub present_ns: u64,
    /// On CPU.
    pub on_cpu_ns: u64,
    /// Runnable after being preempted.
    pub preempted_ns: u64,
    /// The number of preemptions.
    pub preempted: u64,
    /// Runnable after a wake-up.
    pub woken_ns: u64,
    /// Present in an unknown state.
    pub unseen_ns: u64,
    /// Blocked, by call site and wait event.
    pub blocked: Vec<Blocked>,
}

/// Blocked time of a process at one call site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocked {
    /// Index into [`crate::Samples::stacks`]; `None` if no stack was copied at this call site.
    pub stack: Option<u32>,
    /// The `wait_event_info` most often sampled at this call site; 0 if the process reported no
    /// wait, `None` if none was sampled.
    pub wait: Option<u32>,
    /// The number of waits.
    pub count: u64,
    /// Their total time, within slices.
    pub total_ns: u64,
}

/// One off-CPU interval, clipped to its slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffCpuInterval {
    /// The process.
    pub pid: u32,
    /// When it left the CPU, or the slice began.
    pub start_ns: u64,
    /// When it became runnable, or the slice ended; equal to `start_ns` unless it was blocked.
    pub woken_ns: u64,
    /// When it got a CPU again, or the slice ended.
    pub end_ns: u64,
    /// Why it was off CPU.
    pub cause: OffCpuCause,
    /// Its stack while blocked: an index into [`crate::Samples::stacks`].
    pub stack: Option<u32>,
    /// `wait_event_info`, as in [`Blocked`].
    pub wait: Option<u32>,
}

/// Why a process was off CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffCpuCause {
    /// It was preempted.
    Preempted,
    /// It was blocked and, after its wake-up, in the run queue.
    Waits,
    /// Unknown; it may have been on CPU.
    Unseen,
}

impl OffCpu {
    /// The total length of all slices.
    pub fn observed_ns(&self) -> u64 {
        self.slices.iter().map(Slice::len_ns).sum()
    }

    /// The limitations of these data, each with a fix if there is one.
    pub fn limits(&self) -> Vec<Limit> {
        let limit = |condition, effect, fix: Option<&str>| Limit {
            condition,
            effect,
            fix: fix.map(str::to_owned),
        };
        let mut limits = Vec::new();
        if self.slices_dropped > 0 {
            let effect = format!(
                "{} of {} context-switch slices are dropped because {} of their records were lost",
                self.slices_dropped,
                self.slices_dropped as usize + self.slices.len(),
                self.lost
            );
            limits.push(limit(
                "lost_slices",
                effect,
                Some("use a larger ring buffer or shorter slices"),
            ));
        }
        if !self.wake_ups {
            let effect =
                "wake-ups were not recorded, so blocked time includes run-queue wait".to_owned();
            let fix = "run pgassay doctor to show the command that permits it";
            limits.push(limit("wake_ups", effect, Some(fix)));
        }
        let blocked_ns: u64 = self.processes.iter().map(ProcessOffCpu::blocked_ns).sum();
        let nowhere = |it: &&Blocked| it.stack.is_none();
        let rows = self.processes.iter().flat_map(|it| &it.blocked);
        let unknown_ns: u64 = rows.filter(nowhere).map(|it| it.total_ns).sum();
        for (condition, part_ns, what) in [
            ("unknown_places", unknown_ns, "has no stack"),
            (
                "ambiguous_places",
                self.ambiguous_ns,
                "may belong to another stack than shown",
            ),
        ] {
            let share = part_ns as f64 / blocked_ns.max(1) as f64;
            if share > REPORTED_SHARE_MIN {
                let effect = format!("{:.1}% of the blocked time {what}", share * 100.0);
                limits.push(limit(condition, effect, None));
            }
        }
        if self.intervals_dropped > 0 {
            let effect = format!(
                "{} off-CPU intervals are counted but not kept individually",
                self.intervals_dropped
            );
            limits.push(limit("dropped_intervals", effect, None));
        }
        limits
    }

    /// The processes of these backends, as [`crate::Samples::backends`].
    pub fn backends<'a>(&'a self, pids: &'a [u32]) -> impl Iterator<Item = &'a ProcessOffCpu> {
        let all = self.processes.iter();
        all.filter(|process| pids.contains(&process.pid))
    }
}

impl Slice {
    /// Its length.
    pub fn len_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

impl ProcessOffCpu {
    /// Total blocked time.
    pub fn blocked_ns(&self) -> u64 {
        self.blocked.iter().map(|it| it.total_ns).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_limitations_are_listed() {
        let blocked = |stack, total_ns| Blocked {
            stack,
            wait: None,
            count: 1,
            total_ns,
        };
        let mut off_cpu = OffCpu {
            wake_ups: true,
            processes: vec![ProcessOffCpu {
                pid: 1,
                postmaster_pid: 1,
                role: Role::Backend,
                present_ns: 1000,
                on_cpu_ns: 0,
                preempted_ns: 0,
                preempted: 0,
                woken_ns: 0,
                unseen_ns: 0,
                blocked: vec![blocked(Some(1), 990), blocked(None, 10)],
            }],
            ..OffCpu::default()
        };
        assert_eq!(off_cpu.limits(), []);
        off_cpu.processes[0].blocked[1].total_ns = 110;
        off_cpu.slices_dropped = 2;
        off_cpu.wake_ups = false;
        let limits = off_cpu.limits();
        let conditions: Vec<_> = limits.iter().map(|it| it.condition).collect();
        assert_eq!(conditions, ["lost_slices", "wake_ups", "unknown_places"]);
        assert_eq!(limits[2].effect, "10.0% of the blocked time has no stack");
    }
}
