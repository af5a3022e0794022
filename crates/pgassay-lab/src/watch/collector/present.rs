//! The sessions of the last reading, one by one.

use std::collections::HashMap;

use pgassay_record::activity::{Activity, RootBlocker, SessionStatus};

use super::Collector;

/// A session that was active or in a transaction at the last reading. Ages are in microseconds; `None` if unknown.
#[derive(Debug, Clone, PartialEq)]
pub struct PresentSession {
    /// Index into [`Activity::sessions`].
    pub session: u32,
    /// Index into [`Activity::statements`]: its current statement, or if it is idle the last one.
    pub statement: Option<u32>,
    /// Its state.
    pub state: SessionStatus,
    /// Index into [`Activity::waits`].
    pub wait: u32,
    /// Time since this statement began.
    pub statement_age_us: Option<f64>,
    /// Time since its transaction began.
    pub transaction_age_us: Option<f64>,
    /// Time since its state changed.
    pub state_age_us: Option<f64>,
    /// Time since it connected.
    pub session_age_us: Option<f64>,
    /// It is an autovacuum worker that prevents wraparound.
    pub prevents_wraparound: bool,
}

impl Collector {
    /// The sessions of the last reading that are in this activity, which was described at the same time. `now_us` is
    /// the time on the server's clock, in microseconds since 1970.
    pub fn present(&self, activity: &Activity, now_us: i64) -> Vec<PresentSession> {
        let sessions = activity.sessions.iter().zip(0_u32..);
        // One with PID 0 stands for the rest.
        let sessions = sessions.filter(|(it, _)| it.pid != 0);
        let sessions: HashMap<(u32, i64), u32> = sessions
            .map(|(it, at)| ((it.pid, it.started_us), at))
            .collect();
        let statements = activity.statements.iter().zip(0_u32..);
        let statements: HashMap<&str, u32> = statements
            .map(|(it, at)| (it.fingerprint.as_str(), at))
            .collect();
        let mut numbers: HashMap<Option<u32>, Option<u32>> = HashMap::new();
        let age_us = |since_us: i64| (since_us > 0).then(|| (now_us - since_us).max(0) as f64);
        let last = self.attribution.last().iter();
        last.filter_map(|seen| {
            let identity = self.identity(seen.session);
            let session = *sessions.get(&(identity.pid, identity.started_us))?;
            let statement = seen.activity.statement;
            let statement = numbers.entry(statement).or_insert_with(|| {
                let fingerprint = self.words(seen, false).1?;
                statements.get(fingerprint.as_str()).copied()
            });
            let wait = &self.waits.waits[seen.activity.wait as usize];
            let wait = activity.waits.iter().position(|it| it == wait);
            let is_vacuum = identity.backend_type == RootBlocker::AUTOVACUUM;
            let is_last_resort = |text: String| text.contains("(to prevent wraparound)");
            Some(PresentSession {
                session,
                statement: *statement,
                state: seen.activity.state,
                wait: wait.unwrap_or(0) as u32,
                statement_age_us: age_us(seen.activity_started_us),
                transaction_age_us: age_us(seen.transaction_started_us),
                state_age_us: age_us(seen.state_changed_us),
                session_age_us: age_us(identity.started_us),
                prevents_wraparound: is_vacuum
                    && self.words(seen, true).0.is_some_and(is_last_resort),
            })
        })
        .collect()
    }
}
