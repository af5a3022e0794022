//! The sampler: its handle, and the thread that reads the ring buffers.
//!
//! The thread owns the events, the rings and all collected data; the handle sends it commands and
//! waits for the results. While sampling is off, the thread sleeps and the events are disabled.
//! Trials without profiling then pay only for new processes and mappings, for which the kernel
//! prepares a record before it checks for a receiver.
//!
//! Profiling overhead on two virtual CPUs (select-only prepared, 16 clients, 99 Hz, 64 pairs):
//! throughput 0.972 ±0.021 of that without profiling, where a comparison without any change gives
//! 0.971 ±0.029 (BENCHMARKS.md). With 24 KiB of stack all samples of 9.6, 10, 15 and 18 reach the
//! entry (also with 16 KiB; with 8 KiB 80% do).

use crate::off_cpu::data::OffCpuConfig;
use crate::off_cpu::slicer::Slicer;
use crate::perf::error::{NotPermitted, SamplerError};
use crate::perf::event::{self, CpuEvent, EventKind, EventShape};
use crate::perf::ring::page_bytes;
use crate::perf::wake::Wake;
use crate::proc::clocks::thread_cpu_ns;
use crate::proc::maps;
use crate::sampling::samples::Samples;
use crate::sampling::tally::SampleTally;
use crate::unwind::kallsyms::KernelSymbols;
use crate::waits::reader::WaitReader;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum time between readings of the rings while sampling is on.
const READ_INTERVAL: Duration = Duration::from_millis(200);

/// How to sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplerConfig {
    /// The postmasters of the servers to profile from the start.
    pub postmaster_pids: Vec<u32>,
    /// Samples per second of each busy CPU.
    pub frequency_hz: u32,
    /// Size of the user stack copied with each sample: a multiple of 8 below 64 KiB.
    pub stack_bytes: u32,
    /// Size of each CPU's ring buffer: a power of two of pages. Smaller if the limit of locked
    /// memory requires it.
    pub ring_bytes: usize,
    /// Whether and how to record off-CPU time.
    pub off_cpu: Option<OffCpuConfig>,
    /// Whether to keep each sample with its time even without `off_cpu`; see [`Samples::moments`].
    pub keeps_moments: bool,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self {
            postmaster_pids: Vec::new(),
            frequency_hz: 99,
            stack_bytes: 24 * 1024,
            ring_bytes: 2 * 1024 * 1024,
            off_cpu: None,
            keeps_moments: false,
        }
    }
}

impl SamplerConfig {
    fn check(&self) -> Result<(), SamplerError> {
        let wrong = |what, range, value| Err(SamplerError::OutOfRange { what, range, value });
        if self.frequency_hz == 0 {
            return wrong("frequency_hz", "at least 1", 0);
        }
        if !(8..=65_000).contains(&self.stack_bytes) || !self.stack_bytes.is_multiple_of(8) {
            let range = "a multiple of 8 from 8 to 65000";
            return wrong("stack_bytes", range, self.stack_bytes.into());
        }
        let page_bytes = page_bytes();
        if !self.ring_bytes.is_power_of_two() || self.ring_bytes < 32 * page_bytes {
            let range = "a power of two, at least 32 pages";
            return wrong("ring_bytes", range, self.ring_bytes as u64);
        }
        if let Some(off_cpu) = &self.off_cpu {
            if off_cpu.stacks_per_slice == 0 {
                return wrong("stacks_per_slice", "at least 1", 0);
            }
            if off_cpu.slice.is_zero() || off_cpu.slice > off_cpu.every {
                let range = "above 0 and at most every";
                return wrong("slice", range, off_cpu.slice.as_millis() as u64);
            }
        }
        Ok(())
    }
}

/// Samples the CPU stacks of servers.
///
/// Read exact totals for the same window right after [`Sampler::start`] and right before
/// [`Sampler::stop`].
#[derive(Debug)]
pub struct Sampler {
    orders: Sender<SamplerCommand>,
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
}

enum SamplerCommand {
    Watch(u32, Sender<Result<(), SamplerError>>),
    Waits(u32, WaitReader),
    Unwatch(u32),
    Start(Sender<Result<(), SamplerError>>),
    Stop(Sender<Result<Samples, SamplerError>>),
}

