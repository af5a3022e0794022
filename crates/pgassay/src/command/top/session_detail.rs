//! The details of a session: what it is, what it did, and the statement that would end it.

use std::collections::BTreeMap;

use pgassay_lab::watch::PresentSession;
use pgassay_lab::watch::catalog::session_ended_by;
use pgassay_record::activity::{
    Activity, ActivitySession, BlockedSession, RootBlocker, SessionStatus,
};
use pgassay_report::activity::{age, root_describes, share, wait_name};

use super::detail::largest;
use super::session_rows::state_name;

/// The lines, each of any length.
pub(super) fn lines(activity: &Activity, present: &[PresentSession], pid: u32) -> Vec<String> {
    let session = |it: &PresentSession| activity.sessions.get(it.session as usize);
    let found = present.iter().find_map(|it| {
        session(it)
            .filter(|session| session.pid == pid)
            .zip(Some(it))
    });
    let mut lines = match found {
        Some((session, present)) => now(activity, session, present),
        None => vec![format!(
            "Session {pid} was idle at the last reading, or has ended."
        )],
    };
    lines.extend(meanwhile(activity, pid));
    lines.push(String::new());
    lines
}

/// What it is and does, and what would end that.
fn now(activity: &Activity, session: &ActivitySession, present: &PresentSession) -> Vec<String> {
    let pid = session.pid;
    let is_active = present.state == SessionStatus::Active;
    let wait = activity.waits.get(present.wait as usize);
    let wait = wait.filter(|it| is_active && !it.kind.is_empty());
    let as_root = RootBlocker {
        pid: Some(pid),
        database: session.database.clone(),
        user: session.user.clone(),
        application: session.application.clone(),
        client: session.client.clone(),
        state: state_name(present, session).to_owned(),
        state_age_us: present.state_age_us.unwrap_or(0.0),
        wait: wait.cloned(),
        transaction_age_us: present.transaction_age_us,
        prevents_wraparound: present.prevents_wraparound,
        ..RootBlocker::default()
    };
    let mut lasting = activity.blocking.iter().filter(|it| it.is_lasting);
    let behind = lasting.find(|it| it.root.pid == Some(pid));
    let behind = behind.map_or(&[][..], |it| &it.blocked);
    let since = present.session_age_us;
    let since = since.map_or_else(String::new, |it| format!(", connected for {}", age(it)));
    let mut lines = vec![format!(
        "Session {pid}: {}{since}.",
        root_describes(&as_root, true)
    )];
    lines.extend(match behind.len() {
        0 => None,
        1 => Some("It blocks 1 session: key 3.".to_owned()),
        more => Some(format!("It blocks {more} sessions: key 3.")),
    });
    lines.extend(ending(session, &as_root, behind));
    lines
}

/// What would end it.
fn ending(session: &ActivitySession, root: &RootBlocker, behind: &[BlockedSession]) -> Vec<String> {
    let kind = session.backend_type.as_str();
    if kind == "parallel worker" {
        return vec!["It works for another session, and ends with its statement.".to_owned()];
    }
    let is_of_work = matches!(kind, "" | "client backend" | "startup")
        || kind == RootBlocker::AUTOVACUUM
        || kind.starts_with(RootBlocker::REPLICATION);
    if !is_of_work {
        return Vec::new();
    }
    let ended_by = session_ended_by(session.pid, root, behind);
    match ended_by.strip_prefix("-- ") {
        Some(advice) => vec![format!("How it ends: {advice}.")],
        None => vec![
            format!("To end it: {ended_by}"),
            "pgassay does not run it.".to_owned(),
        ],
    }
}

/// What it did in the last interval.
fn meanwhile(activity: &Activity, pid: u32) -> Option<String> {
    let of_session = |index: u32| {
        let session = activity.sessions.get(index as usize);
        session.is_some_and(|it| it.pid == pid)
    };
    let (mut by_wait, mut active_us) = (BTreeMap::new(), 0.0);
    let cells = activity.cells.iter();
    for cell in cells.filter(|it| it.state == SessionStatus::Active && of_session(it.session)) {
        *by_wait.entry(cell.wait).or_insert(0.0) += cell.time_us;
        active_us += cell.time_us;
    }
    if active_us <= 0.0 {
        return None;
    }
    let parts = largest(by_wait).into_iter().map(|(wait, us)| {
        let name = activity.waits.get(wait as usize);
        let name = name.map_or_else(|| "?".to_owned(), wait_name);
        format!("{} {name}", share(us, activity.window_us))
    });
    let parts: Vec<String> = parts.collect();
    Some(format!(
        "Active for {} of the last interval: {}.",
        share(active_us, activity.window_us),
        parts.join(", ")
    ))
}
