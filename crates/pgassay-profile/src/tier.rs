//! How deep this process may look into a server, and what would let it look deeper.
//!
//! - T0: only what the server tells over a connection (`pg_stat_activity`, `pg_stat_*`).
//! - T1: also `/proc`: exact totals of every process, which need no privilege, and wait events from
//!   memory, which need the server's own user.
//! - T2: also CPU stacks (`perf_event_open` on all CPUs, and the processes' memory maps).
//! - T3: also context switches, so stacks and durations of what is not on a CPU.
//!
//! Detection tries what it tells of: nothing is concluded from a setting alone.

use crate::error::NotPermitted;
use std::fmt;

/// What is to be had, each with all that is before it.
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

/// The tier that was found, and what is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The highest tier that is permitted.
    pub tier: Tier,
    /// Wait events may be read from the server's memory.
    pub waits_from_memory: bool,
    /// Wake-ups may be observed (T3 only), so that waiting for a CPU is told from being blocked.
    pub wake_ups: bool,
    /// What is refused, the next tier's first.
    pub missing: Vec<Missing>,
}

/// Something that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The tier that it belongs to.
    pub tier: Tier,
    /// What, why, and what grants it.
    pub refusal: NotPermitted,
}

/// `T2`, as in reports.
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