impl Sampler {
    /// Opens the events of all CPUs, disabled, and adds the servers in `config`.
    pub fn open(config: &SamplerConfig) -> Result<Self, SamplerError> {
        config.check()?;
        let (events, slicer) = event::open_with_rings(config.ring_bytes, |ring_bytes| {
            let kind = EventKind::Clock {
                frequency_hz: config.frequency_hz,
                stack_bytes: config.stack_bytes,
            };
            let events = event::open_all(EventShape { kind, ring_bytes })?;
            let slicer = config
                .off_cpu
                .map(|off_cpu| Slicer::open(off_cpu, config.stack_bytes, ring_bytes))
                .transpose()?;
            Ok((events, slicer))
        })?;
        let wake = Arc::new(Wake::new().map_err(|source| os("eventfd", source))?);
        let (orders, received) = channel();
        let reader_wake = wake.clone();
        let keeps_moments = config.keeps_moments;
        let thread = std::thread::Builder::new()
            .name("pgassay-samples".to_owned())
            .spawn(move || {
                let mut thread = SamplerThread::new(events, slicer, reader_wake);
                thread.tally.keeps_moments = keeps_moments;
                thread.run(&received);
            })
            .map_err(|source| os("starting a thread", source))?;
        let sampler = Self {
            orders,
            wake,
            thread: Some(thread),
        };
        for &postmaster_pid in &config.postmaster_pids {
            sampler.watch(postmaster_pid)?;
        }
        Ok(sampler)
    }

    /// Adds a server to profile. Its processes' memory maps must be readable.
    pub fn watch(&self, postmaster_pid: u32) -> Result<(), SamplerError> {
        self.ask(|answer| SamplerCommand::Watch(postmaster_pid, answer))?
    }

    /// Sets the reader of a server's wait events, to add them to off-CPU stacks.
    pub fn watch_waits(&self, postmaster_pid: u32, reader: WaitReader) -> Result<(), SamplerError> {
        self.send(SamplerCommand::Waits(postmaster_pid, reader))
    }

    /// Removes a server before it stops.
    pub fn unwatch(&self, postmaster_pid: u32) -> Result<(), SamplerError> {
        self.send(SamplerCommand::Unwatch(postmaster_pid))
    }

    /// Starts sampling. Discards samples of an earlier window.
    pub fn start(&self) -> Result<(), SamplerError> {
        self.ask(SamplerCommand::Start)?
    }

    /// Stops sampling and returns the samples since the start; no samples if it was not started.
    pub fn stop(&self) -> Result<Samples, SamplerError> {
        self.ask(SamplerCommand::Stop)?
    }

    fn ask<T>(&self, order: impl FnOnce(Sender<T>) -> SamplerCommand) -> Result<T, SamplerError> {
        let (answer, answered) = channel();
        self.send(order(answer))?;
        answered.recv().map_err(|_| SamplerError::ReaderEnded)
    }

    fn send(&self, order: SamplerCommand) -> Result<(), SamplerError> {
        self.orders
            .send(order)
            .map_err(|_| SamplerError::ReaderEnded)?;
        self.wake
            .wake()
            .map_err(|source| os("waking the reading thread", source))
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // The thread ends when the channel of commands is closed.
        let (closed, _) = channel();
        self.orders = closed;
        if self.wake.wake().is_ok()
            && let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that reads the samples panicked");
        }
    }
}

fn os(call: &'static str, source: io::Error) -> SamplerError {
    SamplerError::Os { call, source }
}

/// The state of the thread.
struct SamplerThread {
    events: Vec<CpuEvent>,
    /// One buffer for each ring, reused for all readings.
    buffers: Vec<Vec<u8>>,
    slicer: Option<Slicer>,
    wake: Arc<Wake>,
    tally: SampleTally,
    running: Option<Running>,
}

struct Running {
    since: Instant,
    cpu_ns_before: u64,
    lost_before: Option<u64>,
}

impl SamplerThread {
    fn new(events: Vec<CpuEvent>, slicer: Option<Slicer>, wake: Arc<Wake>) -> Self {
        let buffers = events.iter().map(|_| Vec::new()).collect();
        let tally = SampleTally::new(KernelSymbols::read());
        Self {
            events,
            buffers,
            slicer,
            wake,
            tally,
            running: None,
        }
    }

