//! The lists, filters, and what details say.

use pgassay_record::activity::{Activity, StatementCounters};

use super::state::TopState;
use super::tests::{READ_US, activity, press, screen_of, state};

fn with(activity: Activity, keys: &str) -> TopState {
    let mut state = state();
    state.update(activity, READ_US);
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
