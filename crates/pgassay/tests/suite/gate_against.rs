//! `pgassay gate --against`: what it compares with, and what it refuses to compare with.

use std::fs;
use std::process::Stdio;

use pgassay_test_support::os::on_path;
use pgassay_test_support::{Finished, Scratch, skip};
use serde_json::Value;

const FAST: &str = "select 1";
const SLOW: &str = "select count(*) from generate_series(1, 20000)";

/// So large that no noise of any machine reaches it.
const LARGE: &str = "slower > 1000000%";

fn gate(scratch: &Scratch, args: &[&str]) -> Finished {
    let all = [&["gate", "--length", "5s", "--no-profile"], args].concat();
    scratch.finished(&all)
}

/// Changes a baseline file, and returns the name of the copy.
fn altered(scratch: &Scratch, name: &str, change: impl Fn(&mut Value)) -> String {
    let text = fs::read_to_string(scratch.path().join("base.json")).expect("the file is written");
    let mut baseline: Value = serde_json::from_str(&text).expect("it is JSON");
    change(&mut baseline);
    let path = scratch.path().join(name);
    fs::write(&path, baseline.to_string()).expect("the copy is written");
    path.to_str().expect("a plain path").to_owned()
}

#[test]
fn another_machine_configuration_or_build_is_not_comparable_and_starts_no_server() {
    let scratch = Scratch::new(crate::PROGRAM);
    let written = gate(
        &scratch,
        &[
            FAST,
            SLOW,
            "--fail-if",
            LARGE,
            "--against",
            "base.json",
            "--update",
        ],
    );
    assert_eq!(written.code, Some(0), "{written:?}");
    let machine = altered(&scratch, "machine.json", |it| {
        it["machine_key"] = "another".into();
    });
    let build = altered(&scratch, "build.json", |it| {
        for server in it["servers"].as_array_mut().expect("servers") {
            server["cflags"] = "-O0".into();
        }
    });
    let rebuilt = altered(&scratch, "rebuilt.json", |it| {
        for server in it["servers"].as_array_mut().expect("servers") {
            server["executable"] = "0".repeat(64).into();
        }
    });
    let of_check = |file: &str, name: &str, value: &str| {
        altered(&scratch, file, |it| {
            let mut checks = it["checks"].as_array_mut().expect("checks").iter_mut();
            let check = checks.find(|check| check["name"] == name);
            check.expect("there is one")["value"] = value.into();
        })
    };
    let kernel = of_check("kernel.json", "kernel", "1.0");
    let disk = of_check("disk.json", "disk", "zfs on tank");
    let unanalyzed = altered(&scratch, "unanalyzed.json", |it| {
        it["ratios"] = Value::Array(Vec::new());
    });
    let swapped = altered(&scratch, "swapped.json", |it| {
        let ratio = &mut it["ratios"][0];
        let [low, high] = [ratio["low"].take(), ratio["high"].take()];
        (ratio["low"], ratio["high"]) = (high, low);
    });
    // Regression: a gate passed with the interval [1.141, 1.183], one that an edited baseline gave.
    let edited = gate(&scratch, &[FAST, SLOW, "--against", &swapped]);
    assert_eq!(edited.code, Some(1), "{edited:?}");
    assert!(
        edited
            .stderr
            .contains("are not those of its trials: it was edited, or"),
        "{edited:?}"
    );
    for (file, more, reason) in [
        (machine.as_str(), &[][..], "it is from another machine"),
        (&build, &[], "compiler flags was -O0"),
        (&rebuilt, &[], "SHA-256 of its executable was 000000000000"),
        (&kernel, &[], "kernel of the machine was 1.0"),
        // Regression: a baseline on another disk was accepted.
        (&disk, &[], "disk of the machine was zfs on tank"),
        (&unanalyzed, &[], "it had fewer than four server starts"),
        ("base.json", &["-c", "2"], "another configuration: plan."),
        (
            "base.json",
            &["--set", "work_mem=8MB"],
            // Regression: only the place in the plan was named.
            "another configuration: other server settings: plan.servers",
        ),
        ("nothing.json", &[], "there is no file nothing.json"),
        ("20010101-nothing", &[], "no run \"20010101-nothing\""),
    ] {
        let args = [&[FAST, SLOW, "--against", file], more].concat();
        let refused = gate(&scratch, &args);
        assert_eq!(refused.code, Some(5), "{file}: {refused:?}");
        assert!(
            refused.stdout.starts_with("not comparable: ") && refused.stdout.contains(reason),
            "{file}: {}",
            refused.stdout
        );
        assert!(
            refused.stderr.contains("side by side"),
            "{}",
            refused.stderr
        );
        assert!(!refused.stderr.contains("starting"), "{}", refused.stderr);
    }
    let markdown = scratch.path().join("gate.md");
    let path = markdown.to_str().expect("a plain path");
    let bisected = ["--against", &machine, "--bisect", "--markdown", path];
    let skipped = gate(&scratch, &[&[FAST, SLOW], &bisected[..]].concat());
    assert_eq!(skipped.code, Some(125), "{skipped:?}");
    let text = fs::read_to_string(&markdown).expect("the file is written");
    assert!(text.contains("| not comparable |"), "{text}");
    scratch.assert_nothing_left();
}

