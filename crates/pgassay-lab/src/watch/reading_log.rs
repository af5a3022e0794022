//! Which statement a CPU sample belongs to.
//!
//! If the readings before and after a sample show the same execution, the sample belongs to it. All
//! other samples of a session are divided in proportion to the CPU time that its statements have by the
//! readings.
//!
//! In a long profile, readings and samples are kept of a part of the time, spread over all of it. The samples of that
//! part stand for the others with the same stack.

use std::collections::{BTreeMap, HashMap};

use pgassay_profile::{KeptTime, Samples};
use pgassay_record::activity::SessionStatus;

use super::attribution::{LoadSums, Sighting};

/// Readings that are kept: 2.5 MiB.
const READINGS_MAX: usize = 1 << 16;
/// Advances by the golden ratio spread evenly over an interval.
const GOLDEN_RATIO: f64 = 0.618_033_988_749_894_9;

/// The readings of active sessions, by PID and time.
#[derive(Debug, Default)]
pub(super) struct ReadingLog {
    /// The readings' time 0 on `CLOCK_MONOTONIC`.
    epoch_ns: u64,
    by_pid: HashMap<u32, Vec<TimedReading>>,
    kept: usize,
    kept_time: KeptTime,
    sweep: u32,
}

#[derive(Debug, Clone, Copy)]
struct TimedReading {
    sweep: u32,
    at_us: f64,
    session: u32,
    statement: Option<u32>,
    activity_started_us: i64,
}

/// The columns of samples: the statements with one, and the column of each sample.
#[derive(Debug, Default)]
pub struct StackColumns {
    /// The collector's indices of the statements, by column. One more column is for all others.
    pub(super) statements: Vec<u32>,
    /// By column and stack: samples.
    pub counts: HashMap<(usize, u32), u64>,
    /// Samples that belong to an execution for sure.
    pub exact: u64,
    /// All samples in `counts`.
    pub total: u64,
    /// `counts` are of a part of the time.
    pub is_part: bool,
}

impl StackColumns {
    /// The number of columns; the last one is for all others.
    pub fn len(&self) -> usize {
        self.statements.len() + 1
    }

    /// Never: there is always a column for the rest.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Divides samples, by stack, among the columns: column, stack and number of samples. What is in no column gets
    /// into the last one.
    pub fn divide(&self, samples: &BTreeMap<u32, u64>) -> Vec<(usize, u32, u64)> {
        let mut by_stack: BTreeMap<u32, Vec<(usize, u64)>> = BTreeMap::new();
        for (&(column, stack), &count) in &self.counts {
            by_stack.entry(stack).or_default().push((column, count));
        }
        for parts in by_stack.values_mut() {
            parts.sort_unstable();
        }
        let mut of_all = vec![0; self.len()];
        for ((column, _), count) in &self.counts {
            of_all[*column] += count;
        }
        let of_all: Vec<(usize, u64)> = of_all.into_iter().enumerate().collect();
        let mut divided = Vec::new();
        for (nth, (&stack, &total)) in samples.iter().enumerate() {
            let known = by_stack.get(&stack).map_or(&[][..], Vec::as_slice);
            let mut left = total;
            let mut add = |column, count: u64| {
                // Never more than there are.
                let count = count.min(left);
                left -= count;
                divided.push((column, stack, count));
            };
            if self.is_part {
                let parts = if known.is_empty() { &of_all } else { known };
                for (column, count) in in_proportion(parts, total, nth) {
                    add(column, count);
                }
            } else {
                for &(column, count) in known {
                    add(column, count);
                }
            }
            divided.push((self.statements.len(), stack, left));
        }
        divided.retain(|(.., count)| *count > 0);
        divided
    }
}

/// Divides a number of samples in proportion to the parts. Which one gets what is left of whole samples differs from
/// stack to stack, so that the sums over many stacks are in proportion, too.
fn in_proportion(
    parts: &[(usize, u64)],
    total: u64,
    nth: usize,
) -> impl Iterator<Item = (usize, u64)> {
    let all: u64 = parts.iter().map(|it| it.1).sum();
    let per_part = total as f64 / all.max(1) as f64;
    let offset = (nth as f64 * GOLDEN_RATIO).fract();
    let until = move |cumulated: u64| (cumulated as f64 * per_part + offset) as u64;
    let mut cumulated = 0;
    parts.iter().map(move |&(column, count)| {
        let before = until(cumulated);
        cumulated += count;
        (column, until(cumulated) - before)
    })
}

impl ReadingLog {
    /// `epoch_ns` is the readings' time 0 on `CLOCK_MONOTONIC`.
    pub fn new(epoch_ns: u64) -> Self {
        Self {
            epoch_ns,
            ..Self::default()
        }
    }

