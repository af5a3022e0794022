//! Findings of a run, in reports.

use pgassay_account::comparison::{Inconclusive, Ratio, Verdict};
use pgassay_account::ledger::{Divider, Nature, Part, Row};
use pgassay_diagnosis::diagnose;
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_model::waits::Waits;
use pgassay_record::finding::{Confidence, Finding};
use pgassay_record::remedy::RemedyVariant;
use pgassay_record::run::Run;

use crate::fixture::{small_run, words};

/// The small run, which compares the simple protocol with prepared statements, with this outcome.
fn with_outcome(verdict: Verdict, ratio: f64, [low, high]: [f64; 2]) -> Run {
    let mut run = small_run();
    let comparison = &mut run.comparisons[0];
    comparison.verdict = verdict;
    comparison.tps = Ratio {
        ratio,
        low,
        high,
        ..comparison.tps.clone()
    };
    run.findings = diagnose(&run);
    run
}

/// What was found at the variant itself.
fn at_variant(run: &Run, variant: usize) -> &Finding {
    let is_its = |it: &&Finding| {
        it.id == "parse-and-plan" && it.variant == Some(variant) && it.difference_us.is_none()
    };
    run.findings.iter().find(is_its).expect("it is found")
}

/// Regression: a run measured ×0.994 for a setting and suggested it.
#[test]
fn a_fix_that_a_variant_of_the_run_measured_without_gain_is_not_suggested() {
    let confirmed = with_outcome(Verdict::Faster, 1.264, [1.254, 1.273]);
    assert_eq!(at_variant(&confirmed, 0).confidence, Confidence::Confirmed);
    assert!(at_variant(&confirmed, 0).fix_variants.is_empty());
    let mut differences = confirmed.findings.iter();
    let difference = differences.find(|it| it.difference_us.is_some());
    let difference = difference.expect("the variants differ in it");
    assert_eq!(difference.confidence, Confidence::Correlated);
    assert!(difference.fix_result.is_some() && difference.fix_variants.is_empty());
    let text = words(&confirmed);
    assert!(text.contains("with protocol=prepared: throughput ×1.264 [1.254, 1.273]"));
    assert!(text.contains("Suggested fix: Prepare statements"), "{text}");

    for (verdict, interval, not) in [
        (
            Verdict::Equivalent,
            [0.984, 1.004],
            "protocol=prepared made no difference to throughput (×0.994 [0.984, 1.004]).",
        ),
        (
            Verdict::Slower,
            [0.992, 0.996],
            "protocol=prepared lowered throughput (×0.994 [0.992, 0.996]).",
        ),
    ] {
        let useless = with_outcome(verdict, 0.994, interval);
        assert_eq!(at_variant(&useless, 0).confidence, Confidence::Hint);
        let not = format!("Not suggested: {not}");
        for text in [words(&useless), pgassay_report::html(&useless)] {
            assert!(text.contains(&not), "{verdict:?}: {text}");
            assert!(!text.contains("Prepare statements once"), "{verdict:?}");
        }
    }
}

/// Regression: "Not suggested: protocol=prepared did not raise throughput beyond noise", of ×2.175 [0.666, 7.101].
#[test]
fn an_inconclusive_test_of_a_fix_does_not_refute_it() {
    for (ratio, interval) in [(2.175, [0.666, 7.101]), (0.994, [0.753, 1.313])] {
        let unknown = with_outcome(Verdict::Inconclusive, ratio, interval);
        let [low, high] = interval;
        let not = format!(
            "Not confirmed: the test of protocol=prepared was inconclusive (×{ratio:.3} [{low:.3}, {high:.3}]). \
             Run longer."
        );
        for text in [words(&unknown), pgassay_report::html(&unknown)] {
            assert!(text.contains(&not), "{text}");
            assert!(!text.contains("Not suggested"), "{text}");
        }
    }
}

/// Regression: a load that opens a connection for each transaction had no finding: nothing set this in the evidence of
/// a run.
#[test]
fn connections_opened_for_each_transaction_of_a_run_are_found() {
    let churn = |reconnects: bool| {
        let mut run = small_run();
        for point in &mut run.plan.points {
            point.reconnects = reconnects;
        }
        for point in &mut run.points {
            point.tps /= 5.0;
        }
        run.findings = diagnose(&run);
        let mut findings = run.findings.into_iter();
        findings.find(|it| it.id == "connection-churn" && it.difference_us.is_none())
    };
    assert_eq!(churn(false), None, "the time between transactions");
    let found = churn(true).expect("it is found");
    let fact = &found.evidence[0];
    assert!(fact.what.starts_with("opening and closing"), "{found:#?}");
    assert!(found.suggested_fix.starts_with("Keep connections open"));
}

