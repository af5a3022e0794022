//! The start and end of slices, and their events.
//!
//! Outside slices the events are disabled and cost nothing. First they are enabled on all CPUs, then
//! the state of each process is sampled, and then the slice starts, so that the initial state of each
//! process is known from its sample or from the records since. The slice ends before the first event
//! is disabled.

use crate::off_cpu::data::{OffCpuConfig, Slice};
use crate::off_cpu::slices::{SliceRecords, Slices};
use crate::perf::error::SamplerError;
use crate::perf::event::{self, CpuEvent, EventKind, EventShape};
use crate::perf::switch_record;
use crate::perf::tracefs::wake_up_tracepoint;
use crate::proc::clocks::monotonic_ns;
use crate::servers::ProfiledServers;
use std::time::{Duration, Instant};

/// The period of stack copies in the first slice, before the rate of switches is known.
const STACK_EVERY_FIRST: u32 = 31;

/// Interval of state samples within a slice.
const STATE_SAMPLE_EVERY: Duration = Duration::from_millis(10);

/// The events of slices, and the time of the next step.
pub(crate) struct Slicer {
    config: OffCpuConfig,
    switches: Rings,
    stacks: Rings,
    wake_ups: Option<(Rings, usize)>,
    next: Option<Instant>,
    open: Option<Open>,
    /// The state of a random number generator.
    random: u64,
}

struct Open {
    recorded_ns: u64,
    start_ns: u64,
    /// The kernel's count of lost records, if available.
    lost_before: Option<u64>,
    end: Instant,
    pids: Vec<u32>,
}

/// One event for each CPU, and its records in this slice so far.
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
        // Stacks first: of two simultaneous events the kernel handles the newer one first. Some
        // kernels (6.18) compute a record's size from the data collected for the previous event;
        // in the opposite order every switch record would reserve space for a stack.
        let every = STACK_EVERY_FIRST;
        let stacks = Rings::open(EventKind::SwitchStacks { every, stack_bytes }, ring_bytes)?;
        let switches = Rings::open(EventKind::Switches, ring_bytes)?;
        let wake_ups = match wake_up_tracepoint() {
            Ok((id, pid_offset)) => match Rings::open(EventKind::Tracepoint { id }, ring_bytes) {
                Ok(rings) => Some((rings, pid_offset)),
                Err(error) if event::may_fit_if_smaller(&error) => return Err(error),
                // Tracepoints require more privileges than switches; without them there are no wake-ups.
                Err(error) => {
                    tracing::debug!(%error, "wake-ups are not recorded");
                    None
                }
            },
            Err(hidden) => {
                tracing::debug!(?hidden, "wake-ups are not recorded");
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

    /// Maximum number of individual intervals.
    pub fn intervals_max(&self) -> usize {
        self.config.intervals_max
    }

    /// Starts a window, with the first slice at a random time in the first period.
    pub fn begin(&mut self) {
        let room = self.config.every.saturating_sub(self.config.slice);
        self.next = Some(Instant::now() + room.mul_f64(self.draw()));
        for rings in self.all_mut() {
            rings.clear();
        }
    }

    /// Time until the next step.
    pub fn due_in(&self) -> Option<Duration> {
        self.next
            .map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// Performs the next step if it is due.
    pub fn step(
        &mut self,
        slices: &mut Slices,
        servers: &mut ProfiledServers,
    ) -> Result<(), SamplerError> {
        for rings in self.all_mut() {
            rings.drain();
        }
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return Ok(());
        }
        match &self.open {
            None => self.begin_slice(slices, servers),
            Some(open) if now < open.end => {
                look(&open.pids, slices, servers);
                self.next = Some(open.end.min(Instant::now() + STATE_SAMPLE_EVERY));
                Ok(())
            }
            Some(_) => self.end_slice(slices, servers),
        }
    }

    /// Ends the window, and a slice that has started.
    pub fn end(
        &mut self,
        slices: &mut Slices,
        servers: &mut ProfiledServers,
    ) -> Result<(), SamplerError> {
        self.next = None;
        if self.open.is_some() {
            self.end_slice(slices, servers)?;
            self.next = None;
        }
        Ok(())
    }

    /// Stops recording in this window after an event has failed.
    pub fn abandon(&mut self) {
        self.next = None;
        self.open = None;
    }

    fn begin_slice(
        &mut self,
        slices: &mut Slices,
        servers: &mut ProfiledServers,
    ) -> Result<(), SamplerError> {
        let pids = slices.begin(&servers.processes);
        for rings in self.all_mut() {
            rings.clear();
            rings.events.iter().try_for_each(CpuEvent::enable)?;
        }
        let lost_before = self.lost_total();
        let recorded_ns = monotonic_ns();
        look(&pids, slices, servers);
        let start_ns = monotonic_ns();
        let end = Instant::now() + self.config.slice;
        self.next = Some(end.min(Instant::now() + STATE_SAMPLE_EVERY));
        self.open = Some(Open {
            recorded_ns,
            start_ns,
            lost_before,
            end,
            pids,
        });
        Ok(())
    }

    fn end_slice(
        &mut self,
        slices: &mut Slices,
        servers: &mut ProfiledServers,
    ) -> Result<(), SamplerError> {
        let end_ns = monotonic_ns();
        for rings in self.all_mut() {
            rings.events.iter().try_for_each(CpuEvent::disable)?;
            rings.drain();
        }
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        // The last lost records would only be reported in the next slice's first record.
        let lost = open.lost_before.zip(self.lost_total());
        let records = SliceRecords {
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
        };
        slices.end(&records, servers);
        self.choose_stacks()?;
        let gap = self.config.every.saturating_sub(self.config.slice);
        self.next = Some(Instant::now() + gap.mul_f64(0.75 + 0.5 * self.draw()));
        Ok(())
    }

    /// Adapts the period of stack copies to the rate of switches: a fixed one would give too few
    /// stacks at a low rate and cost too much at a high one.
    fn choose_stacks(&mut self) -> Result<(), SamplerError> {
        let rings = self.stacks.events.iter().zip(&self.switches.buffers);
        for (stacks, switches) in rings {
            let switches = switch_record::count_switches(switches);
            let every = switches / u64::from(self.config.stacks_per_slice);
            stacks.set_period(every.max(1))?;
        }
        Ok(())
    }

    /// A random number from 0 to 1, by Knuth's MMIX generator.
    fn draw(&mut self) -> f64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Switches and wake-ups lost since the events were opened.
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

fn look(pids: &[u32], slices: &mut Slices, servers: &mut ProfiledServers) {
    for &pid in pids {
        slices.sample_state(pid, monotonic_ns(), servers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::record::RawRecords;

    #[test]
    fn a_switch_record_has_no_space_for_a_stack() {
        let opened = event::open_with_rings(8 << 20, |ring_bytes| {
            Slicer::open(OffCpuConfig::default(), 24 * 1024, ring_bytes)
        });
        let mut slicer = match opened {
            Ok(slicer) => slicer,
            Err(error @ (SamplerError::NotPermitted(_) | SamplerError::Unsupported { .. })) => {
                pgassay_test_support::skip("records of switches", &error.to_string());
                return;
            }
            Err(error) => panic!("{error}"),
        };
        // With few switches, each has its stack copied.
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
