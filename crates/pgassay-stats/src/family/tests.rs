//! Error rates of whole studies, and each reason for an inconclusive verdict.

use super::*;
use crate::pairs::{Pair, PairContext, compare, compare_in_context};
use crate::random::SplitMix64;
use crate::sampling::normal;

fn pairs_of(log_ratios: &[f64]) -> Vec<Pair> {
    let pair = |log_ratio: &f64| Pair {
        baseline: 1_000.0,
        variant: 1_000.0 * log_ratio.exp(),
    };
    log_ratios.iter().map(pair).collect()
}

/// `pairs` pairs of a true ln(B/A) with this standard deviation.
fn drawn(stream: &mut SplitMix64, truth: f64, sd: f64, pairs: usize) -> PairComparison {
    let log_ratios: Vec<f64> = (0..pairs).map(|_| truth + sd * normal(stream)).collect();
    compare(&pairs_of(&log_ratios), 0.95).unwrap()
}

fn judge_all(comparisons: &[PairComparison]) -> Vec<Judged> {
    let all: Vec<&PairComparison> = comparisons.iter().collect();
    judge(
        &all,
        Direction::HigherIsBetter,
        EquivalenceMargin::default(),
        0.05,
    )
}

fn is_sign(verdict: FigureVerdict) -> bool {
    matches!(verdict, FigureVerdict::Faster | FigureVerdict::Slower)
}

#[test]
fn a_study_of_27_null_conditions_rarely_has_a_false_verdict() {
    let mut stream = SplitMix64::new(27);
    let (studies, mut new, mut old) = (1_000, 0, 0);
    for _ in 0..studies {
        let study: Vec<PairComparison> =
            (0..27).map(|_| drawn(&mut stream, 0.0, 0.03, 6)).collect();
        new += u32::from(judge_all(&study).iter().any(|it| is_sign(it.verdict)));
        let alone = |it: &PairComparison| {
            let interval = &it.estimate().unwrap().interval;
            is_sign(FigureVerdict::of(
                interval,
                Direction::HigherIsBetter,
                EquivalenceMargin::default(),
            ))
        };
        old += u32::from(study.iter().any(alone));
    }
    let share = |count: u32| f64::from(count) / f64::from(studies);
    assert!(share(new) <= 0.055, "{}", share(new));
    assert!(
        share(old) > 0.7,
        "with each condition at 5%: {}",
        share(old)
    );
}

#[test]
fn conditions_outside_the_margin_are_rarely_called_equivalent() {
    // Just outside, the hardest case: nine that differ by 2.01%, and nine that do not differ.
    let mut stream = SplitMix64::new(18);
    let (studies, mut wrong) = (1_000, 0);
    for _ in 0..studies {
        let truth = |index: usize| if index < 9 { 0.020_1f64.ln_1p() } else { 0.0 };
        let study: Vec<PairComparison> = (0..18)
            .map(|index| drawn(&mut stream, truth(index), 0.01, 12))
            .collect();
        let judged = judge_all(&study);
        wrong += u32::from(
            judged[..9]
                .iter()
                .any(|it| it.verdict == FigureVerdict::Equivalent),
        );
    }
    let share = f64::from(wrong) / f64::from(studies);
    assert!(share <= 0.055, "{share}");
}

#[test]
fn large_effects_are_found_among_many_conditions() {
    // 18 comparisons of six pairs, as in the shipped studies: six effects of 20% with a pair SD of 2%.
    let mut stream = SplitMix64::new(6);
    let (mut found, studies) = (0, 200);
    for _ in 0..studies {
        let truth = |index: usize| if index < 6 { 0.2 } else { 0.0 };
        let study: Vec<PairComparison> = (0..18)
            .map(|index| drawn(&mut stream, truth(index), 0.02, 6))
            .collect();
        let judged = judge_all(&study);
        found += judged[..6]
            .iter()
            .filter(|it| it.verdict == FigureVerdict::Faster)
            .count();
    }
    let share = found as f64 / f64::from(6 * studies);
    assert!(share > 0.97, "{share}");
}

#[test]
fn verdicts_and_intervals_agree() {
    let mut stream = SplitMix64::new(81);
    for _ in 0..200 {
        let study: Vec<PairComparison> = (0..9)
            .map(|index| drawn(&mut stream, 0.01 * f64::from(index - 4), 0.008, 6))
            .collect();
        for (judged, comparison) in judge_all(&study).iter().zip(&study) {
            let estimate = comparison.estimate().unwrap();
            let at = estimate.interval_at(judged.level);
            let inside = at.low >= EquivalenceMargin::default().low()
                && at.high <= EquivalenceMargin::default().high();
            match judged.verdict {
                FigureVerdict::Faster => assert!(at.low > 1.0),
                FigureVerdict::Slower => assert!(at.high < 1.0),
                FigureVerdict::Equivalent => assert!(inside),
                FigureVerdict::Inconclusive
                    if judged.inconclusive == Some(InconclusiveReason::Noise) =>
                {
                    assert!(at.contains(1.0) && !inside, "{judged:?} {estimate:?}");
                }
                FigureVerdict::Inconclusive => {}
            }
        }
    }
}

#[test]
fn a_verdict_that_its_rank_test_contradicts_is_inconclusive() {
    // Bimodal: half of the pairs at +8%, the other half just below 0. The t-test is significant
    // (p = 0.01), the rank test is not (p = 0.18).
    let high = [0.081, 0.080, 0.079, 0.082, 0.078, 0.083];
    let low = [-0.001, -0.002, -0.003, -0.001_5, -0.002_5, -0.003_5];
    let comparison = compare(&pairs_of(&[high, low].concat()), 0.95).unwrap();
    assert!(comparison.estimate().unwrap().excludes_one());
    let [judged] = judge_all(&[comparison])[..] else {
        unreachable!()
    };
    assert_eq!(
        (judged.verdict, judged.inconclusive),
        (
            FigureVerdict::Inconclusive,
            Some(InconclusiveReason::RanksDisagree)
        )
    );
}

#[test]
fn equal_counts_of_unequal_variants_are_inconclusive() {
    // 30.0 against 30.1 ms: each trial counts ten transactions of one client.
    let background = PairContext {
        boots: &[],
        steps: [0.1, 0.1],
    };
    let equal = compare_in_context(&pairs_of(&[0.0; 6]), background, 0.95).unwrap();
    let [judged] = judge_all(std::slice::from_ref(&equal))[..] else {
        unreachable!()
    };
    assert_eq!(
        (judged.verdict, judged.inconclusive),
        (
            FigureVerdict::Inconclusive,
            Some(InconclusiveReason::BelowResolution)
        )
    );
    assert!(equal.estimate().unwrap().interval.contains(30.0 / 30.1));
}

#[test]
fn a_single_pair_is_not_part_of_the_family() {
    let mut stream = SplitMix64::new(1);
    let mut study = vec![drawn(&mut stream, 0.3, 0.03, 6)];
    let alone = judge_all(&study)[0];
    study.push(compare(&pairs_of(&[0.2]), 0.95).unwrap());
    let judged = judge_all(&study);
    assert_eq!(judged[0], alone);
    assert_eq!(judged[1].inconclusive, Some(InconclusiveReason::OnePair));
}
