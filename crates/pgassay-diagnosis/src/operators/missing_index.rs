//! Statements that read a table from end to end to keep a few of its rows.

use std::collections::BTreeSet;

use pgassay_record::activity::{ActivityStatement, IndexActivity, TableActivity};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::indexes;
use super::live_view::{LiveView, SAMPLES_MIN, StatementLoad, statement_name};
use super::names;
use super::ordered_reads;
use super::signature::OperatorSignature;
use super::sql_text::{self, TableFilter};
use super::unnamed_scans;
use super::unserved_conditions::{self, UnservedCondition};

/// A table with fewer rows fits into a few pages, and reading them all is right.
pub(super) const ROWS_PER_SCAN_MIN: f64 = 1000.0;
/// With more rows kept, a sequential scan is often the cheaper plan.
const KEPT_MAX: f64 = 0.1;
/// The same for statements whose filter cannot be read: a join keeps few rows for many reasons.
const KEPT_BY_JOIN_MAX: f64 = 0.01;
/// A scan that reads less of a table ended early: it had found its rows.
const WHOLE_MIN: f64 = 0.5;
/// A report that runs once or twice needs no index.
const EXECUTIONS_MIN: u64 = 3;
/// Fewer scans than this per execution belong to other statements.
pub(super) const SCANS_PER_EXECUTION_MIN: f64 = 0.5;

/// A statement that reads less than this share of what a scan reads does not scan the table.
const SCANNED_SHARE_MIN: f64 = 0.3;
pub(super) const BLOCK_BYTES: f64 = 8192.0;
/// Rows that scans by unknown statements read per second, about a tenth of a session or more.
const UNKNOWN_ROWS_PER_S_MIN: f64 = 1e6;
/// The same if a statement whose text is switched off has the load and the executions that such scans would have.
const HIDDEN_ROWS_PER_S_MIN: f64 = 1e5;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[OperatorSignature {
    id: "missing-index",
    title: "A statement reads a whole table to keep few rows",
    manual: "Indexes: Examining Index Usage",
    detect: missing_index,
}];

fn missing_index(view: &LiveView<'_>) -> Vec<Detection> {
    let mut found = Vec::new();
    let tables = whole_tables(&view.catalog.tables);
    for table in &tables {
        if rows_per_scan(table) < ROWS_PER_SCAN_MIN {
            let statements = view.statements_on(&table.relation);
            let sampled = statements.filter(|(_, load)| load.samples >= SAMPLES_MIN);
            found.extend(
                sampled.filter_map(|(it, load)| ordered_reads::of_statement(view, table, it, load)),
            );
            continue;
        }
        let mut is_named = false;
        for (statement, load) in view.statements_on(&table.relation) {
            is_named = true;
            if load.samples >= SAMPLES_MIN {
                found.extend(of_statement(view, table, statement, load));
            }
        }
        if !is_named {
            found.extend(of_unknown_statement(view, table));
        }
    }
    found
}

/// The fingerprints of the statements that lack an index.
pub(super) fn statements_without_index(view: &LiveView<'_>) -> BTreeSet<String> {
    let found = missing_index(view).into_iter();
    let its = found.filter(|it| it.is_noticeable(view) && it.saved.is_some());
    its.filter_map(|it| it.fingerprint_of_statement().map(str::to_owned))
        .collect()
}

