//! Which indexes of a table could serve a condition.

use pgassay_record::activity::{IndexActivity, TableActivity};

use super::live_view::LiveView;
use super::sql_text::TableFilter;

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
    indexes_of(view, table).any(|it| it.scans > 0 && is_partial(it))
}

/// The indexes of a table, or of the partitions of one.
pub(super) fn indexes_of<'a>(
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

fn is_partial(index: &IndexActivity) -> bool {
    index.columns.iter().any(|it| it == "where expression")
}

/// A valid index of all rows that begins with the columns of this filter, in any order, so that it finds its rows.
pub(super) fn fitting<'a>(
    view: &LiveView<'a>,
    table: &TableActivity,
    filter: &TableFilter,
) -> Option<&'a IndexActivity> {
    let wanted = filter.index_columns();
    indexes_of(view, table).find(|index| {
        let first = index.columns.iter().take(wanted.len());
        let first: Vec<&str> = first.map(|it| it.trim_matches('"')).collect();
        let has_all = wanted.iter().all(|it| first.contains(&it.as_str()));
        let is_usable = index.is_valid && !index.is_being_built && index.method == "btree";
        is_usable && has_all && !is_partial(index)
    })
}
