//! A thread's counters and histograms during a run.

use hdrhistogram::Histogram;

use crate::measurement::{Openings, TimerLag};

/// The highest latency that a histogram records; longer ones count as this.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;
const LATENCY_DIGITS: u8 = 3;

/// Creates a histogram of latencies in ns; about 270 kB.
pub(crate) fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, LATENCY_DIGITS)
        .expect("the bounds are constants that the crate accepts")
}

/// What a client does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Transaction,
    Sleep,
    Between,
}

/// A transaction that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// The client's index within the thread.
    pub client: usize,
    pub script: usize,
    /// When it was due or, without pacing, when it began. Latency counts from here.
    pub begin_ns: u64,
    /// When it began.
    pub started_ns: u64,
    /// When its client started work on it; with a connection for each transaction, when connecting
    /// began.
    pub claimed_ns: u64,
    pub end_ns: u64,
    pub failed: bool,
}

/// Counters of one script.
pub(crate) struct ScriptRecord {
    pub latency_ns: Histogram<u64>,
    pub failed: u64,
}

/// A thread's record of one run.
pub(crate) struct Recorder {
    pub window_begin_ns: u64,
    /// Lowered when the run is stopped.
    pub window_end_ns: u64,
    /// Whether transactions that end after the window are measured too. Kept by [`Self::reset`].
    pub counts_late_ends: bool,
    pub scripts: Vec<ScriptRecord>,
    pub clients: Vec<u64>,
    pub settle_transactions: u64,
    pub transactions_total: u64,
    pub failed_total: u64,
    /// Time of failed transactions inside the window.
    pub failed_ns: u64,
    /// The correction for transactions that straddle an end of the window: their share of duration
    /// inside the window minus their count by end time.
    credit_at_ends: f64,
    pub in_transaction_ns: u64,
    pub asleep_ns: u64,
    pub between_ns: u64,
    pub timer_lag: TimerLag,
    /// When the last client finished or was aborted; before that, when the last transaction ended.
    pub last_end_ns: u64,
    pub skipped: u64,
    pub unserved: u64,
    /// Under pacing: latencies measured from the transactions' beginning.
    pub since_begin_ns: Option<Histogram<u64>>,
    /// If each transaction has its own connection.
    pub openings: Option<Box<Openings>>,
    /// Connections opened during the run, and the time that opening and closing took.
    pub opened: u64,
    pub connecting_ns: u64,
}

impl Recorder {
    pub fn new(scripts: usize, clients: usize) -> Self {
        let record = || ScriptRecord {
            latency_ns: latency_histogram(),
            failed: 0,
        };
        Self {
            window_begin_ns: 0,
            window_end_ns: 0,
            counts_late_ends: false,
            scripts: (0..scripts).map(|_| record()).collect(),
            clients: vec![0; clients],
            settle_transactions: 0,
            transactions_total: 0,
            failed_total: 0,
            failed_ns: 0,
            credit_at_ends: 0.0,
            in_transaction_ns: 0,
            asleep_ns: 0,
            between_ns: 0,
            timer_lag: TimerLag::default(),
            last_end_ns: 0,
            skipped: 0,
            unserved: 0,
            since_begin_ns: None,
            openings: None,
            opened: 0,
            connecting_ns: 0,
        }
    }

    /// Resets the counters for a new run, without allocating.
    pub fn reset(&mut self, window_begin_ns: u64, window_end_ns: u64) {
        for script in &mut self.scripts {
            script.latency_ns.reset();
            script.failed = 0;
        }
        if let Some(since_begin_ns) = &mut self.since_begin_ns {
            since_begin_ns.reset();
        }
        if let Some(openings) = &mut self.openings {
            **openings = Openings::default();
        }
        self.clients.fill(0);
        self.window_begin_ns = window_begin_ns;
        self.window_end_ns = window_end_ns;
        self.settle_transactions = 0;
        self.transactions_total = 0;
        self.failed_total = 0;
        self.failed_ns = 0;
        self.credit_at_ends = 0.0;
        self.in_transaction_ns = 0;
        self.asleep_ns = 0;
        self.between_ns = 0;
        self.timer_lag = TimerLag::default();
        self.last_end_ns = 0;
        self.skipped = 0;
        self.unserved = 0;
        self.opened = 0;
        self.connecting_ns = 0;
    }

