//! Accounts for slices after their end: time by process, state and call site.

use crate::arch::regs_at;
use crate::cpu::ProcessCpu;
use crate::off_cpu::{Blocked, OffCpu, OffCpuCause, OffCpuInterval, ProcessOffCpu, Slice};
use crate::process::SampleOwner;
use crate::record::{Record, Records};
use crate::role::Role;
use crate::samples::SampleQuality;
use crate::site::{SiteSummary, WaitSites};
use crate::state_sample::{self, CodeLocation, StateSample};
use crate::switch_record::{SchedEvent, SchedEventKind, SchedEvents};
use crate::tally::SampleTally;
use crate::timeline::{
    InitialState, OffCpuSpan, Recording, SampledState, SiteId, SliceAccount, SwitchOutReason,
    TimedState, TimelineStep,
};
use std::collections::{BTreeMap, HashMap};

/// Maximum size of a stack that is read from a process's memory.
const OUTSIDE_STACK_BYTES: usize = 32 * 1024;

/// The records of one slice from the rings of all CPUs.
pub(crate) struct SliceRecords<'a> {
    /// From this time on, before the slice, the switches of all CPUs were recorded.
    pub start_ns: u64,
    pub slice: Slice,
    /// Records lost in this slice, if the kernel counts them; otherwise the LOST records count.
    pub lost: Option<u64>,
    pub switches: &'a [Vec<u8>],
    pub stacks: &'a [Vec<u8>],
    /// With the offset of the woken process's PID in the raw data, if wake-ups are recorded.
    pub wake_ups: Option<(&'a [Vec<u8>], usize)>,
}

/// The accounts of a window's slices.
#[derive(Default)]
pub(crate) struct Slices {
    open: Option<OpenSlice>,
    sites: WaitSites,
    processes: BTreeMap<u32, ProcessSlices>,
    intervals: Vec<(u32, OffCpuSpan)>,
    /// `None` if slices are not requested.
    intervals_max: Option<usize>,
    found: OffCpu,
}

/// The state of the current slice.
#[derive(Default)]
struct OpenSlice {
    before: BTreeMap<u32, InitialState>,
    /// CPU time of the processes that were runnable when sampled.
    cpu_ns: HashMap<u32, u64>,
    ended: Vec<SchedEvent>,
}

struct ProcessSlices {
    postmaster_pid: u32,
    role: Role,
    sum: SliceAccount,
    blocked: HashMap<Option<SiteId>, (u64, u64)>,
}

impl Slices {
    pub fn new(intervals_max: usize) -> Self {
        Self {
            intervals_max: Some(intervals_max),
            ..Self::default()
        }
    }

    pub fn is_used(&self) -> bool {
        self.intervals_max.is_some()
    }

    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Records the end of a process.
    pub fn ended(&mut self, pid: u32, time_ns: u64) {
        if let Some(open) = &mut self.open {
            let what = SchedEventKind::Ended;
            open.ended.push(SchedEvent {
                time_ns,
                tid: pid,
                what,
            });
        }
    }
}

impl SampleTally {
    /// Starts a slice. Returns the server processes whose state should be sampled.
    pub fn begin_slice(&mut self) -> Vec<u32> {
        let pids: Vec<u32> = self.processes.server_pids().collect();
        let before = InitialState {
            is_present: true,
            ..InitialState::default()
        };
        self.window.slices.open = Some(OpenSlice {
            before: pids.iter().map(|&pid| (pid, before)).collect(),
            ..OpenSlice::default()
        });
        pids
    }

    /// Samples the state of a process in the current slice.
    pub fn sample_state(&mut self, pid: u32, now_ns: u64) {
        let SampleOwner::Server(process) = self.processes.owner(pid, &mut self.spaces) else {
            return;
        };
        let (space, postmaster_pid) = (process.space, process.postmaster_pid);
        let waits = self.wait_readers.get(&postmaster_pid);
        let Some(look) = StateSample::at(pid, waits) else {
            return;
        };
        let state = match (look, space) {
            (StateSample::Runnable, _) => SampledState::Runnable,
            (
                StateSample::Blocked {
                    place: Some(place),
                    wait,
                },
                Some(space),
            ) => {
                let site = self.window.slices.sites.id(space, place);
                if let Some(wait) = wait {
                    self.window.slices.sites.waited(site, wait);
                }
                self.read_outside(pid, site, space, place);
                SampledState::Blocked { site: Some(site) }
            }
            (StateSample::Blocked { .. }, _) => SampledState::Blocked { site: None },
        };
        let Some(open) = &mut self.window.slices.open else {
            return;
        };
        let before = open.before.entry(pid).or_default();
        if before.seen.is_none() {
            before.seen = Some(TimedState {
                time_ns: now_ns,
                state,
            });
            if state == SampledState::Runnable
                && let Ok(cpu) = ProcessCpu::read(pid)
            {
                open.cpu_ns.insert(pid, cpu.on_cpu_ns);
            }
        }
    }

