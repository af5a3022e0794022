//! Counts wait samples of backends.
//!
//! On a saturated machine a sampler in user space is biased: it runs only when the backends do not,
//! and under-reports running and runnable processes by half. So these counts only divide the
//! *blocked* time, whose exact total comes from the kernel, among wait events; they are never shares
//! of wall-clock time.

use crate::proc::process_states::ProcessStates;
use crate::waits::activity::{ActivitySampler, NamedWait, stayed_blocked, stayed_runnable};
use crate::waits::reader::WaitReader;
use pgassay_wire::ExchangeError;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};

/// The wait samples so far, by wait event: `wait_event_info` if read from memory, its names if
/// queried from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitLog<W> {
    /// Samples of blocked processes by wait event; 0 or empty names if they reported none.
    pub blocked: BTreeMap<W, u64>,
    /// Samples of processes on CPU or in the run queue.
    pub runnable: u64,
    /// Samples without data, most likely of processes that were starting or ending.
    pub unreadable: u64,
    /// Number of sweeps over all processes.
    pub sweeps: u64,
}

impl<W> Default for WaitLog<W> {
    fn default() -> Self {
        Self {
            blocked: BTreeMap::new(),
            runnable: 0,
            unreadable: 0,
            sweeps: 0,
        }
    }
}

impl<W: Ord> WaitLog<W> {
    /// Adds another log's samples.
    pub fn add(&mut self, other: Self) {
        for (wait, samples) in other.blocked {
            *self.blocked.entry(wait).or_default() += samples;
        }
        self.runnable += other.runnable;
        self.unreadable += other.unreadable;
        self.sweeps += other.sweeps;
    }
}

impl WaitLog<u32> {
    /// Samples each of these processes once: its state, then its wait event. About 12 µs per
    /// process.
    pub fn sweep(
        &mut self,
        reader: &WaitReader,
        states: &mut ProcessStates,
        pids: impl IntoIterator<Item = u32>,
    ) {
        for pid in pids {
            match states.read(pid) {
                Ok(b'R') => self.runnable += 1,
                Ok(_) => match reader.read(pid) {
                    // Woken between the two readings: it has no wait event and is not blocked.
                    Ok(0) if matches!(states.read(pid), Ok(b'R')) => self.runnable += 1,
                    Ok(wait) => *self.blocked.entry(wait).or_default() += 1,
                    Err(_) => self.unreadable += 1,
                },
                Err(_) => self.unreadable += 1,
            }
        }
        self.sweeps += 1;
    }

    /// The same log by names.
    pub fn named(self, name: impl Fn(u32) -> NamedWait) -> WaitLog<NamedWait> {
        let mut blocked = BTreeMap::new();
        for (number, samples) in self.blocked {
            *blocked.entry(name(number)).or_default() += samples;
        }
        WaitLog {
            blocked,
            runnable: self.runnable,
            unreadable: self.unreadable,
            sweeps: self.sweeps,
        }
    }
}

impl WaitLog<NamedWait> {
    /// Samples these processes once by a query.
    ///
    /// The query takes some tenths of a millisecond, in which a process may continue. If `/proc`
    /// shows the processes too, a wait event of a process that was runnable before and after does
    /// not count, and a process without a wait event that was not scheduled in between counts as
    /// blocked for an unknown reason.
    ///
    /// # Errors
    /// An error of the server or the connection; then all processes count as unreadable.
    pub fn ask<S: Read + Write>(
        &mut self,
        activity: &mut ActivitySampler<S>,
        pids: &[u32],
    ) -> Result<(), ExchangeError> {
        self.sweeps += 1;
        let before: Vec<_> = pids
            .iter()
            .map(|&pid| activity.read_proc_state(pid))
            .collect();
        let failed = |_: &ExchangeError| self.unreadable += pids.len() as u64;
        let mut waits = activity.ask(pids).inspect_err(failed)?;
        for (pid, before) in pids.iter().zip(before) {
            let glances = before.zip(activity.read_proc_state(*pid));
            match waits.remove(pid) {
                None => self.unreadable += 1,
                Some(Some(_)) if glances.is_some_and(stayed_runnable) => self.runnable += 1,
                Some(None) if !glances.is_some_and(stayed_blocked) => self.runnable += 1,
                Some(wait) => *self.blocked.entry(wait.unwrap_or_default()).or_default() += 1,
            }
        }
        Ok(())
    }

    /// Samples all sessions except our own once by a query, and returns their PIDs. `own_pids` are
    /// backends that serve other connections of ours. There is no other information about them, so a session without a wait event counts as runnable.
    ///
    /// # Errors
    /// An error of the server or the connection.
    pub fn query_all_sessions<S: Read + Write>(
        &mut self,
        activity: &mut ActivitySampler<S>,
        own_pids: &BTreeSet<u32>,
    ) -> Result<Vec<u32>, ExchangeError> {
        let mut sessions = activity.query_all_sessions()?;
        self.sweeps += 1;
        sessions.retain(|pid, _| !own_pids.contains(pid));
        let pids = sessions.keys().copied().collect();
        for state in sessions.into_values() {
            match state {
                None => self.unreadable += 1,
                Some(None) => self.runnable += 1,
                Some(Some(wait)) => *self.blocked.entry(wait).or_default() += 1,
            }
        }
        Ok(pids)
    }
}
