//! Counts samples by process and stack.

use crate::off_cpu::slices::Slices;
use crate::perf::record::{Record, Records, Sample};
use crate::proc::role::Role;
use crate::sampling::samples::{ProcessSamples, SampleMoment, Samples};
use crate::servers::ProfiledServers;
use crate::servers::process::SampleOwner;
use crate::unwind::kallsyms::KernelSymbols;
use crate::unwind::quality::SampleQuality;
use std::collections::{BTreeMap, HashMap};

/// The profiled servers, and the counts of the current window.
pub(crate) struct SampleTally {
    pub servers: ProfiledServers,
    pub window: SampleWindow,
    /// Keep each sample even if there are no slices.
    pub keeps_moments: bool,
}

/// The counts between a start and a stop.
#[derive(Default)]
pub(crate) struct SampleWindow {
    processes: BTreeMap<u32, ProcessCounts>,
    period_ns: u64,
    other_programs: u64,
    unattributed: u64,
    lost_records: u64,
    throttled: u64,
    malformed: u64,
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
            servers: ProfiledServers::new(kernel),
            window: SampleWindow::default(),
            keeps_moments: false,
        }
    }

    /// Starts a new window. With `intervals_max`, it has slices with up to this many individual
    /// intervals.
    pub fn begin_window(&mut self, intervals_max: Option<usize>) {
        self.window = SampleWindow::default();
        self.servers.begin_window();
        if let Some(intervals_max) = intervals_max {
            self.window.slices = Slices::new(intervals_max);
            self.servers.find_all();
        }
    }

    /// Counts the contents of the rings of all CPUs. Reads the side-band records of all CPUs first,
    /// so that a process's fork is known before its samples.
    pub fn count(&mut self, rings: &[Vec<u8>]) {
        let records = || rings.iter().flat_map(|bytes| Records::new(bytes));
        let ProfiledServers {
            processes, stacks, ..
        } = &mut self.servers;
        let spaces = &mut stacks.spaces;
        for record in records() {
            match record {
                Ok(Record::Fork {
                    pid,
                    parent_pid,
                    tid,
                }) if pid == tid => {
                    processes.forked(pid, parent_pid, spaces);
                }
                Ok(Record::Exit { pid, tid, time_ns }) if pid == tid => {
                    processes.exited(pid);
                    self.window.slices.ended(pid, time_ns);
                }
                Ok(Record::Comm { pid, exec: true }) => {
                    processes.executed(pid, spaces);
                }
                Ok(Record::Map(map)) => processes.mapped(&map, spaces),
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
            self.servers.processes.remove_ended();
        }
    }

    fn count_sample(&mut self, sample: &Sample<'_>) {
        self.window.period_ns = sample.period_ns;
        let process = match self.servers.owner(sample.pid) {
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

        let (stack, quality) = self.servers.stacks.stack_of_sample(sample, space);
        let counted = self.window.processes.entry(sample.pid).or_default();
        counted.postmaster_pid = postmaster_pid;
        if role != Role::Unknown {
            counted.role = role;
        }
        counted.quality += quality;
        *counted.counts.entry(stack).or_default() += 1;
        let keeps = self.keeps_moments || self.window.slices.is_used();
        if keeps && self.window.moments.len() < MOMENTS_MAX {
            self.window.moments.push(SampleMoment {
                pid: sample.pid,
                time_ns: sample.time_ns,
                stack,
            });
        }
    }

    /// The counts of the window, with only the frames that occur in it.
    pub fn end_window(&mut self) -> Samples {
        let window = std::mem::take(&mut self.window);
        let stack_reader = &mut self.servers.stacks;
        let (frames, stacks) = stack_reader.end_window();
        let malformed = window.malformed + window.slices.malformed();
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
            malformed,
            moments: window.moments,
            kernel_named: stack_reader.names_kernel(),
            unreadable_objects: stack_reader.spaces.unreadable().cloned().collect(),
            stripped_objects: stack_reader.spaces.stripped().cloned().collect(),
            ..Samples::default()
        }
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
