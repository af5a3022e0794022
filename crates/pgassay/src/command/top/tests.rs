//! The screen, driven by keys and readings.

use std::time::Duration;

use insta::assert_snapshot;
use pgassay_model::check::Check;
use pgassay_record::activity::{
    Activity, ActivitySession, ActivityStatement, ActivityWait, BlockedSession, BlockingEpisode,
    CatalogActivity, LoadCell, LoadInterval, LoadMark, LoadMarkKind, LockTarget, RelationName,
    RootBlocker, SessionHold, SessionStatus, TableActivity, WatchCost,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::columns::TopView;
use super::draw::draw;
use super::keys::TopAction;
use super::saving;
use super::state::{KeyMode, TopServer, TopState};

/// When readings end.
pub(super) const READ_US: i64 = 5_000_000;
const UPDATE: &str = "UPDATE accounts SET balance = balance + $1 WHERE id = $2";

fn relation(name: &str) -> RelationName {
    RelationName {
        oid: name.len() as u32,
        database: "shop".to_owned(),
        schema: "public".to_owned(),
        name: name.to_owned(),
    }
}

fn blocked(pid: u32, blocked_by: u32, depth: u32, kind: &str) -> BlockedSession {
    BlockedSession {
        pid,
        blocked_by,
        depth,
        user: "web".to_owned(),
        application: "checkout".to_owned(),
        statement: Some(UPDATE.to_owned()),
        fingerprint: Some("f0".to_owned()),
        is_recovery: false,
        waits_for: LockTarget {
            kind: kind.to_owned(),
            mode: "ShareLock".to_owned(),
            relation: Some(relation("accounts")),
        },
        waited_us: if depth == 1 { 4.2e6 } else { 1.4e6 },
    }
}

fn episode() -> BlockingEpisode {
    BlockingEpisode {
        root: RootBlocker {
            pid: Some(4711),
            database: "shop".to_owned(),
            user: "web".to_owned(),
            application: "checkout".to_owned(),
            client: "10.0.0.7".to_owned(),
            state: "idle in transaction".to_owned(),
            state_age_us: 4.5e6,
            transaction_age_us: Some(4.6e6),
            statement: Some(UPDATE.to_owned()),
            fingerprint: Some("f0".to_owned()),
            holds: Some(SessionHold {
                mode: "RowExclusiveLock".to_owned(),
                relation: relation("accounts"),
            }),
            ..RootBlocker::default()
        },
        blocked: vec![
            blocked(4712, 4711, 1, "transactionid"),
            blocked(4713, 4712, 2, "tuple"),
        ],
        first_seen_us: 0.0,
        last_seen_us: 2e6,
        is_lasting: true,
        waited_us: 5.6e6,
        ended_by: "SELECT pg_terminate_backend(4711);".to_owned(),
    }
}

/// Two sessions wait for one that is idle in a transaction; a third scans a table.
pub(super) fn activity() -> Activity {
    let wait = |kind: &str, name: &str| ActivityWait {
        kind: kind.to_owned(),
        name: name.to_owned(),
    };
    let statement = |fingerprint: &str, text: &str, executions_seen| ActivityStatement {
        fingerprint: fingerprint.to_owned(),
        text: Some(text.to_owned()),
        executions_seen,
        ..ActivityStatement::default()
    };
    let cell = |session, statement, wait, seconds: f64| LoadCell {
        session,
        statement: Some(statement),
        state: SessionStatus::Active,
        wait,
        relation: None,
        time_us: seconds * 1e6,
        samples: 10,
    };
    let idle = SessionStatus::IdleInTransaction;
    Activity {
        sweeps: 40,
        window_us: 2e6,
        processors: Some(2),
        sessions: (4711..4715)
            .map(|pid| ActivitySession {
                pid,
                database: "shop".to_owned(),
                user: if pid < 4714 { "web" } else { "report" }.to_owned(),
                application: if pid < 4714 { "checkout" } else { "nightly" }.to_owned(),
                client: "10.0.0.7".to_owned(),
                ..ActivitySession::default()
            })
            .collect(),
        statements: vec![
            statement("f0", UPDATE, 12),
            statement("f1", "SELECT id, total FROM orders WHERE customer = $1", 9),
        ],
        waits: vec![
            wait("", ""),
            wait("Lock", "transactionid"),
            wait("Lock", "tuple"),
        ],
        relations: Vec::new(),
        cells: vec![
            cell(1, 0, 1, 2.0),
            cell(2, 0, 2, 1.4),
            cell(2, 0, 0, 0.2),
            cell(3, 1, 0, 1.9),
            LoadCell {
                state: idle,
                ..cell(0, 0, 0, 2.0)
            },
        ],
        timeline: vec![LoadInterval {
            start_us: 0.0,
            length_us: 2e6,
            active: Vec::new(),
            idle_in_transaction: 1.0,
            transactions_per_s: Some(1234.4),
        }],
        blocking: vec![episode()],
        catalog: Some(CatalogActivity {
            database: "shop".to_owned(),
            window_us: 2e6,
            tables: vec![
                TableActivity {
                    relation: relation("accounts"),
                    size_bytes: 14 << 20,
                    live_rows: 100_000,
                    dead_rows: 61_000,
                    updated: 240,
                    ..TableActivity::default()
                },
                TableActivity {
                    relation: relation("orders"),
                    size_bytes: 1 << 30,
                    sequential_scans: 9,
                    sequential_rows: 54_000_000,
                    ..TableActivity::default()
                },
            ],
            ..CatalogActivity::default()
        }),
        cost: WatchCost {
            own_cpu_us: 8_000.0,
            peak_memory_bytes: 14 << 20,
            ..WatchCost::default()
        },
        ..Activity::default()
    }
}

pub(super) fn state() -> TopState {
    let mut state = TopState::new(Duration::from_secs(2), false);
    state.server = TopServer {
        title: "PostgreSQL 18 at /run/postgresql:5432".to_owned(),
        major: Some("18".to_owned()),
        postmaster_pid: Some(4000),
        address: None,
    };
    state.update(activity(), READ_US);
    state
}

pub(super) fn press(state: &mut TopState, keys: &str) {
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            c => KeyCode::Char(c),
        };
        state.press(KeyEvent::new(code, KeyModifiers::NONE));
    }
}

