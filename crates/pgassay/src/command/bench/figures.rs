//! pgbench's statistics of a run by thread and script, readable during the run.
//!
//! Identities: total = done + skipped + failed; failed is the sum of its three kinds; retried
//! transactions ≤ retries. Each cell is written by only one thread, so plain loads and stores
//! suffice. A reader may see a transaction partly counted. Source: `StatsData` and `accumStats` in
//! pgbench.c.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pgassay_load::{FailureKind, Transaction, TransactionOutcome};

/// The cells of one thread and script.
#[derive(Default)]
pub struct Cells {
    done: AtomicU64,
    latency_sum: AtomicU64,
    latency_sum2: AtomicU64,
    lag_sum: AtomicU64,
    lag_sum2: AtomicU64,
    lag_max: AtomicU64,
    late: AtomicU64,
    skipped: AtomicU64,
    retried: AtomicU64,
    retries: AtomicU64,
    serialization: AtomicU64,
    deadlock: AtomicU64,
    other: AtomicU64,
}

/// Sums of cells. Times are in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "mpi", derive(serde::Serialize, serde::Deserialize))]
pub struct BenchFigures {
    pub done: u64,
    pub latency_sum_us: f64,
    pub latency_sum2: f64,
    pub lag_sum_us: f64,
    pub lag_max_us: f64,
    pub late: u64,
    pub skipped: u64,
    pub retried: u64,
    pub retries: u64,
    pub serialization: u64,
    pub deadlock: u64,
    pub other: u64,
}

fn count(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Relaxed) + more, Relaxed);
}

fn add(cell: &AtomicU64, more: f64) {
    let sum = f64::from_bits(cell.load(Relaxed)) + more;
    cell.store(sum.to_bits(), Relaxed);
}

fn double(cell: &AtomicU64) -> f64 {
    f64::from_bits(cell.load(Relaxed))
}

/// A transaction's latency and its lag behind schedule, in whole µs as in pgbench.
pub fn latency_and_lag_us(transaction: &Transaction) -> (f64, f64) {
    let scheduled_us = transaction.scheduled_ns / 1000;
    let since = |ns: u64| (ns / 1000).saturating_sub(scheduled_us) as f64;
    (since(transaction.end_ns), since(transaction.begin_ns))
}

impl Cells {
    /// Counts a transaction; it is late if its latency exceeds `limit_us`.
    pub fn count(&self, transaction: &Transaction, limit_us: Option<u64>) {
        if transaction.outcome == TransactionOutcome::Skipped {
            self.skip(1);
            return;
        }
        if transaction.tries > 1 {
            count(&self.retried, 1);
            count(&self.retries, u64::from(transaction.tries - 1));
        }
        if let TransactionOutcome::Failed(kind) = transaction.outcome {
            let cell = match kind {
                FailureKind::Serialization => &self.serialization,
                FailureKind::Deadlock => &self.deadlock,
                FailureKind::Other => &self.other,
            };
            count(cell, 1);
            return;
        }
        let (latency_us, lag_us) = latency_and_lag_us(transaction);
        count(&self.done, 1);
        add(&self.latency_sum, latency_us);
        add(&self.latency_sum2, latency_us * latency_us);
        if lag_us > 0.0 {
            // There is no lag without -R.
            add(&self.lag_sum, lag_us);
            add(&self.lag_sum2, lag_us * lag_us);
        }
        if lag_us > double(&self.lag_max) {
            self.lag_max.store(lag_us.to_bits(), Relaxed);
        }
        if limit_us.is_some_and(|limit_us| latency_us > limit_us as f64) {
            count(&self.late, 1);
        }
    }

    /// Counts transactions that were skipped.
    pub fn skip(&self, more: u64) {
        count(&self.skipped, more);
    }

    /// Sets all cells to zero.
    pub fn reset(&self) {
        for cell in [
            &self.done,
            &self.latency_sum,
            &self.latency_sum2,
            &self.lag_sum,
            &self.lag_sum2,
            &self.lag_max,
            &self.late,
            &self.skipped,
            &self.retried,
            &self.retries,
            &self.serialization,
            &self.deadlock,
            &self.other,
        ] {
            cell.store(0, Relaxed);
        }
    }

    /// The sum of squares of lags, for aggregated logs.
    pub fn lag_sum2(&self) -> f64 {
        double(&self.lag_sum2)
    }

    /// The current values.
    pub fn read(&self) -> BenchFigures {
        BenchFigures {
            done: self.done.load(Relaxed),
            latency_sum_us: double(&self.latency_sum),
            latency_sum2: double(&self.latency_sum2),
            lag_sum_us: double(&self.lag_sum),
            lag_max_us: double(&self.lag_max),
            late: self.late.load(Relaxed),
            skipped: self.skipped.load(Relaxed),
            retried: self.retried.load(Relaxed),
            retries: self.retries.load(Relaxed),
            serialization: self.serialization.load(Relaxed),
            deadlock: self.deadlock.load(Relaxed),
            other: self.other.load(Relaxed),
        }
    }
}

