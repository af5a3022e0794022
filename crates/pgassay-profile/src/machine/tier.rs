//! Which data about a server this process can access, and how to get access to more.
//!
//! - T0: only SQL (`pg_stat_activity`, `pg_stat_*`).
//! - T1: also `/proc`: exact totals of every process, which require no privilege, and wait events
//!   from memory, which require the server's own user; otherwise the wait events of
//!   `pg_stat_activity` divide the exact totals.
//! - T2: also CPU stacks (`perf_event_open` on all CPUs, and the processes' memory maps).
//! - T3: also context switches: off-CPU stacks with durations.
//!
//! Each access is tried; nothing is concluded from a setting alone.

use crate::perf::error::{NotPermitted, SamplerError};
use crate::perf::event::{self, EventKind};
use crate::perf::tracefs::wake_up_tracepoint;
use crate::proc::cpu::ProcessCpu;
use crate::proc::{maps, memory};
use std::fmt;

/// The available data; each tier includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Only SQL.
    T0,
    /// Exact CPU totals from `/proc`.
    T1,
    /// CPU stacks.
    T2,
    /// Off-CPU stacks with durations.
    T3,
}

/// The available tier, and what is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The highest tier that is permitted.
    pub tier: Tier,
    /// Wait events can be read from the server's memory.
    pub waits_from_memory: bool,
    /// Wake-ups can be traced (T3 only), which separates run-queue wait from blocked time.
    pub wake_ups: bool,
    /// What is not permitted, starting with the next tier.
    pub missing: Vec<Missing>,
}

/// Data that this process cannot access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The tier that it belongs to.
    pub tier: Tier,
    /// What is not permitted, why, and how to permit it.
    pub refusal: NotPermitted,
}

impl Access {
    /// The access to the server of a postmaster on this machine.
    pub fn to_server(postmaster_pid: u32) -> Self {
        Self::to_process(postmaster_pid)
    }

    /// The access to a server that runs as our own user.
    pub fn to_own_server() -> Self {
        Self::to_process(std::process::id())
    }

    /// The access to a server whose processes are hidden or on another machine.
    pub fn without_processes() -> Self {
        Self {
            tier: Tier::T0,
            waits_from_memory: false,
            wake_ups: false,
            missing: vec![Missing {
                tier: Tier::T1,
                refusal: NotPermitted {
                    what: "the server's processes are not visible".to_owned(),
                    why: "it runs on another machine or in another container, or /proc is mounted \
                          with hidepid"
                        .to_owned(),
                    commands: vec!["run pgassay where the server runs".to_owned()],
                },
            }],
        }
    }

    /// The available data, as a list in words.
    pub fn words(&self) -> String {
        let mut words = vec!["SQL statistics"];
        let mut add = |is_there, what| {
            if is_there {
                words.push(what);
            }
        };
        add(self.tier >= Tier::T1, "exact CPU totals");
        add(self.waits_from_memory, "wait events from memory");
        add(self.tier >= Tier::T2, "CPU stacks");
        add(self.tier >= Tier::T3, "off-CPU stacks");
        add(self.wake_ups, "wake-ups");
        words.join(", ")
    }

    fn to_process(pid: u32) -> Self {
        if ProcessCpu::read(pid).is_err() {
            return Self::without_processes();
        }
        let mut missing = Vec::new();
        let mut ask = |tier, answer: Result<(), NotPermitted>| {
            let refused = answer.err().map(|refusal| Missing { tier, refusal });
            let is_permitted = refused.is_none();
            missing.extend(refused);
            is_permitted
        };
        let waits_from_memory = ask(Tier::T1, may_read_memory(pid));
        let stacks = match (may_read_maps(pid), may_open(CLOCK)) {
            (Err(maps), Err(events)) => Err(maps.and(&events)),
            (maps, events) => maps.and(events),
        };
        let stacks = ask(Tier::T2, stacks);
        // If stacks are refused, switches are too, for the same reason.
        let switches = stacks && ask(Tier::T3, may_open(EventKind::Switches));
        let wake_ups = switches && ask(Tier::T3, may_see_wake_ups());
        Self {
            tier: match (stacks, switches) {
                (true, true) => Tier::T3,
                (true, false) => Tier::T2,
                (false, _) => Tier::T1,
            },
            waits_from_memory,
            wake_ups,
            missing,
        }
    }
}

