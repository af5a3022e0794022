//! Files of results that were edited by hand: no number in them ends what reads them with a panic.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pgassay_account::scalability::ScalabilityCurve;
use pgassay_record::baseline::GateBaseline;
use pgassay_record::observation::Observation;
use pgassay_record::run::Run;
use pgassay_report::Style;
use serde_json::{Value, json};

use crate::fixture;

const PLAIN: Style = Style {
    color: false,
    width: 100,
};

/// All places of each kind, such as `/trials/*/block`: the steps to each.
type Places = BTreeMap<String, Vec<Vec<Value>>>;

/// Adds the places of all numbers and lists below a value.
fn add_places(value: &Value, kind: &str, path: &mut Vec<Value>, found: &mut Places) {
    if value.is_number() || value.is_array() {
        let of_kind = found.entry(kind.to_owned()).or_default();
        of_kind.push(path.clone());
    }
    let mut add = |step: Value, name: &str, part: &Value| {
        path.push(step);
        add_places(part, &format!("{kind}/{name}"), path, found);
        path.pop();
    };
    match value {
        Value::Array(parts) => {
            for (at, part) in parts.iter().enumerate() {
                add(json!(at), "*", part);
            }
        }
        Value::Object(parts) => {
            for (name, part) in parts {
                add(json!(name), name, part);
            }
        }
        _ => {}
    }
}

fn at<'v>(value: &'v mut Value, path: &[Value]) -> &'v mut Value {
    path.iter().fold(value, |value, step| match step {
        Value::String(name) => &mut value[name.as_str()],
        step => &mut value[usize::try_from(step.as_u64().unwrap()).unwrap()],
    })
}

/// What is put in place of a number or a list.
fn forgeries(value: &Value) -> Vec<Value> {
    if value.is_array() {
        return vec![json!([])];
    }
    vec![json!(u64::MAX), json!(i64::MIN), json!(-f64::MAX)]
}

/// Forges each kind of number and list in turn, in all places, and renders what can still be read.
fn forge<T>(original: &Value, read: impl Fn(Value) -> serde_json::Result<T>, render: impl Fn(&T)) {
    let mut found = Places::new();
    add_places(original, "", &mut Vec::new(), &mut found);
    let (mut rendered, mut failures) = (0, Vec::new());
    for (kind, paths) in &found {
        let mut forged = original.clone();
        for value in forgeries(at(&mut forged, &paths[0])) {
            let mut forged = original.clone();
            for path in paths {
                *at(&mut forged, path) = value.clone();
            }
            let Ok(read) = read(forged) else { continue };
            rendered += 1;
            if catch_unwind(AssertUnwindSafe(|| render(&read))).is_err() {
                failures.push(format!("{kind} = {value}"));
            }
        }
    }
    assert!(rendered > found.len(), "{rendered} of {}", found.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Regression: counts beyond any server overflowed, and a session that the file does not have was sought.
#[test]
fn no_number_of_a_forged_observation_ends_a_report_with_a_panic() {
    let observation = fixture::activity::observation(fixture::activity::outage());
    let original = serde_json::to_value(observation).unwrap();
    forge(&original, serde_json::from_value::<Observation>, |it| {
        pgassay_report::observation_html(it);
        pgassay_report::observation_text(it, &PLAIN);
        pgassay_diagnosis::diagnose_observation(it);
    });
}

#[test]
fn no_number_of_a_forged_curve_ends_a_report_with_a_panic() {
    let original = serde_json::to_value(crate::scalability::curve()).unwrap();
    forge(
        &original,
        serde_json::from_value::<ScalabilityCurve>,
        |it| {
            pgassay_report::scalability_html(it);
            pgassay_report::scalability_text(it, &PLAIN);
        },
    );
}

mod slow {
    use super::*;

    /// Regression: a gate that was compared with a run that has trials of a variant that its plan does not have panicked.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn no_number_of_a_forged_run_ends_a_report_or_a_gate_with_a_panic() {
        let original = Run {
            plans: fixture::plans::run_with_plans().plans,
            ..fixture::counted_run()
        };
        let original = serde_json::to_value(original).unwrap();
        forge(&original, serde_json::from_value::<Run>, |run| {
            pgassay_report::html(run);
            pgassay_report::terminal(run, &PLAIN);
            GateBaseline::of_run(run).has_ratios_of_its_trials();
        });
    }
}