    pub fn add(&mut self, pid: u32, at_us: f64, sighting: &Sighting) {
        if sighting.activity.state != SessionStatus::Active || !self.keeps(at_us) {
            return;
        }
        if self.kept >= READINGS_MAX {
            self.forget_half();
        }
        if self.kept < READINGS_MAX && self.keeps(at_us) {
            self.kept += 1;
            self.by_pid.entry(pid).or_default().push(TimedReading {
                sweep: self.sweep,
                at_us,
                session: sighting.session,
                statement: sighting.activity.statement,
                activity_started_us: sighting.activity_started_us,
            });
        }
    }

    fn keeps(&self, at_us: f64) -> bool {
        self.kept_time.has(self.epoch_ns + (at_us * 1e3) as u64)
    }

    fn forget_half(&mut self) {
        self.kept_time.halve();
        let (kept, epoch_ns) = (self.kept_time, self.epoch_ns);
        self.by_pid.retain(|_, readings| {
            readings.retain(|it| kept.has(epoch_ns + (it.at_us * 1e3) as u64));
            readings.shrink_to_fit();
            !readings.is_empty()
        });
        self.kept = self.by_pid.values().map(Vec::len).sum();
    }

    pub fn end_sweep(&mut self) {
        self.sweep += 1;
    }

    /// Divides the samples of these processes among the statements with the highest load, at most
    /// `columns_max`.
    pub fn columns(
        &self,
        samples: &Samples,
        is_ours: impl Fn(u32) -> bool,
        sums: &LoadSums,
        columns_max: usize,
    ) -> StackColumns {
        let shares = CpuShares::of(sums);
        let statements = top_statements(sums, columns_max);
        let kept_time = self.kept_time.max(samples.kept_time);
        let mut columns = StackColumns {
            statements,
            is_part: !kept_time.is_whole(),
            ..StackColumns::default()
        };
        let rest = columns.statements.len();
        let column = |statement: Option<u32>| {
            let of = |it| columns.statements.iter().position(|known| *known == it);
            statement.and_then(of).unwrap_or(rest)
        };
        let mut counts: HashMap<(usize, u32), u64> = HashMap::new();
        let (mut exact, mut total) = (0, 0);
        let moments = samples.moments.iter();
        for moment in moments.filter(|it| kept_time.has(it.time_ns) && is_ours(it.pid)) {
            let at_us = moment.time_ns.saturating_sub(self.epoch_ns) as f64 / 1e3;
            let readings = self.by_pid.get(&moment.pid).map_or(&[][..], Vec::as_slice);
            let statement = match execution_at(readings, at_us) {
                Some(reading) => {
                    exact += 1;
                    reading.statement
                }
                None => shares.statement(nearest_session(readings, at_us), total),
            };
            total += 1;
            *counts.entry((column(statement), moment.stack)).or_default() += 1;
        }
        (columns.counts, columns.exact, columns.total) = (counts, exact, total);
        columns
    }
}

/// The reading before the time, if the next sweep found the same execution.
fn execution_at(readings: &[TimedReading], at_us: f64) -> Option<&TimedReading> {
    let after = readings.partition_point(|it| it.at_us <= at_us);
    let (before, after) = (readings.get(after.checked_sub(1)?)?, readings.get(after)?);
    let is_same = before.sweep + 1 == after.sweep
        && before.session == after.session
        && before.activity_started_us == after.activity_started_us;
    is_same.then_some(before)
}

/// A PID can serve several sessions one after the other.
fn nearest_session(readings: &[TimedReading], at_us: f64) -> Option<u32> {
    let after = readings.partition_point(|it| it.at_us <= at_us);
    let before = after.checked_sub(1).and_then(|at| readings.get(at));
    before.or_else(|| readings.get(after)).map(|it| it.session)
}

/// The statements with the most active time.
fn top_statements(sums: &LoadSums, at_most: usize) -> Vec<u32> {
    let mut loads: HashMap<u32, f64> = HashMap::new();
    for ((_, activity), (time_us, _)) in &sums.cells {
        if let (Some(statement), SessionStatus::Active) = (activity.statement, activity.state) {
            *loads.entry(statement).or_default() += time_us;
        }
    }
    let mut loads: Vec<(u32, f64)> = loads.into_iter().collect();
    loads.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    loads.truncate(at_most);
    loads.into_iter().map(|(statement, _)| statement).collect()
}

/// Each session's CPU time by statement, cumulated.
struct CpuShares(HashMap<u32, Vec<(Option<u32>, f64)>>);

impl CpuShares {
    fn of(sums: &LoadSums) -> Self {
        let mut shares: HashMap<u32, Vec<(Option<u32>, f64)>> = HashMap::new();
        let mut cells: Vec<_> = sums.cells.iter().collect();
        cells.sort_by_key(|((session, activity), _)| (*session, activity.statement));
        for ((session, activity), (time_us, _)) in cells {
            if activity.state == SessionStatus::Active && activity.wait == 0 {
                let list = shares.entry(*session).or_default();
                let before = list.last().map_or(0.0, |last| last.1);
                list.push((activity.statement, before + time_us));
            }
        }
        Self(shares)
    }

