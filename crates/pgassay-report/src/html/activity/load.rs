//! The load by statement with its counters, by wait event, and by who caused it.

use maud::{Markup, html};
use pgassay_record::activity::{Activity, ActivityStatement, LoadBy, LoadRow};
use pgassay_record::observation::Observation;

use super::super::flame;
use super::bars::{bar, legend};
use crate::activity::{
    ClassLoads, StatementCpu, age, counted_over, executions, load, mean, other_locks,
    relation_name, share, size, statement_text, wait_name, waits_in_run_queue,
};
use crate::number;
use crate::terminal::cut;

const STATEMENTS_MAX: usize = 50;
const NAMES_MAX: usize = 20;
const FUNCTIONS_MAX: usize = 10;
/// The whole text is a click away.
const TEXT_WIDTH: usize = 120;
/// PostgreSQL's default; only another build has another.
const BLOCK_BYTES: u64 = 8192;

/// The section; empty without load.
pub(super) fn statements(observation: &Observation, activity: &Activity) -> Markup {
    let rows = activity.load_by(LoadBy::Statement);
    let (shown, rest) = rows.split_at(rows.len().min(STATEMENTS_MAX));
    let loads: Vec<ClassLoads> = shown
        .iter()
        .map(|row| ClassLoads::of(activity, &row.by_wait))
        .collect();
    let highest = shown.first().map_or(0.0, |row| row.load);
    let flames = flame::statement_conditions(observation);
    html! {
        @if !rows.is_empty() {
            section #load {
                h2 { "Statements" }
                p.lead {
                    "Load is average active sessions: the time that sessions spent on a statement, "
                    "over the length of the window. ≥ and ≤ are bounds from samples, where there is no "
                    "pg_stat_statements. "
                    (counted_over(activity).unwrap_or_default())
                }
                (legend(&loads))
                div.scroll { table {
                    thead { tr {
                        @for title in ["load", "%"] { th.n scope="col" { (title) } }
                        th scope="col" { "by wait" }
                        th scope="col" { "statement" }
                        @for title in ["calls", "mean", "rows/call", "hit", "read", "temp", "WAL"] {
                            th.n scope="col" { (title) }
                        }
                    } }
                    tbody {
                        @for (row, loads) in shown.iter().zip(&loads) {
                            @let flame = row.index.and_then(|it| flames.get(&it)).copied();
                            @let cpu = StatementCpu::of(observation, row.index);
                            (statement(activity, row, &bar(loads, highest), (flame, cpu)))
                        }
                    }
                } }
                @if !rest.is_empty() {
                    p.faint {
                        (number::count(rest.len() as u64, "other")) ": "
                        (load(rest.iter().map(|row| row.load).sum())) " sessions."
                    }
                }
            }
        }
    }
}

fn statement(
    activity: &Activity,
    row: &LoadRow,
    bar: &Markup,
    (flame, cpu): (Option<usize>, Option<StatementCpu>),
) -> Markup {
    let text = statement_text(activity, row.index);
    let short = cut(&text, TEXT_WIDTH);
    let found = row
        .index
        .and_then(|it| activity.statements.get(it as usize));
    html! {
        tr {
            td.n { (load(row.load)) }
            td.n { (share(row.load, activity.active_sessions())) }
            td.bar { (bar) }
            td.sql {
                @if short == text { code { (text) } } @else {
                    details.sql { summary { code { (short) } } code { (text) } }
                }
                @if let Some(condition) = flame {
                    " " a.to-flame href="#flame" data-condition=(condition) data-variant="0" {
                        "flame graph"
                    }
                }
                @if let Some(cpu) = cpu {
                    p.faint {
                        "CPU (" (number::count(cpu.samples, "sample")) ") by phase: " (cpu.phases())
                        "; by function: " (cpu.functions(FUNCTIONS_MAX))
                    }
                }
            }
            @if let Some(found) = found { (counters(activity, row, found)) } @else {
                td colspan="7" {}
            }
        }
    }
}

