//! Who blocks whom, as a tree, with the statement that would end it.

use pgassay_record::activity::{Activity, BlockedSession, BlockingEpisode};

use super::super::style::{Style, heading};
use super::super::table::{TextStyle, cut, paint, visible, wrap};
use crate::activity::{
    age, blocked_waits, blocks, one_line, root_describes, root_name, waited_in_all,
};
use crate::number;

/// The page shows the others.
const EPISODES_MAX: usize = 3;
const SHOWN_SHARE_MIN: f64 = 0.02;
const BLOCKED_MAX: usize = 8;
/// Deeper sessions are not indented further.
const DEPTH_MAX: u32 = 8;
const INDENT: &str = "    ";

/// Sessions that are idle in a transaction and hold locks: the next ones to block. Empty if there are
/// none.
pub(super) fn idle_holders(activity: &Activity, style: Style) -> String {
    if activity.idle_lock_holders.is_empty() {
        return String::new();
    }
    let why = "sessions that hold locks while they are idle in a transaction; no session waits for them yet";
    let mut out = heading("IDLE LOCK HOLDERS", why, style);
    for it in activity.idle_lock_holders.iter().take(BLOCKED_MAX) {
        let text = format!("{}: {}", root_name(&it.holder), root_describes(&it.holder));
        out.push_str(&wrap(&text, style.columns(), "  ", INDENT));
        let end = format!("to end it: {}", it.ended_by);
        out.push_str(&wrap(&end, style.columns(), INDENT, INDENT));
    }
    let rest = activity.idle_lock_holders.len().saturating_sub(BLOCKED_MAX);
    if rest > 0 {
        out.push_str(&line("  ", &format!("… and {rest} more"), style.columns()));
    }
    out
}

/// The section; empty if no session blocked another.
pub(super) fn section(activity: &Activity, style: Style) -> String {
    if activity.blocking.is_empty() {
        return String::new();
    }
    let why = "sessions that blocked others, as seen once a second; longest total wait first";
    let mut out = heading("BLOCKING", why, style);
    // Behind the first one, those that only changed hands are not worth a tree.
    let waited_us: f64 = activity.blocking.iter().map(|it| it.waited_us).sum();
    let is_shown = |it: &&BlockingEpisode| it.waited_us >= SHOWN_SHARE_MIN * waited_us;
    let shown: Vec<_> = activity
        .blocking
        .iter()
        .filter(is_shown)
        .take(EPISODES_MAX)
        .collect();
    for episode in &shown {
        out.push_str(&tree(episode, activity.window_us, style));
    }
    let rest = activity.blocking.len() - shown.len();
    if rest > 0 {
        let text = format!("  … and {}", number::count(rest as u64, "other blocker"));
        out.push_str(&(paint(&visible(&text), TextStyle::Faint, style.color) + "\n"));
    }
    out
}

fn tree(episode: &BlockingEpisode, window_us: f64, style: Style) -> String {
    let columns = style.columns();
    let root = &episode.root;
    let when = when(episode, window_us);
    let title = format!(
        "{} {} {}, which waited{} ({when})",
        root_name(root),
        blocks(episode),
        number::count(episode.blocked.len() as u64, "session"),
        waited_in_all(episode),
    );
    let ink = if episode.is_lasting {
        TextStyle::Bad
    } else {
        TextStyle::Caution
    };
    let title = wrap(&title, columns, "  ", INDENT);
    let mut out = paint(title.trim_end(), ink, style.color) + "\n";
    out.push_str(&wrap(&root_describes(root), columns, INDENT, INDENT));
    if let Some(statement) = &root.statement {
        out.push_str(&line(INDENT, &one_line(statement), columns));
    }
    for blocked in episode.blocked.iter().take(BLOCKED_MAX) {
        out.push_str(&branch(blocked, columns));
    }
    let rest = episode.blocked.len().saturating_sub(BLOCKED_MAX);
    if rest > 0 {
        let text = format!("└ … and {} more", number::whole(rest as f64));
        out.push_str(&line(INDENT, &text, columns));
    }
    if episode.is_worth_ending() {
        let end = format!("to end it: {}", episode.ended_by);
        let end = wrap(&end, columns, INDENT, INDENT);
        out.push_str(&(paint(end.trim_end(), TextStyle::Strong, style.color) + "\n"));
        let note = format!("{INDENT}pgassay does not run it");
        out.push_str(&(paint(&note, TextStyle::Faint, style.color) + "\n"));
    }
    out
}

/// When an episode was seen within the window.
fn when(episode: &BlockingEpisode, window_us: f64) -> String {
    let from_start = episode.first_seen_us < window_us * 0.1;
    let (first, last) = (age(episode.first_seen_us), age(episode.last_seen_us));
    match (episode.is_lasting, from_start) {
        (true, true) => "still blocking".to_owned(),
        (true, false) => format!("since {first} into the window, still blocking"),
        (false, _) if first == last => format!("at {first} into the window"),
        (false, _) => format!("from {first} to {last} into the window"),
    }
}

fn branch(blocked: &BlockedSession, columns: usize) -> String {
    let depth = blocked.depth.clamp(1, DEPTH_MAX) as usize;
    let indent = format!("{INDENT}{}└ ", "  ".repeat(depth - 1));
    let statement = blocked
        .statement
        .as_deref()
        .map_or_else(String::new, |it| format!(": {}", one_line(it)));
    let text = format!("{} {}{statement}", blocked.pid, blocked_waits(blocked));
    line(&indent, &text, columns)
}

/// One line, cut to the terminal.
fn line(indent: &str, text: &str, columns: usize) -> String {
    cut(&visible(&format!("{indent}{text}")), columns) + "\n"
}
