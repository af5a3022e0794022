//! Transactions per second over time, without those of the watch itself.

use pgassay_record::activity::{LoadInterval, LoadMark, LoadMarkKind};

use super::reader::CatalogReader;

/// Time between two readings before 15.
const EVERY_WITH_FILES_US: f64 = 10e6;
/// Sessions report what they have done about once a second. Between readings that are closer together lies
/// the report of a whole second, or none.
const APART_US_MIN: f64 = 0.9e6;
/// Sessions that report once a second, each at its time, do so about evenly over this time.
pub const RECENT_RATE_US: f64 = 1.9e6;
/// A rate that is older is not the present one.
const RECENT_AGE_US_MAX: f64 = 3e6;
/// Readings that a present stall is compared with.
const KEPT_US: f64 = 60e6;
/// A rate is known if readings cover this share of an interval.
const COVERED_SHARE_MIN: f64 = 0.5;
/// A stall has at least this many active sessions,
const STALLED_SESSIONS_MIN: f64 = 1.0;
/// most of which wait; sessions that compute for seconds are no stall.
const STALLED_CPU_SHARE_MAX: f64 = 0.5;
/// In a stall, throughput is below this share of its maximum.
const STALLED_RATE_SHARE_MAX: f64 = 0.02;

/// Transactions of clients that ended so far in all databases. The server also counts two of each parallel worker: one
/// that takes over the leader's settings, one that connects. It counts the workers from 18 on. It also counts the
/// transaction in which a client connects. It counts the sessions from 14 on, but on 14 before that transaction ends.
pub const ENDED_TRANSACTIONS: &str = "select sum(xact_commit + xact_rollback \
     - 2 * coalesce((to_jsonb(d) ->> 'parallel_workers_launched')::bigint, 0) \
     - case when current_setting('server_version_num')::int >= 150000 \
         then (to_jsonb(d) ->> 'sessions')::bigint else 0 end) from pg_stat_database d";

/// The server's count of transactions at some moments.
#[derive(Debug, Default)]
pub struct TransactionRates {
    readings: Vec<TransactionReading>,
    /// Transactions that other parts of the watch have sent so far.
    pub(super) sent_elsewhere: u64,
}

#[derive(Debug, Clone, Copy)]
struct TransactionReading {
    at_us: f64,
    /// All databases' transactions so far, committed or not.
    ended: f64,
    /// Those of the watch.
    own: u64,
}

impl TransactionReading {
    /// Transactions of others between two readings; `None` if the count fell, as when the statistics are reset.
    fn others_until(&self, later: &Self) -> Option<f64> {
        let own = later.own.saturating_sub(self.own) as f64;
        let others = (later.ended - self.ended - own).max(0.0);
        (later.ended >= self.ended).then_some(others)
    }
}

impl TransactionRates {
    /// Reads the count. Within a reading of `reader`.
    pub(super) fn read(&mut self, reader: &mut CatalogReader, at_us: f64) {
        // Before 15, each reading makes the server write all statistics to a file.
        let last = self.readings.last().map(|it| it.at_us);
        if reader.version < 150_000 && last.is_some_and(|last| at_us - last < EVERY_WITH_FILES_US) {
            return;
        }
        let rows = reader.rows("transactions", ENDED_TRANSACTIONS);
        let rows = rows.unwrap_or_default();
        if let Some(ended) = rows.first().and_then(|row| row.real(0)) {
            self.add(at_us, ended, reader.transactions + self.sent_elsewhere);
        }
    }

    fn add(&mut self, at_us: f64, ended: f64, own: u64) {
        self.readings.push(TransactionReading { at_us, ended, own });
    }

    /// Transactions of others between the first and the last reading; `None` without two, or if the statistics were
    /// reset.
    pub fn counted(&self) -> Option<f64> {
        let (first, later) = self.readings.split_first()?;
        first.others_until(later.last()?)
    }

    /// Forgets old readings.
    pub(super) fn prune(&mut self, now_us: f64) {
        self.readings.retain(|it| now_us - it.at_us <= KEPT_US);
    }