    /// Reads the stack of a blocked process, unless that of its call site is known.
    fn read_outside(&mut self, pid: u32, site: SiteId, space: usize, place: CodeLocation) {
        if self.window.slices.sites.has_stack(site) {
            return;
        }
        let Some(stack) = state_sample::stack_at(pid, place, OUTSIDE_STACK_BYTES) else {
            return;
        };
        // Unwinding may need registers that only a switch record has.
        let known = self.window.slices.sites.regs(site);
        let regs = known.unwrap_or_else(|| regs_at(place.ip, place.sp));
        let is_full = stack.len() == OUTSIDE_STACK_BYTES;
        let (stack, quality) = self.stack_of(Some(&regs), &stack, is_full, [], Some(space));
        if quality.reached_entry > 0 {
            self.window.slices.sites.read_outside(site, stack);
        }
    }

    /// Ends the slice and accounts for its records.
    pub fn end_slice(&mut self, records: &SliceRecords<'_>) {
        let Some(mut open) = self.window.slices.open.take() else {
            return;
        };
        let mut sched_events = SchedEvents::default();
        for ring in records.switches {
            sched_events.add_switches(ring);
        }
        if let Some((rings, pid_offset)) = records.wake_ups {
            for ring in rings {
                sched_events.add_wake_ups(ring, pid_offset);
            }
        }
        self.window.malformed += sched_events.malformed;
        self.count_stacks(records.stacks);
        let found = &mut self.window.slices.found;
        found.wake_ups = records.wake_ups.is_some();
        let lost = records.lost.unwrap_or(sched_events.lost);
        found.lost += lost;
        if lost > 0 {
            // With a missing record, it is unknown which process's account is wrong.
            found.slices_dropped += 1;
            return;
        }
        found.slices.push(records.slice);
        sched_events.all.append(&mut open.ended);
        sched_events.all.sort_by_key(|it| it.time_ns);
        let steps = self.steps(&sched_events.all, &mut open);
        for (pid, mut before) in open.before {
            let steps = steps.get(&pid).map_or(&[][..], Vec::as_slice);
            if let (true, Some(then)) = (steps.is_empty(), open.cpu_ns.get(&pid)) {
                let now = ProcessCpu::read(pid).ok();
                // Ticks update the total, so a process that ran has used some.
                before.used_cpu = now.map(|now| now.on_cpu_ns > *then);
            }
            let recording = Recording {
                start_ns: records.start_ns,
                slice: records.slice,
                wake_ups: records.wake_ups.is_some(),
            };
            let account = SliceAccount::of(&recording, &before, steps);
            self.add_account(pid, &account);
        }
        let found = &mut self.window.slices.found;
        if found.intervals_dropped == 0 {
            found.whole_slices = found.slices.len();
        }
        self.processes.remove_ended();
    }

    /// The scheduler events of the server processes, by process.
    fn steps(
        &mut self,
        sched_events: &[SchedEvent],
        open: &mut OpenSlice,
    ) -> HashMap<u32, Vec<TimelineStep>> {
        let mut steps: HashMap<u32, Vec<TimelineStep>> = HashMap::new();
        for &happening in sched_events {
            let pid = happening.tid;
            // A woken or ended task may be a thread, and counts only if it is a known process.
            if matches!(
                happening.what,
                SchedEventKind::Woken | SchedEventKind::Ended
            ) && !open.before.contains_key(&pid)
            {
                continue;
            }
            let SampleOwner::Server(process) = self.processes.owner(pid, &mut self.spaces) else {
                continue;
            };
            let site = match (happening.what, process.space) {
                (SchedEventKind::Waits { regs: Some(regs) }, Some(space)) => {
                    let sites = &mut self.window.slices.sites;
                    let site = sites.id(space, CodeLocation::of(&regs));
                    sites.met(site, regs);
                    Some(site)
                }
                _ => None,
            };
            open.before.entry(pid).or_default();
            steps.entry(pid).or_default().push(TimelineStep {
                sched_event: happening,
                site,
            });
        }
        steps
    }

