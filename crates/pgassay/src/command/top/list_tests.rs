//! The lists of sessions and findings, filters, and what details say.

use insta::assert_snapshot;
use pgassay_lab::watch::PresentSession;
use pgassay_record::activity::{
    Activity, ActivityWait, CatalogActivity, IdleLockHolder, RootBlocker, SessionHold,
    SessionStatus, StatementCounters,
};

use super::columns::TopView;
use super::state::{TopReading, TopState};
use super::tests::{READ_US, activity, press, screen_of, state};

/// Those of the activity: one idle in a transaction, two that wait, one that scans.
fn present() -> Vec<PresentSession> {
    let session = |session: u32, wait, age_us: f64| PresentSession {
        session,
        statement: Some(u32::from(session == 3)),
        state: if session == 0 {
            SessionStatus::IdleInTransaction
        } else {
            SessionStatus::Active
        },
        wait,
        statement_age_us: Some(age_us),
        transaction_age_us: Some(age_us + 1e5),
        state_age_us: Some(age_us),
        session_age_us: Some(3.6e9),
        prevents_wraparound: false,
    };
    vec![
        session(0, 0, 4.5e6),
        session(1, 1, 4.2e6),
        session(2, 2, 1.4e6),
        session(3, 0, 0.2e6),
    ]
}

fn with(activity: Activity, keys: &str) -> TopState {
    let mut state = state();
    let present = present();
    state.update(TopReading { activity, present }, READ_US);
    press(&mut state, keys);
    state
}

fn after(keys: &str) -> TopState {
    with(activity(), keys)
}

/// The screen without the ends of its lines.
fn words(state: &TopState, width: u16) -> String {
    let screen = screen_of(state, width, 40).replace('\u{a0}', " ");
    let words: Vec<&str> = screen
        .lines()
        .flat_map(|it| it.trim_matches('"').split_whitespace())
        .collect();
    words.join(" ")
}

fn pids(state: &TopState) -> Vec<String> {
    state.rows().iter().map(|row| row.key.clone()).collect()
}

#[test]
fn sessions_and_findings_at_80_by_24() {
    for (name, keys) in [
        ("sessions", "4"),
        ("session-detail", "4j\n"),
        ("findings", "f"),
        ("finding-detail", "f\n"),
    ] {
        assert_snapshot!(name, screen_of(&after(keys), 80, 24));
    }
    assert_snapshot!("sessions-wide", screen_of(&after("4"), 160, 12));
    assert_snapshot!("sessions-small", screen_of(&after("4"), 40, 8));
    assert_snapshot!("findings-small", screen_of(&after("f"), 40, 8));
}

#[test]
fn sessions_and_findings_fit_every_screen() {
    for keys in ["4", "f", "4\n", "f\n", "4s", "fs", "4/x", "f/x"] {
        for (width, height) in [(1, 1), (2, 2), (9, 3), (20, 5), (59, 12), (250, 70)] {
            screen_of(&after(keys), width, height);
            let mut empty = TopState::new(std::time::Duration::from_secs(2), true);
            press(&mut empty, keys);
            screen_of(&empty, width, height);
        }
    }
}

#[test]
fn every_screen_has_a_form_in_ascii() {
    for keys in [
        "1", "2", "3", "4", "t", "f", "1\n", "3\n", "4\n", "f\n", "h", "/x",
    ] {
        let mut state = after(keys);
        state.is_ascii = true;
        for width in [40, 80] {
            // The backend puts each line into quotes.
            let shown = screen_of(&state, width, 24);
            assert!(shown.is_ascii(), "{keys:?}: {shown}");
        }
    }
    let mut state = after("3");
    state.is_ascii = true;
    assert_snapshot!("ascii", screen_of(&state, 80, 12));
}

/// Regression: `/alice` emptied the list of statements, which searched nothing but their texts.
#[test]
fn statements_are_filtered_by_whose_sessions_execute_them() {
    for (filter, expected) in [
        ("report", vec!["f1"]),
        ("NIGHTLY", vec!["f1"]),
        ("4712", vec!["f0"]),
        ("checkout", vec!["f0"]),
        ("10.0.0.7", vec!["f0", "f1"]),
        ("shop", vec!["f0", "f1"]),
        ("orders", vec!["f1"]),
        // Idle in a transaction, it executes nothing.
        ("4711", vec![]),
        ("alice", vec![]),
    ] {
        let found = pids(&after(&format!("1/{filter}")));
        assert_eq!(found, expected, "{filter}");
    }
}

/// Regression: of a blocked session, neither the database nor the client's address was searched.
#[test]
fn trees_are_filtered_by_the_sessions_in_them() {
    let mut of_another = activity();
    for root in [4711, 4800] {
        let mut episode = of_another.blocking[0].clone();
        episode.root.pid = Some(root);
        episode.root.client = String::new();
        episode.root.database = String::new();
        episode.blocked.truncate(usize::from(root == 4711));
        of_another.blocking.push(episode);
    }
    of_another.blocking.remove(0);
    of_another.sessions[1].client = "10.9.9.9".to_owned();
    of_another.sessions[1].database = "warehouse".to_owned();
    for (filter, rows) in [("10.9.9.9", 2), ("warehouse", 2), ("4712", 2), ("web", 3)] {
        let state = with(of_another.clone(), &format!("3/{filter}"));
        assert_eq!(state.rows().len(), rows, "{filter}");
    }
}

