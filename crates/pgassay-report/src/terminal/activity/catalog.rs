//! Tables, indexes, and the state of the server.

use pgassay_record::activity::{Activity, CatalogActivity, IndexActivity};
use unicode_width::UnicodeWidthStr;

use super::super::style::{Style, heading};
use super::super::table::{Alignment, Table, TextStyle, cell, cut, inked, paint, visible, wrap};
use crate::activity::{
    NamedTables, age, busy_tables, dead_share, index_remarks, index_writes, load, relation_name,
    relation_size, server_lines, table_writes, tables_counted,
};
use crate::number;

const TABLES_MAX: usize = 10;
const INDEXES_MAX: usize = 10;
const NAME_WIDTH: usize = 26;

/// Tables that were scanned or written, or have dead rows; busiest first.
pub(super) fn tables(activity: &Activity, catalog: &CatalogActivity, style: Style) -> String {
    let rows = busy_tables(catalog);
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        Alignment::Left,
        Alignment::Right,
        Alignment::Right,
        Alignment::Right,
        Alignment::Right,
        Alignment::Right,
        Alignment::Right,
        Alignment::Right,
    ]);
    let headings = [
        "", "seq/s", "rows/seq", "index/s", "writes/s", "dead", "load", "size",
    ];
    table.row(headings.map(|it| inked(it, TextStyle::Faint)).into());
    let is_narrow = style.columns() < 74;
    let name_width = NAME_WIDTH - if is_narrow { 10 } else { 0 };
    let seconds = (catalog.window_us / 1e6).max(f64::MIN_POSITIVE);
    let per_s = |count: u64| some(count as f64 / seconds, number::plain);
    let named = NamedTables::of(activity);
    for it in rows.iter().take(TABLES_MAX) {
        let name = relation_name(&it.relation.schema, &it.relation.name);
        let per_scan = it.sequential_rows as f64 / it.sequential_scans.max(1) as f64;
        table.row(vec![
            cell(cut(&visible(&name), name_width)),
            cell(per_s(it.sequential_scans)),
            cell(some(per_scan, number::whole)),
            cell(per_s(it.index_scans)),
            cell(per_s(table_writes(it))),
            cell(dead_share(it)),
            cell(some(named.load(&it.relation), load)),
            cell(relation_size(it.size_bytes)),
        ]);
    }
    // What matters least is left out first.
    for column in [7, 3, 6 - 1] {
        if table.width() > style.columns() {
            table.remove_column(column);
        }
    }
    let why = format!(
        "of database {}: scans and writes {}, dead rows now; load of the statements that name it",
        visible(&catalog.database),
        tables_counted(activity)
    );
    heading("TABLES", &why, style)
        + &table.render(style.color)
        + &others(rows.len(), TABLES_MAX, style)
}

/// How many rows are not shown.
fn others(rows: usize, shown: usize, style: Style) -> String {
    match rows.saturating_sub(shown) {
        0 => String::new(),
        more => {
            paint(
                &format!("  … and {more} more"),
                TextStyle::Faint,
                style.color,
            ) + "\n"
        }
    }
}

fn some(value: f64, print: impl Fn(f64) -> String) -> String {
    if value > 0.0 {
        print(value)
    } else {
        String::new()
    }
}

/// Indexes that are unused, redundant or invalid, largest first.
pub(super) fn indexes(catalog: &CatalogActivity, style: Style) -> String {
    let mut rows: Vec<(&IndexActivity, String)> = catalog
        .indexes
        .iter()
        .filter_map(|it| Some((it, index_remarks(it)?)))
        .collect();
    rows.sort_by_key(|(it, _)| std::cmp::Reverse(it.size_bytes));
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        Alignment::Left,
        Alignment::Right,
        Alignment::Right,
        Alignment::Left,
    ]);
    let headings = ["", "size", "writes/s", ""];
    table.row(headings.map(|it| inked(it, TextStyle::Faint)).into());
    let names = rows.iter().take(INDEXES_MAX).map(|(it, _)| {
        let name = relation_name(&it.relation.schema, &it.relation.name);
        cut(&visible(&name), NAME_WIDTH).width()
    });
    let left = style
        .columns()
        .saturating_sub(names.max().unwrap_or(0) + 27);
    let seconds = (catalog.window_us / 1e6).max(f64::MIN_POSITIVE);
    for (it, remark) in rows.iter().take(INDEXES_MAX) {
        let name = relation_name(&it.relation.schema, &it.relation.name);
        table.row(vec![
            cell(cut(&visible(&name), NAME_WIDTH)),
            cell(relation_size(it.size_bytes)),
            cell(some(
                index_writes(catalog, it) as f64 / seconds,
                number::plain,
            )),
            cell(cut(&visible(remark), left)),
        ]);
    }
    let rest = rows.len().saturating_sub(INDEXES_MAX);
    if rest > 0 {
        table.across(inked(format!("  … and {rest} more"), TextStyle::Faint));
    }
    let since = catalog.statistics_age_us.map_or_else(
        || "everything since the server was set up".to_owned(),
        |us| format!("the last {}", age(us)),
    );
    let why =
        format!("unused, redundant or invalid; statistics cover {since}, on this server only");
    heading("INDEXES", &why, style) + &table.render(style.color)
}

/// Connections, what holds the horizon, slots, wraparound, checkpoints: one line each.
pub(super) fn server(catalog: &CatalogActivity, style: Style) -> String {
    let lines = server_lines(catalog);
    if lines.is_empty() {
        return String::new();
    }
    let mut out = heading("SERVER", "", style);
    let width = lines.iter().map(|it| it.0.len()).max().unwrap_or(0);
    for (title, text) in lines {
        let first = format!("  {title:<width$}  ");
        let rest = " ".repeat(first.len());
        out.push_str(&wrap(&text, style.columns(), &first, &rest));
    }
    out
}
