//! What memory shows of sessions that the server's views hide from the user.

use pgassay_record::activity::{BlockingEpisode, RootBlocker, SessionStatus};

use super::super::attribution::Sighting;
use super::super::catalog::session_ended_by;
use super::super::statements::JoinedCounters;
use super::Collector;

impl Collector {
    /// Adds to who blocks whom what the last reading showed of sessions that are hidden. `now_us` is in microseconds
    /// since 1970.
    pub fn show_hidden(&self, episodes: &mut [BlockingEpisode], keeps_text: bool, now_us: i64) {
        let hidden = |it: &&mut BlockingEpisode| it.root.state == RootBlocker::UNKNOWN;
        for episode in episodes.iter_mut().filter(|it| it.is_lasting) {
            for blocked in &mut episode.blocked {
                if let Some(seen) = self
                    .seen(blocked.pid)
                    .filter(|_| blocked.fingerprint.is_none())
                {
                    (blocked.statement, blocked.fingerprint) = self.words(seen, keeps_text);
                }
            }
        }
        for episode in episodes
            .iter_mut()
            .filter(|it| it.is_lasting)
            .filter(hidden)
        {
            let Some(pid) = episode.root.pid else {
                continue;
            };
            if let Some(seen) = self.seen(pid) {
                self.show_root(&mut episode.root, seen, (keeps_text, now_us));
            } else if let Some(age_us) = self.idle.age_us(pid) {
                // As one that holds an advisory lock of its session.
                "idle".clone_into(&mut episode.root.state);
                episode.root.state_age_us = age_us;
            } else {
                continue;
            }
            episode.ended_by = session_ended_by(pid, &episode.root, &episode.blocked);
        }
    }

    fn show_root(
        &self,
        root: &mut RootBlocker,
        seen: &Sighting,
        (keeps_text, now_us): (bool, i64),
    ) {
        let age_us = |since_us: i64| (since_us > 0).then(|| (now_us - since_us).max(0) as f64);
        let identity = self.identity(seen.session);
        let kind = &identity.backend_type;
        let is_worker =
            kind == RootBlocker::AUTOVACUUM || kind.starts_with(RootBlocker::REPLICATION);
        root.state = match seen.activity.state {
            _ if is_worker => kind.clone(),
            SessionStatus::Active => "active".to_owned(),
            SessionStatus::IdleInTransaction => "idle in transaction".to_owned(),
            SessionStatus::IdleInAbortedTransaction => "idle in transaction (aborted)".to_owned(),
        };
        root.state_age_us = age_us(seen.state_changed_us).unwrap_or(0.0);
        root.transaction_age_us = age_us(seen.transaction_started_us);
        let waits = seen.activity.state == SessionStatus::Active && seen.activity.wait != 0;
        root.wait = waits.then(|| self.waits.waits[seen.activity.wait as usize].clone());
        root.application.clone_from(&identity.application);
        root.client.clone_from(&identity.client);
        let text = self.words(seen, true).0.unwrap_or_default();
        root.prevents_wraparound = is_worker && text.contains("(to prevent wraparound)");
        (root.statement, root.fingerprint) = self.words(seen, keeps_text);
    }

    fn seen(&self, pid: u32) -> Option<&Sighting> {
        self.attribution.last().iter().find(|it| it.pid == pid)
    }

    /// A session's statement and its fingerprint.
    pub(super) fn words(
        &self,
        seen: &Sighting,
        keeps_text: bool,
    ) -> (Option<String>, Option<String>) {
        let none = JoinedCounters::default();
        let statement = seen.activity.statement;
        let statement = statement.map(|it| self.statements.describe(it, keeps_text, &none));
        statement.map_or((None, None), |it| (it.text, Some(it.fingerprint)))
    }
}
