//! Tables of load: sums over the cells of an activity.

use std::collections::BTreeMap;

use super::{Activity, ActivitySession, LoadCell, SessionStatus};

/// What a table of load is by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadBy {
    /// Statement.
    Statement,
    /// Wait event.
    Wait,
    /// Session.
    Session,
    /// User.
    User,
    /// Database.
    Database,
    /// Application name.
    Application,
    /// Client address.
    Client,
    /// Relation whose lock was waited for.
    Relation,
}

/// One row of a table of load.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadRow {
    /// Index into the activity's statements, waits, sessions or relations; `None` for names and for
    /// what is unknown.
    pub index: Option<u32>,
    /// The name for users, databases, applications and clients; else empty.
    pub name: String,
    /// Average sessions: the row's time over the window.
    pub load: f64,
    /// Of which parallel workers.
    pub of_workers: f64,
    /// Of which by wait, largest first: index into [`Activity::waits`] and average sessions.
    pub by_wait: Vec<(u32, f64)>,
    /// The readings behind it.
    pub samples: u64,
}

impl Activity {
    /// Average active sessions over the window.
    pub fn active_sessions(&self) -> f64 {
        self.load_of(|cell| cell.state == SessionStatus::Active)
    }

    /// Average sessions that were idle in a transaction.
    pub fn idle_in_transaction(&self) -> f64 {
        self.load_of(|cell| cell.state != SessionStatus::Active)
    }

    /// Average sessions in the cells that satisfy the condition.
    pub fn load_of(&self, includes: impl Fn(&LoadCell) -> bool) -> f64 {
        let cells = self.cells.iter().filter(|cell| includes(cell));
        cells.map(|cell| cell.time_us).sum::<f64>() / self.window_us.max(f64::MIN_POSITIVE)
    }

    /// The load of active sessions, highest first.
    pub fn load_by(&self, by: LoadBy) -> Vec<LoadRow> {
        let mut rows: BTreeMap<(Option<u32>, &str), LoadRow> = BTreeMap::new();
        let active = |cell: &&LoadCell| cell.state == SessionStatus::Active;
        for cell in self.cells.iter().filter(active) {
            let (index, name) = self.key(cell, by);
            let row = rows.entry((index, name)).or_insert_with(|| LoadRow {
                index,
                name: name.to_owned(),
                load: 0.0,
                of_workers: 0.0,
                by_wait: Vec::new(),
                samples: 0,
            });
            let load = cell.time_us / self.window_us.max(f64::MIN_POSITIVE);
            row.load += load;
            row.samples = row.samples.saturating_add(cell.samples);
            let session = self.sessions.get(cell.session as usize);
            if session.is_some_and(|it| it.backend_type == "parallel worker") {
                row.of_workers += load;
            }
            match row.by_wait.iter_mut().find(|(wait, _)| *wait == cell.wait) {
                Some((_, sum)) => *sum += load,
                None => row.by_wait.push((cell.wait, load)),
            }
        }
        let mut rows: Vec<LoadRow> = rows.into_values().collect();
        for row in &mut rows {
            row.by_wait
                .sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        }
        rows.sort_by(|a, b| b.load.total_cmp(&a.load).then(a.index.cmp(&b.index)));
        rows
    }

    fn key(&self, cell: &LoadCell, by: LoadBy) -> (Option<u32>, &str) {
        // A file that was edited may name a session that it does not have.
        let of_session = |name: fn(&ActivitySession) -> &str| {
            let session = self.sessions.get(cell.session as usize);
            session.map_or("", name)
        };
        match by {
            LoadBy::Statement => (cell.statement, ""),
            LoadBy::Wait => (Some(cell.wait), ""),
            LoadBy::Session => (Some(cell.session), ""),
            LoadBy::Relation => (cell.relation, ""),
            LoadBy::User => (None, of_session(|it| &it.user)),
            LoadBy::Database => (None, of_session(|it| &it.database)),
            LoadBy::Application => (None, of_session(|it| &it.application)),
            LoadBy::Client => (None, of_session(|it| &it.client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::ActivityWait;

    fn activity() -> Activity {
        let wait = |kind: &str, name: &str| ActivityWait {
            kind: kind.to_owned(),
            name: name.to_owned(),
        };
        let session = |pid, user: &str| ActivitySession {
            pid,
            user: user.to_owned(),
            ..ActivitySession::default()
        };
        let cell = |session, statement, state, wait, time_us| LoadCell {
            session,
            statement,
            state,
            wait,
            relation: None,
            time_us,
            samples: 1,
        };
        let active = SessionStatus::Active;
        Activity {
            window_us: 1e6,
            sessions: vec![session(1, "ann"), session(2, "bob")],
            waits: vec![wait("", ""), wait("Lock", "transactionid")],
            cells: vec![
                cell(0, Some(0), active, 0, 5e5),
                cell(0, Some(1), active, 1, 25e4),
                cell(1, Some(1), active, 1, 1e6),
                cell(1, None, active, 0, 1e5),
                cell(1, Some(1), SessionStatus::IdleInTransaction, 0, 9e6),
            ],
            ..Activity::default()
        }
    }

    #[test]
    fn every_table_has_the_same_sum_and_idle_sessions_are_no_load() {
        let activity = activity();
        assert!((activity.active_sessions() - 1.85).abs() < 1e-9);
        assert!((activity.idle_in_transaction() - 9.0).abs() < 1e-9);
        for by in [
            LoadBy::Statement,
            LoadBy::Wait,
            LoadBy::Session,
            LoadBy::User,
            LoadBy::Database,
            LoadBy::Relation,
        ] {
            let rows = activity.load_by(by);
            let sum: f64 = rows.iter().map(|row| row.load).sum();
            assert!((sum - 1.85).abs() < 1e-9, "{by:?}");
            let by_wait: f64 = rows
                .iter()
                .flat_map(|row| &row.by_wait)
                .map(|it| it.1)
                .sum();
            assert!((by_wait - 1.85).abs() < 1e-9, "{by:?}");
            assert!(rows.is_sorted_by(|a, b| a.load >= b.load), "{by:?}");
        }
        let first = &activity.load_by(LoadBy::Statement)[0];
        assert_eq!((first.index, first.by_wait[0].0), (Some(1), 1));
        assert_eq!(activity.load_by(LoadBy::User)[0].name, "bob");
    }
}
