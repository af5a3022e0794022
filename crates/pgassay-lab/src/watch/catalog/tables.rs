//! Tables with activity or a problem.
//!
//! By OIDs of `pg_class`: the views `pg_stat_user_tables` and `pg_statio_user_tables` would aggregate
//! the indexes of every table several times. The functions take no locks, unlike those that measure
//! the size of relations.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_record::activity::{Activity, RelationName, TableActivity};

use super::counts::counted;
use super::locks::FIRST_USER_OID;
use super::reader::{CatalogReader, array};
use super::row::CatalogRow;
use super::settings::ServerSettings;

/// Tables whose counters are read twice, those with the most activity ever.
const COUNTED_MAX: usize = 10_000;
/// Tables that are reported for their activity in the window; further ones for their problems.
const ACTIVE_MAX: usize = 200;

/// Counters of a table with its indexes and TOAST: sequential scans, rows they read, index scans,
/// inserted, updated, HOT updated, deleted, blocks read, blocks hit.
type TableCounters = [u64; 9];

/// Counters of all tables at a time.
#[derive(Debug, Default)]
pub(super) struct TableReading {
    counters: BTreeMap<u32, TableCounters>,
    /// There are more tables than were read.
    is_cut: bool,
}

impl TableReading {
    /// A reading that failed: nothing can be compared with it.
    pub fn unknown() -> Self {
        Self {
            is_cut: true,
            ..Self::default()
        }
    }

    pub fn read(reader: &mut CatalogReader) -> Option<Self> {
        let reads =
            |of: &str| format!("pg_stat_get_blocks_fetched({of}) - pg_stat_get_blocks_hit({of})");
        // Tables that were never used are not listed: their counters are 0.
        let sql = format!(
            "with i as (select indrelid, sum(pg_stat_get_numscans(indexrelid)) as scans, \
               sum({}) as reads, sum(pg_stat_get_blocks_hit(indexrelid)) as hits \
               from pg_index group by indrelid), \
             t as (select c.oid, pg_stat_get_numscans(c.oid) as s, \
               pg_stat_get_tuples_returned(c.oid) as r, coalesce(i.scans, 0) as x, \
               pg_stat_get_tuples_inserted(c.oid) as n, pg_stat_get_tuples_updated(c.oid) as u, \
               pg_stat_get_tuples_hot_updated(c.oid) as h, pg_stat_get_tuples_deleted(c.oid) as d, \
               {} + coalesce({}, 0) + coalesce(i.reads, 0) + coalesce(t.reads, 0) as reads, \
               pg_stat_get_blocks_hit(c.oid) + coalesce(pg_stat_get_blocks_hit(c.reltoastrelid), 0) \
                 + coalesce(i.hits, 0) + coalesce(t.hits, 0) as hits \
             from pg_class c left join i on i.indrelid = c.oid \
               left join i t on t.indrelid = c.reltoastrelid \
             where c.relkind in ('r', 'm') and c.relpersistence <> 't' and c.oid >= {FIRST_USER_OID} offset 0) \
             select oid, s, r, x, n, u, h, d, reads, hits from t where s + r + x + n + u + d > 0 \
             order by r + x + n + u + d desc limit {}",
            reads("indexrelid"),
            reads("c.oid"),
            reads("c.reltoastrelid"),
            COUNTED_MAX + 1
        );
        let rows = reader.rows(Activity::TABLES, &sql)?;
        let counters = |row: &CatalogRow| std::array::from_fn(|at| row.count(at + 1));
        let all = rows.iter().take(COUNTED_MAX);
        Some(Self {
            counters: all
                .map(|row| (row.number(0) as u32, counters(row)))
                .collect(),
            is_cut: rows.len() > COUNTED_MAX,
        })
    }

    /// What was counted since an earlier reading, for the tables of which that is known.
    pub fn since(&self, then: &Self) -> BTreeMap<u32, TableCounters> {
        let of_table = |(&oid, &now): (&u32, &TableCounters)| match then.counters.get(&oid) {
            Some(&then) => Some((oid, difference(now, then))),
            None if then.is_cut => None,
            None => Some((oid, now)),
        };
        self.counters.iter().filter_map(of_table).collect()
    }

    /// There are more tables than are counted; without any, the reading failed, and its refusal says why.
    fn has_too_many(&self) -> bool {
        self.is_cut && !self.counters.is_empty()
    }

