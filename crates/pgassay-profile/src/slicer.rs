//! When slices begin and end, and the events that are on in between.
//!
//! Outside of slices the events are disabled and cost nothing. They are on, on all CPUs, while the
//! processes are looked at; then the slice begins, so that it finds each in a state that is known, by
//! the look or by what has been recorded since. It ends before the first event is turned off.

use crate::clock::monotonic_ns;
use crate::error::SamplerError;
use crate::event::{self, CpuEvent, EventKind, EventShape};
use crate::off_cpu::{OffCpuConfig, Slice};
use crate::slices::SliceRecords;
use crate::switch_record::{self, field_offset};
use crate::tally::Tally;
use crate::tracefs::{Events, Hidden};
use std::time::{Duration, Instant};

/// One in so many switches has its stack copied before there was a slice to tell how many there are.
const STACK_EVERY_FIRST: u32 = 31;

/// Within a slice, processes are looked at again this often.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The events of slices, and when the next thing is to be done.
pub(crate) struct Slicer {
    config: OffCpuConfig,
    switches: Rings,
    stacks: Rings,
    wake_ups: Option<(Rings, usize)>,
    next: Option<Instant>,
    open: Option<Open>,
    /// The state of a small generator of random numbers.
    random: u64,
}

struct Open {
    recorded_ns: u64,
    start_ns: u64,
    /// The kernel's count of lost records, where it keeps one.
    lost_before: Option<u64>,
    end: Instant,
    pids: Vec<u32>,
}

/// One event of each CPU, and what its ring held so far in this slice.
struct Rings {
    events: Vec<CpuEvent>,
    buffers: Vec<Vec<u8>>,
}

impl Slicer {
    /// Opens the events, disabled.
    pub fn open(
        config: OffCpuConfig,
        stack_bytes: u32,
        ring_bytes: usize,
    ) -> Result<Self, SamplerError> {
        // Stacks first: of two events that occur at once the kernel serves the younger one first, and
        // where it reckons a record's size from what the one before has gathered (6.18 does), every
        // switch would have the room of a stack.
        let every = STACK_EVERY_FIRST;
        let stacks = Rings::open(EventKind::SwitchStacks { every, stack_bytes }, ring_bytes)?;
        let switches = Rings::open(EventKind::Switches, ring_bytes)?;
        let wake_ups = match wake_up_tracepoint() {
            // Tracepoints need more rights than switches; without them there are no wake-ups.
            Ok((id, pid_offset)) => Rings::open(EventKind::Tracepoint { id }, ring_bytes)
                .inspect_err(|error| tracing::debug!(%error, "wake-ups are not seen"))
                .ok()
                .map(|rings| (rings, pid_offset)),
            Err(hidden) => {
                tracing::debug!(?hidden, "wake-ups are not seen");
                None
            }
        };
        Ok(Self {
            config,
            switches,
            stacks,
            wake_ups,
            next: None,
            open: None,
            random: 0x9e37_79b9_7f4a_7c15,
        })
    }

    /// For `poll`.
    pub fn raw_fds(&self) -> impl Iterator<Item = i32> {
        self.all()
            .flat_map(|rings| rings.events.iter().map(CpuEvent::raw_fd))
    }

    /// How many of each slice's intervals are kept.
    pub fn intervals_max(&self) -> usize {
        self.config.intervals_max
    }

    /// A window begins, with its first slice somewhere in its first stretch.
    pub fn begin(&mut self) {
        let room = self.config.every.saturating_sub(self.config.slice);
        self.next = Some(Instant::now() + room.mul_f64(self.draw()));
        for rings in self.all_mut() {
            rings.clear();
        }
    }

    /// How long nothing is to be done.
    pub fn due_in(&self) -> Option<Duration> {
        self.next
            .map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// Does what is due.
    pub fn step(&mut self, tally: &mut Tally) -> Result<(), SamplerError> {
        for rings in self.all_mut() {
            rings.drain();
        }
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return Ok(());
        }
        match &self.open {
            None => self.begin_slice(tally),
            Some(open) if now < open.end => {
                look(&open.pids, tally);
                self.next = Some(open.end.min(Instant::now() + LOOK_EVERY));
                Ok(())
            }
            Some(_) => self.end_slice(tally),
        }
    }

    /// The window is over, and with it a slice that has begun.
    pub fn end(&mut self, tally: &mut Tally) -> Result<(), SamplerError> {
        self.next = None;
        if self.open.is_some() {
            self.end_slice(tally)?;
            self.next = None;
        }
        Ok(())
    }

    /// Does nothing more in this window, since an event has failed.
    pub fn abandon(&mut self) {
        self.next = None;
        self.open = None;
    }

    fn begin_slice(&mut self, tally: &mut Tally) -> Result<(), SamplerError> {
        let pids = tally.begin_slice();
        for rings in self.all_mut() {
            rings.clear();
            rings.events.iter().try_for_each(CpuEvent::enable)?;
        }
        let lost_before = self.lost_total();
        let recorded_ns = monotonic_ns();
        look(&pids, tally);
        let start_ns = monotonic_ns();
        let end = Instant::now() + self.config.slice;
        self.next = Some(end.min(Instant::now() + LOOK_EVERY));
        self.open = Some(Open {
            recorded_ns,
            start_ns,
            lost_before,
            end,
            pids,
        });
        Ok(())
    }

