//! Records the transactions of a profiled trial and what backends did within them.
//!
//! The load generator and the context-switch trace use the same clock, and each client's backend is
//! known, so a transaction maps to an interval of its backend's time. Transactions are kept only
//! for the duration of a trial; results contain sums.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pgassay_load::{
    ClientPool, FailedTry, LoadError, Measurement, Observer, Transaction, TransactionOutcome,
};
use pgassay_model::transactions::{TransactionTimes, Transactions};
use pgassay_profile::{Blocked, Samples, Span, SpanAccount};

/// Maximum number of transactions recorded per trial, over all threads: 24 MiB.
const KEPT_MAX: usize = 1 << 20;
/// The tail consists of transactions above this percentile.
const TAIL_PERCENTILE: f64 = 99.0;

/// A successful transaction.
#[derive(Clone, Copy)]
struct RecordedTransaction {
    client: u32,
    begin_ns: u64,
    end_ns: u64,
}

/// The transactions of all threads.
#[derive(Default)]
struct SharedTransactions {
    kept: Mutex<Vec<RecordedTransaction>>,
    dropped: AtomicU64,
}

/// Records the transactions of a client pool.
pub struct TransactionRecorder {
    shelf: Arc<SharedTransactions>,
}

/// Records the transactions of one thread.
struct ThreadKeeper {
    kept: Vec<RecordedTransaction>,
    dropped: u64,
    shelf: Arc<SharedTransactions>,
}

impl TransactionRecorder {
    /// Starts recording, until the pool's observer is removed.
    pub fn start(pool: &mut ClientPool) -> Self {
        let shelf = Arc::<SharedTransactions>::default();
        let room = KEPT_MAX / pool.threads().max(1);
        pool.observe(|_| {
            Some(Box::new(ThreadKeeper {
                // Allocated up front, because growing would delay the clients. Untouched pages
                // take no memory.
                kept: Vec::with_capacity(room),
                dropped: 0,
                shelf: Arc::clone(&shelf),
            }))
        });
        Self { shelf }
    }

    /// What the backends `pids`, in client order, did within the transactions that ended in the
    /// window, and within those above its p99. `None` if context switches were not traced.
    pub fn account(
        &self,
        pids: &[u32],
        measured: &Measurement,
        samples: &Samples,
    ) -> Option<TransactionAccount> {
        let off_cpu = samples.off_cpu.as_ref()?;
        let kept = self.shelf.kept.lock();
        let kept = kept.unwrap_or_else(PoisonError::into_inner);
        let instants = &measured.instants;
        let window = instants.window_begin_ns..instants.window_end_ns;
        let p99_ns = measured.latency_ns.value_at_percentile(TAIL_PERCENTILE);
        let in_window = || kept.iter().filter(|it| window.contains(&it.end_ns));
        let in_tail = || in_window().filter(|it| it.latency_ns() > p99_ns);
        let spans = |it: &RecordedTransaction| it.span(pids);
        let slices = off_cpu.whole().iter();
        let slices_ns = slices.map(|slice| {
            let end_ns = slice.end_ns.min(window.end);
            end_ns.saturating_sub(slice.start_ns.max(window.start))
        });
        let (all, tail) = (
            off_cpu.within(in_window().filter_map(spans)),
            off_cpu.within(in_tail().filter_map(spans)),
        );
        Some(TransactionAccount {
            samples_in_all: samples.within(in_window().filter_map(spans)),
            samples_in_tail: samples.within(in_tail().filter_map(spans)),
            transactions: Transactions {
                all: times(in_window(), &all),
                tail: times(in_tail(), &tail),
                p99_ns: vec![p99_ns],
                window_ns: window.end - window.start,
                slices_ns: slices_ns.sum(),
                dropped: self.shelf.dropped.load(Ordering::Relaxed),
            },
            blocked_in_all: all.blocked,
            blocked_in_tail: tail.blocked,
        })
    }
}

/// What backends did within transactions: totals, and stacks for all transactions and for the tail.
pub struct TransactionAccount {
    pub transactions: Transactions,
    /// Blocked within any transaction.
    pub blocked_in_all: Vec<Blocked>,
    /// Blocked within a transaction of the tail.
    pub blocked_in_tail: Vec<Blocked>,
    /// On-CPU samples within any transaction, by stack.
    pub samples_in_all: BTreeMap<u32, u64>,
    /// On-CPU samples within a transaction of the tail, by stack.
    pub samples_in_tail: BTreeMap<u32, u64>,
}

fn times<'a>(
    kept: impl Iterator<Item = &'a RecordedTransaction>,
    account: &SpanAccount,
) -> TransactionTimes {
    let (transactions, latency_ns) = kept.fold((0, 0), |(count, sum_ns), it| {
        (count + 1, sum_ns + it.latency_ns())
    });
    TransactionTimes {
        transactions,
        latency_ns,
        covered: account.spans,
        covered_ns: account.covered_ns,
        on_cpu_ns: account.on_cpu_ns,
        run_queue_ns: account.run_queue_ns,
        unknown_state_ns: account.unseen_ns,
    }
}

impl RecordedTransaction {
    fn latency_ns(&self) -> u64 {
        self.end_ns - self.begin_ns
    }

    /// The interval of its backend's time.
    fn span(&self, pids: &[u32]) -> Option<Span> {
        Some(Span {
            pid: *pids.get(self.client as usize)?,
            start_ns: self.begin_ns,
            end_ns: self.end_ns,
        })
    }
}

impl Observer for ThreadKeeper {
    fn transaction(&mut self, transaction: &Transaction) {
        if transaction.outcome != TransactionOutcome::Done {
            return;
        }
        if self.kept.len() == self.kept.capacity() {
            self.dropped += 1;
            return;
        }
        self.kept.push(RecordedTransaction {
            client: transaction.client,
            begin_ns: transaction.scheduled_ns,
            end_ns: transaction.end_ns,
        });
    }

    fn failed_try(&mut self, _: &FailedTry<'_>) {}

    fn aborted(&mut self, _: u32, _: &LoadError) {}

    fn finished(&mut self) {
        let mut shelf = self
            .shelf
            .kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        shelf.append(&mut self.kept);
        drop(shelf);
        self.shelf
            .dropped
            .fetch_add(self.dropped, Ordering::Relaxed);
        self.dropped = 0;
    }
}
