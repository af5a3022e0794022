//! What reports say of a comparison that ended without a verdict.

use pgassay_account::comparison::{Inconclusive, UnitOfAnalysis, Verdict};
use pgassay_model::plan::StoppingRule;
use pgassay_model::trial::TrialKind;
use pgassay_record::run::{Run, Warning, WarningKind};
use pgassay_report::html;

use crate::fixture::{small_run, words};

/// A sequential run of one comparison that ended after 6 of at most 12 server starts, in 60 s.
fn undecided() -> Run {
    let mut run = small_run();
    run.plan.schedule.stopping = StoppingRule::Sequential;
    run.ended_us = run.started_us + 60_000_000;
    run.comparisons.truncate(1);
    let comparison = &mut run.comparisons[0];
    comparison.verdict = Verdict::Inconclusive;
    comparison.inconclusive_reason = Some(Inconclusive::Noise);
    let pairs = comparison.tps.by_pair.len() as u32;
    let basis = comparison.basis.as_mut().unwrap();
    basis.unit = UnitOfAnalysis::ServerStart;
    (basis.units, basis.server_starts, basis.units_max) = (pairs, pairs, Some(12));
    basis.units_needed = Some(48);
    run
}

/// Regression: on a server whose other load changes slowly, pairs that are alike gave an interval that was too narrow,
/// without a word.
#[test]
fn pairs_that_are_like_their_neighbors_are_a_caution_if_they_are_the_units() {
    let mut run = undecided();
    let words_of = |run: &mut Run, by_pair: &[f64], unit| {
        let comparison = &mut run.comparisons[0];
        comparison.tps.by_pair = by_pair.to_vec();
        comparison.basis.as_mut().unwrap().unit = unit;
        words(run)
    };
    let slow: Vec<f64> = (0..24)
        .map(|at| if at % 8 < 4 { 0.9 } else { 1.1 })
        .collect();
    let caution = "Neighboring pairs are correlated (0.54)";
    let text = words_of(&mut run, &slow, UnitOfAnalysis::Pair);
    assert!(text.contains(caution), "{text}");
    let by_starts = words_of(&mut run, &slow, UnitOfAnalysis::ServerStart);
    assert!(!by_starts.contains("Neighboring pairs"));
    let fast: Vec<f64> = (0..24)
        .map(|at| if at % 2 < 1 { 0.9 } else { 1.1 })
        .collect();
    assert!(!words_of(&mut run, &fast, UnitOfAnalysis::Pair).contains("Neighboring pairs"));
    assert!(!words_of(&mut run, &slow[..8], UnitOfAnalysis::Pair).contains("Neighboring pairs"));
}

/// Regression: "no interval yet" was followed by how the intervals were computed.
#[test]
fn a_run_without_intervals_does_not_explain_how_they_were_computed() {
    let mut run = undecided();
    let how = "Intervals are computed from 6 server starts";
    assert!(words(&run).contains(how));
    run.comparisons[0].inconclusive_reason = Some(Inconclusive::TooFewPairs);
    let text = words(&run);
    assert!(!text.contains("Intervals are computed"), "{text}");
    assert!(text.contains("There are no intervals yet."), "{text}");
    // Regression: the heading said "with 95% CI".
    assert!(!text.contains(" CI; SD") && !html(&run).contains("confidence intervals. The gray"));
}

