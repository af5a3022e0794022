//! Statements that read rows only to skip them.

use pgassay_record::activity::{ActivityStatement, TableActivity};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::live_view::{LiveView, SAMPLES_MIN, StatementLoad, statement_name};
use super::names;
use super::signature::OperatorSignature;
use super::sql_text;
use super::table_scans::{SCANS_PER_EXECUTION_MIN, executions};

/// Fewer blocks take well under a millisecond.
const BLOCKS_MIN: f64 = 100.0;
/// Blocks for each row that is returned: of the index, of the table, and of large values.
const BLOCKS_PER_ROW_MIN: f64 = 10.0;
/// Blocks of an execution if the number of rows that it returns is unknown: more than a large page takes.
const BLOCKS_OF_UNKNOWN_MIN: f64 = 1000.0;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[OperatorSignature {
    id: "large-offset",
    title: "A statement reads rows to skip them (OFFSET)",
    manual: "Queries: LIMIT and OFFSET",
    detect: large_offset,
}];

fn large_offset(view: &LiveView<'_>) -> Vec<Detection> {
    let of_table = |table: &TableActivity| {
        let statements = view.statements_on(&table.relation);
        let sampled: Vec<_> = statements
            .filter(|(_, load)| load.samples >= SAMPLES_MIN)
            .collect();
        let is_alone = sampled.len() == 1;
        let found = sampled.into_iter();
        found
            .filter_map(|(statement, load)| of_statement(table, statement, load, is_alone))
            .collect::<Vec<_>>()
    };
    view.catalog.tables.iter().flat_map(of_table).collect()
}

fn of_statement(
    table: &TableActivity,
    statement: &ActivityStatement,
    load: &StatementLoad,
    is_alone: bool,
) -> Option<Detection> {
    let scans = table.index_scans as f64;
    let is_by_index = scans >= SCANS_PER_EXECUTION_MIN * executions(statement) as f64
        && table.index_scans >= table.sequential_scans;
    let is_plain = load.relations.len() == 1 && sql_text::skips_rows(&load.tokens);
    if statement.is_cut || !is_by_index || !is_plain {
        return None;
    }
    let counters = statement.counters.filter(|it| it.calls > 0);
    let rows = counters.map(|it| it.rows as f64 / it.calls as f64);
    let blocks = match counters {
        Some(it) => (it.shared_hit + it.shared_read) as f64 / it.calls as f64,
        None if is_alone => {
            let scans = scans + table.sequential_scans as f64;
            (table.blocks_hit + table.blocks_read) as f64 / scans.max(1.0)
        }
        None => return None,
    };
    let blocks_min = rows.map_or(BLOCKS_OF_UNKNOWN_MIN, |rows| {
        BLOCKS_MIN.max(BLOCKS_PER_ROW_MIN * rows)
    });
    if blocks < blocks_min {
        return None;
    }
    let has_filter = sql_text::has_condition(&load.tokens);
    let detection = Detection::of(ObjectKind::Table, names::relation(&table.relation))
        .statement(Some(statement))
        .load("average sessions that execute it", load.local)
        .context(format!("the statement: {}", statement_name(statement)))
        .saved(load.local)
        .counter("blocks accessed per execution (hit and read)", blocks, FactUnit::Count)
        .with(rows, |it, rows| it.counter("rows returned per execution", rows, FactUnit::Count))
        .against(rows.is_none(), "how many rows it returns is unknown without pg_stat_statements")
        .against(
            has_filter,
            "rows that its condition rejects take blocks, too; no view counts them",
        )
        .fix(
            "Begin each page after the last row of the page before instead of counting rows: WHERE (a, id) > (…, …) \
             ORDER BY a, id LIMIT …, without OFFSET, where a, id are the columns of ORDER BY with a unique one at the \
             end, and an index begins with them. OFFSET reads all rows that it skips, so each page takes longer than \
             the one before.",
        )
        .risk("It requires a change of the application, which can no longer jump to the page of a number.");
    Some(detection)
}
