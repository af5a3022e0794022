//! Divides the sessions' time among statements, states and waits.
//!
//! The readings come at random moments that do not depend on what the server does. The time between
//! two readings of a session belongs to what they show: half to the earlier one, half to the later one.
//! So the time between two readings of the same execution is its own, exactly; and if many executions
//! lie between two readings, each kind gets time in proportion to how often it is found, which is its
//! share of the time. (Giving an execution the exact time since its start, and dividing only the rest,
//! would favor statements whose executions are long.)

mod lock_waits;

use std::collections::{BTreeMap, HashMap};

use pgassay_record::activity::{Activity, LoadInterval, SessionStatus};

use lock_waits::LockWaits;

/// Sums that are kept for each session and what it did; with those for the rest, at most twice as many: 11 MB.
/// Sessions and statements have limits of their own, but not their combinations.
pub(super) const CELLS_MAX: usize = 100_000;
/// The session that stands for the rest.
pub(super) const REST: u32 = Activity::SESSIONS_MAX as u32 - 1;
/// Length of the timeline's intervals, in microseconds.
const INTERVAL_US: f64 = 1e6;

/// A session that is active or in a transaction, at one reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sighting {
    /// Index of the session.
    pub session: u32,
    pub pid: u32,
    /// It is a parallel worker, whose statement its leader executes.
    pub is_worker: bool,
    pub activity: SessionActivity,
    /// The kind of lock that it waits for; `None` if it waits for none.
    pub lock: Option<u32>,
    /// Start of its current or last statement.
    pub activity_started_us: i64,
    /// Start of its transaction; 0 outside of one.
    pub transaction_started_us: i64,
    /// When its state changed.
    pub state_changed_us: i64,
}

/// What a session does, by indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SessionActivity {
    pub statement: Option<u32>,
    pub state: SessionStatus,
    pub wait: u32,
    /// The class of the wait, for the timeline.
    pub wait_kind: u32,
    /// Index of the relation whose lock it waits for; `None` if it is not known.
    pub relation: Option<u32>,
}

/// A session and what it did.
pub(super) type LoadKey = (u32, SessionActivity);

/// Executions of a statement that were seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SeenExecutions {
    pub count: u64,
    pub in_transaction_max: u64,
    /// Of which each began a transaction that no other statement had begun.
    pub first_in_transaction: u64,
}

/// Sums over a stretch of time.
#[derive(Debug, Clone, Default)]
pub(super) struct LoadSums {
    /// First and last reading, in microseconds on the caller's clock.
    pub window_us: Option<(f64, f64)>,
    pub sweeps: u64,
    /// Time and readings by session and what it did.
    pub cells: HashMap<LoadKey, (f64, u64)>,
    /// Some cells were added to those of the rest, because there were too many.
    pub is_full: bool,
    pub executions: HashMap<u32, SeenExecutions>,
    /// Transactions that were seen, also those that lasted at the end.
    pub transactions: u64,
    /// By number of the interval: session time by class of wait, and in idle transactions.
    intervals: BTreeMap<i64, IntervalSums>,
}

#[derive(Debug, Clone, Default)]
struct IntervalSums {
    active_us: BTreeMap<u32, f64>,
    idle_in_transaction_us: f64,
}

impl IntervalSums {
    fn add(&mut self, other: &Self) {
        for (kind, time_us) in &other.active_us {
            *self.active_us.entry(*kind).or_default() += time_us;
        }
        self.idle_in_transaction_us += other.idle_in_transaction_us;
    }
}

/// Adds up readings.
#[derive(Debug, Default)]
pub(super) struct LoadAttribution {
    pub sums: LoadSums,
    previous: Option<(f64, Vec<Sighting>)>,
    /// Statements of each session's current transaction.
    transactions: HashMap<u32, SeenTransaction>,
    lock_waits: LockWaits,
}

#[derive(Debug, Default)]
struct SeenTransaction {
    started_us: i64,
    last_activity_us: i64,
    executions: HashMap<u32, u64>,
}

