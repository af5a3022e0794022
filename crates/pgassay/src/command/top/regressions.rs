//! What went wrong on the screen or in a snapshot, by symptom.

use pgassay_record::activity::{
    Activity, ActivityWait, CatalogActivity, DatabaseActivity, LoadCell, LoadInterval,
};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::columns::TopView;
use super::keys::TopAction;
use super::lists::{RowSource, rows};
use super::rows::{TopRow, Urgency};
use super::saving;
use super::state::{KeyMode, TopState};
use super::tests::{READ_US, activity, press, screen_of, state};

fn waiting(activity: &Activity, filter: &str) -> Vec<TopRow> {
    let source = RowSource {
        activity,
        present: &[],
        findings: &[],
    };
    rows(source, TopView::Waiting, ' ', filter)
}

fn press_with(state: &mut TopState, modifiers: KeyModifiers, letter: char) -> TopAction {
    state.press(KeyEvent::new(KeyCode::Char(letter), modifiers))
}

/// Regression: 148 transactions per second on the screen were 2,796 in the snapshot, and its tables had "scans and
/// writes in the window" of 47 s: both were counted since the last reading of the tables.
#[test]
fn a_snapshot_has_the_transactions_of_its_window_and_says_what_tables_were_counted_over() {
    let mut activity = activity();
    activity.catalog = Some(CatalogActivity {
        window_us: 46e6,
        databases: vec![DatabaseActivity {
            committed: 5669,
            ..DatabaseActivity::default()
        }],
        ..activity.catalog.unwrap()
    });
    activity.timeline = [0.5e6, 1.5e6]
        .map(|length_us| LoadInterval {
            start_us: 2e6 - length_us,
            length_us,
            active: Vec::new(),
            idle_in_transaction: 0.0,
            transactions_per_s: Some(150.0),
        })
        .into();
    let directory = tempfile::tempdir().unwrap();
    let origin = state().origin;
    let file = saving::save(&activity, &origin, directory.path()).unwrap();
    let name = file.to_str().unwrap();
    let snapshot = crate::observation_file::load(name).unwrap().unwrap();
    assert_eq!(snapshot.transactions, Some(300));
    let text = pgassay_report::observation_text(&snapshot, &pgassay_report::Style::default());
    let text = text.replace('\u{a0}', " ");
    assert!(text.contains(" 150 transactions/s"), "{text}");
    assert!(text.contains("scans and writes over 46 s"), "{text}");
    let page = pgassay_report::observation_html(&snapshot).replace('\u{a0}', " ");
    assert!(page.contains("scans and writes over 46 s"));

    activity.timeline[0].transactions_per_s = None;
    let file = saving::save(&activity, &origin, directory.path()).unwrap();
    let name = file.to_str().unwrap();
    let snapshot = crate::observation_file::load(name).unwrap().unwrap();
    assert_eq!(snapshot.transactions, None);
}

/// Regression: a snapshot of a screen that was paused at 14:00 and saved at 14:20 was of 14:20, and of the server that
/// had been started since.
#[test]
fn a_snapshot_of_a_paused_screen_is_of_when_and_where_it_was_read() {
    let directory = tempfile::tempdir().unwrap();
    let save = |state: &TopState| {
        let shown = state.shown.as_ref().unwrap();
        let file = saving::save(shown, &state.origin, directory.path()).unwrap();
        let file = crate::observation_file::load(file.to_str().unwrap());
        let snapshot = file.unwrap().unwrap();
        (snapshot.started_us, snapshot.subject.postmaster_pid)
    };
    let mut state = state();
    press(&mut state, " ");
    let before = state.server.postmaster_pid;
    state.server.postmaster_pid = Some(5000);
    state.update(activity(), READ_US + 1_200_000_000);
    assert_eq!(save(&state), (READ_US - 2_000_000, before));
    press(&mut state, " ");
    let later = READ_US + 1_198_000_000;
    assert_eq!(save(&state), (later, Some(5000)));
}

/// Regression: a session that waited for a lock, and later for the disk, had its blocker in both rows.
#[test]
fn only_waits_for_locks_have_a_blocker() {
    let mut activity = activity();
    let blocked = activity.blocking[0].blocked[0].pid;
    let mut cells = activity.cells.iter().copied();
    let of_lock = cells.find(|it| {
        activity.sessions[it.session as usize].pid == blocked
            && activity.waits[it.wait as usize].kind == "Lock"
    });
    let mut cell = of_lock.unwrap();
    cell.wait = activity.waits.len() as u32;
    activity.waits.push(ActivityWait {
        kind: "IO".to_owned(),
        name: "WALSync".to_owned(),
    });
    activity.cells.push(cell);
    let found = waiting(&activity, "");
    let row = |wait: &str| {
        let mut its = found
            .iter()
            .filter(|it| it.key.starts_with(&blocked.to_string()));
        its.find(|it| it.key.contains(wait)).unwrap()
    };
    assert_ne!(row("Lock").cells[3].text, "");
    assert_eq!(row("WALSync").cells[3].text, "");
    assert_eq!(row("WALSync").episode, None);
}

