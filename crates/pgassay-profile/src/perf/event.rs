//! The kernel's sampling events, one of each kind for each CPU.
//!
//! For CPU time: software `cpu-clock` in frequency mode, which every machine has, including virtual
//! ones. The events are opened **per CPU** for all processes and filtered here: events opened per
//! task cost a sixth of the throughput, since the kernel switches them at every context switch. The
//! kernel records its own part of a stack; the user stack is copied and unwound by us, because
//! servers are built without frame pointers.

use crate::arch::REGS_MASK;
use crate::perf::error::{NotPermitted, SamplerError};
use crate::perf::open_files;
use crate::perf::ring::Ring;
use crate::proc::files;
use perf_event_open_sys::bindings as sys;
use pgassay_rights::{self as rights, Purpose};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// The common parameters of the events of all CPUs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventShape {
    pub kind: EventKind,
    pub ring_bytes: usize,
}

/// What triggers an event, and what it records.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EventKind {
    /// The CPU's clock, with stacks and all side-band records of processes; parsed by `record.rs`.
    Clock { frequency_hz: u32, stack_bytes: u32 },
    /// Every context switch: the process switched out, its user registers, and the process switched
    /// in; parsed by `switch_record.rs`.
    Switches,
    /// One in `every` context switches, with the stack of the process switched out; parsed like
    /// `Clock`.
    SwitchStacks { every: u32, stack_bytes: u32 },
    /// Every hit of a tracepoint, with its raw data; parsed by `switch_record.rs`.
    Tracepoint { id: u64 },
}

/// The smallest useful ring buffer.
const RING_BYTES_MIN: usize = 128 * 1024;

const MAPPING: &str = "mapping a perf ring buffer";

/// One CPU's event with its ring, disabled at first.
pub(crate) struct CpuEvent {
    pub ring: Ring,
    fd: std::fs::File,
    counts_lost: bool,
}

impl CpuEvent {
    fn open(cpu: u32, shape: EventShape) -> Result<Self, SamplerError> {
        let mut counts_lost = true;
        let fd = match open_event(cpu, shape, true) {
            // Linux before 6.0 has no PERF_FORMAT_LOST; then the LOST records are counted.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                counts_lost = false;
                open_event(cpu, shape, false)
            }
            opened => opened,
        }
        .map_err(|error| refusal(error, shape))?;
        let ring = Ring::map(fd.as_fd(), shape.ring_bytes)
            .map_err(|error| ring_refusal(error, shape.ring_bytes))?;
        Ok(Self {
            ring,
            fd: fd.into(),
            counts_lost,
        })
    }

    /// Starts sampling.
    pub fn enable(&self) -> Result<(), SamplerError> {
        // SAFETY: the descriptor is an open perf event; the ioctl takes no pointer.
        let answer = unsafe { perf_event_open_sys::ioctls::ENABLE(self.fd.as_raw_fd(), 0) };
        if answer < 0 {
            Err(SamplerError::last_os("enabling a perf event"))
        } else {
            Ok(())
        }
    }

    /// Stops sampling; the contents of the ring remain.
    pub fn disable(&self) -> Result<(), SamplerError> {
        // SAFETY: as in `enable`.
        let answer = unsafe { perf_event_open_sys::ioctls::DISABLE(self.fd.as_raw_fd(), 0) };
        if answer < 0 {
            Err(SamplerError::last_os("disabling a perf event"))
        } else {
            Ok(())
        }
    }

    /// Records only one in `every` occurrences from now on, for an event with a period.
    pub fn set_period(&self, every: u64) -> Result<(), SamplerError> {
        // The argument is a pointer to the number (`_perf_ioctl` in kernel/events/core.c), although
        // the binding's type is an integer.
        let argument = &raw const every as u64;
        // SAFETY: the descriptor is an open perf event, and the pointer is to a number that
        // outlives the call.
        let answer = unsafe { perf_event_open_sys::ioctls::PERIOD(self.fd.as_raw_fd(), argument) };
        if answer < 0 {
            Err(SamplerError::last_os("setting the period of a perf event"))
        } else {
            Ok(())
        }
    }

    /// The number of records lost since the event was opened, if the kernel counts them (Linux 6.0
    /// and later).
    pub fn lost_total(&self) -> Option<u64> {
        if !self.counts_lost {
            return None;
        }
        // PERF_FORMAT_LOST: the event's value, then the number of lost records.
        let mut words = [0; 16];
        (&self.fd).read_exact(&mut words).ok()?;
        words[8..].try_into().ok().map(u64::from_ne_bytes)
    }

    /// For `poll`.
    pub fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

/// Checks on one CPU whether an event can be opened.
pub(crate) fn try_one(kind: EventKind) -> Result<(), SamplerError> {
    let shape = EventShape {
        kind,
        ring_bytes: RING_BYTES_MIN,
    };
    let cpu = online_cpus()?.first().copied().unwrap_or(0);
    CpuEvent::open(cpu, shape).map(drop)
}

