//! Every built-in study can be planned, has a short quick length, and runs.

use std::sync::Mutex;
use std::time::Instant;

use pgassay_record::run::Run;
use pgassay_test_support::{Finished, SMALL_STUDY, Scratch, servers, skip};
use serde_json::Value;

use crate::PROGRAM;

/// Studies for `pgassay count`.
const COUNT_ONLY: [&str; 2] = ["settings-cost", "release-cost"];
/// `--quick` is for a first answer.
const QUICK_S_MAX: f64 = 120.0;
/// The length of a trial of which only success matters. pgassay lengthens trials that are too short
/// for their transactions.
const TRIAL_MS: u64 = 100;
/// Studies that run at the same time; they often wait for server starts, networks and disks.
const AT_ONCE: usize = 2;

fn command(scratch: &Scratch, arguments: &[&str]) -> Finished {
    let output = scratch.command().args(arguments).output();
    Finished::of(&output.expect("the program runs"))
}

/// The studies that `pgassay run` is for.
fn names(scratch: &Scratch) -> Vec<String> {
    let mut names = all_names(scratch);
    names.retain(|name| !COUNT_ONLY.contains(&name.as_str()));
    assert!(names.len() >= 12, "{names:?}");
    names
}

fn all_names(scratch: &Scratch) -> Vec<String> {
    let listed = command(scratch, &["studies", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    listed["studies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|study| study["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn every_study_can_be_planned_has_a_page_and_is_quick() {
    let scratch = Scratch::new(PROGRAM);
    for name in names(&scratch) {
        let check = command(&scratch, &["study", "check", &name]);
        assert_eq!(check.code, Some(0), "{name}: {check:?}");
        let plan = command(&scratch, &["study", "plan", &name, "--quick", "--json"]);
        assert_eq!(plan.code, Some(0), "{name}: {plan:?}");
        let text = command(&scratch, &["study", "plan", &name, "--quick"]).stdout;
        let seconds = text
            .split_once("about ")
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

/// Arguments that shorten studies which would take minutes. They omit only variants and conditions
/// similar to others.
fn run_subset(name: &str) -> &'static [&'static str] {
    match name {
        // Truncating 1,024 partitions takes longer than a trial; the omitted releases behave as the others.
        "partition-insert" => &[
            "--server=10,18",
            "--variant=plain table,leaf,16 range,128 range,128 list,128 pg_pathman",
        ],
        // Hundreds of processes are enough to show that it runs.
        "connection-count" => &["--server=13,18", "--variant=0 idle,100 idle"],
        _ => &[],
    }
}

/// Calls a function for every study, two at a time.
fn each_of(names: Vec<String>, does: fn(&str)) {
    let names = Mutex::new(names.into_iter());
    let next = || names.lock().expect("the list of studies").next();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(name) = next() {
                    let begun = Instant::now();
                    does(&name);
                    // With `--nocapture` this shows which study takes how long.
                    eprintln!("{name}: {:.1} s", begun.elapsed().as_secs_f64());
                }
            });
        }
    });
}

/// Values for those parameters of a study that make its data large.
fn little_data(scratch: &Scratch, name: &str) -> Vec<&'static str> {
    let text = command(scratch, &["study", "show", name]).stdout;
    let study: toml::Table = text.parse().expect("a study is TOML");
    let parameters = study.get("parameters").and_then(toml::Value::as_table);
    let has = |key: &str| parameters.is_some_and(|parameters| parameters.contains_key(key));
    let mut arguments = Vec::new();
    for (key, small) in [("rows", "rows=20000"), ("scale", "scale=1")] {
        if has(key) {
            arguments.extend(["--param", small]);
        }
    }
    arguments
}

fn runs(name: &str) {
    let scratch = Scratch::new(PROGRAM);
    let mut arguments = vec!["--pairs", "2", "--clients", "2", "--no-profile", "--json"];
    arguments.extend(little_data(&scratch, name));
    arguments.extend(run_subset(name));
    let planned = command(
        &scratch,
        &[&["study", "plan", name], &arguments[..]].concat(),
    );
    let plan: Value = serde_json::from_str(&planned.stdout)
        .unwrap_or_else(|error| panic!("{name}: {error}: {planned:?}"));
    let points = plan["points"].as_array().unwrap().len() as u64;
    // Two pairs are four trials per point.
    let length = format!("{}ms", points * 4 * TRIAL_MS);
    arguments.extend(["--length", &length]);
    let finished = command(&scratch, &[&["run", name], &arguments[..]].concat());
    // Downloaded servers have no JIT compiler.
    if name == "jit" && finished.error_message().contains("nothing to compare with") {
        assert_eq!(finished.code, Some(1), "{finished:?}");
        return;
    }
    assert_eq!(finished.code, Some(0), "{name}: {}", finished.stderr);
    let run: Run = serde_json::from_str(&finished.stdout).expect("JSON");
    assert!(run.complete, "{name}");
    // Variants that these servers cannot run are skipped with a warning.
    assert!(!run.comparisons.is_empty(), "{name} compares nothing");
    for trial in &run.trials {
        assert!(trial.transactions > 0, "{name}: {trial:?}");
    }
    scratch.assert_nothing_left();
}

