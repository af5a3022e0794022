//! Clock-read overhead on this machine, and whether the clock ever goes backward.
//!
//! [`ClockSteps`] is PostgreSQL's own test: it reads one clock in a loop and makes a histogram of
//! the steps between readings (`src/bin/pg_test_timing/pg_test_timing.c`; until 18 in µs, since 19
//! in ns and with exact values, as here). There are two differences: a backward step is counted and
//! the test continues, whereas `pg_test_timing` exits; and the reader moves from CPU to CPU, since
//! clocks can differ between CPUs. Of the step across a move only the sign counts, since it includes
//! the duration of the move.
//!
//! [`Clock::cost_ns`] is the cost of one reading without other work of the loop, for the clocks
//! that a server reads (`src/include/portability/instr_time.h`;
//! `src/backend/utils/adt/timestamp.c`, `GetCurrentTimestamp`).

use crate::proc::clocks::read_clock;
use std::fs;
use std::hint::black_box;
use std::io;
use std::mem;
use std::path::Path;
use std::time::Duration;

/// A clock and the way to read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// `clock_gettime(CLOCK_MONOTONIC)`: PostgreSQL's `INSTR_TIME` since 10.
    Monotonic,
    /// `gettimeofday`: `GetCurrentTimestamp`, and `INSTR_TIME` before 10.
    TimeOfDay,
    /// `clock_gettime(CLOCK_REALTIME)`.
    Realtime,
    /// `CLOCK_MONOTONIC` by a system call: the cost of each reading if the clock source cannot be
    /// read in user space.
    SystemCall,
    /// The CPU's timestamp counter, which the fastest clock sources use; x86-64 only.
    Counter,
}

/// Steps up to this length are counted by their exact value, as in `pg_test_timing` since 19.
const EXACT_NS: usize = 10_000;
/// How long the reader stays on one CPU.
const STAY: Duration = Duration::from_millis(10);
/// The cost is the median over this many batches of this many readings.
const BATCHES: usize = 31;
const READINGS: u32 = 2_000;

/// The steps between consecutive readings of a clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockSteps {
    /// Number of readings; all are in the histogram, except the first after a move to another CPU.
    pub readings: u64,
    /// Total time between readings according to the clock, without moves to other CPUs.
    pub elapsed_ns: u64,
    /// Steps by length: 0 ns, then up to 1, 3, 7, … ns.
    pub by_power: [u64; 64],
    /// Steps by their exact length in ns, if it is below the vector's length.
    pub exact: Vec<u64>,
    /// The largest step.
    pub largest_ns: u64,
    /// Backward steps; not in the histograms.
    pub backwards: u64,
    /// The largest backward step.
    pub backwards_ns_max: u64,
    /// Number of CPUs that the reader used.
    pub cpus: usize,
}

impl Default for ClockSteps {
    fn default() -> Self {
        Self {
            readings: 0,
            elapsed_ns: 0,
            by_power: [0; 64],
            exact: vec![0; EXACT_NS],
            largest_ns: 0,
            backwards: 0,
            backwards_ns_max: 0,
            cpus: 0,
        }
    }
}

