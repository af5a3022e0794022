//! What a window of a live server shows in which no transaction ended.
//!
//! All figures are then those of the whole window, as if it were one transaction. Shares of the time and of the CPU
//! time mean the same as otherwise. Times are shown as average sessions.

use std::collections::BTreeMap;

use pgassay_record::activity::{Activity, ActivityWait, LoadCell, SessionStatus};
use pgassay_record::finding::{FactUnit, Finding};

use super::operators::is_bulk_text;
use super::write_waits::WRITES;

/// A session that waits for writes for less of its active time does work whose writes they are.
const STUCK_MIN: f64 = 0.9;

fn is_write(wait: &ActivityWait) -> bool {
    let name = match wait.kind.as_str() {
        "IO" => format!("IO {}", wait.name),
        // Names of classes and locks before 10.
        kind if kind.starts_with("LWLock") => {
            format!("LWLock {}", wait.name.trim_end_matches("Lock"))
        }
        _ => return false,
    };
    WRITES.contains(&name.as_str())
}

/// The share of the waits for writes that are of work: of commands for many rows, and of sessions that do something
/// else as well. The rest is of sessions that do nothing but wait, as in a commit while the disk stalls.
pub(super) fn share_of_work(activity: &Activity) -> f64 {
    let is_of_write = |it: &LoadCell| {
        let wait = activity.waits.get(it.wait as usize);
        wait.is_some_and(is_write)
    };
    let active = || {
        let cells = activity.cells.iter();
        cells.filter(|it| it.state == SessionStatus::Active)
    };
    let mut sessions: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for cell in active() {
        let (all_us, writes_us) = sessions.entry(cell.session).or_default();
        *all_us += cell.time_us;
        if is_of_write(cell) {
            *writes_us += cell.time_us;
        }
    }
    let is_stuck = |it: &LoadCell| {
        let (all_us, writes_us) = sessions.get(&it.session).copied().unwrap_or_default();
        let statement = it
            .statement
            .and_then(|at| activity.statements.get(at as usize));
        let text = statement.and_then(|it| it.text.as_deref());
        writes_us >= STUCK_MIN * all_us && !text.is_some_and(is_bulk_text)
    };
    let (mut whole_us, mut stuck_us) = (0.0, 0.0);
    for cell in active().filter(|it| is_of_write(it)) {
        whole_us += cell.time_us;
        if is_stuck(cell) {
            stuck_us += cell.time_us;
        }
    }
    if whole_us > 0.0 {
        1.0 - stuck_us / whole_us
    } else {
        0.0
    }
}

