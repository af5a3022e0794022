//! `pgassay gate`, and runs that end when they are decided.

use std::time::Duration;

use pgassay_account::comparison::{UnitOfAnalysis, Verdict};
use pgassay_record::run::Run;
use pgassay_test_support::{Finished, SMALL_STUDY, Scratch, servers, wait_for_exit, wait_within};

/// A hundred times as slow, whatever else the machine does.
const FAST: &str = "select 1";
const SLOW: &str = "select count(*) from generate_series(1, 20000)";

fn gate(scratch: &Scratch, args: &[&str]) -> Finished {
    let all = [&["gate", "--length", "5s", "--no-profile"], args].concat();
    scratch.finished(&all)
}

/// Regression: the usage in the message listed `--cache`, which the environment had set.
#[test]
fn a_conflict_of_options_does_not_name_those_of_the_environment() {
    let conflict = [
        "compare",
        "select 1",
        "select 2",
        "--pairs",
        "2",
        "--max-time",
        "9s",
    ];
    let output = std::process::Command::new(crate::PROGRAM)
        .args(conflict)
        .env("PGASSAY_CACHE", "/nonexistent")
        .output()
        .expect("pgassay starts");
    assert_eq!(output.status.code(), Some(1));
    let expected = "pgassay: the argument '--pairs <N>' cannot be used with '--max-time <TIME>'\n\n\
                    For more information, try '--help'.\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

/// A comparison of statements that differ much.
fn fast_and_slow(scratch: &Scratch, more: &[&str]) -> (Finished, Run) {
    let compare = ["compare", FAST, SLOW, "--length", "5s", "--no-profile"];
    let finished = scratch.finished(&[&compare, more, &["--json"]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let run = serde_json::from_str(&finished.stdout).expect("the result is JSON");
    (finished, run)
}

#[test]
fn a_large_difference_ends_a_run_before_the_last_server_start() {
    let scratch = Scratch::new(crate::PROGRAM);
    let (finished, run) = fast_and_slow(&scratch, &[]);
    let [comparison] = &run.comparisons[..] else {
        panic!("one comparison");
    };
    assert_eq!(comparison.verdict, Verdict::Slower);
    let basis = comparison.basis.expect("there are units");
    assert_eq!(basis.unit, UnitOfAnalysis::ServerStart);
    // Four on an idle machine; other load may take more.
    let most = basis.units_max.expect("the run is sequential");
    assert!((4..most).contains(&basis.units), "{basis:?}");
    let last = run.trials.iter().map(|it| it.block).max();
    assert_eq!(
        last,
        Some(basis.units - 1),
        "it ends as soon as there is a verdict"
    );
    assert!(run.complete, "what was not needed is not missing");
    assert!(
        finished
            .stderr
            .contains("detectable differences, assuming that ratios vary by 2% (SD) between server starts: 20% and 5% after about 4 server starts"),
        "{}",
        finished.stderr
    );
    assert!(
        finished.stderr.contains(&format!(
            "after {} server starts: throughput ×0.",
            basis.units
        )),
        "{}",
        finished.stderr
    );
    scratch.assert_nothing_left();
}

#[test]
fn a_slower_variant_fails_with_3_and_says_so_first() {
    let scratch = Scratch::new(crate::PROGRAM);
    let (junit, markdown) = (
        scratch.path().join("junit.xml"),
        scratch.path().join("gate.md"),
    );
    let [junit_path, markdown_path] =
        [&junit, &markdown].map(|it| it.to_str().expect("a plain path"));
    let finished = gate(
        &scratch,
        &[
            FAST,
            SLOW,
            "--junit",
            junit_path,
            "--markdown",
            markdown_path,
        ],
    );
    assert_eq!(finished.code, Some(3), "{finished:?}");
    let first = finished.stdout.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("regression: ") && first.contains("by more than 5%"),
        "{first}"
    );
    // Regression: stderr repeated the sentence, so that a log had it twice.
    assert!(
        !finished.stderr.contains("regression: "),
        "{}",
        finished.stderr
    );
    let xml = std::fs::read_to_string(&junit).expect("the file is written");
    assert!(xml.contains("tests=\"1\" failures=\"1\""), "{xml}");
    assert!(
        xml.contains("<failure type=\"regression\" message=\"throughput ×0."),
        "{xml}"
    );
    let text = std::fs::read_to_string(&markdown).expect("the file is written");
    assert!(text.contains("| regression |"), "{text}");
    scratch.assert_nothing_left();
}

#[test]
fn a_study_that_fixes_its_pairs_has_a_gate_too_and_no_choice_is_ignored() {
    let scratch = Scratch::new(crate::PROGRAM);
    let slow = SMALL_STUDY.replace(
        "name = \"prepared\"\nprotocol = \"prepared\"",
        "name = \"slow\"\nscript = \"slow\"",
    );
    let study = slow.replace(
        "[[variant]]\nname = \"simple\"",
        "[[script]]\nname = \"slow\"\ntext = \"select count(*) from generate_series(1, 20000);\"\n\
         [[variant]]\nname = \"simple\"\nscript = \"one\"",
    );
    let path = scratch.study(&study);
    let path = path.to_str().expect("a plain path");
    let finished = scratch.finished(&["gate", "--no-profile", "--study", path]);
    assert_eq!(finished.code, Some(3), "{finished:?}");
    assert!(
        finished.stdout.starts_with("regression: "),
        "{}",
        finished.stdout
    );
    let ignored = scratch.finished(&["gate", "--study", path, "--servers", "17"]);
    assert_eq!(ignored.code, Some(1), "{ignored:?}");
    assert!(
        ignored.stderr.contains("cannot be used with"),
        "{}",
        ignored.stderr
    );
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_faster_variant_passes_and_bisect_has_its_own_codes() {
        let scratch = Scratch::new(crate::PROGRAM);
        let passed = gate(&scratch, &[SLOW, FAST, "--bisect"]);
        assert_eq!(passed.code, Some(0), "{passed:?}");
        assert!(passed.stdout.starts_with("pass: "), "{}", passed.stdout);
        let wrong = gate(&scratch, &["select nope", FAST, "--bisect"]);
        assert_eq!(wrong.code, Some(128), "{wrong:?}");
        let mistyped = gate(
            &scratch,
            &[FAST, SLOW, "--bisect", "--fail-of", "slower > 5%"],
        );
        assert_eq!(
            mistyped.code,
            Some(128),
            "a typing error is no bad commit: {mistyped:?}"
        );
        let alone = gate(&scratch, &[FAST]);
        assert_eq!(alone.code, Some(1), "{alone:?}");
        assert!(
            alone.stderr.contains("nothing to compare with"),
            "{}",
            alone.stderr
        );
        let limit = gate(&scratch, &[FAST, SLOW, "--fail-if", "faster > 5%"]);
        assert_eq!(limit.code, Some(1), "{limit:?}");
        assert!(
            limit.stderr.contains("expected 'slower > N%' or"),
            "{}",
            limit.stderr
        );
    }

    /// Regression: a variant passed half of whose transactions failed, and no word was said.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_variant_whose_transactions_fail_does_not_pass() {
        if !servers::is_available("18") {
            return;
        }
        let scratch = Scratch::new(crate::PROGRAM);
        let half = "\\set r random(1, 2)\n\\if :r = 1\ndo $$ begin raise exception using errcode = '40001'; end $$;\n\
                \\endif\nselect 1;\n";
        let files = [
            ("whole.sql", "select pg_sleep(0.002);\n"),
            ("half.sql", half),
        ];
        let paths = files.map(|(name, text)| {
            let path = scratch.path().join(name);
            std::fs::write(&path, text).expect("the script is written");
            path.display().to_string()
        });
        let args = ["--setup", "", "-f", &paths[0], "-f", &paths[1]];
        let failing = gate(&scratch, &args);
        assert_eq!(failing.code, Some(5), "{failing:?}");
        assert!(
            failing.stdout.starts_with("not comparable: half ")
                && failing.stdout.contains("% of its transactions failed"),
            "{failing:?}"
        );
        let note = "transactions failed with serialization failures or deadlocks";
        assert!(failing.stdout.contains(note), "{failing:?}");
        // Nor does anything else that cannot be measured.
        let none = "do $$ begin raise exception using errcode = '40001'; end $$";
        let all = gate(&scratch, &["--setup", "", "select 1", none]);
        // Whether the other variant was measured before is up to the order of the trials.
        assert!(matches!(all.code, Some(1 | 2)), "{all:?}");
        assert!(
            all.stderr
                .contains("transactions failed with a serialization failure"),
            "{all:?}"
        );
        scratch.assert_nothing_left();
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_gate_that_was_killed_and_is_continued_still_fails() {
        let scratch = Scratch::new(crate::PROGRAM);
        let arguments = ["gate", "--length", "5s", "--no-profile", FAST, SLOW];
        let child = scratch.command().args(arguments).spawn();
        let mut child = child.expect("the program runs");
        wait_within("a trial ends", Duration::from_mins(1), || {
            scratch.saved_trials() > 0
        });
        child.kill().expect("the process runs");
        wait_for_exit(&mut child, Duration::from_mins(1));
        let resumed = scratch.finished(&["resume"]);
        assert_eq!(resumed.code, Some(3), "{resumed:?}");
        assert!(
            resumed.stdout.starts_with("regression: "),
            "{}",
            resumed.stdout
        );
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_time_limit_ends_a_run_with_what_it_has() {
        let scratch = Scratch::new(crate::PROGRAM);
        let (_, run) = fast_and_slow(&scratch, &["--max-time", "1s"]);
        let starts = run.trials.iter().map(|it| it.server_start).max();
        assert!(starts.is_some_and(|it| it < 4), "{starts:?}");
    }
}
