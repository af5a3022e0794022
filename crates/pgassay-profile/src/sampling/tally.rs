//! Counts samples by process and stack.

use crate::off_cpu::slices::Slices;
use crate::perf::record::{Malformed, Record, Records, Sample};
use crate::proc::role::{Role, read_role};
use crate::sampling::kept_time::KeptTime;
use crate::sampling::samples::{ProcessSamples, SampleMoment, Samples};
use crate::servers::ProfiledServers;
use crate::servers::process::{ProcessTable, SampleOwner};
use crate::unwind::kallsyms::KernelSymbols;
use crate::unwind::quality::SampleQuality;
use std::collections::{BTreeMap, HashMap, HashSet};

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
    /// With more processes than this, those that have ended are added up.
    processes_max: usize,
    /// By postmaster and role.
    ended: BTreeMap<(u32, Role), ProcessCounts>,
    period_ns: u64,
    other_programs: u64,
    unattributed: u64,
    lost_records: u64,
    throttled: u64,
    malformed: u64,
    pub slices: Slices,
    moments: Vec<SampleMoment>,
    kept_time: KeptTime,
}

/// Maximum number of individual samples: 1 MiB. With more, those of a part of the time stand for all.
const MOMENTS_MAX: usize = 1 << 16;
/// Processes that are kept singly: 0.5 MB.
const PROCESSES_MAX: usize = 1024;
/// Maximum number of roles of ended processes; there can be more, because titles are roles, too.
const ROLES_MAX: usize = 1024;

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
    /// so that a process's fork is known before its samples, and by time: a process can be forked on one CPU
    /// and exit on another.
    pub fn count(&mut self, rings: &[Vec<u8>]) {
        let records = || rings.iter().map(|bytes| Records::new(bytes));
        let mut side_band = Vec::new();
        for record in records().flat_map(Records::side_band) {
            match record {
                Ok(record) => side_band.push(record),
                Err(error) => self.window.note_malformed(&error),
            }
        }
        side_band.sort_by_key(|(time_ns, _)| *time_ns);
        let processes = &mut self.servers.processes;
        for (_, record) in side_band {
            match record {
                Record::Fork {
                    pid,
                    parent_pid,
                    tid,
                    time_ns,
                } if pid == tid => {
                    processes.forked(pid, parent_pid, time_ns);
                }
                Record::Exit { pid, tid, time_ns } if pid == tid => {
                    processes.exited(pid, time_ns);
                    self.window.slices.ended(pid, time_ns);
                }
                Record::Comm { pid, exec: true } => {
                    processes.executed(pid);
                }
                Record::Map(map) => processes.mapped(&map),
                Record::Lost { count } => self.window.lost_records += count,
                Record::Throttle => self.window.throttled += 1,
                _ => {}
            }
        }
        for record in records().flatten() {
            match record {
                Ok(Record::Sample(sample)) => self.count_sample(&sample),
                Err(error) if error.is_sample() => self.window.note_malformed(&error),
                _ => {}
            }
        }
        // A slice is counted only after its end, and may include processes that have ended by then.
        if !self.window.slices.is_open() {
            self.servers.remove_ended();
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
        if self.window.processes.len() > self.window.processes_max.max(PROCESSES_MAX) {
            self.window.add_up_ended(&self.servers.processes);
        }
        let keeps = self.keeps_moments || self.window.slices.is_used();
        if keeps {
            self.window.keep(SampleMoment {
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
            processes: {
                let single = window.processes.into_iter();
                let single = single.map(|(pid, it)| it.finish(Some(pid)));
                let ended = window.ended.into_values();
                single.chain(ended.map(|it| it.finish(None))).collect()
            },
            other_programs: window.other_programs,
            unattributed: window.unattributed,
            lost: window.lost_records,
            throttled: window.throttled,
            malformed,
            moments: window.moments,
            kept_time: window.kept_time,
            kernel_named: stack_reader.names_kernel(),
            unreadable_objects: stack_reader.spaces.unreadable().cloned().collect(),
            stripped_objects: stack_reader.spaces.stripped().cloned().collect(),
            ..Samples::default()
        }
    }
}

impl SampleWindow {
    fn note_malformed(&mut self, error: &Malformed) {
        tracing::debug!(%error, "skipped a malformed record");
        self.malformed += 1;
    }

    fn keep(&mut self, moment: SampleMoment) {
        if !self.kept_time.has(moment.time_ns) {
            return;
        }
        if self.moments.len() >= MOMENTS_MAX {
            self.kept_time.halve();
            self.moments.retain(|it| self.kept_time.has(it.time_ns));
        }
        if self.moments.len() < MOMENTS_MAX && self.kept_time.has(moment.time_ns) {
            self.moments.push(moment);
        }
    }

    fn add_up_ended(&mut self, known: &ProcessTable) {
        let living: HashSet<u32> = known.server_pids().collect();
        let all = std::mem::take(&mut self.processes);
        let (kept, ended): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(pid, _)| living.contains(pid));
        self.processes_max = 2 * kept.len();
        self.processes = kept.into_iter().collect();
        for (_, counted) in ended {
            let mut key = (counted.postmaster_pid, counted.role.clone());
            if self.ended.len() >= ROLES_MAX && !self.ended.contains_key(&key) {
                key.1 = Role::Unknown;
            }
            let sum = self
                .ended
                .entry(key)
                .or_insert_with_key(|key| ProcessCounts {
                    postmaster_pid: key.0,
                    role: key.1.clone(),
                    ..ProcessCounts::default()
                });
            sum.quality += counted.quality;
            for (stack, count) in counted.counts {
                *sum.counts.entry(stack).or_default() += count;
            }
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
    fn finish(self, pid: Option<u32>) -> ProcessSamples {
        let mut counts: Vec<(u32, u64)> = self.counts.into_iter().collect();
        counts.sort_unstable();
        // A backend sampled before it had a title has one by now.
        let role = match (self.role, pid) {
            (Role::Unknown, Some(pid)) => read_role(pid),
            (known, _) => known,
        };
        ProcessSamples {
            pid,
            postmaster_pid: self.postmaster_pid,
            role,
            quality: self.quality,
            counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::record::tests::record;
    use perf_event_open_sys::bindings as sys;

    /// A PID that no process has.
    const PID: u32 = 5_000_000;

    /// A record of a task: its PID, its parent's, and the time, followed by the `sample_id`.
    fn task(kind: u32, parent: u32, time_ns: u64) -> Vec<u8> {
        let ids = [PID, parent, PID, parent].map(u32::to_ne_bytes).concat();
        let sample_id = [[0; 8], time_ns.to_ne_bytes(), [0; 8]].concat();
        let body = [&ids[..], &time_ns.to_ne_bytes(), &sample_id].concat();
        record(kind, 0, &body)
    }

    fn known_after(batches: &[[Vec<u8>; 2]]) -> Vec<u32> {
        let mut tally = SampleTally::new(KernelSymbols::read());
        tally.servers.watch(std::process::id());
        for rings in batches {
            tally.count(rings);
        }
        let pids = tally.servers.processes.server_pids();
        pids.filter(|pid| *pid == PID).collect()
    }

    /// Regression: it stayed one of the server's processes. When another program had its PID, that program's files
    /// were read: 300 MB in 90 minutes, next to builds.
    #[test]
    fn a_backend_that_ended_on_another_cpu_than_it_was_forked_on_is_forgotten() {
        let fork = |time_ns| task(sys::PERF_RECORD_FORK, std::process::id(), time_ns);
        let exit = |time_ns| task(sys::PERF_RECORD_EXIT, std::process::id(), time_ns);
        let none = Vec::new;
        assert_eq!(known_after(&[[none(), fork(10)]]), [PID]);
        assert_eq!(known_after(&[[exit(20), fork(10)]]), [0; 0]);
        assert_eq!(known_after(&[[fork(10), exit(20)]]), [0; 0]);
        // The rings are not read at the same instant.
        assert_eq!(
            known_after(&[[exit(20), none()], [none(), fork(10)]]),
            [0; 0]
        );
        // An earlier process with this PID ended.
        assert_eq!(known_after(&[[exit(10), fork(20)]]), [PID]);
        assert_eq!(
            known_after(&[[exit(10), none()], [none(), fork(20)]]),
            [PID]
        );
    }
    fn sample(pid: u32, time_ns: u64) -> Sample<'static> {
        Sample {
            pid,
            time_ns,
            period_ns: 0,
            callchain: &[],
            user_regs: None,
            stack: &[],
            stack_is_full: false,
        }
    }

    /// Regression: with a connection per transaction, the counts of each process were kept until the end.
    #[test]
    fn processes_without_end_do_not_fill_memory_and_all_count() {
        let mut tally = SampleTally::new(KernelSymbols::default());
        let own = std::process::id();
        tally.servers.watch(own);
        let all = 3 * PROCESSES_MAX as u32;
        for number in 0..all {
            let pid = PID + number;
            tally.servers.processes.forked(pid, own, 1);
            tally.count_sample(&sample(pid, 2));
            // Every third lasts.
            if number % 3 > 0 {
                tally.servers.processes.exited(pid, 3);
            }
            tally.servers.remove_ended();
            assert!(tally.window.processes.len() <= 2 * PROCESSES_MAX + 1);
        }
        let samples = tally.end_window();
        let ended: Vec<_> = samples
            .processes
            .iter()
            .filter(|it| it.pid.is_none())
            .collect();
        assert_eq!(ended.len(), 1);
        assert_eq!(
            (ended[0].postmaster_pid, &ended[0].role),
            (own, &Role::Unknown)
        );
        let single = samples.processes.len() - 1;
        assert_eq!(ended[0].quality.total + single as u64, u64::from(all));
        let counted: u64 = samples.select(|_| true).counts.values().sum();
        assert_eq!(counted, u64::from(all));
    }

    /// Regression: the first million was kept, and all later samples belonged to no statement.
    #[test]
    fn single_samples_of_a_long_window_are_of_all_of_its_time() {
        let mut window = SampleWindow::default();
        let all = 10 * MOMENTS_MAX as u64;
        for number in 0..all {
            let moment = SampleMoment {
                pid: PID,
                time_ns: number * 1_000_000,
                stack: 0,
            };
            window.keep(moment);
            assert!(window.moments.len() <= MOMENTS_MAX);
        }
        assert!(!window.kept_time.is_whole());
        assert!(window.moments.len() > MOMENTS_MAX / 4);
        let kept = &window.moments;
        let early = kept.iter().filter(|it| it.time_ns < all * 500_000).count();
        let share = early as f64 / kept.len() as f64;
        assert!((share - 0.5).abs() < 0.1, "{share}");
    }
}