    /// Counts a transaction that ended.
    #[inline]
    pub fn end(&mut self, ended: Ended) {
        self.last_end_ns = self.last_end_ns.max(ended.end_ns);
        let is_measured = self.is_in_window(ended.end_ns)
            || self.counts_late_ends && ended.end_ns >= self.window_end_ns;
        let script = &mut self.scripts[ended.script];
        if ended.failed {
            self.failed_total += 1;
            script.failed += u64::from(is_measured);
            self.failed_ns += self.inside_ns(ended);
            return;
        }
        self.transactions_total += 1;
        if is_measured {
            script
                .latency_ns
                .saturating_record(ended.end_ns - ended.begin_ns);
            if let Some(since_begin_ns) = &mut self.since_begin_ns {
                since_begin_ns.saturating_record(ended.end_ns - ended.started_ns);
            }
            self.clients[ended.client] += 1;
        } else if ended.end_ns < self.window_begin_ns {
            self.settle_transactions += 1;
        }
        if ended.claimed_ns < self.window_begin_ns || ended.end_ns >= self.window_end_ns {
            self.credit_at_end(ended, is_measured);
        }
    }

    /// Credits a transaction that lies only partly in the window with the share that does.
    ///
    /// A client's transactions follow each other without a gap, so this integrates 1 / duration
    /// over the window, and the mean of that is the rate wherever the window lies.
    #[cold]
    fn credit_at_end(&mut self, ended: Ended, is_measured: bool) {
        let inside_ns = self.inside_ns(ended);
        let duration_ns = ended.end_ns.saturating_sub(ended.claimed_ns).max(1);
        self.credit_at_ends += inside_ns as f64 / duration_ns as f64;
        self.credit_at_ends -= f64::from(u8::from(is_measured));
    }

    /// The part of a transaction's duration that lies in the window.
    fn inside_ns(&self, ended: Ended) -> u64 {
        let end_ns = ended.end_ns.min(self.window_end_ns);
        end_ns.saturating_sub(ended.claimed_ns.max(self.window_begin_ns))
    }

    /// Returns the number of transactions, each counted by the share of its duration in the window.
    pub fn credited_transactions(&self) -> f64 {
        self.clients.iter().sum::<u64>() as f64 + self.credit_at_ends
    }

    /// Whether a time lies in the window.
    #[inline]
    pub fn is_in_window(&self, now_ns: u64) -> bool {
        (self.window_begin_ns..self.window_end_ns).contains(&now_ns)
    }

    /// Adds an interval to the account of the clients' time, as far as it lies in the window.
    #[inline]
    pub fn book(&mut self, doing: Doing, from_ns: u64, to_ns: u64) {
        let from_ns = from_ns.max(self.window_begin_ns);
        let length_ns = to_ns.min(self.window_end_ns).saturating_sub(from_ns);
        match doing {
            Doing::Transaction => self.in_transaction_ns += length_ns,
            Doing::Sleep => self.asleep_ns += length_ns,
            Doing::Between => self.between_ns += length_ns,
        }
    }

