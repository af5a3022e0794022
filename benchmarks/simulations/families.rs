//! Whole studies: error rates over all conditions, and which effects six pairs can detect.

use pgassay_stats::power::DetectableFactors;
use pgassay_stats::{
    Direction, EquivalenceMargin, FigureVerdict, InconclusiveReason, Interval, Judged, Pair,
    PairComparison, compare, judge,
};

use crate::world::Draws;
use crate::{Share, row};

fn simulated_comparison(draws: &mut Draws, truth: f64, sd: f64, pairs: usize) -> PairComparison {
    let pairs: Vec<Pair> = (0..pairs)
        .map(|_| Pair {
            baseline: 1.0,
            variant: (truth + sd * draws.normal()).exp(),
        })
        .collect();
    compare(&pairs, 0.95).expect("figures are positive")
}

fn judged(study: &[PairComparison]) -> Vec<Judged> {
    let all: Vec<&PairComparison> = study.iter().collect();
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

/// The verdict at 5%, as if this were the only comparison.
fn alone(comparison: &PairComparison) -> FigureVerdict {
    let interval: Interval = comparison.estimate().expect("several pairs").interval;
    FigureVerdict::of(
        &interval,
        Direction::HigherIsBetter,
        EquivalenceMargin::default(),
    )
}

/// Shares of studies without a difference that have any false verdict: judged together, and each alone.
pub fn false_verdicts(conditions: usize, sd: f64, pairs: usize, runs: u32) -> (Share, Share) {
    let mut draws = Draws::new(27);
    let (mut together, mut each_alone) = (0, 0);
    for _ in 0..runs {
        let study: Vec<PairComparison> = (0..conditions)
            .map(|_| simulated_comparison(&mut draws, 0.0, sd, pairs))
            .collect();
        together += usize::from(judged(&study).iter().any(|it| is_sign(it.verdict)));
        each_alone += usize::from(study.iter().any(|it| is_sign(alone(it))));
    }
    (Share::of(together, runs), Share::of(each_alone, runs))
}

/// At the minimum detectable effect: the shares of verdicts that find it, and that the rank test withdraws.
fn power_and_rejections(pairs: usize, comparisons: usize, runs: u32) -> (Share, Share) {
    let alpha = 0.05 / comparisons as f64;
    let factors = DetectableFactors::new(pairs, alpha, 0.8).expect("it is a level");
    let factors = factors.expect("several pairs");
    let mut draws = Draws::new(5);
    let (mut found, mut back) = (0, 0);
    for _ in 0..runs {
        // One run reports the effect, a similar one tries to detect it.
        let printed = simulated_comparison(&mut draws, 0.0, 0.03, pairs);
        let sd = printed.estimate().expect("several pairs").unit_sd_log;
        let effect = factors.of(sd).effect_log;
        // The others have no difference, so this one must meet the strictest level.
        let mut study = vec![simulated_comparison(&mut draws, effect, 0.03, pairs)];
        study.extend((1..comparisons).map(|_| simulated_comparison(&mut draws, 0.0, 0.03, pairs)));
        let first = judged(&study)[0];
        found += usize::from(is_sign(first.verdict));
        back += usize::from(first.inconclusive == Some(InconclusiveReason::RanksDisagree));
    }
    (Share::of(found, runs), Share::of(back, runs))
}

pub fn tables(runs: u32) {
    println!("## Studies with many conditions\n");
    println!("Studies without any true difference that report a false *faster* or *slower*.\n");
    row(&["comparisons", "pairs", "each at 5%", "Holm over the study"]);
    row(&["---"; 4]);
    for (conditions, pairs) in [(1, 6), (6, 6), (18, 6), (27, 6), (27, 12)] {
        let (together, each_alone) = false_verdicts(conditions, 0.03, pairs, runs);
        row(&[
            &conditions.to_string(),
            &pairs.to_string(),
            &each_alone.to_string(),
            &together.to_string(),
        ]);
        assert!(together.0 <= 0.06, "{conditions}");
        assert!(
            conditions < 18 || each_alone.0 > 0.5,
            "each at 5% must have too many false positives"
        );
    }
    println!(
        "\nPower at the minimum detectable effect, and verdicts that the rank test withdraws (*taken back*).\n"
    );
    row(&["comparisons", "pairs", "found", "taken back"]);
    row(&["---"; 4]);
    for (comparisons, pairs) in [(1, 6), (18, 6), (1, 12), (18, 12), (18, 24)] {
        let (found, back) = power_and_rejections(pairs, comparisons, runs.min(3_000));
        assert!(
            (found.0 - 0.8).abs() <= 0.03 && back.0 <= 0.02,
            "{found} {back}"
        );
        let cells = [
            comparisons.to_string(),
            pairs.to_string(),
            found.to_string(),
            back.to_string(),
        ];
        row(&cells.each_ref().map(String::as_str));
    }
    println!("\nMinimum detectable effect (MDE) at a pair SD of 1%; others in proportion.\n");
    row(&["comparisons", "6 pairs", "12", "24", "48"]);
    row(&["---"; 5]);
    for comparisons in [1, 3, 6, 9, 18, 27] {
        let mut cells = vec![comparisons.to_string()];
        for pairs in [6, 12, 24, 48] {
            let factors = DetectableFactors::new(pairs, 0.05 / f64::from(comparisons), 0.8);
            let found = factors
                .expect("it is a level")
                .expect("several pairs")
                .of(0.01);
            cells.push(format!(
                "{:.2}% ({:.2} to {:.2})",
                100.0 * found.effect_log,
                100.0 * found.low_log,
                100.0 * found.high_log
            ));
        }
        row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    println!();
}
