//! Statements that may be those that scan a table from end to end, and what their conditions say.

use pgassay_record::activity::{ActivityStatement, TableActivity};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::live_view::{LiveView, SAMPLES_MIN, StatementLoad, statement_name};
use super::names;
use super::sql_text::{self, TableFilter};
use super::unserved_conditions::{self, UnservedCondition};

/// A table with fewer rows fits into a few pages, and reading them all is right.
pub(super) const ROWS_PER_SCAN_MIN: f64 = 1000.0;
/// A partition with fewer rows is read as fast as an index of it.
const ROWS_PER_PARTITION_MIN: f64 = 100.0;
/// A report that runs once or twice needs no index.
pub(super) const EXECUTIONS_MIN: u64 = 3;
/// Fewer scans than this per execution belong to other statements.
pub(super) const SCANS_PER_EXECUTION_MIN: f64 = 0.5;
/// A statement that reads less than this share of what a scan reads does not scan the table.
const SCANNED_SHARE_MIN: f64 = 0.3;
pub(super) const BLOCK_BYTES: f64 = 8192.0;

/// A statement with a condition that scans a table.
pub(super) struct TableScan<'a> {
    pub table: TableActivity,
    pub statement: &'a ActivityStatement,
    pub load: &'a StatementLoad,
    /// What it compares; `None` if that cannot be read.
    pub filter: Option<TableFilter>,
    /// A condition that no index on its column serves, if the filter is not all.
    pub unserved: Option<UnservedCondition>,
    /// Rows that each execution keeps; `None` if that is unknown.
    pub kept: Option<f64>,
}

impl<'a> TableScan<'a> {
    /// `None` if it has no condition, is rarely executed, or does not read as much as the scans do.
    fn of(
        table: TableActivity,
        statement: &'a ActivityStatement,
        load: &'a StatementLoad,
    ) -> Option<Self> {
        if rows_per_scan(&table) < ROWS_PER_SCAN_MIN || !searches(load) {
            return None;
        }
        // How often a function executes it is unknown: at most as often as the table is scanned.
        let executions = if load.is_led {
            executions(statement)
        } else {
            executions(statement).max(table.sequential_scans)
        };
        let scans = table.sequential_scans as f64;
        if executions < EXECUTIONS_MIN || scans < SCANS_PER_EXECUTION_MIN * executions as f64 {
            return None;
        }
        let is_decoded =
            |it: &TableFilter| it.index_columns().iter().all(|it| names::is_decoded(it));
        let is_known = !statement.is_cut;
        let filter = is_known.then(|| sql_text::filter(&load.tokens)).flatten();
        let filter = filter.filter(is_decoded);
        let is_all = filter.as_ref().is_some_and(|it| it.is_whole);
        let unserved = (is_known && !is_all).then(|| unserved_conditions::unserved(&load.tokens));
        let scan = Self {
            statement,
            load,
            filter,
            unserved: unserved.flatten(),
            kept: kept(statement, load),
            table,
        };
        (!reads_too_little(&scan.table, statement)).then_some(scan)
    }

    /// The rows that each execution keeps, as a share of those read.
    pub fn share(&self) -> Option<f64> {
        self.kept.map(|rows| rows / rows_per_scan(&self.table))
    }

    /// What was counted of the table, the statement, and what an index would give back.
    pub fn evidence(&self, view: &LiveView<'_>) -> Detection {
        let nested =
            "only parallel workers show it: a function, a procedure or EXECUTE executes it";
        by_statement(view, &self.table, self.statement)
            .context(if self.load.is_led { "" } else { nested })
            .load("average sessions that execute it", self.load.local)
            .saved(self.load.local * (1.0 - self.share().unwrap_or(0.0)))
            .with(self.kept, |it, rows| {
                it.counter("rows kept per execution", rows, FactUnit::Count)
            })
    }
}

/// Whether it is a statement with a condition.
pub(super) fn searches(load: &StatementLoad) -> bool {
    let command = sql_text::command(&load.tokens);
    let is_search = matches!(command, "select" | "update" | "delete" | "with");
    is_search && sql_text::has_condition(&load.tokens)
}

/// The sampled statements that scan a table.
pub(super) fn of_statements<'a>(
    view: &'a LiveView<'a>,
    whole: &'a WholeTable,
) -> impl Iterator<Item = TableScan<'a>> {
    whole
        .sampled(view)
        .filter_map(|(table, statement, load)| TableScan::of(table, statement, load))
}

/// A table, or all partitions of one.
pub(super) struct WholeTable {
    /// Its counters, or their sums.
    pub sum: TableActivity,
    /// Partitions that were scanned; 1 for a table without any.
    scanned_parts: u64,
}

impl WholeTable {
    fn of(part: &TableActivity) -> Self {
        let parent = part.partition_of.as_ref();
        Self {
            scanned_parts: u64::from(part.sequential_scans > 0),
            sum: TableActivity {
                relation: parent.unwrap_or(&part.relation).clone(),
                ..part.clone()
            },
        }
    }

