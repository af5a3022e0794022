//! Differences of `pg_stat_statements`, wherever it is installed.
//!
//! Columns depend on the version of the extension in the database, not on the server's: an old
//! definition survives an upgrade. PostgreSQL's `contrib/pg_stat_statements/*.sql`.

use std::collections::BTreeMap;

use pgassay_model::check::Check;
use pgassay_model::wording::counted;
use pgassay_record::activity::StatementCounters;

use super::counted_texts::{CountedText, CountedTexts};
use super::reader::CatalogReader;
use super::row::CatalogRow;

/// Entries that are read, those with the most calls; the default of `pg_stat_statements.max` is 5000.
const ENTRIES_MAX: usize = 20_000;
const SUBJECT: &str = "pg_stat_statements";
/// Characters of a text that are read. Of the text of a session no more bytes are kept.
const TEXT_CHARACTERS_MAX: usize = 16 << 10;

/// User, database, whether a client sent it, and query ID.
type EntryKey = (u32, u32, bool, i64);

/// One entry.
#[derive(Debug, Clone, PartialEq)]
struct StatementEntry {
    totals: StatementCounters,
    /// When it was created, as the server prints it (from 1.11).
    since: Option<String>,
}

/// All entries at a time.
#[derive(Debug, Default)]
pub(super) struct StatementReading {
    entries: BTreeMap<EntryKey, StatementEntry>,
    /// There were more than were read.
    is_cut: bool,
    /// How often the least used entries were evicted (from 1.9).
    evictions: Option<u64>,
    /// The extension's schema, in quotes if it requires them.
    schema: String,
    /// The extension counts statements within functions apart (from 1.9).
    has_toplevel: bool,
}

/// Columns that depend on the extension's version.
struct StatementColumns {
    toplevel: &'static str,
    execution: &'static str,
    planning: &'static str,
    wal: &'static str,
    since: &'static str,
    has_info: bool,
}

impl StatementColumns {
    fn of(version: (u32, u32)) -> Self {
        let since = |minor, column, before| {
            if version >= (1, minor) {
                column
            } else {
                before
            }
        };
        Self {
            // 1.9 (14): statements within functions are counted apart.
            toplevel: since(9, "s.toplevel", "true"),
            // 1.8 (13): planning and WAL.
            execution: since(8, "s.total_exec_time", "s.total_time"),
            planning: since(
                8,
                "case when current_setting('pg_stat_statements.track_planning', true) = 'on' \
                 then s.total_plan_time end",
                "null",
            ),
            wal: since(8, "s.wal_bytes", "null"),
            // 1.11 (17): when an entry was created.
            since: since(11, "s.stats_since::text", "null"),
            has_info: version >= (1, 9),
        }
    }
}

impl StatementReading {
    /// Reads all entries. `None` if there are none to be had, which the reader's refusals explain.
    pub fn read(reader: &mut CatalogReader) -> Option<Self> {
        let sql = "select e.extversion, quote_ident(n.nspname) from pg_extension e \
                   join pg_namespace n on n.oid = e.extnamespace \
                   where e.extname = 'pg_stat_statements'";
        let found = reader.rows(SUBJECT, sql)?;
        let Some(found) = found.first() else {
            note_missing(reader);
            return None;
        };
        let version = found.text(0);
        let (major, minor) = version.split_once('.').unwrap_or((&version, "0"));
        let version = (major.parse().ok()?, minor.parse().ok()?);
        let (columns, schema) = (StatementColumns::of(version), found.text(1));
        let rows = reader.rows(SUBJECT, &entries_sql(&columns, &schema))?;
        let evictions = if columns.has_info {
            let sql = format!("select dealloc from {schema}.pg_stat_statements_info");
            let info = reader.rows(SUBJECT, &sql);
            info.and_then(|rows| rows.first().map(|row| row.count(0)))
        } else {
            None
        };
        let is_cut = rows.len() > ENTRIES_MAX;
        Some(Self {
            entries: rows.iter().take(ENTRIES_MAX).map(entry).collect(),
            is_cut,
            evictions,
            schema,
            has_toplevel: columns.has_info,
        })
    }

    /// The texts of the entries of clients, with what was counted since an earlier reading.
    pub fn texts_since(&self, then: &Self, reader: &mut CatalogReader) -> Option<CountedTexts> {
        let sql = texts_sql(&self.schema, self.has_toplevel);
        let rows = reader.rows(SUBJECT, &sql)?;
        // The server does not show who else has entries, nor does any version before 14 say whether it evicted some: those
        // of the first reading that are gone do.
        let are_hidden = rows.iter().any(|row| row.get(4).is_none());
        let were_evicted = self.evictions != then.evictions
            || then.entries.keys().any(|it| !self.entries.contains_key(it));
        let is_cut = self.is_cut || rows.len() > ENTRIES_MAX;
        let texts = rows.iter().filter_map(|row| {
            let (key, text) = (key(row), row.get(4)?);
            let counted = self.entries.get(&key).filter(|_| key.2)?;
            Some(CountedText {
                query_id: key.3,
                text: text.to_owned(),
                is_cut: row.is_true(5),
                counters: counted
                    .since(then.entries.get(&key), then.is_cut)
                    .filter(|it| it.calls > 0),
            })
        });
        Some(CountedTexts {
            texts: texts.collect(),
            are_all: !(are_hidden || were_evicted || is_cut),
            mark: CountedTexts::mark(reader.version),
        })
    }

