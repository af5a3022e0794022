use super::*;
use crate::random::SplitMix64;

fn pair(log_ratio: f64) -> Pair {
    Pair {
        baseline: 1.0,
        variant: log_ratio.exp(),
    }
}

fn plan(first_stage: usize, half_width_log: f64, alpha: f64) -> PrecisionPlan {
    PrecisionPlan {
        first_stage,
        half_width_log,
        alpha,
    }
}

fn of_logs(plan: PrecisionPlan, logs: &[f64]) -> PrecisionComparison {
    let mut running = PrecisionComparison::new(plan).unwrap();
    for log in logs {
        running.push(&[pair(*log)], [0.0; 2]).unwrap();
    }
    running
}

#[test]
fn the_number_of_units_is_that_of_the_formula() {
    // SD √(0.0005/3) = 0.012910, t with 3 degrees of freedom 3.182446: (3.182446 · 0.012910 / 0.01)² = 16.88.
    let logs = [0.01, 0.03, 0.02, 0.04];
    let mut running = of_logs(plan(4, 0.01, 0.05), &logs);
    assert_eq!(running.units_needed(), Some(17));
    let first = running.estimate().unwrap();
    assert!((first.half_width_log - 3.182_446 * 0.012_910 / 2.0).abs() < 1e-6);
    for log in logs.iter().cycle().take(13) {
        running.push(&[pair(*log)], [0.0; 2]).unwrap();
    }
    let last = running.estimate().unwrap();
    assert_eq!((last.units, running.units_needed()), (17, Some(17)));
    assert!(last.half_width_log <= 0.01 && last.half_width_log > 0.0099);
    let middle = (last.interval.low * last.interval.high).sqrt();
    assert!((middle - last.ratio()).abs() < 1e-12);
    // What the first stage decided does not change any more.
    assert!((last.unit_sd_log - first.unit_sd_log).abs() < 1e-15);
}

#[test]
fn a_plan_has_two_units_and_a_half_width() {
    for (first_stage, half_width_log, alpha) in [(1, 0.01, 0.05), (4, 0.0, 0.05), (4, 0.01, 1.0)] {
        assert!(PrecisionComparison::new(plan(first_stage, half_width_log, alpha)).is_err());
    }
    let mut running = of_logs(plan(4, 0.01, 0.05), &[0.01]);
    assert_eq!((running.estimate(), running.units_needed()), (None, None));
    assert!(running.push(&[], [0.0; 2]).is_err() && running.units() == 1);
}

#[test]
fn the_unit_is_the_mean_of_its_pairs() {
    let mut of_pairs = PrecisionComparison::new(plan(3, 0.01, 0.05)).unwrap();
    for mean in [0.0, 0.02, 0.04] {
        let pairs = [mean - 0.01, mean + 0.01].map(pair);
        of_pairs.push(&pairs, [0.0; 2]).unwrap();
    }
    let of_means = of_logs(plan(3, 0.01, 0.05), &[0.0, 0.02, 0.04]);
    let widths = [of_pairs, of_means].map(|it| it.estimate().unwrap().half_width_log);
    assert!((widths[0] - widths[1]).abs() < 1e-12, "{widths:?}");
}

#[test]
fn a_coarse_resolution_cannot_be_averaged_away() {
    let mut running = PrecisionComparison::new(plan(4, 0.01, 0.05)).unwrap();
    for log in [0.001, 0.002, 0.001, 0.003] {
        running.push(&[pair(log)], [0.02, 0.02]).unwrap();
    }
    let found = running.estimate().unwrap();
    assert!((found.widened_log - 0.04).abs() < 1e-12 && found.half_width_log > 0.04);
    assert_eq!(running.units_needed(), None);
    // Units that do not vary at all say nothing about the noise.
    let constant = of_logs(plan(4, 0.01, 0.05), &[0.01; 4]);
    assert!(constant.estimate().unwrap().half_width_log.is_infinite());
    assert_eq!(constant.units_needed(), None);
}

/// What ends a simulated comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ending {
    /// The number of units of the first stage's deviation.
    TwoStages,
    /// The same, or this number of units, if it is lower: the time is up.
    Time(usize),
    /// The ordinary interval is as narrow as wanted: not a rule of pgassay.
    FirstNarrowInterval,
}

