//! Databases: differences of their counters, and their distance to wraparound.

use std::collections::BTreeMap;

use pgassay_record::activity::{CatalogActivity, DatabaseActivity, DatabaseAge};

use super::counts::counted;
use super::reader::CatalogReader;
use super::settings::ServerSettings;

/// Databases that are listed by age.
const AGES_MAX: usize = 100;
/// PostgreSQL's `src/backend/access/transam/varsup.c`, `SetTransactionIdLimit`: half of all
/// transaction IDs.
const WRAPAROUND: u64 = (1 << 31) - 1;

/// The name of a database, and its counters: committed, rolled back, deadlocks, temporary files, their bytes,
/// conflicts, sessions.
type NamedCounters = (String, [u64; 7]);

/// Counters of databases by OID, because a database may be renamed, or dropped and created again.
#[derive(Debug, Default)]
pub(super) struct DatabaseReading(BTreeMap<u32, NamedCounters>);

impl DatabaseReading {
    pub fn read(reader: &mut CatalogReader) -> Option<Self> {
        // 14: sessions.
        let sessions = if reader.version >= 140_000 {
            "s.sessions"
        } else {
            "0"
        };
        let sql = format!(
            "select s.datid, s.datname, s.xact_commit, s.xact_rollback, s.deadlocks, s.temp_files, \
             s.temp_bytes, s.conflicts, {sessions} from pg_stat_database s \
             where s.datname is not null"
        );
        let rows = reader.rows("databases", &sql)?;
        let counters = rows.iter().map(|row| {
            let counters = std::array::from_fn(|at| row.count(at + 2));
            (row.number(0) as u32, (row.text(1), counters))
        });
        Some(Self(counters.collect()))
    }

    /// Databases with activity since an earlier reading.
    pub fn since(&self, then: &Self, version: u32) -> Vec<DatabaseActivity> {
        let mut found = Vec::new();
        for (oid, (name, now)) in &self.0 {
            let then = then.0.get(oid).map(|it| it.1);
            let counters = counted(*now, then.unwrap_or_default());
            if counters.iter().all(|it| *it == 0) {
                continue;
            }
            let [
                committed,
                rolled_back,
                deadlocks,
                temp_files,
                temp_bytes,
                conflicts,
                sessions,
            ] = counters;
            // The transaction in which a session connects is none of its client's.
            let of_clients = committed.saturating_sub(sessions);
            found.push(DatabaseActivity {
                name: name.clone(),
                committed: of_clients,
                rolled_back,
                deadlocks,
                temp_files,
                temp_bytes,
                conflicts,
                sessions: (version >= 140_000).then_some(sessions),
            });
        }
        found.sort_by_key(|it| std::cmp::Reverse(it.committed + it.rolled_back));
        found
    }
}

/// Leaves out transactions of autovacuum in the connection's database.
pub(super) fn leave_out(catalog: &mut CatalogActivity, autovacuum: u64) {
    let of_connection = |it: &&mut DatabaseActivity| it.name == catalog.database;
    if let Some(database) = catalog.databases.iter_mut().find(of_connection) {
        database.committed = database.committed.saturating_sub(autovacuum);
    }
}

/// Distances to wraparound, closest first; databases that accept no connections count as well.
pub(super) fn ages(
    reader: &mut CatalogReader,
    settings: &ServerSettings,
    consumed_per_s: f64,
) -> Vec<DatabaseAge> {
    let sql = format!(
        "select datname, age(datfrozenxid), mxid_age(datminmxid) from pg_database \
         order by greatest(age(datfrozenxid), mxid_age(datminmxid)) desc limit {AGES_MAX}"
    );
    let rows = reader.rows("databases", &sql).unwrap_or_default();
    // 14: the server stops 3 million transactions before wraparound; earlier versions 1 million.
    let reserve = if reader.version >= 140_000 {
        3_000_000
    } else {
        1_000_000
    };
    let freeze_max_age = settings.number("autovacuum_freeze_max_age");
    let age = |row: &super::row::CatalogRow| DatabaseAge {
        database: row.text(0),
        age: row.count(1),
        multixact_age: row.count(2),
        freeze_max_age: freeze_max_age.unwrap_or(0.0) as u64,
        left: (WRAPAROUND - reserve).saturating_sub(row.count(1)),
        consumed_per_s,
    };
    rows.iter().map(age).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a database that was renamed had all of its transactions in the window.
    #[test]
    fn a_renamed_database_has_the_counts_of_the_window() {
        let reading =
            |oid, name: &str, count| DatabaseReading([(oid, (name.to_owned(), [count; 7]))].into());
        let since = reading(5, "new", 110).since(&reading(5, "old", 100), 180_000);
        assert_eq!((&*since[0].name, since[0].temp_files), ("new", 10));
        // Another one of the same name.
        let since = reading(6, "old", 7).since(&reading(5, "old", 100), 180_000);
        assert_eq!(since[0].temp_files, 7);
    }
}
