//! The complete workflow on a real server: study file, plan, trials, comparison, reports, stored runs.

use std::fs;
use std::path::Path;

use pgassay_model::trial::TrialKind;
use pgassay_record::run::Run;
use pgassay_test_support::{Finished, SMALL_STUDY, Scratch, sampling_is_permitted, servers};

use crate::PROGRAM;
use crate::terminal::on_a_terminal;

fn command(scratch: &Scratch, arguments: &[&str]) -> Finished {
    Finished::of(
        &scratch
            .command()
            .args(arguments)
            .output()
            .expect("the program runs"),
    )
}

#[test]
fn a_study_gives_an_answer_a_report_and_a_result_to_look_up() {
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let finished = scratch.run(SMALL_STUDY, &["--seed", "7"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(
        finished.stdout.starts_with("Is prepared faster?\n"),
        "{}",
        finished.stdout
    );
    assert!(finished.stdout.contains("report: "), "{}", finished.stdout);
    scratch.assert_nothing_left();

    let kept = scratch.kept();
    let [directory] = &kept[..] else {
        panic!("one run: {kept:?}")
    };
    for file in ["run.json", "report.html", "study.toml", "server-0.log"] {
        assert!(directory.join(file).is_file(), "{file}");
    }
    let run: Run =
        serde_json::from_str(&fs::read_to_string(directory.join("run.json")).expect("run.json"))
            .expect("run.json is JSON");
    assert!(run.complete && run.schema == "pgassay.run/2");
    assert_eq!(run.plan.schedule.seed, 7);
    let of_kind = |kind| run.trials.iter().filter(|it| it.kind == kind).count();
    assert_eq!(
        (of_kind(TrialKind::Timed), of_kind(TrialKind::Profiled)),
        (2 * 2 * 2, 2 * 2),
        "two pairs of two points, twice timed and once profiled"
    );
    assert!(
        [0, 2 * 2].contains(&of_kind(TrialKind::HardwareCounters)),
        "and once each if there are hardware counters"
    );
    for trial in &run.trials {
        assert!(trial.transactions > 0 && trial.transactions_total >= trial.transactions);
        assert!(
            trial
                .server
                .is_some_and(|it| it.on_cpu_us > 0.0 && it.processes == 2),
            "{trial:?}"
        );
        let clients_us = trial.client.in_transaction_us
            + trial.client.between_transactions_us
            + trial.client.sleep_us;
        assert!(
            (clients_us / (2.0 * trial.window_us) - 1.0).abs() < 0.01,
            "the clients' times add up: {trial:?}"
        );
    }
    assert_eq!(run.comparisons.len(), 1);
    assert!(run.servers[0].version.starts_with("18."));

    let list = command(&scratch, &["list"]);
    assert!(list.stdout.contains(&run.id), "{list:?}");
    let show = command(&scratch, &["show", &run.id[..13]]);
    assert_eq!(show.code, Some(0), "{show:?}");
    assert!(finished.stdout.starts_with(&show.stdout), "the same result");
    assert_result_fits_a_terminal(&scratch);
    let json = command(&scratch, &["show", "last", "--json"]);
    assert_eq!(
        serde_json::from_str::<Run>(&json.stdout).expect("JSON on stdout alone"),
        run
    );
    fs::remove_file(directory.join("report.html")).expect("the report exists");
    let report = command(&scratch, &["report"]);
    assert_eq!(report.code, Some(0), "{report:?}");
    assert!(directory.join("report.html").is_file());
    assert_links_and_pipes_of_a_copy_are_not_followed(&scratch, directory);
}

/// Regression: as root, `report` replaced any file that a link in a directory from elsewhere led to, and `show` waited
/// for a pipe.
fn assert_links_and_pipes_of_a_copy_are_not_followed(scratch: &Scratch, directory: &Path) {
    let victim = scratch.path().join("victim");
    fs::write(&victim, "precious").expect("written");
    let page = directory.join("report.html");
    let curve = directory.join("curve.json");
    let made = std::process::Command::new("mkfifo").arg(&curve).status();
    assert!(made.expect("mkfifo").success());
    for link in [
        std::os::unix::fs::symlink::<&Path, &Path>,
        fs::hard_link::<&Path, &Path>,
    ] {
        fs::remove_file(&page).expect("the report exists");
        link(&victim, &page).expect("a link");
        for name in ["report", "show"] {
            let ended = command(scratch, &[name, &format!("{}/", directory.display())]);
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
        assert_eq!(fs::read_to_string(&victim).expect("readable"), "precious");
        assert!(page.symlink_metadata().expect("a page").is_file());
    }
    fs::remove_file(curve).expect("removed");
}

/// Lines are not longer than those of the terminal.
fn assert_result_fits_a_terminal(scratch: &Scratch) {
    for columns in [80, 100] {
        let mut show = scratch.command();
        let received = on_a_terminal(show.args(["show", "--color", "never"]), columns);
        let shown = String::from_utf8(received).expect("text");
        let longest = shown.lines().map(|line| line.trim_end().chars().count());
        let longest = longest.max().expect("the result");
        assert!(longest <= columns.into(), "{longest} of {columns}: {shown}");
        assert!(
            longest > usize::from(columns) - 20,
            "{longest} of {columns}"
        );
    }
}

#[test]
fn what_needs_no_server_works_without_one() {
    let scratch = Scratch::new(PROGRAM);
    let studies = command(&scratch, &["studies"]);
    assert!(
        studies.stdout.contains("prepared-vs-simple") && studies.stdout.contains('?'),
        "{studies:?}"
    );
    let check = command(&scratch, &["study", "check", "prepared-vs-simple"]);
    assert_eq!(
        (check.code, check.stdout.as_str()),
        (
            Some(0),
            "prepared-vs-simple.toml: ok, 27 points on 1 server\n"
        )
    );
    let plan = command(
        &scratch,
        &["study", "plan", "prepared-vs-simple", "--seed", "1"],
    );
    assert!(
        plan.stdout.contains("block 1:")
            && plan.stdout.contains(
                "11 more blocks follow, each in a different random order (--all-blocks prints them)"
            )
            && plan.stdout.contains("at most 300 s of measuring time"),
        "{plan:?}"
    );
    let shown = command(&scratch, &["study", "show", "prepared-vs-simple"]);
    assert_eq!(
        shown.stdout,
        include_str!("../../../../studies/prepared-vs-simple.toml")
    );
    let list = command(&scratch, &["list"]);
    assert!(
        list.code == Some(0) && list.stdout.contains("no runs yet"),
        "{list:?}"
    );
    let show = command(&scratch, &["show"]);
    assert_eq!(show.code, Some(1), "{show:?}");
    let doctor = command(&scratch, &["doctor", "--json"]);
    let doctor: serde_json::Value = serde_json::from_str(&doctor.stdout).expect("JSON");
    assert_eq!(doctor["schema"], "pgassay.doctor/1");
    let checks = doctor["checks"].as_array().expect("a list");
    let load = checks.iter().find(|it| it["name"] == "load");
    let load = load
        .and_then(|it| it["value"].as_str())
        .expect("other load");
    assert!(load.starts_with("other programs use "), "{load}");
    let printed = command(&scratch, &["doctor"]).stdout;
    let names = printed.lines().filter(|it| !it.starts_with(' '));
    let mut names = names.filter_map(|line| line.split(": ").next());
    assert!(
        names.all(|name| !name.contains('_') || name.contains("kernel.")),
        "{printed}"
    );
    let unknown = command(&scratch, &["run", "nosuch"]);
    assert!(
        unknown.code == Some(1) && unknown.stderr.contains("unknown study \"nosuch\""),
        "{unknown:?}"
    );
    let usage = command(&scratch, &["lst"]);
    assert!(
        usage.code == Some(1) && usage.stderr.contains("list"),
        "{usage:?}"
    );
}

#[test]
fn scripts_of_before_9_6_run_with_a_note() {
    let scratch = Scratch::new(PROGRAM);
    let old = SMALL_STUDY.replace("\\set x random(1, 10)", "\\setrandom x 1 10");
    let path = scratch.study(&old);
    let check = command(&scratch, &["study", "check", &path.display().to_string()]);
    assert_eq!(check.code, Some(0), "{check:?}");
    assert!(check.stdout.contains("setrandom"), "{check:?}");
}

/// Weights, a script file, a built-in pgbench script, a reset, session settings: everything that a
/// study may contain.
#[test]
fn a_study_with_everything_runs() {
    if !servers::is_available("18") {
        return;
    }
    let study = r#"question = "Does work_mem matter here?"
[server]
version = "18"
settings = { shared_buffers = "64MB", autovacuum = false }
[parameters]
scale = 2
[data]
setup = """
create table pgbench_accounts (aid int primary key, bid int, abalance int, filler char(84));
insert into pgbench_accounts select g, 1, 0, '' from generate_series(1, 100000 * ${scale}) g;
create function twice(i int) returns int language plpgsql as $$
begin
  return 2 * i; -- a semicolon; and more
end $$;
create table log (at timestamptz default now(), n int);
vacuum analyze;
"""
reset = "truncate log; checkpoint"
[[script]]
name = "look"
builtin = "select-only"
weight = 3
[[script]]
name = "write"
file = "write.sql"
[[variant]]
name = "default"
[[variant]]
name = "small"
protocol = "prepared"
session = { work_mem = "64kB" }
[conditions]
clients = [1, 3]
[length]
full = "2s"
pairs = 2
"#;
    let scratch = Scratch::new(PROGRAM);
    fs::write(scratch.path().join("write.sql"), "\\set n random_gaussian(1, 100, 3)\nbegin;\ninsert into log (n) values (twice(:n));\nend;\n")
        .expect("the script is written");
    let finished = scratch.run(study, &["--json"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let run: Run = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
    assert_eq!(
        run.plan.servers.len(),
        1,
        "session settings share the server"
    );
    assert_eq!(run.plan.points[0].scripts.len(), 2);
    assert!(run.complete && run.comparisons.len() == 2);

    fs::write(
        scratch.path().join("write.sql"),
        "select 1;\n\\set n random(1,\n",
    )
    .expect("the script is written");
    let broken = scratch.run(study, &[]);
    assert_eq!(broken.code, Some(1), "{broken:?}");
    assert!(
        broken
            .error_message()
            .contains("write.sql:2: syntax error in command \"set\""),
        "{broken:?}"
    );
}

/// Regression: `list` created the directory, and `show` said that a missing file contains no run.
#[test]
fn commands_that_only_read_results_create_nothing_and_say_what_is_missing() {
    let scratch = Scratch::new(PROGRAM);
    let missing = scratch.path().join("missing");
    let missing = missing.to_str().expect("UTF-8");
    let list = scratch.ok(&["list", "--results", missing]);
    assert!(
        list.starts_with(&format!("no runs yet in {missing}")),
        "{list}"
    );
    for command in ["show", "report", "resume"] {
        let finished = scratch.finished(&[command, "last", "--results", missing]);
        assert_eq!(finished.code, Some(1), "{command}: {finished:?}");
        let expected = format!("pgassay: no run \"last\" in {missing}; there are no runs yet");
        assert_eq!(finished.error_message(), expected, "{command}");
    }
    assert!(!scratch.path().join("missing").exists());
    let file = format!("{missing}.json");
    let finished = scratch.finished(&["show", &file]);
    let message = finished.error_message();
    assert!(message.contains("No such file"), "{message}");
}

mod slow {
    use super::*;

    /// The profile of a real server must be complete: rows add up, stacks reach the process entry point.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn the_functions_add_up_to_the_backends_cpu_and_stacks_are_whole() {
        if !servers::is_available("18") {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let finished = scratch.run(SMALL_STUDY, &["--length", "6s", "--json"]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let run: Run = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
        if !sampling_is_permitted() {
            return;
        }
        assert!(!run.profiles.is_empty());
        for profile in &run.profiles {
            let quality = profile.quality;
            assert_eq!(
                profile.total(),
                quality.samples,
                "every sample is in the tree"
            );
            assert!(quality.user_samples > 0, "{quality:?}");
            assert!(
                quality.unwound_to_entry as f64 >= 0.95 * quality.user_samples as f64,
                "{quality:?}"
            );
        }
        let cost = run.comparisons[0]
            .cost
            .as_ref()
            .expect("both points have profiles");
        for (variant, side) in [(0, cost.total.baseline_us), (1, cost.total.variant_us)] {
            let exact = run.points[variant].server_cpu_us.expect("a local server");
            assert!((side / exact - 1.0).abs() < 0.03, "{side} against {exact}");
        }
        let sum: f64 = cost.functions.iter().map(|row| row.baseline_us).sum();
        assert!((sum / cost.total.baseline_us - 1.0).abs() < 1e-6);
    }
}
