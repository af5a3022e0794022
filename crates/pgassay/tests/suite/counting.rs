//! Counts instructions on a real server under a real valgrind.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use pgassay_account::instructions::CountVerdict;
use pgassay_record::run::Run;
use pgassay_test_support::{Finished, Scratch, os::kill, servers, skip, wait_for_exit, wait_until};
use serde_json::Value;

use crate::PROGRAM;

fn can_count() -> bool {
    let mut command = Command::new("valgrind");
    command.arg("--version").stdout(Stdio::null());
    if !command.status().is_ok_and(|status| status.success()) {
        skip("counting", "there is no valgrind");
        return false;
    }
    servers::is_available("18")
}

fn count(scratch: &Scratch, arguments: &[&str]) -> Finished {
    let mut command = scratch.command();
    let output = command.arg("count").args(arguments).output();
    Finished::of(&output.expect("the program runs"))
}

/// The sum of a key's values over an array.
fn sum(rows: &Value, key: &str) -> i64 {
    rows.as_array()
        .unwrap()
        .iter()
        .map(|row| row[key].as_i64().unwrap())
        .sum()
}

/// Changes one number in a file of counts and returns its path.
fn altered(scratch: &Scratch, name: &str, change: impl Fn(&mut Value)) -> String {
    let text = fs::read_to_string(scratch.path().join("kept.json")).unwrap();
    let mut counts: Value = serde_json::from_str(&text).unwrap();
    change(&mut counts);
    let path = scratch.path().join(name);
    fs::write(&path, counts.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Regression: of a build that crashes, the error said only that the server closed the connection.
#[test]
fn the_crash_of_a_backend_that_is_counted_is_named() {
    if !can_count() {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let script = scratch.path().join("crash.sql");
    fs::write(&script, "copy (select 1) to program 'kill -SEGV $PPID';\n").unwrap();
    let error = count(&scratch, &["--setup", "", "-f", script.to_str().unwrap()]).stderr;
    assert!(error.contains(" was terminated by signal 11"), "{error}");
}

/// A load that writes, and its reset. The index is not unique: of 5000 random keys, two would be equal in one trial of
/// a hundred, which ends a run.
const WRITING: &str = r#"
question = "What does an index cost an insert?"
[data]
setup = """
create table plain (id int, v text); create table keyed (id int, v text);
create index on keyed (id)
"""
reset = "truncate ${table}"
[[script]]
name = "insert"
text = """
\\set id random(1, 1000000000)
insert into ${table} values (:id, 'x');
"""
[[variant]]
name = "plain"
parameters = { table = "plain" }
[[variant]]
name = "keyed"
parameters = { table = "keyed" }
"#;

/// Regression: the backend's PID was unknown.
#[test]
fn uncountable_studies_are_rejected_before_a_server_starts() {
    if !can_count() {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    for (arguments, reason) in [
        (
            ["tls-cost", "--script", "connection"],
            "after process start and TLS handshake",
        ),
        (
            ["connection-count", "--seed", "1"],
            "each is a process under valgrind",
        ),
    ] {
        let finished = count(&scratch, &arguments);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert!(finished.error_message().contains(reason), "{finished:?}");
        assert!(
            !finished.stderr.contains("starting PostgreSQL"),
            "{finished:?}"
        );
    }
    scratch.assert_nothing_left();
}

/// Two protocols for the same statements, with study keys that counting ignores.
const STUDY: &str = r#"
question = "Is prepared cheaper?"
[data]
setup = "create table t (id int primary key); insert into t values (1)"
[[script]]
name = "look-up"
text = "select id from t where id = 1;"
[[variant]]
name = "simple"
[[variant]]
name = "prepared, over TCP"
protocol = "prepared"
network = "tcp"
[[variant]]
name = "redis"
driver = "redis"
[conditions]
clients = [1, 2]
[length]
# Trials of some hundred milliseconds: a busy machine must not leave one without a transaction.
pairs = 2
"#;

#[test]
fn without_valgrind_the_package_is_named() {
    let scratch = Scratch::new(PROGRAM);
    let empty = scratch.path().join("nothing");
    fs::create_dir(&empty).unwrap();
    let mut command = scratch.command();
    let output = command
        .args(["count", "-S"])
        .env("PATH", &empty)
        .output()
        .unwrap();
    let finished = Finished::of(&output);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(
        finished
            .error_message()
            .contains("Install the package \"valgrind\""),
        "{finished:?}"
    );
    assert_eq!(
        finished.stderr.lines().count(),
        1,
        "one paragraph: {finished:?}"
    );
    scratch.assert_nothing_left();
}

#[test]
fn killed_in_the_middle_it_leaves_nothing() {
    if !can_count() {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    for (number, code) in [(libc::SIGKILL, None), (libc::SIGINT, Some(130))] {
        let stderr = fs::File::create(scratch.path().join("stderr")).unwrap();
        let mut command = scratch.command();
        command
            .args(["count", "-b", "tpcb-like", "-t", "400"])
            .stderr(stderr);
        let mut child = command.spawn().unwrap();
        wait_until("counting begins", || {
            scratch.stderr().contains("counting, round 1")
        });
        std::thread::sleep(Duration::from_secs(2));
        kill(i32::try_from(child.id()).unwrap(), number);
        assert_eq!(wait_for_exit(&mut child, Duration::from_mins(1)), code);
        scratch.assert_nothing_left();
    }
}

/// Regression: saved counts were overwritten, even by a count that failed the comparison with them.
#[test]
fn saved_counts_are_not_overwritten_and_nothing_is_counted_for_that() {
    let scratch = Scratch::new(PROGRAM);
    fs::write(scratch.path().join("kept.json"), "{}").unwrap();
    let refused = count(&scratch, &["-S", "--save", "kept.json"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let message = "pgassay: kept.json exists; remove it, or give another FILE\n";
    assert_eq!(refused.stderr, message);
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn settings_with_and_without_cost_are_distinguished() {
        if !can_count() {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let finished = count(
            &scratch,
            &[
                "-S",
                "-M",
                "prepared",
                "--json",
                // On a busy machine rounds differ by tens of instructions. The noise threshold is 4.3
                // times the spread with three rounds, but only about once with five.
                "--repeats",
                "5",
                "--vs",
                "work_mem=4MB",
                "--vs",
                "log_min_duration_statement=100ms",
            ],
        );
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let result: Value = serde_json::from_str(&finished.stdout).unwrap();
        assert_eq!(result["counts"]["schema"], "pgassay.count/1");
        for variant in result["counts"]["conditions"][0]["variants"]
            .as_array()
            .unwrap()
        {
            // Chosen by the cost of a lookup. Regression: they were five times as long, because the first
            // client of a server costs more than its second.
            assert_eq!(variant["segments"], serde_json::json!([100, 200, 400]));
            let total = variant["instructions"].as_i64().unwrap();
            assert_eq!(sum(&variant["functions"], "instructions"), total);
            assert_eq!(sum(&variant["subsystems"], "instructions"), total);
            assert_eq!(
                sum(&variant["system_calls_by_name"], "count"),
                variant["system_calls"].as_i64().unwrap()
            );
            for function in variant["functions"].as_array().unwrap() {
                assert!(!function["name"].as_str().unwrap().is_empty());
                assert!(!function["object"].as_str().unwrap().is_empty());
                // Reporting statistics once per second would be counted on a busy machine only.
                let is_timed = function["name"] == "pgstat_report_stat";
                assert!(!is_timed || function["instructions"] == 0, "{function}");
            }
        }
        let difference = |index: usize| &result["differences"][index]["difference"];
        assert_eq!(
            difference(0)["verdict"],
            "no-difference",
            "{}",
            difference(0)["per_transaction"]
        );
        let found = difference(1);
        assert_eq!(found["verdict"], "differs");
        let per_transaction = found["per_transaction"].as_f64().unwrap();
        assert!(
            (50.0..200.0).contains(&per_transaction),
            "{per_transaction}"
        );
        assert_eq!(
            sum(&found["functions"], "instructions"),
            found["instructions"].as_i64().unwrap()
        );
        assert_eq!(found["functions"][0]["name"], "check_log_duration");
        scratch.assert_nothing_left();
    }

    /// Regression: with `-t 10`, the first segment followed fewer transactions than the others, and a lookup seemed to
    /// cost 13% more.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_transaction_costs_the_same_in_few_and_in_many() {
        if !can_count() {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let costs = ["10", "40"].map(|transactions| {
            let options = ["--repeats", "1", "--json", "-t", transactions];
            let sql = "select abalance from pgbench_accounts where aid = 1";
            let finished = count(&scratch, &[&[sql], &options[..]].concat());
            assert_eq!(finished.code, Some(0), "{finished:?}");
            let result: Value = serde_json::from_str(&finished.stdout).unwrap();
            let variant = &result["counts"]["conditions"][0]["variants"][0];
            let [total, number] =
                ["instructions", "transactions"].map(|key| variant[key].as_f64().unwrap());
            total / number
        });
        assert!((costs[0] / costs[1] - 1.0).abs() < 0.02, "{costs:?}");
        scratch.assert_nothing_left();
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn against_passes_fails_or_reports_incomparable_counts() {
        if !can_count() {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        fs::write(scratch.path().join("script.sql"), "select 1;\n").unwrap();
        let script = ["-f", "script.sql", "-t", "50"];
        let run = |more: &[&str]| count(&scratch, &[&script[..], more].concat());
        let kept = run(&["--save", "kept.json"]);
        assert_eq!(kept.code, Some(0), "{kept:?}");
        let same = run(&["--against", "kept.json", "--save", "now.json"]);
        assert_eq!(same.code, Some(0), "{same:?}");
        assert!(same.stdout.contains("within 0.1%"), "{same:?}");
        // Saved counts are compared like those that were just made.
        let shown = |earlier: &str| count(&scratch, &["--show", "now.json", "--against", earlier]);

        let cheaper = altered(&scratch, "cheaper.json", |counts| {
            let variant = &mut counts["conditions"][0]["variants"][0];
            let taken = variant["transactions"].as_i64().unwrap() * 1000;
            variant["instructions"] = (variant["instructions"].as_i64().unwrap() - taken).into();
            let function = &mut variant["functions"][0];
            function["instructions"] = (function["instructions"].as_i64().unwrap() - taken).into();
        });
        let over = shown(&cheaper);
        assert_eq!(over.code, Some(3), "{over:?}");
        assert!(
            over.stdout.contains("over 0.1%") && over.stdout.contains("by function"),
            "{over:?}"
        );
        let other_build = altered(&scratch, "build.json", |counts| {
            counts["conditions"][0]["variants"][0]["build"]["cflags"] = "-O0".into();
        });
        let finished = shown(&other_build);
        assert_eq!(finished.code, Some(5), "{finished:?}");
        assert!(finished.stdout.contains("another build"), "{finished:?}");
        // Regression: the comparison was in the text only.
        let json = ["--show", "now.json", "--against", &cheaper, "--json"];
        let json: Value = serde_json::from_str(&count(&scratch, &json).stdout).unwrap();
        assert_eq!(json["against"][0]["outcome"], "over", "{}", json["against"]);
        let markdown = ["--show", "now.json", "--against", &cheaper, "--markdown"];
        let markdown = count(&scratch, &markdown).stdout;
        assert!(markdown.contains("| **over** |"), "{markdown}");
        // Regression: counts of another script or protocol were compared.
        let protocol = run(&["--against", "kept.json", "-M", "prepared"]);
        assert_eq!(protocol.code, Some(5), "{protocol:?}");
        assert!(protocol.stdout.contains("another protocol"), "{protocol:?}");
        let too_few = run(&["--against", "kept.json", "--repeats", "1"]);
        assert_eq!(too_few.code, Some(4), "{too_few:?}");
        let reason = "in 3 rounds, now in 1";
        assert!(too_few.stdout.contains(reason), "{too_few:?}");
        scratch.assert_nothing_left();
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_gate_on_instructions_has_all_of_its_exit_codes() {
        if !can_count() {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        fs::write(scratch.path().join("script.sql"), "select 1;\n").unwrap();
        let gate = |more: &[&str]| {
            let limit = ["gate", "--setup", "", "--fail-if", "instructions > 2%"];
            scratch.finished(&[&limit[..], more].concat())
        };
        let script = ["-f", "script.sql"];
        let saved = ["--against", "kept.json"];
        let missing = gate(&[&script[..], &saved[..]].concat());
        assert_eq!(missing.code, Some(5), "{missing:?}");
        assert!(!missing.stderr.contains("starting"), "{missing:?}");
        let first = gate(&[&script[..], &saved[..], &["--update"]].concat());
        assert_eq!(first.code, Some(0), "{first:?}");
        assert!(
            first
                .stdout
                .starts_with("pass: there are no earlier counts"),
            "{first:?}"
        );
        let power = first.stderr.find("the gate, on instructions in 3 rounds");
        assert!(power < first.stderr.find("counting, round 1"), "{first:?}");
        let same = gate(&[&script[..], &saved[..]].concat());
        assert_eq!(same.code, Some(0), "{same:?}");
        assert!(
            same.stdout.starts_with(
                "pass: baseline does not execute over 2% more instructions than in kept.json"
            ),
            "{same:?}"
        );

        let of_variant = |counts: &mut Value, change: &dyn Fn(&mut Value)| {
            change(&mut counts["instructions"]["conditions"][0]["variants"][0]);
        };
        let cheaper = altered(&scratch, "cheaper.json", |counts| {
            of_variant(counts, &|variant| {
                let taken = variant["instructions"].as_i64().unwrap() / 10;
                variant["instructions"] =
                    (variant["instructions"].as_i64().unwrap() - taken).into();
                let function = &mut variant["functions"][0];
                function["instructions"] =
                    (function["instructions"].as_i64().unwrap() - taken).into();
            });
        });
        let worse = gate(&[&script[..], &["--against", &cheaper]].concat());
        assert_eq!(worse.code, Some(3), "{worse:?}");
        assert!(
            worse
                .stdout
                .starts_with("regression: baseline executes over 2%"),
            "{worse:?}"
        );

        let other_build = altered(&scratch, "build.json", |counts| {
            of_variant(counts, &|variant| variant["build"]["cflags"] = "-O0".into());
        });
        let unlike = gate(&[&script[..], &["--against", &other_build, "--bisect"]].concat());
        assert_eq!(unlike.code, Some(125), "{unlike:?}");
        assert!(unlike.stdout.starts_with("not comparable: "), "{unlike:?}");
        // Regression: another machine was noticed only after all rounds.
        let other_machine = altered(&scratch, "machine.json", |counts| {
            counts["instructions"]["machine"]["counter"] = "valgrind-1.0".into();
        });
        let elsewhere = gate(&[&script[..], &["--against", &other_machine]].concat());
        assert_eq!(elsewhere.code, Some(5), "{elsewhere:?}");
        assert!(
            elsewhere.stdout.contains("counted by valgrind-1.0"),
            "{elsewhere:?}"
        );
        assert!(!elsewhere.stderr.contains("round"), "{elsewhere:?}");
        let other_script = gate(&["select 2", saved[0], saved[1]]);
        assert_eq!(other_script.code, Some(5), "{other_script:?}");
        assert!(
            other_script.stdout.contains("another configuration"),
            "{other_script:?}"
        );
        scratch.assert_nothing_left();
    }

    /// Regression: the process under valgrind was not recognized as a PostgreSQL server.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_run_of_a_study_that_resets_its_data_has_counts_that_are_the_same_each_time() {
        if !can_count() {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        fs::write(scratch.path().join("study.toml"), WRITING).unwrap();
        let words = ["run", "study.toml", "--counted", "--no-profile", "--json"];
        let length = ["--pairs", "2", "--length", "2s"];
        let finished = scratch.finished(&[&words[..], &length[..]].concat());
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let run: Run = serde_json::from_str(&finished.stdout).unwrap();
        let counted = run.instructions.expect("counts next to the time");
        let [plain, keyed] = &counted.counts.conditions[0].variants[..] else {
            panic!("{finished:?}");
        };
        for variant in [plain, keyed] {
            // Without the reset, rows of earlier segments would make the index larger.
            let spread = variant.spread() / variant.cost();
            assert!(spread < 0.01, "{}: {:?}", variant.name, variant.slopes());
            let positions = variant.repeats.iter().map(|it| it.position);
            let known = positions.clone().all(|it| [1, 2].contains(&it));
            assert!(known, "{:?}", positions.collect::<Vec<_>>());
        }
        let [difference] = &counted.differences[..] else {
            panic!("{:?}", counted.differences);
        };
        assert_eq!(difference.difference.comparisons, 1);
        assert_eq!(difference.difference.verdict, CountVerdict::Differs);
        assert!(keyed.cost() > plain.cost());
        scratch.assert_nothing_left();
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_run_reports_instructions_next_to_times() {
        if !can_count() {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        fs::write(scratch.path().join("study.toml"), STUDY).unwrap();
        let mut command = scratch.command();
        command.args(["run", "study.toml", "--counted", "--length", "8s"]);
        command.args(["--variant", "simple", "--variant", "prepared, over TCP"]);
        let finished = Finished::of(&command.output().unwrap());
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert!(finished.stdout.contains("INSTRUCTIONS"), "{finished:?}");
        for left_out in ["clients = [1, 2]", "network (tcp)"] {
            assert!(
                finished.stdout.contains(&format!("Left out: {left_out}")),
                "{finished:?}"
            );
        }
        let mut command = scratch.command();
        let shown = Finished::of(&command.args(["show", "--json"]).output().unwrap());
        let run: Value = serde_json::from_str(&shown.stdout).unwrap();
        let counted = &run["instructions"];
        let difference = &counted["differences"][0]["difference"];
        assert_eq!(difference["verdict"], "differs");
        assert!(difference["ratio"].as_f64().unwrap() < 0.8, "{difference}");
        let condition = &counted["counts"]["conditions"][0];
        for variant in condition["variants"].as_array().unwrap() {
            let whole = variant["instructions"].as_i64().unwrap();
            let paths = sum(&variant["tree"]["paths"], "instructions");
            let apart = (whole - paths).abs() as f64 / whole as f64;
            assert!(apart < 0.01, "paths {paths}, functions {whole}");
        }
        scratch.assert_nothing_left();
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn call_paths_lead_from_the_message_loop_to_the_table() {
        if !can_count() {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        fs::write(scratch.path().join("study.toml"), STUDY).unwrap();
        let arguments = [
            "study.toml",
            "--variant",
            "simple,redis",
            "--repeats",
            "2",
            "-t",
            "20",
        ];
        let files = [
            "--html",
            "page.html",
            "--export",
            "perf=perf.txt",
            "--export",
            "folded=-",
        ];
        let finished = count(&scratch, &[&arguments[..], &files[..]].concat());
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let scan = finished.stdout.lines().find(|line| {
            line.starts_with("PostgresMain;exec_simple_query;PortalRun;")
                && line.contains(";ExecutorRun;")
        });
        assert!(scan.is_some(), "{finished:?}");
        let read = |name: &str| fs::read_to_string(scratch.path().join(name)).unwrap();
        assert!(read("perf.txt").contains("---exec_simple_query"));
        let page = read("page.html");
        for part in [
            "not PostgreSQL",
            "clients = [1, 2]",
            "\"unit\":\"instructions/tx\"",
        ] {
            assert!(page.contains(part), "no {part}");
        }
        scratch.assert_nothing_left();
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_server_that_does_not_start_under_valgrind_leaves_nothing() {
        if !can_count() {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let finished = count(
            &scratch,
            &["-S", "--vs", "shared_preload_libraries=no_such_library"],
        );
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let variant = "variant \"shared_preload_libraries=no_such_library\", under valgrind";
        assert!(finished.error_message().contains(variant), "{finished:?}");
        assert!(
            finished
                .stderr
                .contains("could not access file \"no_such_library\""),
            "{finished:?}"
        );
        scratch.assert_nothing_left();
    }
}

/// Regression: the format was checked after minutes of counting, whose result was lost.
#[test]
fn a_format_that_has_no_counts_is_an_error_before_the_count() {
    let scratch = Scratch::new(PROGRAM);
    let refused = count(&scratch, &["-S", "--export", "pprof=stacks.gz"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("only as folded or perf"),
        "{refused:?}"
    );
    assert!(
        !refused.stderr.contains("starting PostgreSQL"),
        "{refused:?}"
    );
}