/// Regression: a session that waited for 200 ms was red, "blocked by 4000" and ended by terminating 4000, which had
/// blocked it for 12 s until a minute ago.
#[test]
fn a_session_is_not_blocked_by_what_blocked_it_before() {
    let mut activity = activity();
    let mut past = activity.blocking[0].clone();
    past.is_lasting = false;
    past.last_seen_us = -50e6;
    past.root.pid = Some(4000);
    for blocked in &mut past.blocked {
        blocked.blocked_by = 4000;
        blocked.waited_us = 12e6;
    }
    activity.blocking[0].blocked[0].waited_us = 0.2e6;
    activity.blocking.insert(0, past);
    let blocked = |activity: &Activity| {
        let mut found = waiting(activity, "4712").into_iter();
        let row = found.next().unwrap();
        (row.cells[3].text.clone(), row.urgency, row.episode)
    };
    assert_eq!(
        blocked(&activity),
        ("4711".to_owned(), Urgency::Calm, Some(1))
    );
    activity.blocking.truncate(1);
    assert_eq!(blocked(&activity), (String::new(), Urgency::Calm, None));
}

/// Regression: the details of a statement that was no longer executed became those of another one, and the line below
/// them said how to end the blocker of that.
#[test]
fn details_of_a_row_that_is_gone_are_not_those_of_another() {
    let mut state = state();
    press(&mut state, "2\n");
    let detail = screen_of(&state, 100, 30);
    assert!(detail.contains("Blocked by session 4711"), "{detail}");
    let mut gone = activity();
    gone.cells.retain(|it| it.session != 1);
    state.update(gone, READ_US);
    let detail = screen_of(&state, 100, 30);
    assert!(
        detail.contains("It was not seen in the last interval."),
        "{detail}"
    );
    assert!(!detail.contains("terminate"), "{detail}");
    state.update(activity(), READ_US);
    let detail = screen_of(&state, 100, 30);
    assert!(detail.contains("Blocked by session 4711"), "{detail}");
}

/// Regression: the details of a blocked session became those of a session behind another blocker whose waits were
/// longer.
#[test]
fn details_of_a_blocked_session_stay_when_blockers_change_places() {
    let mut state = state();
    press(&mut state, "3j\n");
    let details = |state: &TopState| state.selected_row().unwrap().cells[0].text.clone();
    assert_eq!(details(&state), "└ 4712");
    let mut next = activity();
    for root in [4000, 4711] {
        let mut other = next.blocking[0].clone();
        other.root.pid = Some(root);
        // Of the same root, an earlier one.
        other.is_lasting = root == 4000;
        other.last_seen_us = if other.is_lasting { 2e6 } else { -5e6 };
        next.blocking.insert(0, other);
    }
    state.update(next, READ_US);
    assert_eq!(details(&state), "└ 4712");
    assert_eq!(state.selected_row().unwrap().episode, Some(2));
}

/// Regression: while a server restarted, the screen did not say why it stood still.
#[test]
fn a_server_that_is_away_is_named_with_the_reason() {
    let mut state = state();
    press(&mut state, "3");
    state.lost = Some("the database system is starting up".to_owned());
    let shown = screen_of(&state, 80, 24);
    let why = "no connection, trying again: the database system is starting up";
    assert!(shown.contains(why), "{shown}");
    assert!(!shown.contains("pg_terminate_backend"), "{shown}");
}

#[test]
fn a_watch_that_used_too_much_says_so() {
    let mut state = state();
    let why = "it used 2.3% of the CPUs; --max-overhead is 1%";
    state.stopped = Some(why.to_owned());
    let shown = screen_of(&state, 80, 24);
    let expected = format!("the watch has ended: {why}");
    assert!(shown.contains(&expected), "{shown}");
}

/// Regression: the line below a list of tables named the time of the sessions.
#[test]
fn the_time_below_a_list_is_that_of_its_figures() {
    let mut state = state();
    let shown = state.shown.as_mut().unwrap();
    shown.catalog.as_mut().unwrap().window_us = 46e6;
    let line = |state: &TopState| {
        let screen = screen_of(state, 80, 24).replace('\u{a0}', " ");
        screen.contains("over the last 46 s")
    };
    assert!(!line(&state));
    press(&mut state, "t");
    assert!(line(&state));
    press(&mut state, "\n");
    let detail = screen_of(&state, 80, 24).replace('\u{a0}', " ");
    assert!(detail.contains("over 46 s: "), "{detail}");
}