/// The tables, with the partitions of each partitioned table in one.
fn whole_tables(tables: &[TableActivity]) -> Vec<TableActivity> {
    let mut whole: Vec<TableActivity> = Vec::new();
    for part in tables {
        let Some(parent) = &part.partition_of else {
            whole.push(part.clone());
            continue;
        };
        let sum = whole.iter_mut().find(|it| it.relation == *parent);
        let Some(sum) = sum else {
            whole.push(TableActivity {
                relation: parent.clone(),
                ..part.clone()
            });
            continue;
        };
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

/// A table that is read from end to end by statements that do not name it, unless checks of a foreign key do.
fn of_unknown_statement(view: &LiveView<'_>, table: &TableActivity) -> Option<Detection> {
    let rows_per_s = table.sequential_rows as f64 / view.window_s;
    let rows_min = if may_be_hidden(view, table) {
        HIDDEN_ROWS_PER_S_MIN
    } else {
        UNKNOWN_ROWS_PER_S_MIN
    };
    if table.sequential_scans < EXECUTIONS_MIN || rows_per_s < rows_min {
        return None;
    }
    let is_checked = indexes::is_scanned_by_checks(view, &table.relation);
    let counted = || of_table(view, table).extent(rows_per_s);
    (!is_checked).then(|| unnamed_scans::detect(view, &table.relation, counted()))
}

/// Whether a statement without a text may be the one that reads the table: it has a noticeable load, and is executed
/// about as often as the table is read.
fn may_be_hidden(view: &LiveView<'_>, table: &TableActivity) -> bool {
    view.heavy_statements().any(|(statement, load)| {
        let executions = executions(statement);
        let is_enough = executions >= EXECUTIONS_MIN && load.local >= view.noticeable();
        let is_scanned =
            table.sequential_scans as f64 >= SCANS_PER_EXECUTION_MIN * executions as f64;
        let share = kept(statement, load).map(|rows| rows / rows_per_scan(table));
        let keeps_few = share.is_none_or(|it| it <= KEPT_MAX);
        let is_it = is_enough && is_scanned && keeps_few && !reads_too_little(table, statement);
        statement.text.is_none() && is_it
    })
}

fn rows_per_scan(table: &TableActivity) -> f64 {
    if table.sequential_scans == 0 {
        return 0.0;
    }
    table.sequential_rows as f64 / table.sequential_scans as f64
}

/// Executions in the window: counted, or a lower bound.
fn executions(statement: &ActivityStatement) -> u64 {
    let calls = statement.counters.map_or(0, |it| it.calls);
    calls.max(statement.executions_seen)
}

/// Rows that each execution keeps; `None` if that is unknown, as for aggregates.
fn kept(statement: &ActivityStatement, load: &StatementLoad) -> Option<f64> {
    let counters = statement.counters.filter(|it| it.calls > 0)?;
    let is_summary = sql_text::summarizes(&load.tokens);
    (!is_summary).then(|| counters.rows as f64 / counters.calls as f64)
}

/// Whether it reads most of the only table that it names for the first few rows, as a job queue does whose filter is
/// in a subquery. An index on the columns of the order or of the filter ends the scan early.
fn takes_few(table: &TableActivity, statement: &ActivityStatement, load: &StatementLoad) -> bool {
    let rows = statement.counters.filter(|it| it.calls > 0);
    let rows = rows.map(|it| it.rows as f64 / it.calls as f64);
    let is_whole = rows_per_scan(table) >= WHOLE_MIN * table.live_rows as f64;
    let is_few = rows.is_some_and(|rows| rows <= KEPT_BY_JOIN_MAX * rows_per_scan(table));
    let first = load.relations.first();
    let is_alone = load.relations.iter().all(|it| Some(it) == first);
    is_whole && is_few && is_alone && sql_text::takes_first_rows(&load.tokens)
}

fn of_statement(
    view: &LiveView<'_>,
    table: &TableActivity,
    statement: &ActivityStatement,
    load: &StatementLoad,
) -> Option<Detection> {
    let command = sql_text::command(&load.tokens);
    let is_search = matches!(command, "select" | "update" | "delete" | "with");
    if !is_search || !sql_text::has_condition(&load.tokens) {
        return None;
    }
    let executions = executions(statement);
    let scans = table.sequential_scans as f64;
    if executions < EXECUTIONS_MIN || scans < SCANS_PER_EXECUTION_MIN * executions as f64 {
        return None;
    }
    let filter = (!statement.is_cut)
        .then(|| sql_text::filter(&load.tokens))
        .flatten()
        .filter(|it| {
            it.index_columns()
                .iter()
                .all(|name| names::is_decoded(name))
        });
    let unserved = (!statement.is_cut && filter.is_none())
        .then(|| unserved_conditions::unserved(&load.tokens))
        .flatten();
    let kept = kept(statement, load);
    let share = kept.map(|rows| rows / rows_per_scan(table));
    let is_missing = match (&filter, &unserved, share) {
        (Some(_), _, Some(share)) | (None, Some(_), Some(share)) => share <= KEPT_MAX,
        (Some(filter), _, None) => !filter.equal.is_empty(),
        (None, Some(unserved), None) => unserved.is_equality,
        (None, None, Some(share)) => share <= KEPT_BY_JOIN_MAX,
        (None, None, None) => takes_few(table, statement, load),
    };
    let is_served = match (&filter, &unserved) {
        (Some(filter), _) => is_served(view, table, &filter.index_columns()),
        (None, Some(unserved)) => indexes_of(view, table).any(|it| unserved.may_be_served_by(it)),
        (None, None) => false,
    };
    if !is_missing || is_served || reads_too_little(table, statement) {
        return None;
    }
    let detection = evidence(view, table, statement, load)
        .saved(load.local * (1.0 - share.unwrap_or(0.0)))
        .with(kept, |it, rows| {
            it.counter("rows kept per execution", rows, FactUnit::Count)
        })
        .against(
            kept.is_none(),
            "how many rows it keeps is unknown: pg_stat_statements has no row count for it, or the \
             statement aggregates",
        );
    if let Some(unserved) = &unserved {
        return Some(with_condition(view, table, detection, unserved));
    }
    Some(if view.catalog.indexes_are_cut {
        with_look(detection, table, filter.as_ref())
    } else {
        with_fix(detection, table, filter.as_ref())
    })
}

/// Whether the statement reads too few blocks for a scan of the table: then the scans are those of others.
fn reads_too_little(table: &TableActivity, statement: &ActivityStatement) -> bool {
    let Some(counters) = statement.counters.filter(|it| it.calls > 0) else {
        return false;
    };
    let blocks = (counters.shared_hit + counters.shared_read) as f64 / counters.calls as f64;
    let rows_per_byte = table.live_rows.max(1) as f64 / table.size_bytes.max(1) as f64;
    let scanned_bytes = rows_per_scan(table) / rows_per_byte;
    // Without statistics, the size is not known.
    table.live_rows > 0 && blocks * BLOCK_BYTES < SCANNED_SHARE_MIN * scanned_bytes
}

/// Suggests what serves a condition that an index on its column does not.
fn with_condition(
    view: &LiveView<'_>,
    table: &TableActivity,
    detection: Detection,
    unserved: &UnservedCondition,
) -> Detection {
    let is_indexed = is_served(view, table, std::slice::from_ref(&unserved.column));
    let detection = detection.against(
        view.catalog.indexes_are_cut,
        "not all indexes are known: one for its filter may exist",
    );
    unserved.with_fix(detection, table, is_indexed)
}

/// Whether an index exists that begins with one of these columns, so that the planner chose not to use it,
/// or is being built.
pub(super) fn is_served(view: &LiveView<'_>, table: &TableActivity, wanted: &[String]) -> bool {
    let serves = |index: &IndexActivity| {
        let first = index.columns.first().map(|it| it.trim_matches('"'));
        let is_usable = index.is_valid || index.is_being_built;
        is_usable && first.is_some_and(|it| wanted.iter().any(|column| column == it))
    };
    indexes_of(view, table).any(serves)
}

/// Whether statements scanned an index of this table that has a predicate. It may be the filter: then all of its rows
/// pass, and what takes many blocks are dead rows, as in a job queue.
pub(super) fn uses_partial_index(view: &LiveView<'_>, table: &TableActivity) -> bool {
    let is_partial = |it: &IndexActivity| it.columns.iter().any(|it| it == "where expression");
    indexes_of(view, table).any(|it| it.scans > 0 && is_partial(it))
}

/// The indexes of a table, or of the partitions of one.
fn indexes_of<'a>(
    view: &LiveView<'a>,
    table: &TableActivity,
) -> impl Iterator<Item = &'a IndexActivity> {
    let tables = &view.catalog.tables;
    view.catalog.indexes.iter().filter(|index| {
        index.table.oid == table.relation.oid
            || tables.iter().any(|it| {
                it.relation.oid == index.table.oid
                    && it.partition_of.as_ref() == Some(&table.relation)
            })
    })
}

