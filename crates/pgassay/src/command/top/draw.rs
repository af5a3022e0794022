//! Draws the state. Every text passes [`visible`]: names and statements come from others.

use pgassay_record::activity::Activity;
use pgassay_report::activity::{
    ClassLoads, WaitClass, age, blind_spot, blind_spots, cut, finding_sql, fit, headline_of_seen,
    load, rate, share, size, unknown_blocking, unknown_tables, unseen_sessions, visible,
};
use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::columns::{TopColumn, TopView, columns, sort_letters};
use super::rows::{TopCell, TopRow, Urgency};
use super::state::{KeyMode, TopState};
use super::{ascii, detail, finding_rows, wrapping};

/// Screens lower than this have no room for the answer and the load by class.
const HEIGHT_FOR_HEADER: usize = 12;
const HEADLINE_LINES: usize = 3;
/// Stalls, checkpoints, vacuums, lock storms and errors.
const EVENT_LINES: usize = 1;
/// What cannot be seen.
const MISSING_LINES: usize = 4;
/// The sparkline and its label.
const SPARKLINE_WIDTH: usize = 28;
const HISTORY: &str = "history ";

const HELP: &str = "\
1 2 3       statements, waiting sessions, blocking
4 t f       sessions, tables, findings with their fixes
j k ↑ ↓     select;  PageUp PageDown Home End
Enter       details of the selected row;  Esc back
s LETTER    sort by a column
/           filter by text, user, application, database, client, PID;
            Esc clears
Space       pause and continue
+ -         longer and shorter interval
w S         save what is shown as JSON, for pgassay report and show
h           this help
q Ctrl-C    quit

Load is average active sessions. Bars: C CPU or run queue, I I/O, L lock,
W LWLock, N client, P IPC, o other. ≥ and ≤ are bounds from samples.
Yellow from 1 s, red from 3 s: mean times, and ages of sessions, waits and
blockers.
pgassay only reads. It shows the statement that would end a session, and
never runs it.";

const KEYS: &str = "1 statements 2 waiting 3 blocking 4 sessions t tables f findings h help q quit";
/// For narrow screens.
const FEW_KEYS: &str = "1 2 3 4 t f lists h help q quit";

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, state: &TopState) {
    let area = frame.area();
    let (width, height) = (area.width as usize, area.height as usize);
    let lines = lines(state, width, height);
    frame.render_widget(Paragraph::new(lines), area);
    if state.is_ascii {
        ascii::replace(frame.buffer_mut());
    }
}

/// The lines of the screen: header, list or text, and two lines at the bottom.
fn lines(state: &TopState, width: usize, height: usize) -> Vec<Line<'static>> {
    let paint = Paint(state.uses_color);
    let mut lines = header(state, width, height, paint);
    let left = height.saturating_sub(lines.len() + bottom_height(height));
    let mut body = match state.mode {
        KeyMode::Help => text(HELP.lines().map(str::to_owned), state, width, left),
        KeyMode::Detail => text(detail::lines(state).into_iter(), state, width, left),
        _ => list(state, width, left, paint),
    };
    body.truncate(left);
    body.resize(left, Line::default());
    lines.extend(body);
    lines.extend(bottom(state, width, height, paint));
    lines.truncate(height);
    lines
}

/// Colors, where they are wanted. The screen is complete without them.
#[derive(Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn of(self, color: Color) -> Style {
        if self.0 {
            Style::new().fg(color)
        } else {
            Style::new()
        }
    }

    fn urgency(self, urgency: Urgency) -> Style {
        match urgency {
            Urgency::Calm => Style::new(),
            Urgency::Slow => self.of(Color::Yellow),
            Urgency::Late => self.of(Color::Red),
        }
    }

    fn class(self, class: WaitClass) -> Style {
        self.of(match class {
            WaitClass::Cpu => Color::Blue,
            WaitClass::Io => Color::Yellow,
            WaitClass::Lock => Color::Red,
            WaitClass::LightweightLock => Color::Magenta,
            WaitClass::Client => Color::Green,
            WaitClass::Ipc => Color::Cyan,
            WaitClass::Other => Color::DarkGray,
        })
    }
}

