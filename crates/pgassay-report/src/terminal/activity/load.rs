//! The load by statement, by wait, and by who caused it.

use pgassay_record::activity::{Activity, LoadBy, LoadRow};
use pgassay_record::observation::Observation;

use super::super::style::{Style, heading};
use super::super::table::{Alignment, Table, TextStyle, cell, cut, inked, paint, visible, wrap};
use super::legend::legend;
use crate::activity::{
    ClassLoads, StatementCpu, age, counted_over, executions, load, mean, other_locks, per_call,
    relation_name, share, statement_text, wait_name, waits_in_run_queue,
};
use crate::number;

const STATEMENTS_MAX: usize = 10;
const WAITS_MAX: usize = 10;
const NAMES_MAX: usize = 5;
/// Rows below this share of the load are summed.
const BELOW_SHARE: f64 = 0.005;
const BAR_WIDTH: usize = 24;
const TEXT_INDENT: &str = "      ";
const FUNCTIONS_MAX: usize = 4;

/// The rows to print, and the load of the others.
fn split(rows: &[LoadRow], most: usize) -> (&[LoadRow], usize, f64) {
    let whole: f64 = rows.iter().map(|row| row.load).sum();
    let large = rows
        .iter()
        .take_while(|row| row.load >= whole * BELOW_SHARE);
    let shown = large.count().min(most);
    let (shown, rest) = rows.split_at(shown);
    (shown, rest.len(), rest.iter().map(|row| row.load).sum())
}

/// Each with its figures and its text, and what is known of its calls and its CPU time.
pub(super) fn statements(observation: &Observation, activity: &Activity, style: Style) -> String {
    let rows = activity.load_by(LoadBy::Statement);
    if rows.is_empty() {
        return String::new();
    }
    let active = activity.active_sessions();
    let (shown, others, rest) = split(&rows, STATEMENTS_MAX);
    let loads: Vec<ClassLoads> = shown
        .iter()
        .map(|row| ClassLoads::of(activity, &row.by_wait))
        .collect();
    let mut table = Table::new(&[
        Alignment::Right,
        Alignment::Right,
        Alignment::Right,
        Alignment::Right,
        Alignment::Left,
    ]);
    let headings = ["load", "%", "calls", "mean", ""];
    table.row(headings.map(|it| inked(it, TextStyle::Faint)).into());
    for (row, loads) in shown.iter().zip(&loads) {
        let (calls, mean) = calls(activity, row);
        table.row(vec![
            cell(load(row.load)),
            cell(share(row.load, active)),
            cell(calls),
            cell(mean),
            cell(loads.letters(loads_max(shown), BAR_WIDTH)),
        ]);
        let text = statement_text(activity, row.index);
        let text = cut(&visible(&text), style.columns() - TEXT_INDENT.len());
        table.across(cell(format!("{TEXT_INDENT}{text}")));
        for more in more_of(observation, activity, row) {
            let more = cut(&visible(&more), style.columns() - TEXT_INDENT.len());
            table.across(inked(format!("{TEXT_INDENT}{more}"), TextStyle::Faint));
        }
    }
    if others > 0 {
        table.row(vec![
            inked(load(rest), TextStyle::Faint),
            inked(share(rest, active), TextStyle::Faint),
            cell(""),
            cell(""),
            inked(number::count(others as u64, "other"), TextStyle::Faint),
        ]);
    }
    let counted = counted_over(activity).map_or_else(String::new, |it| it + " ");
    let why = format!(
        "by statement, in average active sessions; ≥ and ≤ are bounds from samples. {counted}{}",
        legend(loads.iter())
    );
    heading("LOAD", &why, style) + &table.render(style.color)
}

/// What each call of a statement did, and what its CPU time was spent on.
fn more_of(observation: &Observation, activity: &Activity, row: &LoadRow) -> Vec<String> {
    let statement = row
        .index
        .and_then(|it| activity.statements.get(it as usize));
    let mut lines: Vec<String> = statement.and_then(per_call).into_iter().collect();
    if let Some(cpu) = StatementCpu::of(observation, row.index) {
        let samples = number::count(cpu.samples, "sample");
        lines.push(format!("CPU by phase: {} ({samples})", cpu.phases()));
        lines.push(format!("by function: {}", cpu.functions(FUNCTIONS_MAX)));
    }
    lines
}

fn loads_max(rows: &[LoadRow]) -> f64 {
    rows.first().map_or(0.0, |row| row.load)
}

