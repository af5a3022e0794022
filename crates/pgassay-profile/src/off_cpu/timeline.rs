//! The account of one process in a slice, from its scheduler events: pure accounting.
//!
//! Invariant: `present = on_cpu + preempted + woken + Σ blocked + unseen`, to the nanosecond, for any
//! events in any order: every interval between two events goes to exactly one of them.
//!
//! The state of a process at the start of the slice follows from its first event: if it is woken, it
//! was blocked; if it is switched in, it was runnable; if it is switched out, it was on CPU. Without
//! any event, a state sample decides.

use crate::off_cpu::data::Slice;
use crate::perf::switch_record::{SchedEvent, SchedEventKind};

/// The call site at which a process is blocked, identified by stack and instruction pointer.
pub(crate) type SiteId = u32;

/// A scheduler event, with the call site if it starts a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimelineStep {
    pub sched_event: SchedEvent,
    pub site: Option<SiteId>,
}

/// The recorded period, and the slice, which is the part of it that counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recording {
    /// Every switch from this time on was recorded. State samples are taken before the slice
    /// starts, so that the call sites of blocked processes are known by then.
    pub start_ns: u64,
    pub slice: Slice,
    /// Wake-ups were recorded too.
    pub wake_ups: bool,
}

/// A state sample of a process, taken while switches were recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimedState {
    pub time_ns: u64,
    pub state: SampledState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampledState {
    Blocked {
        site: Option<SiteId>,
    },
    /// On CPU or in the run queue.
    Runnable,
}

/// What is known about a process besides its events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct InitialState {
    /// It existed when recording started.
    pub is_present: bool,
    /// Its first state sample.
    pub seen: Option<TimedState>,
    /// It used CPU time in this slice according to the kernel's totals; `None` if not read.
    pub used_cpu: Option<bool>,
}

/// The account of a process in a slice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SliceAccount {
    pub present_ns: u64,
    pub on_cpu_ns: u64,
    pub preempted_ns: u64,
    pub preempted: u64,
    pub woken_ns: u64,
    pub unseen_ns: u64,
    pub away: Vec<OffCpuSpan>,
}

/// An off-CPU interval, or one in an unknown state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OffCpuSpan {
    pub start_ns: u64,
    /// When it became runnable: `start_ns` if it was preempted.
    pub woken_ns: u64,
    pub end_ns: u64,
    pub why: SwitchOutReason,
}

/// Why a process left its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SwitchOutReason {
    Preempted,
    /// To wait, with the call site if known.
    Waits {
        site: Option<SiteId>,
    },
    /// Unknown; it may have been on CPU.
    Unseen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    OnCpu,
    Preempted,
    Blocked { site: Option<SiteId> },
    Woken { woken_ns: u64, site: Option<SiteId> },
    Unseen,
}

impl SliceAccount {
    /// Accounts for a process's steps, which are ordered by time and may be outside the slice.
    pub fn of(recording: &Recording, before: &InitialState, steps: &[TimelineStep]) -> Self {
        let mut account = Self::default();
        let slice = recording.slice;
        let recorded = recording.start_ns..slice.end_ns;
        let is_recorded = |step: &&TimelineStep| recorded.contains(&step.sched_event.time_ns);
        let mut since = slice.start_ns;
        let first = steps.iter().find(is_recorded);
        let mut state = initial(slice.start_ns, before, first, recording.wake_ups);
        for step in steps.iter().filter(is_recorded) {
            // Events before the slice only determine the state at its start.
            let is_in_slice = step.sched_event.time_ns >= slice.start_ns;
            let now = step.sched_event.time_ns.max(slice.start_ns);
            let next = match (step.sched_event.what, state) {
                // A wake-up of a process that is not blocked has no effect.
                (SchedEventKind::Woken, State::Blocked { site }) => State::Woken {
                    woken_ns: now,
                    site,
                },
                (SchedEventKind::Woken, State::Absent) => State::Woken {
                    woken_ns: now,
                    site: None,
                },
                (SchedEventKind::Woken, _) => continue,
                (SchedEventKind::In, _) => State::OnCpu,
                (SchedEventKind::Preempted, _) => State::Preempted,
                (SchedEventKind::Waits { .. }, _) => State::Blocked { site: step.site },
                (SchedEventKind::Ended, _) => State::Absent,
            };
            // Blocked and woken are parts of one interval.
            if !matches!(next, State::Woken { .. }) || state == State::Absent {
                if is_in_slice {
                    account.close(state, since, now, &next);
                }
                since = now;
            }
            state = next;
            if step.sched_event.what == SchedEventKind::Ended {
                break;
            }
        }
        account.close(state, since, slice.end_ns, &State::Absent);
        account
    }

