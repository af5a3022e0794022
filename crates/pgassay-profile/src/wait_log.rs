//! Counts what backends were seen to wait for.
//!
//! On a full machine a sampler in user space does not see what is: it gets a CPU just when the
//! backends do not want it, and under-reports running and waiting to run by half. So the counts
//! here only divide the *blocked* time, whose exact total is the kernel's, among its reasons;
//! nothing here is a share of the clock's time.

use crate::activity::{Activity, NamedWait, stayed_blocked, stayed_runnable};
use crate::procfs::read_state;
use crate::wait_reader::WaitReader;
use pgassay_wire::ExchangeError;
use std::collections::BTreeMap;
use std::io::{Read, Write};

/// What sweeps over the backends have found so far, by whatever a wait is called: `wait_event_info`
/// where it was read from memory, its names where the server was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitLog<W> {
    /// How often each wait was met in a process that was blocked; 0, or no names, is one that told
    /// no reason.
    pub blocked: BTreeMap<W, u64>,
    /// How often a process was on a CPU or waited for one.
    pub runnable: u64,
    /// How often a process could not be read, since it was ending or beginning most likely.
    pub unreadable: u64,
    /// Sweeps.
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
    /// Adds what another one has found.
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
    /// Looks at each of these processes once: its state, then its wait. Some 10 µs a process.
    pub fn sweep(&mut self, reader: &WaitReader, pids: impl IntoIterator<Item = u32>) {
        for pid in pids {
            match read_state(pid) {
                Ok(b'R') => self.runnable += 1,
                Ok(_) => match reader.read(pid) {
                    // Woken between the two looks, it has no wait any more but is not blocked either.
                    Ok(0) if matches!(read_state(pid), Ok(b'R')) => self.runnable += 1,
                    Ok(wait) => *self.blocked.entry(wait).or_default() += 1,
                    Err(_) => self.unreadable += 1,
                },
                Err(_) => self.unreadable += 1,
            }
        }
        self.sweeps += 1;
    }

    /// The same by names.
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
    /// Asks the server once about all of these processes.
    ///
    /// The answer takes some tenths of a millisecond, in which a process may go on. Where `/proc`
    /// shows the processes too, a wait does not count of one that was runnable before and after, and
    /// one that told no wait, but had no CPU in between, was blocked for a reason that has no name.
    ///
    /// # Errors
    /// The server's, or the connection's; none of the processes could be read then.
    pub fn ask<S: Read + Write>(
        &mut self,
        activity: &mut Activity<S>,
        pids: &[u32],
    ) -> Result<(), ExchangeError> {
        self.sweeps += 1;
        let before: Vec<_> = pids.iter().map(|&pid| activity.glance(pid)).collect();
        let failed = |_: &ExchangeError| self.unreadable += pids.len() as u64;
        let mut waits = activity.ask(pids).inspect_err(failed)?;
        for (pid, before) in pids.iter().zip(before) {
            let glances = before.zip(activity.glance(*pid));
            match waits.remove(pid) {
                None => self.unreadable += 1,
                Some(Some(_)) if glances.is_some_and(stayed_runnable) => self.runnable += 1,
                Some(None) if !glances.is_some_and(stayed_blocked) => self.runnable += 1,
                Some(wait) => *self.blocked.entry(wait.unwrap_or_default()).or_default() += 1,
            }
        }
        Ok(())
    }

    /// Asks the server once about all of its sessions but the one that asks; which they are. Nothing
    /// but the server tells whether they are at work, so what told no wait counts as runnable.
    ///
    /// # Errors
    /// The server's, or the connection's.
    pub fn ask_of_all<S: Read + Write>(
        &mut self,
        activity: &mut Activity<S>,
    ) -> Result<Vec<u32>, ExchangeError> {
        self.sweeps += 1;
        let sessions = activity.ask_of_all()?;
        let pids = sessions.keys().copied().collect();
        for told in sessions.into_values() {
            match told {
                None => self.unreadable += 1,
                Some(None) => self.runnable += 1,
                Some(Some(wait)) => *self.blocked.entry(wait).or_default() += 1,
            }
        }
        Ok(pids)
    }
}
