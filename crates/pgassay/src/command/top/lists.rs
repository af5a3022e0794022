//! The lists of `top`: the rows of each, filtered and in order.

use std::cmp::Ordering;

use pgassay_lab::watch::PresentSession;
use pgassay_record::activity::Activity;
use pgassay_record::finding::Finding;

use super::columns::{TopView, columns};
use super::finding_rows::findings;
use super::rows::{SortValue, TopRow, blocking, statements, tables, waiting};
use super::session_rows::sessions;

/// What the rows are made from.
#[derive(Clone, Copy)]
pub struct RowSource<'a> {
    pub activity: &'a Activity,
    /// The sessions of its last reading.
    pub present: &'a [PresentSession],
    /// Its findings, if they are on the screen.
    pub findings: &'a [Finding],
}

/// The rows of a list that contain the filter, in its order.
pub fn rows(source: RowSource<'_>, view: TopView, sorted_by: char, filter: &str) -> Vec<TopRow> {
    let activity = source.activity;
    let mut rows = match view {
        TopView::Statements => statements(activity, !filter.is_empty()),
        TopView::Waiting => waiting(activity),
        TopView::Blocking => blocking(activity),
        TopView::Tables => tables(activity),
        TopView::Sessions => sessions(activity, source.present),
        TopView::Findings => findings(activity, source.findings),
    };
    let wanted = filter.to_lowercase();
    rows.retain(|row| row.searched.to_lowercase().contains(&wanted));
    let column = columns(view).iter().position(|it| it.letter == sorted_by);
    if let Some(column) = column.filter(|_| sorted_by != ' ') {
        rows.sort_by(|a, b| order(&a.cells[column].sort, &b.cells[column].sort));
    }
    rows
}

fn order(a: &SortValue, b: &SortValue) -> Ordering {
    match (a, b) {
        (SortValue::Number(a), SortValue::Number(b)) => b.total_cmp(a),
        (SortValue::Name(a), SortValue::Name(b)) => a.cmp(b),
        (SortValue::Number(_), SortValue::Name(_)) => Ordering::Less,
        (SortValue::Name(_), SortValue::Number(_)) => Ordering::Greater,
    }
}