    /// Ends an interval in a state.
    fn close(&mut self, state: State, start_ns: u64, end_ns: u64, next: &State) {
        let len_ns = end_ns - start_ns;
        if state != State::Absent {
            self.present_ns += len_ns;
        }
        let away = |woken_ns, why| OffCpuSpan {
            start_ns,
            woken_ns,
            end_ns,
            why,
        };
        match state {
            State::Absent => {}
            State::Unseen => {
                self.unseen_ns += len_ns;
                self.away.push(away(start_ns, SwitchOutReason::Unseen));
            }
            State::OnCpu => self.on_cpu_ns += len_ns,
            // To be switched out it must have been on CPU in between: a record is missing.
            State::Preempted | State::Blocked { .. } | State::Woken { .. }
                if matches!(next, State::Preempted | State::Blocked { .. }) =>
            {
                self.unseen_ns += len_ns;
                self.away.push(away(start_ns, SwitchOutReason::Unseen));
            }
            State::Preempted => {
                self.preempted_ns += len_ns;
                self.preempted += 1;
                self.away.push(away(start_ns, SwitchOutReason::Preempted));
            }
            State::Blocked { site } => self
                .away
                .push(away(end_ns, SwitchOutReason::Waits { site })),
            State::Woken { woken_ns, site } => {
                self.woken_ns += end_ns - woken_ns;
                self.away
                    .push(away(woken_ns, SwitchOutReason::Waits { site }));
            }
        }
    }

    /// Total blocked time of all intervals.
    #[cfg(test)]
    fn blocked_ns(&self) -> u64 {
        let waits = self
            .away
            .iter()
            .filter(|it| matches!(it.why, SwitchOutReason::Waits { .. }));
        waits.map(OffCpuSpan::blocked_ns).sum()
    }
}

impl OffCpuSpan {
    /// The time until the wake-up.
    pub fn blocked_ns(&self) -> u64 {
        self.woken_ns - self.start_ns
    }
}

