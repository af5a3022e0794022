//! The lists, filters, and what details say.

use pgassay_record::activity::Activity;

use super::state::TopState;
use super::tests::{READ_US, activity, press, state};

fn with(activity: Activity, keys: &str) -> TopState {
    let mut state = state();
    state.update(activity, READ_US);
    press(&mut state, keys);
    state
}

fn after(keys: &str) -> TopState {
    with(activity(), keys)
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
