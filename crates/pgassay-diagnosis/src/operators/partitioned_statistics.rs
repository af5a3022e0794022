//! Partitioned tables that were never analyzed: autovacuum analyzes their partitions only.
//!
//! For rows of one partition, the planner has its statistics. For joins, GROUP BY and DISTINCT over all partitions it
//! needs those of the partitioned table (`examine_simple_variable` in PostgreSQL's `utils/adt/selfuncs.c`).

use std::collections::BTreeMap;

use pgassay_record::activity::{RelationName, TableActivity};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::live_view::{LiveView, StatementLoad, statement_name};
use super::{names, sql_text};

/// With fewer rows, any plan is good.
const ROWS_MIN: f64 = 1000.0;

/// One detection for each partitioned table without statistics that statements join or group.
pub(super) fn never_analyzed(view: &LiveView<'_>) -> Vec<Detection> {
    let mut rows: BTreeMap<&RelationName, f64> = BTreeMap::new();
    for table in &view.catalog.tables {
        let parent = table.partition_of.as_ref();
        if let Some(parent) = parent.filter(|_| table.parent_lacks_statistics) {
            *rows.entry(parent).or_default() += rows_of(table);
        }
    }
    let large = rows.into_iter().filter(|(_, rows)| *rows >= ROWS_MIN);
    large
        .filter_map(|(parent, rows)| detection(view, parent, rows))
        .collect()
}

fn rows_of(table: &TableActivity) -> f64 {
    let estimated = table.estimated_rows.unwrap_or(0.0);
    estimated.max(table.live_rows as f64)
}

/// Whether the planner needs to know how the values of all partitions are distributed.
fn is_estimated(load: &StatementLoad) -> bool {
    // Not IS DISTINCT FROM, nor WITHIN GROUP.
    let groups = load.tokens.windows(2).any(|it| {
        (it[0].is("distinct") && !it[1].is("from")) || (it[0].is("group") && it[1].is("by"))
    });
    let is_insert = sql_text::command(&load.tokens) == "insert";
    !is_insert && (groups || load.relations.len() >= 2)
}

fn detection(view: &LiveView<'_>, parent: &RelationName, rows: f64) -> Option<Detection> {
    let readers = view.statements_on(parent);
    let readers: Vec<_> = readers.filter(|(_, load)| is_estimated(load)).collect();
    let load: f64 = readers.iter().map(|(_, load)| load.local).sum();
    if load < view.noticeable() {
        return None;
    }
    let heaviest = readers
        .iter()
        .max_by(|a, b| a.1.local.total_cmp(&b.1.local));
    let statement = heaviest.map(|(statement, _)| *statement);
    let name = names::relation(parent);
    let detection = Detection::of(ObjectKind::Table, &name)
        .urgent(4)
        .extent(load)
        .statement(statement)
        .state("the partitioned table was never analyzed; autovacuum analyzes only its partitions")
        .counter("rows of its partitions", rows, FactUnit::Count)
        .load("average sessions in statements that join or group it", load)
        .with(statement, |it, statement| {
            it.context(format!("mostly in: {}", statement_name(statement)))
        })
        .against(true, "whether the planner's estimates are off shows only in EXPLAIN ANALYZE")
        .fix(
            "Analyze the partitioned table, and repeat it when the data has changed much. Compare the plans before \
             and after: without its statistics, the planner guesses how many rows a join, GROUP BY or DISTINCT over \
             all partitions returns.",
        )
        .sql(format!("analyze {name}"))
        .risk(
            "It reads a sample of the partitions, analyzes each of them too, and does not block reads or writes; plans \
             may change.",
        );
    Some(detection)
}