/// Regression: one reading of a wait event, of 44 in a run, was a finding.
#[test]
fn a_single_reading_of_a_wait_event_of_a_run_is_no_finding() {
    let is_found = |readings: u64| {
        let mut run = small_run();
        let timed = run.trials.iter().find(|it| it.variant == 0);
        let profiled = Trial {
            kind: TrialKind::Profiled,
            waits: Some(Waits {
                blocked_samples: readings,
                ..Waits::default()
            }),
            ..timed.expect("it has a trial").clone()
        };
        run.trials.push(profiled);
        let ledger = run.ledgers.iter_mut().find(|it| it.variant == 0);
        let ledger = ledger.expect("it has a ledger");
        let is_blocked = |it: &Row| matches!(it.part, Part::Blocked | Part::Client | Part::Between);
        ledger.rows.retain(|it| !is_blocked(it));
        ledger.blocked_by = Divider::MemoryWaitEvents;
        let row = |mechanism: &str, us| Row {
            part: Part::Blocked,
            nature: Nature::Queueing,
            phase: String::new(),
            mechanism: mechanism.to_owned(),
            us,
            system_us: 0.0,
            possible_us: 0.0,
        };
        // One of 44.
        let rows = [
            row("BufferPin BufferPin", 10.0),
            row("IO DataFileSync", 430.0),
        ];
        ledger.rows.extend(rows);
        run.findings = diagnose(&run);
        run.findings.iter().any(|it| it.id == "buffer-pin")
    };
    assert_eq!([44, 440].map(is_found), [false, true]);
}

/// Regression: after two of four pairs, a fix had a result of `[0.000, 20876.646]`, and "did not raise throughput beyond
/// noise".
#[test]
fn a_fix_without_an_interval_yet_has_no_result() {
    let mut run = with_outcome(Verdict::Inconclusive, 1.264, [0.000_03, 20_876.646]);
    run.comparisons[0].inconclusive_reason = Some(Inconclusive::TooFewPairs);
    run.findings = diagnose(&run);
    assert_eq!(at_variant(&run, 0).fix_result, None);
    let text = words(&run);
    assert!(
        !text.contains("beyond noise") && !text.contains("with protocol"),
        "{text}"
    );
    assert!(text.contains("Suggested fix: Prepare statements"), "{text}");
}

#[test]
fn a_variant_that_differs_in_more_than_the_fix_does_not_measure_it() {
    let mut run = small_run();
    let jit = ("jit".to_owned(), "off".to_owned());
    run.plan.points[1].session.extend([jit]);
    run.findings = diagnose(&run);
    let finding = at_variant(&run, 0);
    assert_eq!(finding.fix_result, None);
    assert_eq!(finding.fix_variants[0].name, "protocol=prepared");
    assert_ne!(finding.confidence, Confidence::Confirmed);
}

#[test]
fn a_baseline_without_the_cause_measures_the_fix_of_the_variant() {
    let mut run = small_run();
    run.profiles.swap(0, 1);
    run.points.swap(0, 1);
    run.plan.points.swap(0, 1);
    let variants = run.plan.points.iter_mut().map(|it| &mut it.variant);
    let variants = variants.chain(run.points.iter_mut().map(|it| &mut it.variant));
    let variants = variants.chain(run.trials.iter_mut().map(|it| &mut it.variant));
    let variants = variants.chain(run.ledgers.iter_mut().map(|it| &mut it.variant));
    for variant in variants {
        *variant = 1 - *variant;
    }
    let comparison = &mut run.comparisons[0];
    comparison.verdict = Verdict::Slower;
    comparison.tps = Ratio {
        ratio: 0.5,
        low: 0.4,
        high: 0.8,
        ..comparison.tps.clone()
    };
    run.findings = diagnose(&run);
    let finding = at_variant(&run, 1);
    assert_eq!(finding.confidence, Confidence::Confirmed);
    let fix = finding.fix_result.as_ref().expect("it was measured");
    assert_eq!((fix.tps_ratio, fix.interval), (2.0, [1.25, 2.5]));
}

