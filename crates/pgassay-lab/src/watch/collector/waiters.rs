//! Which sessions waited for others at the last reading.

use pgassay_record::activity::{ActivityWait, SessionStatus};

use super::super::catalog::OtherWaiters;
use super::Collector;

impl Collector {
    /// The sessions that waited for a heavyweight lock at the last reading.
    pub fn lock_waiters(&self) -> Vec<u32> {
        self.waiting(|it| it.kind == "Lock")
    }

    /// The other ones that may have waited for others.
    pub fn other_waiters(&self) -> OtherWaiters {
        let untracked = self.untracked.iter().filter(|_| self.is_before_14());
        OtherWaiters {
            for_snapshots: self.waiting(|it| it.kind == "IPC" && it.name == "SafeSnapshot"),
            untracked: untracked.map(|it| it.0).collect(),
        }
    }

    /// The sessions with such a wait, also if their state is not known.
    fn waiting(&self, is_it: impl Fn(&ActivityWait) -> bool) -> Vec<u32> {
        let seen = self.attribution.last().iter();
        let seen = seen.filter(|it| it.activity.state == SessionStatus::Active);
        let seen = seen.map(|it| (it.pid, it.activity.wait));
        let all = seen.chain(self.untracked.iter().copied());
        let its = all.filter(|(_, wait)| is_it(&self.waits.waits[*wait as usize]));
        its.map(|it| it.0).collect()
    }
}
