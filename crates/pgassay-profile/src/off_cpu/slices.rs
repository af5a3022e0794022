//! Accounts for slices after their end: time by process, state and call site.

use crate::arch::regs_at;
use crate::off_cpu::data::{Blocked, OffCpu, OffCpuCause, OffCpuInterval, ProcessOffCpu, Slice};
use crate::off_cpu::site::{SiteSummary, WaitSites};
use crate::off_cpu::state_sample::{self, CodeLocation, StateSample};
use crate::off_cpu::timeline::{
    InitialState, OffCpuSpan, Recording, SampledState, SiteId, SliceAccount, SwitchOutReason,
    TimedState, TimelineStep,
};
use crate::perf::record::{Record, Records};
use crate::perf::switch_record::{SchedEvent, SchedEventKind, SchedEvents};
use crate::proc::cpu::ProcessCpu;
use crate::proc::role::{Role, read_role};
use crate::servers::ProfiledServers;
use crate::servers::process::{ProcessTable, SampleOwner};
use crate::unwind::quality::SampleQuality;
use crate::unwind::space::SpaceId;
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

impl SliceRecords<'_> {
    fn sched_events(&self) -> SchedEvents {
        let mut events = SchedEvents::default();
        for ring in self.switches {
            events.add_switches(ring);
        }
        if let Some((rings, pid_offset)) = self.wake_ups {
            for ring in rings {
                events.add_wake_ups(ring, pid_offset);
            }
        }
        events
    }
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
    /// Records that could not be parsed.
    malformed: u64,
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

    /// Starts a slice. Returns the server processes whose state should be sampled.
    pub fn begin(&mut self, processes: &ProcessTable) -> Vec<u32> {
        let pids: Vec<u32> = processes.server_pids().collect();
        let before = InitialState {
            is_present: true,
            ..InitialState::default()
        };
        self.open = Some(OpenSlice {
            before: pids.iter().map(|&pid| (pid, before)).collect(),
            ..OpenSlice::default()
        });
        pids
    }

    /// Samples the state of a process in the current slice.
    pub fn sample_state(&mut self, pid: u32, now_ns: u64, servers: &mut ProfiledServers) {
        let SampleOwner::Server(process) = servers.owner(pid) else {
            return;
        };
        let (space, postmaster_pid) = (process.space, process.postmaster_pid);
        let waits = servers.wait_readers.get(&postmaster_pid);
        let Some(sample) = StateSample::at(pid, waits) else {
            return;
        };
        let state = match (sample, space) {
            (StateSample::Runnable, _) => SampledState::Runnable,
            (
                StateSample::Blocked {
                    place: Some(place),
                    wait,
                },
                Some(space),
            ) => {
                let site = self.sites.id(space, place);
                if let Some(wait) = wait {
                    self.sites.waited(site, wait);
                }
                self.read_outside(pid, site, (space, place), servers);
                SampledState::Blocked { site: Some(site) }
            }
            (StateSample::Blocked { .. }, _) => SampledState::Blocked { site: None },
        };
        let Some(open) = &mut self.open else {
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
    fn read_outside(
        &mut self,
        pid: u32,
        site: SiteId,
        (space, place): (SpaceId, CodeLocation),
        servers: &mut ProfiledServers,
    ) {
        if self.sites.has_stack(site) {
            return;
        }
        let Some(stack) = state_sample::stack_at(pid, place, OUTSIDE_STACK_BYTES) else {
            return;
        };
        // Unwinding may need registers that only a switch record has.
        let known = self.sites.regs(site);
        let regs = known.unwrap_or_else(|| regs_at(place.ip, place.sp));
        let is_full = stack.len() == OUTSIDE_STACK_BYTES;
        let (stack, quality) =
            servers
                .stacks
                .stack_of(Some(&regs), &stack, is_full, [], Some(space));
        if quality.reached_entry > 0 {
            self.sites.read_outside(site, stack);
        }
    }

    /// Ends the slice and accounts for its records.
    pub fn end(&mut self, records: &SliceRecords<'_>, servers: &mut ProfiledServers) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        let mut sched_events = records.sched_events();
        self.malformed += sched_events.malformed;
        self.count_stacks(records.stacks, servers);
        self.found.wake_ups = records.wake_ups.is_some();
        let lost = records.lost.unwrap_or(sched_events.lost);
        self.found.lost += lost;
        if lost > 0 {
            // With a missing record, it is unknown which process's account is wrong.
            self.found.slices_dropped += 1;
            return;
        }
        self.found.slices.push(records.slice);
        sched_events.all.append(&mut open.ended);
        sched_events.all.sort_by_key(|it| it.time_ns);
        let steps = self.steps(&sched_events.all, &mut open, servers);
        let recording = Recording {
            start_ns: records.start_ns,
            slice: records.slice,
            wake_ups: records.wake_ups.is_some(),
        };
        for (pid, mut before) in open.before {
            let steps = steps.get(&pid).map_or(&[][..], Vec::as_slice);
            if let (true, Some(then)) = (steps.is_empty(), open.cpu_ns.get(&pid)) {
                let now = ProcessCpu::read(pid).ok();
                // Ticks update the total, so a process that ran has used some.
                before.used_cpu = now.map(|now| now.on_cpu_ns > *then);
            }
            let account = SliceAccount::of(&recording, &before, steps);
            self.add_account(pid, &account, servers);
        }
        if self.found.intervals_dropped == 0 && self.intervals_max != Some(0) {
            self.found.whole_slices = self.found.slices.len();
        }
        servers.remove_ended();
    }

    /// The scheduler events of the server processes, by process.
    fn steps(
        &mut self,
        sched_events: &[SchedEvent],
        open: &mut OpenSlice,
        servers: &mut ProfiledServers,
    ) -> HashMap<u32, Vec<TimelineStep>> {
        let mut steps: HashMap<u32, Vec<TimelineStep>> = HashMap::new();
        for &sched_event in sched_events {
            let pid = sched_event.tid;
            // A woken or ended task may be a thread, and counts only if it is a known process.
            if matches!(
                sched_event.what,
                SchedEventKind::Woken | SchedEventKind::Ended
            ) && !open.before.contains_key(&pid)
            {
                continue;
            }
            let SampleOwner::Server(process) = servers.owner(pid) else {
                continue;
            };
            let site = match (sched_event.what, process.space) {
                (SchedEventKind::Waits { regs: Some(regs) }, Some(space)) => {
                    let site = self.sites.id(space, CodeLocation::of(&regs));
                    self.sites.met(site, regs);
                    Some(site)
                }
                _ => None,
            };
            open.before.entry(pid).or_default();
            steps
                .entry(pid)
                .or_default()
                .push(TimelineStep { sched_event, site });
        }
        steps
    }

    fn count_stacks(&mut self, rings: &[Vec<u8>], servers: &mut ProfiledServers) {
        for record in rings.iter().flat_map(|bytes| Records::new(bytes)) {
            match record {
                Ok(Record::Sample(sample)) => {
                    let SampleOwner::Server(process) = servers.owner(sample.pid) else {
                        continue;
                    };
                    let space = process.space;
                    let place = sample.user_regs.as_ref().map(CodeLocation::of);
                    let site = place
                        .zip(space)
                        .map(|(place, space)| self.sites.id(space, place));
                    if site.is_some_and(|site| self.sites.is_known(site)) {
                        continue;
                    }
                    let (stack, quality) = servers.stacks.stack_of_sample(&sample, space);
                    self.found.quality += SampleQuality {
                        sampled_ns: 0,
                        ..quality
                    };
                    if let Some(site) = site {
                        self.sites.copied(site, stack);
                    }
                }
                Ok(Record::Lost { count }) => self.found.stacks_lost += count,
                Ok(_) => {}
                Err(_) => self.malformed += 1,
            }
        }
    }

    fn add_account(&mut self, pid: u32, account: &SliceAccount, servers: &mut ProfiledServers) {
        if account.present_ns == 0 {
            return;
        }
        let (postmaster_pid, role) = match servers.owner(pid) {
            SampleOwner::Server(process) => (process.postmaster_pid, process.role.clone()),
            _ => (0, Role::Unknown),
        };
        let counted = self.processes.entry(pid).or_insert_with(|| ProcessSlices {
            postmaster_pid,
            role: Role::Unknown,
            sum: SliceAccount::default(),
            blocked: HashMap::new(),
        });
        if role != Role::Unknown {
            counted.role = role;
        }
        counted.add(account);
        let intervals_max = self.intervals_max.unwrap_or(0);
        let room = intervals_max.saturating_sub(self.intervals.len());
        let kept = account.away.iter().take(room);
        self.intervals.extend(kept.map(|&away| (pid, away)));
        if intervals_max > 0 {
            let dropped = account.away.len().saturating_sub(room);
            self.found.intervals_dropped += dropped as u64;
        }
    }

    /// The number of records that could not be parsed.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// The result, with stacks as indices into the window's.
    pub fn finish(self) -> OffCpu {
        let Self {
            sites,
            processes,
            intervals,
            mut found,
            ..
        } = self;
        for (pid, counted) in processes {
            found.ambiguous_ns += counted.ambiguous_ns(&sites);
            found.processes.push(counted.finish(pid, &sites));
        }
        found.intervals.extend(
            intervals
                .into_iter()
                .map(|(pid, away)| interval(pid, away, &sites)),
        );
        found.intervals.sort_by_key(|it| it.end_ns);
        found
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

    /// Blocked time at call sites with several stacks that is not of the most frequent one.
    fn ambiguous_ns(&self, sites: &WaitSites) -> u64 {
        let of_site = |(site, (_, total_ns)): (&Option<SiteId>, &(u64, u64))| {
            (*total_ns as f64 * summary(*site, sites).other_stacks) as u64
        };
        self.blocked.iter().map(of_site).sum()
    }

    fn finish(self, pid: u32, sites: &WaitSites) -> ProcessOffCpu {
        let mut rows: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for (site, (count, total_ns)) in self.blocked {
            let meaning = summary(site, sites);
            let row = rows.entry((meaning.stack, meaning.wait)).or_default();
            row.0 += count;
            row.1 += total_ns;
        }
        let blocked = rows
            .into_iter()
            .map(|((stack, wait), (count, total_ns))| Blocked {
                stack,
                wait,
                count,
                total_ns,
            });
        ProcessOffCpu {
            pid,
            postmaster_pid: self.postmaster_pid,
            role: match self.role {
                Role::Unknown => read_role(pid),
                known => known,
            },
            present_ns: self.sum.present_ns,
            on_cpu_ns: self.sum.on_cpu_ns,
            preempted_ns: self.sum.preempted_ns,
            preempted: self.sum.preempted,
            woken_ns: self.sum.woken_ns,
            unseen_ns: self.sum.unseen_ns,
            blocked: blocked.collect(),
        }
    }
}

const NOWHERE: SiteSummary = SiteSummary {
    stack: None,
    wait: None,
    other_stacks: 0.0,
};

fn summary(site: Option<SiteId>, sites: &WaitSites) -> SiteSummary {
    site.map_or(NOWHERE, |site| sites.meaning(site))
}

fn interval(pid: u32, away: OffCpuSpan, sites: &WaitSites) -> OffCpuInterval {
    let (meaning, cause) = match away.why {
        SwitchOutReason::Waits { site } => (summary(site, sites), OffCpuCause::Waits),
        SwitchOutReason::Preempted => (NOWHERE, OffCpuCause::Preempted),
        SwitchOutReason::Unseen => (NOWHERE, OffCpuCause::Unseen),
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::kallsyms::KernelSymbols;

    /// Regression: a profile with off-CPU time grew by 26 MB, for intervals that it did not use.
    #[test]
    fn a_window_without_single_intervals_keeps_none_and_misses_none() {
        let away = OffCpuSpan {
            start_ns: 1,
            woken_ns: 1,
            end_ns: 2,
            why: SwitchOutReason::Preempted,
        };
        let account = SliceAccount {
            present_ns: 10,
            away: vec![away; 3],
            ..SliceAccount::default()
        };
        let kept = |intervals_max| {
            let mut servers = ProfiledServers::new(KernelSymbols::default());
            let mut slices = Slices::new(intervals_max);
            slices.add_account(5_000_000, &account, &mut servers);
            let found = slices.finish();
            assert_eq!(found.processes[0].present_ns, 10);
            (found.intervals.len(), found.intervals_dropped)
        };
        assert_eq!(kept(0), (0, 0));
        assert_eq!(kept(2), (2, 1));
    }
}