const CLOCK: EventKind = EventKind::Clock {
    frequency_hz: 1,
    stack_bytes: 1024,
};

fn may_open(kind: EventKind) -> Result<(), NotPermitted> {
    event::try_one(kind).map_err(|error| match error {
        SamplerError::NotPermitted(refusal) => refusal,
        other => NotPermitted {
            what: "CPU stacks cannot be sampled".to_owned(),
            why: other.to_string(),
            commands: vec!["run outside the container or sandbox".to_owned()],
        },
    })
}

fn may_see_wake_ups() -> Result<(), NotPermitted> {
    let hidden = match wake_up_tracepoint() {
        Ok((id, _)) if event::try_one(EventKind::Tracepoint { id }).is_ok() => return Ok(()),
        Ok(_) => None,
        Err(hidden) => Some(hidden),
    };
    let program = std::env::current_exe().ok();
    Err(NotPermitted::seeing_wake_ups(hidden, program))
}

fn may_read_maps(pid: u32) -> Result<(), NotPermitted> {
    match maps::read(pid) {
        Ok(mappings) if !mappings.is_empty() => Ok(()),
        _ => Err(NotPermitted::reading_maps(
            pid,
            std::env::current_exe().ok(),
        )),
    }
}

fn may_read_memory(pid: u32) -> Result<(), NotPermitted> {
    let answer = memory::may_read(pid);
    answer.map_err(|_| NotPermitted::reading_memory(pid, std::env::current_exe().ok()))
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::T0 => "T0",
            Self::T1 => "T1",
            Self::T2 => "T2",
            Self::T3 => "T3",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn tiers_are_ordered_and_described() {
        assert!(Tier::T0 < Tier::T1 && Tier::T2 < Tier::T3);
        let remote = Access::without_processes();
        assert_eq!(
            (remote.tier, remote.words().as_str()),
            (Tier::T0, "SQL statistics")
        );
        assert_eq!(remote.missing[0].tier, Tier::T1);
        assert!(
            remote.missing[0]
                .refusal
                .to_string()
                .contains("where the server runs")
        );
    }

    /// Regression test: the first page that a process had mapped was read, and hung if its file was in a file system
    /// of the process's user that did not answer.
    #[test]
    fn a_first_page_that_cannot_be_read_does_not_hide_the_memory() {
        let empty = tempfile::tempfile().unwrap();
        let (lowest, page) = (0x1_0000, 4096);
        // SAFETY: the address is free, and nothing reads the mapping.
        let mapped = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
            let access = libc::PROT_READ | libc::PROT_EXEC;
            let fd = empty.as_raw_fd();
            libc::mmap(
                std::ptr::without_provenance_mut(lowest),
                page,
                access,
                flags,
                fd,
                0,
            )
        };
        let own = std::process::id();
        let first = maps::read(own).unwrap().swap_remove(0).start;
        let read = memory::read(own, first, &mut [0; 8]);
        let may_read = may_read_memory(own);
        // SAFETY: only this test uses it.
        unsafe { libc::munmap(mapped, page) };
        assert_eq!(first, lowest as u64);
        assert!(read.is_err(), "the file is empty");
        assert_eq!(may_read, Ok(()));
        assert!(may_read_memory(1 << 23).is_err());
    }

    #[test]
    fn any_user_can_read_exact_totals_of_its_own_processes() {
        let own = Access::to_own_server();
        assert!(own.tier >= Tier::T1, "{own:?}");
        assert_eq!(
            own.missing.is_empty(),
            own.tier == Tier::T3 && own.wake_ups && own.waits_from_memory
        );
        // Above the largest PID (PID_MAX_LIMIT).
        assert_eq!(Access::to_server(1 << 23), Access::without_processes());
    }
}