impl LoadAttribution {
    /// Adds one reading of all sessions. Times must not decrease.
    pub fn add(&mut self, at_us: f64, mut sightings: Vec<Sighting>) {
        self.sums.sweeps += 1;
        for sighting in &mut sightings {
            self.lock_waits.complete(sighting);
            self.sums.cell((sighting.session, sighting.activity)).1 += 1;
            self.lock_waits.note(sighting, (0.0, 1));
            self.count_execution(sighting);
        }
        let previous = self.previous.replace((at_us, sightings));
        let Some((before_us, earlier)) = previous else {
            self.sums.window_us = Some((at_us, at_us));
            return;
        };
        let start_us = self.sums.window_us.map_or(before_us, |window| window.0);
        self.sums.window_us = Some((start_us, at_us));
        let middle_us = f64::midpoint(before_us, at_us);
        let (sums, lock_waits) = (&mut self.sums, &mut self.lock_waits);
        for sighting in &earlier {
            sums.add_time(sighting, before_us, middle_us);
            lock_waits.note(sighting, (middle_us - before_us, 0));
        }
        let later = self.previous.as_ref().map_or(&[][..], |(_, later)| later);
        for sighting in later {
            sums.add_time(sighting, middle_us, at_us);
            lock_waits.note(sighting, (at_us - middle_us, 0));
        }
        lock_waits.prune(later);
        if self.transactions.len() > 4 * later.len() + 1024 {
            let present = |session: &u32| later.iter().any(|it| it.session == *session);
            self.transactions.retain(|session, _| present(session));
        }
    }

    /// Transactions that lasted at the last reading.
    pub fn open_transactions(&self) -> u64 {
        let last = self.last().iter();
        let open = last.filter(|it| !it.is_worker && it.transaction_started_us != 0);
        open.count() as u64
    }

    /// The sessions of the last reading.
    pub fn last(&self) -> &[Sighting] {
        self.previous.as_ref().map_or(&[], |(_, last)| last)
    }

    /// Takes the sums since the last call; the next ones begin with the last reading.
    pub fn take(&mut self) -> LoadSums {
        let sums = std::mem::take(&mut self.sums);
        self.sums.window_us = sums.window_us.map(|(_, end_us)| (end_us, end_us));
        self.lock_waits.forget_sums();
        sums
    }

    /// A statement that started since the last reading of this session is another execution, a transaction likewise.
    fn count_execution(&mut self, sighting: &Sighting) {
        if sighting.is_worker {
            return;
        }
        let transaction = self.transactions.entry(sighting.session).or_default();
        let started_us = sighting.transaction_started_us;
        let is_next = transaction.started_us != started_us;
        self.sums.transactions += u64::from(is_next && started_us != 0);
        if is_next || started_us == 0 {
            transaction.started_us = started_us;
            transaction.executions.clear();
        }
        let Some(statement) = sighting.activity.statement else {
            return;
        };
        if transaction.last_activity_us == sighting.activity_started_us {
            return;
        }
        transaction.last_activity_us = sighting.activity_started_us;
        let in_transaction = transaction.executions.entry(statement).or_default();
        *in_transaction += 1;
        // It ended before the first reading.
        if self.previous.is_none() && sighting.activity.state != SessionStatus::Active {
            return;
        }
        let seen = self.sums.executions.entry(statement).or_default();
        seen.count += 1;
        seen.in_transaction_max = seen.in_transaction_max.max(*in_transaction);
        let is_first = started_us != 0 && started_us == sighting.activity_started_us;
        seen.first_in_transaction += u64::from(is_first);
    }
}

impl LoadSums {
    /// The sums of a session and what it did. Without room, what is least important is forgotten first: which
    /// session it was, and then which statement.
    fn cell(&mut self, key: LoadKey) -> &mut (f64, u64) {
        let of_rest = (REST, key.1);
        let anonymous = SessionActivity {
            statement: None,
            relation: None,
            ..key.1
        };
        let has = |key| self.cells.contains_key(key);
        let key = if self.cells.len() < CELLS_MAX || has(&key) {
            key
        } else {
            self.is_full = true;
            let has_room = self.cells.len() < 2 * CELLS_MAX || has(&of_rest);
            if has_room { of_rest } else { (REST, anonymous) }
        };
        self.cells.entry(key).or_default()
    }

    fn add_time(&mut self, sighting: &Sighting, from_us: f64, to_us: f64) {
        self.cell((sighting.session, sighting.activity)).0 += to_us - from_us;
        let mut start_us = from_us;
        while start_us < to_us {
            let interval = (start_us / INTERVAL_US).floor();
            // At least a little further, whatever rounding does.
            let end_us = to_us.min(((interval + 1.0) * INTERVAL_US).max(start_us + 1e-3));
            let sums = self.intervals.entry(interval as i64).or_default();
            if sighting.activity.state == SessionStatus::Active {
                let kind = sighting.activity.wait_kind;
                *sums.active_us.entry(kind).or_default() += end_us - start_us;
            } else {
                sums.idle_in_transaction_us += end_us - start_us;
            }
            start_us = end_us;
        }
    }

