//! Whether the load generator was the bottleneck of a run.
//!
//! A thread that waits for a CPU nearly all the time is the bottleneck if CPUs are idle or the load
//! generator itself occupies them. If other processes do, as a server on the same machine does, they wait as well:
//! the figures are those of the machine that they share.

use pgassay_load::{Measurement, ThreadUsage};
use pgassay_profile::{MachineCpu, allowed_cpus};

/// A thread on a CPU for this share of the time has no reserve.
const BUSY: f64 = 0.9;
/// If more than this share of the CPUs is idle, they are not saturated.
const IDLE_NOTICEABLE: f64 = 0.1;
/// The load generator has the CPUs to itself if it uses this share of their busy time.
const OWN_SHARE: f64 = 0.75;

/// What limited the load generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "mpi", derive(serde::Serialize, serde::Deserialize))]
pub enum ClientLimit {
    /// Nothing: it waited for the server, or for transactions to be due.
    Unlimited,
    /// It competed with other processes for the CPUs.
    Competition,
    /// Its own speed.
    Client,
}

/// The time of the CPUs that this process may use, from the beginning of a run.
pub struct CpuWatch {
    cpus: Vec<usize>,
    begin: Option<MachineCpu>,
}

impl CpuWatch {
    /// Begins to watch the CPUs that the threads are pinned to, or else all that they may use.
    pub fn start(pinned: &[usize]) -> Self {
        let mut cpus = pinned.to_vec();
        if cpus.is_empty() {
            cpus = allowed_cpus();
        }
        cpus.sort_unstable();
        cpus.dedup();
        let begin = MachineCpu::read_of(&cpus).ok();
        Self { cpus, begin }
    }

    /// What limited the load generator since then.
    pub fn limit(&self, measurement: &Measurement) -> ClientLimit {
        if !measurement.client_limited {
            return ClientLimit::Unlimited;
        }
        let end = MachineCpu::read_of(&self.cpus).ok();
        let passed = end.zip(self.begin).map(|(end, begin)| end.since(&begin));
        limit_of(&measurement.threads, passed)
    }
}

/// What limited threads of which at least one was busy, or waited for a CPU, nearly all the time.
fn limit_of(threads: &[ThreadUsage], cpus: Option<MachineCpu>) -> ClientLimit {
    let is_busy = |thread: &ThreadUsage| thread.on_cpu() >= BUSY;
    let others_compete = cpus.is_some_and(|cpus| {
        let idle_ns = cpus.idle_ns + cpus.io_wait_ns;
        let own_us: u64 = threads.iter().map(|thread| thread.cpu_us).sum();
        (idle_ns as f64) < IDLE_NOTICEABLE * cpus.total_ns as f64
            && (own_us as f64 * 1e3) < OWN_SHARE * cpus.busy_ns() as f64
    });
    if others_compete && !threads.iter().any(is_busy) {
        ClientLimit::Competition
    } else {
        ClientLimit::Client
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn limit(cpu_us: u64, run_queue_wait_us: u64, idle_ns: u64) -> ClientLimit {
        let thread = ThreadUsage {
            elapsed_us: 1_000_000,
            cpu_us,
            run_queue_wait_us: Some(run_queue_wait_us),
        };
        let cpus = MachineCpu {
            total_ns: 2 * S,
            idle_ns,
            ..MachineCpu::default()
        };
        limit_of(&[thread, thread], Some(cpus))
    }

    /// Regression: a server on the same machine made the client the bottleneck.
    #[test]
    fn threads_that_wait_for_a_cpu_behind_backends_were_client_limited() {
        assert_eq!(limit(110_000, 870_000, 0), ClientLimit::Competition);
    }

    #[test]
    fn a_thread_is_limited_by_itself_or_by_its_own_others() {
        assert_eq!(limit(950_000, 30_000, 0), ClientLimit::Client);
        // As many threads as have to share the CPUs, which use all of them.
        assert_eq!(limit(850_000, 100_000, 0), ClientLimit::Client);
        // CPUs are idle, so something else keeps the threads from running.
        assert_eq!(limit(110_000, 870_000, S), ClientLimit::Client);
        let unknown = limit_of(&[ThreadUsage::default()], None);
        assert_eq!(unknown, ClientLimit::Client);
    }
}