fn evidence(
    view: &LiveView<'_>,
    table: &TableActivity,
    statement: &ActivityStatement,
    load: &StatementLoad,
) -> Detection {
    of_table(view, table)
        .statement(Some(statement))
        .load("average sessions that execute it", load.local)
        .context(format!("the statement: {}", statement_name(statement)))
}

/// What was counted of a table, or of all partitions of one.
fn of_table(view: &LiveView<'_>, table: &TableActivity) -> Detection {
    let writes = table.inserted + table.updated + table.deleted;
    Detection::of(ObjectKind::Table, names::relation(&table.relation))
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

/// Suggests to look for the index first: it may be one of those that are not listed.
fn with_look(
    detection: Detection,
    table: &TableActivity,
    filter: Option<&TableFilter>,
) -> Detection {
    let Some(filter) = filter else {
        return with_fix(detection, table, filter);
    };
    let name = names::relation(&table.relation);
    let columns = names::columns(&filter.index_columns());
    detection
        .against(true, "not all indexes are known: one for its filter may exist")
        .fix(format!(
            "Look at the indexes of {name} in pg_indexes. If none begins with a column of the filter, create \
             one on {columns} with CREATE INDEX CONCURRENTLY. Otherwise see with EXPLAIN why it is not used."
        ))
        .risk("None; it only reads.")
}

fn with_fix(
    detection: Detection,
    table: &TableActivity,
    filter: Option<&TableFilter>,
) -> Detection {
    let Some(filter) = filter else {
        return detection
            .fix(
                "Run EXPLAIN (ANALYZE, BUFFERS) for the statement: \"Rows Removed by Filter\" or the \
                 join condition of the sequential scan names the columns of the missing index.",
            )
            .risk("EXPLAIN ANALYZE executes the statement; run a writing one in a transaction and roll it back.");
    };
    let columns = names::columns(&filter.index_columns());
    let name = names::relation(&table.relation);
    if table.partition_of.is_some() {
        return detection
            .fix(
                "Create an index on the columns of the filter; each partition gets one. To write to the table \
                 meanwhile, create the index of each partition with CREATE INDEX CONCURRENTLY first: the index of \
                 the whole table then takes them over. Check with EXPLAIN that the statement uses it.",
            )
            .sql(format!("create index on {name} ({columns})"))
            .risk("While it builds, writes to the partitions wait; it needs free disk space.");
    }
    detection
        .fix(
            "Create an index on the columns of the filter. Check with EXPLAIN that the statement uses \
             it, and drop it otherwise.",
        )
        .sql(format!("create index concurrently on {name} ({columns})"))
        .risk(
            "The build reads the table twice, waits for open transactions, and needs free disk space; if \
             it fails, drop the invalid index that it leaves.",
        )
}
