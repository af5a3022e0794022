//! What a pair is made of: the timed trials of a block, taken together, if all of them ended.

use hdrhistogram::Histogram;
use pgassay_account::comparison::Verdict;
use pgassay_model::trial::{Latency, Trial, TrialKind};

use crate::assess::{assessed, trial, trials};

/// Regression: the first two trials of a round of four were a pair, whose first trial was cold.
#[test]
fn a_block_that_was_interrupted_after_one_trial_of_each_side_is_no_pair() {
    let mut interrupted = trials(1.4);
    for trial in &mut interrupted {
        trial.repeats = Some(1);
    }
    let is_of_last = |it: &Trial| it.block == 5 && it.kind == TrialKind::Timed;
    let last: Vec<usize> = (0..interrupted.len())
        .filter(|&at| is_of_last(&interrupted[at]))
        .collect();
    assert_eq!(last.len(), 4);
    interrupted.drain(last[2]..);
    let found = assessed(&interrupted, &[]);
    assert_eq!(found.comparisons[0].tps.by_pair.len(), 5);
    // Without any pair, the figures are shown.
    let first: Vec<Trial> = trials(1.4).into_iter().take(2).collect();
    let found = assessed(&first, &[]);
    assert_eq!(found.comparisons[0].verdict, Verdict::Inconclusive);
    assert_eq!(found.comparisons[0].tps.by_pair.len(), 1);
}

/// Regression: with the geometric mean of the trials' rates, a variant that stalls for half of one trial lost 29% of
/// its throughput, not 25%; and the shorter the trials, the more.
#[test]
fn a_stall_in_one_trial_costs_the_transactions_that_it_costs() {
    let mut stalling = Vec::new();
    for block in 0..6 {
        for factor in [1.0, 0.5] {
            let wobble = 1.0 + 0.001 * f64::from(block);
            let tps = 20_000.0 * wobble;
            stalling.push(trial(block, 0, TrialKind::Timed, 20_000.0, 50.0));
            stalling.push(trial(block, 1, TrialKind::Timed, tps * factor, 50.0));
        }
    }
    let found = assessed(&stalling, &[]);
    let ratio = found.comparisons[0].tps.ratio;
    assert!((ratio / 0.75 - 1.0).abs() < 0.005, "{ratio}");
    let tps = found.points[1].tps;
    assert!((tps / 15_000.0 - 1.0).abs() < 0.005, "{tps}");
}

/// Regression: a quantile of a pair was the mean of its trials' quantiles. Of a trial with ten transactions, the 99th
/// percentile is the slowest, so the side with more transactions looked worse in the tail.
#[test]
fn a_tail_is_that_of_all_transactions_of_a_block() {
    // 15 of each side's 2,000 transactions take 10 ms, all others 1 ms: on one side, all of them in one trial.
    let mut all = Vec::new();
    for block in 0..6 {
        for (variant, slow) in [(0, 15), (1, 8), (1, 7), (0, 0)] {
            let mut of = trial(block, variant, TrialKind::Timed, 10_000.0, 50.0);
            let mut latency = Histogram::<u64>::new(3).unwrap();
            latency.record_n(1_000_000, 1_000 - slow).unwrap();
            latency.record_n(10_000_000, slow).unwrap();
            of.latency = Latency::from_histogram(&latency);
            all.push(of);
        }
    }
    let found = assessed(&all, &[]);
    // The 99th percentile is 1 ms, on both sides.
    let tail = &found.comparisons[0].latency_p99;
    assert!((tail.ratio - 1.0).abs() < 1e-9, "{tail:?}");
    assert!((found.points[0].latency_p99_us / 1_000.0 - 1.0).abs() < 1e-3);
}