    /// Adds later sums.
    pub fn add(&mut self, later: &Self) {
        self.window_us = match (self.window_us, later.window_us) {
            (Some((start_us, _)), Some((_, end_us))) => Some((start_us, end_us)),
            (ours, theirs) => ours.or(theirs),
        };
        self.sweeps += later.sweeps;
        self.transactions += later.transactions;
        self.is_full |= later.is_full;
        for (cell, (time_us, samples)) in &later.cells {
            let sum = self.cell(*cell);
            sum.0 += time_us;
            sum.1 += samples;
        }
        for (statement, executions) in &later.executions {
            let sum = self.executions.entry(*statement).or_default();
            sum.count += executions.count;
            sum.in_transaction_max = sum.in_transaction_max.max(executions.in_transaction_max);
            sum.first_in_transaction += executions.first_in_transaction;
        }
        for (interval, sums) in &later.intervals {
            self.intervals.entry(*interval).or_default().add(sums);
        }
    }

    /// Length of the window, in microseconds.
    pub fn length_us(&self) -> f64 {
        self.window_us
            .map_or(0.0, |(start_us, end_us)| end_us - start_us)
    }

    /// The load by interval, relative to the window's start; also of intervals without load.
    pub fn timeline(&self, kind_name: impl Fn(u32) -> String) -> Vec<LoadInterval> {
        let Some((window_start_us, window_end_us)) = self.window_us else {
            return Vec::new();
        };
        let number = |time_us: f64| (time_us / INTERVAL_US).floor() as i64;
        let (first, mut last) = (number(window_start_us), number(window_end_us));
        // Averages of some milliseconds say nothing: a short rest belongs to the interval before it.
        let rest_us = window_end_us - last as f64 * INTERVAL_US;
        if last > first && rest_us < INTERVAL_US / 2.0 {
            last -= 1;
        }
        let interval = |number: i64| {
            let start_us = (number as f64 * INTERVAL_US).max(window_start_us);
            let end_us = if number == last {
                window_end_us
            } else {
                (number + 1) as f64 * INTERVAL_US
            };
            let length_us = end_us - start_us;
            let mut sums = self.intervals.get(&number).cloned().unwrap_or_default();
            let rest = self.intervals.get(&(number + 1));
            if let Some(rest) = rest.filter(|_| number == last) {
                sums.add(rest);
            }
            let average = |time_us: f64| time_us / length_us;
            let active = sums.active_us.iter();
            let mut active: Vec<(String, f64)> = active
                .map(|(kind, time_us)| (kind_name(*kind), average(*time_us)))
                .collect();
            active.sort_by(|a, b| a.0.cmp(&b.0));
            let interval = LoadInterval {
                start_us: start_us - window_start_us,
                length_us,
                active,
                idle_in_transaction: average(sums.idle_in_transaction_us),
                transactions_per_s: None,
            };
            (length_us > 0.0).then_some(interval)
        };
        (first..=last).filter_map(interval).collect()
    }
}

