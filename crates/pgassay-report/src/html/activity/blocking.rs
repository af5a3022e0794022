//! Who blocks whom, as a tree, with the statement that would end it.

use maud::{Markup, html};
use pgassay_record::activity::{Activity, BlockedSession, BlockingEpisode};

use crate::activity::{
    blocked_name, blocked_waits, blocks, root_describes, root_name, root_statement_label,
    seen_when, waited_in_all, waits_in_turn,
};
use crate::number;

/// Sessions of a tree that are listed; the others are counted.
const BLOCKED_MAX: usize = 100;

/// The section; empty if no session blocked another.
pub(super) fn section(activity: &Activity) -> Markup {
    html! {
        @if !activity.blocking.is_empty() {
            section #blocking {
                h2 { "Blocking" }
                p.lead {
                    "Sessions that blocked others and did not wait, read once a second; longest total wait first. "
                    "pgassay does not run the statements that would end them."
                }
                @if let Some((_, text)) = waits_in_turn(activity) { p { (text) "." } }
                @for (at, episode) in activity.blocking.iter().enumerate() {
                    (tree(activity, episode, at < 3))
                }
            }
        }
    }
}

/// Sessions that are idle in a transaction and hold locks: the next ones to block.
pub(super) fn idle_holders(activity: &Activity) -> Markup {
    html! {
        @if !activity.idle_lock_holders.is_empty() {
            section #idle-lock-holders {
                h2 { "Idle lock holders" }
                p.lead {
                    "Sessions that hold locks while they are idle in a transaction. No session waits for "
                    "them now."
                }
                ul {
                    @for it in activity.idle_lock_holders.iter().take(BLOCKED_MAX) {
                        li {
                            b { (root_name(&it.holder)) } ": " (root_describes(&it.holder, true))
                            @if let Some(statement) = &it.holder.statement {
                                " " code { (statement) }
                            }
                            "; to end it: " code { (it.ended_by) }
                        }
                    }
                }
            }
        }
    }
}

fn tree(activity: &Activity, episode: &BlockingEpisode, open: bool) -> Markup {
    let root = &episode.root;
    let when = seen_when(episode, activity.window_us);
    let (shown, rest) = episode
        .blocked
        .split_at(episode.blocked.len().min(BLOCKED_MAX));
    html! {
        details open[open] {
            summary {
                b { (root_name(root)) } " " (blocks(episode)) " "
                (number::count(episode.blocked.len() as u64, "session"))
                (waited_in_all(episode)) " (" (when) ")"
            }
            p { (root_describes(root, episode.is_lasting)) "." }
            @if let Some(statement) = &root.statement { p { (root_statement_label(root)) code { (statement) } } }
            ul.tree { @for blocked in shown { (branch(activity, blocked, episode.is_lasting)) } }
            @if !rest.is_empty() { p.faint { "… and " (rest.len()) " more." } }
            @if episode.is_worth_ending() { p { "To end it: " code { (episode.ended_by) } } }
        }
    }
}

fn branch(activity: &Activity, blocked: &BlockedSession, is_lasting: bool) -> Markup {
    let depth = blocked.depth.clamp(1, 8) - 1;
    html! {
        li style=(format!("margin-left: {}em", f64::from(depth) * 1.5)) {
            b { (blocked_name(activity, blocked)) } " " (blocked_waits(blocked, is_lasting))
            span.faint { " " (blocked.user) " " (blocked.application) }
            @if let Some(statement) = &blocked.statement { " " code { (statement) } }
        }
    }
}
