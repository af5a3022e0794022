//! Counts what backends were seen to wait for.
//!
//! On a full machine a sampler in user space does not see what is: it gets a CPU just when the
//! backends do not want it, and under-reports running and waiting to run by half. So the counts
//! here only divide the *blocked* time, whose exact total is the kernel's, among its reasons;
//! nothing here is a share of the clock's time.

use crate::procfs::read_state;
use crate::wait_reader::WaitReader;
use std::collections::BTreeMap;

/// What sweeps over the backends have found so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaitLog {
    /// How often each wait was met in a process that was blocked, by `wait_event_info`; 0 is one
    /// that told no reason.
    pub blocked: BTreeMap<u32, u64>,
    /// How often a process was on a CPU or waited for one.
    pub runnable: u64,
    /// How often a process could not be read, since it was ending or beginning most likely.
    pub unreadable: u64,
    /// Sweeps.
    pub sweeps: u64,
}

impl WaitLog {
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
}
