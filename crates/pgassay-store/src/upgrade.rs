//! Upgrades `run.json` of schema version 1 to version 2, which renamed keys, values and row labels.
//!
//! The tables below are the whole difference between the two versions; no meaning and no figure changed.

use serde_json::{Map, Value};

/// Keys: the objects that hold them, the old name, the new name. In a path, `*` stands for every
/// element of an array.
const KEYS: &[(&str, &str, &str)] = &[
    ("", "pgassay", "pgassay_version"),
    ("", "remedies", "fix_trials"),
    ("", "watched", "watched_functions"),
    ("calibration", "different", "false_positives"),
    ("checks/*", "limits", "limitation"),
    ("checks/*", "mend", "fix"),
    ("comparisons/*", "counted", "counters"),
    ("comparisons/*", "inconclusive", "inconclusive_reason"),
    ("comparisons/*/basis", "boots", "server_starts"),
    ("comparisons/*/basis", "family", "comparisons"),
    (
        "comparisons/*/cost",
        "resolvable_us",
        "minimum_detectable_us",
    ),
    (
        "comparisons/*/cost",
        "unevenly_named",
        "objects_with_unequal_symbols",
    ),
    ("comparisons/*/ledger", "between", "between_transactions"),
    ("comparisons/*/ledger", "unresolved_us", "unexplained_us"),
    ("findings/*", "against", "evidence_against"),
    ("findings/*", "facts", "evidence"),
    ("findings/*", "follows", "explained_by"),
    ("findings/*", "remedy", "suggested_fix"),
    ("findings/*", "tried", "fix_result"),
    ("findings/*", "variants", "fix_variants"),
    (
        "instructions/differences/*/difference",
        "repeatability",
        "margin",
    ),
    ("ledgers/*", "between_us", "between_transactions_us"),
    ("ledgers/*/checks", "steal", "cpu_steal"),
    (
        "plan/schedule",
        "blocks_per_boot",
        "blocks_per_server_start",
    ),
    ("points/*", "counted", "counters"),
    ("profiles/*/blocked/*", "wait_kind", "wait_event_type"),
    ("profiles/*/blocked/*", "wait_name", "wait_event"),
    ("profiles/*/quality", "unseen_ns", "unknown_state_ns"),
    (
        "profiles/*/transactions/all",
        "unseen_ns",
        "unknown_state_ns",
    ),
    (
        "profiles/*/transactions/tail",
        "unseen_ns",
        "unknown_state_ns",
    ),
    ("reference/rows/*", "is", "measured"),
    ("reference/rows/*", "is_ratio", "measured_ratio"),
    ("reference/rows/*", "was", "published"),
    ("reference/rows/*", "was_ratio", "published_ratio"),
    ("trials/*", "boot", "server_start"),
    ("trials/*", "busy", "cpu_utilization"),
    ("trials/*", "foreign", "other_programs"),
    ("trials/*", "second", "cross_checks"),
    ("trials/*", "steal", "cpu_steal"),
    ("trials/*/client", "asleep_us", "sleep_us"),
    ("trials/*/client", "between_us", "between_transactions_us"),
    (
        "trials/*/client",
        "ready_run_queue_us",
        "client_run_queue_us",
    ),
    ("trials/*/client", "turn_us", "thread_busy_us"),
];

/// Ratios with an interval.
const RATIOS: [&str; 6] = [
    "tps",
    "latency_mean",
    "latency_p50",
    "latency_p95",
    "latency_p99",
    "server_cpu",
];
const RATIO_KEYS: [(&str, &str); 3] = [
    ("level", "confidence_level"),
    ("detectable", "minimum_detectable_effect"),
    ("detectable_range", "minimum_detectable_effect_range"),
];

type Renamed = &'static [(&'static str, &'static str)];