pub(super) fn screen_of(state: &TopState, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn every_screen_at_80_by_24() {
    for (name, keys) in [
        ("statements", "1"),
        ("waiting", "2"),
        ("blocking", "3"),
        ("tables", "t"),
        ("statement-detail", "1\n"),
        ("blocker-detail", "3\n"),
        ("help", "h"),
        ("sort", "s"),
        ("filter", "/orders"),
    ] {
        let mut state = state();
        press(&mut state, keys);
        assert_snapshot!(name, screen_of(&state, 80, 24));
    }
}

#[test]
fn a_small_terminal_shows_rows_and_keys() {
    let mut state = state();
    press(&mut state, "3");
    assert_snapshot!("small", screen_of(&state, 40, 8));
    for view in ["1", "2", "3", "t", "1\n", "h", "s", "/x"] {
        for (width, height) in [
            (1, 1),
            (2, 2),
            (9, 3),
            (20, 5),
            (59, 12),
            (80, 24),
            (250, 70),
        ] {
            let mut state = self::state();
            press(&mut state, view);
            screen_of(&state, width, height);
            let mut empty = TopState::new(Duration::from_secs(2), true);
            press(&mut empty, view);
            screen_of(&empty, width, height);
        }
    }
}

#[test]
fn the_statement_that_ends_a_blocker_is_shown_with_its_tree() {
    let mut state = state();
    press(&mut state, "3");
    let shown = screen_of(&state, 80, 24);
    for part in ["└ 4712", "  └ 4713", "idle in transaction", "4.5 s"] {
        assert!(
            shown.replace('\u{a0}', " ").contains(part),
            "{part} in\n{shown}"
        );
    }
    assert!(shown.contains("SELECT pg_terminate_backend(4711); (pgassay does not run it)"));
}

/// Regression: sessions that took turns at a row for milliseconds were to be terminated.
#[test]
fn a_blocker_of_a_moment_is_not_to_be_ended() {
    let mut short = activity();
    let episode = &mut short.blocking[0];
    episode.root.state = "idle".to_owned();
    episode.root.state_age_us = 1e3;
    episode.root.transaction_age_us = None;
    for session in &mut episode.blocked {
        session.waited_us = 5e3;
    }
    let mut state = state();
    state.update(short, READ_US);
    press(&mut state, "3");
    let list = screen_of(&state, 80, 24);
    press(&mut state, "\n");
    let detail = screen_of(&state, 80, 24);
    for shown in [list, detail] {
        assert!(shown.contains("4711"), "{shown}");
        assert!(!shown.contains("pg_terminate_backend"), "{shown}");
    }
}

/// Regression: "(ended) idle in transaction", of a session that remained when those behind it had a timeout.
#[test]
fn what_no_session_waits_for_need_not_have_ended() {
    let mut over = activity();
    over.blocking[0].is_lasting = false;
    let mut state = state();
    state.update(over, READ_US);
    press(&mut state, "3");
    let shown = screen_of(&state, 120, 24);
    assert!(shown.contains("(past) idle in transaction"), "{shown}");
}

/// Regression: checkpoints, vacuums and errors in the log were on the page of a profile, but not on the screen.
#[test]
fn what_happened_in_the_interval_is_on_the_screen() {
    let mark = |kind, text: &str| LoadMark {
        at_us: 0.5e6,
        length_us: 1e6,
        kind,
        text: text.to_owned(),
        count: None,
    };
    let mut state = state();
    assert!(!screen_of(&state, 80, 24).contains("Events:"));
    state.update(
        Activity {
            marks: vec![
                mark(LoadMarkKind::Checkpoint, "checkpoint"),
                mark(LoadMarkKind::LogError, "ERROR: division by zero"),
            ],
            ..activity()
        },
        READ_US,
    );
    let shown = screen_of(&state, 80, 24);
    let expected = "Events: checkpoint; ERROR: division by zero";
    assert!(shown.contains(expected), "{shown}");
}

fn missing(name: &str, value: &str, limitation: &str, fix: Option<&str>) -> Check {
    Check {
        name: name.to_owned(),
        value: value.to_owned(),
        limitation: Some(limitation.to_owned()),
        fix: fix.map(str::to_owned),
    }
}

/// What a watch says if it cannot see anything.
fn blind() -> Activity {
    let hidden = "500 sessions belong to other users, and the server does not show what they do";
    let lost = "the connection that reads the server's views was lost";
    Activity {
        sweeps: 20,
        window_us: 2e6,
        waits: vec![ActivityWait::default()],
        unavailable: vec![
            missing(Activity::PRIVILEGES, "insufficient", "few rights", None),
            missing(
                Activity::HIDDEN_SESSIONS,
                "limited",
                hidden,
                Some("grant pg_monitor to \"web\";"),
            ),
            missing(Activity::CATALOG_CONNECTION, "lost", lost, None),
        ],
        ..Activity::default()
    }
}

/// Regression: a role without `pg_monitor` saw "No session was active" while 500 were, and a lost connection
/// "No session blocked another." in a lock storm.
#[test]
fn what_cannot_be_seen_does_not_look_like_nothing_happens() {
    for (keys, known) in [
        (
            "1",
            "No session that can be seen was active: 500 sessions belong",
        ),
        (
            "2",
            "No session that can be seen waited: 500 sessions belong",
        ),
        ("3", "Who blocks whom is not known: the connection"),
        ("t", "Tables cannot be read: the connection"),
    ] {
        let mut state = state();
        press(&mut state, keys);
        state.update(blind(), READ_US);
        let shown = screen_of(&state, 80, 24);
        let words: Vec<&str> = shown
            .lines()
            .flat_map(|it| it.trim_matches('"').split_whitespace())
            .collect();
        let words = words.join(" ").replace('\u{a0}', " ");
        let header = "No session that can be seen was active in 20 samples over 2.0 s. \
                      Who blocks whom is not known.";
        let grant = "! 500 sessions belong to other users, and the server does not show what they \
                     do; to fix it: grant pg_monitor to \"web\";";
        for part in [header, grant, known, "! the connection that reads"] {
            assert!(words.contains(part), "{part} in\n{shown}");
        }
        assert!(!words.contains("few rights"), "{shown}");
    }
    let mut state = state();
    press(&mut state, "1");
    state.update(blind(), READ_US);
    assert_snapshot!("blind", screen_of(&state, 80, 24));
}

/// Regression: the readings of a stopped server's memory looked like those of a busy one.
#[test]
fn the_first_line_says_that_the_server_does_not_answer() {
    let mut state = state();
    let mut silent = activity();
    silent.unavailable = vec![missing(Activity::ANSWERS, Activity::NOT_READ, "none", None)];
    state.update(silent.clone(), READ_US);
    let first = |state: &TopState| screen_of(state, 80, 24).lines().next().map(str::to_owned);
    let line = first(&state).expect("a line");
    assert!(line.contains("[the server does not answer]"), "{line}");
    silent.unavailable[0].value = Activity::AT_TIMES.to_owned();
    state.update(silent, READ_US);
    let line = first(&state).expect("a line");
    assert!(!line.contains("answer"), "{line}");
    state.silent_for = Some(std::time::Duration::from_secs(7));
    let line = first(&state).expect("a line");
    assert!(
        line.contains("[no answer from the server for 7 s]"),
        "{line}"
    );
}

#[test]
fn tables_that_are_too_many_to_list_are_not_unreadable() {
    let mut state = state();
    press(&mut state, "t");
    let mut few = activity();
    few.catalog = Some(CatalogActivity::default());
    few.unavailable = vec![missing(Activity::TABLES, "incomplete", "many", None)];
    state.update(few.clone(), READ_US);
    assert!(screen_of(&state, 80, 24).contains("No table was read or written."));
    few.unavailable[0].value = Activity::NOT_READ.to_owned();
    state.update(few, READ_US);
    assert!(screen_of(&state, 80, 24).contains("Tables cannot be read: many"));
}

#[test]
fn the_selection_stays_with_its_row() {
    let mut state = state();
    press(&mut state, "j");
    assert_eq!(state.selected_row().unwrap().key, "f1");
    let mut next = activity();
    // The scan is the largest now.
    next.cells[3].time_us = 9e6;
    state.update(next, READ_US);
    assert_eq!(
        (state.selected, state.selected_row().unwrap().key),
        (0, "f1".to_owned())
    );
    let mut gone = activity();
    gone.cells.truncate(3);
    state.update(gone, READ_US);
    assert_eq!(state.selected_row().unwrap().key, "f0");
    press(&mut state, "jjjjkG");
    assert_eq!(state.selected, 0);
}

#[test]
fn a_pause_keeps_the_screen_and_ends_with_the_latest_reading() {
    let mut state = state();
    press(&mut state, " ");
    let before = screen_of(&state, 80, 24);
    assert!(before.contains("[paused]"));
    let mut next = activity();
    next.blocking.clear();
    state.update(next, READ_US);
    state.history.pop_back();
    assert_eq!(screen_of(&state, 80, 24), before);
    press(&mut state, " 3");
    assert!(screen_of(&state, 80, 24).contains("No session blocked another."));
}

#[test]
fn a_filter_is_typed_and_cleared() {
    let mut state = state();
    press(&mut state, "/Orders\n");
    assert_eq!((state.rows().len(), state.mode), (1, KeyMode::Command));
    press(&mut state, "\u{1b}");
    assert_eq!(state.rows().len(), 2);
    press(&mut state, "2/checkout");
    assert_eq!(state.rows().len(), 2);
    press(&mut state, "q");
    assert_eq!(state.filter, "checkoutq", "letters are typed, not commands");
}

#[test]
fn lists_are_sorted_by_one_letter() {
    let mut state = state();
    press(&mut state, "t");
    assert_eq!(state.view, TopView::Tables);
    let first = |state: &TopState| state.rows()[0].cells[0].text.clone();
    assert_eq!(first(&state), "orders");
    press(&mut state, "sw");
    assert_eq!(first(&state), "accounts");
    press(&mut state, "s9");
    assert_eq!(state.message.as_deref(), Some("no column has the letter 9"));
    press(&mut state, "1sx");
    assert!(
        first(&state).starts_with("0."),
        "SELECT comes before UPDATE"
    );
}

#[test]
fn keys_change_the_interval_and_end() {
    let mut state = state();
    press(&mut state, "+");
    assert_eq!(state.interval, Duration::from_secs(5));
    press(&mut state, "----------");
    assert_eq!(state.interval, Duration::from_millis(500));
    for (code, modifiers, wanted) in [
        (KeyCode::Char('q'), KeyModifiers::NONE, TopAction::Quit),
        (KeyCode::Char('c'), KeyModifiers::CONTROL, TopAction::Quit),
        (KeyCode::Char('w'), KeyModifiers::NONE, TopAction::Save),
        (KeyCode::Char('S'), KeyModifiers::SHIFT, TopAction::Save),
        (KeyCode::Tab, KeyModifiers::NONE, TopAction::Draw),
    ] {
        assert_eq!(
            state.press(KeyEvent::new(code, modifiers)),
            wanted,
            "{code:?}"
        );
    }
    press(&mut state, "/");
    let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.press(key), TopAction::Quit, "in every mode");
}

