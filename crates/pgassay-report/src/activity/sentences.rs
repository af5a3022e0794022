//! Blockers, waits and the cost of watching in words.

use pgassay_record::activity::{
    Activity, ActivitySource, ActivityWait, BlockedSession, BlockingEpisode, LockTarget,
    RootBlocker,
};

use super::figures::{age, share, size};
use crate::number;

/// A wait event as in the ledger: `Lock: transactionid`; `CPU` if it is none.
pub fn wait_name(wait: &ActivityWait) -> String {
    match (&*wait.kind, &*wait.name) {
        ("", _) => "CPU or run queue".to_owned(),
        (kind, "") => kind.to_owned(),
        (kind, name) => format!("{kind}: {name}"),
    }
}

/// A root blocker's name: `session 4711`, `startup process 4711`, `prepared transaction 'x'`.
pub fn root_name(root: &RootBlocker) -> String {
    match (root.pid, &root.gid) {
        (_, Some(gid)) => format!("prepared transaction '{gid}'"),
        (Some(pid), None) if root.is_recovery() => format!("startup process {pid}"),
        (Some(pid), None) => format!("session {pid}"),
        (None, None) => "a session without a PID".to_owned(),
    }
}

/// Where a root blocker comes from and what it holds, or held when it was seen: user, database, application, client,
/// lock.
pub fn root_describes(root: &RootBlocker, is_lasting: bool) -> String {
    let (waits, holds) = if is_lasting {
        ("waits", "holds")
    } else {
        ("waited", "held")
    };
    let mut parts = vec![match &*root.state {
        RootBlocker::UNKNOWN => "state not known".to_owned(),
        RootBlocker::UNTRACKED => {
            "state and statement not known (track_activities is off)".to_owned()
        }
        state => format!("{state} for {}", age(root.state_age_us)),
    }];
    if let Some(wait) = &root.wait {
        parts.push(format!("{waits} for {}", wait_name(wait)));
    }
    if let Some(transaction_us) = root.transaction_age_us {
        parts.push(format!("transaction {}", age(transaction_us)));
    }
    for (what, name) in [
        ("user", &root.user),
        ("database", &root.database),
        ("application", &root.application),
        ("client", &root.client),
    ] {
        if !name.is_empty() {
            parts.push(format!("{what} {name}"));
        }
    }
    if let Some(held) = &root.holds {
        let relation = relation_name(&held.relation.schema, &held.relation.name);
        parts.push(format!("{holds} {} on {relation}", held.mode));
    }
    if root.is_deadlocked {
        parts.push("in a deadlock, which the server ends after deadlock_timeout".to_owned());
    }
    if root.prevents_wraparound {
        parts.push("prevents wraparound and does not yield".to_owned());
    }
    parts.join(", ")
}

/// A blocked session's name: its PID, and what it is unless it serves a client. Recovery replays a lock of the primary.
pub fn blocked_name(activity: &Activity, blocked: &BlockedSession) -> String {
    let pid = blocked.pid;
    if blocked.is_recovery {
        return format!("startup process {pid}");
    }
    let mut sessions = activity.sessions.iter().rev();
    let kind = sessions
        .find(|it| it.pid == pid)
        .map(|it| &*it.backend_type);
    match kind.unwrap_or_default() {
        "" | "client backend" | "parallel worker" => pid.to_string(),
        kind => format!("{kind} {pid}"),
    }
}

/// What a blocked session waits for, and how long; or waited for, if its blocker is gone.
pub fn blocked_waits(blocked: &BlockedSession, is_lasting: bool) -> String {
    let waits = if is_lasting { "waits" } else { "waited" };
    let target = &blocked.waits_for;
    // It got its lock between two queries.
    if target.kind.is_empty() {
        return "waited for a lock".to_owned();
    }
    let relation = target.relation.as_ref().map_or_else(String::new, |it| {
        format!(" on {}", relation_name(&it.schema, &it.name))
    });
    let waited = known_wait(blocked.waited_us).map_or_else(String::new, |it| format!(" {it}"));
    // A row lock is waited for as the lock of a transaction, which is on no relation.
    match (target.kind.as_str(), &target.relation) {
        (LockTarget::SAFE_SNAPSHOT, _) => format!("{waits}{waited} for a safe snapshot"),
        ("transactionid" | "tuple", Some(it)) => format!(
            "{waits}{waited} for a row of {} ({}, {})",
            relation_name(&it.schema, &it.name),
            target.kind,
            target.mode
        ),
        _ => format!(
            "{waits}{waited} for {} {}{relation}",
            target.kind, target.mode
        ),
    }
}