    /// Transactions of others per second over the last two seconds or, before 15, ten; `None` if nothing was read
    /// lately.
    pub fn recent_per_s(&self, now_us: f64) -> Option<f64> {
        let last = self.readings.last()?;
        let mut earlier = self.readings.iter().rev();
        let first = earlier.find(|it| last.at_us - it.at_us >= RECENT_RATE_US)?;
        let length_us = last.at_us - first.at_us;
        let is_recent = now_us - last.at_us <= RECENT_AGE_US_MAX.max(length_us);
        let others = first.others_until(last)?;
        is_recent.then(|| others / length_us * 1e6)
    }

    /// The highest rate between two readings; 0 if none is known.
    pub fn most_per_s(&self) -> f64 {
        let readings = self.apart();
        let pairs = readings.iter().zip(readings.iter().skip(1));
        let rates = pairs.filter_map(|(before, after)| {
            Some(before.others_until(after)? / (after.at_us - before.at_us) * 1e6)
        });
        rates.fold(0.0, f64::max)
    }

    /// Writes the rates into a timeline. Sessions report their transactions up to a second late.
    pub fn fill(&self, timeline: &mut [LoadInterval]) {
        let apart = self.apart();
        for interval in timeline {
            interval.transactions_per_s = Self::rate_per_s(&apart, interval);
        }
    }

    fn apart(&self) -> Vec<TransactionReading> {
        let mut apart: Vec<TransactionReading> = Vec::new();
        for reading in &self.readings {
            let last = apart.last().map(|it| it.at_us);
            if last.is_none_or(|last| reading.at_us - last >= APART_US_MIN) {
                apart.push(*reading);
            }
        }
        apart
    }

    fn rate_per_s(readings: &[TransactionReading], interval: &LoadInterval) -> Option<f64> {
        let (start_us, end_us) = (interval.start_us, interval.start_us + interval.length_us);
        let (mut transactions, mut covered_us) = (0.0, 0.0);
        for pair in readings.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            let overlap_us = after.at_us.min(end_us) - before.at_us.max(start_us);
            if overlap_us > 0.0
                && let Some(others) = before.others_until(&after)
            {
                transactions += others * overlap_us / (after.at_us - before.at_us);
                covered_us += overlap_us;
            }
        }
        let is_known = covered_us > 0.0 && covered_us >= COVERED_SHARE_MIN * interval.length_us;
        is_known.then(|| transactions / covered_us * 1e6)
    }
}

