//! Server and kernel statistics and hardware counters during trials, per transaction.
//!
//! Counters are identified by name; PostgreSQL's have the names from its manual, such as
//! `pg_stat_database.tup_fetched`. They cover the whole trial, including settling and draining, so they
//! are divided by [`Trial::transactions_total`]. Profiled trials are included: profiling does not change
//! what a transaction does. For servers up to version 14, which report statistics late, counters are
//! read in a few trials only.
//!
//! Invariants: an empty map of counters means that none were read; if other trials of the run have a
//! counter and a trial with counters does not, it was 0 there. The exception are hardware counters
//! (`cpu.`), which have separate trials without other counters.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_model::trial::{Trial, TrialKind};
use pgassay_stats as stats;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Probability of any false claim among the counters of one comparison.
const ALPHA: f64 = 0.05;
/// Smaller relative differences are not reported, even if significant.
const MIN_RELATIVE_DIFFERENCE: f64 = 0.01;

/// A counter over the trials of one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CounterFigure {
    /// Name of the counter.
    pub name: String,
    /// Its sum over the sum of transactions.
    pub per_transaction: f64,
    /// Standard deviation of the trials' figures; 0 for a single trial.
    pub spread: f64,
    /// Number of trials in which it was read.
    pub trials: u32,
}

/// A counter under two variants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CounterDifference {
    /// Name of the counter.
    pub name: String,
    /// Baseline's figure per transaction.
    pub baseline: f64,
    /// Variant's figure per transaction.
    pub variant: f64,
    /// Variant minus baseline.
    pub difference: f64,
    /// Lower end of the difference's interval.
    pub low: f64,
    /// Upper end of the difference's interval.
    pub high: f64,
    /// Whether they differ: the interval, corrected for the number of counters, excludes 0, and the
    /// difference is large enough to report.
    pub differs: bool,
}

/// Unit of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterUnit {
    /// A number of events.
    Count,
    /// Bytes.
    Bytes,
    /// Microseconds.
    Micros,
    /// Milliseconds, used by PostgreSQL.
    Millis,
}

