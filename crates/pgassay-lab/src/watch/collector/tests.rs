//! Which sessions count, and as what.

use pgassay_record::activity::{BlockedSession, BlockingEpisode};

use super::*;
use crate::watch::catalog::OtherWaiters;

fn reading(pid: u32, state: SessionState, wait: SessionWait) -> SessionReading {
    SessionReading {
        identity: Arc::new(SessionIdentity {
            pid,
            started_us: 1,
            backend_type: "client backend".to_owned(),
            database: 5,
            user: 10,
            application: String::new(),
            client: "local".to_owned(),
        }),
        state,
        transaction_started_us: Some(1),
        activity_started_us: 2,
        state_changed_us: 3,
        query_id: 0,
        text: b"select 1".to_vec(),
        is_cut: false,
        wait,
    }
}

fn described(collector: &Collector, sums: &LoadSums) -> Activity {
    let (names, counters) = (ObjectNames::default(), JoinedCounters::default());
    collector.describe(sums, false, &names, &counters).0
}

#[test]
fn idle_sessions_our_own_and_processes_without_work_have_no_load() {
    let mut collector = Collector::new("18", [9].into(), None);
    let sweep = || {
        let mut checkpointer = reading(4, SessionState::None, SessionWait::Number(0x0500_0000));
        Arc::make_mut(&mut checkpointer.identity).backend_type = "checkpointer".to_owned();
        // Regression: while they wrote, they were most of the load of a server with one client.
        let mut writing = reading(5, SessionState::None, SessionWait::None);
        Arc::make_mut(&mut writing.identity).backend_type = "walwriter".to_owned();
        SessionSweep {
            sessions: vec![
                reading(1, SessionState::Active, SessionWait::Number(0x0300_0005)),
                reading(
                    2,
                    SessionState::IdleInTransaction,
                    SessionWait::Number(0x0600_0000),
                ),
                reading(3, SessionState::Disabled, SessionWait::None),
                checkpointer,
                writing,
                reading(9, SessionState::Active, SessionWait::None),
            ],
            idle: vec![8],
            unreadable: 0,
        }
    };
    collector.add(0.0, sweep());
    collector.add(1e6, sweep());
    assert_eq!(collector.lock_waiters(), [1]);
    let sums = collector.take();
    let activity = described(&collector, &sums);
    assert!((activity.active_sessions() - 1.0).abs() < 1e-9);
    assert!((activity.idle_in_transaction() - 1.0).abs() < 1e-9);
    let pids: Vec<u32> = activity.sessions.iter().map(|it| it.pid).collect();
    assert_eq!(pids, [1, 2]);
    assert_eq!(activity.waits[0], ActivityWait::default());
    assert_eq!(activity.waits[1].name, "transactionid");
    assert_eq!(activity.statements.len(), 1);
    assert_eq!(activity.statements[0].text, None);
    let unseen = UnseenSessions {
        hidden: 0,
        disabled: 1,
    };
    assert_eq!((collector.unseen, collector.unseen_max), (unseen, unseen));
}

/// Regression: with `track_activities` off, a session that waited for a lock was behind no blocker.
#[test]
fn sessions_that_are_not_tracked_may_wait_for_others() {
    let waiters = |major: &str, wait: u32| {
        let mut collector = Collector::new(major, BTreeSet::new(), None);
        let sweep = |sessions| SessionSweep {
            sessions,
            ..SessionSweep::default()
        };
        let untracked = reading(3, SessionState::Disabled, SessionWait::Number(wait));
        collector.add(0.0, sweep(vec![untracked]));
        let found = (collector.lock_waiters(), collector.other_waiters());
        collector.add(1e6, sweep(Vec::new()));
        assert!(collector.lock_waiters().is_empty());
        assert_eq!(collector.other_waiters(), OtherWaiters::default());
        found
    };
    assert_eq!(
        waiters("18", 0x0300_0005),
        (vec![3], OtherWaiters::default())
    );
    // Before 14, they have no wait events.
    let silent = OtherWaiters {
        untracked: vec![3],
        ..OtherWaiters::default()
    };
    assert_eq!(waiters("12", 0), (vec![], silent));
}

/// Regression: a transaction that waited for a safe snapshot was behind no blocker.
#[test]
fn a_deferrable_transaction_waits_for_others() {
    let mut collector = Collector::new("18", BTreeSet::new(), None);
    let wait = SessionWait::Named(NamedWait {
        kind: "IPC".to_owned(),
        name: "SafeSnapshot".to_owned(),
    });
    collector.add(
        0.0,
        SessionSweep {
            sessions: vec![reading(1, SessionState::Active, wait)],
            ..SessionSweep::default()
        },
    );
    assert_eq!(collector.other_waiters().for_snapshots, [1]);
    assert!(collector.lock_waiters().is_empty());
}

