//! The details of the selected row: the whole statement with its waits and sessions, a
//! session, a blocker, a table, or a finding.

use std::collections::BTreeMap;

use pgassay_record::activity::{Activity, BlockingEpisode, SessionStatus, TableActivity};
use pgassay_report::activity::{
    age, blocks, counter_lines, finding_lines, index_remarks, known_wait, load, one_line,
    relation_name, relation_size, root_describes, root_name, root_statement_label, share,
    statement_text, wait_name,
};

use super::columns::TopView;
use super::rows::TopRow;
use super::state::TopState;
use super::{finding_rows, session_detail};

const SESSIONS_MAX: usize = 20;

/// The lines, each of any length.
pub fn lines(state: &TopState) -> Vec<String> {
    let (Some(activity), Some(row)) = (&state.shown, state.selected_row()) else {
        return vec!["It was not seen in the last interval.".to_owned()];
    };
    let mut lines = Vec::new();
    if state.view == TopView::Tables {
        lines.extend(table(activity, &row));
        return lines;
    }
    if state.view == TopView::Findings {
        lines.extend(finding(state, &row));
    }
    if let Some(episode) = row.episode.and_then(|it| activity.blocking.get(it)) {
        lines.extend(blocker(episode, row.key.starts_with("root ")));
    }
    if let Some(pid) = row.pid {
        lines.extend(session_detail::lines(activity, &state.present, pid));
    }
    if row.statement.is_some() || state.view == TopView::Statements {
        lines.extend(statement(activity, row.statement));
    }
    lines
}

/// A finding, before the statement concerned.
fn finding(state: &TopState, row: &TopRow) -> Vec<String> {
    let mut findings = state.findings.iter();
    let found = findings.find(|it| finding_rows::key(it) == row.key);
    let mut lines = found.map_or_else(Vec::new, |it| finding_lines(&state.findings, it));
    lines.push(String::new());
    lines
}

/// The root of a session's tree.
fn blocker(episode: &BlockingEpisode, is_root: bool) -> Vec<String> {
    let root = &episode.root;
    let mut lines = vec![
        format!(
            "{}: {}.",
            if is_root {
                let verb = blocks(episode);
                format!("{} {verb} others", capitalized(&root_name(root)))
            } else {
                format!("Blocked by {}", root_name(root))
            },
            root_describes(root, episode.is_lasting)
        ),
        format!(
            "{} for it{}.",
            match (episode.blocked.len(), episode.is_lasting) {
                (1, true) => "1 session waits".to_owned(),
                (1, false) => "1 session waited".to_owned(),
                (more, true) => format!("{more} sessions wait"),
                (more, false) => format!("{more} sessions waited"),
            },
            known_wait(episode.waited_us).map_or_else(String::new, |it| format!(
                ", {it} in all in the last interval"
            ))
        ),
    ];
    if let Some(text) = &root.statement {
        lines.push(capitalized(root_statement_label(root)) + &one_line(text));
    }
    if episode.is_worth_ending() {
        lines.push(format!("To end it: {}", episode.ended_by));
        lines.push("pgassay does not run it.".to_owned());
    }
    lines.push(String::new());
    lines
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters
        .next()
        .map_or_else(String::new, |it| it.to_uppercase().collect());
    first + letters.as_str()
}