fn bold(text: impl Into<String>) -> Span<'static> {
    Span::styled(text.into(), Style::new().add_modifier(Modifier::BOLD))
}

/// What is watched, the answer, and the load by class.
fn header(state: &TopState, width: usize, height: usize, paint: Paint) -> Vec<Line<'static>> {
    let paused = if state.is_paused { "  [paused]" } else { "" };
    let silent = match state.silent_for {
        Some(silence) => format!("  [no answer from the server for {} s]", silence.as_secs()),
        None if state.shown.as_ref().is_some_and(is_silent) => {
            "  [the server does not answer]".to_owned()
        }
        None => String::new(),
    };
    // A long title must not hide them.
    let notes = format!("{}{paused}{silent}", transactions(state));
    let left = width.saturating_sub(notes.chars().count());
    let title = fit(&visible(&state.server.title), left, false);
    let title = format!("{}{notes}", title.trim_end());
    let mut lines = vec![Line::from(bold(title))];
    let Some(activity) = &state.shown else {
        return lines;
    };
    // The help needs the room.
    if height < HEIGHT_FOR_HEADER || state.mode == KeyMode::Help {
        return lines;
    }
    let answer = limited(&[headline_of_seen(activity)], width, HEADLINE_LINES);
    lines.extend(answer.into_iter().map(Line::from));
    lines.push(by_class(state, activity, width, paint));
    let style = paint.of(Color::Yellow);
    let events = limited(&events(activity), width, EVENT_LINES).into_iter();
    lines.extend(events.map(|it| Line::styled(it, style)));
    let missing = blind_spots(activity).into_iter();
    let missing: Vec<String> = missing.map(|it| format!("! {}", blind_spot(it))).collect();
    let missing = limited(&missing, width, MISSING_LINES).into_iter();
    lines.extend(missing.map(|it| Line::styled(it, style)));
    lines
}

/// Unknown while the server does not answer.
fn transactions(state: &TopState) -> String {
    let shown = state.shown.as_ref().filter(|_| state.silent_for.is_none());
    let last = shown.and_then(|it| it.timeline.last());
    let rate_per_s = last.and_then(|it| it.transactions_per_s);
    rate_per_s.map_or_else(String::new, |it| format!("  {} transactions/s", rate(it)))
}

/// Stalls, checkpoints, vacuums, lock storms and errors in the interval, on one line, if there were any.
fn events(activity: &Activity) -> Vec<String> {
    let marks: Vec<&str> = activity.marks.iter().map(|it| it.text.as_str()).collect();
    if marks.is_empty() {
        return Vec::new();
    }
    vec![format!("Events: {}", marks.join("; "))]
}

/// Whether the server answers no query. Its memory may be readable all the same.
fn is_silent(activity: &Activity) -> bool {
    let mut missing = activity.unavailable.iter();
    missing.any(|it| it.name == Activity::ANSWERS && it.value != Activity::AT_TIMES)
}

/// Texts in at most so many lines; the last one ends with … if there are more.
fn limited(texts: &[String], width: usize, lines: usize) -> Vec<String> {
    let wrapped = texts.iter();
    let wrapped = wrapped.flat_map(|it| wrapping::wrapped(&visible(it), width));
    let mut wrapped: Vec<String> = wrapped.collect();
    let cut_off = wrapped.len() > lines;
    wrapped.truncate(lines);
    if let Some(last) = wrapped.last_mut().filter(|_| cut_off) {
        last.push_str(" …");
    }
    wrapped.iter().map(|it| cut(it, width)).collect()
}

