//! Transactions per second over time, without those of the watch itself and of autovacuum.

use std::iter;
use std::time::{Duration, Instant};

use pgassay_model::check::Check;
use pgassay_record::activity::{Activity, DatabaseActivity, LoadInterval, LoadMark, LoadMarkKind};

use super::super::own_transactions::{OwnTransactions, reported};
use super::autovacuum::AutovacuumWatch;
use super::reader::CatalogReader;

/// Time between two readings before 15.
const EVERY_WITH_FILES_US: f64 = 10e6;
/// Sessions report what they have done about once a second. Between readings that are closer together lies
/// the report of a whole second, or none.
const APART_US_MIN: f64 = 0.9e6;
/// Sessions that report once a second, each at its time, do so about evenly over this time.
pub(super) const RECENT_RATE_US: f64 = 1.9e6;
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
/// The estimate of autovacuum's transactions may exceed all that ended by this share of it and this many; beyond that,
/// those of clients are not known.
const AUTOVACUUM_ERROR_SHARE: f64 = 0.1;
const AUTOVACUUM_ERROR: f64 = 4.0;
/// A report says from this share of all transactions on that autovacuum's are left out.
const AUTOVACUUM_SHARE_NOTED: f64 = 0.03;
/// Whatever a server answers, its statistics are not older.
const AGE_S_MAX: f64 = 60.0;
/// A report says from this share on that some can be autovacuum's.
const AUTOVACUUM_ELSEWHERE_SHARE: f64 = 0.05;

/// Transactions of clients and of autovacuum that ended so far in all databases. The server also counts two of each
/// parallel worker: one that takes over the leader's settings, one that connects. It counts the workers from 18 on. It
/// also counts the transaction in which a client connects. It counts the sessions from 14 on, but on 14 before that
/// transaction ends. Before 15, also how many seconds old that is.
pub const ENDED_TRANSACTIONS: &str = "select sum(xact_commit + xact_rollback \
     - 2 * coalesce((to_jsonb(d) ->> 'parallel_workers_launched')::bigint, 0) \
     - case when current_setting('server_version_num')::int >= 150000 \
         then (to_jsonb(d) ->> 'sessions')::bigint else 0 end), \
     extract(epoch from clock_timestamp() - pg_stat_get_snapshot_timestamp()) from pg_stat_database d";

/// The server's count of transactions at some moments.
#[derive(Debug, Default)]
pub struct TransactionRates {
    readings: Vec<TransactionReading>,
    /// Transactions of other parts of the watch.
    pub(super) own_elsewhere: Vec<OwnTransactions>,
}

#[derive(Debug, Clone, Copy)]
struct TransactionReading {
    at_us: f64,
    /// All databases' transactions so far, committed or not.
    ended: f64,
    /// Those of the watch.
    own: u64,
    /// About how many were autovacuum's.
    autovacuum: f64,
}

impl TransactionReading {
    /// Transactions of clients between two readings; `None` if the count fell, as when the statistics are reset, or is
    /// too small for autovacuum's.
    fn others_until(&self, later: &Self) -> Option<f64> {
        let own = later.own.saturating_sub(self.own) as f64;
        let ended = (later.ended - self.ended - own).max(0.0);
        if later.ended < self.ended {
            return None;
        }
        without_autovacuum(ended, later.autovacuum - self.autovacuum)
    }
}

/// When statistics were written that were so many seconds old when an answer came.
pub fn counted_at(age_s: Option<f64>, answered: Instant) -> Instant {
    let age_s = age_s.filter(|it| (0.0..AGE_S_MAX).contains(it));
    let age = Duration::from_secs_f64(age_s.unwrap_or(0.0));
    answered.checked_sub(age).unwrap_or(answered)
}

/// Of transactions that ended, those of clients; `None` if they are fewer than autovacuum's, which is an estimate.
pub fn without_autovacuum(ended: f64, autovacuum: f64) -> Option<f64> {
    let error = AUTOVACUUM_ERROR_SHARE * autovacuum + AUTOVACUUM_ERROR;
    (ended + error >= autovacuum).then(|| (ended - autovacuum).max(0.0))
}