/// Titles of counters in reports, most informative first. Other counters follow under their own names.
#[rustfmt::skip]
const TITLES: [(&str, &str, CounterUnit); 60] = [
    ("cpu.instructions_user", "instructions in user space", CounterUnit::Count),
    ("cpu.cycles_user", "cycles in user space", CounterUnit::Count),
    ("pg_stat_database.xact_commit", "transactions committed", CounterUnit::Count),
    ("pg_stat_database.xact_rollback", "transactions rolled back", CounterUnit::Count),
    ("wal.insert_bytes", "WAL written", CounterUnit::Bytes),
    ("pg_stat_wal.wal_records", "WAL records", CounterUnit::Count),
    ("pg_stat_wal.wal_fpi", "WAL full-page images", CounterUnit::Count),
    ("pg_stat_wal.wal_buffers_full", "WAL buffers full", CounterUnit::Count),
    ("pg_stat_wal.wal_write", "WAL writes", CounterUnit::Count),
    ("pg_stat_wal.wal_sync", "WAL syncs", CounterUnit::Count),
    ("log.lines", "log lines", CounterUnit::Count),
    ("log.bytes", "log written", CounterUnit::Bytes),
    ("log.entries_lost", "log entries lost", CounterUnit::Count),
    ("pg_stat_database.tup_inserted", "rows inserted", CounterUnit::Count),
    ("pg_stat_database.tup_updated", "rows updated", CounterUnit::Count),
    ("pg_stat_database.tup_deleted", "rows deleted", CounterUnit::Count),
    ("pg_stat_database.tup_fetched", "rows fetched by index", CounterUnit::Count),
    ("pg_stat_database.tup_returned", "rows and index entries read", CounterUnit::Count),
    ("pg_stat_database.blks_hit", "shared buffer hits", CounterUnit::Count),
    ("pg_stat_database.blks_read", "blocks read", CounterUnit::Count),
    ("pg_stat_database.temp_files", "temporary files", CounterUnit::Count),
    ("pg_stat_database.temp_bytes", "temporary file bytes", CounterUnit::Bytes),
    ("pg_stat_database.deadlocks", "deadlocks", CounterUnit::Count),
    ("pg_stat_database.conflicts", "conflicts with recovery", CounterUnit::Count),
    ("pg_stat_database.checksum_failures", "checksum failures", CounterUnit::Count),
    ("pg_stat_database.sessions", "sessions started", CounterUnit::Count),
    ("pg_stat_database.parallel_workers_to_launch", "parallel workers planned", CounterUnit::Count),
    ("pg_stat_database.parallel_workers_launched", "parallel workers launched", CounterUnit::Count),
    ("backends.voluntary_switches", "voluntary context switches", CounterUnit::Count),
    ("backends.involuntary_switches", "involuntary context switches", CounterUnit::Count),
    ("backends.minor_faults", "minor page faults", CounterUnit::Count),
    ("backends.major_faults", "major page faults", CounterUnit::Count),
    ("backends.read_bytes", "read from disk by backends", CounterUnit::Bytes),
    ("backends.write_bytes", "page cache dirtied by backends, whole folios", CounterUnit::Bytes),
    ("disk.reads", "disk reads", CounterUnit::Count),
    ("disk.writes", "disk writes", CounterUnit::Count),
    ("disk.read_bytes", "disk bytes read", CounterUnit::Bytes),
    ("disk.write_bytes", "disk bytes written", CounterUnit::Bytes),
    ("disk.flushes", "disk cache flushes", CounterUnit::Count),
    ("background(checkpointer).cpu_us", "checkpointer CPU", CounterUnit::Micros),
    ("background(background writer).cpu_us", "background writer CPU", CounterUnit::Micros),
    ("background(walwriter).cpu_us", "WAL writer CPU", CounterUnit::Micros),
    ("background(logger).cpu_us", "logger CPU", CounterUnit::Micros),
    ("background(stats collector).cpu_us", "statistics collector CPU", CounterUnit::Micros),
    ("background(autovacuum launcher).cpu_us", "autovacuum launcher CPU", CounterUnit::Micros),
    ("background(autovacuum worker).cpu_us", "autovacuum worker CPU", CounterUnit::Micros),
    ("background(io worker).cpu_us", "I/O worker CPU", CounterUnit::Micros),
    ("background(parallel worker).cpu_us", "parallel worker CPU", CounterUnit::Micros),
    ("pg_stat_bgwriter.buffers_backend", "blocks written by backends", CounterUnit::Count),
    ("pg_stat_io(client backend, relation).evictions", "buffers evicted by backends", CounterUnit::Count),
    ("pg_stat_io(client backend, relation).extends", "blocks added to relations", CounterUnit::Count),
    ("log.entries", "log entries", CounterUnit::Count),
    ("background(ended processes).cpu_us", "CPU of ended processes (parallel workers, autovacuum)", CounterUnit::Micros),
    ("background(checkpointer).write_bytes", "written to disk by the checkpointer", CounterUnit::Bytes),
    ("background(background writer).write_bytes", "written to disk by the background writer", CounterUnit::Bytes),
    ("background(walwriter).write_bytes", "written to disk by the WAL writer", CounterUnit::Bytes),
    ("background(logger).write_bytes", "written to disk by the logger", CounterUnit::Bytes),
    ("background(stats collector).write_bytes", "written to disk by the statistics collector", CounterUnit::Bytes),
    ("background(autovacuum worker).write_bytes", "written to disk by autovacuum workers", CounterUnit::Bytes),
    ("background(io worker).write_bytes", "written to disk by I/O workers", CounterUnit::Bytes),
];

/// Prefix of hardware counters. They are read in separate trials, because reading them slows the server.
const HARDWARE_COUNTER_PREFIX: &str = "cpu.";

/// Counters of a trial's duration or the machine's utilization; per transaction they only reflect the
/// throughput.
const TIME_COUNTERS: [&str; 6] = [
    "machine.",
    "cgroup.",
    "pg_stat_database.session_time",
    "pg_stat_database.active_time",
    "pg_stat_database.idle_in_transaction_time",
    "pg_stat_bgwriter.buffers_alloc",
];

/// The title of a counter in reports.
pub fn title(name: &str) -> &str {
    TITLES
        .iter()
        .find(|(known, ..)| *known == name)
        .map_or(name, |(_, title, _)| title)
}

/// The unit of a counter.
pub fn unit(name: &str) -> CounterUnit {
    if let Some((.., unit)) = TITLES.iter().find(|(known, ..)| *known == name) {
        return *unit;
    }
    // All of PostgreSQL's times are in milliseconds.
    let ends = |ending: &str| name.ends_with(ending);
    match () {
        () if ends("bytes") => CounterUnit::Bytes,
        () if ends("_us") => CounterUnit::Micros,
        () if ends("_time") => CounterUnit::Millis,
        () => CounterUnit::Count,
    }
}