#[test]
fn names_cannot_send_commands_to_the_terminal() {
    let attack = "\u{1b}]0;x\u{7}\u{9b}2J\n\u{202e}";
    let mut evil = activity();
    for it in &mut evil.statements {
        it.text = Some(format!("{attack} SELECT"));
    }
    for it in &mut evil.sessions {
        it.user = attack.to_owned();
        it.application = attack.to_owned();
    }
    evil.blocking[0].root.state = attack.to_owned();
    evil.blocking[0].ended_by = attack.to_owned();
    evil.catalog.as_mut().unwrap().tables[0].relation.name = attack.to_owned();
    evil.unavailable = vec![missing(Activity::BLOCKING, attack, attack, Some(attack))];
    for keys in ["1", "2", "3", "t", "1\n", "3\n"] {
        let mut state = state();
        state.server.title = attack.to_owned();
        state.update(evil.clone(), READ_US);
        press(&mut state, keys);
        let shown = screen_of(&state, 100, 30);
        let is_bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!shown.contains(is_bad), "{keys:?}: {shown:?}");
    }
}

#[test]
fn a_snapshot_is_a_private_file_that_can_be_shown() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let origin = state().origin;
    let save = || saving::save(&activity(), &origin, directory.path()).unwrap();
    let (first, second) = (save(), save());
    assert_ne!(first, second);
    let mode = std::fs::metadata(&first).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let name = first.to_str().unwrap();
    let observation = crate::observation_file::load(name).unwrap().unwrap();
    assert_eq!(observation.activity, Some(activity()));
    assert_eq!(observation.started_us, 3_000_000);
    let text = pgassay_report::observation_text(&observation, &pgassay_report::Style::default());
    assert!(
        text.contains("SELECT pg_terminate_backend(4711);"),
        "{text}"
    );
}
