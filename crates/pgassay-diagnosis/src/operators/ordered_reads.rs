//! Statements that take the first few rows in the order of an index, and read many others on the way to them.

use pgassay_record::activity::{ActivityStatement, TableActivity};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::index_builds::with_build;
use super::live_view::{LiveView, StatementLoad, statement_name};
use super::names;
use super::sql_order::{OrderColumn, extreme_column, order_columns, sorts_for_first_rows};
use super::sql_text;
use super::table_indexes::{indexes_of, is_served, uses_partial_index};
use super::table_scans::{
    self, BLOCK_BYTES, EXECUTIONS_MIN, ROWS_PER_SCAN_MIN, SCANS_PER_EXECUTION_MIN, executions,
    reads_too_little, rows_per_scan,
};

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

/// A statement that reads a table from end to end for its first rows in an order that no index has, or for the largest
/// or smallest value of a column.
pub(super) fn of_sort(
    view: &LiveView<'_>,
    table: &TableActivity,
    statement: &ActivityStatement,
    load: &StatementLoad,
) -> Option<Detection> {
    let executions = executions(statement);
    let is_scan = executions >= EXECUTIONS_MIN
        && table.sequential_scans as f64 >= SCANS_PER_EXECUTION_MIN * executions as f64
        && !reads_too_little(table, statement);
    if statement.is_cut || !is_scan {
        return None;
    }
    let extreme = extreme_column(&load.tokens);
    let order = match &extreme {
        Some(column) => Some(vec![OrderColumn::new(column.clone())]),
        None if sorts_for_first_rows(&load.tokens) => order_columns(&load.tokens),
        None => return None,
    };
    let first = order.iter().flatten().next().map(|it| &it.column);
    let may_serve = |column: &str| match first {
        Some(first) => column.trim_matches('"') == first,
        None => column == "expression",
    };
    // Why the planner does not use it is another question.
    let is_served =
        indexes_of(view, table).any(|it| it.columns.first().is_some_and(|it| may_serve(it)));
    let counters = statement.counters.filter(|it| it.calls > 0);
    let rows = counters.map(|it| it.rows as f64 / it.calls as f64);
    let is_much = rows.is_some_and(|it| it > KEPT_MAX * rows_per_scan(table));
    if is_served || is_much || view.catalog.indexes_are_cut {
        return None;
    }
    let detection = table_scans::by_statement(view, table, statement)
        .load("average sessions that execute it", load.local)
        .title(Some(match extreme {
            Some(_) => "A statement reads a whole table for its largest or smallest value",
            None => "A statement sorts a whole table for its first rows",
        }))
        .saved(load.local)
        .with(rows, |it, rows| {
            it.counter("rows returned per execution", rows, FactUnit::Count)
        })
        .against(
            rows.is_none() && extreme.is_none(),
            "how many rows it returns is unknown without pg_stat_statements",
        );
    Some(with_order(view, detection, table, order))
}

fn with_order(
    view: &LiveView<'_>,
    detection: Detection,
    table: &TableActivity,
    order: Option<Vec<OrderColumn>>,
) -> Detection {
    let Some(order) = order else {
        let words = "Create an index on the expression of ORDER BY as the statement has it, if its functions are \
                     immutable: it ends after the rows of the LIMIT. Check with EXPLAIN that the statement uses it.";
        return with_build(view, detection, table, words, None);
    };
    let columns: Vec<String> = order.iter().map(OrderColumn::sql).collect();
    let words = "Create an index that has the order: its scan ends after the first rows. Check with EXPLAIN that the \
                 statement uses it, and drop it otherwise.";
    let definition = format!("({})", columns.join(", "));
    with_build(view, detection, table, words, Some(definition))
}
