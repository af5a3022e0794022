//! Tests each signature with an affected server and with a healthy look-alike: it must be found in the
//! first, with its object, and not in the second. A signature without a look-alike, or without both
//! sides of a threshold, fails the tests. docs/findings.md lists all look-alikes.
//!
//! Windows are 10 s long; loads are average sessions.

mod archiver;
mod autovacuum;
mod build;
mod catalog;
mod checkpoints;
mod connections;
mod deadlocks;
mod endings;
mod gave_up;
mod harmless_fixes;
mod horizon;
mod index_evidence;
mod offsets;
mod ordered_reads;
mod partitioned_statistics;
mod processes;
mod repeated;
mod replay;
mod row_queues;
mod scanned_tables;
mod sessions;
mod spills;
mod statements;
mod table_queues;

use std::collections::BTreeSet;

use pgassay_record::activity::{Activity, BlockedSession, LockTarget};
use pgassay_record::finding::{Confidence, Finding};

use super::{diagnose_activity, operator_signatures};
use build::ExampleServer;

/// An affected server and one that only looks like it.
struct LiveCase {
    id: &'static str,
    /// The object as reports name it.
    object: &'static str,
    /// Describes the healthy server, in the words of docs/findings.md.
    lookalike: &'static str,
    affected: Activity,
    healthy: Activity,
}

/// A case; see [`LiveCase`].
fn case(
    id: &'static str,
    object: &'static str,
    lookalike: &'static str,
    affected: ExampleServer,
    healthy: ExampleServer,
) -> LiveCase {
    LiveCase {
        id,
        object,
        lookalike,
        affected: affected.activity,
        healthy: healthy.activity,
    }
}

/// Two servers on both sides of a threshold: found on the first one, not on the second one.
struct Edge {
    id: &'static str,
    above: Activity,
    below: Activity,
}

/// An edge of a signature: the same server with two values of one figure.
fn edge(id: &'static str, of: impl Fn(f64) -> ExampleServer, above: f64, below: f64) -> Edge {
    Edge {
        id,
        above: of(above).activity,
        below: of(below).activity,
    }
}

fn cases() -> Vec<LiveCase> {
    let mut all = sessions::cases();
    all.extend(processes::cases());
    all.extend(catalog::cases());
    all.extend(statements::cases());
    all.extend(archiver::cases());
    all.extend(replay::cases());
    all.extend(offsets::cases());
    all.extend(partitioned_statistics::cases());
    all.extend(table_queues::cases());
    all
}

fn edges() -> Vec<Edge> {
    let mut all = sessions::edges();
    all.extend(processes::edges());
    all.extend(catalog::edges());
    all.extend(statements::edges());
    all.extend(archiver::edges());
    all.extend(replay::edges());
    all.extend(offsets::edges());
    all.extend(partitioned_statistics::edges());
    all.extend(table_queues::edges());
    all
}

fn findings(activity: &Activity) -> Vec<Finding> {
    diagnose_activity(activity, Some("18"))
}

fn of_id(id: &str, activity: &Activity) -> Vec<Finding> {
    let mut found = findings(activity);
    found.retain(|it| it.id == id);
    found
}

