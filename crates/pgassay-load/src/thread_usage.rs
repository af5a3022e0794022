//! What a client thread uses while it runs the load.

use serde::{Deserialize, Serialize};

use crate::clock;

/// Resource usage of one client thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadUsage {
    /// How long it ran the load.
    pub elapsed_us: u64,
    /// CPU time, user and system.
    pub cpu_us: u64,
    /// Run-queue wait; `None` if the kernel does not report it.
    pub run_queue_wait_us: Option<u64>,
}

impl ThreadUsage {
    pub(crate) fn add(&mut self, other: Self) {
        self.elapsed_us += other.elapsed_us;
        self.cpu_us += other.cpu_us;
        let both = self.run_queue_wait_us.zip(other.run_queue_wait_us);
        self.run_queue_wait_us = both.map(|(one, other)| one + other);
    }

    /// Returns the share of its time that the thread was on a CPU.
    pub fn on_cpu(&self) -> f64 {
        self.cpu_us as f64 / self.elapsed_us.max(1) as f64
    }

    /// Returns the share of its time that the thread was busy or waiting for a CPU.
    pub fn demand(&self) -> f64 {
        let demand_us = self.cpu_us + self.run_queue_wait_us.unwrap_or(0);
        demand_us as f64 / self.elapsed_us.max(1) as f64
    }
}

/// The calling thread's totals when it began to run the load.
pub(crate) struct UsageStart {
    cpu_ns: u64,
    wait_ns: Option<u64>,
}

impl UsageStart {
    pub fn now() -> Self {
        Self {
            cpu_ns: clock::thread_cpu_ns(),
            wait_ns: clock::thread_run_queue_wait_ns(),
        }
    }

    /// Returns the usage since then; the run began at `begin_ns`.
    pub fn usage(&self, begin_ns: u64) -> ThreadUsage {
        let waited_ns = clock::thread_run_queue_wait_ns()
            .zip(self.wait_ns)
            .map(|(end, begin)| end - begin);
        ThreadUsage {
            elapsed_us: (clock::monotonic_ns() - begin_ns) / 1000,
            cpu_us: (clock::thread_cpu_ns() - self.cpu_ns) / 1000,
            run_queue_wait_us: waited_ns.map(|ns| ns / 1000),
        }
    }
}
