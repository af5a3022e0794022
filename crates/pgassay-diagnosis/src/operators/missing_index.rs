//! Statements that read a table from end to end to keep a few of its rows.

use std::collections::BTreeSet;

use pgassay_record::activity::TableActivity;
use pgassay_record::finding::FactUnit;

use super::detection::Detection;
use super::index_builds::with_build;
use super::indexes;
use super::live_view::LiveView;
use super::names;
use super::ordered_reads;
use super::signature::OperatorSignature;
use super::sql_joins;
use super::sql_text::{self, TableFilter};
use super::table_indexes::{fitting, indexes_of, is_served};
use super::table_scans::{
    BLOCK_BYTES, EXECUTIONS_MIN, ROWS_PER_SCAN_MIN, SCANS_PER_EXECUTION_MIN, TableScan, executions,
    kept, of_statements, of_table, reads_too_little, rows_per_scan, whole_tables,
};
use super::unnamed_scans;
use super::unserved_conditions::UnservedCondition;

/// With more rows kept, a sequential scan is often the cheaper plan.
const KEPT_MAX: f64 = 0.1;
/// The same where the planner may have a reason: filters that cannot be read, as of joins, and filters that an index
/// could serve.
pub(super) const KEPT_CERTAIN_MAX: f64 = 0.01;
/// A scan that reads less of a table ended early: it had found its rows.
const WHOLE_MIN: f64 = 0.5;
/// Scans of a table per execution, for each time that the statement names it.
const REPEATS_MIN: f64 = 1.8;
const REPEATED: &str =
    "scans of the table per execution, as of a subquery that is executed for each row";
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
    for whole in &whole_tables(&view.catalog.tables) {
        for (table, statement, load) in whole.sampled(view) {
            found.extend(if rows_per_scan(&table) < ROWS_PER_SCAN_MIN {
                ordered_reads::of_statement(view, &table, statement, load)
            } else {
                ordered_reads::of_sort(view, &table, statement, load)
            });
        }
        found.extend(of_statements(view, whole).filter_map(|it| of_scan(view, &it)));
        let table = &whole.sum;
        let mut named = view.statements_on(&table.relation);
        let is_read = named.any(|(_, load)| !unnamed_scans::only_inserts(load));
        if !is_read && rows_per_scan(table) >= ROWS_PER_SCAN_MIN {
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

/// A table that is read from end to end by statements that do not name it, or only insert into it, unless checks of a
/// foreign key do.
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

fn of_scan(view: &LiveView<'_>, scan: &TableScan<'_>) -> Option<Detection> {
    let (table, share) = (&scan.table, scan.share());
    match (&scan.filter, &scan.unserved) {
        (Some(filter), unserved) if is_served(view, table, &filter.index_columns()) => {
            let keeps_few = share.is_some_and(|it| it <= KEPT_CERTAIN_MAX);
            match unserved {
                _ if !keeps_few => None,
                Some(unserved) => of_condition(view, scan, unserved),
                None => of_partly_served(view, scan, filter),
            }
        }
        (Some(filter), _) => {
            let is_missing = share.map_or(!filter.equal.is_empty(), |it| it <= KEPT_MAX);
            is_missing.then(|| with_index(view, evidence(view, scan), table, filter))
        }
        (None, Some(unserved)) => {
            let is_missing = share.map_or(unserved.is_equality, |it| it <= KEPT_MAX);
            is_missing
                .then(|| of_condition(view, scan, unserved))
                .flatten()
        }
        (None, None) => {
            let own = own_filter(view, scan);
            let is_selective = own.as_ref().is_some_and(|it| !it.equal.is_empty());
            let repeats = repeats(scan);
            let may_keep_few = || {
                takes_few(scan, is_selective) || repeats.is_some() || reads_much_within(view, scan)
            };
            let is_missing = share.map_or_else(may_keep_few, |it| it <= KEPT_CERTAIN_MAX);
            is_missing.then(|| {
                let detection = evidence(view, scan)
                    .with(repeats, |it, scans| {
                        it.counter(REPEATED, scans, FactUnit::Count)
                    })
                    .with(own, |it, filter| it.state(words_of(&filter)));
                with_explain(detection)
            })
        }
    }
}

fn evidence(view: &LiveView<'_>, scan: &TableScan<'_>) -> Detection {
    let title = "A statement reads a whole table, perhaps to keep few rows";
    let is_unknown = scan.kept.is_none();
    let detection = scan.evidence(view);
    let detection = if is_unknown {
        detection.title(Some(title))
    } else {
        detection
    };
    detection.against(
        is_unknown,
        "how many rows it keeps is unknown: pg_stat_statements has no row count for it, or the \
         statement aggregates",
    )
}

/// A filter of several columns with some of which an index begins.
fn of_partly_served(
    view: &LiveView<'_>,
    scan: &TableScan<'_>,
    filter: &TableFilter,
) -> Option<Detection> {
    let is_building = indexes_of(view, &scan.table).any(|it| it.is_being_built);
    let is_fitting = fitting(view, &scan.table, filter).is_some();
    if is_building || is_fitting || filter.index_columns().len() < 2 || !filter.is_whole {
        return None;
    }
    let detection = evidence(view, scan).against(
        true,
        "an index begins with one of the columns of the filter, and the planner does not use it",
    );
    Some(with_index(view, detection, &scan.table, filter))
}

/// What a join compares with values in this table, if no index begins with one of these columns.
fn own_filter(view: &LiveView<'_>, scan: &TableScan<'_>) -> Option<TableFilter> {
    let (table, load) = (&scan.table, scan.load);
    let mut mentions = load.relations.iter();
    let mention = mentions.find(|it| view.is_mention_of(it, &table.relation))?;
    let filter = sql_joins::own_filter(&load.tokens, mention).filter(|_| !scan.statement.is_cut)?;
    let columns = filter.index_columns();
    let is_known = columns.iter().all(|it| names::is_decoded(it)) && !view.catalog.indexes_are_cut;
    (is_known && !is_served(view, table, &columns)).then_some(filter)
}

/// How often an execution reads the table from end to end, if more often than its text names the table: a subquery or
/// the inner side of a join is executed for each row. Its own blocks show that no other statement does.
fn repeats(scan: &TableScan<'_>) -> Option<f64> {
    let counters = scan.statement.counters.filter(|it| it.calls > 0)?;
    let calls = counters.calls as f64;
    let name = &scan.table.relation.name;
    let named = scan
        .load
        .tokens
        .iter()
        .filter(|it| it.text == *name)
        .count()
        .max(1) as f64;
    let scans = scan.table.sequential_scans as f64 / calls;
    let blocks = (counters.shared_hit + counters.shared_read) as f64 / calls;
    let tables = blocks * BLOCK_BYTES / scan.table.size_bytes.max(1) as f64;
    let is_whole = rows_per_scan(&scan.table) >= WHOLE_MIN * scan.table.live_rows as f64;
    (is_whole && scans.min(tables) >= REPEATS_MIN * named).then_some(scans)
}

fn words_of(filter: &TableFilter) -> String {
    match &filter.index_columns()[..] {
        [column] => {
            format!("the statement compares its column {column}, with which no index begins")
        }
        all => format!(
            "the statement compares its columns {}; no index begins with one",
            all.join(", ")
        ),
    }
}

/// Whether it reads most of a table for the first few rows: the only one that it names, as a job queue does whose filter
/// is in a subquery, or one of which it compares a column for equality. An index on the columns of the order or of the filter
/// ends the scan early.
fn takes_few(scan: &TableScan<'_>, is_selective: bool) -> bool {
    let (table, load) = (&scan.table, scan.load);
    let rows = scan.statement.counters.filter(|it| it.calls > 0);
    let rows = rows.map(|it| it.rows as f64 / it.calls as f64);
    let is_whole = rows_per_scan(table) >= WHOLE_MIN * table.live_rows as f64;
    let is_few = rows.is_some_and(|rows| rows <= KEPT_CERTAIN_MAX * rows_per_scan(table));
    let first = load.relations.first();
    let is_alone = load.relations.iter().all(|it| Some(it) == first);
    is_whole && is_few && (is_alone || is_selective) && sql_text::takes_first_rows(&load.tokens)
}

/// Whether a function executes it and reads as much by it as would be a finding without its text.
fn reads_much_within(view: &LiveView<'_>, scan: &TableScan<'_>) -> bool {
    let rows_per_s = scan.table.sequential_rows as f64 / view.window_s;
    !scan.load.is_led && rows_per_s >= UNKNOWN_ROWS_PER_S_MIN
}

/// Suggests what serves a condition that an index on its column does not.
fn of_condition(
    view: &LiveView<'_>,
    scan: &TableScan<'_>,
    unserved: &UnservedCondition,
) -> Option<Detection> {
    let table = &scan.table;
    if indexes_of(view, table).any(|it| unserved.may_be_served_by(it)) {
        return None;
    }
    let is_indexed = is_served(view, table, std::slice::from_ref(&unserved.column));
    let detection = evidence(view, scan).against(
        view.catalog.indexes_are_cut,
        "not all indexes are known: one for its filter may exist",
    );
    Some(unserved.with_fix(view, detection, table, is_indexed))
}

/// Without a condition that can be read.
fn with_explain(detection: Detection) -> Detection {
    detection
        .fix(
            "Run EXPLAIN (ANALYZE, BUFFERS) for the statement: \"Rows Removed by Filter\" or the \
             join condition of the sequential scan names the columns of the missing index.",
        )
        .risk("EXPLAIN ANALYZE executes the statement; run a writing one in a transaction and roll it back.")
}

/// Suggests an index on the columns of the filter; to look for it first if it may be one of those that are not listed.
fn with_index(
    view: &LiveView<'_>,
    detection: Detection,
    table: &TableActivity,
    filter: &TableFilter,
) -> Detection {
    if view.catalog.indexes_are_cut {
        let name = names::relation(&table.relation);
        let columns = names::columns(&filter.index_columns());
        let of_each = table.partition_of.as_ref();
        let of_each = of_each.map_or("", |_| " on each partition,");
        return detection
            .against(true, "not all indexes are known: one for its filter may exist")
            .fix(format!(
                "Look at the indexes of {name} in pg_indexes. If none begins with a column of the filter, create \
                 one on {columns},{of_each} with CREATE INDEX CONCURRENTLY. Otherwise see with EXPLAIN why it is not used."
            ))
            .risk("None; it only reads.");
    }
    let columns = names::columns(&filter.index_columns());
    let words = "Create an index on the columns of the filter. Check with EXPLAIN that the statement uses it, and \
                 drop it otherwise.";
    with_build(view, detection, table, words, Some(format!("({columns})")))
}