#[test]
fn a_baseline_that_cannot_be_used_is_an_error_before_anything_is_measured() {
    let scratch = Scratch::new(crate::PROGRAM);
    fs::write(scratch.path().join("other.json"), "{\"schema\": \"x/1\"}").expect("a file");
    for (args, reason) in [
        (
            &["--against", "other.json"][..],
            "other.json has the schema x/1",
        ),
        (
            &["--against", "last", "--update"],
            "a name that ends with .json",
        ),
        (&["--update"], "--against"),
        // Regression: a file named "-" was written.
        (&["--markdown", "-"], "use --format markdown"),
        (
            &["--fail-if", "instructions > 2"],
            "expected 'slower > N%' or 'instructions > N%'",
        ),
    ] {
        let refused = gate(&scratch, &[&[FAST, SLOW], args].concat());
        assert_eq!(refused.code, Some(1), "{args:?}: {refused:?}");
        assert!(
            refused.stderr.contains(reason),
            "{args:?}: {}",
            refused.stderr
        );
    }
}

#[test]
fn update_never_replaces_a_run_or_saved_counts() {
    let scratch = Scratch::new(crate::PROGRAM);
    for schema in ["pgassay.run/2", "pgassay.count/1"] {
        let kept = format!("{{\"schema\": \"{schema}\"}}");
        fs::write(scratch.path().join("kept.json"), &kept).expect("the file is written");
        let refused = gate(
            &scratch,
            &[FAST, SLOW, "--against", "kept.json", "--update"],
        );
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(
            refused.stderr.contains("--update would replace it"),
            "{refused:?}"
        );
        let after = fs::read_to_string(scratch.path().join("kept.json"));
        assert_eq!(after.expect("it is there"), kept);
    }
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_before_anything_is_measured() {
    let scratch = Scratch::new(crate::PROGRAM);
    let refused = gate(&scratch, &[FAST, SLOW, "--junit", "no/such/directory.xml"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("cannot write no/such/directory.xml"),
        "{refused:?}"
    );
    assert!(
        scratch.kept().is_empty() && refused.stdout.is_empty(),
        "{refused:?}"
    );
    scratch.assert_nothing_left();
}

#[test]
fn a_closed_pipe_does_not_turn_a_failing_gate_into_a_pass() {
    let scratch = Scratch::new(crate::PROGRAM);
    let mut child = scratch
        .command()
        .args(["gate", FAST, SLOW, "--against", "nothing.json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let ended = child.wait().expect("it ends");
    assert_eq!(ended.code(), Some(5), "{ended:?}");
}

#[test]
fn a_gate_on_instructions_refuses_steps_that_it_does_not_compare() {
    let scratch = Scratch::new(crate::PROGRAM);
    let steps = ["--stepwise", "--fail-if", "instructions > 1%"];
    let refused = scratch.finished(&[&["gate", FAST, FAST, SLOW], &steps[..]].concat());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("leave out --stepwise"),
        "{refused:?}"
    );
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn equal_variants_pass_a_large_limit_and_too_little_time_is_inconclusive() {
        let scratch = Scratch::new(crate::PROGRAM);
        let equal = gate(&scratch, &[FAST, FAST, "--fail-if", LARGE]);
        assert_eq!(equal.code, Some(0), "{equal:?}");
        assert!(equal.stdout.starts_with("pass: "), "{}", equal.stdout);

        let junit = scratch.path().join("junit.xml");
        let short = [
            FAST,
            SLOW,
            "--max-time",
            "1s",
            "--strict",
            "--junit",
            junit.to_str().expect("a plain path"),
        ];
        let open = gate(&scratch, &short);
        assert_eq!(open.code, Some(4), "{open:?}");
        assert!(open.stdout.starts_with("inconclusive: "), "{}", open.stdout);
        assert!(
            open.stderr.contains("the time limit allows about "),
            "{}",
            open.stderr
        );
        let xml = fs::read_to_string(&junit).expect("the file is written");
        assert!(xml.contains("<error type=\"inconclusive\""), "{xml}");
        let skipped = gate(&scratch, &[FAST, SLOW, "--max-time", "1s", "--bisect"]);
        assert_eq!(skipped.code, Some(125), "{skipped:?}");
        scratch.assert_nothing_left();
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_baseline_file_is_compared_by_ratios_and_never_written_by_a_failing_gate() {
        let scratch = Scratch::new(crate::PROGRAM);
        let both = [FAST, SLOW, "--fail-if", LARGE, "--against"];
        let with = |more: &[&str]| gate(&scratch, &[&both[..], more].concat());
        let first = with(&["base.json", "--update"]);
        assert_eq!(first.code, Some(0), "{first:?}");
        assert!(first.stderr.contains("base.json is written"), "{first:?}");

        let same = with(&["last"]);
        assert_eq!(same.code, Some(0), "{same:?}");
        assert!(
            same.stdout.contains(
                "is not slower than in the earlier run, relative to select 1, by more than"
            ),
            "{}",
            same.stdout
        );
        assert!(
            same.stderr.contains("and the earlier interval is ±"),
            "{same:?}"
        );

        let faster_then = altered(&scratch, "faster.json", |baseline| {
            let multiply = |figure: &mut Value| {
                *figure = (figure.as_f64().expect("a number") * 1e8).into();
            };
            for figure in ["ratio", "low", "high"] {
                multiply(&mut baseline["ratios"][0][figure]);
            }
            // Ratios that are not those of the trials are refused.
            let trials = baseline["trials"].as_array_mut().expect("trials");
            for trial in trials.iter_mut().filter(|it| it["variant"] == 1) {
                multiply(&mut trial["credited_transactions"]);
            }
        });
        let before = fs::read(&faster_then).expect("the copy is there");
        let worse = with(&[&faster_then, "--update"]);
        assert_eq!(worse.code, Some(3), "{worse:?}");
        assert!(
            worse.stdout.starts_with("regression: ")
                && worse.stdout.contains("than in the earlier run"),
            "{}",
            worse.stdout
        );
        assert_eq!(fs::read(&faster_then).expect("it is there"), before);
        scratch.assert_nothing_left();
    }
}

/// Regression: after minutes of measuring, `cannot write : No such file or directory` was all that a gate in a
/// container said.
#[test]
fn a_job_summary_that_cannot_be_written_does_not_lose_the_verdict() {
    let scratch = Scratch::new(crate::PROGRAM);
    for (file, warns) in [("no/such/summary.md", true), ("", false)] {
        let output = scratch
            .command()
            .args(["gate", FAST, SLOW, "--against", "nothing.json"])
            .env("GITHUB_STEP_SUMMARY", file)
            .output()
            .expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{errors}");
        assert!(output.stdout.starts_with(b"not comparable: "), "{errors}");
        assert_eq!(
            errors.contains("warning: no job summary"),
            warns,
            "{errors}"
        );
    }
}

/// Regression: it was written, and every later gate refused to compare with it.
#[test]
fn a_baseline_of_servers_that_are_not_restarted_is_not_written() {
    let scratch = Scratch::new(crate::PROGRAM);
    let external = [
        "--dsn",
        "host=/nonexistent",
        "--against",
        "new.json",
        "--update",
    ];
    let refused = gate(&scratch, &[&[FAST, SLOW], &external[..]].concat());
    assert_eq!(refused.code, Some(5), "{refused:?}");
    assert!(refused.stdout.contains("not restarted"), "{refused:?}");
    assert!(!scratch.path().join("new.json").exists());
}

/// Regression: a gate on instructions took these flags without a word.
#[test]
fn a_gate_on_instructions_refuses_flags_that_it_would_ignore() {
    let scratch = Scratch::new(crate::PROGRAM);
    for flag in [
        "--try-fixes",
        "--no-plans",
        "--length=9s",
        "--max-time=9s",
        "--let-cpus-sleep",
    ] {
        let counted = ["gate", FAST, SLOW, "--fail-if", "instructions > 1%", flag];
        let refused = scratch.finished(&counted);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let name = flag.split('=').next().expect("a name");
        assert!(
            refused.stderr.contains(&format!("leave out {name}")),
            "{refused:?}"
        );
    }
}

/// Regression: the report of the last pass remained, and a workflow published it as that of the failed gate.
#[test]
fn a_failed_gate_on_instructions_leaves_no_earlier_report() {
    if on_path("valgrind").is_none() {
        skip("counting", "there is no valgrind");
        return;
    }
    let scratch = Scratch::new(crate::PROGRAM);
    let report = scratch.path().join("gate.xml");
    fs::write(&report, "<testsuites/>").expect("a file");
    let builds = [
        "--binaries",
        "/nonexistent/a,/nonexistent/b",
        "--junit",
        "gate.xml",
    ];
    let gate = ["gate", "-S", "--fail-if", "instructions > 1%"];
    let failed = scratch.finished(&[&gate[..], &builds[..]].concat());
    assert_eq!(failed.code, Some(1), "{failed:?}");
    let written = fs::read_to_string(&report).expect("a file");
    assert!(written.contains("/nonexistent/a"), "{written}");
}