/// Regression: an anti-wraparound autovacuum of 12, which paused almost all the time, was 25% of the load "running on or
/// waiting for a CPU".
#[test]
fn a_worker_of_autovacuum_without_a_wait_event_may_pause() {
    let waits = |major: &str, backend_type: &str| {
        let mut collector = Collector::new(major, BTreeSet::new(), None);
        for at_us in [0.0, 1e6] {
            let mut vacuum = reading(1, SessionState::Active, SessionWait::None);
            Arc::make_mut(&mut vacuum.identity).backend_type = backend_type.to_owned();
            collector.add(
                at_us,
                SessionSweep {
                    sessions: vec![vacuum],
                    ..SessionSweep::default()
                },
            );
        }
        let sums = collector.take();
        let activity = described(&collector, &sums);
        let waits = activity.cells.iter().map(|it| it.wait as usize);
        let names = waits.map(|at| activity.waits[at].name.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(waits("12", "autovacuum worker"), ["VacuumDelay or CPU"]);
    // It has a wait event from 13 on, and a client's session does not pause.
    assert_eq!(waits("13", "autovacuum worker"), [""]);
    assert_eq!(waits("12", "client backend"), [""]);
}

/// Regression: the load of a pooler's clients was missing while they had a backend that had served pgassay.
#[test]
fn a_backend_that_a_pooler_gives_to_others_has_their_load() {
    let mut collector = Collector::new("18", BTreeSet::new(), None);
    collector.is_pooled = true;
    collector.leave_out(9);
    let seen = |pid, application: &str| {
        let mut seen = reading(pid, SessionState::None, SessionWait::None);
        Arc::make_mut(&mut seen.identity).application = application.to_owned();
        seen
    };
    for (at_us, application) in [(0.0, "pgassay"), (1e6, "shop"), (2e6, "shop")] {
        let sessions = [seen(1, "shop"), seen(9, application)].into();
        collector.add(
            at_us,
            SessionSweep {
                sessions,
                ..SessionSweep::default()
            },
        );
    }
    let sums = collector.take();
    let activity = described(&collector, &sums);
    let clients: Vec<(u32, &str)> = activity
        .sessions
        .iter()
        .map(|it| (it.pid, &*it.application))
        .collect();
    assert_eq!(clients, [(1, "shop"), (9, "shop")]);
}

/// Regression: a connection that was opened again counted as another client's while its backend started.
#[test]
fn a_backend_of_ours_that_was_seen_before_its_pid_was_known_has_no_load() {
    let mut collector = Collector::new("18", BTreeSet::new(), None);
    let sweep = || SessionSweep {
        sessions: [1, 9]
            .map(|pid| reading(pid, SessionState::None, SessionWait::None))
            .into(),
        ..SessionSweep::default()
    };
    collector.add(0.0, sweep());
    collector.own_pids.insert(9);
    collector.add(1e6, sweep());
    let sums = collector.take();
    let activity = described(&collector, &sums);
    let pids: Vec<u32> = activity.sessions.iter().map(|it| it.pid).collect();
    assert_eq!(pids, [1]);
    assert!((activity.active_sessions() - 1.0).abs() < 1e-9);
}

/// Regression: an idle server with `TimescaleDB` or `pg_wait_sampling` had one active session.
#[test]
fn an_idle_worker_of_an_extension_is_no_load() {
    let named = NamedWait {
        kind: "Extension".to_owned(),
        name: "Extension".to_owned(),
    };
    for (major, wait) in [
        ("12", SessionWait::Number(0x0700_0000)),
        ("18", SessionWait::Number(0x0700_0000)),
        // From 17 on, extensions register waits of their own.
        ("18", SessionWait::Number(0x0700_0003)),
        ("18", SessionWait::Named(named)),
    ] {
        let mut collector = Collector::new(major, BTreeSet::new(), None);
        let mut busy = reading(2, SessionState::Active, wait.clone());
        busy.text = b"select dblink_exec($1)".to_vec();
        for at_us in [0.0, 1e6] {
            let mut worker = reading(1, SessionState::None, wait.clone());
            Arc::make_mut(&mut worker.identity).backend_type = "launcher".to_owned();
            let sweep = SessionSweep {
                sessions: vec![worker, busy.clone()],
                ..SessionSweep::default()
            };
            collector.add(at_us, sweep);
        }
        let sums = collector.take();
        let activity = described(&collector, &sums);
        let pids: Vec<u32> = activity.sessions.iter().map(|it| it.pid).collect();
        // A statement that waits in an extension is load.
        assert_eq!(pids, [2], "{major} {wait:?}");
        assert_eq!(collector.others, 1, "{major} {wait:?}");
    }
}

#[test]
fn a_parallel_report_is_not_executed_once_more_by_each_worker() {
    let mut collector = Collector::new("18", BTreeSet::new(), None);
    let process = |pid, backend_type: &str| {
        let mut reading = reading(pid, SessionState::Active, SessionWait::None);
        Arc::make_mut(&mut reading.identity).backend_type = backend_type.to_owned();
        reading
    };
    let sweep = SessionSweep {
        sessions: vec![
            process(1, "client backend"),
            process(2, "parallel worker"),
            process(3, "parallel worker"),
        ],
        ..SessionSweep::default()
    };
    collector.add(0.0, sweep.clone());
    collector.add(1e6, sweep);
    let sums = collector.take();
    let activity = described(&collector, &sums);
    assert_eq!(activity.statements[0].executions_seen, 1);
    assert!((activity.active_sessions() - 3.0).abs() < 1e-9);
}

/// Regression: `select total(1)` was shown with the text of the statement in the function, if a worker was read first.
#[test]
fn a_statement_of_a_function_that_workers_execute_is_not_that_of_the_client() {
    let mut collector = Collector::new("18", BTreeSet::new(), None);
    let process = |pid, backend_type: &str, text: &str| {
        let mut reading = reading(pid, SessionState::Active, SessionWait::None);
        Arc::make_mut(&mut reading.identity).backend_type = backend_type.to_owned();
        SessionReading {
            query_id: 7,
            text: text.as_bytes().to_vec(),
            ..reading
        }
    };
    let sweep = SessionSweep {
        sessions: vec![
            process(2, "parallel worker", "select sum(n) from t where i = 1"),
            process(1, "client backend", "select total(1)"),
        ],
        ..SessionSweep::default()
    };
    collector.add(0.0, sweep.clone());
    collector.add(1e6, sweep);
    let sums = collector.take();
    let statements = described(&collector, &sums).statements;
    let seen: Vec<(Option<i64>, u64)> = statements
        .iter()
        .map(|it| (it.query_id, it.executions_seen))
        .collect();
    assert_eq!(seen.len(), 2);
    assert!(
        seen.contains(&(Some(7), 1)) && seen.contains(&(None, 0)),
        "{seen:?}"
    );
}

#[test]
fn time_of_the_rest_has_a_session_although_there_are_few() {
    let mut collector = Collector::new("18", BTreeSet::new(), None);
    let sweep = SessionSweep {
        sessions: vec![reading(1, SessionState::Active, SessionWait::None)],
        ..SessionSweep::default()
    };
    collector.add(0.0, sweep.clone());
    collector.add(1e6, sweep);
    let mut sums = collector.take();
    let cells = std::mem::take(&mut sums.cells).into_iter();
    sums.cells = cells.map(|((_, did), sum)| ((REST, did), sum)).collect();
    assert_eq!(collector.oids(&sums), [(0, 0)].into());
    let activity = described(&collector, &sums);
    assert_eq!(activity.sessions[0].pid, 0);
    assert!((activity.active_sessions() - 1.0).abs() < 1e-9);
}

#[test]
fn sessions_beyond_the_limit_are_one() {
    let mut collector = Collector::new("18", BTreeSet::new(), None);
    let of_pid = |pid: usize| reading(pid as u32, SessionState::Active, SessionWait::None);
    let sweep = SessionSweep {
        sessions: (1..=Activity::SESSIONS_MAX + 10).map(of_pid).collect(),
        ..SessionSweep::default()
    };
    collector.add(0.0, sweep.clone());
    collector.add(1e6, sweep);
    let waiter = SessionSweep {
        sessions: vec![reading(
            77_777,
            SessionState::Active,
            SessionWait::Number(0x0300_0005),
        )],
        ..SessionSweep::default()
    };
    let sums = collector.take();
    collector.add(2e6, waiter);
    assert_eq!(
        collector.lock_waiters(),
        [77_777],
        "also of a session without an entry"
    );
    let activity = described(&collector, &sums);
    assert_eq!(activity.sessions.len(), Activity::SESSIONS_MAX);
    assert_eq!(activity.sessions.last().map(|it| it.pid), Some(0));
    let load = (Activity::SESSIONS_MAX + 10) as f64;
    assert!((activity.active_sessions() - load).abs() < 1e-6);
}

/// Regression: to a user without `pg_monitor`, a session that was idle in a transaction and blocked others was "unknown
/// for 0.0 ms", although the server's memory could be read.
#[test]
fn a_blocker_that_the_views_hide_is_known_from_memory() {
    let mut collector = Collector::new("18", BTreeSet::new(), None);
    let mut holder = reading(1, SessionState::IdleInTransaction, SessionWait::None);
    Arc::make_mut(&mut holder.identity).application = "checkout".to_owned();
    let waiting = reading(2, SessionState::Active, SessionWait::Number(0x0300_0005));
    for at_us in [0.0, 3e6] {
        let sweep = SessionSweep {
            sessions: vec![holder.clone(), waiting.clone()],
            idle: vec![4],
            ..SessionSweep::default()
        };
        collector.add(at_us, sweep);
    }
    let hidden = |pid, is_lasting| BlockingEpisode {
        root: RootBlocker {
            pid: Some(pid),
            state: RootBlocker::UNKNOWN.to_owned(),
            ..RootBlocker::default()
        },
        blocked: vec![BlockedSession {
            pid: 2,
            ..BlockedSession::default()
        }],
        first_seen_us: 0.0,
        last_seen_us: 1e6,
        is_lasting,
        waited_us: 1e6,
        ended_by: String::new(),
    };
    let mut episodes = [(1, true), (3, true), (1, false), (4, true)]
        .map(|(pid, is_lasting)| hidden(pid, is_lasting));
    collector.show_hidden(&mut episodes, true, 5_000_003);
    let [known, gone, over, idle] = episodes;
    assert_eq!(known.root.state, "idle in transaction");
    assert!((known.root.state_age_us - 5e6).abs() < 1e-9);
    assert_eq!(known.root.transaction_age_us, Some(5_000_002.0));
    assert_eq!(known.root.application, "checkout");
    assert_eq!(known.root.statement.as_deref(), Some("select $1"));
    assert_eq!(known.blocked[0].statement.as_deref(), Some("select $1"));
    assert_eq!(known.ended_by, "select pg_terminate_backend(1);");
    // One that holds a lock of the session.
    assert_eq!(idle.root.state, "idle");
    assert!((idle.root.state_age_us - 3e6).abs() < 1e-9);
    assert_eq!(idle.ended_by, "select pg_terminate_backend(4);");
    // A session that has ended, and one that blocked earlier.
    assert_eq!(gone.root.state, RootBlocker::UNKNOWN);
    assert_eq!(over.root.state, RootBlocker::UNKNOWN);
}

/// Regression: on 10 with `track_activities` off, "1.00 active sessions", of the launcher of logical replication, which
/// waited.
#[test]
fn the_launcher_of_logical_replication_in_10_has_no_load() {
    let load = |major: &str, database: u32| {
        let mut collector = Collector::new(major, BTreeSet::new(), None);
        let mut worker = reading(1, SessionState::None, SessionWait::None);
        let identity = Arc::make_mut(&mut worker.identity);
        identity.backend_type = "background worker".to_owned();
        identity.database = database;
        let sweep = || SessionSweep {
            sessions: vec![worker.clone()],
            ..SessionSweep::default()
        };
        collector.add(0.0, sweep());
        collector.add(1e6, sweep());
        let sums = collector.take();
        described(&collector, &sums).active_sessions()
    };
    assert_eq!(load("10", 0) as u32, 0);
    assert_eq!((load("10", 5) as u32, load("11", 0) as u32), (1, 1));
}

/// `pgassay top` lists them with their ages.
#[test]
fn present_sessions_are_those_of_the_last_reading() {
    let mut collector = Collector::new("18", [9].into(), None);
    let sweep = |sessions| SessionSweep {
        sessions,
        idle: Vec::new(),
        unreadable: 0,
    };
    let active = |pid| reading(pid, SessionState::Active, SessionWait::Number(0x0300_0005));
    let mut idle = reading(2, SessionState::IdleInTransaction, SessionWait::None);
    (idle.state_changed_us, idle.text) = (0, b"commit".to_vec());
    collector.add(0.0, sweep(vec![active(3)]));
    collector.add(1e6, sweep(vec![active(9), active(1), idle]));
    let sums = collector.take();
    let activity = described(&collector, &sums);
    assert_eq!(activity.sessions.len(), 3);
    let present = collector.present(&activity, 1_000_003);
    let pids: Vec<u32> = present
        .iter()
        .map(|it| activity.sessions[it.session as usize].pid)
        .collect();
    assert_eq!(pids, [1, 2]);
    assert_eq!(
        activity.waits[present[0].wait as usize].name,
        "transactionid"
    );
    let ages = |it: &PresentSession| {
        let ages = [
            it.session_age_us,
            it.transaction_age_us,
            it.statement_age_us,
        ];
        (ages, it.state_age_us)
    };
    let known = [Some(1e6 + 2.0), Some(1e6 + 2.0), Some(1e6 + 1.0)];
    assert_eq!(ages(&present[0]), (known, Some(1e6)));
    assert_eq!(ages(&present[1]), (known, None));
    assert_ne!(present[0].statement, present[1].statement);
    assert_eq!(present[1].state, SessionStatus::IdleInTransaction);
    // The server's clock was set back.
    assert_eq!(collector.present(&activity, 1)[0].state_age_us, Some(0.0));
}