/// Keeps the number of sessions below [`Activity::SESSIONS_MAX`]: the last one stands for the rest.
pub(super) fn limited(session: usize) -> u32 {
    session.min(REST as usize) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_stats::random::SplitMix64;

    fn sighting(session: u32, statement: u32, started_us: i64) -> Sighting {
        Sighting {
            session,
            pid: session,
            is_worker: false,
            activity: SessionActivity {
                statement: Some(statement),
                state: SessionStatus::Active,
                wait: 0,
                wait_kind: 0,
                relation: None,
            },
            lock: None,
            activity_started_us: started_us,
            transaction_started_us: 1,
            state_changed_us: started_us,
        }
    }

    fn time_of(sums: &LoadSums, statement: u32) -> f64 {
        let of = |((_, activity), _): &(&(u32, SessionActivity), &(f64, u64))| {
            activity.statement == Some(statement)
        };
        sums.cells
            .iter()
            .filter(of)
            .map(|(_, (time, _))| time)
            .sum()
    }

    /// Regression: the last row of LOAD OVER TIME was some milliseconds long.
    #[test]
    fn a_short_rest_belongs_to_the_interval_before_it() {
        let lengths = |end_us: f64| -> Vec<f64> {
            let mut attribution = LoadAttribution::default();
            for at_us in [0.0, 1e6, 2e6, end_us] {
                attribution.add(at_us, vec![sighting(0, 7, 5)]);
            }
            let timeline = attribution.take().timeline(|kind| kind.to_string());
            assert!(
                timeline
                    .iter()
                    .all(|it| (it.active[0].1 - 1.0).abs() < 1e-9)
            );
            timeline.iter().map(|it| it.length_us).collect()
        };
        assert_eq!(lengths(2.02e6), [1e6, 1.02e6]);
        assert_eq!(lengths(2.5e6), [1e6, 1e6, 0.5e6]);
    }

    #[test]
    fn an_execution_between_two_readings_has_all_of_the_time_between_them() {
        let mut attribution = LoadAttribution::default();
        for at_us in [0.0, 3e5, 17e5, 4e6] {
            attribution.add(at_us, vec![sighting(0, 7, 5)]);
        }
        let sums = attribution.take();
        assert!((time_of(&sums, 7) - 4e6).abs() < 1e-6);
        assert_eq!(
            sums.executions[&7],
            SeenExecutions {
                count: 1,
                in_transaction_max: 1,
                first_in_transaction: 0
            }
        );
        let timeline = sums.timeline(|kind| kind.to_string());
        assert_eq!(timeline.len(), 4);
        assert!(
            timeline
                .iter()
                .all(|it| (it.active[0].1 - 1.0).abs() < 1e-9)
        );
    }

    /// Regression: "≥ 5" calls of a statement that four sessions executed, while a fifth was idle in the transaction in
    /// which it had executed it before.
    #[test]
    fn an_execution_that_ended_before_the_first_reading_is_none_of_the_window() {
        let idle = |session, started_us| {
            let mut idle = sighting(session, 7, started_us);
            idle.activity.state = SessionStatus::IdleInTransaction;
            idle
        };
        let mut attribution = LoadAttribution::default();
        attribution.add(0.0, vec![sighting(0, 7, 5), idle(1, 5)]);
        attribution.add(1e3, vec![sighting(0, 7, 5), idle(1, 5), idle(2, 6)]);
        attribution.add(2e3, vec![idle(1, 8)]);
        let executions = attribution.take().executions[&7];
        assert_eq!((executions.count, executions.in_transaction_max), (3, 2));
    }

    #[test]
    fn transactions_are_counted_once_each_and_those_that_last_are_known() {
        let mut attribution = LoadAttribution::default();
        let at = |session, transaction_started_us| Sighting {
            transaction_started_us,
            ..sighting(session, 7, transaction_started_us)
        };
        let worker = Sighting {
            is_worker: true,
            ..at(9, 10)
        };
        attribution.add(0.0, vec![at(0, 10), at(1, 11), worker]);
        attribution.add(1e3, vec![at(0, 10), at(1, 0)]);
        attribution.add(2e3, vec![at(0, 12), at(1, 13), worker]);
        assert_eq!(attribution.open_transactions(), 2);
        let mut sums = attribution.take();
        attribution.add(3e3, vec![at(0, 12), at(1, 14)]);
        sums.add(&attribution.take());
        assert_eq!(sums.transactions, 5);
    }

    #[test]
    fn sums_of_parts_are_the_sum_of_the_whole() {
        let mut parts = LoadAttribution::default();
        let mut total = LoadSums::default();
        let mut random = SplitMix64::new(3);
        let mut at_us = 123_456.0;
        let start_us = at_us;
        for round in 0..1000 {
            let number = random.next_u64();
            let sessions =
                (0..number % 4).map(|it| sighting(it as u32, (number >> 8) as u32 % 3, round));
            parts.add(at_us, sessions.collect());
            at_us += (number % 50_000) as f64;
            if number.is_multiple_of(7) {
                total.add(&parts.take());
            }
        }
        parts.add(at_us, Vec::new());
        total.add(&parts.take());
        assert_eq!(total.window_us, Some((start_us, at_us)));
        assert_eq!(total.sweeps, 1001);
        let in_cells: f64 = total.cells.values().map(|it| it.0).sum();
        let timeline = total.timeline(|_| String::new());
        let on_timeline: f64 = timeline
            .iter()
            .map(|it| it.length_us * it.active.iter().map(|it| it.1).sum::<f64>())
            .sum();
        assert!((on_timeline / in_cells - 1.0).abs() < 1e-9);
        let length_us: f64 = timeline.iter().map(|it| it.length_us).sum();
        assert!((length_us - total.length_us()).abs() < 1e-3);
    }

    /// Statements of 0.1 ms to 100 ms in one session, read at about 40 Hz, each for a known share of
    /// the time.
    #[test]
    fn shares_do_not_depend_on_how_long_executions_are() {
        const KINDS: [(f64, f64); 4] = [
            (100.0, 0.4),
            (1000.0, 0.3),
            (30_000.0, 0.2),
            (100_000.0, 0.1),
        ];
        let mut random = SplitMix64::new(11);
        let mut uniform = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let rate: f64 = KINDS.iter().map(|(mean_us, share)| share / mean_us).sum();
        let mut attribution = LoadAttribution::default();
        let (mut now_us, mut next_us, mut execution) = (0.0, 0.0, 0);
        let mut truth = [0.0; 4];
        while now_us < 2e9 {
            let mut chosen = uniform() * rate;
            let kind = KINDS.iter().position(|(mean_us, share)| {
                chosen -= share / mean_us;
                chosen < 0.0
            });
            let kind = kind.unwrap_or(KINDS.len() - 1);
            let end_us = now_us - KINDS[kind].0 * (1.0 - uniform()).ln();
            execution += 1;
            truth[kind] += end_us - now_us;
            while next_us < end_us {
                attribution.add(next_us, vec![sighting(0, kind as u32, execution)]);
                next_us += 25_000.0 * (0.5 + uniform());
            }
            now_us = end_us;
        }
        let sums = attribution.take();
        for (kind, truth_us) in truth.into_iter().enumerate() {
            let share = time_of(&sums, kind as u32) / sums.length_us();
            // Standard error below 0.002 with 80,000 readings.
            assert!((share - truth_us / now_us).abs() < 0.008, "{kind}: {share}");
        }
    }

    #[test]
    fn sessions_times_statements_without_end_do_not_fill_memory_and_lose_no_time() {
        let mut attribution = LoadAttribution::default();
        // Each reading shows other statements, as of a server with many sessions and many statements.
        let per_reading = 1000;
        let readings = 3 * CELLS_MAX as u32 / per_reading;
        for reading in 0..readings {
            let number = |it: u32| reading * per_reading + it;
            let seen = |it: u32| sighting(it, number(it), i64::from(number(it)));
            let at_us = f64::from(reading) * 25_000.0;
            attribution.add(at_us, (0..per_reading).map(seen).collect());
        }
        let sums = attribution.take();
        // The last one has neither session nor statement; there is one for each wait.
        assert_eq!((sums.is_full, sums.cells.len()), (true, 2 * CELLS_MAX + 1));
        let in_cells: f64 = sums.cells.values().map(|it| it.0).sum();
        let all = f64::from(per_reading) * sums.length_us();
        assert!((in_cells / all - 1.0).abs() < 1e-9, "{in_cells} of {all}");
        let samples: u64 = sums.cells.values().map(|it| it.1).sum();
        assert_eq!(samples, u64::from(readings * per_reading));
        let mut total = LoadSums::default();
        total.add(&sums);
        total.add(&sums);
        assert!(total.is_full && total.cells.len() <= 2 * CELLS_MAX + 1);
    }

    #[test]
    fn executions_are_counted_by_transaction() {
        let mut attribution = LoadAttribution::default();
        for (at, transaction, started) in [(0, 1, 1), (1, 1, 2), (2, 1, 2), (3, 1, 3), (4, 2, 4)] {
            let mut seen = sighting(0, 5, started);
            seen.transaction_started_us = transaction;
            attribution.add(f64::from(at), vec![seen]);
        }
        let executions = attribution.take().executions[&5];
        assert_eq!((executions.count, executions.in_transaction_max), (4, 3));
        assert_eq!(executions.first_in_transaction, 1, "that of transaction 1");
    }

    #[test]
    fn a_parallel_execution_is_one_although_its_workers_execute_it_too() {
        let mut attribution = LoadAttribution::default();
        for at in [0.0, 1e6] {
            let process = |session| Sighting {
                is_worker: session > 0,
                // Each worker started at another time.
                ..sighting(session, 5, 1 + i64::from(session))
            };
            attribution.add(at, (0..3).map(process).collect());
        }
        let sums = attribution.take();
        assert_eq!(sums.executions[&5].count, 1);
        assert!((time_of(&sums, 5) - 3e6).abs() < 1e-6, "all are load");
    }
}