impl TransactionRates {
    /// Reads the count. Within a reading of `reader`.
    pub(super) fn read(
        &mut self,
        reader: &mut CatalogReader,
        workers: &mut AutovacuumWatch,
        at_us: f64,
    ) {
        // Before 15, each reading makes the server write all statistics to a file.
        let last = self.readings.last().map(|it| it.at_us);
        if reader.version < 150_000 && last.is_some_and(|last| at_us - last < EVERY_WITH_FILES_US) {
            return;
        }
        self.read_now(reader, workers, at_us);
    }

    /// As [`Self::read`], whenever the last reading was.
    pub(super) fn read_now(
        &mut self,
        reader: &mut CatalogReader,
        workers: &mut AutovacuumWatch,
        at_us: f64,
    ) {
        // Without autovacuum's, the number of clients' is not known.
        let Some(autovacuum) = workers.read(reader, at_us) else {
            return;
        };
        let rows = reader.rows("transactions", ENDED_TRANSACTIONS);
        let rows = rows.unwrap_or_default();
        if let Some(ended) = rows.first().and_then(|row| row.real(0)) {
            let counted = counted_at(rows[0].real(1), Instant::now());
            let own = iter::once(&reader.own).chain(&self.own_elsewhere);
            self.readings.push(TransactionReading {
                at_us,
                ended,
                own: reported(own, counted),
                autovacuum,
            });
        }
    }

    /// About how many transactions in so many microseconds were autovacuum's; `None` if the readings are of less than
    /// half of that.
    pub fn of_autovacuum(&self, window_us: f64) -> Option<f64> {
        let (first, later) = self.readings.split_first()?;
        let last = later.last()?;
        let read_us = last.at_us - first.at_us;
        let is_known = read_us > 0.0 && read_us >= COVERED_SHARE_MIN * window_us;
        is_known.then(|| (last.autovacuum - first.autovacuum) * window_us / read_us)
    }

    /// Says what is left out of the rates, if that is a large part.
    pub fn autovacuum_note(&self) -> Option<Check> {
        let (first, later) = self.readings.split_first()?;
        let last = later.last()?;
        let autovacuum = last.autovacuum - first.autovacuum;
        let seconds = (last.at_us - first.at_us) / 1e6;
        let all = first.others_until(last)? + autovacuum;
        let is_large = seconds > 0.0 && autovacuum >= AUTOVACUUM_SHARE_NOTED * all;
        (is_large && autovacuum >= 1.0).then(|| Check {
            name: Activity::TRANSACTIONS.to_owned(),
            value: "without autovacuum's".to_owned(),
            limitation: Some(format!(
                "about {:.0} of {:.0} transactions per second were autovacuum's, estimated by the tables that it \
                 processed; they are left out",
                autovacuum / seconds,
                all / seconds
            )),
            fix: None,
        })
    }