/// A selection of variants and scripts for every study, enough to check that its setup, reset and
/// scripts can be counted; or why it cannot be counted.
fn instruction_count_subset(name: &str) -> Result<&'static [&'static str], &'static str> {
    Ok(match name {
        "audit-logging" => &["--variant=none,statement"],
        "connection-count" => {
            return Err(
                "`idle_connections` cannot be counted, because each is a process under valgrind",
            );
        }
        "data-checksums" => &["--variant=off,on", "--script=update"],
        "fillfactor" => &["--variant=100,70", "--script=update"],
        "full-page-images" => &["--variant=images,pglz"],
        "index-count" => &["--variant=0 indexes,1 index", "--script=insert"],
        // If everything is JIT-compiled, valgrind takes minutes to translate it.
        "jit" => &["--variant=off,default costs", "--script=lookup"],
        // Queries of other variants start workers, which takes seconds under valgrind.
        "parallel-query" => &["--variant=0 workers", "--script=small"],
        "partition-insert" => &["--variant=plain table,16 range", "--server=18"],
        "pipeline" => &["--variant=pipeline,many rows"],
        "prepared-vs-simple" => &["--variant=simple,prepared", "--script=plain"],
        "release-cost" => &["--variant=10,18", "--script=select 1"],
        "sequence" => &["--variant=one,many", "--param=many=100"],
        "settings-cost" => &["--variant=defaults,work_mem=4MB", "--script=select-only"],
        "synchronous-commit" => &["--variant=on,off"],
        "tls-cost" => &["--variant=tcp,tls", "--script=query,connection"],
        "uuid-keys" => &["--variant=bigint,uuid v4"],
        other => panic!("say here how {other} is counted briefly, or why it cannot be"),
    })
}

fn can_count() -> bool {
    let has_valgrind = std::process::Command::new("valgrind")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_valgrind {
        skip("counting", "there is no valgrind");
    }
    has_valgrind && servers::is_available("18")
}

fn counts(name: &str) {
    let scratch = Scratch::new(PROGRAM);
    let arguments = instruction_count_subset(name);
    let mut words = vec!["count", name, "-t", "10", "--repeats", "1", "--json"];
    words.extend(little_data(&scratch, name));
    words.extend(arguments.unwrap_or_default());
    let finished = command(&scratch, &words);
    if let Err(reason) = arguments {
        assert_eq!(finished.code, Some(1), "{name}: {finished:?}");
        assert!(
            finished.error_message().contains(reason),
            "{name}: {finished:?}"
        );
        return;
    }
    assert_eq!(finished.code, Some(0), "{name}: {}", finished.stderr);
    let result: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    for condition in result["counts"]["conditions"].as_array().unwrap() {
        let variants = condition["variants"].as_array().unwrap();
        assert!(!variants.is_empty(), "{name}: {condition}");
        for variant in variants {
            assert!(
                variant["instructions"].as_i64().unwrap() > 0,
                "{name}: {variant}"
            );
            assert_eq!(variant["transactions"], 30, "{name}");
        }
    }
    for counted_difference in result["differences"].as_array().unwrap() {
        let verdict = &counted_difference["difference"]["verdict"];
        assert!(
            verdict == "too-few-rounds" || verdict == "not-linear",
            "{name}: {verdict}"
        );
    }
    scratch.assert_nothing_left();
}

/// Instructions of an insert through 128 partitions relative to an insert into a plain table.
fn partitions_over_plain(version: &str, transactions: &str) -> f64 {
    let scratch = Scratch::new(PROGRAM);
    let variants = ["--variant", "plain table,128 range", "--server", version];
    let words = [
        "count",
        "partition-insert",
        "-t",
        transactions,
        "--repeats",
        "1",
        "--json",
    ];
    let finished = command(&scratch, &[&words[..], &variants[..]].concat());
    assert_eq!(finished.code, Some(0), "{version}: {}", finished.stderr);
    let result: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    scratch.assert_nothing_left();
    result["differences"][0]["difference"]["ratio"]
        .as_f64()
        .unwrap()
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    /// Runs all points of every study, with as little data and time as possible.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn every_study_runs_on_real_servers() {
        if !servers::is_available("18") {
            return;
        }
        each_of(names(&Scratch::new(PROGRAM)), runs);
    }

    /// A complete but minimal calibration: twelve comparisons. A correct program finds more than four
    /// differences once in 2,000 runs (binomial, 5%).
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_quick_calibration_finds_few_differences_and_later_answers_show_it() {
        if !servers::is_available("18") {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let finished = command(&scratch, &["calibrate", "--quick", "--json"]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        scratch.assert_nothing_left();
        let found: Value = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
        let comparisons = found["comparisons"].as_array().unwrap();
        assert_eq!(comparisons.len(), 12);
        let is_different = |it: &&Value| it["verdict"] == "faster" || it["verdict"] == "slower";
        let different = comparisons.iter().filter(is_different).count();
        assert!(different <= 4, "{comparisons:#?}");
        let answer = scratch.run(SMALL_STUDY, &[]);
        let expected = format!("A/A tests on this machine: {different} of 12 comparisons differed");
        assert!(answer.stdout.contains(&expected), "{}", answer.stdout);
    }

    /// Regression: five studies failed because the process under valgrind was not recognized as a
    /// PostgreSQL server, and tls-cost because its backend's PID was unknown.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn every_study_is_counted_or_says_why_it_cannot_be() {
        if can_count() {
            each_of(all_names(&Scratch::new(PROGRAM)), counts);
        }
    }

    /// On 10, each insert checks all partitions, so few transactions suffice. On 18, it opens only its own,
    /// and each connection loads a partition's metadata at its first row: short segments would count that.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn an_insert_through_128_partitions_costs_20_to_35_times_the_plain_one_on_10_and_twice_at_most_on_18()
     {
        if !can_count() {
            return;
        }
        let (on_10, on_18) = (
            partitions_over_plain("10", "20"),
            partitions_over_plain("18", "500"),
        );
        assert!((20.0..=35.0).contains(&on_10), "{on_10}");
        assert!((1.0..=2.0).contains(&on_18), "{on_18}");
    }
}
