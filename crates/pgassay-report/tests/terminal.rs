//! The terminal's report as a reader sees it.
//!
//! The expected texts are in `snapshots`; `UPDATE_SNAPSHOTS=1 cargo test` rewrites them, and the diff
//! shows the change.
#![allow(missing_docs, clippy::unwrap_used)]

mod fixture;

use pgassay_core::comparison::{Inconclusive, Verdict};
use pgassay_core::ledger::Divider;
use pgassay_core::run::Run;
use pgassay_report::{Style, terminal};

const PLAIN: Style = Style {
    color: false,
    width: 100,
};

fn check(name: &str, text: &str) {
    let path = format!("{}/tests/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, expected,
        "differs from {path}; set UPDATE_SNAPSHOTS=1 to accept the change"
    );
}

/// Characters in the widest line.
fn widest(text: &str) -> usize {
    text.lines()
        .map(|line| line.chars().count())
        .max()
        .unwrap_or(0)
}

fn all_runs() -> Vec<Run> {
    vec![
        fixture::run(),
        fixture::small_run(),
        fixture::doubtful_run(),
        fixture::descriptive_run(),
        fixture::run_without_profiles(),
        fixture::hostile_run(),
        fixture::counted_run(),
        fixture::expectations::run_with_expectations(),
    ]
}

#[test]
fn study_report_matches_its_snapshot() {
    check("study", &terminal(&fixture::run(), &PLAIN));
}

#[test]
fn single_comparison_shows_its_interval() {
    check("small", &terminal(&fixture::small_run(), &PLAIN));
}

#[test]
fn instruction_counts_are_shown_with_timings() {
    check(
        "instruction-counts",
        &terminal(&fixture::counted_run(), &PLAIN),
    );
}

#[test]
fn expectations_source_and_unit_are_shown() {
    check(
        "expectations",
        &terminal(&fixture::expectations::run_with_expectations(), &PLAIN),
    );
}

#[test]
fn inconclusive_comparisons_show_what_they_need() {
    check("doubtful", &terminal(&fixture::doubtful_run(), &PLAIN));
}

#[test]
fn a_ledger_without_its_tail_says_why() {
    let mut run = fixture::small_run();
    for ledger in &mut run.ledgers {
        ledger.tail = None;
        ledger.checks.profiled_tps_ratio = Some(0.9);
    }
    let flat = |run: &Run| {
        let text = terminal(run, &PLAIN);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(flat(&run).contains("beyond p99: fewer than 20 transactions while context switches"));
    for ledger in &mut run.ledgers {
        ledger.blocked_by = Divider::MemoryWaitEvents;
    }
    assert!(flat(&run).contains("beyond p99: not available: context switches were not recorded"));
}

#[test]
fn missing_profiles_show_how_to_enable_them() {
    check(
        "no-profile",
        &terminal(&fixture::run_without_profiles(), &PLAIN),
    );
}

#[test]
fn single_variant_gets_no_verdict() {
    check(
        "descriptive",
        &terminal(&fixture::descriptive_run(), &PLAIN),
    );
}

#[test]
fn narrow_terminal_drops_columns_but_no_answer() {
    check(
        "narrow",
        &terminal(
            &fixture::run(),
            &Style {
                color: false,
                width: 72,
            },
        ),
    );
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for run in all_runs() {
        for width in [72, 80, 100, 200] {
            let text = terminal(
                &run,
                &Style {
                    color: false,
                    width,
                },
            );
            assert!(widest(&text) <= width.min(100), "{width}:\n{text}");
        }
    }
}

#[test]
fn colors_add_only_escape_sequences() {
    let run = fixture::small_run();
    let colored = terminal(
        &run,
        &Style {
            color: true,
            width: 100,
        },
    );
    assert!(colored.contains("\u{1b}[1;32mfaster\u{1b}[0m"));
    let mut plain = String::new();
    let mut rest = colored.as_str();
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    plain.push_str(rest);
    assert_eq!(plain, terminal(&run, &PLAIN));
}

#[test]
fn names_cannot_send_terminal_commands() {
    let text = terminal(&fixture::hostile_run(), &PLAIN);
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text}");
}

#[test]
fn invalid_indices_do_not_panic() {
    let mut run = fixture::small_run();
    run.plan.conditions.clear();
    run.comparisons[0].variant = 7;
    assert!(terminal(&run, &PLAIN).contains(&run.study.question));
}

#[test]
fn a_contradicted_and_a_rounded_verdict_are_visible_everywhere() {
    let mut run = fixture::run();
    for (comparison, reason) in run
        .comparisons
        .iter_mut()
        .zip([Inconclusive::RanksDisagree, Inconclusive::BelowResolution])
    {
        comparison.verdict = Verdict::Inconclusive;
        comparison.inconclusive_reason = Some(reason);
        comparison.tps.ranks_disagree = reason == Inconclusive::RanksDisagree;
        comparison.tps.widened = 0.025;
    }
    let text = terminal(&run, &PLAIN);
    let page = pgassay_report::html(&run);
    for shown in [&text, &page] {
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains("* The rank test contradicts the mean"));
        assert!(shown.contains("† The pairs vary by less than the resolution"));
        assert!(shown.contains("because the rank test contradicts the interval"));
        assert!(shown.contains("because the pairs vary by less than the resolution"));
    }
    assert!(text.contains(" †\n") && text.contains(" *\n"));
    let json = pgassay_report::json(&run);
    for kept in ["\"ranks_disagree\"", "\"below_resolution\"", "\"widened\""] {
        assert!(json.contains(kept), "{kept}");
    }
}