    /// What was counted since an earlier reading, by query ID; and why that is incomplete.
    pub fn since(&self, then: &Self) -> (BTreeMap<i64, StatementCounters>, Option<Check>) {
        let mut sums: BTreeMap<i64, StatementCounters> = BTreeMap::new();
        let mut dropped = 0;
        for (key, now) in &self.entries {
            let Some(counted) = now.since(then.entries.get(key), then.is_cut) else {
                dropped += 1;
                continue;
            };
            if counted.calls > 0 {
                add(sums.entry(key.3).or_default(), &counted);
            }
        }
        let evicted = match (self.evictions, then.evictions) {
            (Some(now), Some(then)) => now.saturating_sub(then),
            _ => 0,
        };
        (sums, incomplete(evicted, dropped, self.is_cut))
    }
}

impl StatementEntry {
    /// What was counted since an earlier reading of it; `None` if it is another entry by now and it is
    /// unknown since when.
    fn since(&self, then: Option<&Self>, was_cut: bool) -> Option<StatementCounters> {
        match then {
            Some(then) if self.since == then.since => difference(&self.totals, &then.totals),
            None if was_cut => None,
            // Created, or evicted and created again, between the readings.
            Some(_) | None => Some(self.totals),
        }
    }
}

fn entries_sql(columns: &StatementColumns, schema: &str) -> String {
    format!(
        "select s.userid, s.dbid, {}, s.queryid, s.calls, {} * 1e3, {} * 1e3, s.rows, \
         s.shared_blks_hit, s.shared_blks_read, s.shared_blks_dirtied, s.temp_blks_read, \
         s.temp_blks_written, {}, {} from {schema}.pg_stat_statements(false) s \
         where s.queryid is not null order by s.calls desc limit {}",
        columns.toplevel,
        columns.execution,
        columns.planning,
        columns.wal,
        columns.since,
        ENTRIES_MAX + 1
    )
}

/// Without an ID, and so without a text, if the entry is another user's and the right to see it is missing.
fn texts_sql(schema: &str, has_toplevel: bool) -> String {
    let toplevel = if has_toplevel { "s.toplevel" } else { "true" };
    format!(
        "select s.userid, s.dbid, {toplevel}, s.queryid, \
         case when s.queryid is not null then left(s.query, {TEXT_CHARACTERS_MAX}) end, \
         length(s.query) > {TEXT_CHARACTERS_MAX} \
         from {schema}.pg_stat_statements(true) s order by s.calls desc limit {}",
        ENTRIES_MAX + 1
    )
}

fn key(row: &CatalogRow) -> EntryKey {
    (
        row.number(0) as u32,
        row.number(1) as u32,
        row.is_true(2),
        row.number(3),
    )
}

fn entry(row: &CatalogRow) -> (EntryKey, StatementEntry) {
    let totals = StatementCounters {
        calls: row.count(4),
        execution_us: row.real(5).unwrap_or(0.0),
        planning_us: row.real(6),
        rows: row.count(7),
        shared_hit: row.count(8),
        shared_read: row.count(9),
        shared_dirtied: row.count(10),
        temp_read: row.count(11),
        temp_written: row.count(12),
        wal_bytes: row.get(13).map(|_| row.count(13)),
    };
    let since = row.get(14).map(str::to_owned);
    (key(row), StatementEntry { totals, since })
}

/// `None` if a counter fell: the entry was evicted and created again.
fn difference(now: &StatementCounters, then: &StatementCounters) -> Option<StatementCounters> {
    let time = |now: f64, then: f64| (now >= then).then_some(now - then);
    Some(StatementCounters {
        calls: now.calls.checked_sub(then.calls)?,
        execution_us: time(now.execution_us, then.execution_us)?,
        planning_us: match (now.planning_us, then.planning_us) {
            (Some(now), Some(then)) => Some(time(now, then)?),
            _ => None,
        },
        rows: now.rows.checked_sub(then.rows)?,
        shared_hit: now.shared_hit.checked_sub(then.shared_hit)?,
        shared_read: now.shared_read.checked_sub(then.shared_read)?,
        shared_dirtied: now.shared_dirtied.checked_sub(then.shared_dirtied)?,
        temp_read: now.temp_read.checked_sub(then.temp_read)?,
        temp_written: now.temp_written.checked_sub(then.temp_written)?,
        wal_bytes: match (now.wal_bytes, then.wal_bytes) {
            (Some(now), Some(then)) => Some(now.checked_sub(then)?),
            _ => None,
        },
    })
}