const VERDICTS: Renamed = &[("same", "equivalent"), ("unresolved", "inconclusive")];
const CHANGES: Renamed = &[
    ("new", "added"),
    ("gone", "removed"),
    ("up", "increased"),
    ("down", "decreased"),
    ("unresolved", "inconclusive"),
];
const PARTS: Renamed = &[("unresolved", "unexplained")];
const NATURES: Renamed = &[("demand", "service"), ("queue", "queueing")];
const CHECK_NAMES: Renamed = &[
    ("division", "attribution"),
    ("unresolved", "unexplained_time"),
    ("unexplained", "explained_share"),
];
const DIVIDERS: Renamed = &[
    ("asked_states", "activity_states"),
    ("asked_wait_events", "activity_wait_events"),
];
const WARNINGS: Renamed = &[
    ("remedies", "fixes"),
    ("foreign_load", "other_load"),
    ("state_changes", "no_reset"),
    ("installed", "installed_version_used"),
    ("steal", "cpu_steal"),
];
/// Labels of rows.
const LABELS: Renamed = &[
    ("client asleep", "client sleep"),
    ("client does not read", "client not reading"),
    ("client's turn", "client thread busy"),
    ("wire and wake-up", "network and wake-up"),
    (
        "wire, wake-up, client's turn",
        "network, wake-up, client thread",
    ),
    ("at work or waiting for a CPU", "on CPU or in run queue"),
    ("blocked, no reason told", "blocked, reason unknown"),
    ("unresolved (blocked)", "unexplained (blocked)"),
    ("not seen", "not observed"),
    ("unresolved", "unknown"),
];

/// Values, by the keys that hold them.
const VALUES: &[(&str, Renamed)] = &[
    ("comparisons/*/verdict", VERDICTS),
    ("comparisons/*/basis/unit", &[("boot", "server_start")]),
    ("comparisons/*/cost/functions/*/change", CHANGES),
    ("comparisons/*/cost/phases/*/change", CHANGES),
    ("comparisons/*/cost/subsystems/*/change", CHANGES),
    ("comparisons/*/cost/subsystems/*/name", LABELS),
    ("comparisons/*/cost/total/change", CHANGES),
    ("comparisons/*/ledger/between_transactions/change", CHANGES),
    ("comparisons/*/ledger/response/change", CHANGES),
    ("comparisons/*/ledger/groups/*/cost/change", CHANGES),
    ("comparisons/*/ledger/rows/*/cost/change", CHANGES),
    ("comparisons/*/ledger/groups/*/cost/name", LABELS),
    ("comparisons/*/ledger/rows/*/cost/name", LABELS),
    ("comparisons/*/ledger/groups/*/nature", NATURES),
    ("comparisons/*/ledger/rows/*/nature", NATURES),
    ("comparisons/*/ledger/groups/*/part", PARTS),
    ("comparisons/*/ledger/rows/*/part", PARTS),
    ("comparisons/*/ledger/checks/*/name", CHECK_NAMES),
    ("findings/*/confidence", &[("moved", "correlated")]),
    ("ledgers/*/blocked_by", DIVIDERS),
    ("ledgers/*/consistency/*/name", CHECK_NAMES),
    ("ledgers/*/rows/*/mechanism", LABELS),
    ("ledgers/*/rows/*/nature", NATURES),
    ("ledgers/*/rows/*/part", PARTS),
    ("ledgers/*/tail/rows/*/mechanism", LABELS),
    ("ledgers/*/tail/rows/*/nature", NATURES),
    ("ledgers/*/tail/rows/*/part", PARTS),
    ("trials/*/kind", &[("counted", "hardware_counters")]),
    ("warnings/*/kind", WARNINGS),
];

/// Upgrades a run, and the run of suggested fixes inside it, in place.
pub(crate) fn to_version_2(run: &mut Value) {
    for (path, old, new) in KEYS {
        visit(run, path, &mut |found| rename(found, old, new));
    }
    for ratio in RATIOS {
        let path = format!("comparisons/*/{ratio}");
        for (old, new) in RATIO_KEYS {
            visit(run, &path, &mut |found| rename(found, old, new));
        }
    }
    for (path, renamed) in VALUES {
        visit(run, path, &mut |found| replace(found, renamed));
    }
    visit(run, "schema", &mut |found| {
        *found = Value::from("pgassay.run/2");
    });
    visit(run, "fix_trials", &mut |found| {
        if found.is_object() {
            to_version_2(found);
        }
    });
}

