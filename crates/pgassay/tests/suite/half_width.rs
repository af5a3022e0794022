//! `--half-width`: intervals of a wanted half-width, in two stages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pgassay_account::comparison::{UnitOfAnalysis, Verdict};
use pgassay_model::plan::StoppingRule;
use pgassay_model::trial::TrialKind;
use pgassay_record::run::Run;
use pgassay_test_support::{Scratch, collapse_whitespace, servers, wait_for_exit};

use crate::PROGRAM;
use crate::resume::{kill_after, start, stored};

/// A hundred times as slow, whatever else the machine does.
const FAST: &str = "select 1";
const SLOW: &str = "select count(*) from generate_series(1, 20000)";
/// Student's t with 11 degrees of freedom, 97.5%.
const T_11: f64 = 2.200_985;

/// ln(B/A) of each block's timed trials, in order: one pair per server start.
fn log_ratios(run: &Run) -> Vec<f64> {
    let mut by_block: BTreeMap<u32, [Vec<[f64; 2]>; 2]> = BTreeMap::new();
    for trial in run.trials.iter().filter(|it| it.kind == TrialKind::Timed) {
        let of_block = by_block.entry(trial.block).or_default();
        of_block[trial.variant].push([trial.credited_or_counted(), trial.window_us]);
    }
    let log_rate = |trials: &[[f64; 2]]| {
        let sum = |at: usize| trials.iter().map(|it| it[at]).sum::<f64>();
        (sum(0) / sum(1)).ln()
    };
    let difference = |[fast, slow]: &[Vec<[f64; 2]>; 2]| {
        assert_eq!((fast.len(), slow.len()), (2, 2), "complete pairs only");
        log_rate(slow) - log_rate(fast)
    };
    by_block.values().map(difference).collect()
}

#[test]
fn a_time_limit_ends_two_stages_with_the_half_width_that_was_reached() {
    let scratch = Scratch::new(PROGRAM);
    let finished = scratch.finished(&[
        "compare",
        FAST,
        SLOW,
        "--setup",
        "select 1",
        "--length",
        "2s",
        "--no-profile",
        "--no-plans",
        "--half-width",
        "0.01%",
        "--max-time",
        "2s",
    ]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let shown = collapse_whitespace(&finished.stdout);
    // A busy machine may complete a single pair.
    let reached = shown.contains("Not within ±0.01%: the widest interval is within ±")
        && shown.contains("±0.01% takes about ");
    let one_pair = shown.contains("No interval within ±0.01%");
    assert!(reached || one_pair, "{shown}");
    scratch.assert_nothing_left();
}

#[test]
fn a_half_width_is_a_percentage_and_excludes_a_number_of_pairs() {
    let scratch = Scratch::new(PROGRAM);
    let with = |command: &str, arguments: &[&str]| {
        let all = [&[command, FAST, SLOW], arguments].concat();
        scratch.finished(&all)
    };
    for (arguments, words) in [
        (&["--half-width", "1"][..], "a number and %, such as 1%"),
        (&["--half-width", "90%"][..], "between 0.01% and 50%"),
        (
            &["--half-width", "1%", "--pairs", "5"][..],
            "cannot be used with",
        ),
    ] {
        let refused = with("compare", arguments);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    let refused = with("gate", &["--half-width", "1%"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("gate decides when to stop: leave out --half-width\n"),
        "{refused:?}"
    );

    let saved = scratch.path().join("study.toml");
    let path = saved.to_str().expect("a plain path");
    let all = [
        "compare",
        FAST,
        SLOW,
        "--half-width",
        "1.5%",
        "--save",
        path,
    ];
    scratch.ok(&all);
    let text = std::fs::read_to_string(&saved).expect("it was saved");
    assert!(text.contains("half_width = \"1.5%\""), "{text}");
    let plan = scratch.ok(&["study", "plan", path]);
    assert!(plan.contains("first stage: 12 blocks"), "{plan}");
    assert!(
        plan.contains("until the half-width of the intervals is at most 1.5%"),
        "{plan}"
    );
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn two_stages_that_are_killed_and_continued_have_the_interval_of_the_formula() {
        if !servers::is_available("18") {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let arguments = [
            "compare",
            FAST,
            SLOW,
            "--setup",
            "select 1",
            "--length",
            "2s",
            "--no-profile",
            "--no-plans",
            "--half-width",
            "50%",
            // For a busy machine.
            "--max-time",
            "60s",
        ];
        let child = start(&scratch, &arguments);
        kill_after(&scratch, child, 10);
        let mut child = start(&scratch, &["resume"]);
        let code = wait_for_exit(&mut child, Duration::from_mins(5));
        let said = scratch.stderr();
        assert_eq!(code, Some(0), "{said}");
        scratch.assert_nothing_left();

        let run = stored(&scratch);
        assert!(run.complete);
        let schedule = run.plan.schedule;
        assert_eq!(schedule.stopping, StoppingRule::Precision);
        assert_eq!(
            (schedule.half_width_percent, schedule.blocks),
            (Some(50.0), 12)
        );
        let places = run.trials.iter().map(|it| (it.block, it.position));
        let distinct: BTreeSet<_> = places.collect();
        assert_eq!(distinct.len(), run.trials.len(), "none twice");

        let logs = log_ratios(&run);
        let begins = || run.trials.iter().map(|it| it.started_us);
        let elapsed_us = begins().max().unwrap_or(0) - begins().min().unwrap_or(0);
        let is_out_of_time = elapsed_us >= 60_000_000;
        let Some(first) = logs.get(..12) else {
            assert!(is_out_of_time, "{} server starts", logs.len());
            return;
        };
        assert!(said.contains("after 12 server starts: SD "), "{said}");
        let mean = first.iter().sum::<f64>() / 12.0;
        let squares: f64 = first.iter().map(|it| (it - mean).powi(2)).sum();
        let sd = (squares / 11.0).sqrt();
        let needed = (T_11 * sd / 1.5_f64.ln()).powi(2).ceil().max(12.0) as usize;
        assert!(
            logs.len() == needed || (logs.len() < needed && is_out_of_time),
            "SD {sd}"
        );
        let [found] = &run.comparisons[..] else {
            panic!("one comparison");
        };
        assert_eq!(found.verdict, Verdict::Slower);
        let basis = found.basis.expect("there are units");
        assert_eq!(basis.unit, UnitOfAnalysis::ServerStart);
        assert_eq!(basis.first_stage_units, Some(12));
        assert_eq!(
            (basis.units, basis.units_needed),
            (logs.len() as u32, Some(needed as u32))
        );
        let half_width = T_11 * sd / (logs.len() as f64).sqrt();
        let middle = logs.iter().sum::<f64>() / logs.len() as f64;
        assert!((found.tps.ratio.ln() - middle).abs() < 1e-6, "{found:?}");
        assert!(
            (found.tps.high.ln() - middle - half_width).abs() < 1e-5,
            "{found:?}"
        );

        let shown = collapse_whitespace(&scratch.ok(&["show", "last"]));
        let rule = "Measured in two stages for intervals within ±50%: the standard deviation of the first 12";
        assert!(shown.contains(rule), "{shown}");
        assert_eq!(shown.contains("Not within"), logs.len() < needed, "{shown}");
        let page = scratch.ok(&["report", "last", "--output", "-"]);
        assert!(page.contains("Measured in two stages"));
    }
}
