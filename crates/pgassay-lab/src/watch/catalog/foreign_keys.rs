//! Foreign keys without an index on the referencing table: each delete or key update in the referenced
//! table then reads the whole referencing table.

use std::collections::BTreeMap;

use pgassay_record::activity::UncoveredForeignKey;

use super::reader::CatalogReader;
use super::tables::{deleted, moved, writes};

/// Those of the largest tables.
const KEYS_MAX: usize = 200;

/// Whether an index can find the referencing rows of a foreign key `k`: the key's columns are its leading ones, in any
/// order. An index on rows where one of them is not null serves, too. `index` and `method` are a row of `pg_index` and
/// one of `pg_am`.
pub(super) fn serves_key(version: u32, index: &str, method: &str) -> String {
    // 11: columns of an index that are stored, but no keys.
    let keys = if version >= 110_000 {
        "indnkeyatts"
    } else {
        "indnatts"
    };
    format!(
        "({method}.amname in ('btree', 'hash') and {index}.{keys} >= array_length(k.conkey, 1) \
           and (string_to_array({index}.indkey::text, ' ')::int2[])[1:array_length(k.conkey, 1)] @> k.conkey \
           and ({index}.indpred is null or substring({index}.indpred::text from \
             '^{{NULLTEST :arg {{VAR [^{{}}]*:varattno ([0-9]+) [^{{}}]*}} :nulltesttype 1 [^{{}}]*}}$')\
             ::int2 = any (k.conkey)))"
    )
}

/// Foreign keys that no index serves; one that is invalid may be being built, or has a finding itself.
pub(super) fn uncovered_foreign_keys(
    reader: &mut CatalogReader,
    differences: &BTreeMap<u32, [u64; 9]>,
) -> Vec<UncoveredForeignKey> {
    // 11: partitions have copies of the key.
    let is_own = if reader.version >= 110_000 {
        "k.conparentid = 0"
    } else {
        "true"
    };
    let is_served = serves_key(reader.version, "i", "m");
    let sql = format!(
        "select k.confrelid, pn.nspname, p.relname, k.conrelid, cn.nspname, c.relname, k.conname, \
           (select json_agg(a.attname::text order by f.place) \
             from unnest(k.conkey) with ordinality f (number, place) \
             join pg_attribute a on a.attrelid = k.conrelid and a.attnum = f.number), \
           greatest(c.relpages, 0)::bigint * current_setting('block_size')::bigint, \
           (select json_agg(a.attname::text order by f.place) \
             from unnest(k.confkey) with ordinality f (number, place) \
             join pg_attribute a on a.attrelid = k.confrelid and a.attnum = f.number) \
         from pg_constraint k \
           join pg_class c on c.oid = k.conrelid join pg_namespace cn on cn.oid = c.relnamespace \
           join pg_class p on p.oid = k.confrelid join pg_namespace pn on pn.oid = p.relnamespace \
         where k.contype = 'f' and {is_own} and not exists (select 1 from pg_index i \
           join pg_class x on x.oid = i.indexrelid join pg_am m on m.oid = x.relam \
           where i.indrelid = k.conrelid and {is_served}) \
         order by c.relpages desc, k.oid limit {KEYS_MAX}"
    );
    let rows = reader.rows("foreign keys", &sql).unwrap_or_default();
    let database = &reader.database;
    let key = |row: &super::row::CatalogRow| {
        let referenced = row.relation(0, database);
        let counted = differences.get(&referenced.oid);
        UncoveredForeignKey {
            constraint: row.text(6),
            table: row.relation(3, database),
            columns: row.texts(7),
            referenced_columns: row.texts(9),
            referenced_writes: counted.map_or(0, writes),
            referenced_deleted: counted.map_or(0, deleted),
            referenced_moved: counted.map_or(0, moved),
            referenced,
            size_bytes: row.count(8),
        }
    };
    rows.iter().map(key).collect()
}
