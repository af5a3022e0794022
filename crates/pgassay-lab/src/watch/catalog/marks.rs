//! Marks on the time axis: checkpoints, vacuums and lock storms.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_record::activity::{CatalogActivity, LoadMark, LoadMarkKind};

use super::reader::CatalogReader;
use super::row::CatalogRow;

/// So many waiters at one reading are a lock storm, as in pganalyze's check `blocking_query`.
const STORM_WAITERS: usize = 3;

/// Marks so far.
#[derive(Debug, Default)]
pub(super) struct MarkWatch {
    finished: Vec<LoadMark>,
    /// How many of them were taken.
    taken: usize,
    storm: Option<LockStorm>,
    /// When the last checkpoint began, by the server's clock; `None` if it cannot be read.
    checkpoint_us: Option<f64>,
    vacuums: BTreeMap<VacuumKey, RunningVacuum>,
}

/// The PID, the kind, and the table's OID.
type VacuumKey = (u32, String, u32);

/// A vacuum or analyze that ran at the last reading.
#[derive(Debug)]
struct RunningVacuum {
    began_us: f64,
    last_us: f64,
    /// Age of its statement at the last reading, in microseconds; an autovacuum has one for each table.
    age_us: Option<f64>,
    text: String,
}

impl RunningVacuum {
    /// How the text of one by autovacuum begins.
    const AUTOMATIC: &str = "autovacuum of ";

    fn mark(&self, is_over: bool) -> LoadMark {
        LoadMark {
            at_us: self.began_us,
            length_us: if is_over {
                self.last_us - self.began_us
            } else {
                0.0
            },
            kind: LoadMarkKind::Vacuum,
            text: self.text.clone(),
            count: None,
        }
    }
}

/// When the last complete checkpoint began: the control file has it from the checkpoint's end on. It
/// costs nothing, unlike the counters, which before version 15 a process writes to a file for us.
const CHECKPOINT: &str = "select extract(epoch from clock_timestamp()) * 1e6, \
     extract(epoch from checkpoint_time) * 1e6 from pg_control_checkpoint()";

/// Readings in a row with many waiters.
#[derive(Debug)]
struct LockStorm {
    began_us: f64,
    last_us: f64,
    waiters_max: usize,
    /// The root with the most waiters.
    behind: String,
}

impl LockStorm {
    fn mark(&self, is_over: bool) -> LoadMark {
        let length_us = if is_over {
            self.last_us - self.began_us
        } else {
            0.0
        };
        LoadMark {
            at_us: self.began_us,
            length_us,
            kind: LoadMarkKind::LockStorm,
            // The PID first: lines are cut.
            text: if self.behind.is_empty() {
                format!("{} sessions waited for locks", self.waiters_max)
            } else {
                format!(
                    "{} blocked most of {} sessions that waited for locks",
                    self.behind, self.waiters_max
                )
            },
            count: None,
        }
    }
}

impl MarkWatch {
    /// Reads what to compare with. Within a reading of `reader`.
    pub fn open(reader: &mut CatalogReader) -> Self {
        let mut watch = Self::default();
        // On a standby, the control file has the times of the primary's checkpoints.
        if !reader.is_standby {
            let rows = reader.rows("checkpoints", CHECKPOINT).unwrap_or_default();
            watch.checkpoint_us = rows.first().and_then(|row| row.real(1));
        }
        watch
    }

    /// Reads checkpoints and vacuums. Within a reading of `reader`.
    pub fn read(&mut self, reader: &mut CatalogReader, at_us: f64) {
        if let Some(known) = self.checkpoint_us {
            let rows = reader.rows("checkpoints", CHECKPOINT).unwrap_or_default();
            if let Some(row) = rows.first() {
                let began = row.real(1).unwrap_or(known);
                self.add_checkpoint(at_us, row.real(0).unwrap_or(began), began);
            }
        }
        if let Some(rows) = reader.rows("running vacuums", &vacuums_sql(reader.version)) {
            self.add_vacuums(at_us, &rows);
        }
    }

    /// Takes the server's clock, and when its last checkpoint began.
    fn add_checkpoint(&mut self, at_us: f64, now_us: f64, began_us: f64) {
        if self.checkpoint_us == Some(began_us) {
            return;
        }
        self.checkpoint_us = Some(began_us);
        let length_us = (now_us - began_us).clamp(0.0, at_us.max(0.0));
        self.finished.push(LoadMark {
            at_us: at_us - length_us,
            length_us,
            kind: LoadMarkKind::Checkpoint,
            text: "checkpoint".to_owned(),
            count: None,
        });
    }