fn visit(value: &mut Value, path: &str, change: &mut dyn FnMut(&mut Value)) {
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    match (first, value) {
        ("", value) => change(value),
        ("*", Value::Array(all)) => {
            for each in all {
                visit(each, rest, change);
            }
        }
        (key, Value::Object(object)) => {
            if let Some(found) = object.get_mut(key) {
                visit(found, rest, change);
            }
        }
        _ => {}
    }
}

fn rename(value: &mut Value, old: &str, new: &str) {
    let object: Option<&mut Map<String, Value>> = value.as_object_mut();
    if let Some(object) = object
        && let Some(found) = object.remove(old)
    {
        object.insert(new.to_owned(), found);
    }
}

fn replace(value: &mut Value, renamed: Renamed) {
    let found = renamed.iter().find(|(old, _)| value.as_str() == Some(*old));
    if let Some((_, new)) = found {
        *value = Value::from(*new);
    }
}

#[cfg(test)]
mod tests {
    use pgassay_record::run::Run;

    use super::*;

    /// Written by the last version of pgassay with this format, and shortened.
    const VERSION_1: &str = include_str!("../tests/suite/fixture/run-1.json");

    /// Every key of `left` is in `right`, at any depth, with an equal value.
    fn assert_contained(left: &Value, right: &Value, path: &str) {
        match (left, right) {
            (Value::Object(left), Value::Object(right)) => {
                for (key, value) in left {
                    let found = right.get(key);
                    // Absent, null and empty are the same to every reader.
                    if let Some(found) = found {
                        assert_contained(value, found, &format!("{path}/{key}"));
                    } else {
                        let is_empty = value.is_null() || *value == Value::Array(Vec::new());
                        assert!(is_empty, "{path}/{key} is lost");
                    }
                }
            }
            (Value::Array(left), Value::Array(right)) => {
                assert_eq!(left.len(), right.len(), "{path}");
                for (index, (left, right)) in left.iter().zip(right).enumerate() {
                    assert_contained(left, right, &format!("{path}/{index}"));
                }
            }
            _ => assert_eq!(left, right, "{path}"),
        }
    }

    #[test]
    fn no_figure_of_version_1_is_lost() {
        let mut upgraded: Value = serde_json::from_str(VERSION_1).unwrap();
        to_version_2(&mut upgraded);
        let run: Run = serde_json::from_value(upgraded.clone()).unwrap();
        // Whatever still has its old name would be missing after a round trip.
        let again = serde_json::to_value(&run).unwrap();
        assert_contained(&upgraded, &again, "");
        assert!(run.fix_trials.is_some() && !run.comparisons.is_empty());
    }

    #[test]
    fn labels_and_kinds_of_rows_get_their_new_names() {
        let row = |label: &str, nature: &str| serde_json::json!({"mechanism": label, "nature": nature, "part": "unresolved"});
        let mut run = serde_json::json!({"ledgers": [{
            "rows": [row("wire and wake-up", "queue"), row("CPU", "demand")],
            "tail": {"rows": [row("wire, wake-up, client's turn", "think")]},
        }]});
        to_version_2(&mut run);
        let rows = &run["ledgers"][0]["rows"];
        assert_eq!(rows[0]["mechanism"], "network and wake-up");
        assert_eq!(
            (&rows[0]["nature"], &rows[0]["part"]),
            (&"queueing".into(), &"unexplained".into())
        );
        assert_eq!(
            (&rows[1]["mechanism"], &rows[1]["nature"]),
            (&"CPU".into(), &"service".into())
        );
        let tail = &run["ledgers"][0]["tail"]["rows"][0];
        assert_eq!(tail["mechanism"], "network, wake-up, client thread");
        assert_eq!(tail["nature"], "think");
    }
}