/// Regression: a run ended after half of its server starts and did not say why, nor how to go on.
#[test]
fn a_run_without_a_verdict_says_why_it_ended_and_what_a_verdict_takes() {
    let futile = undecided();
    assert_eq!(futile.comparisons[0].basis.unwrap().units, 6);
    let chance = "The comparison ended after 6 of at most 12 server starts, because the chance of a verdict after \
                  all 12 was below 10%.";
    let needs = "For a verdict, run about 48 server starts (--pairs 48, about 480 s).";
    let text = words(&futile);
    assert!(text.contains(&format!("{chance} {needs}")), "{text}");
    // Regression: below the table, the same again.
    assert_eq!(text.matches(needs).count(), 1, "{text}");
    assert!(text.contains("inconclusive: the interval contains ×1 and extends beyond ±2%. "));
    let page = html(&futile).replace('\u{a0}', " ");
    // Regression: the page broke the line within `--pairs`.
    let option = "<span class=\"option\">(--pairs</span>";
    let page = page.replace(option, "(--pairs");
    assert_eq!(page.matches(needs).count(), 1);
    assert!(html(&futile).contains(option));

    // Regression: "the chance by the last one was below 10%", and "needs about 12", of at most 12.
    let mut later = undecided();
    let basis = later.comparisons[0].basis.as_mut().unwrap();
    basis.units_needed = basis.units_max;
    let text = words(&later);
    let then =
        "was below 10% while more comparisons were undecided. For a verdict, run about 12 server";
    assert!(text.contains(then), "{text}");

    let mut late = undecided();
    late.plan.schedule.max_time_us = Some(60_000_000);
    late.trials.last_mut().unwrap().started_us += 60_000_000;
    let text = words(&late);
    let limit = "The comparison ended after 6 of at most 12 server starts, at the time limit of 60 s (--max-time). \
                 For a verdict";
    assert!(text.contains(limit), "{text}");

    // Regression: "the chance of a verdict was below 10%" of a comparison whose chance was never computed, because
    // the rest of the time went to another condition.
    let mut passed_over = undecided();
    passed_over.plan.schedule.max_time_us = Some(600_000_000_000);
    passed_over.comparisons[0].basis.as_mut().unwrap().units = 5;
    let text = words(&passed_over);
    let left = "The comparison ended after 5 of at most 12 server starts: the time limit of 167 h (--max-time) \
                left no time for it. For a verdict";
    assert!(text.contains(left), "{text}");

    // Regression: an interval next to "There was a single server start, so there are no intervals."
    let mut single = undecided();
    single.comparisons[0].inconclusive_reason = Some(Inconclusive::OnePair);
    assert!(
        words(&single).contains("(no interval yet)"),
        "{}",
        words(&single)
    );

    let mut whole = undecided();
    whole.comparisons[0].basis.as_mut().unwrap().units_max = Some(6);
    let text = words(&whole);
    assert!(
        text.contains(needs) && !text.contains("comparison ended"),
        "{text}"
    );
    let mut interrupted = undecided();
    interrupted.complete = false;
    let text = words(&interrupted);
    let resume = format!("pgassay resume {} continues it.", interrupted.id);
    assert!(text.contains(&format!("{resume} {needs}")), "{text}");

    // The rest of the run may be enough: a verdict needed "3 pairs instead of 2" of the six that were planned.
    interrupted.comparisons[0]
        .basis
        .as_mut()
        .unwrap()
        .units_needed = Some(8);
    let text = words(&interrupted);
    assert!(
        text.contains(&resume) && !text.contains("--pairs"),
        "{text}"
    );

    let mut several = undecided();
    several.comparisons.push(several.comparisons[0].clone());
    let text = words(&several);
    let hardest = "The slowest comparison to decide ended after 6 of at most 12 server starts";
    assert!(
        text.contains(hardest) && text.contains("To decide all of them, run about 48"),
        "{text}"
    );

    let mut gate = undecided();
    gate.plan.schedule.gate_limit_percent = Some(5.0);
    let text = words(&gate);
    assert!(
        !text.contains("For a verdict") && !text.contains("--pairs"),
        "{text}"
    );
}

/// Regression: "--pairs 12000000" was suggested, which pgassay refuses.
#[test]
fn a_verdict_that_takes_more_pairs_than_the_option_accepts_does_not_suggest_it() {
    let mut run = undecided();
    run.comparisons[0].basis.as_mut().unwrap().units_needed = Some(100_000);
    assert!(words(&run).contains("server starts (--pairs 100000, about"));
    run.comparisons[0].basis.as_mut().unwrap().units_needed = Some(100_001);
    let refused = "server starts (more than --pairs accepts, about";
    let text = words(&run);
    assert!(text.contains(refused), "{text}");

    // The same with a fixed number of pairs.
    run.plan.schedule.stopping = StoppingRule::default();
    let comparison = &mut run.comparisons[0];
    comparison.basis.as_mut().unwrap().units_max = None;
    (
        comparison.tps.ratio,
        comparison.tps.low,
        comparison.tps.high,
    ) = (1.01, 1e-4, 1e4);
    let text = words(&run);
    assert!(
        text.contains("(more than --pairs accepts, about") && !text.contains("(--pairs "),
        "{text}"
    );
}

/// Regression: 142 pairs were to decide whether a server is faster than itself.
#[test]
fn a_variant_that_is_its_baseline_needs_no_pairs() {
    let mut run = undecided();
    run.warnings.push(Warning {
        kind: WarningKind::SameSettings,
        variant: Some(run.plan.variants[run.comparisons[0].variant].clone()),
        message: "the same settings".to_owned(),
    });
    let text = words(&run);
    assert!(
        text.contains("is inconclusive") && !text.contains("--pairs"),
        "{text}"
    );
    run.complete = false;
    let text = words(&run);
    assert!(
        text.contains("pgassay resume") && !text.contains("--pairs"),
        "{text}"
    );
}