    fn count_stacks(&mut self, rings: &[Vec<u8>]) {
        for record in rings.iter().flat_map(|bytes| Records::new(bytes)) {
            match record {
                Ok(Record::Sample(sample)) => {
                    let owner = self.processes.owner(sample.pid, &mut self.spaces);
                    let SampleOwner::Server(process) = owner else {
                        continue;
                    };
                    let space = process.space;
                    let place = sample.user_regs.as_ref().map(CodeLocation::of);
                    let sites = &mut self.window.slices.sites;
                    let site = place
                        .zip(space)
                        .map(|(place, space)| sites.id(space, place));
                    if site.is_some_and(|site| sites.is_known(site)) {
                        continue;
                    }
                    let (stack, quality) = self.stack_of_sample(&sample, space);
                    let slices = &mut self.window.slices;
                    slices.found.quality += SampleQuality {
                        sampled_ns: 0,
                        ..quality
                    };
                    if let Some(site) = site {
                        slices.sites.copied(site, stack);
                    }
                }
                Ok(Record::Lost { count }) => self.window.slices.found.stacks_lost += count,
                Ok(_) => {}
                Err(_) => self.window.malformed += 1,
            }
        }
    }

    fn add_account(&mut self, pid: u32, account: &SliceAccount) {
        if account.present_ns == 0 {
            return;
        }
        let (postmaster_pid, role) = match self.processes.owner(pid, &mut self.spaces) {
            SampleOwner::Server(process) => (process.postmaster_pid, process.role.clone()),
            _ => (0, Role::Unknown),
        };
        let slices = &mut self.window.slices;
        let counted = slices
            .processes
            .entry(pid)
            .or_insert_with(|| ProcessSlices {
                postmaster_pid,
                role: Role::Unknown,
                sum: SliceAccount::default(),
                blocked: HashMap::new(),
            });
        if role != Role::Unknown {
            counted.role = role;
        }
        counted.add(account);
        let intervals_max = slices.intervals_max.unwrap_or(0);
        let room = intervals_max.saturating_sub(slices.intervals.len());
        let kept = account.away.iter().take(room);
        slices.intervals.extend(kept.map(|&away| (pid, away)));
        let dropped = account.away.len().saturating_sub(room);
        slices.found.intervals_dropped += dropped as u64;
    }
}

impl ProcessSlices {
    fn add(&mut self, account: &SliceAccount) {
        self.sum.present_ns += account.present_ns;
        self.sum.on_cpu_ns += account.on_cpu_ns;
        self.sum.preempted_ns += account.preempted_ns;
        self.sum.preempted += account.preempted;
        self.sum.woken_ns += account.woken_ns;
        self.sum.unseen_ns += account.unseen_ns;
        for away in &account.away {
            if let SwitchOutReason::Waits { site } = away.why {
                let (count, total_ns) = self.blocked.entry(site).or_default();
                *count += 1;
                *total_ns += away.blocked_ns();
            }
        }
    }
}

impl Slices {
    /// The result, with stacks as indices into the window's.
    pub fn finish(self) -> OffCpu {
        let nowhere = SiteSummary {
            stack: None,
            wait: None,
            other_stacks: 0.0,
        };
        let meaning = |site: Option<SiteId>| site.map_or(nowhere, |it| self.sites.meaning(it));
        let mut found = self.found;
        for (pid, counted) in self.processes {
            let mut rows: BTreeMap<_, (u64, u64)> = BTreeMap::new();
            for (site, (count, total_ns)) in counted.blocked {
                let meaning = meaning(site);
                found.ambiguous_ns += (total_ns as f64 * meaning.other_stacks) as u64;
                let row = rows.entry((meaning.stack, meaning.wait)).or_default();
                row.0 += count;
                row.1 += total_ns;
            }
            let role = match counted.role {
                Role::Unknown => Role::read(pid),
                known => known,
            };
            let blocked = rows
                .into_iter()
                .map(|((stack, wait), (count, total_ns))| Blocked {
                    stack,
                    wait,
                    count,
                    total_ns,
                });
            found.processes.push(ProcessOffCpu {
                pid,
                postmaster_pid: counted.postmaster_pid,
                role,
                present_ns: counted.sum.present_ns,
                on_cpu_ns: counted.sum.on_cpu_ns,
                preempted_ns: counted.sum.preempted_ns,
                preempted: counted.sum.preempted,
                woken_ns: counted.sum.woken_ns,
                unseen_ns: counted.sum.unseen_ns,
                blocked: blocked.collect(),
            });
        }
        found
            .intervals
            .extend(self.intervals.into_iter().map(|(pid, away)| {
                let (meaning, cause) = match away.why {
                    SwitchOutReason::Waits { site } => (meaning(site), OffCpuCause::Waits),
                    SwitchOutReason::Preempted => (nowhere, OffCpuCause::Preempted),
                    SwitchOutReason::Unseen => (nowhere, OffCpuCause::Unseen),
                };
                OffCpuInterval {
                    pid,
                    start_ns: away.start_ns,
                    woken_ns: away.woken_ns,
                    end_ns: away.end_ns,
                    cause,
                    stack: meaning.stack,
                    wait: meaning.wait,
                }
            }));
        found.intervals.sort_by_key(|it| it.end_ns);
        found
    }
}