    /// Says that some tables have no differences.
    pub fn note_limits(&self, reader: &mut CatalogReader) {
        if self.has_too_many() {
            let limitation = format!(
                "more than {COUNTED_MAX} tables of the database are in use: activity in the window \
                 is known for the {COUNTED_MAX} that were used most"
            );
            reader.note(Activity::TABLES, "incomplete", limitation, None);
        }
    }
}

/// What was counted between two readings. The table's own counters are reset together. The others are sums with those
/// of its indexes and its TOAST table, which fall if an index is dropped or the table is rewritten: then what was
/// counted meanwhile is not known, and 0.
fn difference(now: TableCounters, then: TableCounters) -> TableCounters {
    const OWN: [usize; 6] = [0, 1, 3, 4, 5, 6];
    let mut all = std::array::from_fn(|at| now[at].saturating_sub(then[at]));
    let own = counted(OWN.map(|at| now[at]), OWN.map(|at| then[at]));
    for (at, count) in OWN.into_iter().zip(own) {
        all[at] = count;
    }
    all
}

/// Rows deleted from and updated in a table in the window.
pub(super) fn writes(counters: &TableCounters) -> u64 {
    counters[4] + counters[6]
}

/// Rows deleted from a table in the window.
pub(super) fn deleted(counters: &TableCounters) -> u64 {
    counters[6]
}

/// Rows updated in a table in the window, but not HOT.
pub(super) fn moved(counters: &TableCounters) -> u64 {
    counters[4].saturating_sub(counters[5])
}

/// The tables to report: the most active ones, and those that may have a problem.
pub(super) fn chosen(
    reader: &mut CatalogReader,
    differences: &BTreeMap<u32, TableCounters>,
) -> BTreeSet<u32> {
    let activity = |it: &TableCounters| it[1] + it[2] + it[3] + writes(it);
    let mut active: Vec<(u64, u32)> = differences
        .iter()
        .map(|(&oid, counters)| (activity(counters), oid))
        .filter(|(activity, _)| *activity > 0)
        .collect();
    active.sort_unstable_by(|a, b| b.cmp(a));
    let mut chosen: BTreeSet<u32> = active.into_iter().take(ACTIVE_MAX).map(|it| it.1).collect();
    let sql = format!(
        "with t as (select c.oid, c.relpages, c.relfrozenxid from pg_class c \
           where c.relkind in ('r', 'm') and c.relpersistence <> 't' and c.oid >= {FIRST_USER_OID}) \
         (select oid from t where pg_stat_get_dead_tuples(oid) > 0 \
            order by pg_stat_get_dead_tuples(oid) desc limit 50) union \
         (select oid from t where pg_stat_get_mod_since_analyze(oid) > 0 \
            order by pg_stat_get_mod_since_analyze(oid) desc limit 50) union \
         (select oid from t where relpages > 0 and coalesce(pg_stat_get_last_analyze_time(oid), \
            pg_stat_get_last_autoanalyze_time(oid)) is null order by relpages desc limit 30) union \
         (select oid from t where relpages > 0 order by relpages desc limit 50) union \
         (select oid from t where relpages > 0 order by age(relfrozenxid) desc limit 20)"
    );
    let problems = reader.rows(Activity::TABLES, &sql).unwrap_or_default();
    chosen.extend(problems.iter().map(|row| row.number(0) as u32));
    chosen
}

/// Whether there are statistics of a column, or they are hidden: `pg_statistic` is only for superusers, and `pg_stats`
/// hides the columns that the user may not read, and tables whose rows are hidden from the user.
const HAS_STATISTICS: &str = "not has_table_privilege(c.oid, 'select') or row_security_active(c.oid) \
     or exists (select 1 from pg_stats s where s.schemaname = n.nspname and s.tablename = c.relname)";

