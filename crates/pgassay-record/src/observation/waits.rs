//! Why backends were blocked: the data that divide the exact blocked time.
//!
//! The rows are the ledger's own, so that one wait never has two figures. They come from blocked
//! stacks if these were observed, with locks named from wait samples, otherwise from wait samples only.

use pgassay_account::ledger::{self, Nature, Part};

use super::Observation;

/// The wait event of a backend that waits for its client.
const CLIENT: (&str, &str) = ("Client", "ClientRead");

/// Blocked time of one reason over the whole window.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitRow {
    /// The part of the ledger's row.
    pub part: Part,
    /// Its name in the ledger, such as `LWLock WALWrite` or `WAL sync`.
    pub mechanism: String,
    /// `wait_event_type` if the row is one wait event; else empty.
    pub kind: String,
    /// `wait_event`, likewise.
    pub name: String,
    /// Its blocked time.
    pub blocked_us: f64,
}

impl Observation {
    /// Blocked time by reason, longest first: the rows of [`Observation::ledger`] in which backends were
    /// blocked. Empty if nothing divides that time.
    pub fn blocked(&self) -> Vec<WaitRow> {
        let waits = self.waits.as_ref();
        let was_seen = waits.is_some_and(|it| it.blocked_samples > 0);
        if !was_seen && self.seen_blocked().is_none() {
            return Vec::new();
        }
        let is_blocked = |row: &ledger::Row| match row.part {
            Part::Blocked | Part::Client => true,
            // Unexplained on-CPU time is not blocked time.
            Part::Unexplained => row.nature != Nature::Service,
            _ => false,
        };
        let groups = ledger::groups(&self.ledger()).into_iter();
        groups.filter(is_blocked).map(WaitRow::of).collect()
    }
}

impl WaitRow {
    fn of(row: ledger::Row) -> Self {
        let event = match row.part {
            Part::Client => Some(CLIENT),
            Part::Blocked => row.mechanism.split_once(' ').filter(|it| is_class(it.0)),
            _ => None,
        };
        let (kind, name) = event.unwrap_or_default();
        Self {
            part: row.part,
            kind: kind.to_owned(),
            name: name.to_owned(),
            blocked_us: row.us,
            mechanism: row.mechanism,
        }
    }
}

/// Whether a row's first word is a `wait_event_type`.
fn is_class(word: &str) -> bool {
    const CLASSES: [&str; 9] = [
        "Activity",
        "Client",
        "Extension",
        "IO",
        "IPC",
        "InjectionPoint",
        "LWLock",
        "Lock",
        "Timeout",
    ];
    CLASSES.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::observation;
    use super::*;
    use pgassay_model::profile::{Frame, ProfileBuilder};
    use pgassay_model::waits::{WaitCount, Waits};

    #[test]
    fn samples_divide_the_blocked_time_and_no_other() {
        let mut observation = observation();
        let exact_us = observation.blocked_us();
        for runnable_samples in [0, 1_000_000] {
            let event = |name: &str, samples| WaitCount {
                kind: "Lock".to_owned(),
                name: name.to_owned(),
                samples,
            };
            observation.waits = Some(Waits {
                blocked_samples: 4,
                runnable_samples,
                events: vec![event("tuple", 1), event("transactionid", 3)],
                ..Waits::default()
            });
            let rows = observation.blocked();
            assert_eq!(rows[0].name, "transactionid");
            assert!((rows[0].blocked_us - exact_us * 0.75).abs() < 1e-6);
            let sum: f64 = rows.iter().map(|row| row.blocked_us).sum();
            assert!(
                (sum - exact_us).abs() < 1e-6,
                "however often backends were runnable"
            );
        }
        observation.waits = Some(Waits::default());
        assert!(observation.blocked().is_empty());
    }

    /// By stacks, a fifth of the blocked time is a wait for a lock, which wait samples name. It is only
    /// one in twenty of the samples, since samples miss short waits.
    #[test]
    fn a_wait_has_the_same_figure_in_both_tables() {
        let mut observation = observation();
        let mut builder = ProfileBuilder::new(1);
        let stack = |names: &[&str]| -> Vec<Frame> {
            let frame = |name: &&str| Frame {
                symbol: Some((*name).to_owned()),
                object: "postgres".to_owned(),
                offset: 0,
                kernel: false,
            };
            names.iter().map(frame).collect()
        };
        builder.add_blocked(0, stack(&["LockAcquire", "LWLockAcquire"]), ("", ""), 200);
        builder.add_blocked(0, stack(&["ReadCommand", "secure_read"]), ("", ""), 700);
        builder.add_blocked(0, stack(&["XLogFlush", "issue_xlog_fsync"]), ("", ""), 100);
        observation.profile = Some(builder.finish());
        let event = |kind: &str, name: &str, samples| WaitCount {
            kind: kind.to_owned(),
            name: name.to_owned(),
            samples,
        };
        observation.waits = Some(Waits {
            blocked_samples: 20,
            events: vec![
                event("LWLock", "LockManager", 1),
                event("Client", "ClientRead", 19),
            ],
            ..Waits::default()
        });
        let blocked = observation.blocked();
        let sum: f64 = blocked.iter().map(|row| row.blocked_us).sum();
        assert!((sum - observation.blocked_us()).abs() < 1e-6);
        let ledger = ledger::groups(&observation.ledger());
        for row in &blocked {
            let same = ledger.iter().find(|it| it.mechanism == row.mechanism);
            let same_us = same.map(|it| it.us);
            assert_eq!(same_us, Some(row.blocked_us), "{row:?}");
        }
        let figure = |kind: &str, name: &str| {
            let row = blocked
                .iter()
                .find(|it| (&*it.kind, &*it.name) == (kind, name));
            row.map_or(0.0, |row| row.blocked_us / sum)
        };
        assert!((figure("LWLock", "LockManager") - 0.2).abs() < 1e-9);
        assert!((figure("Client", "ClientRead") - 0.7).abs() < 1e-9);
        let sync = blocked.iter().find(|it| it.mechanism == "WAL sync");
        assert!(sync.is_some_and(|it| it.name.is_empty()), "{blocked:?}");
    }
}