    fn run(mut self, orders: &Receiver<SamplerCommand>) {
        let clocks = self.events.iter().map(CpuEvent::raw_fd);
        let slices = self.slicer.iter().flat_map(Slicer::raw_fds);
        let fds: Vec<i32> = clocks.chain(slices).collect();
        loop {
            let (watched, limit) = match self.running {
                Some(_) => {
                    let due_in = self.slicer.as_ref().and_then(Slicer::due_in);
                    (
                        &fds[..],
                        Some(due_in.map_or(READ_INTERVAL, |it| it.min(READ_INTERVAL))),
                    )
                }
                None => (&[][..], None),
            };
            if let Err(error) = self.wake.wait(watched, limit) {
                tracing::error!(%error, "waiting for samples failed");
                return;
            }
            if self.running.is_some() {
                self.read();
                if let Err(error) = self.slice() {
                    tracing::error!(%error, "recording off-CPU time failed");
                    self.slicer.iter_mut().for_each(Slicer::abandon);
                }
            }
            loop {
                match orders.try_recv() {
                    Ok(order) => self.handle_command(order),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    /// Handles a command; drops its result if the sender no longer waits.
    fn handle_command(&mut self, order: SamplerCommand) {
        match order {
            SamplerCommand::Watch(pid, answer) => drop(answer.send(self.watch(pid))),
            SamplerCommand::Waits(pid, reader) => {
                self.tally.servers.wait_readers.insert(pid, reader);
            }
            SamplerCommand::Unwatch(pid) => self.tally.servers.unwatch(pid),
            SamplerCommand::Start(answer) => drop(answer.send(self.start())),
            SamplerCommand::Stop(answer) => drop(answer.send(self.stop())),
        }
    }

    fn watch(&mut self, pid: u32) -> Result<(), SamplerError> {
        match maps::read(pid) {
            Ok(mappings) if !mappings.is_empty() => {
                self.tally.servers.watch(pid);
                Ok(())
            }
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                Err(SamplerError::NoSuchProcess { pid, source: error })
            }
            // If reading is not permitted, the kernel may also show an empty file.
            _ => {
                let program = std::env::current_exe().ok();
                Err(SamplerError::NotPermitted(NotPermitted::reading_maps(
                    pid, program,
                )))
            }
        }
    }

    fn start(&mut self) -> Result<(), SamplerError> {
        self.drain();
        let intervals_max = self.slicer.as_ref().map(Slicer::intervals_max);
        self.tally.begin_window(intervals_max);
        self.events.iter().try_for_each(CpuEvent::enable)?;
        if let Some(slicer) = &mut self.slicer {
            slicer.begin();
        }
        self.running = Some(Running {
            since: Instant::now(),
            cpu_ns_before: thread_cpu_ns(),
            lost_before: self.lost_total(),
        });
        Ok(())
    }

    fn stop(&mut self) -> Result<Samples, SamplerError> {
        self.events.iter().try_for_each(CpuEvent::disable)?;
        self.read();
        if let Some(slicer) = &mut self.slicer {
            slicer.end(&mut self.tally.window.slices, &mut self.tally.servers)?;
        }
        let mut samples = self.tally.end_window();
        if let Some(running) = self.running.take() {
            samples.window_ns = running.since.elapsed().as_nanos() as u64;
            samples.reader_cpu_ns = thread_cpu_ns().saturating_sub(running.cpu_ns_before);
            // The kernel's own count, if available, includes the records lost last.
            if let (Some(before), Some(now)) = (running.lost_before, self.lost_total()) {
                samples.lost = now.saturating_sub(before);
            }
        }
        Ok(samples)
    }

    fn slice(&mut self) -> Result<(), SamplerError> {
        match &mut self.slicer {
            Some(slicer) => slicer.step(&mut self.tally.window.slices, &mut self.tally.servers),
            None => Ok(()),
        }
    }

    fn read(&mut self) {
        self.drain();
        self.tally.count(&self.buffers);
    }

    fn drain(&mut self) {
        for (event, buffer) in self.events.iter_mut().zip(&mut self.buffers) {
            buffer.clear();
            event.ring.drain_into(buffer);
        }
    }

    fn lost_total(&self) -> Option<u64> {
        self.events.iter().map(CpuEvent::lost_total).sum()
    }
}