/// Opens an event on every online CPU.
pub(crate) fn open_all(shape: EventShape) -> Result<Vec<CpuEvent>, SamplerError> {
    let cpus = online_cpus()?;
    open_files::permit(cpus.len());
    let cpus = cpus.into_iter();
    cpus.map(|cpu| CpuEvent::open(cpu, shape)).collect()
}

/// Opens events with rings of this size or, if they exceed the limit of locked memory, with smaller ones: all of the
/// same size, since otherwise the first would leave nothing for the last.
pub(crate) fn open_with_rings<T>(
    mut ring_bytes: usize,
    open: impl Fn(usize) -> Result<T, SamplerError>,
) -> Result<T, SamplerError> {
    loop {
        match open(ring_bytes) {
            Err(error) if may_fit_if_smaller(&error) => ring_bytes /= 2,
            opened => {
                tracing::debug!(ring_bytes, "opened events");
                return opened;
            }
        }
    }
}

/// Whether the rings exceeded the limit of locked memory and can be smaller.
pub(crate) fn may_fit_if_smaller(error: &SamplerError) -> bool {
    matches!(error, SamplerError::Os { call: MAPPING, source } if source.raw_os_error() == Some(libc::EPERM))
}

fn online_cpus() -> Result<Vec<u32>, SamplerError> {
    let path = Path::new("/sys/devices/system/cpu/online");
    let online = std::fs::read_to_string(path).map_err(|source| SamplerError::Os {
        call: "reading the list of CPUs",
        source,
    })?;
    Ok(files::parse_cpu_list(&online))
}

