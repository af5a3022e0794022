//! When a client's next transaction is due, and which transactions are skipped or not begun at all. Source:
//! `CSTATE_PREPARE_THROTTLE` in pgbench.c.

use std::sync::atomic::Ordering;

use super::{Worker, WorkerShared};
use crate::driver::Driver;

/// Of the unserved transactions, draw at most this many one by one. The relative standard deviation of the number of
/// the others is below 0.1%.
const UNSERVED_DRAWN_MAX: u32 = 1_000_000;
/// Maximum number of the others, and of transactions that are skipped at once, so that sums fit.
const ESTIMATED_MAX: f64 = 1e12;
/// After how many skipped transactions to see whether the run is over.
const SKIPS_BETWEEN_CHECKS: u64 = 256;
/// If more transactions than this are late, they are skipped at once. The standard deviation of their number is below
/// 1% of it.
const LATE_DRAWN_MAX: f64 = 10_000.0;
/// Of shorter mean gaps, nearly all are rounded to 0, so that drawing them never catches up.
const MEAN_GAP_MIN_US: f64 = 0.1;

/// When a client's next transaction begins under pacing.
pub(super) enum Pace {
    Now,
    At(u64),
    Over,
}

impl<D: Driver> Worker<D> {
    /// Draws when the client's transaction is due, skipping any that are already late.
    pub(super) fn pace(&mut self, index: usize, now_ns: u64, shared: &WorkerShared<'_>) -> Pace {
        let end_ns = shared.end_ns.load(Ordering::Relaxed);
        let limit_ns = shared
            .options
            .latency_limit
            .map(|limit| limit.as_nanos() as u64);
        if let Some(limit_ns) = limit_ns {
            self.skip_backlog(index, now_ns, limit_ns, shared);
        }
        let limit = shared.transactions_per_client;
        let has_done_all = |ended: u64| limit.is_some_and(|limit| ended >= limit);
        if has_done_all(self.clients[index].run.ended) {
            return Pace::Over;
        }
        let Some((throttle, mean_us)) = &mut self.pace else {
            return Pace::Now;
        };
        loop {
            let gap_us = throttle.poisson_gap(*mean_us).max(0).cast_unsigned();
            self.due_ns += gap_us * 1000;
            let run = &mut self.clients[index].run;
            run.scheduled_ns = self.due_ns;
            let is_late = limit_ns.is_some_and(|limit_ns| self.due_ns + limit_ns < now_ns);
            if !is_late {
                break;
            }
            self.recorder.skipped += 1;
            if let Some(observer) = &mut self.observer {
                observer.transaction(&run.skipped_transaction(now_ns));
            }
            run.ended += 1;
            // At rates above one per µs the gaps are 0, so that skipping may not reach the end by itself.
            let is_over = self.recorder.skipped.is_multiple_of(SKIPS_BETWEEN_CHECKS)
                && (self.driver.now_ns() >= end_ns || shared.stop.load(Ordering::Relaxed));
            if is_over || has_done_all(run.ended) || self.due_ns >= end_ns {
                return Pace::Over;
            }
        }
        if self.due_ns > end_ns {
            Pace::Over
        } else if self.due_ns > now_ns {
            Pace::At(self.due_ns)
        } else {
            Pace::Now
        }
    }

    /// Skips the transactions that are already late, if they are so many that drawing when each was due would keep the
    /// thread from its clients. Their number is its expectation.
    fn skip_backlog(
        &mut self,
        index: usize,
        now_ns: u64,
        limit_ns: u64,
        shared: &WorkerShared<'_>,
    ) {
        let Some((_, mean_us)) = self.pace else {
            return;
        };
        let late_ns = now_ns.saturating_sub(limit_ns);
        let backlog_us = late_ns.saturating_sub(self.due_ns) as f64 / 1e3;
        let late = (backlog_us / mean_us).min(ESTIMATED_MAX);
        let is_drawn = if mean_us < MEAN_GAP_MIN_US {
            backlog_us <= 0.0
        } else {
            late <= LATE_DRAWN_MAX
        };
        let observer = self.observer.as_mut();
        let wants_each = observer.as_ref().is_some_and(|it| it.wants_each_skipped());
        if is_drawn || wants_each {
            return;
        }
        let run = &mut self.clients[index].run;
        let left = shared
            .transactions_per_client
            .map(|limit| limit - run.ended);
        let late = late as u64;
        let skipped = late.min(left.unwrap_or(late));
        self.due_ns = if skipped < late {
            self.due_ns + (skipped as f64 * mean_us * 1e3) as u64
        } else {
            late_ns
        };
        run.scheduled_ns = self.due_ns;
        self.recorder.skipped += skipped;
        if let Some(observer) = observer {
            observer.skipped(&run.skipped_transaction(now_ns), skipped);
        }
        run.ended += skipped;
    }

    /// Counts the transactions that were due before the end of a timed run, in ns of the clock, but
    /// found no client free. A run by count has no such end: `end_ns` is [`u64::MAX`].
    pub(crate) fn count_unserved(&mut self, end_ns: u64) {
        if end_ns == u64::MAX {
            return;
        }
        let Some((throttle, mean_us)) = &mut self.pace else {
            return;
        };
        let drawn_max = if *mean_us < MEAN_GAP_MIN_US {
            0
        } else {
            UNSERVED_DRAWN_MAX
        };
        for _ in 0..drawn_max {
            let gap_us = throttle.poisson_gap(*mean_us).max(0).cast_unsigned();
            self.due_ns += gap_us * 1000;
            if self.due_ns > end_ns {
                return;
            }
            self.recorder.unserved += 1;
        }
        let left_us = end_ns.saturating_sub(self.due_ns) as f64 / 1e3;
        self.recorder.unserved += (left_us / *mean_us).min(ESTIMATED_MAX) as u64;
        self.due_ns = end_ns;
    }
}