    fn add_vacuums(&mut self, at_us: f64, rows: &[CatalogRow]) {
        let mut seen = BTreeSet::new();
        for row in rows {
            let pid = row.number(0) as u32;
            let key = (pid, row.text(1), row.number(2) as u32);
            seen.insert(key.clone());
            // A command that goes on with its next table began earlier than with this table.
            let is_next = self.vacuums.keys().any(|it| it.0 == pid && *it != key);
            let age_us = row.duration(6).filter(|_| !is_next).unwrap_or(0.0);
            let running = self.vacuums.entry(key).or_insert_with(|| RunningVacuum {
                began_us: (at_us - age_us).max(0.0),
                last_us: at_us,
                age_us: None,
                text: vacuum_text(row),
            });
            running.last_us = at_us;
            running.age_us = row.duration(6);
        }
        let (running, over) = std::mem::take(&mut self.vacuums)
            .into_iter()
            .partition(|(key, _)| seen.contains(key));
        self.vacuums = running;
        let over: BTreeMap<VacuumKey, RunningVacuum> = over;
        self.finished
            .extend(over.values().map(|vacuum| vacuum.mark(true)));
    }

    /// Adds for how long autovacuum has been vacuuming tables.
    pub fn note_ages(&self, catalog: &mut CatalogActivity) {
        let running = self.vacuums.iter();
        let automatic = running.filter(|(_, it)| it.text.starts_with(RunningVacuum::AUTOMATIC));
        let ages: BTreeMap<u32, Option<f64>> = automatic
            .map(|((_, _, table), it)| (*table, it.age_us))
            .collect();
        for table in &mut catalog.tables {
            table.autovacuum_us = ages.get(&table.relation.oid).copied().flatten();
        }
    }

    /// Takes the number of waiters at a reading, and the root with the most of them.
    pub fn add_waiters(&mut self, at_us: f64, waiters: usize, behind: String) {
        if waiters < STORM_WAITERS {
            let over = self.storm.take();
            self.finished.extend(over.map(|storm| storm.mark(true)));
            return;
        }
        let storm = self.storm.get_or_insert_with(|| LockStorm {
            began_us: at_us,
            last_us: at_us,
            waiters_max: 0,
            behind: String::new(),
        });
        storm.last_us = at_us;
        if waiters >= storm.waiters_max {
            storm.waiters_max = waiters;
            storm.behind = behind;
        }
    }

    /// What lasts, as far as it has been seen, and what was found to have ended since the last call.
    pub fn take(&mut self) -> Vec<LoadMark> {
        let storm = self.storm.iter().map(|storm| storm.mark(true));
        let vacuums = self.vacuums.values().map(|vacuum| vacuum.mark(true));
        let new = self.finished.iter().skip(self.taken).cloned();
        let marks = new.chain(storm).chain(vacuums).collect();
        self.taken = self.finished.len();
        marks
    }

    /// All marks in order of time.
    pub fn marks(&self) -> Vec<LoadMark> {
        let storm = self.storm.iter().map(|storm| storm.mark(false));
        let vacuums = self.vacuums.values().map(|vacuum| vacuum.mark(false));
        let finished = self.finished.iter().cloned();
        let mut all: Vec<LoadMark> = finished.chain(storm).chain(vacuums).collect();
        all.sort_by(|a, b| a.at_us.total_cmp(&b.at_us));
        all
    }
}

/// PID, kind, table's OID, schema and name, database, age of the statement in microseconds, whether
/// autovacuum does it.
fn vacuums_sql(version: u32) -> String {
    let running = |kind: &str| {
        format!("select p.pid, '{kind}' as kind, p.relid, p.datname from pg_stat_progress_{kind} p")
    };
    // 13: the progress of ANALYZE; before, only its text tells.
    let analyzing = if version >= 130_000 {
        running("analyze")
    } else {
        "select b.pid, 'analyze', null, b.datname from pg_stat_activity b \
         where b.query like 'autovacuum: ANALYZE%' \
           or (b.state = 'active' and b.query ~* '^\\s*analyze\\M')"
            .to_owned()
    };
    let kinds = format!("{} union all {analyzing}", running("vacuum"));
    format!(
        "select v.pid, v.kind, v.relid, n.nspname, c.relname, v.datname, \
           extract(epoch from clock_timestamp() - a.query_start) * 1e6, \
           a.query like 'autovacuum:%', \
           substring(a.query from '^autovacuum: ANALYZE (.*)$') \
         from ({kinds}) v left join pg_stat_activity a on a.pid = v.pid \
           left join pg_class c on c.oid = v.relid and v.datname = current_database() \
           left join pg_namespace n on n.oid = c.relnamespace"
    )
}