#[test]
fn sessions_are_sorted_by_age_or_by_one_letter() {
    assert_eq!(pids(&after("4")), ["4711", "4712", "4713", "4714"]);
    assert_eq!(pids(&after("4su"))[0], "4714", "report before web");
    assert_eq!(pids(&after("4sp"))[0], "4711");
    assert_eq!(pids(&after("4se"))[3], "4711", "active before idle");
    assert_eq!(pids(&after("4sa"))[3], "4714", "checkout before nightly");
    assert_eq!(pids(&after("4/idle in transaction")), ["4711"]);
    assert_eq!(pids(&after("4/nightly")), ["4714"]);
}

/// The statement that would end any session, as its state and its wait require.
#[test]
fn the_details_of_a_session_have_the_statement_that_ends_it() {
    let end = |pid: &str, change: &dyn Fn(&mut TopReading)| {
        let mut reading = TopReading {
            activity: activity(),
            present: present(),
        };
        change(&mut reading);
        let mut state = state();
        state.update(reading, READ_US);
        press(&mut state, &format!("4/{pid}\n\n"));
        let shown = words(&state, 160);
        if let Some((_, sql)) = shown.split_once("To end it: ") {
            let end = sql.find(" pgassay does not").expect(&shown);
            return sql[..end].to_owned();
        }
        let advice = shown.split_once("How it ends: ");
        advice.map_or_else(String::new, |(_, advice)| format!("How it ends: {advice}"))
    };
    let unchanged = |_: &mut TopReading| {};
    assert_eq!(
        end("4711", &unchanged),
        "select pg_terminate_backend(4711);"
    );
    assert_eq!(end("4714", &unchanged), "select pg_cancel_backend(4714);");
    let committing = end("4714", &|reading| {
        reading.present[3].wait = reading.activity.waits.len() as u32;
        reading.activity.waits.push(ActivityWait {
            kind: "IPC".to_owned(),
            name: "SyncRep".to_owned(),
        });
    });
    assert!(
        committing.starts_with("How it ends: bring the"),
        "{committing}"
    );
    let vacuum = end("4714", &|reading| {
        reading.activity.sessions[3].backend_type = "autovacuum worker".to_owned();
        reading.present[3].prevents_wraparound = true;
    });
    assert!(vacuum.starts_with("How it ends: let it finish"), "{vacuum}");
    // Regression: to end the checkpointer, it was to be canceled.
    let checkpointer = end("4714", &|reading| {
        reading.activity.sessions[3].backend_type = "checkpointer".to_owned();
    });
    assert_eq!(checkpointer, "");
}

/// The details of a blocked session say how to end its blocker, and how to end the session.
#[test]
fn a_blocked_session_and_its_blocker_are_not_confused() {
    for keys in ["2\n", "3j\n", "4j\n"] {
        let shown = words(&after(keys), 200);
        let blocker = shown.find("Blocked by session 4711").expect(keys);
        let session = shown.find("Session 4712: active for 4.2 s").expect(keys);
        let end = |sql: &str| shown.find(sql).expect(keys);
        let (ends_blocker, ends_session) = (
            end("To end it: SELECT pg_terminate_backend(4711);"),
            end("To end it: select pg_cancel_backend(4712);"),
        );
        assert!(blocker < ends_blocker && ends_blocker < session && session < ends_session);
    }
    let shown = words(&after("4\n"), 200);
    assert!(shown.contains("It blocks 2 sessions"), "{shown}");
}

#[test]
fn a_session_that_is_idle_by_now_is_not_to_be_ended() {
    let mut state = after("2\n");
    let reading = TopReading {
        activity: activity(),
        present: Vec::new(),
    };
    state.update(reading, READ_US);
    let shown = words(&state, 160);
    assert!(
        shown.contains("Session 4712 was idle at the last reading"),
        "{shown}"
    );
    assert!(!shown.contains("pg_cancel_backend"), "{shown}");
}

#[test]
fn a_finding_is_shown_with_its_object_its_fix_and_its_risk() {
    let state = after("f");
    let rows = state.rows();
    let first: Vec<&str> = rows[0].cells.iter().map(|it| &*it.text).collect();
    let blocks = "A session that is idle in a transaction blocks others";
    assert_eq!(first[1..], ["likely", blocks, "session 4711"]);
    let end = "select pg_terminate_backend(4711); (pgassay does not run it)";
    assert!(words(&state, 160).contains(end));
    let detail = words(&after("f\n"), 160);
    for part in [
        "A session that is idle in a transaction blocks others: session 4711",
        "Suggested fix: ",
        "select pg_terminate_backend(4711); pgassay does not run it.",
        "Risk: Its transaction is rolled back",
        "PostgreSQL manual: ",
    ] {
        assert!(detail.contains(part), "{part} in {detail}");
    }
    assert_eq!(after("f/4711").rows().len(), 1);
    assert_eq!(after("f/no such").rows().len(), 0);
}