/// Calls and mean time as printed; a bound from samples is marked.
fn calls(activity: &Activity, row: &LoadRow) -> (String, String) {
    let statement = row
        .index
        .and_then(|it| activity.statements.get(it as usize));
    let calls = statement.map_or_else(String::new, |it| executions(it).text());
    let mean = mean(activity, row).map_or_else(String::new, |(us, is_bound)| {
        if is_bound {
            format!("≤ {}", age(us))
        } else {
            age(us)
        }
    });
    (calls, mean)
}

pub(super) fn waits(observation: &Observation, activity: &Activity, style: Style) -> String {
    let rows = activity.load_by(LoadBy::Wait);
    if rows.is_empty() {
        return String::new();
    }
    let active = activity.active_sessions();
    let (shown, others, rest) = split(&rows, WAITS_MAX);
    // The other columns and the gaps.
    let name_width = style.columns() - (2 + 8 + 2 + 6 + 2 + 2 + BAR_WIDTH);
    let mut table = Table::new(&[
        Alignment::Right,
        Alignment::Right,
        Alignment::Left,
        Alignment::Left,
    ]);
    for row in shown {
        let wait = row.index.and_then(|it| activity.waits.get(it as usize));
        let loads = ClassLoads::of(activity, &row.by_wait);
        table.row(vec![
            cell(load(row.load)),
            cell(share(row.load, active)),
            cell(cut(
                &visible(&wait.map_or_else(|| "?".to_owned(), wait_name)),
                name_width,
            )),
            cell(loads.letters(loads_max(shown), BAR_WIDTH)),
        ]);
    }
    if others > 0 {
        table.row(vec![
            inked(load(rest), TextStyle::Faint),
            inked(share(rest, active), TextStyle::Faint),
            inked(number::count(others as u64, "other"), TextStyle::Faint),
            cell(""),
        ]);
    }
    let note = waits_in_run_queue(observation, activity).map_or_else(String::new, |note| {
        let note = wrap(&note, style.columns(), "  ", "  ");
        paint(note.trim_end(), TextStyle::Faint, style.color) + "\n"
    });
    heading(
        "WAITS",
        "the same load by wait event; % of the active sessions",
        style,
    ) + &table.render(style.color)
        + &note
}

/// One paragraph for each property of the sessions that has more than one value.
pub(super) fn by_names(activity: &Activity, style: Style) -> String {
    let active = activity.active_sessions();
    let mut out = String::new();
    for (title, by) in [
        ("session", LoadBy::Session),
        ("user", LoadBy::User),
        ("application", LoadBy::Application),
        ("database", LoadBy::Database),
        ("client", LoadBy::Client),
        ("lock on", LoadBy::Relation),
    ] {
        let mut rows = activity.load_by(by);
        if by == LoadBy::Relation {
            rows.retain(|row| row.index.is_some());
        }
        let is_plain = rows.len() < 2 && by != LoadBy::Relation;
        if is_plain || rows.is_empty() {
            continue;
        }
        let mut parts: Vec<String> = Vec::new();
        for row in rows.iter().take(NAMES_MAX) {
            let name = name_of(activity, by, row);
            parts.push(format!(
                "{name} {} ({})",
                load(row.load),
                share(row.load, active)
            ));
        }
        let rest = rows.len().saturating_sub(NAMES_MAX);
        if rest > 0 {
            parts.push(number::count(rest as u64, "other"));
        }
        let unnamed = other_locks(activity);
        if by == LoadBy::Relation && unnamed > 0.0 {
            let (load, share) = (load(unnamed), share(unnamed, active));
            parts.push(format!("other or unidentified locks {load} ({share})"));
        }
        let first = format!("  {title:<11}  ");
        out.push_str(&wrap(
            &parts.join(", "),
            style.columns(),
            &first,
            "               ",
        ));
    }
    if out.is_empty() {
        return out;
    }
    let idle = activity.idle_in_transaction();
    if idle > 0.0 {
        let text = format!("  {} sessions were idle in a transaction", load(idle));
        out.push_str(&(paint(&text, TextStyle::Faint, style.color) + "\n"));
    }
    heading("WHO", "the same load by session and its properties", style) + &out
}

fn name_of(activity: &Activity, by: LoadBy, row: &LoadRow) -> String {
    let index = row.index.map(|it| it as usize);
    let name = match by {
        LoadBy::Session => index
            .and_then(|it| activity.sessions.get(it))
            .map_or_else(String::new, |it| it.pid.to_string()),
        LoadBy::Relation => index
            .and_then(|it| activity.relations.get(it))
            .map_or_else(String::new, |it| relation_name(&it.schema, &it.name)),
        _ => row.name.clone(),
    };
    if name.is_empty() {
        "(none)".to_owned()
    } else {
        cut(&visible(&name), 40)
    }
}