/// Position of a counter in reports, the most informative first.
pub fn rank(name: &str) -> usize {
    TITLES
        .iter()
        .position(|(known, ..)| *known == name)
        .unwrap_or(TITLES.len())
}

/// Whether a counter is meaningful per transaction.
pub fn is_about_transactions(name: &str) -> bool {
    !TIME_COUNTERS.iter().any(|prefix| name.starts_with(prefix))
}

/// The counters of one point.
pub struct PointCounters<'a> {
    trials: Vec<&'a Trial>,
    names: BTreeSet<&'a str>,
}

impl<'a> PointCounters<'a> {
    /// The counters of those trials in which they were read.
    pub fn new(trials: impl Iterator<Item = &'a Trial>) -> Self {
        let counted = |trial: &&Trial| !trial.counters.is_empty() && trial.transactions_total > 0;
        let trials: Vec<&Trial> = trials.filter(counted).collect();
        let names = trials.iter().flat_map(|it| it.counters.names());
        Self {
            names: names.collect(),
            trials,
        }
    }

    /// The figure of each counter, ordered by name.
    pub fn figures(&self) -> Vec<CounterFigure> {
        self.names.iter().map(|name| self.figure(name)).collect()
    }

    /// Compares every counter with the baseline's; empty if either side has no counters. Between releases, only
    /// counters that both have are compared: a view or a column that a release lacks is not 0.
    pub fn compare_with(&self, baseline: &Self, is_same_release: bool) -> Vec<CounterDifference> {
        if self.trials.is_empty() || baseline.trials.is_empty() {
            return Vec::new();
        }
        let names: Vec<&str> = self
            .names
            .union(&baseline.names)
            .copied()
            .filter(|name| is_about_transactions(name))
            .filter(|name| is_same_release || (self.has_source(name) && baseline.has_source(name)))
            .collect();
        let level = 1.0 - ALPHA / names.len().max(1) as f64;
        let row = |name: &&str| {
            let (a, b) = (baseline.per_block(name), self.per_block(name));
            let (_, interval) = stats::welch(&a, &b, level);
            let (of_a, of_b) = (baseline.figure(name), self.figure(name));
            // The blocks' means differ from the figures if blocks differ in length: only the interval's width counts.
            let difference = of_b.per_transaction - of_a.per_transaction;
            let half = interval.map_or(0.0, |it| (it.high - it.low) / 2.0);
            let (low, high) = (difference - half, difference + half);
            let larger = of_a.per_transaction.max(of_b.per_transaction);
            let is_large_enough = difference.abs() > MIN_RELATIVE_DIFFERENCE * larger;
            // With one block on a side there is no interval, so nothing is certain.
            let is_certain = interval.is_some() && (low > 0.0 || high < 0.0);
            CounterDifference {
                name: (*name).to_owned(),
                baseline: of_a.per_transaction,
                variant: of_b.per_transaction,
                difference,
                low,
                high,
                differs: is_large_enough && is_certain,
            }
        };
        names.iter().map(row).collect()
    }

    /// Whether the server counts this: a column of a view without row names is always stored, and one of a named row
    /// if anything in the row is not 0. What the kernel counts, every release has.
    fn has_source(&self, name: &str) -> bool {
        if !name.starts_with("pg_stat_") {
            return true;
        }
        let Some((row, _)) = name.split_once(").") else {
            return self.names.contains(name);
        };
        let mut from = self.names.range(row..);
        from.next().is_some_and(|it| it.starts_with(row))
    }

    /// The trials in which a counter was read.
    fn trials_with(&self, name: &str) -> impl Iterator<Item = &'a Trial> {
        let of_processor = name.starts_with(HARDWARE_COUNTER_PREFIX);
        let is_counted = move |it: &&Trial| {
            if of_processor {
                it.counters.get(name).is_some()
            } else {
                it.kind != TrialKind::HardwareCounters
            }
        };
        self.trials.iter().copied().filter(is_counted)
    }

    /// The counter per transaction in each trial that read it.
    pub fn per_trial(&self, name: &str) -> Vec<f64> {
        let of_trial = |trial: &Trial| {
            trial.counters.get(name).unwrap_or(0.0) / trial.transactions_total as f64
        };
        self.trials_with(name).map(of_trial).collect()
    }

    /// The counter per transaction in each block. The trials of a block share a server start, so they are no
    /// independent observations of what varies between starts.
    pub fn per_block(&self, name: &str) -> Vec<f64> {
        let mut blocks: BTreeMap<u32, (f64, u64)> = BTreeMap::new();
        for trial in self.trials_with(name) {
            let (counted, transactions) = blocks.entry(trial.block).or_default();
            *counted += trial.counters.get(name).unwrap_or(0.0);
            *transactions += trial.transactions_total;
        }
        let sums = blocks.into_values();
        sums.map(|(counted, transactions)| counted / transactions as f64)
            .collect()
    }

    fn figure(&self, name: &str) -> CounterFigure {
        let transactions: u64 = self.trials_with(name).map(|it| it.transactions_total).sum();
        let counted: f64 = self
            .trials_with(name)
            .filter_map(|trial| trial.counters.get(name))
            .sum();
        CounterFigure {
            name: name.to_owned(),
            per_transaction: counted / transactions.max(1) as f64,
            spread: stats::standard_deviation(&self.per_trial(name)),
            trials: self.trials_with(name).count() as u32,
        }
    }
}

