//! Transactions of autovacuum: the server counts them together with those of clients.
//!
//! They are estimated by what its workers did. Before each table, and after each VACUUM and each ANALYZE of it, a
//! worker commits (PostgreSQL's `autovacuum.c` and `vacuum.c`, 9.6 to 18). It reports its transactions when it ends,
//! but each table at once.

use std::collections::BTreeMap;

use super::counts::counted;
use super::reader::CatalogReader;
use super::row::CatalogRow;

/// A worker has one transaction in which it connects, and one that finds the tables.
const OF_WORKER: f64 = 2.0;
/// The launcher starts at most this many workers per second (`MIN_AUTOVAC_SLEEPTIME`).
const STARTS_PER_S_MAX: f64 = 10.0;
/// Times pass through numbers with a fraction.
const ROUNDING_US: f64 = 1e3;

/// Automatic VACUUMs and ANALYZEs of a table so far.
type TableJobs = [u64; 2];

/// What autovacuum did in the connection's database.
#[derive(Debug, Default)]
pub(super) struct AutovacuumWatch {
    jobs: BTreeMap<u32, TableJobs>,
    /// When the last of them ended, in microseconds since 1970; `None` before the first reading.
    last_us: Option<f64>,
    /// Transactions that their workers have not reported yet, by the end of the job.
    pending: Vec<(f64, u64)>,
    /// Transactions reported since the first reading.
    reported: u64,
    /// Workers that the launcher starts in all databases; each database with statistics has one in each
    /// `autovacuum_naptime`.
    starts_per_s: f64,
    /// When the first reading was, as the caller counts.
    first_us: f64,
}

/// A table with jobs.
#[derive(Debug, Clone, Copy)]
struct TableReport {
    oid: u32,
    jobs: TableJobs,
    /// When the last VACUUM and the last ANALYZE ended, in microseconds since 1970; 0 if there was none.
    ended_us: [f64; 2],
}

impl TableReport {
    fn read(row: &CatalogRow) -> Self {
        Self {
            oid: row.number(0) as u32,
            jobs: [row.count(1), row.count(2)],
            ended_us: [3, 4].map(|at| row.real(at).unwrap_or(0.0)),
        }
    }

    fn last_us(&self) -> f64 {
        self.ended_us[0].max(self.ended_us[1])
    }
}

impl AutovacuumWatch {
    /// Transactions that autovacuum has reported since the first reading; `None` if they cannot be known. Within a
    /// reading of `reader`, before that of all transactions: a worker reports its own before it is gone.
    pub fn read(&mut self, reader: &mut CatalogReader, at_us: f64) -> Option<f64> {
        if self.last_us.is_none() {
            self.starts_per_s = starts_per_s(reader)?;
            self.first_us = at_us;
        }
        let oldest_us = oldest_worker_us(reader)?;
        let tables = tables(reader, self.last_us)?;
        self.add(&tables, oldest_us);
        let of_workers = OF_WORKER * self.starts_per_s * (at_us - self.first_us) / 1e6;
        Some(self.reported as f64 + of_workers)
    }

    /// Transactions of jobs in the connection's database since the first reading.
    pub const fn of_jobs(&self) -> u64 {
        self.reported
    }

    /// Takes what tables report. The oldest worker began at this time, infinite if there is none.
    fn add(&mut self, tables: &[TableReport], oldest_us: f64) {
        let is_running = |ended_us: f64| ended_us >= oldest_us;
        for table in tables {
            let then = self.jobs.insert(table.oid, table.jobs);
            let done = match (then, self.last_us) {
                // Of the jobs before the first reading, only those of present workers are reported later. Which these
                // are is not known without rights.
                (_, None) => table
                    .ended_us
                    .map(|it| u64::from(oldest_us > 0.0 && is_running(it))),
                (then, Some(_)) => counted(table.jobs, then.unwrap_or_default()),
            };
            self.pending.push((table.last_us(), transactions(done)));
        }
        let last_us = tables.iter().map(TableReport::last_us);
        self.last_us = Some(last_us.fold(self.last_us.unwrap_or(0.0), f64::max));
        let pending = std::mem::take(&mut self.pending);
        for (ended_us, transactions) in pending.into_iter().filter(|it| it.1 > 0) {
            if is_running(ended_us) {
                self.pending.push((ended_us, transactions));
            } else {
                self.reported += transactions;
            }
        }
    }
}

/// Transactions of so many VACUUMs and ANALYZEs of a table. Those due at the same time are one job.
fn transactions([vacuums, analyzes]: TableJobs) -> u64 {
    2 * vacuums.max(analyzes) + vacuums.min(analyzes)
}

