//! Indexes: used, unused, redundant, invalid.
//!
//! Definitions come from `pg_index` and `pg_attribute` alone: the server's functions that print
//! expressions lock the table.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_record::activity::{IndexActivity, RelationName};

use super::counts::counted;
use super::foreign_keys::serves_key;
use super::locks::FIRST_USER_OID;
use super::reader::{CatalogReader, array};
use super::redundancy::{IndexKeys, serves};
use super::row::CatalogRow;
use super::settings::ServerSettings;
use super::tables::StorageParameters;

/// Indexes whose scans are counted, those with the most scans ever.
const COUNTED_MAX: usize = 20_000;
/// Indexes that are read, those of the chosen tables first.
const READ_MAX: usize = 3_000;
/// Indexes that are reported; of the chosen tables all that were read, however many.
const REPORTED_MAX: usize = 1_000;

/// Scans of all indexes at a time.
#[derive(Debug, Default)]
pub(super) struct IndexReading {
    scans: BTreeMap<u32, u64>,
    is_cut: bool,
}

impl IndexReading {
    /// A reading that failed: nothing can be compared with it.
    pub fn unknown() -> Self {
        Self {
            is_cut: true,
            ..Self::default()
        }
    }

    pub fn read(reader: &mut CatalogReader) -> Option<Self> {
        let sql = format!(
            "select indexrelid, pg_stat_get_numscans(indexrelid) from pg_index \
             where indexrelid >= {FIRST_USER_OID} and pg_stat_get_numscans(indexrelid) > 0 \
             order by 2 desc limit {}",
            COUNTED_MAX + 1
        );
        let rows = reader.rows("indexes", &sql)?;
        let all = rows.iter().take(COUNTED_MAX);
        Some(Self {
            scans: all
                .map(|row| (row.number(0) as u32, row.count(1)))
                .collect(),
            is_cut: rows.len() > COUNTED_MAX,
        })
    }

    /// Scans since this reading; none if it may have left the index out.
    fn until(&self, oid: u32, now: u64) -> u64 {
        match self.scans.get(&oid) {
            Some(&then) => counted([now], [then])[0],
            None if self.is_cut => 0,
            None => now,
        }
    }
}

/// An index as it was read.
struct ReadIndex {
    activity: IndexActivity,
    keys: IndexKeys,
    /// It may be reported as redundant.
    can_be_redundant: bool,
    /// It may make others redundant.
    is_usable: bool,
}

/// The indexes of these tables, and further ones that are unused, redundant or invalid; largest first. Also
/// whether some of these tables' own are missing.
pub(super) fn indexes(
    reader: &mut CatalogReader,
    of_tables: &BTreeSet<u32>,
    then: &IndexReading,
    settings: &ServerSettings,
) -> (Vec<IndexActivity>, bool) {
    let Some(rows) = reader.rows("indexes", &sql(reader.version, of_tables)) else {
        return (Vec::new(), true);
    };
    // Those of the chosen tables come first: if the first one beyond the limit is not theirs, all are there.
    let is_chosen = |row: &CatalogRow| of_tables.contains(&(row.number(3) as u32));
    let is_cut = rows.get(READ_MAX).is_some_and(is_chosen);
    if is_cut {
        let limitation = format!("the tables in use have more than {READ_MAX} indexes");
        reader.note("indexes", "incomplete", limitation, None);
    }
    let limit = settings.number("gin_pending_list_limit");
    let mut read: Vec<ReadIndex> = rows
        .iter()
        .take(READ_MAX)
        .filter_map(|row| read_index(row, &reader.database, then, limit))
        .collect();
    let invalid = read.iter().map(|it| &it.activity).filter(|it| !it.is_valid);
    let broken = broken(reader, invalid.map(|it| it.relation.oid).collect());
    for index in &mut read {
        let activity = &mut index.activity;
        activity.is_being_built = !activity.is_valid && !broken.contains(&activity.relation.oid);
    }
    let redundant: Vec<Option<RelationName>> = read
        .iter()
        .map(|index| redundant_with(index, &read))
        .collect();
    for (index, by) in read.iter_mut().zip(redundant) {
        index.activity.redundant_with = by;
    }
    let all = read.into_iter().map(|index| index.activity);
    (reported(all.collect(), of_tables), is_cut)
}

/// All indexes of these tables, and of those with a problem as many as there is room for; largest first.
fn reported(all: Vec<IndexActivity>, of_tables: &BTreeSet<u32>) -> Vec<IndexActivity> {
    let is_chosen = |it: &IndexActivity| of_tables.contains(&it.table.oid);
    let (mut reported, mut others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_chosen);
    others.retain(|it| {
        let is_unused = it.scans_ever == 0 && !it.is_required;
        is_unused || !it.is_valid || it.redundant_with.is_some()
    });
    others.truncate(REPORTED_MAX.saturating_sub(reported.len()));
    reported.extend(others);
    reported.sort_by_key(|it| std::cmp::Reverse(it.size_bytes));
    reported
}