    /// Records how late a sleeping client was woken.
    pub fn woken(&mut self, due_ns: u64, now_ns: u64) {
        let lag_us = now_ns.saturating_sub(due_ns) / 1000;
        self.timer_lag.wakeups += 1;
        self.timer_lag.sum_us += lag_us;
        self.timer_lag.max_us = self.timer_lag.max_us.max(lag_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(begin_ns: u64, end_ns: u64, failed: bool) -> Ended {
        Ended {
            client: 0,
            script: 0,
            begin_ns,
            started_ns: begin_ns,
            claimed_ns: begin_ns,
            end_ns,
            failed,
        }
    }

    #[test]
    fn the_window_includes_its_begin_and_not_its_end() {
        let mut recorder = Recorder::new(1, 1);
        recorder.reset(100, 200);
        for end_ns in [99, 100, 199, 200] {
            recorder.end(ended(50, end_ns, false));
        }
        recorder.end(ended(50, 150, true));
        recorder.end(ended(50, 250, true));
        assert_eq!(recorder.transactions_total, 4);
        assert_eq!(recorder.settle_transactions, 1);
        assert_eq!(recorder.clients, [2]);
        assert_eq!(recorder.scripts[0].latency_ns.len(), 2);
        assert_eq!(recorder.scripts[0].latency_ns.max(), 149);
        assert_eq!((recorder.scripts[0].failed, recorder.failed_total), (1, 2));
        // 100 to 150, and 100 to 200.
        assert_eq!(recorder.failed_ns, 150);
    }

    #[test]
    fn late_ends_are_measured_if_all_transactions_are() {
        let mut recorder = Recorder::new(1, 1);
        recorder.counts_late_ends = true;
        recorder.since_begin_ns = Some(latency_histogram());
        recorder.reset(100, 200);
        for end_ns in [150, 250] {
            recorder.end(ended(100, end_ns, false));
            recorder.end(ended(100, end_ns, true));
        }
        assert_eq!(
            (recorder.transactions_total, &recorder.clients[..]),
            (2, &[2][..])
        );
        let since_begin_ns = recorder.since_begin_ns.as_ref();
        for latency_ns in [Some(&recorder.scripts[0].latency_ns), since_begin_ns] {
            assert_eq!(latency_ns.map(|it| (it.len(), it.max())), Some((2, 150)));
        }
        assert_eq!(recorder.scripts[0].failed, 2);
        // Rates of windows are what they are without.
        let credited = recorder.credited_transactions();
        assert!(
            (credited - (1.0 + 100.0 / 150.0)).abs() < 1e-12,
            "{credited}"
        );
    }

    #[test]
    fn transactions_count_by_their_share_in_the_window() {
        let credit = |transactions: &[(u64, u64)]| {
            let mut recorder = Recorder::new(1, 1);
            recorder.reset(100, 200);
            for (begin_ns, end_ns) in transactions {
                recorder.end(ended(*begin_ns, *end_ns, false));
            }
            recorder.credited_transactions()
        };
        for (begin_ns, end_ns, expected) in [
            (0, 99, 0.0),
            (0, 100, 0.0),
            (80, 120, 0.5),
            (100, 150, 1.0),
            (100, 200, 1.0),
            (150, 200, 1.0),
            (190, 230, 0.25),
            (200, 230, 0.0),
            (50, 250, 0.5),
            (0, 400, 0.25),
        ] {
            let credited = credit(&[(begin_ns, end_ns)]);
            assert!((credited - expected).abs() < 1e-12, "{begin_ns}..{end_ns}");
        }
        // Transactions of 30 without a gap: 100 / 30 of them, whatever the phase.
        for phase in 0..30 {
            let chain = (0..10).map(|i| (phase + i * 30, phase + (i + 1) * 30));
            let credited = credit(&chain.collect::<Vec<_>>());
            assert!((credited - 100.0 / 30.0).abs() < 1e-9, "{phase}");
        }
        let mut recorder = Recorder::new(1, 1);
        recorder.reset(100, 200);
        recorder.end(ended(90, 110, true));
        assert!(recorder.credited_transactions().abs() < 1e-12);
    }

    #[test]
    fn time_is_cut_at_the_window() {
        let mut recorder = Recorder::new(1, 1);
        recorder.reset(100, 200);
        recorder.book(Doing::Between, 0, 110);
        recorder.book(Doing::Transaction, 110, 150);
        recorder.book(Doing::Sleep, 150, 190);
        recorder.book(Doing::Transaction, 190, 300);
        recorder.book(Doing::Transaction, 300, 400);
        recorder.book(Doing::Sleep, 0, 50);
        assert_eq!(
            (
                recorder.between_ns,
                recorder.in_transaction_ns,
                recorder.asleep_ns
            ),
            (10, 50, 40)
        );
    }

    #[test]
    fn latencies_keep_three_digits_up_to_an_hour() {
        let mut histogram = latency_histogram();
        for value in [1, 999, 123_456, 59_987_654_321, u64::MAX] {
            histogram.saturating_record(value);
        }
        assert_eq!(histogram.len(), 5);
        for value in [1, 999, 123_456, 59_987_654_321_u64] {
            assert!(
                histogram.equivalent_range(value) <= (value / 500).max(1),
                "{value}"
            );
        }
    }
}