impl BenchFigures {
    /// Failed transactions of all kinds.
    pub fn failed(&self) -> u64 {
        self.serialization + self.deadlock + self.other
    }

    /// All transactions that were due.
    pub fn total(&self) -> u64 {
        self.done + self.skipped + self.failed()
    }

    /// The sum of all.
    pub fn sum(figures: impl Iterator<Item = Self>) -> Self {
        figures.fold(Self::default(), |sum, more| sum.plus(&more))
    }

    /// The sum of both.
    pub fn plus(mut self, other: &Self) -> Self {
        self.done += other.done;
        self.latency_sum_us += other.latency_sum_us;
        self.latency_sum2 += other.latency_sum2;
        self.lag_sum_us += other.lag_sum_us;
        self.lag_max_us = self.lag_max_us.max(other.lag_max_us);
        self.late += other.late;
        self.skipped += other.skipped;
        self.retried += other.retried;
        self.retries += other.retries;
        self.serialization += other.serialization;
        self.deadlock += other.deadlock;
        self.other += other.other;
        self
    }

    /// Mean latency and its standard deviation in ms; `None` without transactions.
    pub fn latency_ms(&self) -> Option<(f64, f64)> {
        if self.done == 0 {
            return None;
        }
        let mean_us = self.latency_sum_us / self.done as f64;
        let variance = self.latency_sum2 / self.done as f64 - mean_us * mean_us;
        // Rounding may make it slightly negative.
        Some((mean_us / 1000.0, variance.max(0.0).sqrt() / 1000.0))
    }
}

/// The cells of all threads: by thread, then by script.
pub struct Board(Vec<Vec<Cells>>);

impl Board {
    /// Cells for this number of threads and scripts.
    pub fn new(threads: usize, scripts: usize) -> Self {
        let of_thread = || (0..scripts).map(|_| Cells::default()).collect();
        Self((0..threads).map(|_| of_thread()).collect())
    }

    /// The cells of a thread, by script.
    pub fn of_thread(&self, thread: usize) -> &[Cells] {
        &self.0[thread]
    }

    /// The figures of each script, over all threads.
    pub fn by_script(&self) -> Vec<BenchFigures> {
        let scripts = self.0.first().map_or(0, Vec::len);
        let of_script = |script: usize| {
            let threads = self.0.iter();
            BenchFigures::sum(threads.map(|cells| cells[script].read()))
        };
        (0..scripts).map(of_script).collect()
    }

    /// All figures.
    pub fn all(&self) -> BenchFigures {
        BenchFigures::sum(self.0.iter().flatten().map(Cells::read))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn transaction(outcome: TransactionOutcome, latency_us: u64, tries: u32) -> Transaction {
        Transaction {
            client: 0,
            ended_before: 0,
            script: 0,
            outcome,
            scheduled_ns: 5_000_000,
            begin_ns: 5_002_000,
            end_ns: 5_000_000 + latency_us * 1000,
            tries,
        }
    }

    #[test]
    fn everything_due_is_counted_once() {
        let board = Board::new(2, 1);
        let cells = &board.of_thread(1)[0];
        for (outcome, tries) in [
            (TransactionOutcome::Done, 1),
            (TransactionOutcome::Done, 3),
            (TransactionOutcome::Skipped, 1),
            (TransactionOutcome::Failed(FailureKind::Serialization), 2),
            (TransactionOutcome::Failed(FailureKind::Deadlock), 1),
            (TransactionOutcome::Failed(FailureKind::Other), 1),
        ] {
            cells.count(&transaction(outcome, 10, tries), Some(9));
        }
        let all = board.all();
        assert_eq!(
            (all.total(), all.done, all.failed(), all.skipped),
            (6, 2, 3, 1)
        );
        assert_eq!((all.retried, all.retries, all.late), (2, 3, 2));
        assert_eq!(board.by_script(), [all]);
    }

    #[test]
    fn latency_has_a_mean_and_a_deviation() {
        let board = Board::new(1, 1);
        assert_eq!(board.all().latency_ms(), None);
        for latency_us in [1000, 3000] {
            board.of_thread(0)[0]
                .count(&transaction(TransactionOutcome::Done, latency_us, 1), None);
        }
        assert_eq!(board.all().latency_ms(), Some((2.0, 1.0)));
        assert!((board.all().lag_sum_us - 4.0).abs() < 1e-9);
    }
}