/// The first of the indexes of the same table that serves all scans of this one. Of two that serve
/// each other's, the newer one is redundant.
fn redundant_with(index: &ReadIndex, all: &[ReadIndex]) -> Option<RelationName> {
    if !index.can_be_redundant {
        return None;
    }
    let of_index = &index.activity;
    let found = all.iter().find(|other| {
        let of_other = &other.activity;
        other.is_usable
            && of_other.table.oid == of_index.table.oid
            && of_other.relation.oid != of_index.relation.oid
            && serves(&other.keys, &index.keys)
            && !(other.can_be_redundant
                && serves(&index.keys, &other.keys)
                && of_other.relation.oid > of_index.relation.oid)
    });
    found.map(|other| other.activity.relation.clone())
}

fn sql(version: u32, of_tables: &BTreeSet<u32>) -> String {
    let since = |since, column, before| if version >= since { column } else { before };
    // 11: columns that are stored, but no keys. 10: partitions, whose indexes cannot be dropped alone.
    let keys = since(110_000, "i.indnkeyatts", "i.indnatts");
    let is_part = since(110_000, "x.relispartition", "false");
    let of_tables = array(of_tables.iter().copied());
    format!(
        "with chosen as (select unnest('{of_tables}'::oid[]) as oid \
           union (select i.indrelid from pg_index i join pg_class x on x.oid = i.indexrelid \
             where i.indrelid >= {FIRST_USER_OID} and not i.indisunique \
               and pg_stat_get_numscans(i.indexrelid) = 0 order by x.relpages desc limit 100) \
           union (select i.indrelid from pg_index i \
             where i.indrelid >= {FIRST_USER_OID} and not i.indisvalid limit 100) \
           union (select i.indrelid from pg_index i join pg_class x on x.oid = i.indexrelid \
             where i.indrelid >= {FIRST_USER_OID} group by i.indrelid having count(*) > 1 \
             order by sum(x.relpages) desc limit 200)) \
         select i.indexrelid, xn.nspname, x.relname, i.indrelid, tn.nspname, t.relname, m.amname, \
           (select json_agg(coalesce(a.attname::text, 'expression') order by k.place) \
             from unnest(i.indkey::int2[]) with ordinality k (number, place) \
             left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number), \
           i.indkey::text, {keys}, i.indclass::text, i.indcollation::text, i.indoption::text, \
           (select json_agg(coalesce(array_to_string(a.attoptions, ','), '') order by a.attnum) \
             from pg_attribute a where a.attrelid = i.indexrelid), \
           regexp_replace(i.indexprs::text, ' :location -?[0-9]+', '', 'g'), \
           regexp_replace(i.indpred::text, ' :location -?[0-9]+', '', 'g'), \
           x.relpages::bigint * current_setting('block_size')::bigint, \
           pg_stat_get_numscans(i.indexrelid), \
           i.indisunique or i.indisprimary or i.indisexclusion or i.indisreplident or {is_part} \
             or exists (select 1 from pg_constraint k where k.conindid = i.indexrelid), \
           i.indisvalid, i.indisready, to_json(x.reloptions), age(i.xmin), {} \
         from chosen join pg_index i on i.indrelid = chosen.oid \
           join pg_class x on x.oid = i.indexrelid join pg_namespace xn on xn.oid = x.relnamespace \
           join pg_class t on t.oid = i.indrelid join pg_namespace tn on tn.oid = t.relnamespace \
           join pg_am m on m.oid = x.relam \
         where x.relkind = 'i' and t.relkind in ('r', 'm') and t.relpersistence <> 't' \
         order by i.indrelid = any ('{of_tables}'::oid[]) desc, x.relpages desc, i.indexrelid limit {}",
        foreign_key(version),
        READ_MAX + 1
    )
}

/// The SQL for the foreign key of an index that nothing scanned, if no other index serves it: its checks may be rare. Of
/// several that nothing scanned, the oldest one serves it.
fn foreign_key(version: u32) -> String {
    format!(
        "case when i.indisvalid and pg_stat_get_numscans(i.indexrelid) = 0 then \
           (select k.conname from pg_constraint k where k.contype = 'f' and k.conrelid = i.indrelid and {} \
             and not exists (select 1 from pg_index o join pg_class ox on ox.oid = o.indexrelid \
               join pg_am om on om.oid = ox.relam \
               where o.indrelid = i.indrelid and o.indexrelid <> i.indexrelid and o.indisvalid \
                 and (o.indexrelid < i.indexrelid or o.indisunique \
                   or pg_stat_get_numscans(o.indexrelid) > 0) and {}) \
             order by k.oid limit 1) end",
        serves_key(version, "i", "m"),
        serves_key(version, "o", "om")
    )
}

/// The age of a row's transaction ID. `age` is a signed number of 32 bits: it is negative of a row that is older than
/// half of all transaction IDs, as frozen rows can be.
fn definition_age(age: i64) -> u64 {
    u64::try_from(age).unwrap_or(1 << 31)
}

