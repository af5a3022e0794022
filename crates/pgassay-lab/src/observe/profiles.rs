//! The samples of profiled trials, and the profiles that they add up to.

use std::collections::BTreeMap;
use std::ops::Range;

use pgassay_knowledge::wait_event;
use pgassay_model::plan::{Plan, Point, PointId};
use pgassay_model::profile::{Frame, Profile, ProfileBuilder, Quality};
use pgassay_profile::{Blocked, OffCpu, ProcessOffCpu, Samples, Selection, Span};

use super::transactions::TransactionAccount;
use crate::watch::StackColumns;

/// The samples of one profiled trial.
pub struct ProfiledTrial<'a> {
    /// All samples taken during it, of any process.
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
    builders: BTreeMap<PointId, ProfileBuilder>,
    /// The blocks of each profile.
    blocks: Range<u32>,
}

impl Profiles {
    /// One empty profile per point.
    pub fn new(plan: &Plan) -> Self {
        let blocks = plan.schedule.blocks;
        let of_point = |point: &Point| (point.id(), ProfileBuilder::new(blocks as usize));
        Self {
            // Ordered by condition, then by variant, as the plan's points are.
            builders: plan.points.iter().map(of_point).collect(),
            blocks: 0..blocks,
        }
    }

    /// No profiles yet; each will have this block only.
    pub fn of_block(block: u32) -> Self {
        Self {
            builders: BTreeMap::new(),
            blocks: block..block + 1,
        }
    }

    /// Removes the profile of a point; `None` if nothing was added to it.
    pub fn take(&mut self, point: PointId) -> Option<Profile> {
        self.builders.remove(&point).map(ProfileBuilder::finish)
    }

    /// Adds the profile of a trial, taken from another `Profiles`.
    pub fn add_profile(&mut self, point: PointId, block: u32, profile: &Profile) {
        let index = self.index(block);
        self.builder(point).add_profile(index, profile);
    }

    fn index(&self, block: u32) -> usize {
        (block - self.blocks.start) as usize
    }

    fn builder(&mut self, point: PointId) -> &mut ProfileBuilder {
        let blocks = self.blocks.len();
        self.builders
            .entry(point)
            .or_insert_with(|| ProfileBuilder::new(blocks))
    }

    /// Adds one profiled trial's samples of its backends.
    pub fn add(&mut self, point: PointId, block: u32, watched: &ProfiledTrial<'_>) {
        let index = self.index(block);
        let builder = self.builder(point);
        let samples = watched.samples;
        let selection = samples.backends(watched.backend_pids);
        add_samples(builder, index, samples, &selection);
        builder.add_quality(&Quality {
            sampled_ns: selection.quality.sampled_ns,
            ..Quality::default()
        });
        add_blocked(builder, index, watched);
    }

    /// Adds what a profiled trial's backends did within its transactions.
    pub fn add_transactions(
        &mut self,
        point: PointId,
        watched: &ProfiledTrial<'_>,
        account: &TransactionAccount,
    ) {
        let builder = self.builder(point);
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
            .into_values()
            .map(ProfileBuilder::finish)
            .collect()
    }
}

/// Adds the samples of some processes to a block of a profile.
fn add_samples(
    builder: &mut ProfileBuilder,
    block: usize,
    samples: &Samples,
    selection: &Selection<'_>,
) {
    for (stack, count) in selection.stacks() {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        builder.add(block, stack.map(frame), count);
    }
    add_quality(builder, samples, selection);
}

/// Adds the samples of some processes to several columns of a profile, by column and stack. The last
/// column gets what is in no other.
pub fn add_samples_by_column(
    builder: &mut ProfileBuilder,
    columns: &StackColumns,
    samples: &Samples,
    selection: &Selection<'_>,
) {
    for (column, stack, count) in columns.divide(&selection.counts) {
        let frames = samples.stacks[stack as usize].iter();
        let frames = frames.map(|&at| frame(&samples.frames[at as usize]));
        builder.add(column, frames, u32::try_from(count).unwrap_or(u32::MAX));
    }
    add_quality(builder, samples, selection);
}

fn add_quality(builder: &mut ProfileBuilder, samples: &Samples, selection: &Selection<'_>) {
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