/// `C CPU 1.37  L lock 4.83  ▁▂▇█`.
fn by_class(state: &TopState, activity: &Activity, width: usize, paint: Paint) -> Line<'static> {
    let mut loads = ClassLoads::default();
    for row in activity.load_by(pgassay_record::activity::LoadBy::Wait) {
        let of_row = ClassLoads::of(activity, &row.by_wait);
        for (sum, load) in loads.0.iter_mut().zip(of_row.0) {
            *sum += load;
        }
    }
    let mut spans = Vec::new();
    let mut used = 0;
    for (class, sessions) in WaitClass::ALL.into_iter().zip(loads.0) {
        if sessions <= 0.0 {
            continue;
        }
        let text = format!("{} {} {}  ", class.letter(), class.title(), load(sessions));
        used += text.chars().count();
        spans.push(Span::styled(text, paint.class(class)));
    }
    let left = width.saturating_sub(used).min(SPARKLINE_WIDTH);
    if left > HISTORY.len() {
        spans.push(Span::raw(HISTORY));
        spans.push(Span::raw(sparkline(state, left - HISTORY.len())));
    }
    Line::from(spans)
}

/// The active sessions of the latest readings.
fn sparkline(state: &TopState, width: usize) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let highest = state.history.iter().copied().fold(0.0, f64::max);
    let from = state.history.len().saturating_sub(width);
    let latest = state.history.iter().skip(from);
    latest
        .map(|value| {
            let level = value / highest.max(f64::MIN_POSITIVE) * 7.0;
            LEVELS[(level.round() as usize).min(7)]
        })
        .collect()
}

/// Lines of text from the one on that was scrolled to, wrapped.
fn text(
    lines: impl Iterator<Item = String>,
    state: &TopState,
    width: usize,
    height: usize,
) -> Vec<Line<'static>> {
    let wrapped: Vec<String> = lines
        .flat_map(|it| wrapping::wrapped(&visible(&it), width))
        .collect();
    let most = wrapped.len().saturating_sub(height);
    state.text_from_max.set(most);
    let from = state.text_from.min(most);
    wrapped.into_iter().skip(from).map(Line::from).collect()
}

/// The head of the columns, and the rows around the selected one.
fn list(state: &TopState, width: usize, height: usize, paint: Paint) -> Vec<Line<'static>> {
    let shown: Vec<(usize, TopColumn)> = columns(state.view)
        .iter()
        .copied()
        .enumerate()
        .filter(|(_, it)| it.screen_min <= width)
        .collect();
    let fixed: usize = shown.iter().map(|(_, it)| it.width).sum();
    let rest = width.saturating_sub(fixed + shown.len().saturating_sub(1));
    let of_column = |it: &TopColumn| if it.width == 0 { rest } else { it.width };
    let mut head = Vec::new();
    for (at, (_, column)) in shown.iter().enumerate() {
        if at > 0 {
            head.push(Span::raw(" "));
        }
        let text = fit(column.title, of_column(column), column.is_right);
        let is_sorted =
            column.letter != ' ' && column.letter == state.sorted_by[state.view as usize];
        let style = Style::new().add_modifier(if is_sorted {
            Modifier::BOLD | Modifier::UNDERLINED
        } else {
            Modifier::BOLD
        });
        head.push(Span::styled(text, style));
    }
    let mut lines = vec![Line::from(head)];
    let rows = state.rows();
    if rows.is_empty() {
        let why = wrapping::wrapped(&visible(&empty(state)), width);
        lines.extend(why.into_iter().map(Line::from));
        return lines;
    }
    let room = height.saturating_sub(1).max(1);
    let from = state.selected.saturating_sub(room - 1);
    for (at, row) in rows.iter().enumerate().skip(from).take(room) {
        let is_selected = at == state.selected;
        lines.push(line(row, &shown, &of_column, (is_selected, paint)));
    }
    lines
}