/// Workers that are started per second; 0 if autovacuum is off, or on a standby.
fn starts_per_s(reader: &mut CatalogReader) -> Option<f64> {
    let sql = "select current_setting('autovacuum')::bool and not pg_is_in_recovery(), \
               extract(epoch from current_setting('autovacuum_naptime')::interval), \
               (select count(*) from pg_stat_database where datid <> 0 and xact_commit > 0)";
    let rows = reader.rows("autovacuum", sql)?;
    let row = rows.first()?;
    let naptime_s = row.real(1)?.max(1.0);
    let per_s = (row.count(2) as f64 / naptime_s).min(STARTS_PER_S_MAX);
    Some(if row.is_true(0) { per_s } else { 0.0 })
}

/// When the oldest worker in the database began, in microseconds since 1970, and 0 if only other users may know;
/// infinite if there is none.
fn oldest_worker_us(reader: &mut CatalogReader) -> Option<f64> {
    // Without rights, a session without a user is one.
    let is_worker = if reader.version >= 100_000 {
        "usesysid is null and coalesce(backend_type, 'autovacuum worker') = 'autovacuum worker'"
    } else {
        "query like 'autovacuum: %'"
    };
    let sql = format!(
        "select min(coalesce(extract(epoch from backend_start), 0)) * 1e6 from pg_stat_activity \
         where datid = {} and {is_worker}",
        reader.database_oid
    );
    let rows = reader.rows("autovacuum", &sql)?;
    Some(rows.first()?.real(0).unwrap_or(f64::INFINITY))
}

/// The tables with jobs since this time.
fn tables(reader: &mut CatalogReader, last_us: Option<f64>) -> Option<Vec<TableReport>> {
    let since_s = last_us.map_or(0.0, |it| (it - ROUNDING_US).max(0.0) / 1e6);
    let sql = format!(
        "with t as (select oid, pg_stat_get_last_autovacuum_time(oid) as v, \
             pg_stat_get_last_autoanalyze_time(oid) as a \
           from pg_class where relkind in ('r', 'm', 't') offset 0) \
         select oid, pg_stat_get_autovacuum_count(oid), pg_stat_get_autoanalyze_count(oid), \
           extract(epoch from v) * 1e6, extract(epoch from a) * 1e6 \
         from t where greatest(v, a) >= to_timestamp({since_s:.6})"
    );
    let rows = reader.rows("autovacuum", &sql)?;
    Some(rows.iter().map(TableReport::read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(oid: u32, jobs: TableJobs, ended_us: [f64; 2]) -> TableReport {
        TableReport {
            oid,
            jobs,
            ended_us,
        }
    }

    /// Regression: of 120 transactions per second, 85 were autovacuum's, and all seemed to be clients'.
    #[test]
    fn a_job_has_one_transaction_more_than_its_commands() {
        assert_eq!(transactions([0, 0]), 0);
        assert_eq!(transactions([1, 0]), 2);
        assert_eq!(transactions([0, 3]), 6);
        assert_eq!(transactions([1, 1]), 3);
        assert_eq!(transactions([1, 2]), 5);
    }

    /// A worker reports the transactions of all its tables when it ends, long after its first table. Otherwise clients
    /// would seem to have fewer transactions before, and more then.
    #[test]
    fn transactions_count_when_their_worker_has_ended() {
        let mut watch = AutovacuumWatch::default();
        // A worker that began at 100 has analyzed one table; the other table's job was before.
        let before = [
            table(1, [7, 9], [50.0, 110.0]),
            table(2, [1, 1], [60.0, 60.0]),
        ];
        watch.add(&before, 100.0);
        assert_eq!(watch.of_jobs(), 0);
        watch.add(&[table(2, [2, 2], [120.0, 121.0])], 100.0);
        assert_eq!(watch.of_jobs(), 0);
        // It has ended, and another one began.
        watch.add(&[table(3, [1, 0], [140.0, 0.0])], 130.0);
        assert_eq!(watch.of_jobs(), 2 + 3);
        // The same table again, because times are rounded.
        watch.add(&[table(3, [1, 0], [140.0, 0.0])], f64::INFINITY);
        assert_eq!(watch.of_jobs(), 2 + 3 + 2);
        assert!(watch.pending.is_empty());
    }

    #[test]
    fn jobs_before_the_first_reading_and_a_reset_do_not_count_as_many() {
        let mut watch = AutovacuumWatch::default();
        watch.add(&[table(1, [500, 900], [50.0, 60.0])], f64::INFINITY);
        assert_eq!(watch.of_jobs(), 0);
        watch.add(&[table(1, [0, 1], [0.0, 70.0])], f64::INFINITY);
        assert_eq!(watch.of_jobs(), 2);
        let mut without_rights = AutovacuumWatch::default();
        without_rights.add(&[table(1, [500, 0], [50.0, 0.0])], 0.0);
        without_rights.add(&[table(1, [501, 0], [60.0, 0.0])], 0.0);
        assert_eq!(without_rights.of_jobs(), 0);
        without_rights.add(&[], f64::INFINITY);
        assert_eq!(without_rights.of_jobs(), 2);
    }
}
