//! The rows of the list of sessions.

use pgassay_lab::watch::PresentSession;
use pgassay_record::activity::{Activity, ActivitySession, RootBlocker, SessionStatus};
use pgassay_report::activity::{WaitClass, age, statement_text, wait_name};

use super::rows::{TopRow, Urgency, blocked_now, figure, pid, session_words, word};

/// The sessions that the last reading found active or in a transaction.
pub(super) fn sessions(activity: &Activity, present: &[PresentSession]) -> Vec<TopRow> {
    let rows = present.iter();
    rows.filter_map(|it| session(activity, it)).collect()
}

fn session(activity: &Activity, present: &PresentSession) -> Option<TopRow> {
    let session = activity.sessions.get(present.session as usize)?;
    let is_active = present.state == SessionStatus::Active;
    // Of an idle session it is that for its client.
    let wait = activity.waits.get(present.wait as usize);
    let wait = wait.filter(|_| is_active);
    let is_lock = wait.is_some_and(|it| WaitClass::of(&it.kind) == WaitClass::Lock);
    let blocked = blocked_now(activity, session.pid).filter(|_| is_lock);
    let wait = wait.map(wait_name).unwrap_or_default();
    let age_us = age_us(present);
    let text = text(activity, present, session);
    Some(TopRow {
        key: session.pid.to_string(),
        urgency: Urgency::of(age_us.unwrap_or(0.0)),
        searched: format!(
            "{} {} {wait} {text}",
            session_words(session),
            state_name(present, session)
        ),
        cells: vec![
            pid(session.pid),
            figure(age_us.map_or_else(String::new, age), age_us.unwrap_or(-1.0)),
            word(state(present, session)),
            word(wait),
            word(&session.user),
            word(&session.database),
            word(&session.application),
            word(&session.client),
            word(text),
        ],
        statement: present.statement,
        episode: blocked.map(|it| it.0),
        pid: Some(session.pid),
    })
}

/// For how long it has executed its statement, or has been idle in its transaction.
fn age_us(present: &PresentSession) -> Option<f64> {
    match present.state {
        SessionStatus::Active => present.statement_age_us,
        _ => present.state_age_us,
    }
}

/// Its state as that of a blocker: what it is, if it always is active while it works.
pub(super) fn state_name<'a>(present: &PresentSession, session: &'a ActivitySession) -> &'a str {
    let kind = session.backend_type.as_str();
    match present.state {
        SessionStatus::IdleInTransaction => "idle in transaction",
        SessionStatus::IdleInAbortedTransaction => "idle in transaction (aborted)",
        SessionStatus::Active if kind == "startup" => RootBlocker::RECOVERY,
        SessionStatus::Active
            if kind == RootBlocker::AUTOVACUUM || kind.starts_with(RootBlocker::REPLICATION) =>
        {
            kind
        }
        SessionStatus::Active => "active",
    }
}

/// Its state in few letters.
fn state(present: &PresentSession, session: &ActivitySession) -> &'static str {
    match present.state {
        SessionStatus::Active if session.backend_type == "parallel worker" => "worker",
        SessionStatus::Active => "active",
        SessionStatus::IdleInTransaction => "idle in tx",
        SessionStatus::IdleInAbortedTransaction => "aborted tx",
    }
}

/// Its statement; what it is, if it never has one.
fn text(activity: &Activity, present: &PresentSession, session: &ActivitySession) -> String {
    match (present.statement, session.backend_type.as_str()) {
        (Some(_), _) => statement_text(activity, present.statement),
        (None, "" | "client backend") => "(unknown statement)".to_owned(),
        (None, kind) => format!("({kind})"),
    }
}