/// Regression: after End, or after going down too often, as many keys up had no effect.
#[test]
fn the_first_key_up_moves_a_text_that_was_scrolled_to_its_end() {
    let mut state = state();
    press(&mut state, "1\n");
    let top = screen_of(&state, 80, 10);
    press(&mut state, "G");
    let end = screen_of(&state, 80, 10);
    assert_ne!(top, end);
    press(&mut state, "jjjj");
    assert_eq!(screen_of(&state, 80, 10), end);
    press(&mut state, "k");
    assert_ne!(screen_of(&state, 80, 10), end);
    press(&mut state, "g");
    assert_eq!(screen_of(&state, 80, 10), top);
}

/// Regression: on a small screen, how to quit was below the end of the help, and any key closed it.
#[test]
fn all_of_the_help_can_be_read_on_a_small_screen() {
    for (width, height) in [(80, 24), (60, 15), (40, 10)] {
        let mut state = state();
        press(&mut state, "h");
        let mut seen = screen_of(&state, width, height);
        for _ in 0..40 {
            press(&mut state, "j");
            seen += &screen_of(&state, width, height);
        }
        for part in ["Ctrl-C", "never runs it."] {
            assert!(seen.contains(part), "{part} at {width}x{height}");
        }
        press(&mut state, "x");
        assert_eq!(state.mode, KeyMode::Command);
    }
}

/// Regression: Ctrl-U typed a "u" into the filter, and Ctrl-W and Ctrl-S saved and sorted.
#[test]
fn control_is_not_a_letter() {
    let control = KeyModifiers::CONTROL;
    let mut state = state();
    for letter in ['w', 's', 'h', 'q', 't'] {
        assert_eq!(press_with(&mut state, control, letter), TopAction::Draw);
        assert_eq!(state.mode, KeyMode::Command, "{letter}");
    }
    assert_eq!(press_with(&mut state, control, 'l'), TopAction::Redraw);
    press(&mut state, "/update accounts");
    press_with(&mut state, control, 'w');
    assert_eq!(state.filter, "update ");
    press_with(&mut state, control, 'u');
    assert_eq!((state.filter.as_str(), state.mode), ("", KeyMode::Filter));
}

/// Regression: over a slow line, Esc and the next key arrive together, as Alt and the key. The filter stayed open, and
/// got the key.
#[test]
fn a_key_right_after_esc_is_not_swallowed() {
    let mut state = state();
    press(&mut state, "/orders");
    press_with(&mut state, KeyModifiers::ALT, '2');
    assert_eq!((state.filter.as_str(), state.mode), ("", KeyMode::Command));
    assert_eq!(state.view, super::columns::TopView::Waiting);
}

/// Regression: of the last statement of a session that is idle, "0.00 sessions on average, of which" nothing.
#[test]
fn a_statement_that_nothing_executes_has_no_empty_lists() {
    let mut state = state();
    let shown = state.shown.as_mut().unwrap();
    shown.cells.retain(|it| it.statement != Some(0));
    press(&mut state, "3\n");
    let detail = screen_of(&state, 80, 30);
    assert!(detail.contains("No session executed it"), "{detail}");
    assert!(!detail.contains("of which"), "{detail}");
}

/// Regression: sorted by blocker, sessions that nothing blocks came first, and PID 10000 before PID 9999.
#[test]
fn sorting_by_blocker_begins_with_the_lowest_pid() {
    let mut state = state();
    let shown = state.shown.as_mut().unwrap();
    for (blocked, by) in shown.blocking[0].blocked.iter_mut().zip([10_000, 9_999]) {
        blocked.blocked_by = by;
    }
    let free = shown.cells[0];
    shown.cells.push(LoadCell { session: 3, ..free });
    press(&mut state, "2sb");
    let rows = state.rows();
    let blockers: Vec<&str> = rows.iter().map(|row| &*row.cells[3].text).collect();
    assert_eq!(blockers, ["9999", "10000", ""]);
}

/// Regression: a part of a snapshot stayed, which `report` and `show` cannot read.
#[test]
fn a_snapshot_that_does_not_fit_on_the_disk_leaves_no_file() {
    let Some(disk) = pgassay_test_support::SmallDisk::mount("4k") else {
        return;
    };
    let saved = saving::save(&activity(), &state().origin, disk.path());
    let words = format!("{:#}", saved.unwrap_err());
    assert!(words.contains("No space left on device"), "{words}");
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0);
}