fn statement(activity: &Activity, index: Option<u32>) -> Vec<String> {
    let mut lines = vec![statement_text(activity, index), String::new()];
    let found = index.and_then(|it| activity.statements.get(it as usize));
    if let Some(found) = found {
        let query_id = found
            .query_id
            .map_or_else(String::new, |it| format!(", query ID {it}"));
        lines.push(format!("fingerprint {}{query_id}", found.fingerprint));
        lines.extend(counter_lines(activity, found));
    }
    let (mut by_wait, mut by_session) = (BTreeMap::new(), BTreeMap::new());
    let mut whole_us = 0.0;
    let cells = activity.cells.iter();
    for cell in cells.filter(|it| it.statement == index && it.state == SessionStatus::Active) {
        *by_wait.entry(cell.wait).or_insert(0.0) += cell.time_us;
        *by_session.entry(cell.session).or_insert(0.0) += cell.time_us;
        whole_us += cell.time_us;
    }
    if whole_us <= 0.0 {
        lines.push("No session executed it in the last interval.".to_owned());
        return lines;
    }
    let sessions = |us: f64| load(us / activity.window_us.max(f64::MIN_POSITIVE));
    lines.push(format!(
        "{} sessions on average, of which",
        sessions(whole_us)
    ));
    for (wait, us) in largest(by_wait) {
        let name = activity.waits.get(wait as usize);
        let name = name.map_or_else(|| "?".to_owned(), wait_name);
        lines.push(format!(
            "  {:>6}  {:>5}  {name}",
            sessions(us),
            share(us, whole_us)
        ));
    }
    lines.push("by session".to_owned());
    let by_session = largest(by_session);
    for (session, us) in by_session.iter().take(SESSIONS_MAX) {
        if let Some(it) = activity.sessions.get(*session as usize) {
            lines.push(format!(
                "  {:>6}  {:>5}  {} {} {} {} {}",
                sessions(*us),
                share(*us, whole_us),
                it.pid,
                it.user,
                it.database,
                it.application,
                it.client
            ));
        }
    }
    if by_session.len() > SESSIONS_MAX {
        lines.push(format!("  … and {} more", by_session.len() - SESSIONS_MAX));
    }
    lines.push(String::new());
    lines.push("Functions: pgassay profile --html FILE samples them by statement.".to_owned());
    lines
}

/// The entries, largest first.
pub(super) fn largest(sums: BTreeMap<u32, f64>) -> Vec<(u32, f64)> {
    let mut sums: Vec<(u32, f64)> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    sums
}

fn table(activity: &Activity, row: &TopRow) -> Vec<String> {
    let Some(catalog) = &activity.catalog else {
        return Vec::new();
    };
    let mut tables = catalog.tables.iter();
    let found = tables.find(|it| it.relation.oid.to_string() == row.key);
    let Some(table) = found else {
        return Vec::new();
    };
    let mut lines = table_facts(table, catalog.window_us);
    let of_table = catalog.indexes.iter();
    for index in of_table.filter(|it| it.table.oid == table.relation.oid) {
        let remark = index_remarks(index).map_or_else(String::new, |it| format!(": {it}"));
        lines.push(format!(
            "  {} {} ({}), {}, {} scans{remark}",
            relation_name(&index.relation.schema, &index.relation.name),
            index.method,
            index.columns.join(", "),
            known_size(index.size_bytes),
            index.scans
        ));
    }
    lines
}

fn known_size(bytes: u64) -> String {
    match relation_size(bytes) {
        size if size.is_empty() => "size not known until it is vacuumed or analyzed".to_owned(),
        size => size,
    }
}

fn table_facts(table: &TableActivity, counted_us: f64) -> Vec<String> {
    let ago = |us: Option<f64>| us.map_or_else(|| "never".to_owned(), |us| age(us) + " ago");
    let autovacuum = if table.autovacuum_enabled {
        ""
    } else {
        "; autovacuum is off"
    };
    vec![
        format!(
            "{}, {}",
            relation_name(&table.relation.schema, &table.relation.name),
            known_size(table.size_bytes)
        ),
        format!(
            "{} live rows, {} dead{autovacuum}",
            table.live_rows, table.dead_rows
        ),
        format!(
            "vacuumed {}, analyzed {}; {} rows modified since",
            ago(table.vacuumed_ago_us),
            ago(table.analyzed_ago_us),
            table.modified_since_analyze
        ),
        format!(
            "over {}: {} sequential scans of {} rows, {} index scans",
            age(counted_us),
            table.sequential_scans,
            table.sequential_rows,
            table.index_scans
        ),
        format!(
            "{} inserted, {} updated ({} HOT), {} deleted; {} blocks hit, {} read",
            table.inserted,
            table.updated,
            table.hot_updated,
            table.deleted,
            table.blocks_hit,
            table.blocks_read
        ),
        "indexes".to_owned(),
    ]
}
