//! Which statement a CPU sample belongs to.
//!
//! If the readings before and after a sample show the same execution, the sample belongs to it. All
//! other samples of a session are divided in proportion to the CPU time that its statements have by the
//! readings.

use std::collections::HashMap;

use pgassay_profile::Samples;
use pgassay_record::activity::SessionStatus;

use super::attribution::{LoadSums, Sighting};

/// Readings that are kept: 32 MiB. Later samples are divided in proportion.
const READINGS_MAX: usize = 1 << 20;
/// Advances by the golden ratio spread evenly over an interval.
const GOLDEN_RATIO: f64 = 0.618_033_988_749_894_9;

/// The readings of active sessions, by PID and time.
#[derive(Debug, Default)]
pub(super) struct ReadingLog {
    by_pid: HashMap<u32, Vec<TimedReading>>,
    kept: usize,
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
}

impl ReadingLog {
    pub fn add(&mut self, pid: u32, at_us: f64, sighting: &Sighting) {
        if self.kept < READINGS_MAX && sighting.activity.state == SessionStatus::Active {
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

    pub fn end_sweep(&mut self) {
        self.sweep += 1;
    }

    /// Divides the samples of these processes among the statements with the highest load, at most
    /// `columns_max`. `epoch_ns` is the readings' time 0 on `CLOCK_MONOTONIC`.
    pub fn columns(
        &self,
        samples: &Samples,
        is_ours: impl Fn(u32) -> bool,
        sums: &LoadSums,
        columns_max: usize,
        epoch_ns: u64,
    ) -> StackColumns {
        let shares = CpuShares::of(sums);
        let statements = top_statements(sums, columns_max);
        let mut columns = StackColumns {
            statements,
            ..StackColumns::default()
        };
        let rest = columns.statements.len();
        let column = |statement: Option<u32>| {
            let of = |it| columns.statements.iter().position(|known| *known == it);
            statement.and_then(of).unwrap_or(rest)
        };
        let mut counts: HashMap<(usize, u32), u64> = HashMap::new();
        let (mut exact, mut total) = (0, 0);
        for moment in samples.moments.iter().filter(|it| is_ours(it.pid)) {
            let at_us = moment.time_ns.saturating_sub(epoch_ns) as f64 / 1e3;
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
            },
            activity_started_us: started_us,
            transaction_started_us: 1,
        }
    }

    #[test]
    fn samples_within_an_execution_are_its_own_and_the_others_are_divided_by_cpu_time() {
        let mut log = ReadingLog::default();
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
        let columns = log.columns(&samples, |pid| pid == 50, &sums, 1, 9_000_000);
        assert_eq!((columns.exact, columns.total, columns.len()), (2, 2002, 2));
        assert_eq!(columns.statements, [7]);
        assert_eq!(columns.counts[&(0, 0)], 2);
        assert!(
            columns.counts[&(0, 1)].abs_diff(1500) <= 5,
            "{:?}",
            columns.counts
        );
        assert_eq!(columns.counts.values().sum::<u64>(), 2002);
        let none = log.columns(&samples, |_| false, &sums, 20, 9_000_000);
        assert_eq!((none.total, none.len()), (0, 3));
    }
}