fn read_index(
    row: &CatalogRow,
    database: &str,
    then: &IndexReading,
    pending_list_kb: Option<f64>,
) -> Option<ReadIndex> {
    let relation = row.relation(0, database);
    let method = row.text(6);
    let names = row.texts(7);
    let keys = IndexKeys::parse(row, names.len())?;
    let columns = names.into_iter().enumerate().map(|(at, name)| {
        if at < keys.count {
            name
        } else {
            format!("include {name}")
        }
    });
    let mut columns: Vec<String> = columns.collect();
    if keys.predicate.is_some() {
        columns.push("where expression".to_owned());
    }
    let options = StorageParameters(row.texts(21));
    let limit_kb = options.number("gin_pending_list_limit").or(pending_list_kb);
    let has_pending_list = method == "gin" && !options.is_off("fastupdate");
    let (is_required, is_valid) = (row.is_true(18), row.is_true(19));
    let scans_ever = row.count(17);
    Some(ReadIndex {
        can_be_redundant: !is_required && is_valid,
        is_usable: is_valid && row.is_true(20),
        activity: IndexActivity {
            scans: then.until(relation.oid, scans_ever),
            relation,
            table: row.relation(3, database),
            method,
            columns,
            size_bytes: row.count(16),
            scans_ever,
            definition_age: row.get(22).map(|_| definition_age(row.number(22))),
            is_required,
            is_valid,
            is_unmaintained: !row.is_true(20),
            is_being_built: false,
            redundant_with: None,
            foreign_key: row.get(23).map(str::to_owned),
            pending_list_limit_bytes: limit_kb
                .filter(|_| has_pending_list)
                .map(|kb| (kb * 1024.0) as u64),
        },
        keys,
    })
}

/// Those of these invalid indexes that no session builds or drops.
///
/// A command may end after the indexes were read and before the locks are: then its index is valid or
/// gone when it is read again, after the locks.
fn broken(reader: &mut CatalogReader, invalid: BTreeSet<u32>) -> BTreeSet<u32> {
    if invalid.is_empty() {
        return invalid;
    }
    let Some(changing) = being_changed(reader) else {
        return BTreeSet::new();
    };
    let sql = format!(
        "select indexrelid from pg_index where not indisvalid and indexrelid = any ('{}'::oid[])",
        array(invalid)
    );
    let still = oids(reader, &sql).unwrap_or_default();
    still.difference(&changing).copied().collect()
}

/// Invalid indexes of tables on which a session may be building or dropping an index concurrently, or
/// waits to begin. Such commands hold this lock on the table from their first transaction to the last,
/// while `pg_stat_progress_create_index` (from 12 on) shows one index at a time, and none that is
/// dropped. A session whose command is hidden from us may run such a command.
fn being_changed(reader: &mut CatalogReader) -> Option<BTreeSet<u32>> {
    let sql = "select i.indexrelid from pg_index i join pg_locks l on l.relation = i.indrelid \
           and l.locktype = 'relation' and l.mode = 'ShareUpdateExclusiveLock' \
           and l.database = (select oid from pg_database where datname = current_database()) \
         join pg_stat_activity a on a.pid = l.pid \
         where not i.indisvalid and (coalesce(a.query, '') in \
             ('', '<insufficient privilege>', '<command string not enabled>') \
           or a.query ~* 'index.*concurrently')";
    oids(reader, sql)
}

fn oids(reader: &mut CatalogReader, sql: &str) -> Option<BTreeSet<u32>> {
    let rows = reader.rows("indexes", sql)?;
    Some(rows.iter().map(|row| row.number(0) as u32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(table: u32, oid: u32, size_bytes: u64) -> IndexActivity {
        let name = |oid| RelationName {
            oid,
            ..RelationName::default()
        };
        IndexActivity {
            relation: name(oid),
            table: name(table),
            size_bytes,
            is_valid: true,
            scans_ever: 0,
            ..IndexActivity::default()
        }
    }

    /// Regression: an index whose definition was three billion transactions old was new, so that it was never unused.
    #[test]
    fn a_definition_older_than_half_of_all_transaction_ids_is_not_new() {
        assert_eq!(definition_age(1000), 1000);
        assert_eq!(definition_age(-1_294_967_296), 2_147_483_648);
    }

    #[test]
    fn many_large_unused_indexes_do_not_hide_the_small_one_of_a_table_in_use() {
        let large = (0..2000).map(|oid| index(1, oid, 1_000_000 - u64::from(oid)));
        let all: Vec<_> = large.chain([index(2, 5000, 8192)]).collect();
        let found = reported(all.clone(), &[2].into());
        assert_eq!(found.len(), REPORTED_MAX);
        assert_eq!(found[0].relation.oid, 0, "the largest comes first");
        assert_eq!(found[REPORTED_MAX - 1].relation.oid, 5000);
        // None of a table in use is left out.
        assert_eq!(reported(all, &[1, 2].into()).len(), 2001);
    }
}