/// Reads the state of these tables and joins their differences.
pub(super) fn tables(
    reader: &mut CatalogReader,
    chosen: &BTreeSet<u32>,
    differences: &BTreeMap<u32, TableCounters>,
    settings: &ServerSettings,
) -> Vec<TableActivity> {
    let sql = format!(
        "select c.oid, n.nspname, c.relname, \
           c.relpages::bigint * current_setting('block_size')::bigint, c.reltuples, c.relpages, \
           pg_stat_get_live_tuples(c.oid), pg_stat_get_dead_tuples(c.oid), \
           pg_stat_get_mod_since_analyze(c.oid), \
           extract(epoch from clock_timestamp() - greatest(pg_stat_get_last_vacuum_time(c.oid), \
             pg_stat_get_last_autovacuum_time(c.oid))) * 1e6, \
           extract(epoch from clock_timestamp() - greatest(pg_stat_get_last_analyze_time(c.oid), \
             pg_stat_get_last_autoanalyze_time(c.oid))) * 1e6, \
           age(c.relfrozenxid), to_json(c.reloptions), {HAS_STATISTICS} \
         from pg_class c join pg_namespace n on n.oid = c.relnamespace \
         where c.oid = any ('{}'::oid[])",
        array(chosen.iter().copied())
    );
    let rows = reader.rows(Activity::TABLES, &sql).unwrap_or_default();
    let partitioned = partitioned(reader, chosen);
    let database = &reader.database;
    let mut tables: Vec<TableActivity> = rows
        .iter()
        .map(|row| {
            let parent = partitioned.get(&(row.number(0) as u32));
            TableActivity {
                partition_of: parent.map(|it| it.0.clone()),
                parent_lacks_statistics: parent.is_some_and(|it| it.1),
                ..table(row, database, reader.version, differences, settings)
            }
        })
        .map(|table| {
            if reader.is_standby {
                without_maintenance(table)
            } else {
                table
            }
        })
        .collect();
    let activity =
        |it: &TableActivity| it.sequential_rows + it.index_scans + it.inserted + it.updated;
    tables.sort_by(|a, b| {
        activity(b)
            .cmp(&activity(a))
            .then(b.size_bytes.cmp(&a.size_bytes))
            .then(a.relation.cmp(&b.relation))
    });
    tables
}

/// The partitioned table at the top of each partition, and whether it has no statistics.
fn partitioned(
    reader: &mut CatalogReader,
    chosen: &BTreeSet<u32>,
) -> BTreeMap<u32, (RelationName, bool)> {
    if reader.version < 100_000 {
        return BTreeMap::new();
    }
    let sql = format!(
        "with recursive up (part, oid) as ( \
           select c.oid, c.oid from pg_class c where c.oid = any ('{}'::oid[]) and c.relispartition union all \
           select up.part, i.inhparent from up join pg_class c on c.oid = up.oid and c.relispartition \
             join pg_inherits i on i.inhrelid = up.oid) \
         select up.part, c.oid, n.nspname, c.relname, {HAS_STATISTICS} \
           from up join pg_class c on c.oid = up.oid \
           join pg_namespace n on n.oid = c.relnamespace where not c.relispartition",
        array(chosen.iter().copied())
    );
    let rows = reader.rows(Activity::TABLES, &sql).unwrap_or_default();
    let of_part = |row: &CatalogRow| {
        let parent = row.relation(1, &reader.database);
        (row.number(0) as u32, (parent, !row.is_true(4)))
    };
    rows.iter().map(of_part).collect()
}

fn table(
    row: &CatalogRow,
    database: &str,
    version: u32,
    differences: &BTreeMap<u32, TableCounters>,
    settings: &ServerSettings,
) -> TableActivity {
    let relation = row.relation(0, database);
    let counters = differences.get(&relation.oid).copied().unwrap_or_default();
    let options = StorageParameters(row.texts(12));
    let rows = row.real(4).unwrap_or(0.0);
    // 14: never vacuumed or analyzed is -1; before, no rows on no pages.
    let is_known = if version >= 140_000 {
        rows >= 0.0
    } else {
        rows > 0.0 || row.number(5) > 0
    };
    let thresholds = settings.thresholds(&options, rows.max(0.0));
    let analyzed_ago_us = row.duration(10);
    TableActivity {
        relation,
        size_bytes: row.count(3),
        estimated_rows: is_known.then_some(rows),
        live_rows: row.count(6),
        dead_rows: row.count(7),
        sequential_scans: counters[0],
        sequential_rows: counters[1],
        index_scans: counters[2],
        inserted: counters[3],
        updated: counters[4],
        hot_updated: counters[5],
        deleted: counters[6],
        blocks_read: counters[7],
        blocks_hit: counters[8],
        modified_since_analyze: row.count(8),
        analyze_threshold: thresholds.analyze,
        vacuum_threshold: thresholds.vacuum,
        autovacuum_enabled: thresholds.is_enabled,
        vacuumed_ago_us: row.duration(9),
        analyzed_ago_us,
        autovacuum_us: None,
        age: row.count(11),
        has_statistics: row.is_true(13) || analyzed_ago_us.is_some(),
        partition_of: None,
        parent_lacks_statistics: false,
    }
}