/// How long a wait was; `None` if that is not known, as before version 14 of one that was seen once.
pub fn known_wait(waited_us: f64) -> Option<String> {
    (waited_us > 0.0).then(|| age(waited_us))
}

/// What all sessions behind a root waited: `, which waited 4.2 s in all`. Of an episode that one reading saw, only the
/// waits until then are known, including those before the window. Nothing if it is not known.
pub fn waited_in_all(episode: &BlockingEpisode) -> String {
    let is_of_one_reading = !episode.is_lasting && is_moment(episode);
    let until_then_us: f64 = episode.blocked.iter().map(|it| it.waited_us).sum();
    let waited_us = if is_of_one_reading {
        until_then_us
    } else {
        episode.waited_us
    };
    known_wait(waited_us).map_or_else(String::new, |it| {
        if is_of_one_reading {
            format!(", which had waited {it} when they were seen")
        } else {
            format!(", which waited {it} in all")
        }
    })
}

fn is_moment(episode: &BlockingEpisode) -> bool {
    age(episode.first_seen_us) == age(episode.last_seen_us)
}

/// When an episode was seen within the window.
pub fn seen_when(episode: &BlockingEpisode, window_us: f64) -> String {
    let from_start = episode.first_seen_us < window_us * 0.1;
    let (first, last) = (age(episode.first_seen_us), age(episode.last_seen_us));
    match (episode.is_lasting, from_start) {
        (true, true) => "still blocking".to_owned(),
        (true, false) => format!("since {first} into the window, still blocking"),
        // Before an interval of `pgassay top`, which shows it for a while.
        (false, _) if episode.last_seen_us < 0.0 => {
            format!("until {} before the window", age(-episode.last_seen_us))
        }
        (false, _) if is_moment(episode) => format!("at {first} into the window"),
        (false, _) => format!("from {first} to {last} into the window"),
    }
}

/// How the statement of a root is introduced. The last statement of an idle session need not be the one that took the
/// lock.
pub fn root_statement_label(root: &RootBlocker) -> &'static str {
    if root.state.starts_with("idle") {
        "last statement (another may have taken the lock): "
    } else {
        "statement: "
    }
}

/// `blocks` or, if it is over, `blocked`.
pub fn blocks(episode: &BlockingEpisode) -> &'static str {
    if episode.is_lasting {
        "blocks"
    } else {
        "blocked"
    }
}

/// A relation with its schema, unless that is `public` or unknown.
pub fn relation_name(schema: &str, name: &str) -> String {
    match (schema, name) {
        (_, "") => "an unknown relation".to_owned(),
        ("" | "public", name) => name.to_owned(),
        (schema, name) => format!("{schema}.{name}"),
    }
}

/// What watching cost.
pub fn cost(activity: &Activity) -> String {
    let cost = &activity.cost;
    let source = match activity.source {
        ActivitySource::Memory => "the server's shared memory",
        ActivitySource::PgStatActivity => "pg_stat_activity",
    };
    let seconds = activity.window_us / 1e6;
    let rate = activity.sweeps as f64 / seconds.max(f64::MIN_POSITIVE);
    let backend = cost.backend_cpu_us.map_or_else(String::new, |us| {
        format!(", its backends {}", share(us, activity.window_us))
    });
    let connections = match cost.connections {
        0 => String::new(),
        held => format!(" over {}", number::count(u64::from(held), "connection")),
    };
    format!(
        "pgassay used {} of one CPU{backend}, {} of memory, and sent {}{connections}; all sessions were sampled {} \
         times ({}/s), from {source}",
        share(cost.own_cpu_us, activity.window_us),
        size(cost.peak_memory_bytes),
        number::count(cost.statements_sent, "statement"),
        number::whole(activity.sweeps as f64),
        number::decimals(rate, 1),
    )
}

#[cfg(test)]
mod tests {
    use pgassay_record::activity::{ActivitySession, RelationName, SessionHold};

    use super::*;

    fn blocked(pid: u32, waited_us: f64) -> BlockedSession {
        BlockedSession {
            pid,
            waited_us,
            ..BlockedSession::default()
        }
    }

