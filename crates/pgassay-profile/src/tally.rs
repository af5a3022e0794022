//! Counts samples by process and stack.

use crate::arch::REGS_COUNT;
use crate::frames::{FrameTable, StackFrame, StackTable};
use crate::kallsyms::KernelSymbols;
use crate::process::{ProcessTable, SampleOwner};
use crate::record::{Record, Records, Sample};
use crate::role::Role;
use crate::samples::{ProcessSamples, SampleMoment, SampleQuality, Samples};
use crate::slices::Slices;
use crate::space::{SpaceId, Spaces, StackEnd};
use crate::wait_reader::WaitReader;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The known processes and code, and the counts of the current window.
pub(crate) struct SampleTally {
    pub processes: ProcessTable,
    pub spaces: Spaces,
    frames: FrameTable,
    pub window: SampleWindow,
    /// By postmaster.
    pub wait_readers: HashMap<u32, WaitReader>,
    /// Reused for every sample: user frames, leaf first, then the whole stack.
    scratch: Vec<u32>,
}

/// The counts between a start and a stop.
#[derive(Default)]
pub(crate) struct SampleWindow {
    processes: BTreeMap<u32, ProcessCounts>,
    /// Only of this window, so that memory does not grow from trial to trial.
    stacks: StackTable,
    period_ns: u64,
    other_programs: u64,
    unattributed: u64,
    lost_records: u64,
    throttled: u64,
    pub malformed: u64,
    pub slices: Slices,
    moments: Vec<SampleMoment>,
}

/// Maximum number of individual samples: 16 MiB.
const MOMENTS_MAX: usize = 1 << 20;

struct ProcessCounts {
    postmaster_pid: u32,
    role: Role,
    quality: SampleQuality,
    counts: HashMap<u32, u64>,
}

impl SampleTally {
    pub fn new(kernel: KernelSymbols) -> Self {
        Self {
            processes: ProcessTable::default(),
            spaces: Spaces::default(),
            frames: FrameTable::new(kernel),
            window: SampleWindow::default(),
            wait_readers: HashMap::new(),
            scratch: Vec::new(),
        }
    }

    /// Adds a server.
    pub fn watch(&mut self, postmaster_pid: u32) {
        self.processes.watch(postmaster_pid, &mut self.spaces);
    }

    /// Removes a server.
    pub fn unwatch(&mut self, postmaster_pid: u32) {
        self.processes.unwatch(postmaster_pid);
        self.wait_readers.remove(&postmaster_pid);
    }

    /// Starts a new window. With `intervals_max`, it has slices with up to this many individual
    /// intervals.
    pub fn begin_window(&mut self, intervals_max: Option<usize>) {
        self.window = SampleWindow::default();
        self.processes.begin_window(&mut self.spaces);
        if let Some(intervals_max) = intervals_max {
            self.window.slices = Slices::new(intervals_max);
            self.processes.find_all(&mut self.spaces);
        }
    }

    /// Counts the contents of the rings of all CPUs. Reads the side-band records of all CPUs first,
    /// so that a process's fork is known before its samples.
    pub fn count(&mut self, rings: &[Vec<u8>]) {
        let records = || rings.iter().flat_map(|bytes| Records::new(bytes));
        for record in records() {
            match record {
                Ok(Record::Fork {
                    pid,
                    parent_pid,
                    tid,
                }) if pid == tid => {
                    self.processes.forked(pid, parent_pid, &mut self.spaces);
                }
                Ok(Record::Exit { pid, tid, time_ns }) if pid == tid => {
                    self.processes.exited(pid);
                    self.window.slices.ended(pid, time_ns);
                }
                Ok(Record::Comm { pid, exec: true }) => {
                    self.processes.executed(pid, &mut self.spaces);
                }
                Ok(Record::Map(map)) => self.processes.mapped(&map, &mut self.spaces),
                Ok(Record::Lost { count }) => self.window.lost_records += count,
                Ok(Record::Throttle) => self.window.throttled += 1,
                Err(error) => {
                    tracing::debug!(%error, "skipped a malformed record");
                    self.window.malformed += 1;
                }
                Ok(_) => {}
            }
        }
        for record in records() {
            if let Ok(Record::Sample(sample)) = record {
                self.count_sample(&sample);
            }
        }
        // A slice is counted only after its end, and may include processes that have ended by then.
        if !self.window.slices.is_open() {
            self.processes.remove_ended();
        }
    }

    fn count_sample(&mut self, sample: &Sample<'_>) {
        self.window.period_ns = sample.period_ns;
        let process = match self.processes.owner(sample.pid, &mut self.spaces) {
            SampleOwner::Server(process) => process,
            SampleOwner::OtherProgram => {
                self.window.other_programs += 1;
                return;
            }
            SampleOwner::Unknown => {
                self.window.unattributed += 1;
                return;
            }
        };
        let (postmaster_pid, space) = (process.postmaster_pid, process.space);
        let role = process.role.clone();

        let (stack, quality) = self.stack_of_sample(sample, space);
        let counted = self.window.processes.entry(sample.pid).or_default();
        counted.postmaster_pid = postmaster_pid;
        if role != Role::Unknown {
            counted.role = role;
        }
        counted.quality += quality;
        *counted.counts.entry(stack).or_default() += 1;
        if self.window.slices.is_used() && self.window.moments.len() < MOMENTS_MAX {
            self.window.moments.push(SampleMoment {
                pid: sample.pid,
                time_ns: sample.time_ns,
                stack,
            });
        }
    }