/// The state of a process at the start of a slice.
fn initial(
    start_ns: u64,
    before: &InitialState,
    first: Option<&TimelineStep>,
    wake_ups: bool,
) -> State {
    if !before.is_present {
        return State::Absent;
    }
    // A sample taken after the first event does not show the state before it.
    let is_before =
        |seen: &TimedState| first.is_none_or(|it| seen.time_ns < it.sched_event.time_ns);
    let seen = before.seen.filter(is_before).map(|seen| seen.state);
    let site = match seen {
        Some(SampledState::Blocked { site }) => site,
        _ => None,
    };
    let runnable = State::Woken {
        woken_ns: start_ns,
        site: None,
    };
    match first.map(|it| it.sched_event.what) {
        Some(SchedEventKind::Woken) => State::Blocked { site },
        // Some kernels do not report all wake-ups by an idle CPU's timer, so a process that was blocked
        // is taken to have been blocked until it was switched in.
        Some(SchedEventKind::In) => match seen {
            Some(SampledState::Blocked { .. }) => State::Blocked { site },
            None if !wake_ups => State::Blocked { site },
            Some(SampledState::Runnable) | None => runnable,
        },
        Some(SchedEventKind::Preempted | SchedEventKind::Waits { .. } | SchedEventKind::Ended) => {
            State::OnCpu
        }
        None => match (seen, before.used_cpu) {
            (Some(SampledState::Blocked { site }), _) => State::Blocked { site },
            (Some(SampledState::Runnable), Some(true)) => State::OnCpu,
            (Some(SampledState::Runnable), Some(false)) => runnable,
            _ => State::Unseen,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Slice = Slice {
        start_ns: 100,
        end_ns: 200,
    };
    const WAITS: SchedEventKind = SchedEventKind::Waits { regs: None };

    fn step(time_ns: u64, what: SchedEventKind, site: Option<SiteId>) -> TimelineStep {
        let sched_event = SchedEvent {
            time_ns,
            tid: 1,
            what,
        };
        TimelineStep { sched_event, site }
    }

    /// The account of a process if recording starts with the slice.
    fn account_of(before: &InitialState, steps: &[TimelineStep], wake_ups: bool) -> SliceAccount {
        let recording = Recording {
            start_ns: SLICE.start_ns,
            slice: SLICE,
            wake_ups,
        };
        SliceAccount::of(&recording, before, steps)
    }

    fn present() -> InitialState {
        InitialState {
            is_present: true,
            ..InitialState::default()
        }
    }

    fn identity_holds(account: &SliceAccount) -> bool {
        account.present_ns
            == account.on_cpu_ns
                + account.preempted_ns
                + account.woken_ns
                + account.unseen_ns
                + account.blocked_ns()
    }

    #[test]
    fn a_wait_is_split_at_its_wake_up() {
        let steps = [
            step(110, WAITS, Some(7)),
            step(150, SchedEventKind::Woken, None),
            step(160, SchedEventKind::In, None),
            step(170, SchedEventKind::Preempted, None),
            step(175, SchedEventKind::In, None),
        ];
        let account = account_of(&present(), &steps, true);
        assert_eq!(account.on_cpu_ns, 10 + 10 + 25);
        assert_eq!((account.woken_ns, account.preempted_ns), (10, 5));
        assert_eq!(account.preempted, 1);
        let first = OffCpuSpan {
            start_ns: 110,
            woken_ns: 150,
            end_ns: 160,
            why: SwitchOutReason::Waits { site: Some(7) },
        };
        assert_eq!(account.away[0], first);
        assert_eq!(account.present_ns, 100);
        assert!(identity_holds(&account));
    }

    #[test]
    fn the_first_event_determines_the_state_before_it() {
        let first = |what, wake_ups| {
            let account = account_of(&present(), &[step(130, what, None)], wake_ups);
            assert!(identity_holds(&account), "{account:?}");
            (account.on_cpu_ns, account.woken_ns, account.blocked_ns())
        };
        assert_eq!(first(WAITS, true), (30, 0, 70));
        assert_eq!(first(SchedEventKind::In, true), (70, 30, 0), "no wake-up");
        assert_eq!(
            first(SchedEventKind::In, false),
            (70, 0, 30),
            "wake-ups were not recorded"
        );
        assert_eq!(first(SchedEventKind::Woken, true), (0, 70, 30));
        assert_eq!(first(SchedEventKind::Ended, true), (30, 0, 0));
    }

    /// Regression: half of the backends whose `pg_sleep` ended in a slice had been in the run queue since
    /// its start, according to the account, because the kernel had not reported their wake-ups.
    #[test]
    fn a_process_seen_blocked_was_not_in_the_run_queue_if_its_wake_up_is_missing() {
        let account_if = |state| {
            let seen = TimedState { time_ns: 90, state };
            let before = InitialState {
                seen: Some(seen),
                ..present()
            };
            let recording = Recording {
                start_ns: 80,
                slice: SLICE,
                wake_ups: true,
            };
            let steps = [step(130, SchedEventKind::In, None)];
            let account = SliceAccount::of(&recording, &before, &steps);
            assert!(identity_holds(&account), "{account:?}");
            (account.on_cpu_ns, account.woken_ns, account.blocked_ns())
        };
        let blocked = SampledState::Blocked { site: Some(3) };
        assert_eq!(account_if(blocked), (70, 0, 30));
        assert_eq!(account_if(SampledState::Runnable), (70, 30, 0));
    }

    #[test]
    fn events_before_the_slice_determine_the_state_at_its_start() {
        let recording = Recording {
            start_ns: 50,
            slice: SLICE,
            wake_ups: true,
        };
        let steps = [
            step(40, SchedEventKind::Ended, None),
            step(60, SchedEventKind::In, None),
            step(70, WAITS, Some(7)),
            step(150, SchedEventKind::Woken, None),
            step(160, SchedEventKind::In, None),
        ];
        let account = SliceAccount::of(&recording, &present(), &steps);
        let wait = OffCpuSpan {
            start_ns: 100,
            woken_ns: 150,
            end_ns: 160,
            why: SwitchOutReason::Waits { site: Some(7) },
        };
        assert_eq!(account.away, [wait]);
        assert_eq!((account.on_cpu_ns, account.present_ns), (40, 100));
        // Woken before the slice, it is in the run queue from its start.
        let account = SliceAccount::of(
            &recording,
            &present(),
            &[steps[2], step(90, SchedEventKind::Woken, None)],
        );
        assert_eq!((account.woken_ns, account.blocked_ns()), (100, 0));
        assert!(identity_holds(&account));
    }

    #[test]
    fn a_state_sample_gives_the_site_of_a_wait_that_outlasts_the_slice() {
        let seen = TimedState {
            time_ns: 101,
            state: SampledState::Blocked { site: Some(3) },
        };
        let before = InitialState {
            seen: Some(seen),
            ..present()
        };
        let account = account_of(&before, &[], true);
        let whole = OffCpuSpan {
            start_ns: 100,
            woken_ns: 200,
            end_ns: 200,
            why: SwitchOutReason::Waits { site: Some(3) },
        };
        assert_eq!(account.away, [whole]);
        let steps = [step(100, SchedEventKind::Woken, None)];
        let account = account_of(&before, &steps, true);
        assert_eq!(
            account.away[0].why,
            SwitchOutReason::Waits { site: None },
            "the sample was too late"
        );
    }

    #[test]
    fn cpu_time_distinguishes_running_throughout_from_starving_in_the_run_queue() {
        let runnable = |used_cpu| {
            let seen = TimedState {
                time_ns: 101,
                state: SampledState::Runnable,
            };
            let before = InitialState {
                is_present: true,
                seen: Some(seen),
                used_cpu,
            };
            let account = account_of(&before, &[], true);
            assert!(identity_holds(&account));
            (account.on_cpu_ns, account.woken_ns, account.unseen_ns)
        };
        assert_eq!(runnable(Some(true)), (100, 0, 0));
        assert_eq!(runnable(Some(false)), (0, 100, 0));
        assert_eq!(runnable(None), (0, 0, 100));
    }

    #[test]
    fn a_process_is_present_only_from_its_start_to_its_end() {
        let steps = [
            step(120, SchedEventKind::In, None),
            step(140, WAITS, None),
            step(150, SchedEventKind::In, None),
            step(155, SchedEventKind::Ended, None),
            step(156, WAITS, None),
        ];
        let account = account_of(&InitialState::default(), &steps, true);
        assert_eq!((account.present_ns, account.on_cpu_ns), (35, 25));
        assert!(identity_holds(&account));
    }

    #[test]
    fn the_identity_holds_for_any_order_of_events() {
        let mut random = 1_u64;
        let mut draw = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for round in 0..2000 {
            let mut steps: Vec<TimelineStep> = (0..draw(12))
                .map(|_| {
                    let what = match draw(9) {
                        0..3 => SchedEventKind::In,
                        3..5 => WAITS,
                        5..7 => SchedEventKind::Woken,
                        7 => SchedEventKind::Preempted,
                        _ => SchedEventKind::Ended,
                    };
                    step(90 + draw(120), what, Some(1))
                })
                .collect();
            steps.sort_by_key(|it| it.sched_event.time_ns);
            let before = InitialState {
                is_present: draw(3) > 0,
                ..InitialState::default()
            };
            let recording = Recording {
                start_ns: SLICE.start_ns - draw(9),
                slice: SLICE,
                wake_ups: draw(2) == 0,
            };
            let account = SliceAccount::of(&recording, &before, &steps);
            assert!(
                identity_holds(&account),
                "round {round}: {steps:?} {account:?}"
            );
            assert!(account.present_ns <= SLICE.len_ns());
        }
    }
}