/// The counters of a point per transaction, by name.
pub fn per_transaction(figures: &[CounterFigure]) -> BTreeMap<&str, f64> {
    figures
        .iter()
        .map(|it| (it.name.as_str(), it.per_transaction))
        .collect()
}

#[cfg(test)]
mod tests {
    use pgassay_model::counters::Counters;

    use super::*;
    use crate::fixture::trial;

    fn counted(values: &[(f64, u64)]) -> Vec<Trial> {
        values
            .iter()
            .zip(0..)
            .map(|(&(lines, transactions_total), block)| Trial {
                block,
                counters: [("log.lines", lines), ("machine.idle_us", 5.0)].into(),
                transactions_total,
                ..trial()
            })
            .collect()
    }

    /// Regression: eight trials of each of three blocks were 24 observations, so a counter that depends on the server
    /// start, such as blocks read, differed between equal variants.
    #[test]
    fn trials_of_a_block_are_one_observation_of_what_depends_on_its_server_start() {
        let with = |by_block: [f64; 3]| -> Vec<Trial> {
            let trials = counted(&by_block.map(|lines| (lines, 10))).into_iter();
            let wobble = |trial: Trial| {
                (0..8).map(move |number| {
                    let mut trial = trial.clone();
                    let lines = trial.counters.get("log.lines").unwrap();
                    trial
                        .counters
                        .insert("log.lines", lines + 0.01 * f64::from(number));
                    trial
                })
            };
            trials.flat_map(wobble).collect()
        };
        let (base, other) = (with([10.0, 11.0, 9.0]), with([12.0, 13.0, 10.0]));
        let base = PointCounters::new(base.iter());
        let rows = PointCounters::new(other.iter()).compare_with(&base, true);
        assert!(!rows[0].differs, "{rows:?}");
        assert!((rows[0].difference - 1.0 / 6.0).abs() < 0.01, "{rows:?}");
    }