/// What an idle transaction locks is asked only while findings are on the screen; it then is one of them.
#[test]
fn a_lock_that_does_not_block_yet_is_a_finding() {
    let mut calm = activity();
    calm.blocking.clear();
    calm.cells.clear();
    calm.catalog = Some(CatalogActivity::default());
    assert!(
        words(&with(calm.clone(), "f"), 160).contains("No known cause of lost time was found.")
    );
    calm.idle_lock_holders = vec![IdleLockHolder {
        holder: RootBlocker {
            pid: Some(4711),
            state: "idle in transaction".to_owned(),
            state_age_us: 20e6,
            transaction_age_us: Some(21e6),
            holds: Some(SessionHold {
                mode: "AccessExclusiveLock".to_owned(),
                ..SessionHold::default()
            }),
            ..RootBlocker::default()
        },
        ended_by: String::new(),
    }];
    let rows = with(calm, "f").rows();
    assert!(rows[0].key.starts_with("idle-lock-holder"), "{rows:?}");
}

#[test]
fn findings_cost_nothing_while_they_are_not_on_the_screen() {
    let mut state = after("1");
    assert!(state.findings.is_empty());
    press(&mut state, "f");
    assert!(!state.findings.is_empty());
    let key = state.selected_row().unwrap().key;
    state.update(activity(), READ_US);
    assert_eq!(state.selected_row().unwrap().key, key);
    press(&mut state, "3");
    assert!(state.findings.is_empty());
    assert_eq!(state.view, TopView::Blocking);
}

/// Before the first reading of the catalog, findings are not all there are.
#[test]
fn findings_say_that_tables_are_not_read_yet() {
    let mut unread = activity();
    unread.catalog = None;
    unread.blocking.clear();
    unread.cells.clear();
    let shown = words(&with(unread, "f"), 80);
    let expected = "tables and settings are read at the end of this interval";
    assert!(shown.contains(expected), "{shown}");
}

#[test]
fn the_cost_of_pgassay_gives_way_to_the_statement_that_ends_a_blocker() {
    let cost = "pgassay 0.4% CPU 14 MB";
    assert!(words(&after("1"), 80).contains(cost));
    assert!(!words(&after("3"), 80).contains(cost));
    assert!(words(&after("3"), 120).contains(cost));
    let narrow = words(&after("1"), 60);
    assert!(
        narrow.contains("1 2 3 4 t f lists h help q quit"),
        "{narrow}"
    );
}

#[test]
fn names_in_sessions_and_findings_cannot_send_commands_to_the_terminal() {
    let attack = "\u{1b}]0;x\u{7}\u{9b}2J\n\u{202e}";
    let mut evil = activity();
    for it in &mut evil.sessions {
        for name in [
            &mut it.user,
            &mut it.database,
            &mut it.application,
            &mut it.client,
            &mut it.backend_type,
        ] {
            attack.clone_into(name);
        }
    }
    for it in &mut evil.statements {
        it.text = Some(format!("{attack} SELECT"));
    }
    attack.clone_into(&mut evil.blocking[0].blocked[0].user);
    evil.catalog.as_mut().unwrap().tables[1].relation.name = attack.to_owned();
    for keys in ["4", "4\n", "4j\n", "f", "f\n", "fj\n"] {
        let shown = screen_of(&with(evil.clone(), keys), 160, 40);
        let is_bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!shown.contains(is_bad), "{keys:?}: {shown:?}");
    }
}

/// Counters are read at most once a second, and less often if that takes long.
#[test]
fn calls_and_blocks_are_counted_over_the_time_between_their_readings() {
    let mut counted = activity();
    counted.counters_us = Some(4e6);
    counted.statements[0].counters = Some(StatementCounters {
        calls: 100,
        execution_us: 9e6,
        shared_hit: 300,
        temp_written: 50,
        wal_bytes: Some(1 << 20),
        ..StatementCounters::default()
    });
    let state = with(counted, "1sc");
    let rows = state.rows();
    let cells: Vec<&str> = rows[0].cells[2..4].iter().map(|it| &*it.text).collect();
    assert_eq!(cells, ["25.0", "90\u{a0}ms"]);
    let mut state = state;
    press(&mut state, "\n");
    let detail = words(&state, 100);
    for part in [
        "pg_stat_statements, over 4.0 s: 100 calls, 90 ms each",
        "blocks 3.00 hit, 0 read, 0 dirtied",
        "temporary blocks 0 read, 0.500 written",
        "WAL 10 kB per call, 256 kB/s in all",
    ] {
        assert!(detail.contains(part), "{part} in {detail}");
    }
    assert!(!words(&after("1\n"), 100).contains("pg_stat_statements"));
}
