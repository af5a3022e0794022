//! Every study that comes with pgassay: it can be planned, is quick where it says so, and runs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use support::{Finished, Place};

/// These are for `pgassay count`, which counts instead of measuring for a time.
const COUNTED: [&str; 2] = ["settings-cost", "release-cost"];
/// `--quick` is for a first answer.
const QUICK_S_MAX: f64 = 120.0;
/// The length of a trial of which only its success matters, on a machine however busy.
const TRIAL_MS: u64 = 300;

fn command(place: &Place, arguments: &[&str]) -> Finished {
    let output = place.command().args(arguments).output();
    Finished::of(&output.expect("the program runs"))
}

/// The studies that `pgassay run` is for.
fn names(place: &Place) -> Vec<String> {
    let listed = command(place, &["studies", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    let names: Vec<String> = listed["studies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|study| study["name"].as_str().unwrap().to_owned())
        .filter(|name| !COUNTED.contains(&name.as_str()))
        .collect();
    assert!(names.len() >= 12, "{names:?}");
    names
}

#[test]
fn every_study_can_be_planned_has_a_page_and_is_quick() {
    let place = Place::new();
    for name in names(&place) {
        let check = command(&place, &["study", "check", &name]);
        assert_eq!(check.code, Some(0), "{name}: {check:?}");
        let plan = command(&place, &["study", "plan", &name, "--quick", "--json"]);
        assert_eq!(plan.code, Some(0), "{name}: {plan:?}");
        let text = command(&place, &["study", "plan", &name, "--quick"]).stdout;
        let seconds = text
            .split_once("; about ")
            .and_then(|(_, rest)| rest.split_once(" s"))
            .and_then(|(number, _)| number.parse::<f64>().ok());
        let seconds = seconds.unwrap_or_else(|| panic!("{name}: {text}"));
        assert!(
            seconds <= QUICK_S_MAX,
            "{name} takes {seconds} s with --quick"
        );
        let page = format!("{}/../../docs/{name}.md", env!("CARGO_MANIFEST_DIR"));
        let page = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(
            page.contains(&format!("pgassay run {name}"))
                || page.contains(&format!("-- run {name}")),
            "{name}'s page does not say how it is run"
        );
    }
}

/// Every point of every study, on as little data and time as will do.
#[test]
#[ignore = "slow: cargo test -p pgassay --test shipped -- --ignored"]
fn every_study_runs_on_real_servers() {
    if pgassay_server::testing::installation("18").is_none() {
        return;
    }
    let place = Place::new();
    for name in names(&place) {
        let text = command(&place, &["study", "show", &name]).stdout;
        let study: toml::Table = text.parse().expect("a study is TOML");
        let parameters = study.get("parameters").and_then(toml::Value::as_table);
        let has = |key: &str| parameters.is_some_and(|parameters| parameters.contains_key(key));
        let mut arguments = vec!["--pairs", "2", "--clients", "2", "--no-profile", "--json"];
        for (key, small) in [("rows", "rows=20000"), ("scale", "scale=1")] {
            if has(key) {
                arguments.extend(["--param", small]);
            }
        }
        if name == "connection-count" {
            // Thousands of processes show no more than hundreds about whether it runs.
            arguments.extend(["--variant", "0 idle", "--variant", "100 idle"]);
        }
        let planned = command(
            &place,
            &[&["study", "plan", &name], &arguments[..]].concat(),
        );
        let plan: Value = serde_json::from_str(&planned.stdout)
            .unwrap_or_else(|error| panic!("{name}: {error}: {planned:?}"));
        let points = plan["points"].as_array().unwrap().len() as u64;
        // Two pairs are four trials a point, each long enough for one transaction to end.
        let length = format!("{}ms", points * 4 * TRIAL_MS);
        arguments.extend(["--length", &length]);
        let finished = command(&place, &[&["run", &name], &arguments[..]].concat());
        assert_eq!(finished.code, Some(0), "{name}: {}", finished.stderr);
        let run: pgassay_core::run::Run = serde_json::from_str(&finished.stdout).expect("JSON");
        assert!(run.complete, "{name}");
        assert!(!run.comparisons.is_empty(), "{name} compares nothing");
        for trial in &run.trials {
            assert!(trial.transactions > 0, "{name}: {trial:?}");
        }
        place.assert_nothing_left();
    }
}
