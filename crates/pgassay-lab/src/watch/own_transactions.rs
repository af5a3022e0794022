//! Which transactions of pgassay's sessions the server's statistics have.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pgassay_server::TimedStream;
use pgassay_wire::Exchange;

use crate::major_version::major_of;

/// Until 14, a session that becomes idle reports what it did, unless it has done so within this time
/// (`PGSTAT_STAT_INTERVAL`). The rest waits until its next transaction ends, or the session.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// Transactions of a new connection, see [`crate::connector::limit_statements`].
const OF_CONNECTION: u64 = 2;
/// The statistics that a session reads are at most about [`REPORT_EVERY`] old.
const REPORTS_KEPT: usize = 8;

/// Transactions of one session of pgassay. Clones are of the same session.
#[derive(Debug, Clone)]
pub struct OwnTransactions {
    reports: Arc<Mutex<SessionReports>>,
}

#[derive(Debug)]
struct SessionReports {
    /// The session reports at most this often.
    every: Duration,
    ended: u64,
    /// When it reported, and how many had ended by then.
    last: VecDeque<(Instant, u64)>,
}

impl OwnTransactions {
    /// Until 14, what is to be counted at a moment must have ended this long before.
    pub const SETTLING: Duration = Duration::from_millis(600);

    /// Of a session that makes the server report its transactions at once, if it can: from 15.
    pub fn of(exchange: &Exchange<TimedStream>) -> Self {
        Self::new(if is_delayed(exchange) {
            REPORT_EVERY
        } else {
            Duration::ZERO
        })
    }

    fn new(every: Duration) -> Self {
        Self {
            reports: Arc::new(Mutex::new(SessionReports {
                every,
                ended: 0,
                last: VecDeque::new(),
            })),
        }
    }

    /// A connection was opened now.
    pub fn connect(&self, now: Instant) {
        let mut reports = self.locked();
        // The transaction in which a client connects, see `ENDED_TRANSACTIONS`.
        reports.ended += u64::from(reports.every == REPORT_EVERY);
        reports.report(now);
        reports.ended += OF_CONNECTION;
    }

    /// The last connection goes through a pooler: no backend was started, and [`crate::connector::limit_statements`]
    /// only asked which one answers.
    pub fn correct_pooled(&self) {
        let mut reports = self.locked();
        let of_start = u64::from(reports.every == REPORT_EVERY);
        reports.ended = reports.ended.saturating_sub(OF_CONNECTION - 1 + of_start);
        let ended = reports.ended;
        // What was reported cannot be more.
        for (_, reported) in &mut reports.last {
            *reported = ended.min(*reported);
        }
    }

    /// The session has ended: it reported the rest.
    pub fn close(&self, now: Instant) {
        self.locked().report(now);
    }

    /// A transaction has ended.
    pub fn end(&self, now: Instant) {
        let mut reports = self.locked();
        reports.ended += 1;
        let last = reports.last.back().map(|it| it.0);
        if last.is_none_or(|last| now.saturating_duration_since(last) >= reports.every) {
            reports.report(now);
        }
    }

    /// How many the server's statistics had before this moment.
    pub fn reported(&self, at: Instant) -> u64 {
        let reports = self.locked();
        let known = reports.last.iter().rev().find(|it| it.0 < at);
        known.or(reports.last.front()).map_or(0, |it| it.1)
    }

    fn locked(&self) -> MutexGuard<'_, SessionReports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionReports {
    fn report(&mut self, now: Instant) {
        if self.last.len() == REPORTS_KEPT {
            self.last.pop_front();
        }
        self.last.push_back((now, self.ended));
    }
}

/// Whether sessions report late, whatever they do: before 15.
pub fn is_delayed(exchange: &Exchange<TimedStream>) -> bool {
    let major = exchange.parameter("server_version").map(major_of);
    // 9.6 is no whole number.
    major.is_some_and(|it| it.parse::<u32>().map_or(true, |it| it < 15))
}

/// The sum of [`OwnTransactions::reported`].
pub fn reported<'a>(own: impl IntoIterator<Item = &'a OwnTransactions>, at: Instant) -> u64 {
    own.into_iter().map(|it| it.reported(at)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Regression: before 15, a profile counted 13 transactions of pgassay as clients', 33 instead of 20: it left out
    /// those that it had sent, while its sessions had reported others.
    #[test]
    fn what_a_session_has_not_reported_yet_is_not_in_the_servers_count() {
        let start = Instant::now();
        let own = OwnTransactions::new(REPORT_EVERY);
        own.connect(start);
        own.end(start + 100 * MS);
        assert_eq!(own.reported(start + 200 * MS), 1);
        // With the two of its settings.
        own.end(start + 700 * MS);
        own.end(start + 701 * MS);
        assert_eq!(own.reported(start + 700 * MS), 1);
        assert_eq!(own.reported(start + 5000 * MS), 5);
        own.end(start + 1700 * MS);
        assert_eq!(own.reported(start + 5000 * MS), 7);
        // Statistics that were written before.
        assert_eq!(own.reported(start + 1500 * MS), 5);
        let many = OwnTransactions::new(REPORT_EVERY);
        (1..100).for_each(|it| many.end(start + it * 1000 * MS));
        assert_eq!(many.reported(start + 98_500 * MS), 98);
        assert_eq!(many.reported(start), 92);
    }

    #[test]
    fn a_connection_through_a_pooler_starts_no_session_and_one_that_ends_reports_all() {
        let start = Instant::now();
        for (every, direct) in [(REPORT_EVERY, 4), (Duration::ZERO, 3)] {
            for (is_pooled, ended) in [(false, direct), (true, 2)] {
                let own = OwnTransactions::new(every);
                own.connect(start);
                if is_pooled {
                    own.correct_pooled();
                }
                own.end(start + MS);
                own.close(start + 2 * MS);
                assert_eq!(own.reported(start + 3 * MS), ended, "{every:?} {is_pooled}");
            }
        }
    }

    #[test]
    fn from_15_on_a_session_reports_at_once() {
        let start = Instant::now();
        let own = OwnTransactions::new(Duration::ZERO);
        own.connect(start);
        own.end(start + MS);
        own.end(start + 2 * MS);
        assert_eq!(own.reported(start + 2 * MS), 3);
        assert_eq!(reported([&own, &own], start + 3 * MS), 8);
    }
}