/// Regression: a finding was headed by a difference that was noise, such as +289.2 [−375.3, +801.9] µs/tx.
#[test]
fn a_difference_within_noise_is_shown_as_the_cost_of_the_point() {
    let mut run = small_run();
    let of_comparison = |it: &Finding| it.difference_us.is_some();
    run.findings.retain(of_comparison);
    run.findings.truncate(1);
    let finding = &mut run.findings[0];
    finding.title = "Each commit waits for the disk".to_owned();
    finding.confidence = Confidence::Likely;
    finding.weight_us = 1445.0;
    finding.share = 0.1;
    for (difference_us, name) in [(289.0, "prepared"), (-289.0, "simple")] {
        let finding = &mut run.findings[0];
        finding.difference_us = Some(difference_us);
        finding.difference_interval_us = Some([difference_us - 600.0, difference_us + 600.0]);
        let text = words(&run);
        let cost = format!("Each commit waits for the disk: 1,445 µs/tx in {name}, f1, 1 client");
        assert!(text.contains(&cost), "{text}");
        assert!(!text.contains("289"), "{text}");
        let page = pgassay_report::html(&run);
        assert!(page.contains("50.0% of response time"), "{page}");
    }
    run.findings[0].difference_interval_us = Some([-400.0, -100.0]);
    let text = words(&run);
    let cost =
        "Each commit waits for the disk: −289.0 [−400.0, −100.0] µs/tx in prepared vs simple";
    assert!(text.contains(cost), "{text}");
}

/// Regression: a variant that did away with the cause was counted as another that has it.
#[test]
fn a_variant_without_the_cause_is_not_counted_as_another_case() {
    let mut run = with_outcome(Verdict::Faster, 1.264, [1.254, 1.273]);
    run.findings.retain(|it| it.id == "parse-and-plan");
    let differences = |run: &Run| {
        let all = run.findings.iter();
        all.filter(|it| it.difference_us.is_some()).count()
    };
    assert_eq!((run.findings.len(), differences(&run)), (2, 1));
    let text = words(&run);
    let place = "planned at every execution: simple, f1, 1 client with protocol=prepared";
    assert!(text.contains(place), "{text}");
    assert!(!text.contains("(and in"), "{text}");
    let mut elsewhere = at_variant(&run, 0).clone();
    elsewhere.variant = Some(1);
    run.findings.push(elsewhere);
    let text = words(&run);
    assert!(text.contains("(and in 1 other variant)"), "{text}");
    run.findings.last_mut().expect("it was added").variant = Some(0);
    run.findings.last_mut().expect("it was added").condition = Some(1);
    let text = words(&run);
    assert!(text.contains("(and in 1 other condition)"), "{text}");
}

/// Regression: a point had two rows with different shares, one of them of a difference that was noise.
#[test]
fn the_page_lists_no_point_of_a_finding_twice() {
    let mut run = with_outcome(Verdict::Faster, 1.264, [1.254, 1.273]);
    run.findings.retain(|it| it.id == "parse-and-plan");
    let mut findings = run.findings.iter_mut();
    let difference = findings.find(|it| it.difference_us.is_some());
    let difference = difference.expect("two points are compared");
    difference.difference_us = Some(-5.0);
    difference.difference_interval_us = Some([-10.0, 5.0]);
    let page = pgassay_report::html(&run);
    let rows = page.matches("<td>simple, f1, 1 client</td>").count();
    assert_eq!(rows, 1, "{page}");
}

/// Regression: "with protocol=prepared: throughput ×1.264" was followed by the advice to benchmark protocol=prepared,
/// because of other points that have the cause.
#[test]
fn a_fix_that_one_of_the_points_has_measured_is_not_to_be_measured() {
    let mut run = with_outcome(Verdict::Faster, 1.264, [1.254, 1.273]);
    run.findings.retain(|it| it.id == "parse-and-plan");
    let fix = |name: &str| RemedyVariant {
        name: name.to_owned(),
        ..RemedyVariant::default()
    };
    let mut elsewhere = at_variant(&run, 0).clone();
    elsewhere.condition = Some(1);
    elsewhere.fix_result = None;
    elsewhere.fix_variants = vec![fix("protocol=prepared")];
    run.findings.push(elsewhere);
    assert!(!pgassay_report::html(&run).contains("--try-fixes"));
    let other = run.findings.last_mut().expect("it was added");
    other.fix_variants.push(fix("plan_cache_mode=auto"));
    let page = pgassay_report::html(&run);
    let (before, _) = page.split_once("--try-fixes").expect("it is suggested");
    let (_, named) = before.rsplit_once("To benchmark").expect("a sentence");
    assert!(named.contains("plan_cache_mode=auto") && !named.contains("protocol=prepared"));
}
