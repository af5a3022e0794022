//! Waits for locks behind sessions that block in turn, each for too short a time to be seen for all of it.

use std::collections::BTreeMap;

use pgassay_record::activity::{Activity, BlockingEpisode, SessionStatus};

use super::figures::{age, load};
use super::statement::one_line;
use super::wait_class::WaitClass;
use crate::number;

/// Blockers with a smaller share of the waits for locks are not worth a tree.
const SHOWN_SHARE_MIN: f64 = 0.02;
/// The readings of who blocks whom may miss so much of the waits behind blockers that last.
const MISSED_MAX: f64 = 0.1;
/// The time between two readings of who blocks whom.
const READING_US: f64 = 1e6;

/// Time that active sessions waited for locks, by samples, in microseconds.
fn lock_waits_us(activity: &Activity) -> f64 {
    let is_lock = |wait: u32| {
        let wait = activity.waits.get(wait as usize);
        wait.is_some_and(|it| WaitClass::of(&it.kind) == WaitClass::Lock)
    };
    let cells = activity.cells.iter();
    let waits = cells.filter(|it| it.state == SessionStatus::Active && is_lock(it.wait));
    waits.map(|it| it.time_us).sum()
}

/// The episodes with enough of the waits to be shown each, and the others. One reading per second sees of a short
/// blocker only the waits until then, so all waits for locks are those of the samples.
pub fn divided(activity: &Activity) -> (Vec<&BlockingEpisode>, Vec<&BlockingEpisode>) {
    let seen_us: f64 = activity.blocking.iter().map(|it| it.waited_us).sum();
    let least_us = SHOWN_SHARE_MIN * seen_us.max(lock_waits_us(activity));
    let all = activity.blocking.iter();
    all.partition(|it| it.is_lasting && it.is_worth_ending() || it.waited_us >= least_us)
}

/// What the others of [`divided`] cost together, and the average sessions that this is; `None` if it is within what
/// the readings may have missed of those shown.
pub fn waits_in_turn(activity: &Activity) -> Option<(f64, String)> {
    let (shown, others) = divided(activity);
    let all_us = lock_waits_us(activity);
    let rest_us = all_us - shown.iter().copied().map(waits_behind).sum::<f64>();
    if others.is_empty() || rest_us < MISSED_MAX * all_us || rest_us <= 0.0 {
        return None;
    }
    let sessions = load(rest_us / activity.window_us.max(f64::MIN_POSITIVE));
    let blockers = number::count(others.len() as u64, "session");
    let most =
        most_blocked(&others).map_or_else(String::new, |it| format!("; most in: {}", one_line(it)));
    let text = format!(
        "{blockers} that blocked others for a short time, in turn: about {} of waits by samples, {sessions} sessions \
         on average{most}",
        age(rest_us)
    );
    Some((rest_us, text))
}

/// The waits behind one blocker: of one that ended, the readings miss half the time between two of them on average.
fn waits_behind(episode: &BlockingEpisode) -> f64 {
    let missed_us = if episode.is_lasting {
        0.0
    } else {
        0.5 * READING_US * episode.blocked.len() as f64
    };
    episode.waited_us + missed_us
}

/// The statement of most sessions that waited.
fn most_blocked<'a>(episodes: &[&'a BlockingEpisode]) -> Option<&'a str> {
    let blocked = episodes.iter().flat_map(|it| &it.blocked);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for text in blocked.filter_map(|it| it.statement.as_deref()) {
        *counts.entry(text).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|it| it.1);
    most.map(|it| it.0)
}
