//! The readings: where they come from, and when they are taken.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pgassay_profile::{
    LiveServer, SessionQuery, SessionReader, SessionSweep, raise_thread_priority,
};
use pgassay_record::activity::ActivitySource;
use pgassay_script::Rng;
use pgassay_server::TimedStream;

use super::collector::{Collector, locked};
use super::own_transactions::OwnTransactions;
use crate::system_env::monotonic_ns;

/// Queries of `pg_stat_activity` per second, at most.
const QUERIES_HZ: u32 = 10;
/// A reading may take this share of the time until the next one; with thousands of sessions there are
/// fewer readings,
const COST_MAX: f64 = 0.003;
/// but, up to ten times that share, at least four per second.
const RARE: Duration = Duration::from_millis(250);
/// Likewise a query, which also waits for the network.
const QUERY_MAX: f64 = 0.1;

/// Why memory that was readable is not any more.
const GONE: &str = "the server ended or restarted: its memory is not readable any more";

/// Where readings come from.
pub(super) enum SessionSource {
    /// Shared memory, and the transactions that read names that are missing.
    Memory(Box<SessionReader>, OwnTransactions),
    /// `pg_stat_activity`, and the transactions that read it.
    Query(Box<SessionQuery<TimedStream>>, OwnTransactions),
}

impl SessionSource {
    pub fn kind(&self) -> ActivitySource {
        match self {
            Self::Memory(..) => ActivitySource::Memory,
            Self::Query(..) => ActivitySource::PgStatActivity,
        }
    }

    /// Transactions that the server counts, too.
    pub fn own(&self) -> &OwnTransactions {
        match self {
            Self::Memory(_, own) | Self::Query(_, own) => own,
        }
    }

    /// Connections that are held.
    pub fn connections(&self) -> u32 {
        u32::from(self.kind() == ActivitySource::PgStatActivity)
    }

    /// Statements for one reading.
    pub fn statements(&self) -> u64 {
        u64::from(self.connections())
    }

    pub fn sweep(&mut self) -> Result<SessionSweep> {
        match self {
            Self::Memory(reader, _) => reader.sweep().context(GONE),
            Self::Query(query, own) => {
                let sweep = query.sweep()?;
                own.end(Instant::now());
                Ok(sweep)
            }
        }
    }

    /// Whether the server is known to have stopped, or to have ended all its sessions after a crash.
    pub fn is_gone(&mut self, live: Option<&LiveServer>) -> bool {
        let is_in_memory = self.kind() == ActivitySource::Memory;
        live.is_some_and(|it| !it.is_there()) || (is_in_memory && self.sweep().is_err())
    }

    /// The pause after a reading that took this long, at least.
    fn pause_after(&self, cost: Duration) -> Duration {
        match self {
            Self::Memory(..) => {
                let rare = RARE.max(cost.div_f64(10.0 * COST_MAX));
                cost.div_f64(COST_MAX).min(rare)
            }
            Self::Query(..) => pause_after_query(cost),
        }
    }

    /// The mean time between two readings.
    fn interval(&self, frequency_hz: u32) -> Duration {
        let hz = match self {
            Self::Memory(..) => frequency_hz,
            Self::Query(..) => frequency_hz.min(QUERIES_HZ),
        };
        Duration::from_secs(1) / hz.max(1)
    }
}

/// The pause after a query of all sessions that took this long, at least: sampling by queries may use a
/// tenth of one backend's time, however many sessions there are.
pub fn pause_after_query(cost: Duration) -> Duration {
    cost.div_f64(QUERY_MAX)
}

/// When to read.
pub(super) struct SamplingPlan<'a> {
    pub frequency_hz: u32,
    /// Time 0 of the readings, on `CLOCK_MONOTONIC`.
    pub epoch_ns: u64,
    pub until: Instant,
    /// Set by others to end sampling early.
    pub is_over: &'a AtomicBool,
}

/// What a stretch of sampling was like.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    pub readings: u64,
    /// The thread had a raised priority.
    pub is_prior: bool,
}

/// Reads all sessions at random intervals of 0.5 to 1.5 times the mean, so that no rhythm of the server
/// can hide from it, and adds the readings. The calling thread gets a higher priority if permitted;
/// otherwise the readings on a saturated machine are late, mostly while statements use the CPUs.
///
/// # Errors
/// The server stopped, or ended the connection.
pub(super) fn sample(
    source: &mut SessionSource,
    collector: &Mutex<Collector>,
    plan: &SamplingPlan<'_>,
) -> Result<Sampled> {
    let mut sampled = Sampled {
        readings: 0,
        is_prior: raise_thread_priority(),
    };
    let mut random = Rng::from_seed(monotonic_ns());
    let interval = source.interval(plan.frequency_hz);
    loop {
        let before_ns = monotonic_ns();
        let sweep = source.sweep()?;
        let after_ns = monotonic_ns();
        sampled.readings += 1;
        let middle_ns = u64::midpoint(before_ns, after_ns);
        let at_us = middle_ns.saturating_sub(plan.epoch_ns) as f64 / 1e3;
        locked(collector).add(at_us, sweep);
        let now = Instant::now();
        if now >= plan.until || plan.is_over.load(Ordering::Relaxed) {
            return Ok(sampled);
        }
        let cost = Duration::from_nanos(monotonic_ns() - before_ns);
        let uniform = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let pause = interval.mul_f64(0.5 + uniform);
        let next = plan.until.min(now + pause.max(source.pause_after(cost)));
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