    /// The statements on it with enough samples, each with the table as it scans it.
    pub fn sampled<'a>(
        &'a self,
        view: &'a LiveView<'a>,
    ) -> impl Iterator<Item = (TableActivity, &'a ActivityStatement, &'a StatementLoad)> {
        let statements = view.statements_on(&self.sum.relation);
        let sampled = statements.filter(|(_, load)| load.samples >= SAMPLES_MIN);
        sampled.map(|(statement, load)| (self.scanned_by(statement, load), statement, load))
    }

    /// The table with one scan for all partitions that an execution scans, unless they have only a few rows each, and
    /// for all processes that share a parallel scan: each of them counts one.
    fn scanned_by(&self, statement: &ActivityStatement, load: &StatementLoad) -> TableActivity {
        let mut table = self.sum.clone();
        let executions = executions(statement);
        if executions > 0 && rows_per_scan(&table) >= ROWS_PER_PARTITION_MIN {
            let parts_max = load.processes().saturating_mul(self.scanned_parts.max(1));
            let parts = (table.sequential_scans / executions).clamp(1, parts_max);
            table.sequential_scans = table.sequential_scans.div_ceil(parts);
        }
        table
    }
}

/// The tables, with the partitions of each partitioned table in one.
pub(super) fn whole_tables(tables: &[TableActivity]) -> Vec<WholeTable> {
    let mut whole: Vec<WholeTable> = Vec::new();
    for part in tables {
        let parent = part.partition_of.as_ref();
        let found = whole.iter_mut().find(|it| Some(&it.sum.relation) == parent);
        let Some(found) = found else {
            whole.push(WholeTable::of(part));
            continue;
        };
        found.scanned_parts += u64::from(part.sequential_scans > 0);
        let sum = &mut found.sum;
        sum.size_bytes += part.size_bytes;
        sum.live_rows += part.live_rows;
        sum.sequential_scans += part.sequential_scans;
        sum.sequential_rows += part.sequential_rows;
        sum.inserted += part.inserted;
        sum.updated += part.updated;
        sum.deleted += part.deleted;
    }
    whole
}

pub(super) fn rows_per_scan(table: &TableActivity) -> f64 {
    if table.sequential_scans == 0 {
        return 0.0;
    }
    table.sequential_rows as f64 / table.sequential_scans as f64
}

/// Executions in the window: counted, or a lower bound.
pub(super) fn executions(statement: &ActivityStatement) -> u64 {
    let calls = statement.counters.map_or(0, |it| it.calls);
    calls.max(statement.executions_seen)
}

/// Rows that each execution keeps; `None` if that is unknown, as for aggregates.
pub(super) fn kept(statement: &ActivityStatement, load: &StatementLoad) -> Option<f64> {
    let counters = statement.counters.filter(|it| it.calls > 0)?;
    let is_summary = sql_text::summarizes(&load.tokens);
    (!is_summary).then(|| counters.rows as f64 / counters.calls as f64)
}

/// Whether the statement reads too few blocks for a scan of the table: then the scans are those of others.
pub(super) fn reads_too_little(table: &TableActivity, statement: &ActivityStatement) -> bool {
    let Some(counters) = statement.counters.filter(|it| it.calls > 0) else {
        return false;
    };
    let blocks = (counters.shared_hit + counters.shared_read) as f64 / counters.calls as f64;
    let rows_per_byte = table.live_rows.max(1) as f64 / table.size_bytes.max(1) as f64;
    let scanned_bytes = rows_per_scan(table) / rows_per_byte;
    // Without statistics, the size is not known.
    table.live_rows > 0 && blocks * BLOCK_BYTES < SCANNED_SHARE_MIN * scanned_bytes
}

/// A statement that scans a table, and what was counted of the table.
pub(super) fn by_statement(
    view: &LiveView<'_>,
    table: &TableActivity,
    statement: &ActivityStatement,
) -> Detection {
    let name = statement_name(statement);
    let named = object(table).context(format!("the statement: {name}"));
    counted(named, view, table).statement(Some(statement))
}

/// What was counted of a table, or of all partitions of one.
pub(super) fn of_table(view: &LiveView<'_>, table: &TableActivity) -> Detection {
    counted(object(table), view, table)
}

fn object(table: &TableActivity) -> Detection {
    Detection::of(ObjectKind::Table, names::relation(&table.relation))
}

fn counted(detection: Detection, view: &LiveView<'_>, table: &TableActivity) -> Detection {
    let writes = [table.inserted, table.updated, table.deleted];
    let writes = writes.into_iter().fold(0, u64::saturating_add);
    detection
        .counter(
            "sequential scans of the table",
            table.sequential_scans as f64 / view.window_s,
            FactUnit::PerSecond,
        )
        .counter("rows read per scan", rows_per_scan(table), FactUnit::Count)
        .context_figure(
            "size of the table at its last VACUUM or ANALYZE",
            table.size_bytes as f64,
            FactUnit::Bytes,
        )
        .context_figure(
            "rows written to the table, each of which an index makes more expensive",
            writes as f64 / view.window_s,
            FactUnit::PerSecond,
        )
}