    fn end_slice(&mut self, tally: &mut Tally) -> Result<(), SamplerError> {
        let end_ns = monotonic_ns();
        for rings in self.all_mut() {
            rings.events.iter().try_for_each(CpuEvent::disable)?;
            rings.drain();
        }
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        // What was lost last stands in no record before the next slice's first.
        let lost = open.lost_before.zip(self.lost_total());
        tally.end_slice(&SliceRecords {
            lost: lost.map(|(before, now)| now.saturating_sub(before)),
            start_ns: open.recorded_ns,
            slice: Slice {
                start_ns: open.start_ns,
                end_ns,
            },
            switches: &self.switches.buffers,
            stacks: &self.stacks.buffers,
            wake_ups: self
                .wake_ups
                .as_ref()
                .map(|(rings, pid_offset)| (&rings.buffers[..], *pid_offset)),
        });
        self.choose_stacks()?;
        let gap = self.config.every.saturating_sub(self.config.slice);
        self.next = Some(Instant::now() + gap.mul_f64(0.75 + 0.5 * self.draw()));
        Ok(())
    }

    /// Where switches are few, so would be the stacks of one in so many; where they are many, so would
    /// be their cost.
    fn choose_stacks(&mut self) -> Result<(), SamplerError> {
        let rings = self.stacks.events.iter().zip(&self.switches.buffers);
        for (stacks, switches) in rings {
            let switches = switch_record::count_switches(switches);
            let every = switches / u64::from(self.config.stacks_per_slice);
            stacks.set_period(every.max(1))?;
        }
        Ok(())
    }

    /// From 0 to 1; see Knuth's MMIX generator.
    fn draw(&mut self) -> f64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Switches and wake-ups that the kernel could not record since the events were opened.
    fn lost_total(&self) -> Option<u64> {
        let wake_ups = self.wake_ups.iter().flat_map(|it| &it.0.events);
        let events = self.switches.events.iter().chain(wake_ups);
        events.map(CpuEvent::lost_total).sum()
    }

    fn all(&self) -> impl Iterator<Item = &Rings> {
        let wake_ups = self.wake_ups.as_ref().map(|it| &it.0);
        [&self.stacks, &self.switches].into_iter().chain(wake_ups)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Rings> {
        let wake_ups = self.wake_ups.as_mut().map(|it| &mut it.0);
        [&mut self.stacks, &mut self.switches]
            .into_iter()
            .chain(wake_ups)
    }
}

impl Rings {
    fn open(kind: EventKind, ring_bytes: usize) -> Result<Self, SamplerError> {
        let events = event::open_all(EventShape { kind, ring_bytes })?;
        let buffers = events.iter().map(|_| Vec::new()).collect();
        Ok(Self { events, buffers })
    }

    fn drain(&mut self) {
        for (event, buffer) in self.events.iter_mut().zip(&mut self.buffers) {
            event.ring.drain_into(buffer);
        }
    }

    fn clear(&mut self) {
        self.drain();
        self.buffers.iter_mut().for_each(Vec::clear);
    }
}

fn look(pids: &[u32], tally: &mut Tally) {
    for &pid in pids {
        tally.look_at(pid, monotonic_ns());
    }
}

/// The number of the tracepoint, and where its data name the woken.
pub(crate) fn wake_up_tracepoint() -> Result<(u64, usize), Hidden> {
    let events = Events::open()?;
    let read = |file| events.read(&format!("sched/sched_wakeup/{file}")).ok();
    let found = || {
        Some((
            read("id")?.trim().parse().ok()?,
            field_offset(&read("format")?, "pid")?,
        ))
    };
    found().ok_or(Hidden::NotReadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RawRecords;
    use std::io::Write as _;

    #[test]
    fn a_switch_is_not_recorded_with_the_room_of_a_stack() {
        let mut slicer = match Slicer::open(OffCpuConfig::default(), 24 * 1024, 8 << 20) {
            Ok(slicer) => slicer,
            Err(SamplerError::NotPermitted(_) | SamplerError::Unsupported { .. }) => {
                let line =
                    "SKIPPED: a_switch_is_not_recorded_with_the_room_of_a_stack: not permitted\n";
                std::io::stderr().write_all(line.as_bytes()).unwrap();
                return;
            }
            Err(error) => panic!("{error}"),
        };
        // So few that each has its stack copied.
        slicer.choose_stacks().unwrap();
        for rings in slicer.all_mut() {
            rings.events.iter().try_for_each(CpuEvent::enable).unwrap();
        }
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(1));
        }
        for rings in slicer.all_mut() {
            rings.events.iter().try_for_each(CpuEvent::disable).unwrap();
            rings.drain();
        }
        let sizes = |rings: &Rings| -> Vec<usize> {
            let records = rings.buffers.iter().flat_map(|it| RawRecords::new(it));
            records.map(|it| it.unwrap().bytes.len()).collect()
        };
        let stacks = sizes(&slicer.stacks);
        let whole = stacks.iter().filter(|&&it| it > 24 * 1024).count();
        assert!(whole >= 50, "{whole} {stacks:?}");
        let switches = sizes(&slicer.switches);
        assert!(switches.len() >= 50, "{switches:?}");
        assert!(switches.iter().all(|&it| it < 256), "{switches:?}");
    }
}
