//! Where processes were while they were not on a CPU: plain data.
//!
//! Off-CPU time is observed in *slices*, short stretches in which every context switch is recorded;
//! between slices nothing is. Within its slices the account of a process is complete, and the slices
//! are a sample of the window's time: shares of slices are shares of the window, and exact totals of
//! the window are the kernel's (`CpuTotals`). Every interval is clipped to its slice.
//!
//! Identity, for each process and each sum of them, in nanoseconds:
//! `present = on_cpu + preempted + woken + Σ blocked + unseen`.
//!
//! Times are those of `CLOCK_MONOTONIC`, which are `std::time::Instant`'s.

use crate::conditions::Limit;
use crate::role::Role;
use crate::samples::Quality;
use std::time::Duration;

/// How to observe what is not on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffCpuConfig {
    /// The length of a slice.
    pub slice: Duration,
    /// From the beginning of a slice to that of the next, on average; the gaps vary at random by a
    /// quarter, lest slices keep step with what is observed.
    pub every: Duration,
    /// About so many switches of each CPU and slice also have their stacks copied, as many as the
    /// slice before lets expect; the others are known by the place of their stack pointer and
    /// instruction.
    pub stacks_per_slice: u32,
    /// No more intervals than this are kept one by one; those beyond are counted.
    pub intervals_max: usize,
}

impl Default for OffCpuConfig {
    fn default() -> Self {
        Self {
            // A fifteenth of the time, in slices so short that the shortest trials of studies have some.
            slice: Duration::from_millis(10),
            every: Duration::from_millis(150),
            stacks_per_slice: 20,
            intervals_max: 500_000,
        }
    }
}

/// Less of the blocked time than this may go unexplained without a word.
const SHARE_WORTH_SAYING: f64 = 0.02;

/// All that was observed between a start and a stop. Stacks are those of the same
/// [`crate::Samples`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OffCpu {
    /// When there was observing.
    pub slices: Vec<Slice>,
    /// Wake-ups were observed too. Without them the wait for a CPU that follows a wake-up is part
    /// of `Blocked::total_ns`, and `woken_ns` is nothing.
    pub wake_ups: bool,
    /// Every process of the watched servers that was there in a slice.
    pub processes: Vec<ProcessOffCpu>,
    /// Intervals off the CPU one by one, in order of their ends.
    pub intervals: Vec<OffCpuInterval>,
    /// Intervals beyond those.
    pub intervals_dropped: u64,
    /// Of `slices`, the first so many have all their intervals in `intervals`.
    pub whole_slices: usize,
    /// Switches and wake-ups that the kernel had no room to record.
    pub lost: u64,
    /// Stacks that the kernel had no room to copy: their places may stay unknown.
    pub stacks_lost: u64,
    /// How good the copied stacks are. They serve to name places, so their counts say nothing of
    /// time.
    pub quality: Quality,
    /// Slices that were thrown away, since something of them was lost.
    pub slices_dropped: u64,
    /// Blocked time whose stack pointer and instruction belong to several stacks; it is counted
    /// under the most frequent of them.
    pub ambiguous_ns: u64,
}

/// A stretch of observing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Its first nanosecond.
    pub start_ns: u64,
    /// The first one behind it.
    pub end_ns: u64,
}

/// The slices of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOffCpu {
    /// The process.
    pub pid: u32,
    /// The postmaster of its server.
    pub postmaster_pid: u32,
    /// What it is for.
    pub role: Role,
    /// How long it was there, within slices.
    pub present_ns: u64,
    /// On a CPU.
    pub on_cpu_ns: u64,
    /// Runnable, after another process was given its CPU.
    pub preempted_ns: u64,
    /// How often that happened.
    pub preempted: u64,
    /// Runnable, after it was woken.
    pub woken_ns: u64,
    /// Present, but nothing says in which state.
    pub unseen_ns: u64,
    /// Blocked, by where and why.
    pub blocked: Vec<Blocked>,
}

/// Blocked time of a process at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocked {
    /// Index into [`crate::Samples::stacks`]; nothing where no stack was copied at this place.
    pub stack: Option<u32>,
    /// `wait_event_info` as seen in the process's memory most often while it was here; 0 if it told
    /// none, nothing if nobody looked.
    pub wait: Option<u32>,
    /// How often.
    pub count: u64,
    /// How long in all, within slices.
    pub total_ns: u64,
}

/// One interval off the CPU, clipped to its slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffCpuInterval {
    /// The process.
    pub pid: u32,
    /// When it left the CPU, or the slice began.
    pub start_ns: u64,
    /// When it became runnable, or the slice ended; equal to `start_ns` unless it waited.
    pub woken_ns: u64,
    /// When it got a CPU again, or the slice ended.
    pub end_ns: u64,
    /// Why it was not on a CPU.
    pub cause: OffCpuCause,
    /// Where it was blocked; an index into [`crate::Samples::stacks`].
    pub stack: Option<u32>,
    /// `wait_event_info`, as in [`Blocked`].
    pub wait: Option<u32>,
}

/// Why a process was not on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffCpuCause {
    /// Another process was given its CPU.
    Preempted,
    /// It waited for something, and, once woken, for a CPU.
    Waits,
    /// Nothing says whether it was off the CPU at all.
    Unseen,
}

impl OffCpu {
    /// Time observed.
    pub fn observed_ns(&self) -> u64 {
        self.slices.iter().map(Slice::len_ns).sum()
    }

    /// What keeps this from being the whole truth, each with its remedy if there is one.
    pub fn limits(&self) -> Vec<Limit> {
        let limit = |condition, effect, remedy: Option<&str>| Limit {
            condition,
            effect,
            remedy: remedy.map(str::to_owned),
        };
        let mut limits = Vec::new();
        if self.slices_dropped > 0 {
            let effect = format!(
                "{} of {} slices of context switches are left out, since {} of their records were \
                 lost",
                self.slices_dropped,
                self.slices_dropped as usize + self.slices.len(),
                self.lost
            );
            limits.push(limit(
                "lost_slices",
                effect,
                Some("a larger ring, or shorter slices"),
            ));
        }
        if !self.wake_ups {
            let effect = "wake-ups were not seen, so that waiting for a CPU is part of what \
                          processes are blocked by"
                .to_owned();
            let remedy = "pgassay doctor names the command that permits it";
            limits.push(limit("wake_ups", effect, Some(remedy)));
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
                "may be of another stack than is said",
            ),
        ] {
            let share = part_ns as f64 / blocked_ns.max(1) as f64;
            if share > SHARE_WORTH_SAYING {
                let effect = format!("{:.1} % of the blocked time {what}", share * 100.0);
                limits.push(limit(condition, effect, None));
            }
        }
        if self.intervals_dropped > 0 {
            let effect = format!(
                "{} intervals off the CPU are counted, but not kept one by one",
                self.intervals_dropped
            );
            limits.push(limit("dropped_intervals", effect, None));
        }
        limits
    }

    /// The processes that are these backends, as [`crate::Samples::backends`].
    pub fn backends<'a>(&'a self, pids: &'a [u32]) -> impl Iterator<Item = &'a ProcessOffCpu> {
        let all = self.processes.iter();
        all.filter(|process| pids.contains(&process.pid))
    }
}

impl Slice {
    /// How long it is.
    pub fn len_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

impl ProcessOffCpu {
    /// Blocked at whatever place.
    pub fn blocked_ns(&self) -> u64 {
        self.blocked.iter().map(|it| it.total_ns).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_limits_the_slices_is_said() {
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
        assert_eq!(limits[2].effect, "10.0 % of the blocked time has no stack");
    }
}