    /// The index of a sample's stack, and the sample's quality.
    pub fn stack_of_sample(
        &mut self,
        sample: &Sample<'_>,
        space: Option<SpaceId>,
    ) -> (u32, SampleQuality) {
        let (stack, mut quality) = self.stack_of(
            sample.user_regs.as_ref(),
            sample.stack,
            sample.stack_is_full,
            sample.kernel_chain(),
            space,
        );
        quality.sampled_ns = sample.period_ns;
        (stack, quality)
    }

    /// The index of the stack with these parts, and its quality.
    pub fn stack_of(
        &mut self,
        regs: Option<&[u64; REGS_COUNT]>,
        stack: &[u8],
        stack_is_full: bool,
        kernel_chain: impl IntoIterator<Item = u64>,
        space: Option<SpaceId>,
    ) -> (u32, SampleQuality) {
        self.scratch.clear();
        let end = regs.map(|regs| match space {
            Some(space) => self.push_user_frames(regs, stack, stack_is_full, space),
            None => StackEnd::Failed,
        });
        self.scratch.reverse();
        let user_frames = self.scratch.len();
        self.push_kernel_frames(kernel_chain);
        let quality = self.quality_of(end, user_frames);
        (self.window.stacks.intern(&self.scratch), quality)
    }

    /// The quality of the stack in `scratch`.
    fn quality_of(&self, end: Option<StackEnd>, user_frames: usize) -> SampleQuality {
        let frames = self.frames.frames();
        let is_unknown = |&id: &u32| frames[id as usize].symbol.is_none();
        SampleQuality {
            total: 1,
            sampled_ns: 0,
            with_user: end.is_some().into(),
            kernel_only: end.is_none().into(),
            in_kernel: (self.scratch.len() > user_frames).into(),
            reached_entry: (end == Some(StackEnd::Entry)).into(),
            truncated: (end == Some(StackEnd::Truncated)).into(),
            unwind_failed: (end == Some(StackEnd::Failed)).into(),
            leaf_unknown: self.scratch.last().is_none_or(is_unknown).into(),
            frames: self.scratch.len() as u64,
            frames_unknown: self.scratch.iter().filter(|id| is_unknown(id)).count() as u64,
        }
    }

    /// Appends the user stack, leaf first.
    fn push_user_frames(
        &mut self,
        regs: &[u64; REGS_COUNT],
        stack: &[u8],
        stack_is_full: bool,
        space: SpaceId,
    ) -> StackEnd {
        let Self {
            spaces,
            frames,
            scratch,
            ..
        } = self;
        let visit = |objects: &[_], code| {
            let resolved = frames.user(objects, code);
            // An address outside of all code is a wrong guess and not part of the stack.
            if resolved.is_code || scratch.is_empty() {
                scratch.push(resolved.frame);
            }
            resolved.is_code
        };
        spaces.unwind(space, regs, stack, stack_is_full, visit)
    }

    /// Appends the kernel stack, outermost first; `chain` is leaf first.
    fn push_kernel_frames(&mut self, chain: impl IntoIterator<Item = u64>) {
        let begin = self.scratch.len();
        for (depth, address) in chain.into_iter().enumerate() {
            // All but the leaf are return addresses, which may be past the end of their function.
            let frame = self.frames.kernel(address - u64::from(depth > 0));
            let is_repeated = self.scratch[begin..].last() == Some(&frame);
            if !(is_repeated && self.frames.frames()[frame as usize].symbol.is_none()) {
                self.scratch.push(frame);
            }
        }
        self.scratch[begin..].reverse();
    }

    /// The counts of the window, with only the frames that occur in it.
    pub fn end_window(&mut self) -> Samples {
        let window = std::mem::take(&mut self.window);
        let (frames, stacks) = self.renumber(&window.stacks);
        Samples {
            off_cpu: window.slices.is_used().then(|| window.slices.finish()),
            period_ns: window.period_ns,
            frames,
            stacks,
            processes: window
                .processes
                .into_iter()
                .map(ProcessCounts::finish)
                .collect(),
            other_programs: window.other_programs,
            unattributed: window.unattributed,
            lost: window.lost_records,
            throttled: window.throttled,
            malformed: window.malformed,
            moments: window.moments,
            kernel_named: self.frames.names_kernel(),
            unreadable_objects: self.spaces.unreadable().cloned().collect(),
            stripped_objects: self.spaces.stripped().cloned().collect(),
            ..Samples::default()
        }
    }

    /// The frames that occur in these stacks, and the stacks with the frames' new indices.
    fn renumber(&self, stacks: &StackTable) -> (Vec<StackFrame>, Vec<Arc<[u32]>>) {
        let mut frames = Vec::new();
        let mut numbers = HashMap::new();
        let renumbered = stacks
            .stacks()
            .iter()
            .map(|stack| {
                let new_number = |frame: &u32| {
                    *numbers.entry(*frame).or_insert_with(|| {
                        frames.push(self.frames.frames()[*frame as usize].clone());
                        (frames.len() - 1) as u32
                    })
                };
                stack.iter().map(new_number).collect()
            })
            .collect();
        (frames, renumbered)
    }
}

impl Default for ProcessCounts {
    fn default() -> Self {
        Self {
            postmaster_pid: 0,
            role: Role::Unknown,
            quality: SampleQuality::default(),
            counts: HashMap::new(),
        }
    }
}

impl ProcessCounts {
    fn finish((pid, counted): (u32, Self)) -> ProcessSamples {
        let mut counts: Vec<(u32, u64)> = counted.counts.into_iter().collect();
        counts.sort_unstable();
        // A backend sampled before it had a title has one by now.
        let role = match counted.role {
            Role::Unknown => Role::read(pid),
            known => known,
        };
        ProcessSamples {
            pid,
            postmaster_pid: counted.postmaster_pid,
            role,
            quality: counted.quality,
            counts,
        }
    }
}