    #[test]
    fn figures_are_sums_over_sums_and_trials_without_counters_are_left_out() {
        let mut trials = counted(&[(10.0, 10), (60.0, 20)]);
        trials.push(trial());
        let figures = PointCounters::new(trials.iter()).figures();
        let lines = &figures[0];
        assert_eq!((lines.name.as_str(), lines.trials), ("log.lines", 2));
        assert!((lines.per_transaction - 70.0 / 30.0).abs() < 1e-12);
        assert!((lines.spread - 2f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn trials_without_hardware_counters_do_not_count_as_zero() {
        let mut trials = counted(&[(10.0, 10), (60.0, 20)]);
        let name = "cpu.instructions_user";
        trials[1].counters.insert(name, 90_000.0);
        let figures = PointCounters::new(trials.iter()).figures();
        let found = figures.iter().find(|it| it.name == name).unwrap();
        assert_eq!((found.per_transaction, found.trials), (4_500.0, 1));
        assert!(rank(name) < rank("log.lines"));
    }

    #[test]
    fn trials_for_hardware_counters_do_not_count_as_zero_for_others() {
        let mut trials = counted(&[(10.0, 10), (60.0, 20), (0.0, 7)]);
        trials[2].kind = TrialKind::HardwareCounters;
        trials[2].counters = [("cpu.cycles_user", 70.0)].into();
        let figures = PointCounters::new(trials.iter()).figures();
        let figure = |name| figures.iter().find(|it| it.name == name).unwrap();
        let lines = figure("log.lines");
        assert_eq!(lines.trials, 2);
        assert!((lines.per_transaction - 70.0 / 30.0).abs() < 1e-12);
        let cycles = figure("cpu.cycles_user");
        assert_eq!((cycles.per_transaction, cycles.trials), (10.0, 1));
    }

    /// Regression: "0.721, 0.388, −0.314": columns were sums over sums, the difference that of the trials' means.
    #[test]
    fn a_difference_is_that_of_the_figures_if_trials_differ_in_length() {
        let base = counted(&[(10.0, 10), (60.0, 20), (90.0, 30)]);
        let variant = counted(&[(50.0, 10), (3_000.0, 400), (80.0, 10)]);
        let base = PointCounters::new(base.iter());
        let row = &PointCounters::new(variant.iter()).compare_with(&base, true)[0];
        assert!((row.difference - (3_130.0 / 420.0 - 160.0 / 60.0)).abs() < 1e-12);
        assert!((f64::midpoint(row.low, row.high) - row.difference).abs() < 1e-9);
        assert!(row.low < row.difference);
    }

    #[test]
    fn exact_counts_differ_and_noise_does_not() {
        let base = counted(&[(10.0, 10), (20.0, 20)]);
        let double = counted(&[(20.0, 10), (40.0, 20)]);
        let noisy = counted(&[(10.0, 10), (30.0, 20), (5.0, 10)]);
        let base = PointCounters::new(base.iter());
        let rows = PointCounters::new(double.iter()).compare_with(&base, true);
        assert_eq!(
            rows.len(),
            1,
            "the machine's idle time does not count per transaction"
        );
        assert!(rows[0].differs && (rows[0].difference - 1.0).abs() < 1e-12);
        assert!(!PointCounters::new(noisy.iter()).compare_with(&base, true)[0].differs);
        assert!(
            PointCounters::new([].iter())
                .compare_with(&base, true)
                .is_empty()
        );
    }

    /// Regression: 17 vs 18 showed "WAL syncs 1.00 → 0", because 18 moved the column to another view.
    #[test]
    fn a_counter_that_a_release_does_not_have_is_not_zero_there() {
        let with = |counters: &[(&'static str, f64)]| -> Vec<Trial> {
            let trial = |(block, factor): (u32, f64)| Trial {
                block,
                counters: {
                    let mut all = Counters::default();
                    for &(name, it) in counters {
                        all.insert(name, it * factor);
                    }
                    all
                },
                transactions_total: (10.0 * factor) as u64,
                ..trial()
            };
            [(0, 1.0), (1, 2.0), (2, 4.0)].map(trial).to_vec()
        };
        let old = with(&[
            ("pg_stat_wal.wal_sync", 10.0),
            ("pg_stat_wal.wal_records", 40.0),
            ("pg_stat_slru(Subtrans).blks_hit", 10.0),
        ]);
        let new = with(&[
            ("pg_stat_wal.wal_records", 80.0),
            ("pg_stat_io(client backend, wal).fsyncs", 10.0),
            ("pg_stat_slru(subtransaction).blks_hit", 10.0),
            ("log.lines", 10.0),
        ]);
        let (old, new) = (
            PointCounters::new(old.iter()),
            PointCounters::new(new.iter()),
        );
        let compared = |is_same_release| -> Vec<String> {
            let rows = new.compare_with(&old, is_same_release);
            let differing = rows.into_iter().filter(|it| it.differs);
            differing.map(|it| it.name).collect()
        };
        assert_eq!(compared(false), ["log.lines", "pg_stat_wal.wal_records"]);
        assert_eq!(
            compared(true).len(),
            6,
            "zeros of named rows are not stored"
        );
    }

    #[test]
    fn a_single_trial_per_side_never_differs() {
        let (one, other) = (counted(&[(10.0, 10)]), counted(&[(90.0, 10)]));
        let rows =
            PointCounters::new(other.iter()).compare_with(&PointCounters::new(one.iter()), true);
        assert!(!rows[0].differs);
    }

    #[test]
    fn counters_have_titles_units_and_ranks() {
        assert_eq!(title("wal.insert_bytes"), "WAL written");
        assert_eq!(
            title("pg_stat_slru(Subtrans).blks_read"),
            "pg_stat_slru(Subtrans).blks_read"
        );
        assert_eq!(unit("pg_stat_wal.wal_bytes"), CounterUnit::Bytes);
        assert_eq!(unit("pg_stat_database.blk_read_time"), CounterUnit::Millis);
        assert_eq!(unit("background(x).cpu_us"), CounterUnit::Micros);
        assert!(rank("wal.insert_bytes") < rank("disk.reads"));
        assert!(!is_about_transactions("machine.idle_us"));
    }
}
