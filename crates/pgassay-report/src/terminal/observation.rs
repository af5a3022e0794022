//! An observation of a live server as text.

use pgassay_account::ledger::{explained_share, groups};
use pgassay_record::observation::{CpuRow, Observation};

use super::style::{Style, heading};
use super::table::{Alignment, Cell, Table, TextStyle, bar, cell, inked, name, paint, wrap};
use super::{activity, findings};
use crate::ledger::{group_name, nature_word, tier};
use crate::{number, sentence};

/// Rows below this share of the CPU time are not printed.
const BELOW_SHARE: f64 = 0.01;
/// Rows of the ledger beyond these are summed. No row is left out for its small share: mostly idle
/// backends make all other shares small.
const LEDGER_ROWS_MAX: usize = 15;
const FUNCTIONS_MAX: usize = 20;
const BAR_WIDTH: usize = 16;

/// The observation as text, with a final newline.
pub fn observation_text(observation: &Observation, style: &Style) -> String {
    let mut sections = vec![opening(observation, *style)];
    let findings = findings::observed(&observation.findings, *style);
    if let Some(activity) = &observation.activity {
        sections.push(activity::answer(observation, activity, *style));
        sections.push(findings);
        sections.extend(activity::sections(observation, activity, *style));
        sections.extend(mechanisms(observation, *style));
    } else {
        sections.extend(mechanisms(observation, *style));
        sections.push(findings);
    }
    sections.push(notes(observation, *style));
    let written: Vec<String> = sections.into_iter().filter(|it| !it.is_empty()).collect();
    written.join("\n")
}

/// Where the backends' time goes, to the microsecond; nothing if only activity was read.
fn mechanisms(observation: &Observation, style: Style) -> Vec<String> {
    if !observation.has_mechanisms() {
        return Vec::new();
    }
    vec![
        time(observation, style),
        ledger(observation, style),
        waits(observation, style),
        division(
            "PHASES",
            "what the statements were doing",
            &observation.phases(),
            observation,
            style,
        ),
        division(
            "SUBSYSTEMS",
            "by part of PostgreSQL",
            &observation.subsystems(),
            observation,
            style,
        ),
        functions(observation, style),
        background(observation, style),
    ]
}

fn opening(observation: &Observation, style: Style) -> String {
    let title = paint(
        &sentence::observed(observation),
        TextStyle::Strong,
        style.color,
    );
    let text = sentence::observation_conditions(observation);
    let how = wrap(&text, style.columns(), "  ", "  ");
    format!(
        "{title}\n{}\n",
        paint(how.trim_end(), TextStyle::Faint, style.color)
    )
}

/// The exact totals; empty if they are unknown.
fn time(observation: &Observation, style: Style) -> String {
    let Some(exact) = &observation.backends else {
        return String::new();
    };
    let basis = observation.basis();
    let whole_us = observation.backends_present_us;
    let mut table = Table::new(&[
        Alignment::Left,
        Alignment::Right,
        Alignment::Left,
        Alignment::Right,
    ]);
    let ended = ("CPU of ended processes", observation.ended_us());
    let ended = (ended.1 > 0.0).then_some(ended);
    let parts = [
        ("on CPU", exact.on_cpu_us),
        ("run queue", exact.run_queue_us),
        ("blocked", observation.blocked_us()),
    ];
    for (what, us) in parts.into_iter().chain(ended) {
        let share = if whole_us > 0.0 { us / whole_us } else { 0.0 };
        table.row(vec![
            cell(what),
            cell(number::micros(basis.of(us))),
            cell(basis.unit()),
            cell(number::percent(share)),
        ]);
    }
    let why = "the backends' time, from the kernel's exact counters";
    heading("TIME", why, style) + &table.render(style.color)
}

/// The ledger: where the time went, and whether that is work or waiting.
fn ledger(observation: &Observation, style: Style) -> String {
    let whole_us = observation.backends_present_us;
    let rows = observation.ledger();
    let groups = groups(&rows);
    let (shown, rest) = groups.split_at(groups.len().min(LEDGER_ROWS_MAX));
    let mut table = Table::new(&[
        Alignment::Left,
        Alignment::Left,
        Alignment::Right,
        Alignment::Right,
        Alignment::Left,
    ]);
    for row in shown {
        table.row(vec![
            inked(nature_word(row.nature), TextStyle::Faint),
            cell(group_name(row.part, &row.mechanism)),
            cell(number::micros(observation.basis().of(row.us))),
            share(row.us, whole_us),
            cell(bar(row.us / whole_us.max(f64::MIN_POSITIVE), BAR_WIDTH)),
        ]);
    }
    let rest_us: f64 = rest.iter().map(|row| row.us).sum();
    if rest_us > 0.0 {
        table.row(vec![
            cell(""),
            inked("other", TextStyle::Faint),
            cell(number::micros(observation.basis().of(rest_us))),
            share(rest_us, whole_us),
            cell(""),
        ]);
    }
    let why = format!(
        "where that time goes, {}; % of the backends' time, in which client includes idle time",
        observation.basis().unit()
    );
    let tier = tier(
        observation.divided_by(),
        &[explained_share(&rows)],
        observation.tier.as_ref(),
    );
    let tier = wrap(&tier, style.columns(), "  ", "    ");
    let tier = paint(tier.trim_end(), TextStyle::Faint, style.color);
    heading("LEDGER", &why, style) + &tier + "\n" + &table.render(style.color)
}

