//! Tables, indexes, and the state of the server.

use maud::{Markup, html};
use pgassay_record::activity::{Activity, CatalogActivity, IndexActivity};

use crate::activity::{
    NamedTables, age, busy_tables, dead_share, index_remarks, index_writes, load, relation_name,
    relation_size, server_lines, table_writes, tables_counted,
};
use crate::number;

const TABLES_MAX: usize = 100;
const INDEXES_MAX: usize = 100;

/// Tables that were scanned or written, or have dead rows; busiest first.
pub(super) fn tables(activity: &Activity, catalog: &CatalogActivity) -> Markup {
    let rows = busy_tables(catalog);
    let seconds = (catalog.window_us / 1e6).max(f64::MIN_POSITIVE);
    let per_s = |count: u64| match count {
        0 => String::new(),
        some => number::plain(some as f64 / seconds),
    };
    let named = NamedTables::of(activity);
    let ago = |us: Option<f64>| us.map_or_else(|| "never".to_owned(), age);
    html! {
        @if !rows.is_empty() {
            section #tables {
                h2 { "Tables" }
                div.scroll { table {
                    caption {
                        "Of database " (catalog.database) ": scans and writes " (tables_counted(activity))
                        "; dead rows, sizes and ages at its end. Load is that of the statements whose "
                        "texts name the table."
                    }
                    thead { tr {
                        th scope="col" { "table" }
                        @for title in [
                            "load", "size", "seq. scans/s", "rows per scan", "rows read/s",
                            "index scans/s", "writes/s", "HOT", "live rows", "dead rows", "vacuumed", "analyzed",
                        ] { th.n scope="col" { (title) } }
                    } }
                    tbody {
                        @for it in rows.iter().take(TABLES_MAX) {
                            tr {
                                th scope="row" { (relation_name(&it.relation.schema, &it.relation.name)) }
                                @let load_of = named.load(&it.relation);
                                td.n { @if load_of > 0.0 { (load(load_of)) } }
                                td.n { (relation_size(it.size_bytes)) }
                                td.n { (per_s(it.sequential_scans)) }
                                td.n {
                                    @if it.sequential_scans > 0 {
                                        (number::whole(
                                            it.sequential_rows as f64 / it.sequential_scans as f64
                                        ))
                                    }
                                }
                                td.n { (per_s(it.sequential_rows)) }
                                td.n { (per_s(it.index_scans)) }
                                td.n { (per_s(table_writes(it))) }
                                td.n {
                                    @if it.updated > 0 {
                                        (number::percent(it.hot_updated as f64 / it.updated as f64))
                                    }
                                }
                                td.n { (count(it.live_rows)) }
                                td.n {
                                    (count(it.dead_rows))
                                    @let share = dead_share(it);
                                    @if !share.is_empty() { " (" (share) ")" }
                                }
                                td.n { (ago(it.vacuumed_ago_us)) }
                                td.n { (ago(it.analyzed_ago_us)) }
                            }
                        }
                    }
                } }
            }
        }
    }
}

/// A count; nothing for none.
fn count(value: u64) -> String {
    if value == 0 {
        String::new()
    } else {
        number::whole(value as f64)
    }
}

/// Indexes that are unused, redundant or invalid, largest first.
pub(super) fn indexes(catalog: &CatalogActivity) -> Markup {
    let mut rows: Vec<(&IndexActivity, String)> = catalog
        .indexes
        .iter()
        .filter_map(|it| Some((it, index_remarks(it)?)))
        .collect();
    rows.sort_by_key(|(it, _)| std::cmp::Reverse(it.size_bytes));
    let seconds = (catalog.window_us / 1e6).max(f64::MIN_POSITIVE);
    let writes = |it: &IndexActivity| match index_writes(catalog, it) {
        0 => String::new(),
        some => number::plain(some as f64 / seconds),
    };
    let since = catalog.statistics_age_us.map_or_else(
        || "since the server was set up".to_owned(),
        |us| format!("for {}", age(us)),
    );
    html! {
        @if !rows.is_empty() {
            section #indexes {
                h2 { "Indexes" }
                div.scroll { table {
                    caption {
                        "Unused, redundant or invalid. Scans are counted " (since)
                        ", on this server only: a standby may use an index that is unused here. Writes are entries "
                        "for new row versions of the table."
                    }
                    thead { tr {
                        th scope="col" { "index" } th scope="col" { "table" }
                        th scope="col" { "columns" }
                        th.n scope="col" { "size" } th.n scope="col" { "writes/s" }
                        th.n scope="col" { "scans" }
                        th scope="col" { "" }
                    } }
                    tbody {
                        @for (it, remark) in rows.iter().take(INDEXES_MAX) {
                            tr {
                                th scope="row" {
                                    (relation_name(&it.relation.schema, &it.relation.name))
                                }
                                td { (relation_name(&it.table.schema, &it.table.name)) }
                                td { (it.method) " (" (it.columns.join(", ")) ")" }
                                td.n { (relation_size(it.size_bytes)) }
                                td.n { (writes(it)) }
                                td.n { (number::whole(it.scans_ever as f64)) }
                                td { (remark) }
                            }
                        }
                    }
                } }
            }
        }
    }
}

/// Connections, what holds the horizon, slots, wraparound, checkpoints.
pub(super) fn server(catalog: &CatalogActivity) -> Markup {
    let lines = server_lines(catalog);
    html! {
        @if !lines.is_empty() {
            section #server {
                h2 { "Server" }
                dl { @for (title, text) in lines { dt { (title) } dd { (text) } } }
            }
        }
    }
}