fn add(sum: &mut StatementCounters, more: &StatementCounters) {
    sum.calls += more.calls;
    sum.execution_us += more.execution_us;
    if let Some(more) = more.planning_us {
        *sum.planning_us.get_or_insert(0.0) += more;
    }
    sum.rows += more.rows;
    sum.shared_hit += more.shared_hit;
    sum.shared_read += more.shared_read;
    sum.shared_dirtied += more.shared_dirtied;
    sum.temp_read += more.temp_read;
    sum.temp_written += more.temp_written;
    if let Some(more) = more.wal_bytes {
        *sum.wal_bytes.get_or_insert(0) += more;
    }
}

fn incomplete(evicted: u64, dropped: u64, is_cut: bool) -> Option<Check> {
    let what = if evicted > 0 {
        format!(
            "the server evicted statements {}",
            counted(evicted as usize, "time")
        )
    } else if dropped > 0 {
        format!("statements that were evicted and counted again from zero, or reset: {dropped}")
    } else if is_cut {
        format!("only the {ENTRIES_MAX} statements with the most calls were read")
    } else {
        return None;
    };
    Some(Check {
        name: SUBJECT.to_owned(),
        value: "incomplete".to_owned(),
        limitation: Some(format!(
            "{SUBJECT}: {what}, so the counters of some statements are missing"
        )),
        fix: (evicted > 0 || dropped > 0)
            .then(|| "increase pg_stat_statements.max (requires a restart)".to_owned()),
    })
}

fn note_missing(reader: &mut CatalogReader) {
    // Only a library that is loaded shows its settings.
    let loaded = "select 1 from pg_settings where name = 'pg_stat_statements.max'";
    let is_loaded = reader
        .rows(SUBJECT, loaded)
        .is_some_and(|it| !it.is_empty());
    let load = if is_loaded {
        "run "
    } else {
        "add pg_stat_statements to shared_preload_libraries, restart the server, and run "
    };
    let limitation = format!(
        "{SUBJECT} is not installed in database \"{}\", so there are no exact counters of statements",
        reader.database
    );
    reader.note(
        SUBJECT,
        "not installed",
        limitation,
        Some(format!("{load}create extension pg_stat_statements there")),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(calls: u64, rows: u64, since: Option<&str>) -> StatementEntry {
        StatementEntry {
            totals: StatementCounters {
                calls,
                rows,
                ..StatementCounters::default()
            },
            since: since.map(str::to_owned),
        }
    }

    fn reading(entries: &[(EntryKey, StatementEntry)]) -> StatementReading {
        StatementReading {
            entries: entries.iter().cloned().collect(),
            ..StatementReading::default()
        }
    }

    fn calls(now: &StatementReading, then: &StatementReading) -> Vec<(i64, u64, u64)> {
        let sums = now.since(then).0;
        sums.iter()
            .map(|(id, it)| (*id, it.calls, it.rows))
            .collect()
    }

    #[test]
    fn entries_of_one_query_are_summed_over_users_and_databases() {
        let then = reading(&[((1, 1, true, 7), entry(10, 10, None))]);
        let now = reading(&[
            ((1, 1, true, 7), entry(13, 16, None)),
            ((2, 1, true, 7), entry(2, 2, None)),
            ((1, 1, false, 8), entry(1, 0, None)),
        ]);
        assert_eq!(calls(&now, &then), [(7, 5, 8), (8, 1, 0)]);
        assert_eq!(now.since(&then).1, None);
    }

    #[test]
    fn an_entry_that_fell_is_dropped_unless_its_birth_is_known() {
        let then = reading(&[((1, 1, true, 7), entry(10, 10, None))]);
        let now = reading(&[((1, 1, true, 7), entry(12, 3, None))]);
        assert_eq!(calls(&now, &then), []);
        let check = now.since(&then).1.expect("it says so");
        assert_eq!(check.value, "incomplete");
        let then = reading(&[((1, 1, true, 7), entry(10, 10, Some("a")))]);
        let now = reading(&[((1, 1, true, 7), entry(12, 3, Some("b")))]);
        assert_eq!(calls(&now, &then), [(7, 12, 3)]);
    }

    #[test]
    fn an_entry_that_the_first_reading_may_have_left_out_is_dropped() {
        let mut then = reading(&[]);
        then.is_cut = true;
        let now = reading(&[((1, 1, true, 7), entry(12, 3, None))]);
        assert_eq!(calls(&now, &then), []);
    }
}
