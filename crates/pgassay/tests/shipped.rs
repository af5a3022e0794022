//! Every study that comes with pgassay: it can be planned, is quick where it says so, and runs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Mutex;
use std::time::Instant;

use pgassay_core::run::{Run, Warning, WarningKind};
use serde_json::Value;
use support::{Finished, Place};

/// These are for `pgassay count`, which counts instead of measuring for a time.
const COUNTED: [&str; 2] = ["settings-cost", "release-cost"];
/// `--quick` is for a first answer.
const QUICK_S_MAX: f64 = 120.0;
/// The length of a trial of which only its success matters; one that is too short for its transactions
/// is made longer by the program.
const TRIAL_MS: u64 = 100;
/// So many studies run at the same time: they wait much, for servers that start, for networks and disks.
const AT_ONCE: usize = 2;

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

/// What is left of a study of which all would take minutes: no variant and no kind of condition is
/// left out, but for more of the same.
fn abridged(name: &str) -> &'static [&'static str] {
    match name {
        // Emptying 1,024 partitions takes longer than a trial; the releases in between are as the others.
        "partition-insert" => &[
            "--server=10,18",
            "--variant=plain table,leaf,16 range,128 range,128 list,128 pg_pathman",
        ],
        // Thousands of processes show no more than hundreds about whether it runs.
        "connection-count" => &["--server=13,18", "--variant=0 idle,100 idle"],
        _ => &[],
    }
}

/// The points of every study, on as little data and time as will do.
#[test]
#[ignore = "slow: cargo test -p pgassay --test shipped -- --ignored"]
fn every_study_runs_on_real_servers() {
    if pgassay_server::testing::installation("18").is_none() {
        return;
    }
    let names = Mutex::new(names(&Place::new()).into_iter());
    let next = || names.lock().expect("the list of studies").next();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(name) = next() {
                    let begun = Instant::now();
                    runs(&name);
                    // With `--nocapture` it shows which study takes the time.
                    eprintln!("{name}: {:.1} s", begun.elapsed().as_secs_f64());
                }
            });
        }
    });
}

/// Whole, but as short as it goes: twelve comparisons, of which a correct program finds more than four
/// different once in 2,000 runs (binomial, 5%).
#[test]
#[ignore = "slow: cargo test -p pgassay --test shipped -- --ignored"]
fn a_quick_calibration_finds_few_differences_and_later_answers_show_it() {
    if pgassay_server::testing::installation("18").is_none() {
        return;
    }
    let place = Place::new();
    let finished = command(&place, &["calibrate", "--quick", "--json"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    place.assert_nothing_left();
    let found: Value = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
    let comparisons = found["comparisons"].as_array().unwrap();
    assert_eq!(comparisons.len(), 12);
    let is_different = |it: &&Value| it["verdict"] == "faster" || it["verdict"] == "slower";
    let different = comparisons.iter().filter(is_different).count();
    assert!(different <= 4, "{comparisons:#?}");
    let answer = place.run(support::SMALL, &[]);
    let expected = format!("A/A on this machine: {different} of 12 comparisons differed");
    assert!(answer.stdout.contains(&expected), "{}", answer.stdout);
}

fn runs(name: &str) {
    let place = Place::new();
    let text = command(&place, &["study", "show", name]).stdout;
    let study: toml::Table = text.parse().expect("a study is TOML");
    let parameters = study.get("parameters").and_then(toml::Value::as_table);
    let has = |key: &str| parameters.is_some_and(|parameters| parameters.contains_key(key));
    let mut arguments = vec!["--pairs", "2", "--clients", "2", "--no-profile", "--json"];
    for (key, small) in [("rows", "rows=20000"), ("scale", "scale=1")] {
        if has(key) {
            arguments.extend(["--param", small]);
        }
    }
    arguments.extend(abridged(name));
    let planned = command(&place, &[&["study", "plan", name], &arguments[..]].concat());
    let plan: Value = serde_json::from_str(&planned.stdout)
        .unwrap_or_else(|error| panic!("{name}: {error}: {planned:?}"));
    let points = plan["points"].as_array().unwrap().len() as u64;
    // Two pairs are four trials a point.
    let length = format!("{}ms", points * 4 * TRIAL_MS);
    arguments.extend(["--length", &length]);
    let finished = command(&place, &[&["run", name], &arguments[..]].concat());
    assert_eq!(finished.code, Some(0), "{name}: {}", finished.stderr);
    let run: Run = serde_json::from_str(&finished.stdout).expect("JSON");
    assert!(run.complete, "{name}");
    // What these servers cannot do is left out with a warning; then there may be but one variant.
    let is_alone = run.plan.variants.len() == 1;
    let left_out = |warning: &Warning| warning.kind == WarningKind::Skipped;
    assert!(
        !run.comparisons.is_empty() || (is_alone && run.warnings.iter().any(left_out)),
        "{name} compares nothing"
    );
    for trial in &run.trials {
        assert!(trial.transactions > 0, "{name}: {trial:?}");
    }
    place.assert_nothing_left();
}