/// Why a list has no rows: because nothing happens, or because it cannot be seen.
fn empty(state: &TopState) -> String {
    let Some(activity) = &state.shown else {
        return "Reading …".to_owned();
    };
    if !state.filter.is_empty() {
        return "No row contains the filter; Esc clears it.".to_owned();
    }
    let unseen = unseen_sessions(activity);
    let is_unseen = !unseen.is_empty();
    let (known, missing) = match state.view {
        TopView::Statements if is_unseen => ("No session that can be seen was active", unseen),
        TopView::Waiting if is_unseen => ("No session that can be seen waited", unseen),
        TopView::Statements => ("No session was active", unseen),
        TopView::Waiting => ("No session waited", unseen),
        TopView::Blocking => match unknown_blocking(activity) {
            Some(check) => ("Who blocks whom is not known", vec![check]),
            None if is_unseen => ("No session that can be seen blocked another", unseen),
            None => ("No session blocked another", unseen),
        },
        TopView::Tables => match (unknown_tables(activity), &activity.catalog) {
            (Some(check), _) => ("Tables cannot be read", vec![check]),
            (None, None) => return "Tables are read at the end of this interval …".to_owned(),
            (None, Some(_)) => ("No table was read or written", Vec::new()),
        },
        TopView::Sessions if is_unseen => (
            "No session that can be seen is active or in a transaction",
            unseen,
        ),
        TopView::Sessions => ("No session is active or in a transaction", unseen),
        TopView::Findings => (
            "No known cause of lost time was found",
            blind_spots(activity),
        ),
    };
    let missing: Vec<String> = missing.into_iter().map(blind_spot).collect();
    if missing.is_empty() {
        format!("{known}.")
    } else {
        format!("{known}: {}", missing.join("; "))
    }
}

fn line(
    row: &TopRow,
    shown: &[(usize, TopColumn)],
    width_of: &impl Fn(&TopColumn) -> usize,
    (is_selected, paint): (bool, Paint),
) -> Line<'static> {
    let mut spans = Vec::new();
    for (at, (index, column)) in shown.iter().enumerate() {
        if at > 0 {
            spans.push(Span::raw(" "));
        }
        let width = width_of(column);
        let cell = &row.cells[*index];
        match &cell.bar {
            Some((loads, whole)) => spans.extend(bar(loads, *whole, width, paint)),
            None => spans.push(Span::styled(
                fit(&visible(&cell.text), width, column.is_right),
                ink(row, *column, cell, paint),
            )),
        }
    }
    let line = Line::from(spans);
    if is_selected {
        line.style(Style::new().add_modifier(Modifier::REVERSED))
    } else {
        line
    }
}

/// Ages are colored, as in `pg_activity`.
fn ink(row: &TopRow, column: TopColumn, cell: &TopCell, paint: Paint) -> Style {
    let is_age = matches!(column.title, "MEAN" | "FOR" | "BLOCKER" | "WAIT" | "AGE");
    if is_age && !cell.text.is_empty() {
        paint.urgency(row.urgency)
    } else {
        Style::new()
    }
}

fn bar(loads: &ClassLoads, whole: f64, width: usize, paint: Paint) -> Vec<Span<'static>> {
    let mut used = 0;
    let mut spans = Vec::new();
    for (class, columns) in loads.columns(whole, width) {
        used += columns;
        let text = class.letter().to_string().repeat(columns);
        spans.push(Span::styled(text, paint.class(class)));
    }
    spans.push(Span::raw(" ".repeat(width.saturating_sub(used))));
    spans
}

fn bottom_height(height: usize) -> usize {
    if height > 3 { 2 } else { 1 }
}

/// What the selected row needs, with our own cost if there is room, then the keys.
fn bottom(state: &TopState, width: usize, height: usize, paint: Paint) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if bottom_height(height) > 1 {
        let (text, style) = hint(state, paint);
        let text = visible(&text);
        let cost = state.shown.as_ref().map_or_else(String::new, own_cost);
        let cost = visible(&cost);
        let left = width.saturating_sub(cost.chars().count());
        lines.push(if Span::raw(&text).width() < left {
            let hint = Span::styled(fit(&text, left, false), style);
            Line::from(vec![hint, Span::raw(cost)])
        } else {
            Line::styled(fit(&text, width, false), style)
        });
    }
    let keys = if KEYS.len() <= width { KEYS } else { FEW_KEYS };
    let style = Style::new().add_modifier(Modifier::REVERSED);
    lines.push(Line::styled(fit(keys, width, false), style));
    lines
}

