//! What the cost of a clock read means for a server, and how to fix a slow clock.
//!
//! Where PostgreSQL reads the clock: `src/backend/executor/instrument.c` (start and stop of a
//! node), `src/backend/storage/buffer/bufmgr.c` (start and stop of a block read),
//! `check_log_duration` in `src/backend/tcop/postgres.c` (once for each message that may be
//! logged), `contrib/pg_stat_statements/pg_stat_statements.c` (start and stop of a statement).

use pgassay_profile::ClockSource;

/// Up to here, all features that read the clock can stay on.
const FINE_NS: f64 = 50.0;
/// Up to here, only `EXPLAIN ANALYZE` of many rows is affected.
const BEARABLE_NS: f64 = 100.0;
/// Above this, a read needs a system call or a device: hpet and `acpi_pm` cost 500 ns to 2 µs.
const TOO_SLOW_NS: f64 = 500.0;

/// How good a clock is for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grade {
    /// No noticeable overhead.
    Fine,
    /// Noticeable only if each row is timed.
    Bearable,
    /// Distorts what it times.
    Slow,
    /// Too slow to read for every row, block or statement.
    TooSlow,
}

impl Grade {
    /// Grades the cost of one read.
    pub fn of(reading_ns: f64) -> Self {
        match reading_ns {
            ns if ns <= FINE_NS => Self::Fine,
            ns if ns <= BEARABLE_NS => Self::Bearable,
            ns if ns <= TOO_SLOW_NS => Self::Slow,
            _ => Self::TooSlow,
        }
    }

    /// The value in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Bearable => "bearable",
            Self::Slow => "slow",
            Self::TooSlow => "too_slow",
        }
    }

    /// The assessment and advice as a sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Fine => {
                "fine: track_io_timing, pg_stat_statements and log_min_duration_statement may stay on"
            }
            Self::Bearable => {
                "acceptable: only EXPLAIN ANALYZE of many rows is noticeably slower than the query itself"
            }
            Self::Slow => {
                "slow: EXPLAIN ANALYZE overstates the time of nodes with many rows; use TIMING OFF \
                 for these queries, and measure before leaving track_io_timing on"
            }
            Self::TooSlow => {
                "too slow: turn off track_io_timing and auto_explain.log_timing, and use EXPLAIN \
                 (ANALYZE, TIMING OFF)"
            }
        }
    }
}

/// A feature that reads the clock.
pub struct Use {
    /// The setting, command or extension.
    pub what: &'static str,
    /// When it reads the clock.
    pub when: &'static str,
    /// What it costs, as a phrase.
    pub costs: String,
}

/// What clock reads cost each feature. `monotonic_ns` is the cost of reading `CLOCK_MONOTONIC`,
/// `day_ns` that of `gettimeofday`.
pub fn uses(monotonic_ns: f64, day_ns: f64) -> [Use; 4] {
    [
        Use {
            what: "EXPLAIN ANALYZE",
            when: "it reads the clock twice for each row of each node",
            // Two reads of n ns for each of a million rows take 2n ms.
            costs: format!("{:.0} ms for a node of 1 million rows", 2.0 * monotonic_ns),
        },
        Use {
            what: "track_io_timing",
            when: "it reads the clock twice",
            costs: format!(
                "{:.0} ns for each block read or written outside shared buffers",
                2.0 * monotonic_ns
            ),
        },
        Use {
            what: "pg_stat_statements",
            when: "it reads the clock twice",
            costs: format!("{:.0} ns for each statement", 2.0 * monotonic_ns),
        },
        Use {
            what: "log_duration, log_min_duration_statement",
            when: "they read the clock once more",
            costs: format!(
                "{day_ns:.0} ns for each parse, bind and execute, plus the cost of a logged line"
            ),
        },
    ]
}

/// Why clock reads are slow here and how to fix it; `None` if they are fast enough.
pub fn suggest_fix(source: &ClockSource, grade: Grade) -> Option<String> {
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
            "{current} is the best clock source; reads are this slow if programs cannot read it in \
             user space (an emulator, a sandbox, a kernel without vDSO)"
        ),
        None => format!(
            "the kernel offers nothing better than {current}; find out why it rejected the TSC: \
             sudo dmesg | grep -i -e tsc -e clocksource; on a virtual machine, have the host expose \
             an invariant TSC"
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
    fn grades_follow_the_cost_of_a_read() {
        for (ns, grade) in [
            (25.0, Grade::Fine),
            (80.0, Grade::Bearable),
            (240.0, Grade::Slow),
            (680.0, Grade::TooSlow),
            (1600.0, Grade::TooSlow),
        ] {
            assert_eq!(Grade::of(ns), grade, "{ns}");
        }
    }

    #[test]
    fn a_better_source_is_named_only_where_the_kernel_offers_it() {
        let tsc = suggest_fix(&source("hpet", "tsc hpet acpi_pm"), Grade::TooSlow).unwrap();
        assert!(tsc.starts_with("echo tsc | sudo tee "), "{tsc}");
        let none = suggest_fix(&source("hpet", "hpet acpi_pm"), Grade::TooSlow).unwrap();
        assert!(none.contains("dmesg") && !none.contains("echo"), "{none}");
        let sandbox = suggest_fix(&source("tsc", "tsc hpet"), Grade::Slow).unwrap();
        assert!(sandbox.contains("the best clock source"), "{sandbox}");
        let kvm = suggest_fix(&source("kvm-clock", "kvm-clock tsc acpi_pm"), Grade::Slow).unwrap();
        assert!(kvm.starts_with("echo tsc | "), "{kvm}");
        assert_eq!(suggest_fix(&source("tsc", "tsc hpet"), Grade::Fine), None);
    }

    #[test]
    fn costs_follow_from_the_number_of_reads() {
        let uses = uses(33.0, 40.0);
        assert_eq!(uses[0].costs, "66 ms for a node of 1 million rows");
        assert_eq!(
            uses[1].costs,
            "66 ns for each block read or written outside shared buffers"
        );
        assert!(uses[3].costs.starts_with("40 ns"), "{}", uses[3].costs);
    }
}
