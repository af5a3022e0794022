//! Instants of a thread, and its time between them, on a CPU and in the run queue.

/// A reading of the clock, and of the thread's run-queue wait, in ns.
#[derive(Clone, Copy, Default)]
pub(super) struct Instant {
    pub clock_ns: u64,
    pub delay_ns: u64,
}

impl Instant {
    /// Returns the later of two instants.
    pub fn max(self, other: Self) -> Self {
        if other.clock_ns > self.clock_ns {
            other
        } else {
            self
        }
    }

    /// Returns the instant at this share of the way to a later one.
    pub fn towards(self, later: Self, part: u64, whole: u64) -> Self {
        let between = |from: u64, to: u64| from + to.saturating_sub(from) * part / whole;
        Self {
            clock_ns: between(self.clock_ns, later.clock_ns),
            delay_ns: between(self.delay_ns, later.delay_ns),
        }
    }
}

/// Time of a thread that was not asleep, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadTime {
    pub busy_ns: u64,
    pub run_queue_ns: u64,
}

impl ThreadTime {
    pub(super) fn add(&mut self, from: Instant, to: Instant) {
        let run_queue_ns = to.delay_ns.saturating_sub(from.delay_ns);
        let all_ns = to.clock_ns.saturating_sub(from.clock_ns);
        self.run_queue_ns += run_queue_ns;
        self.busy_ns += all_ns.saturating_sub(run_queue_ns);
    }
}