/// A run with a fixed number of pairs, whose first comparison has no verdict.
fn fixed_pairs() -> Run {
    let mut run = small_run();
    run.complete = true;
    let comparison = &mut run.comparisons[0];
    comparison.verdict = Verdict::Inconclusive;
    comparison.inconclusive_reason = Some(Inconclusive::Noise);
    comparison.basis = None;
    run
}

/// Regression: two pairs that vary by half printed "about 360 pairs", because each further pair was taken to leave the
/// quantile of Student's t as it is, and "MDE 375 to 4908%", which are logarithms.
#[test]
fn a_few_pairs_that_vary_much_need_a_few_more() {
    let mut run = fixed_pairs();
    // Of a standard deviation of 53% (2 pairs, t of 12.7).
    let tps = &mut run.comparisons[0].tps;
    (tps.ratio, tps.confidence_level) = (1.436, 0.95);
    (tps.low, tps.high) = (1.436 / 4.762_f64.exp(), 1.436 * 4.762_f64.exp());
    tps.by_pair = vec![0.987, 2.09];
    assert_eq!(tps.pairs_for(1.436_f64.ln(), 2), Some(11));
    tps.minimum_detectable_effect_range = Some([0.46, 1.10]);
    let text = words(&run);
    assert!(
        text.contains("run about 20 pairs (--pairs 20, about"),
        "{text}"
    );
    assert!(text.contains("MDE 58 to 200%"), "{text}");
    run.comparisons[0].tps.minimum_detectable_effect_range = Some([3.75, 49.08]);
    assert!(words(&run).contains("MDE over 900%"));
    run.comparisons[0].tps.minimum_detectable_effect_range = Some([1.0, 49.08]);
    assert!(words(&run).contains("MDE 172% or more"));
}

/// Regression: for two variants that do not differ, the number of pairs gave a verdict in 60% of runs, not in 80%: an
/// interval must fit into the margin on both sides.
#[test]
fn the_pairs_of_an_equivalence_allow_for_chance_on_both_sides() {
    let mut run = fixed_pairs();
    // A standard deviation of 2% over 6 pairs: t of 2.571.
    let half_width = 2.571 * 0.02 / 6_f64.sqrt();
    let tps = &mut run.comparisons[0].tps;
    (tps.ratio, tps.confidence_level) = (1.0, 0.95);
    (tps.low, tps.high) = ((-half_width).exp(), half_width.exp());
    tps.by_pair = vec![0.98, 1.02, 0.97, 1.03, 1.0, 1.0];
    let text = words(&run);
    assert!(text.contains("(--pairs 14, about"), "{text}");
}

/// Regression: COST had a total of 306.1 µs and FIGURES 287.6, because a block had no samples, without a word.
#[test]
fn totals_of_fewer_blocks_than_all_are_said_to_be_that() {
    let with = |factor: f64| {
        let mut run = crate::fixture::run();
        for comparison in &mut run.comparisons {
            if let Some(cost) = &mut comparison.cost {
                cost.total.baseline_us *= factor;
            }
        }
        run
    };
    let said =
        "These are the blocks in which both variants were sampled; in all blocks, the totals are";
    assert!(!words(&with(1.0)).contains(said) && !html(&with(1.0)).contains(said));
    assert!(words(&with(1.05)).contains(said) && html(&with(1.05)).contains(said));
}

/// Regression: the time of profiled trials, on which no verdict rests, counted like that of timed ones.
#[test]
fn the_time_in_profiled_trials_is_not_that_of_timed_ones() {
    let mut run = small_run();
    run.ended_us = run.started_us + 40_000_000;
    run.trials.truncate(4);
    for trial in &mut run.trials {
        trial.kind = TrialKind::Timed;
        trial.window_us = 5e6;
    }
    let text = words(&run);
    assert!(
        text.contains("; 40 s in total, 20 s (50%) of it measuring; seed"),
        "{text}"
    );
    run.trials[3].kind = TrialKind::Profiled;
    let text = words(&run);
    let expected = "20 s (50%) of it measuring, 15 s (38%) in timed trials; seed";
    assert!(text.contains(expected), "{text}");
}
