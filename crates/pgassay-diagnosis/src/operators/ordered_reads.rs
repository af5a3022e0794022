//! Statements that take the first few rows in the order of an index, and read many others on the way to them.

use pgassay_record::activity::{ActivityStatement, TableActivity};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::live_view::{LiveView, StatementLoad, statement_name};
use super::names;
use super::sql_text;
use super::table_indexes::{is_served, uses_partial_index};
use super::table_scans::{BLOCK_BYTES, ROWS_PER_SCAN_MIN, SCANS_PER_EXECUTION_MIN};

/// Rows returned, as a share of those in the blocks that were accessed.
const KEPT_MAX: f64 = 0.01;

/// A statement with ORDER BY and LIMIT that filters one table, by columns with which no index begins, and accesses many
/// blocks for each row. No view counts the rows that such a scan of an index rejects.
pub(super) fn of_statement(
    view: &LiveView<'_>,
    table: &TableActivity,
    statement: &ActivityStatement,
    load: &StatementLoad,
) -> Option<Detection> {
    let is_ordered = load.tokens.iter().any(|it| it.is("order"));
    let counters = statement.counters.filter(|it| it.calls > 0)?;
    let calls = counters.calls as f64;
    let is_by_index = table.index_scans as f64 >= SCANS_PER_EXECUTION_MIN * calls;
    if statement.is_cut || !is_ordered || !is_by_index || table.partition_of.is_some() {
        return None;
    }
    let filter =
        sql_text::filter(&load.tokens).filter(|_| sql_text::takes_first_rows(&load.tokens))?;
    let columns = filter.index_columns();
    let is_known = columns.iter().all(|it| names::is_decoded(it));
    let blocks = (counters.shared_hit + counters.shared_read) as f64 / calls;
    let rows_per_block = table.live_rows as f64 * BLOCK_BYTES / table.size_bytes.max(1) as f64;
    let passed = blocks * rows_per_block;
    let rows = counters.rows as f64 / calls;
    let reads_much = passed >= ROWS_PER_SCAN_MIN && rows <= KEPT_MAX * passed;
    let is_served = is_served(view, table, &columns) || uses_partial_index(view, table);
    if !is_known || !reads_much || is_served {
        return None;
    }
    let (name, columns) = (names::relation(&table.relation), names::columns(&columns));
    let detection = Detection::of(ObjectKind::Table, name.clone())
        .statement(Some(statement))
        .load("average sessions that execute it", load.local)
        .context(format!("the statement: {}", statement_name(statement)))
        .title(Some("A statement reads many rows in order to keep the first few"))
        .saved(load.local)
        .counter("blocks accessed per execution (hit and read)", blocks, FactUnit::Count)
        .counter("rows returned or changed per execution", rows, FactUnit::Count)
        .against(
            true,
            "no view counts the rows that a scan of an index rejects; large values stored in TOAST tables, or dead \
             rows, take many blocks too",
        )
        .fix(format!(
            "Run EXPLAIN (ANALYZE, BUFFERS) for the statement. If it shows many \"Rows Removed by Filter\" at a scan of an \
             index that only gives the order, create an index on {name} ({columns}, …) with CREATE INDEX CONCURRENTLY: \
             the columns of the filter, then those of ORDER BY."
        ))
        .risk("EXPLAIN ANALYZE executes the statement; run a writing one in a transaction and roll it back.");
    Some(detection)
}