/// On a standby, only scans are counted. What a former primary still counts as dead or changed is of the time
/// before (from 15 on, a clean restart keeps the statistics).
fn without_maintenance(table: TableActivity) -> TableActivity {
    TableActivity {
        live_rows: table.estimated_rows.unwrap_or(0.0) as u64,
        dead_rows: 0,
        modified_since_analyze: 0,
        vacuumed_ago_us: None,
        analyzed_ago_us: None,
        ..table
    }
}

/// A table's storage parameters, as in `reloptions`.
pub(super) struct StorageParameters(pub Vec<String>);

impl StorageParameters {
    pub fn get(&self, name: &str) -> Option<&str> {
        let pairs = self.0.iter().filter_map(|it| it.split_once('='));
        pairs.rev().find(|(known, _)| *known == name).map(|it| it.1)
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.parse().ok()
    }

    /// A Boolean as the server reads it.
    pub fn is_off(&self, name: &str) -> bool {
        // PostgreSQL's parse_bool accepts any unique prefix.
        let value = self.get(name).map(str::to_ascii_lowercase);
        value.is_some_and(|it| {
            it == "0"
                || "false".starts_with(&it)
                || "no".starts_with(&it)
                || matches!(it.as_str(), "of" | "off")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a former primary, now a standby, was said to need VACUUM and ANALYZE.
    #[test]
    fn a_standby_has_no_dead_rows_of_the_time_before() {
        let table = without_maintenance(TableActivity {
            estimated_rows: Some(500.0),
            live_rows: 3,
            dead_rows: 40_000,
            modified_since_analyze: 40_000,
            analyzed_ago_us: Some(1e9),
            has_statistics: true,
            sequential_scans: 7,
            ..TableActivity::default()
        });
        assert_eq!((table.live_rows, table.dead_rows), (500, 0));
        assert_eq!(
            (table.modified_since_analyze, table.analyzed_ago_us),
            (0, None)
        );
        assert!(table.has_statistics && table.sequential_scans == 7);
    }

    /// Regression: with a lost connection, "more than 10000 tables of the database are in use", of 70.
    #[test]
    fn a_reading_that_failed_does_not_have_too_many_tables() {
        let mut reading = TableReading::unknown();
        assert!(!reading.has_too_many());
        reading.counters.insert(1, TableCounters::default());
        assert!(reading.has_too_many());
    }

    /// Regression: when an index was dropped, all rows that were ever inserted into its table were of the window.
    #[test]
    fn a_dropped_index_does_not_make_all_counts_of_its_table_new() {
        let then = [10, 1000, 5000, 900_000, 400, 30, 20, 7000, 8000];
        let dropped = [11, 1100, 40, 900_010, 400, 30, 25, 6000, 8100];
        assert_eq!(difference(dropped, then), [1, 100, 0, 10, 0, 0, 5, 0, 100]);
        let reset = [2, 7, 40, 3, 0, 0, 1, 9, 9];
        assert_eq!(difference(reset, then), [2, 7, 0, 3, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn tables_that_the_first_reading_left_out_have_no_difference() {
        let reading = |tables: &[(u32, u64)], is_cut| TableReading {
            counters: tables.iter().map(|&(oid, n)| (oid, [n; 9])).collect(),
            is_cut,
        };
        let now = reading(&[(1, 5), (2, 7)], false);
        let whole = now.since(&reading(&[(1, 3)], false));
        assert_eq!(whole, [(1, [2; 9]), (2, [7; 9])].into());
        let cut = now.since(&reading(&[(1, 3)], true));
        assert_eq!(cut, [(1, [2; 9])].into());
    }

    #[test]
    fn storage_parameters_are_read_as_the_server_does() {
        let options = ["fillfactor=70", "autovacuum_enabled=OFF"];
        let options = StorageParameters(options.map(str::to_owned).into());
        assert_eq!(options.number("fillfactor"), Some(70.0));
        assert!(options.is_off("autovacuum_enabled"));
        assert!(!options.is_off("fillfactor") && !options.is_off("fastupdate"));
    }
}
