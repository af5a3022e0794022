//! Statements that read a table from end to end although an index fits their filter.

use pgassay_record::activity::IndexActivity;

use super::detection::Detection;
use super::live_view::LiveView;
use super::missing_index::KEPT_CERTAIN_MAX;
use super::names;
use super::signature::OperatorSignature;
use super::sql_text::{self, TableFilter};
use super::table_indexes::fitting;
use super::table_scans::{self, TableScan, whole_tables};
use pgassay_script::statement_tokens::{StatementToken, TokenKind};

/// Types to which comparing with them converts an integer column, which its index does not serve.
const NOT_INTEGER: [&str; 6] = ["numeric", "decimal", "real", "float4", "float8", "double"];

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[OperatorSignature {
    id: "index-not-used",
    title: "A statement reads a whole table although an index fits its filter",
    manual: "Indexes: Examining Index Usage",
    detect: index_not_used,
}];

fn index_not_used(view: &LiveView<'_>) -> Vec<Detection> {
    let tables = whole_tables(&view.catalog.tables);
    tables
        .iter()
        .flat_map(|it| table_scans::of_statements(view, it).filter_map(|it| of_scan(view, &it)))
        .collect()
}

fn of_scan(view: &LiveView<'_>, scan: &TableScan<'_>) -> Option<Detection> {
    let filter = scan.filter.as_ref().filter(|it| it.is_whole)?;
    let index = fitting(view, &scan.table, filter)?;
    let is_unique = finds_one_row(index, filter, &scan.load.tokens);
    let keeps_few = scan.share().map_or(is_unique, |it| it <= KEPT_CERTAIN_MAX);
    if !keeps_few {
        return None;
    }
    let name = names::relation(&index.relation);
    let converted = converted_to(&scan.load.tokens);
    let detection = scan
        .evidence(view)
        .state(format!("the index {name} begins with the columns of the filter"))
        .with(is_unique.then_some(()), |it, ()| {
            it.state("the index is unique, so each execution finds at most one row".to_owned())
        })
        .with(converted, |it, kind| {
            it.state(format!(
                "the statement casts a value to {kind}, which an index on integers does not serve"
            ))
        })
        .against(converted.is_none(), "why the planner does not use the index is unknown")
        .against(
            converted.is_none() && !is_unique,
            "few rows per execution is an average",
        )
        .fix(format!(
            "{}Run EXPLAIN for the statement, with values as the application passes them. If the condition shows the \
             column converted, such as (id)::numeric = …, pass the value in the type of the column: drivers pass \
             decimals as numeric. If it expects many more rows than it gets, run ANALYZE, raise the statistics \
             target of the column, or, for a prepared statement with a generic plan, set plan_cache_mode = \
             force_custom_plan. Otherwise look at enable_indexscan, enable_bitmapscan and random_page_cost.",
            converted.map_or_else(|| triggers_first(&scan.load.tokens), |_| "")
        ))
        .risk("None; EXPLAIN without ANALYZE only plans the statement.");
    Some(detection)
}

/// The scans may be those of a trigger, which EXPLAIN without ANALYZE does not show.
fn triggers_first(tokens: &[StatementToken]) -> &'static str {
    match sql_text::command(tokens) {
        "update" | "delete" => {
            "If the table has triggers, see first whether they read it from end to end: with \
             pg_stat_statements.track = all, their statements are counted, too. "
        }
        _ => "",
    }
}

/// Whether the filter is one value for each column of a unique index.
pub(super) fn finds_one_row(
    index: &IndexActivity,
    filter: &TableFilter,
    tokens: &[StatementToken],
) -> bool {
    let has_all = filter.range.is_empty() && filter.equal.len() == index.columns.len();
    let has_list = tokens.iter().any(|it| it.is_any(&["in", "any"]));
    // Of a B-tree, only uniqueness requires it.
    index.is_required && has_all && !has_list
}

/// The type to which a value is cast, if an index on integers does not serve a comparison with it.
fn converted_to(tokens: &[StatementToken]) -> Option<&str> {
    let cast = tokens.windows(3).find(|it| {
        let is_value = it[0].kind == TokenKind::Constant;
        is_value && it[1].is("::") && it[2].is_any(&NOT_INTEGER)
    })?;
    Some(&cast[2].text)
}