/// Shares of comparisons whose interval covers the truth, and that reach the half-width; SD 1.5% of a unit.
fn coverage(ending: Ending, first_stage: usize, half_width_log: f64) -> [f64; 2] {
    let (mut stream, truth, simulations) = (SplitMix64::new(1945), 0.01, 4_000_u32);
    let (mut covered, mut reached) = (0_u32, 0_u32);
    for _ in 0..simulations {
        let mut running =
            PrecisionComparison::new(plan(first_stage, half_width_log, 0.05)).unwrap();
        let mut push = |running: &mut PrecisionComparison, units: usize| {
            while running.units() < units {
                let log = truth + 0.015 * stream.next_normal();
                running.push(&[pair(log)], [0.0; 2]).unwrap();
            }
        };
        push(&mut running, first_stage);
        let needed = running.units_needed().unwrap();
        match ending {
            Ending::TwoStages => push(&mut running, needed),
            Ending::Time(units_max) => push(&mut running, needed.min(units_max)),
            Ending::FirstNarrowInterval => {
                // As if everything so far were the first stage.
                while running.units_needed().unwrap() > running.units() {
                    let more = running.units() + 1;
                    push(&mut running, more);
                    running.plan.first_stage = more;
                }
            }
        }
        let found = running.estimate().unwrap();
        covered += u32::from(found.interval.contains(truth.exp()));
        reached += u32::from(found.half_width_log <= half_width_log + 1e-12);
    }
    [covered, reached].map(|it| f64::from(it) / f64::from(simulations))
}

#[test]
fn two_stages_cover_the_truth_and_reach_the_half_width() {
    for first_stage in [4, 12] {
        // About one, four and 25 times as many units as a known deviation would take for the first stage.
        for half_width in [0.02, 0.006, 0.003] {
            let [covered, reached] = coverage(Ending::TwoStages, first_stage, half_width);
            let case = format!("{first_stage} units, ±{half_width}: {covered} {reached}");
            assert!((0.94..=0.999).contains(&covered), "{case}");
            assert!(reached >= 1.0, "{case}");
        }
    }
    // The same check notices a rule that stops at the first narrow interval.
    let [covered, _] = coverage(Ending::FirstNarrowInterval, 4, 0.006);
    assert!(covered < 0.94, "{covered}");
}

#[test]
fn two_stages_that_run_out_of_time_still_cover_the_truth() {
    let [covered, reached] = coverage(Ending::Time(16), 12, 0.006);
    assert!((0.94..=0.96).contains(&covered), "{covered}");
    assert!(reached < 0.3, "{reached}");
}

#[test]
fn comparisons_that_share_units_cover_their_truths_together() {
    let (mut stream, simulations) = (SplitMix64::new(18), 3_000_u32);
    let (mut all_covered, mut all_reached) = (0_u32, 0_u32);
    for _ in 0..simulations {
        // Three variants, one baseline, and the noisiest decides for all.
        let mut all = [0.01, 0.02, 0.03].map(|sd| {
            let running = PrecisionComparison::new(plan(12, 0.015, 0.05 / 3.0)).unwrap();
            (sd, running)
        });
        let mut units_planned = 12;
        while all[0].1.units() < units_planned {
            let shared = stream.next_normal();
            for (sd, running) in &mut all {
                let noise = *sd * 0.5_f64.sqrt() * (shared + stream.next_normal());
                running.push(&[pair(0.02 + noise)], [0.0; 2]).unwrap();
            }
            if all[0].1.units() == 12 {
                let needed = all.iter().filter_map(|(_, it)| it.units_needed());
                units_planned = needed.max().unwrap();
            }
        }
        let found = all.map(|(_, it)| it.estimate().unwrap());
        let covers = |it: &PrecisionEstimate| it.interval.contains(0.02_f64.exp());
        all_covered += u32::from(found.iter().all(covers));
        all_reached += u32::from(found.iter().all(|it| it.half_width_log <= 0.015 + 1e-12));
    }
    let share = f64::from(all_covered) / f64::from(simulations);
    assert!((0.94..=0.99).contains(&share), "{share}");
    assert_eq!(all_reached, simulations);
}