fn open_event(cpu: u32, shape: EventShape, count_lost: bool) -> io::Result<OwnedFd> {
    let mut attr = attributes(shape, count_lost);
    let cpu = i32::try_from(cpu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let flags = sys::PERF_FLAG_FD_CLOEXEC.into();
    let _raised = rights::raise(Purpose::Sampling);
    // SAFETY: `attr` is fully initialized and has the size it states.
    let fd = unsafe { perf_event_open_sys::perf_event_open(&raw mut attr, -1, cpu, -1, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

// These determine the layouts that `record.rs` and `switch_record.rs` parse.
const STACK_SAMPLE: u32 = sys::PERF_SAMPLE_IP
    | sys::PERF_SAMPLE_TID
    | sys::PERF_SAMPLE_TIME
    | sys::PERF_SAMPLE_CPU
    | sys::PERF_SAMPLE_PERIOD
    | sys::PERF_SAMPLE_CALLCHAIN
    | sys::PERF_SAMPLE_REGS_USER
    | sys::PERF_SAMPLE_STACK_USER;
const SWITCH_SAMPLE: u32 =
    sys::PERF_SAMPLE_TID | sys::PERF_SAMPLE_TIME | sys::PERF_SAMPLE_REGS_USER;
const TRACEPOINT_SAMPLE: u32 = sys::PERF_SAMPLE_TID | sys::PERF_SAMPLE_TIME | sys::PERF_SAMPLE_RAW;

fn attributes(shape: EventShape, count_lost: bool) -> sys::perf_event_attr {
    let mut attr = sys::perf_event_attr {
        size: size_of::<sys::perf_event_attr>() as u32,
        type_: sys::PERF_TYPE_SOFTWARE,
        clockid: libc::CLOCK_MONOTONIC,
        ..Default::default()
    };
    match shape.kind {
        EventKind::Clock {
            frequency_hz,
            stack_bytes,
        } => {
            attr.config = sys::PERF_COUNT_SW_CPU_CLOCK.into();
            attr.__bindgen_anon_1.sample_freq = frequency_hz.into();
            attr.set_freq(1);
            attr.set_exclude_idle(1);
            with_stacks(&mut attr, stack_bytes);
            // Forks, exits, executions and mappings of processes.
            attr.set_task(1);
            attr.set_comm(1);
            attr.set_comm_exec(1);
            attr.set_mmap(1);
            attr.set_mmap2(1);
        }
        EventKind::Switches => {
            attr.config = sys::PERF_COUNT_SW_CONTEXT_SWITCHES.into();
            attr.__bindgen_anon_1.sample_period = 1;
            attr.sample_type = SWITCH_SAMPLE.into();
            attr.sample_regs_user = REGS_MASK;
            attr.set_context_switch(1);
        }
        EventKind::SwitchStacks { every, stack_bytes } => {
            attr.config = sys::PERF_COUNT_SW_CONTEXT_SWITCHES.into();
            attr.__bindgen_anon_1.sample_period = every.into();
            with_stacks(&mut attr, stack_bytes);
            // A software event that also reports its period is recorded each time, whatever the
            // period (`perf_swevent_event` in kernel/events/core.c). Another field of eight bytes
            // replaces it to keep the layout.
            attr.sample_type &= !u64::from(sys::PERF_SAMPLE_PERIOD);
            attr.sample_type |= u64::from(sys::PERF_SAMPLE_STREAM_ID);
        }
        EventKind::Tracepoint { id } => {
            attr.type_ = sys::PERF_TYPE_TRACEPOINT;
            attr.config = id;
            attr.__bindgen_anon_1.sample_period = 1;
            attr.sample_type = TRACEPOINT_SAMPLE.into();
        }
    }
    if count_lost {
        attr.read_format = sys::PERF_FORMAT_LOST.into();
    }
    attr.set_disabled(1);
    attr.set_sample_id_all(1);
    // The clock of std::time::Instant, so that times can be compared with the load's.
    attr.set_use_clockid(1);
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = (shape.ring_bytes / 4) as u32;
    attr
}

fn with_stacks(attr: &mut sys::perf_event_attr, stack_bytes: u32) {
    attr.sample_type = STACK_SAMPLE.into();
    attr.sample_regs_user = REGS_MASK;
    attr.sample_stack_user = stack_bytes;
    attr.set_exclude_callchain_user(1);
}

/// The kernel refuses a ring with `EPERM` if all rings exceed the limit of locked memory (`perf_mmap` in
/// `kernel/events/core.c`).
fn ring_refusal(source: io::Error, ring_bytes: usize) -> SamplerError {
    if source.raw_os_error() == Some(libc::EPERM) && ring_bytes <= RING_BYTES_MIN {
        let program = std::env::current_exe().ok();
        return SamplerError::NotPermitted(NotPermitted::locking_memory(program));
    }
    SamplerError::Os {
        call: MAPPING,
        source,
    }
}

fn refusal(error: io::Error, shape: EventShape) -> SamplerError {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            let paranoid = files::read_number("/proc/sys/kernel/perf_event_paranoid");
            let program = std::env::current_exe().ok();
            SamplerError::NotPermitted(NotPermitted::sampling(paranoid, program))
        }
        Some(libc::ENOSYS | libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => {
            SamplerError::Unsupported { source: error }
        }
        code => {
            let max_hz = files::read_number("/proc/sys/kernel/perf_event_max_sample_rate")
                .and_then(|rate| u64::try_from(rate).ok());
            match (code, max_hz, shape.kind) {
                (Some(libc::EINVAL), Some(max_hz), EventKind::Clock { frequency_hz, .. })
                    if max_hz < frequency_hz.into() =>
                {
                    SamplerError::FrequencyTooHigh {
                        frequency_hz,
                        max_hz,
                    }
                }
                _ => SamplerError::Os {
                    call: "perf_event_open",
                    source: error,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Regression: the rings of the first CPUs took all memory that may be locked, and the last CPU had none.
    #[test]
    fn the_first_cpus_leave_locked_memory_to_the_last() {
        let cpus = 8;
        let open = |may_lock: usize| {
            open_with_rings(2 << 20, |ring_bytes| {
                let mut locked = 0;
                let cpu = || {
                    locked += ring_bytes;
                    let refused = || io::Error::from_raw_os_error(libc::EPERM);
                    let refused = || ring_refusal(refused(), ring_bytes);
                    (locked <= may_lock)
                        .then_some(ring_bytes)
                        .ok_or_else(refused)
                };
                std::iter::repeat_with(cpu)
                    .take(cpus)
                    .collect::<Result<Vec<_>, _>>()
            })
        };
        assert_eq!(open(16 << 20).unwrap(), [2 << 20; 8]);
        assert_eq!(open(12 << 20).unwrap(), [1 << 20; 8]);
        assert_eq!(open(1 << 20).unwrap(), [RING_BYTES_MIN; 8]);
        let Err(SamplerError::NotPermitted(refusal)) = open((1 << 20) - 1) else {
            panic!("the smallest rings do not fit");
        };
        let text = refusal.to_string();
        for way in ["kernel.perf_event_mlock_kb", "ulimit -l", "cap_ipc_lock"] {
            assert!(text.contains(way), "{text}");
        }
    }

    #[test]
    fn records_that_do_not_fit_into_the_ring_are_counted() {
        let kind = EventKind::Clock {
            frequency_hz: 2000,
            stack_bytes: 60_000,
        };
        let ring_bytes = 32 * crate::perf::ring::page_bytes();
        let mut events = match open_all(EventShape { kind, ring_bytes }) {
            Ok(events) => events,
            Err(error @ (SamplerError::NotPermitted(_) | SamplerError::Unsupported { .. })) => {
                pgassay_test_support::skip("a full ring", &error.to_string());
                return;
            }
            Err(error) if may_fit_if_smaller(&error) => {
                pgassay_test_support::skip("a full ring", &error.to_string());
                return;
            }
            Err(error) => panic!("{error}"),
        };
        for event in &events {
            event.enable().unwrap();
        }
        let began = Instant::now();
        let mut spins = 0_u64;
        while began.elapsed() < Duration::from_millis(100) {
            spins = std::hint::black_box(spins + 1);
        }
        let mut records = Vec::new();
        for event in &mut events {
            event.disable().unwrap();
            event.ring.drain_into(&mut records);
        }
        // Two records of this size fit into a ring; two hundred are written.
        assert!(records.len() >= 60_000, "{}", records.len());
        match events.iter().map(CpuEvent::lost_total).sum::<Option<u64>>() {
            Some(lost) => assert!(lost > 10, "{lost}"),
            None => assert!(events.iter().all(|e| !e.counts_lost)),
        }
    }
}