/// The blocked time by reason; empty without exact totals, since the ledger then shows the same.
fn waits(observation: &Observation, style: Style) -> String {
    let rows = observation.blocked();
    if rows.is_empty() || observation.backends.is_none() {
        return String::new();
    }
    let whole_us = observation.blocked_us();
    let mut table = Table::new(&[
        Alignment::Left,
        Alignment::Right,
        Alignment::Right,
        Alignment::Left,
    ]);
    for row in rows {
        table.row(vec![
            cell(sentence::wait(&row)),
            cell(number::micros(observation.basis().of(row.blocked_us))),
            share(row.blocked_us, whole_us),
            cell(bar(row.blocked_us / whole_us, BAR_WIDTH)),
        ]);
    }
    let why = format!(
        "what the backends waited for, {}; shares are of the blocked time",
        observation.basis().unit()
    );
    heading("BLOCKED", &why, style) + &table.render(style.color)
}

/// The CPU time by phase or subsystem.
fn division(
    title: &str,
    why: &str,
    rows: &[CpuRow],
    observation: &Observation,
    style: Style,
) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        Alignment::Left,
        Alignment::Right,
        Alignment::Right,
        Alignment::Left,
    ]);
    let whole_us = observation.on_cpu_us();
    let is_large = |row: &&CpuRow| row.self_us >= whole_us * BELOW_SHARE;
    for row in rows.iter().filter(is_large) {
        table.row(vec![
            name(&row.name),
            cell(number::micros(observation.basis().of(row.self_us))),
            share(row.self_us, whole_us),
            cell(bar(row.self_us / whole_us, BAR_WIDTH)),
        ]);
    }
    let rest: Vec<&CpuRow> = rows.iter().filter(|row| !is_large(row)).collect();
    if !rest.is_empty() {
        let rest_us: f64 = rest.iter().map(|row| row.self_us).sum();
        table.row(vec![
            inked(number::count(rest.len() as u64, "other"), TextStyle::Faint),
            cell(number::micros(observation.basis().of(rest_us))),
            share(rest_us, whole_us),
            cell(""),
        ]);
    }
    let why = format!("{why}; CPU time in {}", observation.basis().unit());
    heading(title, &why, style) + &table.render(style.color)
}

fn share(part_us: f64, whole_us: f64) -> Cell {
    let share = if whole_us > 0.0 {
        part_us / whole_us
    } else {
        0.0
    };
    cell(number::percent(share))
}

fn functions(observation: &Observation, style: Style) -> String {
    let rows = observation.functions();
    let whole_us = observation.on_cpu_us();
    let mut table = Table::new(&[
        Alignment::Right,
        Alignment::Right,
        Alignment::Right,
        Alignment::Right,
        Alignment::Left,
        Alignment::Left,
    ]);
    let headings = ["self", "", "with callees", "samples", "function", ""];
    table.row(
        headings
            .iter()
            .map(|it| inked(*it, TextStyle::Faint))
            .collect(),
    );
    let large = rows
        .iter()
        .filter(|row| row.self_us >= whole_us * BELOW_SHARE);
    let shown: Vec<&CpuRow> = large.take(FUNCTIONS_MAX).collect();
    if shown.is_empty() {
        return String::new();
    }
    for row in shown {
        let object = if row.object == "postgres" {
            ""
        } else {
            &row.object
        };
        table.row(vec![
            cell(number::micros(observation.basis().of(row.self_us))),
            share(row.self_us, whole_us),
            cell(number::micros(observation.basis().of(row.children_us))),
            cell(number::whole(row.samples as f64)),
            cell(&row.name),
            inked(object, TextStyle::Faint),
        ]);
    }
    let why = format!(
        "the most expensive by self time; CPU time in {}",
        observation.basis().unit()
    );
    heading("FUNCTIONS", &why, style) + &table.render(style.color)
}

fn background(observation: &Observation, style: Style) -> String {
    if observation.background.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[Alignment::Left, Alignment::Right, Alignment::Left]);
    for it in &observation.background {
        let title = match it.cpu.processes {
            1 => it.role.clone(),
            more => format!("{more} × {}", it.role),
        };
        table.row(vec![
            cell(title),
            cell(number::micros(observation.basis().of(it.cpu.on_cpu_us))),
            cell(observation.basis().unit()),
        ]);
    }
    let why = "CPU of processes that serve no client, not included above";
    heading("BACKGROUND PROCESSES", why, style) + &table.render(style.color)
}

fn notes(observation: &Observation, style: Style) -> String {
    let width = style.columns();
    let mut out = String::new();
    if let Some(quality) = sentence::quality(observation.profile.iter()) {
        out.push_str(&wrap(&quality, width, "  profile   ", "            "));
    }
    if let Some(waits) = &observation.waits {
        let text = sentence::waits_quality(waits, observation.window_us);
        out.push_str(&wrap(&text, width, "  waits     ", "            "));
    }
    for check in &observation.limitations {
        let Some(limit) = sentence::limit(check) else {
            continue;
        };
        let fix = check.fix.as_ref().map(|it| format!("; to fix it: {it}"));
        let text = wrap(&(limit + &fix.unwrap_or_default()), width, "  ! ", "    ");
        out.push_str(&(paint(text.trim_end(), TextStyle::Caution, style.color) + "\n"));
    }
    if out.is_empty() {
        return out;
    }
    heading("NOTES", "", style) + &out
}
