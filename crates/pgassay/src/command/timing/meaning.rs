//! What the cost of a reading means for a server, and what mends a dear one.
//!
//! Who reads how often: `src/backend/executor/instrument.c` (a node's start and stop),
//! `src/backend/storage/buffer/bufmgr.c` (a read's), `src/backend/tcop/postgres.c`,
//! `check_log_duration` (once for each message that may be logged),
//! `contrib/pg_stat_statements/pg_stat_statements.c` (a statement's start and stop).

use pgassay_profile::ClockSource;

/// Up to here nothing that reads the clock need be switched off.
const FINE_NS: f64 = 50.0;
/// Up to here only `EXPLAIN ANALYZE` of many rows shows it.
const BEARABLE_NS: f64 = 100.0;
/// Beyond, the clock is not read by the program itself: hpet and `acpi_pm` cost 500 ns to 2 µs.
const DEAR_NS: f64 = 500.0;

/// How good a clock is for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grade {
    /// Read it as often as you like.
    Fine,
    /// Seen only where rows are timed one by one.
    Bearable,
    /// Distorts what it times.
    Slow,
    /// Must not be read for every row, block or statement.
    Dear,
}

impl Grade {
    /// Of what one reading costs.
    pub fn of(reading_ns: f64) -> Self {
        match reading_ns {
            ns if ns <= FINE_NS => Self::Fine,
            ns if ns <= BEARABLE_NS => Self::Bearable,
            ns if ns <= DEAR_NS => Self::Slow,
            _ => Self::Dear,
        }
    }

    /// For machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Bearable => "bearable",
            Self::Slow => "slow",
            Self::Dear => "dear",
        }
    }

    /// As a sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Fine => {
                "fine: track_io_timing, pg_stat_statements and log_min_duration_statement may stay on"
            }
            Self::Bearable => {
                "good enough: only EXPLAIN ANALYZE of many rows is slower than the query itself"
            }
            Self::Slow => {
                "slow: EXPLAIN ANALYZE makes nodes of many rows look dearer than they are; use \
                 TIMING OFF for these, and measure before leaving track_io_timing on"
            }
            Self::Dear => {
                "too dear: leave track_io_timing and auto_explain.log_timing off, use EXPLAIN \
                 (ANALYZE, TIMING OFF)"
            }
        }
    }
}

/// One thing that reads the clock.
pub struct Use {
    /// What a user switches on.
    pub what: &'static str,
    /// When it reads.
    pub when: &'static str,
    /// What it costs, in words.
    pub costs: String,
}

/// What each user of the clock pays. `monotonic_ns` is a reading of `CLOCK_MONOTONIC`, `day_ns` of
/// `gettimeofday`.
pub fn uses(monotonic_ns: f64, day_ns: f64) -> [Use; 4] {
    [
        Use {
            what: "EXPLAIN ANALYZE",
            when: "twice for each row of each node",
            // Two readings of so many ns, a million times, are so many ms.
            costs: format!("{:.0} ms for a node of 1 million rows", 2.0 * monotonic_ns),
        },
        Use {
            what: "track_io_timing",
            when: "twice for each read or write of blocks that shared buffers do not hold",
            costs: format!("{:.0} ns for each", 2.0 * monotonic_ns),
        },
        Use {
            what: "pg_stat_statements",
            when: "twice for each statement",
            costs: format!("{:.0} ns for each", 2.0 * monotonic_ns),
        },
        Use {
            what: "log_duration, log_min_duration_statement",
            when: "once more for each parse, bind and execute",
            costs: format!("{day_ns:.0} ns for each, beside what a logged line costs"),
        },
    ]
}

/// Why reading is slow here and the command that mends it; nothing where it is fine.
pub fn mend(source: &ClockSource, grade: Grade) -> Option<String> {
    if matches!(grade, Grade::Fine | Grade::Bearable) {
        return None;
    }
    let current = source.current.as_deref().unwrap_or("unknown");
    let better = [
        "tsc",
        "kvm-clock",
        "hyperv_clocksource_tsc_page",
        "arch_sys_counter",
    ]
    .into_iter()
    .take_while(|name| *name != current)
    .find(|name| source.available.iter().any(|it| it == name));
    Some(match better {
        Some(better) => format!(
            "echo {better} | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource \
             (to keep it: clocksource={better} on the kernel's command line)"
        ),
        None if matches!(current, "tsc" | "kvm-clock" | "arch_sys_counter") => format!(
            "the clock source {current} is the right one; a reading this slow means that programs \
             cannot read it by themselves here (an emulator, a sandbox, a kernel without vDSO)"
        ),
        None => format!(
            "the kernel offers nothing better than {current}; see why it gave up the CPU's counter: \
             sudo dmesg | grep -i -e tsc -e clocksource; on a virtual machine, let the host pass an \
             invariant TSC through"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(current: &str, available: &str) -> ClockSource {
        ClockSource {
            current: Some(current.to_owned()),
            available: available.split(' ').map(str::to_owned).collect(),
        }
    }

    #[test]
    fn a_reading_of_the_cpus_counter_is_fine_and_one_of_a_device_is_not() {
        for (ns, grade) in [
            (25.0, Grade::Fine),
            (80.0, Grade::Bearable),
            (240.0, Grade::Slow),
            (680.0, Grade::Dear),
            (1600.0, Grade::Dear),
        ] {
            assert_eq!(Grade::of(ns), grade, "{ns}");
        }
    }

    #[test]
    fn a_better_source_is_named_only_where_the_kernel_offers_it() {
        let tsc = mend(&source("hpet", "tsc hpet acpi_pm"), Grade::Dear).unwrap();
        assert!(tsc.starts_with("echo tsc | sudo tee "), "{tsc}");
        let none = mend(&source("hpet", "hpet acpi_pm"), Grade::Dear).unwrap();
        assert!(none.contains("dmesg") && !none.contains("echo"), "{none}");
        let sandbox = mend(&source("tsc", "tsc hpet"), Grade::Slow).unwrap();
        assert!(sandbox.contains("the right one"), "{sandbox}");
        let kvm = mend(&source("kvm-clock", "kvm-clock tsc acpi_pm"), Grade::Slow).unwrap();
        assert!(kvm.starts_with("echo tsc | "), "{kvm}");
        assert_eq!(mend(&source("tsc", "tsc hpet"), Grade::Fine), None);
    }

    #[test]
    fn what_readings_cost_follows_from_how_often_they_are_made() {
        let uses = uses(33.0, 40.0);
        assert_eq!(uses[0].costs, "66 ms for a node of 1 million rows");
        assert_eq!(uses[1].costs, "66 ns for each");
        assert!(uses[3].costs.starts_with("40 ns"), "{}", uses[3].costs);
    }
}
