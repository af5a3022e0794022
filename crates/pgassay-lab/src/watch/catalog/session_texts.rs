//! The statements of sessions, each read and normalized once: a text can have a megabyte.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_script::normalize;

use super::locks::LockSession;
use super::reader::{CatalogReader, array};

/// What the server shows instead of a text of another user.
const HIDDEN: &str = "<insufficient privilege>";

/// A session's current or last statement.
#[derive(Debug, Clone, Default)]
pub(super) struct SessionText {
    /// Normalized; `None` if texts are not kept, hidden, or empty.
    pub statement: Option<String>,
    pub fingerprint: Option<String>,
    /// It is an autovacuum that prevents wraparound.
    pub prevents_wraparound: bool,
}

impl SessionText {
    pub fn new(text: &str, keeps_text: bool) -> Self {
        if text == HIDDEN || text.trim().is_empty() {
            return Self::default();
        }
        let normalized = normalize(text);
        Self {
            statement: keeps_text.then_some(normalized.text),
            fingerprint: Some(normalized.fingerprint),
            // PostgreSQL's src/backend/postmaster/autovacuum.c, autovac_report_activity.
            prevents_wraparound: text.starts_with("autovacuum:")
                && text.contains("(to prevent wraparound)"),
        }
    }
}

/// The texts of the sessions of the last reading.
#[derive(Debug)]
pub(super) struct SessionTexts {
    keeps_text: bool,
    /// By PID and start of the statement.
    known: BTreeMap<(u32, String), SessionText>,
}

impl SessionTexts {
    pub fn new(keeps_text: bool) -> Self {
        Self {
            keeps_text,
            known: BTreeMap::new(),
        }
    }

    /// Reads the texts of statements that are not known yet.
    pub fn read(&mut self, reader: &mut CatalogReader, sessions: &BTreeMap<u32, LockSession>) {
        let keys: BTreeSet<(u32, String)> = sessions.iter().map(key).collect();
        self.known.retain(|key, _| keys.contains(key));
        let unknown: Vec<u32> = keys
            .iter()
            .filter(|key| !self.known.contains_key(key))
            .map(|(pid, _)| *pid)
            .collect();
        if unknown.is_empty() {
            return;
        }
        let sql = format!(
            "select pid, (extract(epoch from query_start) * 1e6)::bigint, query \
             from pg_stat_activity where pid = any ('{}'::int[])",
            array(unknown)
        );
        for row in reader
            .rows("statements of sessions", &sql)
            .unwrap_or_default()
        {
            let text = SessionText::new(row.get(2).unwrap_or_default(), self.keeps_text);
            let key = (row.number(0) as u32, row.text(1));
            self.known.insert(key, text);
        }
    }

    /// A session's text; empty if it ended or went on to another statement meanwhile.
    pub fn get(&self, pid: u32, session: &LockSession) -> SessionText {
        let found = self.known.get(&key((&pid, session)));
        found.cloned().unwrap_or_default()
    }
}

fn key((pid, session): (&u32, &LockSession)) -> (u32, String) {
    (*pid, session.statement_started.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_and_empty_texts_are_no_statements() {
        for text in [HIDDEN, "", " "] {
            let found = SessionText::new(text, true);
            assert!(found.statement.is_none() && found.fingerprint.is_none());
        }
    }

    #[test]
    fn without_texts_the_fingerprint_stays() {
        let kept = SessionText::new("select 7", true);
        let other = SessionText::new("select 8", false);
        assert_eq!(kept.statement.as_deref(), Some("select $1"));
        assert_eq!(other.statement, None);
        assert_eq!(kept.fingerprint, other.fingerprint);
        assert!(!kept.prevents_wraparound);
        let vacuum = "autovacuum: VACUUM public.t (to prevent wraparound)";
        assert!(SessionText::new(vacuum, true).prevents_wraparound);
    }
}