fn vacuum_text(row: &CatalogRow) -> String {
    let kind = row.text(1);
    let kind = match (kind.as_str(), row.is_true(7)) {
        ("vacuum", true) => "autovacuum",
        ("analyze", true) => "autoanalyze",
        (kind, _) => kind,
    };
    match (row.get(3), row.get(4), row.get(8), row.get(5)) {
        (Some(schema), Some(table), ..) => format!("{kind} of {schema}.{table}"),
        (_, _, Some(table), _) => format!("{kind} of {table}"),
        (_, _, _, Some(database)) => format!("{kind} in database {database}"),
        _ => kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use pgassay_record::activity::{RelationName, TableActivity};

    use super::*;

    #[test]
    fn a_checkpoint_lasts_from_its_beginning_until_it_is_seen() {
        let mut watch = MarkWatch {
            checkpoint_us: Some(1e15),
            ..MarkWatch::default()
        };
        watch.add_checkpoint(1e6, 1e15 + 9e6, 1e15);
        watch.add_checkpoint(9e6, 1e15 + 17e6, 1e15 + 12e6);
        watch.add_checkpoint(10e6, 1e15 + 18e6, 1e15 + 12e6);
        let spans: Vec<(f64, f64)> = watch
            .marks()
            .iter()
            .map(|it| (it.at_us, it.length_us))
            .collect();
        assert_eq!(spans, [(4e6, 5e6)]);
    }

    #[test]
    fn a_vacuum_goes_from_table_to_table() {
        let row = |oid: &str, table: &str, age: &str| {
            let values = ["7", "vacuum", oid, "public", table, "shop", age, "t"];
            CatalogRow::new(values.iter().map(|it| Some((*it).to_owned())).collect())
        };
        let mut watch = MarkWatch::default();
        watch.add_vacuums(1e6, &[row("1", "one", "5e5")]);
        watch.add_vacuums(2e6, &[row("1", "one", "15e5")]);
        watch.add_vacuums(3e6, &[row("2", "two", "25e5")]);
        let found: Vec<(f64, f64, String)> = watch
            .marks()
            .into_iter()
            .map(|it| (it.at_us, it.length_us, it.text))
            .collect();
        let expected = [
            (5e5, 15e5, "autovacuum of public.one".to_owned()),
            (3e6, 0.0, "autovacuum of public.two".to_owned()),
        ];
        assert_eq!(found, expected);
        let relation = RelationName {
            oid: 2,
            ..RelationName::default()
        };
        let two = TableActivity {
            relation,
            ..TableActivity::default()
        };
        let mut catalog = CatalogActivity {
            tables: vec![two],
            ..CatalogActivity::default()
        };
        watch.note_ages(&mut catalog);
        assert_eq!(catalog.tables[0].autovacuum_us, Some(25e5));
    }

    #[test]
    fn what_has_ended_is_taken_once_and_what_lasts_each_time() {
        let mut watch = MarkWatch {
            checkpoint_us: Some(0.0),
            ..MarkWatch::default()
        };
        for (second, waiters) in [(1, 3), (2, 0), (5, 4), (6, 4)] {
            watch.add_waiters(f64::from(second) * 1e6, waiters, "PID 7".to_owned());
        }
        watch.add_checkpoint(4e6, 1e15, 1e15 - 1e6);
        let mut spans = || -> Vec<(f64, f64)> {
            let marks = watch.take().into_iter();
            marks.map(|it| (it.at_us, it.length_us)).collect()
        };
        assert_eq!(spans(), [(1e6, 0.0), (3e6, 1e6), (5e6, 1e6)]);
        assert_eq!(spans(), [(5e6, 1e6)]);
    }

    #[test]
    fn a_storm_lasts_as_long_as_many_wait() {
        let mut watch = MarkWatch::default();
        for (second, waiters) in [2, 3, 5, 4, 0, 3].into_iter().enumerate() {
            watch.add_waiters(second as f64 * 1e6, waiters, format!("PID {waiters}"));
        }
        let marks = watch.marks();
        let spans: Vec<(f64, f64)> = marks.iter().map(|it| (it.at_us, it.length_us)).collect();
        assert_eq!(spans, [(1e6, 2e6), (5e6, 0.0)]);
        assert_eq!(
            marks[0].text,
            "PID 5 blocked most of 5 sessions that waited for locks"
        );
    }
}