#[test]
fn every_signature_is_absent_from_its_healthy_look_alike() {
    let cases = cases();
    let mut wrong = Vec::new();
    for signature in operator_signatures() {
        let of_it: Vec<&LiveCase> = cases.iter().filter(|it| it.id == signature.id).collect();
        if of_it.is_empty() {
            wrong.push(format!("{}: no look-alike", signature.id));
        }
        for case in of_it {
            let found = of_id(case.id, &case.affected);
            let objects: Vec<String> = found
                .iter()
                .filter_map(|it| it.object.as_ref().map(ToString::to_string))
                .collect();
            if objects != [case.object] {
                wrong.push(format!("{}: {objects:?}, not {}", case.id, case.object));
            }
            if !of_id(case.id, &case.healthy).is_empty() {
                wrong.push(format!("{}: found in {}", case.id, case.lookalike));
            }
        }
    }
    for case in &cases {
        if !operator_signatures().any(|it| it.id == case.id) {
            wrong.push(format!("{}: not a signature", case.id));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_signature_has_a_threshold_with_two_sides() {
    let edges = edges();
    let mut wrong = Vec::new();
    for edge in &edges {
        if of_id(edge.id, &edge.above).is_empty() {
            wrong.push(format!("{}: not found above its threshold", edge.id));
        }
        if !of_id(edge.id, &edge.below).is_empty() {
            wrong.push(format!("{}: found below its threshold", edge.id));
        }
    }
    let with_edge: BTreeSet<&str> = edges.iter().map(|it| it.id).collect();
    for signature in operator_signatures() {
        if !with_edge.contains(signature.id) {
            wrong.push(format!("{}: no threshold", signature.id));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_finding_says_what_to_do_and_at_which_risk() {
    let mut wrong = Vec::new();
    for case in cases() {
        for finding in of_id(case.id, &case.affected) {
            let risk = finding.risk.clone().unwrap_or_default();
            let has_figure = finding.evidence.iter().any(|fact| fact.value.is_some());
            let sql = finding.fix_sql.as_deref().unwrap_or("select 1");
            let is_whole = finding.suggested_fix.ends_with('.')
                && risk.ends_with('.')
                && has_figure
                && finding.condition.is_none()
                && !finding.title.ends_with('.')
                && !sql.is_empty()
                && !sql.ends_with(';');
            if !is_whole {
                wrong.push(finding);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn ids_differ_from_each_other_and_from_those_of_mechanisms() {
    let all: Vec<&str> = operator_signatures()
        .map(|it| it.id)
        .chain(crate::signatures().map(|it| it.id))
        .collect();
    let distinct: BTreeSet<&str> = all.iter().copied().collect();
    assert_eq!(all.len(), distinct.len());
    assert!(operator_signatures().count() >= 35);
}

#[test]
fn nothing_is_found_without_data_or_on_an_idle_or_plain_server() {
    let none: [&Activity; 1] = [&Activity::default()];
    for activity in none {
        assert_eq!(findings(activity), []);
    }
    assert_eq!(findings(&ExampleServer::new().activity), []);
    let idle = ExampleServer::new().without_load();
    assert_eq!(findings(&idle.activity), []);
}

#[test]
fn findings_md_lists_every_signature_for_operators_and_its_look_alike() {
    let page = include_str!("../../../../../docs/findings.md");
    let mut missing = Vec::new();
    for case in cases() {
        let mut rows = page.lines();
        let row = rows.find(|line| line.starts_with(&format!("| `{}` | ", case.id)));
        if !row.is_some_and(|row| row.contains(case.lookalike)) {
            missing.push((case.id, case.lookalike));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    let count = format!(
        "{} signatures for live servers",
        operator_signatures().count()
    );
    assert!(page.contains(&count), "docs/findings.md says not: {count}");
}

#[test]
fn problems_with_load_come_before_those_that_lie_ahead() {
    let mut cases = cases().into_iter();
    let mut with = |id: &str| cases.find(|it| it.id == id).expect("a case").affected;
    let mut both = with("idle-blocker");
    let ahead = with("wraparound").catalog.expect("a catalog").ages;
    both.catalog.as_mut().expect("a catalog").ages = ahead;
    let found = findings(&both);
    let ids: Vec<&str> = found.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["idle-blocker", "wraparound"]);
    assert!(found[0].share > 0.5 && found[0].confidence == Confidence::Likely);
    assert!(found[1].share <= 0.0 && found[1].saved_sessions.is_none());
}

#[test]
fn a_thousand_indexes_do_not_fill_the_report() {
    let mut server = build::unused_index(40.0);
    let catalog = server.activity.catalog.as_mut().expect("a catalog");
    let index = catalog.indexes[0].clone();
    for number in 0..1000 {
        let mut copy = index.clone();
        copy.relation.name = format!("i{number}");
        copy.size_bytes += number;
        catalog.indexes.push(copy);
    }
    let found = of_id("unused-index", &server.activity);
    assert_eq!(found.len(), super::FINDINGS_MAX);
    let first = found[0].object.as_ref().expect("an object");
    assert_eq!(first.name, "public.i999", "the largest comes first");
}

#[test]
fn a_blocker_explains_the_waits_that_it_causes() {
    let mut cases = cases().into_iter();
    let blocked = cases.find(|it| it.id == "idle-blocker").expect("a case");
    let operators = findings(&blocked.affected);
    let mut mechanism = operators[0].clone();
    mechanism.id = "relation-lock".to_owned();
    let mut other = mechanism.clone();
    other.id = "jit".to_owned();
    let mut mechanisms = [mechanism, other];
    let all = |it: &Finding| it.saved_sessions.unwrap_or(0.0);
    super::explain_mechanisms(&mut mechanisms, &operators, all);
    let explained = mechanisms.map(|it| it.explained_by);
    assert_eq!(explained, [Some("idle-blocker".to_owned()), None]);
}

/// Regression: 2 of 5 waiting sessions were behind an idle session, and "caused by it: fix that first"
/// replaced the advice for the other 3.
#[test]
fn a_blocker_of_less_than_half_of_the_waits_does_not_explain_them() {
    let mut cases = cases().into_iter();
    let blocked = cases.find(|it| it.id == "idle-blocker").expect("a case");
    let operators = findings(&blocked.affected);
    let behind = operators[0].saved_sessions.expect("a load");
    let explained = |waiting: f64| {
        let mut mechanism = operators[0].clone();
        mechanism.id = "hot-row".to_owned();
        mechanism.suggested_fix = "Shorten the transactions.".to_owned();
        let mut mechanisms = [mechanism];
        super::explain_mechanisms(&mut mechanisms, &operators, |_| waiting);
        let [it] = mechanisms;
        (it.explained_by, it.suggested_fix)
    };
    assert_eq!(explained(behind / 0.81).0.as_deref(), Some("idle-blocker"));
    let whole = behind / 0.4;
    let advice = format!(
        "{behind:.2} of the {whole:.2} waiting sessions are behind session 4711. The rest: shorten the transactions."
    );
    assert_eq!(explained(whole), (None, advice));
}

/// Regression: while one idle session held an advisory lock, the first action was to hold such locks for a shorter time,
/// and that was the cause of the waits.
#[test]
fn a_session_that_holds_an_advisory_lock_explains_the_waits_for_it() {
    let waiter = |pid| BlockedSession {
        waits_for: LockTarget {
            kind: "advisory".to_owned(),
            mode: "ExclusiveLock".to_owned(),
            relation: None,
        },
        ..build::blocked(pid, 9.6e6)
    };
    let behind = build::episode(build::root("idle", 19e6), (1..=5).map(waiter).collect());
    let server = |waiting: f64| {
        let server = ExampleServer::new();
        let server = server.load("select pg_advisory_lock($1)", "Lock:advisory", waiting);
        server.blocking(behind.clone())
    };
    let ids = |waiting: f64| {
        let found = findings(&server(waiting).activity);
        found.into_iter().map(|it| it.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(5.0), ["long-blocker"]);
    // Others hold such locks, too.
    assert_eq!(ids(8.0), ["long-blocker", "lock-contention"]);
    let is_contention_behind = |gid: Option<&str>| {
        let mut behind = behind.clone();
        behind.root.gid = gid.map(str::to_owned);
        (behind.root.state_age_us, behind.root.transaction_age_us) = (0.0, None);
        let server = ExampleServer::new();
        let server = server.load("select pg_advisory_lock($1)", "Lock:advisory", 5.0);
        !of_id("lock-contention", &server.blocking(behind).activity).is_empty()
    };
    assert!(is_contention_behind(None) && !is_contention_behind(Some("tx-1")));
    let operators = findings(&server(5.0).activity);
    let mut mechanism = operators[0].clone();
    mechanism.id = "relation-lock".to_owned();
    let mut mechanisms = [mechanism];
    super::explain_mechanisms(&mut mechanisms, &operators, |_| 5.0);
    assert_eq!(mechanisms[0].explained_by.as_deref(), Some("long-blocker"));
}

/// Regression: a second finding about waits for advisory locks had a fix for TRUNCATE and ALTER TABLE.
#[test]
fn contention_for_advisory_locks_explains_the_waits_for_relations_and_objects_only() {
    let server =
        ExampleServer::new().load("select pg_advisory_xact_lock($1)", "Lock:advisory", 5.0);
    let operators = of_id("lock-contention", &server.activity);
    let mut mechanism = operators[0].clone();
    mechanism.id = "relation-lock".to_owned();
    let mut other = mechanism.clone();
    other.id = "hot-row".to_owned();
    let mut mechanisms = [mechanism, other];
    super::explain_mechanisms(&mut mechanisms, &operators, |_| 5.0);
    let explained = mechanisms.map(|it| it.explained_by);
    assert_eq!(explained, [Some("lock-contention".to_owned()), None]);
}