    /// The statement for the nth sample of a session, in proportion to the shares.
    fn statement(&self, session: Option<u32>, nth: u64) -> Option<u32> {
        let list = self.0.get(&session?)?;
        let place = (nth as f64 * GOLDEN_RATIO).fract() * list.last()?.1;
        let at = list.partition_point(|(_, until)| *until <= place);
        list.get(at)?.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::attribution::SessionActivity;
    use pgassay_profile::SampleMoment;

    fn sighting(statement: u32, started_us: i64) -> Sighting {
        Sighting {
            session: 3,
            pid: 3,
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

    #[test]
    fn samples_within_an_execution_are_its_own_and_the_others_are_divided_by_cpu_time() {
        let mut log = ReadingLog::new(9_000_000);
        let mut sums = LoadSums::default();
        for (statement, started_us) in [(7, 1), (7, 1), (8, 2), (7, 3)] {
            let seen = sighting(statement, started_us);
            log.add(50, f64::from(log.sweep) * 1000.0, &seen);
            log.end_sweep();
            let cell = sums.cells.entry((3, seen.activity)).or_default();
            cell.0 += 1000.0;
        }
        let moment = |time_us: u64| SampleMoment {
            pid: 50,
            time_ns: 9_000_000 + time_us * 1000,
            stack: u32::from(time_us >= 1000),
        };
        let samples = Samples {
            moments: [10, 900]
                .map(moment)
                .into_iter()
                .chain((1000..3000).map(moment))
                .collect(),
            ..Samples::default()
        };
        let columns = log.columns(&samples, |pid| pid == 50, &sums, 1);
        assert_eq!((columns.exact, columns.total, columns.len()), (2, 2002, 2));
        assert_eq!(columns.statements, [7]);
        assert_eq!(columns.counts[&(0, 0)], 2);
        assert!(
            columns.counts[&(0, 1)].abs_diff(1500) <= 5,
            "{:?}",
            columns.counts
        );
        assert_eq!(columns.counts.values().sum::<u64>(), 2002);
        let none = log.columns(&samples, |_| false, &sums, 20);
        assert_eq!((none.total, none.len()), (0, 3));
    }
    #[test]
    fn samples_of_a_part_of_the_time_stand_for_those_of_all_of_it() {
        let mut columns = StackColumns {
            statements: vec![7, 8],
            counts: HashMap::from([((0, 1), 30), ((1, 1), 10), ((2, 2), 5)]),
            ..StackColumns::default()
        };
        let samples = BTreeMap::from([(1, 400), (2, 6), (3, 9)]);
        let whole = columns.divide(&samples);
        let expected = [(0, 1, 30), (1, 1, 10), (2, 1, 360), (2, 2, 6), (2, 3, 9)];
        assert_eq!(sums(&whole), sums(&expected));
        columns.is_part = true;
        let part = columns.divide(&samples);
        assert_eq!(part[..3], [(0, 1, 300), (1, 1, 100), (2, 2, 6)]);
        let of_unknown: u64 = part[3..].iter().map(|it| it.2).sum();
        assert_eq!(of_unknown, 9);
        // Stacks that are in no kept part of the time, with a sample each, are divided as all others.
        let rare = (10..4510).map(|stack| (stack, 1)).collect();
        let divided = columns.divide(&rare);
        for (column, expected) in [(0, 3000), (1, 1000), (2, 500)] {
            let of_column = divided.iter().filter(|it| it.0 == column).count();
            assert!(of_column.abs_diff(expected) < 10, "{of_column}");
        }
    }

    fn sums(divided: &[(usize, u32, u64)]) -> BTreeMap<(u32, usize), u64> {
        let mut sums = BTreeMap::new();
        for (column, stack, count) in divided {
            *sums.entry((*stack, *column)).or_default() += count;
        }
        sums
    }

    /// Regression: after the first million readings, samples were divided by estimate.
    #[test]
    fn readings_of_a_long_watch_are_of_all_of_its_time() {
        let mut log = ReadingLog::new(5);
        for sweep in 0..3 * READINGS_MAX {
            log.add(50, sweep as f64 * 1e4, &sighting(7, 1));
            log.end_sweep();
            assert!(log.kept <= READINGS_MAX);
        }
        let readings = &log.by_pid[&50];
        assert_eq!(readings.len(), log.kept);
        let all_us = 3e4 * READINGS_MAX as f64;
        let late = readings.iter().filter(|it| it.at_us > all_us / 2.0).count();
        let share = late as f64 / readings.len() as f64;
        assert!((share - 0.5).abs() < 0.1, "{share}");
        // Most are next to each other, so that executions are known.
        let adjacent = readings
            .windows(2)
            .filter(|it| it[0].sweep + 1 == it[1].sweep)
            .count();
        assert!(adjacent as f64 > 0.9 * readings.len() as f64);
    }
}