impl ClockSteps {
    /// Reads `CLOCK_MONOTONIC` for `duration`, in turn on each CPU that this process can use.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub fn watch(duration: Duration) -> io::Result<Self> {
        let reader = std::thread::Builder::new()
            .name("clock".to_owned())
            .spawn(move || {
                let cpus = allowed_cpus();
                let mut steps = Self {
                    cpus: cpus.len().max(1),
                    ..Self::default()
                };
                let mut read = || read_clock(libc::CLOCK_MONOTONIC);
                let mut last = read();
                let mut turns = cpus.iter().cycle();
                while steps.elapsed_ns < duration.as_nanos() as u64 {
                    if let Some(&cpu) = turns.next() {
                        pin_to_cpu(cpu);
                    }
                    let left = duration.as_nanos() as u64 - steps.elapsed_ns;
                    let stay_ns = left.min(STAY.as_nanos() as u64);
                    last = steps.take(&mut read, last, stay_ns);
                }
                steps
            })?;
        reader
            .join()
            .map_err(|_| io::Error::other("the thread that reads the clock panicked"))
    }

    /// Reads the clock for `stay_ns`, the first time on a new CPU, and returns the last reading.
    fn take(&mut self, read: &mut impl FnMut() -> i64, before: i64, stay_ns: u64) -> i64 {
        let began = read();
        self.readings += 1;
        if began < before {
            self.step_back(before.abs_diff(began));
        }
        let mut last = began;
        let mut passed_ns = 0;
        while passed_ns < stay_ns {
            let now = read();
            self.readings += 1;
            if now < last {
                self.step_back(last.abs_diff(now));
            } else {
                let step_ns = now.abs_diff(last);
                passed_ns += step_ns;
                self.by_power[bucket(step_ns)] += 1;
                if let Some(count) = self.exact.get_mut(step_ns as usize) {
                    *count += 1;
                }
                self.largest_ns = self.largest_ns.max(step_ns);
            }
            last = now;
        }
        self.elapsed_ns += passed_ns;
        last
    }

    fn step_back(&mut self, step_ns: u64) {
        self.backwards += 1;
        self.backwards_ns_max = self.backwards_ns_max.max(step_ns);
    }

    /// Number of steps in the histogram.
    pub fn counted(&self) -> u64 {
        self.by_power.iter().sum()
    }

    /// Time per reading, including the loop and the histogram, as reported by `pg_test_timing`.
    pub fn per_loop_ns(&self) -> f64 {
        self.elapsed_ns as f64 / self.counted().max(1) as f64
    }

    /// The histogram's rows up to the last nonzero one, as (longest step in ns, steps).
    pub fn rows(&self) -> impl Iterator<Item = (u64, u64)> {
        let last = bucket(self.largest_ns);
        let powers = self.by_power.iter().take(last + 1);
        (0..).zip(powers).map(|(power, &count)| {
            // 0 has its own row; the last bucket's bound is the type's maximum.
            let longest = 1_u64.checked_shl(power).unwrap_or(0).wrapping_sub(1);
            (longest, count)
        })
    }

    /// The step that a share (0 to 1) of all steps does not exceed: exact if its exact value is
    /// stored, otherwise the upper bound of its row.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = (self.counted() as f64 * share).ceil() as u64;
        let mut passed = 0;
        for (step_ns, count) in (0..).zip(&self.exact) {
            passed += count;
            if passed >= wanted {
                return step_ns;
            }
        }
        let mut passed = 0;
        for (longest, count) in self.rows() {
            passed += count;
            if passed >= wanted {
                return longest.min(self.largest_ns);
            }
        }
        self.largest_ns
    }
}

/// 0 for 0 ns, otherwise the number of significant bits: see `pg_test_timing` since 19.
fn bucket(step_ns: u64) -> usize {
    (u64::BITS - step_ns.leading_zeros()).min(63) as usize
}

impl Clock {
    /// Every clock available on this architecture.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Monotonic,
            Self::TimeOfDay,
            Self::Realtime,
            Self::SystemCall,
        ];
        if cfg!(target_arch = "x86_64") {
            all.push(Self::Counter);
        }
        all
    }

    /// The cost of one reading: the median over batches.
    pub fn cost_ns(self) -> f64 {
        match self {
            Self::Monotonic => batches_ns(|| read_clock(libc::CLOCK_MONOTONIC)),
            Self::TimeOfDay => batches_ns(time_of_day),
            Self::Realtime => batches_ns(|| read_clock(libc::CLOCK_REALTIME)),
            Self::SystemCall => batches_ns(by_system_call),
            Self::Counter => batches_ns(counter),
        }
    }
}

fn batches_ns<T>(read: impl Fn() -> T) -> f64 {
    let mut costs: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let began = read_clock(libc::CLOCK_MONOTONIC);
            for _ in 0..READINGS {
                black_box(read());
            }
            let took = read_clock(libc::CLOCK_MONOTONIC) - began;
            took as f64 / f64::from(READINGS)
        })
        .collect();
    costs.sort_by(f64::total_cmp);
    costs[BATCHES / 2]
}

fn by_system_call() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: as in `clocks::read_clock`, bypassing the vDSO.
    unsafe {
        libc::syscall(
            libc::SYS_clock_gettime,
            libc::CLOCK_MONOTONIC,
            &raw mut time,
        )
    };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn time_of_day() -> i64 {
    let mut time = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    // SAFETY: the pointer is to our timeval; the time zone may be null.
    unsafe { libc::gettimeofday(&raw mut time, std::ptr::null_mut()) };
    time.tv_sec * 1_000_000 + time.tv_usec
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every x86-64 has the instruction, and Linux lets programs use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    unreachable!("all() does not include it")
}

