//! Who blocks whom, as a tree, with the statement that would end it.

use pgassay_record::activity::{Activity, BlockedSession, BlockingEpisode};

use super::super::style::{Style, heading};
use super::super::table::{TextStyle, cut, paint, visible, wrap};
use crate::activity::{
    blocked_name, blocked_waits, blocks, divided, one_line, root_describes, root_name,
    root_statement_label, seen_when, waited_in_all, waits_in_turn,
};
use crate::number;

/// The page shows the others.
const EPISODES_MAX: usize = 3;
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
    let why = "sessions that hold locks while they are idle in a transaction; no session waits for them now";
    let mut out = heading("IDLE LOCK HOLDERS", why, style);
    for it in activity.idle_lock_holders.iter().take(BLOCKED_MAX) {
        let text = format!(
            "{}: {}",
            root_name(&it.holder),
            root_describes(&it.holder, true)
        );
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
    let why = "sessions that blocked others, read once a second; longest total wait first";
    let mut out = heading("BLOCKING", why, style);
    let (long, short) = divided(activity);
    let in_turn = waits_in_turn(activity);
    let of_turns = in_turn.as_ref().map_or(String::new(), |(_, text)| {
        wrap(text, style.columns(), "  ", INDENT)
    });
    let is_first = in_turn.is_some_and(|(us, _)| long.first().is_none_or(|it| it.waited_us < us));
    if is_first {
        out.push_str(&of_turns);
    }
    // Those that block in turn have a line, and no trees.
    let trees = if long.is_empty() && of_turns.is_empty() {
        &short
    } else {
        &long
    };
    let shown = trees.iter().take(EPISODES_MAX);
    for episode in shown.clone() {
        out.push_str(&tree(activity, episode, style));
    }
    if !is_first {
        out.push_str(&of_turns);
    }
    let in_line = if of_turns.is_empty() { 0 } else { short.len() };
    let rest = activity.blocking.len() - shown.len() - in_line;
    if rest > 0 {
        let text = format!("  … and {}", number::count(rest as u64, "other blocker"));
        out.push_str(&(paint(&visible(&text), TextStyle::Faint, style.color) + "\n"));
    }
    out
}

fn tree(activity: &Activity, episode: &BlockingEpisode, style: Style) -> String {
    let columns = style.columns();
    let root = &episode.root;
    let when = seen_when(episode, activity.window_us);
    let title = format!(
        "{} {} {}{} ({when})",
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
    out.push_str(&wrap(
        &root_describes(root, episode.is_lasting),
        columns,
        INDENT,
        INDENT,
    ));
    if let Some(statement) = &root.statement {
        let label = root_statement_label(root);
        out.push_str(&line(
            INDENT,
            &format!("{label}{}", one_line(statement)),
            columns,
        ));
    }
    for blocked in episode.blocked.iter().take(BLOCKED_MAX) {
        out.push_str(&branch(activity, blocked, episode.is_lasting, columns));
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

fn branch(
    activity: &Activity,
    blocked: &BlockedSession,
    is_lasting: bool,
    columns: usize,
) -> String {
    let depth = blocked.depth.clamp(1, DEPTH_MAX) as usize;
    let indent = format!("{INDENT}{}└ ", "  ".repeat(depth - 1));
    let statement = blocked
        .statement
        .as_deref()
        .map_or_else(String::new, |it| format!(": {}", one_line(it)));
    let name = blocked_name(activity, blocked);
    let text = format!("{name} {}{statement}", blocked_waits(blocked, is_lasting));
    line(&indent, &text, columns)
}

/// One line, cut to the terminal.
fn line(indent: &str, text: &str, columns: usize) -> String {
    cut(&visible(&format!("{indent}{text}")), columns) + "\n"
}
