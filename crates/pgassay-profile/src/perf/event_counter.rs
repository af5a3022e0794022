//! Performance counters: events of processes under the real load, counted rather than sampled.
//!
//! One event per process, opened when counting begins, in user space only, so that
//! `kernel.perf_event_paranoid` up to 2 permits it for one's own processes. The kernel switches
//! such an event with its process, at some tenths of a microsecond each time, so it must not be
//! open in trials that decide a verdict. If more events are open than the CPU has counters, the
//! kernel multiplexes them; the count is then scaled to the whole time (`perf_event_open(2)`,
//! `PERF_FORMAT_TOTAL_TIME_RUNNING`).

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::FromRawFd;
use std::time::{Duration, Instant};

use perf_event_open_sys::bindings as sys;
use pgassay_rights::{self as rights, Purpose};

/// An event that can be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CountedEvent {
    /// Instructions in user space, a hardware counter.
    InstructionsUser,
    /// Cycles in user space, a hardware counter.
    CyclesUser,
    /// Page faults in user space, a software counter that every machine has.
    PageFaultsUser,
}

impl CountedEvent {
    /// The hardware counters.
    pub const HARDWARE: [Self; 2] = [Self::InstructionsUser, Self::CyclesUser];

    /// The counter's name in a trial.
    pub fn name(self) -> &'static str {
        match self {
            Self::InstructionsUser => "cpu.instructions_user",
            Self::CyclesUser => "cpu.cycles_user",
            Self::PageFaultsUser => "cpu.page_faults_user",
        }
    }

    fn type_and_config(self) -> (u32, u32) {
        match self {
            Self::InstructionsUser => (sys::PERF_TYPE_HARDWARE, sys::PERF_COUNT_HW_INSTRUCTIONS),
            Self::CyclesUser => (sys::PERF_TYPE_HARDWARE, sys::PERF_COUNT_HW_CPU_CYCLES),
            Self::PageFaultsUser => (sys::PERF_TYPE_SOFTWARE, sys::PERF_COUNT_SW_PAGE_FAULTS),
        }
    }
}

/// Why events cannot be counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventCounterError {
    /// The machine has no such counter.
    #[error("virtual machines often have none")]
    Absent,
    /// The kernel does not permit it.
    #[error(
        "not permitted by the kernel (kernel.perf_event_paranoid or a container's seccomp profile)"
    )]
    NotPermitted,
    /// Something else failed.
    #[error("perf_event_open: {0}")]
    Os(#[source] io::Error),
}

/// Open events, which count from the moment they are opened.
#[derive(Debug)]
pub struct EventCounter {
    files: Vec<(CountedEvent, std::fs::File)>,
}

impl EventCounter {
    /// Opens every event for every process. Processes that have ended are skipped.
    ///
    /// # Errors
    /// The first event that cannot be opened.
    pub fn open(events: &[CountedEvent], pids: &[u32]) -> Result<Self, EventCounterError> {
        let mut files = Vec::with_capacity(events.len() * pids.len());
        for &pid in pids {
            for &event in events {
                match open(event, pid) {
                    Ok(file) => files.push((event, file)),
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => return Err(refusal(error)),
                }
            }
        }
        Ok(Self { files })
    }

    /// Sums over all processes since [`Self::open`]; without events that were never scheduled,
    /// as when other programs occupy all hardware counters.
    ///
    /// # Errors
    /// An error of reading an event.
    pub fn read(&self) -> io::Result<BTreeMap<CountedEvent, f64>> {
        let mut sums = BTreeMap::new();
        for (event, mut file) in self.files.iter().map(|(event, file)| (*event, file)) {
            // The count, the time enabled, and the time running.
            let mut words = [0; 24];
            file.read_exact(&mut words)?;
            let (words, _) = words.as_chunks::<8>();
            let word = |at: usize| u64::from_ne_bytes(words[at]) as f64;
            let (count, enabled, running) = (word(0), word(1), word(2));
            if running > 0.0 {
                *sums.entry(event).or_insert(0.0) += count * enabled / running;
            }
        }
        Ok(sums)
    }