/// The CPUs that this thread can run on; empty if that is not known.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: all zeroes is an empty set, and the size matches the pointer's target.
    let set = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        if libc::sched_getaffinity(0, mem::size_of_val(&set), &raw mut set) != 0 {
            return Vec::new();
        }
        set
    };
    (0..libc::CPU_SETSIZE as usize)
        // SAFETY: the number is below the set's size.
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect()
}

/// Moves this thread to a CPU. Ignores errors; the clock is then read on the current CPU.
fn pin_to_cpu(cpu: usize) {
    // SAFETY: all zeroes is an empty set, the number comes from a set of this size.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, mem::size_of_val(&set), &raw const set);
    }
}

/// The kernel's clock sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClockSource {
    /// The current one, if known.
    pub current: Option<String>,
    /// All available ones, best first, as the kernel lists them.
    pub available: Vec<String>,
}

impl ClockSource {
    /// Reads the clock sources of this machine.
    pub fn read() -> Self {
        Self::read_under(Path::new("/"))
    }

    fn read_under(root: &Path) -> Self {
        let folder = root.join("sys/devices/system/clocksource/clocksource0");
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let words =
            |text: String| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        Self {
            current: words(text("current_clocksource")).into_iter().next(),
            available: words(text("available_clocksource")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that returns these readings, and then advances in large steps.
    fn clock(moments: &[i64]) -> impl FnMut() -> i64 {
        let mut moments = moments.iter().copied();
        let mut last = 0;
        move || {
            last = moments.next().unwrap_or(last + 1_000_000);
            last
        }
    }

    #[test]
    fn steps_are_counted_by_row_and_by_exact_value() {
        let mut steps = ClockSteps::default();
        let end = steps.take(&mut clock(&[100, 100, 101, 104, 124, 50_124]), 0, 50_024);
        assert_eq!(end, 50_124);
        let rows: Vec<(u64, u64)> = steps.rows().filter(|(_, count)| *count > 0).collect();
        assert_eq!(rows, [(0, 1), (1, 1), (3, 1), (31, 1), (65_535, 1)]);
        assert_eq!((steps.exact[0], steps.exact[3], steps.exact[20]), (1, 1, 1));
        assert_eq!((steps.counted(), steps.elapsed_ns), (5, 50_024));
        assert_eq!(
            (
                steps.largest_ns,
                steps.quantile_ns(0.6),
                steps.quantile_ns(1.0)
            ),
            (50_000, 3, 50_000)
        );
    }

    #[test]
    fn backward_steps_are_counted_and_the_test_continues() {
        let mut steps = ClockSteps::default();
        steps.take(&mut clock(&[100, 140, 120, 160, 200]), 0, 120);
        assert_eq!((steps.backwards, steps.backwards_ns_max), (1, 20));
        assert_eq!((steps.counted(), steps.elapsed_ns), (3, 120));
    }

    #[test]
    fn clocks_that_differ_between_cpus_are_detected_at_the_move() {
        let mut steps = ClockSteps::default();
        steps.take(&mut clock(&[900, 1000]), 950, 100);
        assert_eq!((steps.backwards, steps.backwards_ns_max), (1, 50));
        assert_eq!(steps.counted(), 1, "the move itself is not a step");
    }

    #[test]
    fn this_machines_clock_is_read_for_the_given_duration() {
        let steps = ClockSteps::watch(Duration::from_millis(30)).unwrap();
        assert!(steps.elapsed_ns >= 30_000_000, "{}", steps.elapsed_ns);
        assert!(steps.readings > steps.counted() && steps.cpus >= 1);
        assert!(steps.exact.iter().sum::<u64>() <= steps.counted());
        assert!(steps.per_loop_ns() > 1.0);
    }

    #[test]
    fn a_system_call_costs_more_than_the_counter() {
        for clock in Clock::all() {
            assert!(clock.cost_ns() > 0.1, "{clock:?}");
        }
        if Clock::all().contains(&Clock::Counter) {
            assert!(Clock::SystemCall.cost_ns() > Clock::Counter.cost_ns());
        }
    }

    #[test]
    fn clock_sources_are_read_from_sysfs() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(ClockSource::read_under(root.path()), ClockSource::default());
        let folder = root
            .path()
            .join("sys/devices/system/clocksource/clocksource0");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("current_clocksource"), "hpet\n").unwrap();
        fs::write(folder.join("available_clocksource"), "tsc hpet acpi_pm \n").unwrap();
        let source = ClockSource::read_under(root.path());
        assert_eq!(source.current.as_deref(), Some("hpet"));
        assert_eq!(source.available, ["tsc", "hpet", "acpi_pm"]);
    }
}