    /// Regression: "4 sessions, which had waited 830 ms when they were seen (at 207 ms into the window)", of sessions
    /// with waits of 2.5 s, 1.3 s, 1.3 s and 1.2 s below it.
    #[test]
    fn waits_before_the_window_count_when_they_are_seen_once() {
        let episode = |is_lasting| BlockingEpisode {
            root: RootBlocker::default(),
            blocked: vec![blocked(1, 2.5e6), blocked(2, 1.3e6)],
            first_seen_us: 207e3,
            last_seen_us: 207e3,
            is_lasting,
            waited_us: 414e3,
            ended_by: String::new(),
        };
        let text = |is_lasting| waited_in_all(&episode(is_lasting)).replace('\u{a0}', " ");
        assert_eq!(text(false), ", which had waited 3.8 s when they were seen");
        assert_eq!(text(true), ", which waited 414 ms in all");
    }

    /// Regression: "blocked 1 session (from 1.0 s to 13 s into the window)", and below it "4712 waits 12 s".
    #[test]
    fn what_waited_behind_a_blocker_that_is_gone_waits_no_longer() {
        let mut waiting = blocked(4712, 12e6);
        waiting.waits_for.kind = "transactionid".to_owned();
        waiting.waits_for.mode = "ShareLock".to_owned();
        let words = |is_lasting| blocked_waits(&waiting, is_lasting).replace('\u{a0}', " ");
        assert_eq!(words(true), "waits 12 s for transactionid ShareLock");
        assert_eq!(words(false), "waited 12 s for transactionid ShareLock");
        let root = RootBlocker {
            holds: Some(SessionHold {
                mode: "RowExclusiveLock".to_owned(),
                relation: RelationName {
                    name: "orders".to_owned(),
                    ..RelationName::default()
                },
            }),
            ..RootBlocker::default()
        };
        assert!(root_describes(&root, true).ends_with("holds RowExclusiveLock on orders"));
        assert!(root_describes(&root, false).ends_with("held RowExclusiveLock on orders"));
    }

    #[test]
    fn a_blocker_that_is_not_tracked_says_why_its_state_and_statement_are_missing() {
        let root = RootBlocker {
            state: RootBlocker::UNTRACKED.to_owned(),
            state_age_us: 12e6,
            ..RootBlocker::default()
        };
        let words = root_describes(&root, true);
        assert_eq!(
            words,
            "state and statement not known (track_activities is off)"
        );
        let mut deferred = blocked(4713, 3e6);
        deferred.waits_for.kind = LockTarget::SAFE_SNAPSHOT.to_owned();
        let words = blocked_waits(&deferred, true).replace('\u{a0}', " ");
        assert_eq!(words, "waits 3.0 s for a safe snapshot");
    }

    /// Regression: "from 0.0 ms to -12000.0 ms into the window", of a blocker in a snapshot of `top`.
    #[test]
    fn blocking_that_ended_before_the_window_is_not_within_it() {
        let when = |last_seen_us| {
            let episode = BlockingEpisode {
                root: RootBlocker::default(),
                blocked: vec![blocked(1, 2.5e6)],
                first_seen_us: 0.0,
                last_seen_us,
                is_lasting: false,
                waited_us: 0.0,
                ended_by: String::new(),
            };
            seen_when(&episode, 2e6).replace('\u{a0}', " ")
        };
        assert_eq!(when(-12e6), "until 12 s before the window");
        assert_eq!(when(1.5e6), "from 0.0 ms to 1.5 s into the window");
    }

    /// Regression: "25846 waits 2.5 s for relation `AccessExclusiveLock`", of a standby's recovery.
    #[test]
    fn recovery_that_waits_has_a_name() {
        let recovery = BlockedSession {
            is_recovery: true,
            ..blocked(25_846, 0.0)
        };
        let session = |pid, kind: &str| ActivitySession {
            pid,
            backend_type: kind.to_owned(),
            ..ActivitySession::default()
        };
        let activity = Activity {
            sessions: vec![
                session(4711, "client backend"),
                session(4712, "logical replication worker"),
            ],
            ..Activity::default()
        };
        let name = |blocked| blocked_name(&activity, &blocked);
        assert_eq!(name(recovery), "startup process 25846");
        assert_eq!(name(blocked(4711, 0.0)), "4711");
        // Regression: a worker that applies changes of a subscription was only a PID.
        assert_eq!(name(blocked(4712, 0.0)), "logical replication worker 4712");
    }
}