    /// Checks that this machine counts these events: on some virtual CPUs they can be opened but
    /// stay at zero.
    ///
    /// # Errors
    /// Why not.
    pub fn probe(events: &[CountedEvent]) -> Result<(), EventCounterError> {
        let counter = Self::open(events, &[std::process::id()])?;
        let start = Instant::now();
        let mut pages = Vec::new();
        while start.elapsed() < Duration::from_millis(2) {
            pages.push(std::hint::black_box(vec![1_u8; 64 * 1024]));
        }
        let sums = counter.read().map_err(EventCounterError::Os)?;
        let counted = |event: &CountedEvent| sums.get(event).is_some_and(|sum| *sum > 0.0);
        if events.iter().all(counted) {
            Ok(())
        } else {
            Err(EventCounterError::Absent)
        }
    }
}

fn open(event: CountedEvent, pid: u32) -> io::Result<std::fs::File> {
    let (type_, config) = event.type_and_config();
    let mut attr = sys::perf_event_attr {
        size: size_of::<sys::perf_event_attr>() as u32,
        type_,
        config: config.into(),
        read_format: u64::from(
            sys::PERF_FORMAT_TOTAL_TIME_ENABLED | sys::PERF_FORMAT_TOTAL_TIME_RUNNING,
        ),
        ..Default::default()
    };
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    let pid = i32::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let flags = sys::PERF_FLAG_FD_CLOEXEC.into();
    let _raised = rights::raise(Purpose::Sampling);
    // SAFETY: `attr` is fully initialized and has the size it states.
    let fd = unsafe { perf_event_open_sys::perf_event_open(&raw mut attr, pid, -1, -1, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { std::fs::File::from_raw_fd(fd) })
}

fn refusal(error: io::Error) -> EventCounterError {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::ENOSYS) => {
            EventCounterError::Absent
        }
        Some(libc::EACCES | libc::EPERM) => EventCounterError::NotPermitted,
        _ => EventCounterError::Os(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(why: &EventCounterError) {
        pgassay_test_support::skip("counting page faults", &why.to_string());
    }

    #[test]
    fn page_faults_are_counted_from_opening_on() {
        let events = [CountedEvent::PageFaultsUser];
        // An event belongs to the thread whose ID is given.
        // SAFETY: gettid has no preconditions.
        let thread = unsafe { libc::gettid() }.cast_unsigned();
        let counter = match EventCounter::open(&events, &[thread, u32::MAX >> 1]) {
            Ok(counter) => counter,
            Err(error @ EventCounterError::NotPermitted) => return skip(&error),
            Err(error) => panic!("{error}"),
        };
        let faults = || counter.read().unwrap()[&CountedEvent::PageFaultsUser];
        let before = faults();
        let bytes = 400 * 4096;
        // Fresh pages from the kernel, independent of the allocator.
        // SAFETY: our own anonymous mapping, written within its bounds and unmapped once.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE);
            for page in 0..400 {
                at.cast::<u8>().add(page * 4096).write_volatile(1);
            }
            libc::munmap(at, bytes);
        }
        let passed = faults() - before;
        assert!((400.0..500.0).contains(&passed), "{passed}");
    }

    #[test]
    fn hardware_counters_count_or_are_reported_absent() {
        match EventCounter::probe(&CountedEvent::HARDWARE) {
            Ok(()) => {
                let all = EventCounter::open(&CountedEvent::HARDWARE, &[std::process::id()]);
                assert_eq!(all.unwrap().read().unwrap().len(), 2);
            }
            Err(error @ (EventCounterError::Absent | EventCounterError::NotPermitted)) => {
                assert!(!error.to_string().is_empty());
            }
            Err(error) => panic!("{error}"),
        }
    }
}