    /// Transactions of clients between the first and the last reading; `None` without two, or if the statistics were
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
        let (first, last) = self.recent(now_us)?;
        Some(first.others_until(last)? / (last.at_us - first.at_us) * 1e6)
    }

    /// As [`Self::recent_per_s`], about those of autovacuum.
    pub fn recent_autovacuum_per_s(&self, now_us: f64) -> Option<f64> {
        let (first, last) = self.recent(now_us)?;
        Some((last.autovacuum - first.autovacuum) / (last.at_us - first.at_us) * 1e6)
    }

    fn recent(&self, now_us: f64) -> Option<(&TransactionReading, &TransactionReading)> {
        let last = self.readings.last()?;
        let mut earlier = self.readings.iter().rev();
        let first = earlier.find(|it| last.at_us - it.at_us >= RECENT_RATE_US)?;
        let length_us = last.at_us - first.at_us;
        let is_recent = now_us - last.at_us <= RECENT_AGE_US_MAX.max(length_us);
        is_recent.then_some((first, last))
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

    /// Writes the rates into a timeline that begins at `since_us`. Sessions report their transactions up to a second
    /// late.
    pub fn fill(&self, timeline: &mut [LoadInterval], since_us: f64) {
        let apart = self.apart();
        for interval in timeline {
            let start_us = since_us + interval.start_us;
            let end_us = start_us + interval.length_us;
            interval.transactions_per_s = Self::rate_per_s(&apart, (start_us, end_us));
        }
    }

    /// Whether the count was read at that time or later.
    pub(super) fn is_read(&self, at_us: f64) -> bool {
        self.readings.last().is_some_and(|it| it.at_us >= at_us)
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

    fn rate_per_s(readings: &[TransactionReading], (start_us, end_us): (f64, f64)) -> Option<f64> {
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
        let is_known = covered_us > 0.0 && covered_us >= COVERED_SHARE_MIN * (end_us - start_us);
        is_known.then(|| transactions / covered_us * 1e6)
    }
}

/// Says how many transactions can be autovacuum's in other databases than the connection's, whose tables are not read,
/// if that is a large part.
pub fn autovacuum_elsewhere(activity: &Activity) -> Option<Check> {
    let catalog = activity.catalog.as_ref()?;
    let ended = |it: &DatabaseActivity| (it.committed + it.rolled_back) as f64;
    let has_worker = |name: &str| {
        let mut workers = activity.sessions.iter();
        workers.any(|it| it.backend_type == "autovacuum worker" && it.database == name)
    };
    let others = catalog.databases.iter();
    let others = others.filter(|it| it.name != catalog.database && has_worker(&it.name));
    let most = others.max_by(|a, b| ended(a).total_cmp(&ended(b)))?;
    let all: f64 = catalog.databases.iter().map(ended).sum();
    let seconds = catalog.window_us / 1e6;
    let is_large = seconds > 0.0 && ended(most) >= AUTOVACUUM_ELSEWHERE_SHARE * all;
    is_large.then(|| Check {
        name: Activity::TRANSACTIONS.to_owned(),
        value: "with those of autovacuum".to_owned(),
        limitation: Some(format!(
            "up to {:.0} of {:.0} transactions per second can be autovacuum's: it worked in database \"{}\", whose \
             tables are only read by a connection to it",
            (ended(most) / seconds).ceil(),
            (all / seconds).ceil(),
            most.name
        )),
        fix: None,
    })
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
    use pgassay_record::activity::{ActivitySession, CatalogActivity};

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

    impl TransactionRates {
        pub(in super::super) fn add(&mut self, at_us: f64, ended: f64, own: u64) {
            self.add_with(at_us, ended, own, 0.0);
        }

        fn add_with(&mut self, at_us: f64, ended: f64, own: u64, autovacuum: f64) {
            self.readings.push(TransactionReading {
                at_us,
                ended,
                own,
                autovacuum,
            });
        }
    }

    /// Regression: of 120 transactions per second, 85 were autovacuum's, and all seemed to be clients'.
    #[test]
    fn transactions_of_autovacuum_are_not_those_of_clients() {
        let mut log = TransactionRates::default();
        for second in 0..=10_u32 {
            let (at_us, n) = (f64::from(second) * 1e6, f64::from(second));
            log.add_with(at_us, 123.0 * n, 3 * u64::from(second), 85.0 * n);
        }
        assert_eq!(log.counted(), Some(350.0));
        assert_eq!(log.recent_per_s(10e6), Some(35.0));
        let note = log.autovacuum_note().and_then(|it| it.limitation);
        let note = note.unwrap_or_default();
        assert!(
            note.starts_with("about 85 of 120 transactions per second were autovacuum's"),
            "{note}"
        );
    }

    /// Regression: transactions of autovacuum in another database were clients'.
    #[test]
    fn a_worker_in_another_database_is_said_to_have_some_of_its_transactions() {
        let session = |backend_type: &str, database: &str| ActivitySession {
            backend_type: backend_type.to_owned(),
            database: database.to_owned(),
            ..ActivitySession::default()
        };
        let database = |name: &str, committed| DatabaseActivity {
            name: name.to_owned(),
            committed,
            ..DatabaseActivity::default()
        };
        let mut activity = Activity {
            sessions: vec![
                session("autovacuum worker", "b"),
                session("client backend", "other"),
            ],
            catalog: Some(CatalogActivity {
                database: "b".to_owned(),
                window_us: 10e6,
                databases: vec![database("b", 600), database("other", 400)],
                ..CatalogActivity::default()
            }),
            ..Activity::default()
        };
        assert!(autovacuum_elsewhere(&activity).is_none());
        activity.sessions[1].backend_type = "autovacuum worker".to_owned();
        let said = autovacuum_elsewhere(&activity).and_then(|it| it.limitation);
        let said = said.unwrap_or_default();
        assert!(
            said.starts_with("up to 40 of 100 transactions per second"),
            "{said}"
        );
        activity.sessions[1].database = "quiet".to_owned();
        assert!(autovacuum_elsewhere(&activity).is_none());
    }

    #[test]
    fn statistics_are_as_old_as_the_server_says_and_a_wrong_age_is_ignored() {
        let now = Instant::now();
        let age = |age_s| now - counted_at(age_s, now);
        assert_eq!(age(Some(0.25)), Duration::from_millis(250));
        for wrong in [None, Some(-1.0), Some(1e30), Some(f64::NAN)] {
            assert_eq!(age(wrong), Duration::ZERO);
        }
    }

    #[test]
    fn autovacuums_part_is_of_the_whole_window_or_unknown() {
        let mut log = TransactionRates::default();
        log.add_with(0.0, 0.0, 0, 0.0);
        assert_eq!(log.of_autovacuum(10e6), None);
        log.add_with(8e6, 960.0, 0, 680.0);
        assert_eq!(log.of_autovacuum(10e6), Some(850.0));
        // The connection was lost.
        assert_eq!(log.of_autovacuum(20e6), None);
    }

    #[test]
    fn a_few_transactions_of_autovacuum_are_not_worth_a_word() {
        let mut log = TransactionRates::default();
        log.add_with(0.0, 0.0, 0, 0.0);
        log.add_with(10e6, 10_000.0, 0, 40.0);
        assert_eq!(log.counted(), Some(9960.0));
        assert!(log.autovacuum_note().is_none());
    }

    #[test]
    fn fewer_transactions_than_autovacuums_are_unknown_and_never_negative() {
        assert_eq!(without_autovacuum(100.0, 85.0), Some(15.0));
        assert_eq!(without_autovacuum(80.0, 85.0), Some(0.0));
        assert_eq!(without_autovacuum(60.0, 85.0), None);
        let mut log = TransactionRates::default();
        log.add_with(0.0, 0.0, 0, 0.0);
        log.add_with(2e6, 60.0, 0, 85.0);
        let mut timeline = timeline(&[]);
        log.fill(&mut timeline, 0.0);
        assert_eq!(
            (log.counted(), timeline[0].transactions_per_s),
            (None, None)
        );
        assert_eq!(log.recent_per_s(2e6), None);
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
        log().fill(&mut timeline, 0.0);
        let rates: Vec<_> = timeline.iter().map(|it| it.transactions_per_s).collect();
        assert_eq!(rates, [Some(100.0), Some(100.0), Some(0.0), Some(100.0)]);
        timeline[3].start_us = 5e6;
        log().fill(&mut timeline, 0.0);
        assert_eq!(timeline[3].transactions_per_s, None);
        timeline[3].start_us = 2.5e6;
        log().fill(&mut timeline, 0.0);
        let half = timeline[3].transactions_per_s.unwrap();
        assert!((half - 50.0).abs() < 1e-9, "{half}");
        timeline[3].start_us = 3.6e6;
        log().fill(&mut timeline, 0.0);
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
        log.fill(&mut timeline, 0.0);
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
        log().fill(&mut waiting, 0.0);
        let marks = stalls(&waiting, 100.0);
        assert_eq!(marks.len(), 1);
        assert!((marks[0].at_us - 2e6).abs() < 1.0 && (marks[0].length_us - 1e6).abs() < 1.0);
        let mut computing = timeline(&[("", 3.0), ("Lock", 0.2)]);
        log().fill(&mut computing, 0.0);
        assert!(stalls(&computing, 100.0).is_empty());
        // Nothing ever ended: there is no throughput to compare with.
        assert!(stalls(&timeline(&[("Lock", 3.0)]), 0.0).is_empty());
    }
}