/// What pgassay itself uses.
fn own_cost(activity: &Activity) -> String {
    format!(
        "pgassay {} CPU {}",
        share(activity.cost.own_cpu_us, activity.window_us),
        size(activity.cost.peak_memory_bytes)
    )
}

/// How to close the help, and to see the rest of it.
fn help_hint(state: &TopState) -> String {
    if state.text_from_max.get() > 0 {
        "j k scroll; any other key closes the help".to_owned()
    } else {
        "any key closes the help".to_owned()
    }
}

/// The time that the figures of the list are of. Tables are read less often than sessions.
fn counted_us(state: &TopState) -> f64 {
    let shown = state.shown.as_ref();
    let tables = shown.and_then(|it| it.catalog.as_ref());
    match tables.filter(|_| state.view == TopView::Tables) {
        Some(tables) => tables.window_us,
        None => shown.map_or(0.0, |it| it.window_us),
    }
}

/// How the selected finding would be fixed, if one statement does it.
fn fix(state: &TopState) -> Option<String> {
    if state.findings.is_empty() {
        return None;
    }
    let row = state.selected_row()?;
    let mut findings = state.findings.iter();
    let selected = findings.find(|it| finding_rows::key(it) == row.key)?;
    Some(format!(
        "{} (pgassay does not run it)",
        finding_sql(selected)?
    ))
}

/// The line above the keys: what is typed, the answer to a key, or how a blocker would be ended.
fn hint(state: &TopState, paint: Paint) -> (String, Style) {
    let plain = Style::new();
    match state.mode {
        KeyMode::Filter => return (format!("filter: {}_", state.filter), plain),
        KeyMode::Sort => {
            let letters = sort_letters(state.view).map(|(letter, what)| format!("{letter} {what}"));
            let letters: Vec<String> = letters.collect();
            return (format!("sort by: {}", letters.join(", ")), plain);
        }
        KeyMode::Help => return (help_hint(state), plain),
        KeyMode::Command | KeyMode::Detail => {}
    }
    if let Some(message) = &state.message {
        return (message.clone(), plain);
    }
    if let Some(why) = &state.stopped {
        return (
            format!("the watch has ended: {why}"),
            paint.of(Color::Yellow),
        );
    }
    if let Some(why) = &state.lost {
        let text = format!("no connection, trying again: {why}");
        return (text, paint.of(Color::Yellow));
    }
    let episode = state.shown.as_ref().and_then(|activity| {
        let at = state.selected_row()?.episode?;
        activity.blocking.get(at)
    });
    if let Some(episode) = episode.filter(|it| it.is_worth_ending()) {
        let blocker = pgassay_report::activity::root_name(&episode.root);
        let text = format!("{blocker}: {} (pgassay does not run it)", episode.ended_by);
        return (text, paint.urgency(Urgency::of(episode.root.state_age_us)));
    }
    if let Some(fix) = fix(state) {
        return (fix, plain);
    }
    if !state.filter.is_empty() {
        return (format!("filter: {}  (Esc clears)", state.filter), plain);
    }
    let shown = state.shown.as_ref();
    let is_unread = shown.is_some_and(|it| it.catalog.is_none() && unknown_tables(it).is_none());
    let is_still = state.is_paused || state.stopped.is_some();
    if state.view == TopView::Findings && is_unread && !is_still {
        let text = "tables and settings are read at the end of this interval";
        return (text.to_owned(), plain);
    }
    (format!("over the last {}", age(counted_us(state))), plain)
}
