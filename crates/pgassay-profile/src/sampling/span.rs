//! The states of processes within given spans of time, such as a client's transactions.
//!
//! States are known only within slices, so only the part of a span that slices cover counts. Every
//! instant of the window has the same probability of being in a slice, so shares of the covered time
//! estimate shares of the whole, even for spans longer than a slice. Counting only spans that are
//! entirely within a slice would give short spans too much weight.
//!
//! Identity, in nanoseconds: `covered = on_cpu + run_queue + unseen + Σ blocked`.

use std::collections::{BTreeMap, HashMap};

use crate::off_cpu::data::{Blocked, OffCpu, OffCpuCause, OffCpuInterval, Slice};
use crate::sampling::samples::Samples;

/// A span of a process's time, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The process.
    pub pid: u32,
    /// Its start.
    pub start_ns: u64,
    /// Its end, exclusive.
    pub end_ns: u64,
}

/// The states of processes within their spans, as far as slices cover them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpanAccount {
    /// Number of spans that slices cover at least in part.
    pub spans: u64,
    /// Covered time.
    pub covered_ns: u64,
    /// On CPU.
    pub on_cpu_ns: u64,
    /// In the run queue, after a wake-up or a preemption.
    pub run_queue_ns: u64,
    /// In an unknown state.
    pub unseen_ns: u64,
    /// Blocked, by call site and wait event.
    pub blocked: Vec<Blocked>,
}

impl OffCpu {
    /// The slices with all their intervals.
    pub fn whole(&self) -> &[Slice] {
        &self.slices[..self.whole_slices]
    }

    /// The states of processes within these spans, in slices with all their intervals. The state of
    /// a process that did not exist throughout all slices is unknown.
    pub fn within(&self, spans: impl IntoIterator<Item = Span>) -> SpanAccount {
        let mut intervals: HashMap<u32, Vec<&OffCpuInterval>> = HashMap::new();
        let observed_ns = self.observed_ns();
        let always_there = self
            .processes
            .iter()
            .filter(|it| it.present_ns == observed_ns);
        for process in always_there {
            intervals.insert(process.pid, Vec::new());
        }
        // Ordered by their ends; the intervals of one process do not overlap.
        for interval in &self.intervals {
            if let Some(of_process) = intervals.get_mut(&interval.pid) {
                of_process.push(interval);
            }
        }
        let mut sums = SpanSums::default();
        for span in spans {
            let of_process = intervals.get(&span.pid).map(Vec::as_slice);
            sums.add(span, self.whole(), of_process);
        }
        sums.finish()
    }
}

impl Samples {
    /// The number of samples of each stack within these spans; the spans of a process must not
    /// overlap.
    pub fn within(&self, spans: impl IntoIterator<Item = Span>) -> BTreeMap<u32, u64> {
        let mut of_process: HashMap<u32, Vec<Span>> = HashMap::new();
        for span in spans {
            of_process.entry(span.pid).or_default().push(span);
        }
        for spans in of_process.values_mut() {
            spans.sort_unstable_by_key(|span| span.start_ns);
        }
        let mut counts = BTreeMap::new();
        for moment in &self.moments {
            let Some(spans) = of_process.get(&moment.pid) else {
                continue;
            };
            let next = spans.partition_point(|span| span.start_ns <= moment.time_ns);
            let last_begun = next.checked_sub(1).map(|at| spans[at]);
            if last_begun.is_some_and(|span| moment.time_ns < span.end_ns) {
                *counts.entry(moment.stack).or_default() += 1;
            }
        }
        counts
    }
}

#[derive(Default)]
struct SpanSums {
    account: SpanAccount,
    /// Count and nanoseconds, by stack and wait event.
    blocked: BTreeMap<(Option<u32>, Option<u32>), (u64, u64)>,
}

impl SpanSums {
    fn add(&mut self, span: Span, slices: &[Slice], intervals: Option<&[&OffCpuInterval]>) {
        let first = slices.partition_point(|slice| slice.end_ns <= span.start_ns);
        let mut is_covered = false;
        for slice in &slices[first..] {
            let start_ns = slice.start_ns.max(span.start_ns);
            let end_ns = slice.end_ns.min(span.end_ns);
            if start_ns >= end_ns {
                break;
            }
            is_covered = true;
            self.account.covered_ns += end_ns - start_ns;
            match intervals {
                Some(intervals) => self.add_piece(start_ns, end_ns, intervals),
                None => self.account.unseen_ns += end_ns - start_ns,
            }
        }
        self.account.spans += u64::from(is_covered);
    }

    /// Adds a part of a span that one slice covers entirely.
    fn add_piece(&mut self, start_ns: u64, end_ns: u64, intervals: &[&OffCpuInterval]) {
        let overlap =
            |from_ns: u64, to_ns: u64| to_ns.min(end_ns).saturating_sub(from_ns.max(start_ns));
        let first = intervals.partition_point(|it| it.end_ns <= start_ns);
        let mut away_ns = 0;
        for interval in &intervals[first..] {
            if interval.start_ns >= end_ns {
                break;
            }
            away_ns += overlap(interval.start_ns, interval.end_ns);
            let runnable_ns = overlap(interval.woken_ns, interval.end_ns);
            if interval.cause == OffCpuCause::Unseen {
                self.account.unseen_ns += runnable_ns;
                continue;
            }
            self.account.run_queue_ns += runnable_ns;
            let blocked_ns = overlap(interval.start_ns, interval.woken_ns);
            if blocked_ns > 0 {
                let key = (interval.stack, interval.wait);
                let (count, total_ns) = self.blocked.entry(key).or_default();
                *count += 1;
                *total_ns += blocked_ns;
            }
        }
        self.account.on_cpu_ns += end_ns - start_ns - away_ns;
    }