/// Intervals in which sessions waited and almost no transaction ended, although at most `most_per_s` had.
pub fn stalls(timeline: &[LoadInterval], most_per_s: f64) -> Vec<LoadMark> {
    let is_stalled = |it: &LoadInterval| {
        let active: f64 = it.active.iter().map(|(_, sessions)| sessions).sum();
        let on_cpu = it.active.iter().find(|(kind, _)| kind.is_empty());
        let on_cpu = on_cpu.map_or(0.0, |(_, sessions)| *sessions);
        let rate = it.transactions_per_s.unwrap_or(f64::INFINITY);
        active >= STALLED_SESSIONS_MIN
            && on_cpu <= STALLED_CPU_SHARE_MAX * active
            && rate <= STALLED_RATE_SHARE_MAX * most_per_s
    };
    let mut marks: Vec<LoadMark> = Vec::new();
    for interval in timeline
        .iter()
        .filter(|it| most_per_s > 0.0 && is_stalled(it))
    {
        match marks.last_mut() {
            Some(mark) if mark.at_us + mark.length_us >= interval.start_us - 1.0 => {
                mark.length_us += interval.length_us;
            }
            _ => marks.push(LoadMark {
                at_us: interval.start_us,
                length_us: interval.length_us,
                kind: LoadMarkKind::Stall,
                text: "no transaction ended".to_owned(),
                count: None,
            }),
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(active: &[(&str, f64)]) -> Vec<LoadInterval> {
        let interval = |second: u32| LoadInterval {
            start_us: f64::from(second) * 1e6,
            length_us: 1e6,
            active: active.iter().map(|it| (it.0.to_owned(), it.1)).collect(),
            idle_in_transaction: 0.0,
            transactions_per_s: None,
        };
        (0..4).map(interval).collect()
    }

    /// 100 transactions in each second but the third; the watch itself has 3 per second.
    fn log() -> TransactionRates {
        let mut log = TransactionRates::default();
        for (second, ended) in [(0, 0), (1, 103), (2, 206), (3, 209), (4, 312)] {
            log.add(f64::from(second) * 1e6, f64::from(ended), 3 * second as u64);
        }
        log
    }

    #[test]
    fn rates_are_those_of_others_and_unknown_beyond_the_readings() {
        let mut timeline = timeline(&[]);
        assert_eq!(log().counted(), Some(300.0));
        assert_eq!(TransactionRates::default().counted(), None);
        log().fill(&mut timeline);
        let rates: Vec<_> = timeline.iter().map(|it| it.transactions_per_s).collect();
        assert_eq!(rates, [Some(100.0), Some(100.0), Some(0.0), Some(100.0)]);
        timeline[3].start_us = 5e6;
        log().fill(&mut timeline);
        assert_eq!(timeline[3].transactions_per_s, None);
        timeline[3].start_us = 2.5e6;
        log().fill(&mut timeline);
        let half = timeline[3].transactions_per_s.unwrap();
        assert!((half - 50.0).abs() < 1e-9, "{half}");
        timeline[3].start_us = 3.6e6;
        log().fill(&mut timeline);
        assert_eq!(timeline[3].transactions_per_s, None);
    }

    /// Regression: a constant load of 300 per second ended with 385, 422 and 2.86, since the last readings are
    /// only some milliseconds apart.
    #[test]
    fn a_constant_load_has_the_same_rate_to_the_end() {
        let mut timeline = timeline(&[]);
        timeline[3].length_us = 0.02e6;
        let mut log = TransactionRates::default();
        for (at_us, ended) in [(0.2e6, 60.0), (1.2e6, 360.0), (2.2e6, 660.0)] {
            log.add(at_us, ended, 0);
        }
        // Shortly after a report of all sessions, and after pgassay's own.
        log.add(3.01e6, 960.0, 0);
        log.add(3.02e6, 963.0, 0);
        log.fill(&mut timeline);
        let rates: Vec<_> = timeline.iter().map(|it| it.transactions_per_s).collect();
        assert_eq!(rates, [Some(300.0), Some(300.0), None, None]);
        assert_eq!(log.counted(), Some(903.0));
    }

    /// Regression: `top` said nothing of a stall, and kept all readings since its start.
    #[test]
    fn the_present_rate_is_of_the_last_readings_and_old_ones_are_forgotten() {
        let mut log = TransactionRates::default();
        assert_eq!(log.recent_per_s(0.0), None);
        for second in 0..=100 {
            let ended = if second < 90 {
                103 * second
            } else {
                103 * 90 + 3 * (second - 90)
            };
            log.add(second as f64 * 1e6, ended as f64, 3 * second);
            if second == 80 {
                assert_eq!(log.recent_per_s(80.5e6), Some(100.0));
                // The connection is lost.
                assert_eq!(log.recent_per_s(84e6), None);
            }
        }
        assert_eq!(log.recent_per_s(100.2e6), Some(0.0));
        log.prune(100e6);
        assert_eq!(log.readings.len(), 61);
        assert!((log.most_per_s() - 100.0).abs() < 1e-9);
        log.prune(155e6);
        assert!(log.most_per_s() < 1e-9);
        // The statistics were reset.
        log.add(101e6, 1.0, 303);
        assert_eq!(log.recent_per_s(101e6), None);
    }

    #[test]
    fn sessions_that_wait_while_nothing_ends_are_a_stall_and_long_computations_are_not() {
        let mut waiting = timeline(&[("", 0.2), ("Lock", 3.0)]);
        log().fill(&mut waiting);
        let marks = stalls(&waiting, 100.0);
        assert_eq!(marks.len(), 1);
        assert!((marks[0].at_us - 2e6).abs() < 1.0 && (marks[0].length_us - 1e6).abs() < 1.0);
        let mut computing = timeline(&[("", 3.0), ("Lock", 0.2)]);
        log().fill(&mut computing);
        assert!(stalls(&computing, 100.0).is_empty());
        // Nothing ever ended: there is no throughput to compare with.
        assert!(stalls(&timeline(&[("Lock", 3.0)]), 0.0).is_empty());
    }
}
