//! The counters in PostgreSQL's statistics views.
//!
//! Every numeric column of a view is read, so that new columns of future versions are included;
//! columns that are not counters are listed here. 9.6 has
//! `pg_stat_database`, `pg_stat_bgwriter`; 13 added `pg_stat_slru`; 14 `pg_stat_wal`; 16
//! `pg_stat_io`; 17 `pg_stat_checkpointer`, which took columns of `pg_stat_bgwriter`; 18 moved the
//! I/O columns of `pg_stat_wal` to `pg_stat_io`.

use std::collections::BTreeMap;
use std::fmt;

use crate::connection::{Connection, ConnectionError};
use pgassay_wire::QueryResult;

/// A view and its row names.
struct View {
    name: &'static str,
    /// The first version that has it, as `server_version_num`.
    since: u32,
    sql: &'static str,
    /// The number of leading columns that identify the row.
    keys: usize,
}

const IO: &str = "pg_stat_io";
/// Reads and extensions in blocks, as 16 and 17 count them.
const IO_TO_17: &str = "select backend_type, object, sum(reads) as reads, sum(writes) as writes, \
     sum(extends) as extends, sum(hits) as hits, sum(evictions) as evictions, \
     sum(reuses) as reuses, sum(fsyncs) as fsyncs from pg_stat_io group by 1, 2";

/// The same of 18, which counts operations of up to `io_combine_limit` blocks, and bytes.
const IO_FROM_18: &str = "select backend_type, object, \
     trunc(sum(read_bytes) / current_setting('block_size')::numeric) as reads, sum(writes) as writes, \
     trunc(sum(extend_bytes) / current_setting('block_size')::numeric) as extends, \
     sum(hits) as hits, sum(evictions) as evictions, \
     sum(reuses) as reuses, sum(fsyncs) as fsyncs from pg_stat_io group by 1, 2";

/// The view with a row for each database.
const DATABASES: &str = "pg_stat_database";

/// For databases, the condition is appended; shared catalogs have a row without a name.
const VIEWS: [View; 7] = [
    View {
        name: DATABASES,
        since: 0,
        sql: "select * from pg_stat_database where ",
        keys: 0,
    },
    View {
        name: "pg_stat_bgwriter",
        since: 0,
        sql: "select * from pg_stat_bgwriter",
        keys: 0,
    },
    View {
        name: "pg_stat_slru",
        since: 130_000,
        sql: "select name, blks_zeroed, blks_hit, blks_read, blks_written, blks_exists, flushes, \
              truncates from pg_stat_slru",
        keys: 1,
    },
    View {
        name: "pg_stat_wal",
        since: 140_000,
        sql: "select * from pg_stat_wal",
        keys: 0,
    },
    View {
        name: IO,
        since: 160_000,
        sql: IO_TO_17,
        keys: 2,
    },
    View {
        name: "pg_stat_checkpointer",
        since: 170_000,
        sql: "select * from pg_stat_checkpointer",
        keys: 0,
    },
    // A standby writes no WAL, and refuses the function.
    View {
        name: "wal",
        since: 100_000,
        sql: "select pg_current_wal_insert_lsn() - '0/0' as insert_bytes \
              where not pg_is_in_recovery()",
        keys: 0,
    },
];

/// The function's name before 10.
const XLOG: View = View {
    name: "wal",
    since: 0,
    sql: "select pg_current_xlog_insert_location() - '0/0' as insert_bytes \
          where not pg_is_in_recovery()",
    keys: 0,
};

/// Numeric columns that are not counters.
const NO_COUNTERS: [&str; 2] = ["datid", "numbackends"];

/// The connection, and the views that this version has.
pub(super) struct Views {
    connection: Connection,
    asked: Vec<&'static View>,
    sql: String,
}

impl fmt::Debug for Views {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.asked.iter().map(|view| view.name).collect();
        f.debug_struct("Views")
            .field("asked", &names)
            .finish_non_exhaustive()
    }
}

impl Views {
    /// The views of `version` (a `server_version_num`); `databases` is the condition on the rows of
    /// `pg_stat_database`.
    pub fn new(connection: Connection, version: u32, databases: &str) -> Self {
        let mut views: Vec<&View> = VIEWS.iter().filter(|view| view.since <= version).collect();
        if version < 100_000 {
            views.push(&XLOG);
        }
        // One query is one transaction, and so one snapshot of the counters.
        let sql = views.iter().map(|view| match view.name {
            DATABASES => format!("{}{databases}", view.sql),
            IO if version >= 180_000 => IO_FROM_18.to_owned(),
            _ => view.sql.to_owned(),
        });
        let sql: Vec<String> = sql.collect();
        Self {
            connection,
            sql: sql.join("; "),
            asked: views,
        }
    }

    /// All counters by name; the rows of a view without row names are summed.
    pub fn read(&mut self) -> Result<BTreeMap<String, f64>, ConnectionError> {
        let answers = self.connection.query_all(&self.sql)?;
        let mut values = BTreeMap::new();
        for (view, answer) in self.asked.iter().zip(&answers) {
            add(view, answer, &mut values);
        }
        Ok(values)
    }
}

fn add(view: &View, answer: &QueryResult, values: &mut BTreeMap<String, f64>) {
    for row in &answer.rows {
        let key: Vec<&str> = row[..view.keys]
            .iter()
            .map(|value| value.as_deref().unwrap_or_default())
            .collect();
        let columns = answer.columns.iter().zip(row).skip(view.keys);
        for (column, value) in columns {
            let number = value.as_deref().and_then(|text| text.parse::<f64>().ok());
            let Some(number) = number.filter(|_| !NO_COUNTERS.contains(&column.as_str())) else {
                continue;
            };
            let name = if key.is_empty() {
                format!("{}.{column}", view.name)
            } else if number == 0.0 {
                // Most values in these views are zero.
                continue;
            } else {
                format!("{}({}).{column}", view.name, key.join(", "))
            };
            *values.entry(name).or_insert(0.0) += number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(columns: &[&str], rows: &[&[Option<&str>]]) -> QueryResult {
        QueryResult {
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
            rows: rows
                .iter()
                .map(|row| row.iter().map(|value| value.map(str::to_owned)).collect())
                .collect(),
            tag: String::new(),
        }
    }

    #[test]
    fn numeric_columns_are_counters_and_timestamps_are_not() {
        let mut values = BTreeMap::new();
        let database = answer(
            &[
                "datid",
                "datname",
                "numbackends",
                "xact_commit",
                "stats_reset",
            ],
            &[
                &[Some("5"), Some("postgres"), Some("3"), Some("10"), None],
                &[
                    Some("6"),
                    Some("own"),
                    Some("1"),
                    Some("7"),
                    Some("2026-01-01 00:00:00+00"),
                ],
            ],
        );
        add(&VIEWS[0], &database, &mut values);
        let slru = answer(
            &["name", "blks_hit", "blks_read"],
            &[&[Some("Subtrans"), Some("4"), Some("0")]],
        );
        add(&VIEWS[2], &slru, &mut values);
        let wanted = [
            ("pg_stat_database.xact_commit".to_owned(), 17.0),
            ("pg_stat_slru(Subtrans).blks_hit".to_owned(), 4.0),
        ];
        assert_eq!(values, wanted.into());
    }
}