/// Calls and means; blocks, temporary files and WAL per second where the server counts them.
fn counters(activity: &Activity, row: &LoadRow, statement: &ActivityStatement) -> Markup {
    let calls = executions(statement).text();
    let mean = mean(activity, row).map_or_else(String::new, |(us, is_bound)| {
        format!("{}{}", if is_bound { "≤ " } else { "" }, age(us))
    });
    let seconds = activity.counters_s();
    let rate = |bytes: u64| {
        if bytes == 0 {
            String::new()
        } else {
            size((bytes as f64 / seconds) as u64) + "/s"
        }
    };
    html! {
        td.n { (calls) } td.n { (mean) }
        @if let Some(it) = statement.counters.filter(|it| it.calls > 0) {
            td.n { (number::plain(it.rows as f64 / it.calls as f64)) }
            td.n { (rate(it.shared_hit.saturating_mul(BLOCK_BYTES))) }
            td.n { (rate(it.shared_read.saturating_mul(BLOCK_BYTES))) }
            td.n { (rate(it.temp_read.saturating_add(it.temp_written).saturating_mul(BLOCK_BYTES))) }
            td.n { (rate(it.wal_bytes.unwrap_or(0))) }
        } @else { td colspan="5" {} }
    }
}

/// The same load by wait event.
pub(super) fn waits(observation: &Observation, activity: &Activity) -> Markup {
    let rows = activity.load_by(LoadBy::Wait);
    let name = |row: &LoadRow| {
        let wait = row.index.and_then(|it| activity.waits.get(it as usize));
        wait.map_or_else(|| "?".to_owned(), wait_name)
    };
    html! {
        @if !rows.is_empty() {
            section #load-by-wait {
                h2 { "Wait events" }
                (rows_of(activity, "The same load by wait event.", &rows, &name))
                @if let Some(note) = waits_in_run_queue(observation, activity) { p.faint { (note) } }
            }
        }
    }
}

/// The same load by session and its properties, of those with more than one value.
pub(super) fn names(activity: &Activity) -> Markup {
    let tables = [
        ("session", LoadBy::Session),
        ("user", LoadBy::User),
        ("application", LoadBy::Application),
        ("database", LoadBy::Database),
        ("client", LoadBy::Client),
        ("relation whose lock was waited for", LoadBy::Relation),
    ];
    let tables: Vec<(&str, LoadBy, Vec<LoadRow>)> = tables
        .into_iter()
        .map(|(title, by)| {
            let mut rows = activity.load_by(by);
            rows.retain(|row| by != LoadBy::Relation || row.index.is_some());
            (title, by, rows)
        })
        .filter(|(_, by, rows)| rows.len() > 1 || (*by == LoadBy::Relation && !rows.is_empty()))
        .collect();
    html! {
        @if !tables.is_empty() {
            section #load-by-name {
                h2 { "Who causes the load" }
                div.charts.wide {
                    @for (title, by, rows) in &tables {
                        div {
                            (rows_of(activity, &format!("By {title}."), rows, &|row| {
                                name_of(activity, *by, row)
                            }))
                            @let unnamed = other_locks(activity);
                            @if *by == LoadBy::Relation && unnamed > 0.0 {
                                p.faint {
                                    "Locks without a relation, and waits between two readings of the "
                                    "locks: " (load(unnamed)) " sessions."
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn name_of(activity: &Activity, by: LoadBy, row: &LoadRow) -> String {
    let index = row.index.map(|it| it as usize);
    match by {
        LoadBy::Session => {
            let session = index.and_then(|it| activity.sessions.get(it));
            session.map_or_else(String::new, |it| {
                format!("{} {} {} {}", it.pid, it.user, it.database, it.application)
            })
        }
        LoadBy::Relation => {
            let relation = index.and_then(|it| activity.relations.get(it));
            relation.map_or_else(String::new, |it| relation_name(&it.schema, &it.name))
        }
        _ if row.name.is_empty() => "(none)".to_owned(),
        _ => row.name.clone(),
    }
}

fn rows_of(
    activity: &Activity,
    caption: &str,
    rows: &[LoadRow],
    name: &impl Fn(&LoadRow) -> String,
) -> Markup {
    let highest = rows.first().map_or(0.0, |row| row.load);
    let (shown, rest) = rows.split_at(rows.len().min(NAMES_MAX));
    html! {
        div.scroll { table {
            caption { (caption) }
            tbody {
                @for row in shown {
                    tr {
                        td.n { (load(row.load)) }
                        td.n { (share(row.load, activity.active_sessions())) }
                        td.bar { (bar(&ClassLoads::of(activity, &row.by_wait), highest)) }
                        th scope="row" { (name(row)) }
                    }
                }
                @if !rest.is_empty() {
                    tr.rest {
                        td.n { (load(rest.iter().map(|row| row.load).sum())) }
                        td {} td {} td { (number::count(rest.len() as u64, "other")) }
                    }
                }
            }
        } }
    }
}