/// Shows the times of a mechanism as average sessions: there is no transaction that they could be of.
pub(super) fn in_sessions(mechanism: &mut Finding, window_us: f64) {
    mechanism.weight_us = 0.0;
    let of_time = |unit: FactUnit| unit == FactUnit::MicrosPerTransaction;
    for fact in mechanism.evidence.iter_mut().filter(|it| of_time(it.unit)) {
        fact.unit = FactUnit::Sessions;
        fact.value = fact.value.map(|us| us / window_us.max(f64::MIN_POSITIVE));
        fact.what.push_str(", in average sessions");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose_observation;
    use crate::evidence::Evidence;
    use crate::lookalikes::is_found;
    use pgassay_record::activity::{ActivitySession, ActivityStatement};
    use pgassay_record::observation::Observation;
    use serde_json::{Value, json};

    const WINDOW_US: f64 = 10e6;

    /// Ten seconds of four sessions, with a thousand readings of their waits: shares in percent.
    fn window(transactions: Option<u64>, waits: &[(&str, &str, u64)]) -> Observation {
        let event = |(kind, name, share): &(&str, &str, u64)| json!({"kind": kind, "name": name, "samples": 10 * share});
        let events: Vec<Value> = waits.iter().map(event).collect();
        let observation = json!({
            "schema": "pgassay.observation/2", "pgassay_version": "0", "started_us": 0,
            "window_us": WINDOW_US, "frequency_hz": 99, "subject": {"major": "18"},
            "transactions": transactions, "sessions": 4, "backends_present_us": 4.0 * WINDOW_US,
            "background": [], "limitations": [],
            "waits": {
                "source": "pg_stat_activity", "blocked_samples": 1000, "runnable_samples": 20,
                "unreadable": 0, "sampling_cpu_us": 0.0, "events": events,
            },
        });
        let mut observation: Observation = serde_json::from_value(observation).unwrap();
        observation.activity = Some(Activity {
            window_us: WINDOW_US,
            sweeps: 200,
            ..Activity::default()
        });
        observation
    }

    fn ids(observation: &Observation) -> Vec<String> {
        let found = diagnose_observation(observation);
        found.into_iter().map(|it| it.id).collect()
    }

    /// Regression: while all sessions waited for one lock, so that no transaction ended, no mechanism was found.
    #[test]
    fn in_a_full_stall_the_lock_that_all_wait_for_is_found() {
        for transactions in [Some(0), None] {
            let rows = window(
                transactions,
                &[("Lock", "transactionid", 90), ("Client", "ClientRead", 10)],
            );
            let found = diagnose_observation(&rows);
            assert_eq!(found[0].id, "hot-row", "{found:#?}");
            let fact = &found[0].evidence[0];
            assert_eq!(fact.unit, FactUnit::Sessions);
            assert!(
                fact.value.is_some_and(|it| (3.4..3.7).contains(&it)),
                "{fact:?}"
            );
            assert!(found[0].weight_us.abs() < 1e-9 && found[0].share > 0.8);
        }
        let tables = window(Some(0), &[("Lock", "relation", 100)]);
        assert_eq!(ids(&tables), ["relation-lock"]);
        let standby = window(Some(0), &[("IPC", "SyncRep", 100)]);
        assert!(ids(&standby).contains(&"synchronous-replication".to_owned()));
    }

    #[test]
    fn an_idle_server_without_transactions_has_no_mechanism() {
        let idle = window(Some(0), &[("Client", "ClientRead", 100)]);
        assert_eq!(ids(&idle), Vec::<String>::new());
        let asleep = window(
            Some(0),
            &[("Client", "ClientRead", 75), ("Timeout", "PgSleep", 25)],
        );
        assert_eq!(ids(&asleep), Vec::<String>::new());
        // Regression: a server whose transactions could not be counted was one on which none ended.
        let mut uncounted = window(None, &[("Lock", "transactionid", 100)]);
        if let Some(activity) = &mut uncounted.activity {
            activity.transactions_seen = 5000;
        }
        assert_eq!(ids(&uncounted), Vec::<String>::new());
        // One backend is profiled, or there is no connection: what the others do is not known.
        let mut alone = window(None, &[("Lock", "transactionid", 100)]);
        alone.activity = None;
        assert_eq!(ids(&alone), Vec::<String>::new());
    }

    #[test]
    fn autovacuum_competes_with_a_load_only_if_there_is_one() {
        let found = |cpu_us: f64| {
            let used = ("background(autovacuum worker).cpu_us".to_owned(), 2e6);
            let evidence = Evidence {
                is_live: true,
                response_us: cpu_us,
                cpu_us,
                tps: 1e6 / WINDOW_US,
                counters: [used].into(),
                ..Evidence::default()
            };
            is_found("autovacuum", &evidence)
        };
        assert!(found(5e6));
        assert!(!found(0.1e6));
    }

    /// Sessions with a text each, and their time by wait, in seconds. The first wait is CPU.
    fn writing(sessions: &[(&str, &[(u32, f64)])]) -> Activity {
        let wait = |name: &str| ActivityWait {
            kind: "IO".to_owned(),
            name: name.to_owned(),
        };
        let mut activity = Activity {
            window_us: WINDOW_US,
            waits: vec![
                ActivityWait::default(),
                wait("WALSync"),
                wait("DataFileExtend"),
                wait("DataFileRead"),
            ],
            ..Activity::default()
        };
        for (at, (text, times)) in (0..).zip(sessions) {
            activity.sessions.push(ActivitySession {
                pid: at + 1,
                ..ActivitySession::default()
            });
            activity.statements.push(ActivityStatement {
                text: Some((*text).to_owned()),
                ..ActivityStatement::default()
            });
            activity
                .cells
                .extend(times.iter().map(|&(wait, seconds)| LoadCell {
                    session: at,
                    statement: Some(at),
                    state: SessionStatus::Active,
                    wait,
                    relation: None,
                    time_us: seconds * 1e6,
                    samples: (seconds * 20.0) as u64,
                }));
        }
        activity
    }

    #[test]
    fn writes_of_a_long_load_are_not_those_of_commits() {
        let share = |sessions: &[(&str, &[(u32, f64)])]| share_of_work(&writing(sessions));
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(share(&[("commit", &[(1, 10.0)])]), 0.0);
        close(share(&[("copy t from stdin", &[(1, 10.0)])]), 1.0);
        let load: &[(u32, f64)] = &[(0, 5.0), (1, 3.0), (2, 2.0)];
        close(share(&[("insert into t select * from s", load)]), 1.0);
        close(
            share(&[("commit", &[(1, 9.0)]), ("insert", &[(0, 7.0), (1, 3.0)])]),
            0.25,
        );
        close(share(&[("select 1", &[(3, 10.0)])]), 0.0);
    }

    #[test]
    fn a_long_load_alone_does_not_wait_in_commits() {
        let waits = [("IO", "WALSync", 60), ("Client", "ClientRead", 40)];
        let mut stalled = window(Some(0), &waits);
        stalled.activity = Some(writing(&[("commit", &[(1, 10.0)])]));
        assert!(ids(&stalled).contains(&"commit-sync".to_owned()));
        let load: &[(u32, f64)] = &[(0, 4.0), (1, 6.0)];
        stalled.activity = Some(writing(&[("insert into t select * from s", load)]));
        assert!(!ids(&stalled).contains(&"commit-sync".to_owned()));
    }
}