    fn finish(self) -> SpanAccount {
        let blocked = self.blocked.into_iter();
        SpanAccount {
            blocked: blocked
                .map(|((stack, wait), (count, total_ns))| Blocked {
                    stack,
                    wait,
                    count,
                    total_ns,
                })
                .collect(),
            ..self.account
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::off_cpu::data::ProcessOffCpu;
    use crate::proc::role::Role;
    use crate::sampling::samples::SampleMoment;

    fn interval(cause: OffCpuCause, start_ns: u64, woken_ns: u64, end_ns: u64) -> OffCpuInterval {
        OffCpuInterval {
            pid: 1,
            start_ns,
            woken_ns,
            end_ns,
            cause,
            stack: Some(7),
            wait: None,
        }
    }

    /// Two slices, 100 to 200 and 300 to 400; process 1 exists throughout both.
    fn observed(intervals: Vec<OffCpuInterval>) -> OffCpu {
        let slice = |start_ns| Slice {
            start_ns,
            end_ns: start_ns + 100,
        };
        let process = |pid, present_ns| ProcessOffCpu {
            pid,
            postmaster_pid: 9,
            role: Role::Backend,
            present_ns,
            on_cpu_ns: 0,
            preempted_ns: 0,
            preempted: 0,
            woken_ns: 0,
            unseen_ns: 0,
            blocked: Vec::new(),
        };
        OffCpu {
            slices: vec![slice(100), slice(300)],
            whole_slices: 2,
            processes: vec![process(1, 200), process(2, 150)],
            intervals,
            ..OffCpu::default()
        }
    }

    fn span(pid: u32, start_ns: u64, end_ns: u64) -> Span {
        Span {
            pid,
            start_ns,
            end_ns,
        }
    }

    fn identity_holds(account: &SpanAccount) -> bool {
        let blocked_ns: u64 = account.blocked.iter().map(|it| it.total_ns).sum();
        let known_ns = account.on_cpu_ns + account.run_queue_ns + blocked_ns;
        account.covered_ns == known_ns + account.unseen_ns
    }

    #[test]
    fn only_the_part_of_a_span_within_slices_counts() {
        use OffCpuCause::{Preempted, Unseen, Waits};
        let off_cpu = observed(vec![
            interval(Waits, 110, 140, 150),
            interval(Preempted, 160, 160, 170),
            interval(Unseen, 190, 190, 200),
            interval(Waits, 300, 330, 330),
        ]);
        // From 120: blocked 20, runnable 10, running 10, preempted 10, running 20, unknown 10; then
        // nothing until 300, blocked 30, running 20.
        let account = off_cpu.within([span(1, 120, 350)]);
        assert!(identity_holds(&account), "{account:?}");
        assert_eq!((account.spans, account.covered_ns), (1, 130));
        assert_eq!((account.on_cpu_ns, account.run_queue_ns), (50, 20));
        assert_eq!(account.unseen_ns, 10);
        let [blocked] = &account.blocked[..] else {
            panic!("{account:?}")
        };
        assert_eq!((blocked.stack, blocked.count), (Some(7), 2));
        assert_eq!(blocked.total_ns, 50);
        // Between slices nothing is known.
        assert_eq!(off_cpu.within([span(1, 200, 300)]), SpanAccount::default());
    }

    #[test]
    fn samples_count_in_the_span_in_which_they_were_taken() {
        let moment = |pid, time_ns, stack| SampleMoment {
            pid,
            time_ns,
            stack,
        };
        let samples = Samples {
            moments: vec![
                moment(1, 99, 4),
                moment(1, 100, 5),
                moment(1, 149, 5),
                moment(1, 150, 6),
                moment(1, 220, 7),
                moment(2, 120, 8),
            ],
            ..Samples::default()
        };
        let within = samples.within([span(1, 200, 230), span(1, 100, 150)]);
        assert_eq!(within, BTreeMap::from([(5, 2), (7, 1)]));
    }

    #[test]
    fn a_process_that_did_not_exist_throughout_is_unseen() {
        let off_cpu = observed(Vec::new());
        for pid in [2, 3] {
            let account = off_cpu.within([span(pid, 150, 250)]);
            assert_eq!((account.covered_ns, account.unseen_ns), (50, 50));
        }
        assert_eq!(off_cpu.within([span(1, 150, 250)]).on_cpu_ns, 50);
    }

    #[test]
    fn slices_without_all_intervals_do_not_count() {
        let off_cpu = OffCpu {
            whole_slices: 1,
            ..observed(Vec::new())
        };
        assert_eq!(off_cpu.within([span(1, 0, 500)]).covered_ns, 100);
    }

    #[test]
    fn the_identity_holds_for_any_spans() {
        let mut random = 7_u64;
        let mut draw = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..2000 {
            let mut intervals = Vec::new();
            for slice_ns in [100, 300] {
                let mut at_ns = slice_ns;
                while at_ns < slice_ns + 90 {
                    let start_ns = at_ns + draw(10);
                    let len_ns = draw(slice_ns + 100 - start_ns) + 1;
                    let (woken_ns, cause) = match draw(3) {
                        0 => (start_ns, OffCpuCause::Preempted),
                        1 => (start_ns, OffCpuCause::Unseen),
                        _ => (start_ns + draw(len_ns + 1), OffCpuCause::Waits),
                    };
                    at_ns = start_ns + len_ns;
                    intervals.push(interval(cause, start_ns, woken_ns, at_ns));
                }
            }
            let start_ns = draw(400);
            let account = observed(intervals).within([span(1, start_ns, start_ns + draw(300))]);
            assert!(identity_holds(&account), "{account:?}");
        }
    }
}
