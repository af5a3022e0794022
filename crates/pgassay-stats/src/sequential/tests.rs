//! Error rates of the whole rule, by simulation. `docs/simulations.md` has the tables of longer runs.

use super::*;
use crate::order::{block_order, pairs_in_block};
use crate::pairs::Pair;
use crate::random::SplitMix64;
use crate::verdict::{Direction, EquivalenceMargin};

/// The noise of trials and pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Noise {
    Normal,
    /// Student's t with three degrees of freedom.
    HeavyTails,
    /// One pair in 20 has five times the standard deviation.
    Outliers,
    /// The machine slows down by 10% over the run.
    Drift,
    /// Each trial starts where the one before it ended.
    RandomWalk,
}

/// Pairs of one comparison without a difference, in mirrored blocks.
fn pairs(stream: &mut SplitMix64, noise: Noise, run: u64) -> Vec<Pair> {
    let mut walk = 0.0;
    let mut logs = Vec::new();
    for block in 0..24 {
        let order = block_order(2, run, block);
        let trials: Vec<f64> = (0..4)
            .map(|place| {
                walk += 0.01 * stream.next_normal();
                let time = (4 * block + place) as f64 / 96.0;
                let own = 0.02 * stream.next_normal();
                match noise {
                    Noise::HeavyTails => {
                        let squares: f64 = (0..3).map(|_| stream.next_normal().powi(2)).sum();
                        own / (squares / 3.0).sqrt()
                    }
                    Noise::Outliers if stream.next_f64() < 0.05 => 5.0 * own,
                    Noise::Normal | Noise::Outliers => own,
                    Noise::Drift => own + 0.1 * time,
                    Noise::RandomWalk => own + walk,
                }
            })
            .collect();
        let of_block = pairs_in_block(&order, 0, 1);
        logs.extend(of_block.into_iter().map(|(a, b)| trials[b] - trials[a]));
    }
    let pair = |log: f64| Pair {
        baseline: 1.0,
        variant: log.exp(),
    };
    logs.into_iter().map(pair).collect()
}

fn sign_only(alpha: f64) -> SequentialPlan {
    SequentialPlan {
        alpha,
        margin: EquivalenceMargin::none(),
        ..SequentialPlan::new(AnalysisSchedule::Pairs, Direction::HigherIsBetter)
    }
}

/// The comparison at its first verdict, or at its last analysis.
fn decided(plan: SequentialPlan, pairs: &[Pair], size: usize) -> SequentialComparison {
    let mut running = SequentialComparison::new(plan).unwrap();
    for block in pairs.chunks(size) {
        running.push(block).unwrap();
        if running.is_finished() {
            break;
        }
    }
    running
}

/// Shares of comparisons without a difference that are called faster or slower by the rule, and by the first
/// ordinary p-value below 5%.
fn false_signs(noise: Noise, runs: u64) -> (f64, f64) {
    let mut stream = SplitMix64::new(16);
    let (mut by_rule, mut by_t_test) = (0_u32, 0_u32);
    for run in 0..runs {
        let pairs = pairs(&mut stream, noise, run);
        let found = decided(sign_only(0.05), &pairs, 2);
        by_rule += u32::from(found.verdict().is_sign());
        let logs: Vec<f64> = pairs.iter().map(|it| it.variant.ln()).collect();
        by_t_test += u32::from(
            run < 200
                && (4..=48).any(|count| {
                    crate::mean_difference(&logs[..count], 0.95)
                        .unwrap()
                        .p_value
                        < 0.05
                }),
        );
    }
    (
        f64::from(by_rule) / runs as f64,
        f64::from(by_t_test) / 200.0,
    )
}

/// At most 5.5%, and three standard errors of the simulation.
fn meets_limit(share: f64, runs: u64) -> bool {
    share <= 0.055 + 3.0 * (0.055 * 0.945 / runs as f64).sqrt()
}

#[test]
fn equal_builds_are_called_different_in_five_percent_whatever_the_noise() {
    let runs = 1_500;
    for noise in [
        Noise::Normal,
        Noise::HeavyTails,
        Noise::Outliers,
        Noise::Drift,
        Noise::RandomWalk,
    ] {
        let (by_rule, by_t_test) = false_signs(noise, runs);
        assert!(meets_limit(by_rule, runs), "{noise:?}: {by_rule}");
        // The same check notices a wrong rule.
        assert!(!meets_limit(by_t_test, 200), "{noise:?}: {by_t_test}");
        if noise == Noise::Normal {
            assert!(by_rule > 0.03 && by_t_test > 0.2, "{by_rule} {by_t_test}");
        }
    }
}

#[test]
fn server_starts_as_units_keep_the_error_rate_and_their_pairs_do_not() {
    let (mut stream, runs) = (SplitMix64::new(12), 1_500);
    let mut false_signs = [0_u32; 2];
    for _ in 0..runs {
        let mut pairs = Vec::new();
        for _ in 0..12 {
            let boot = 0.5 * stream.next_normal();
            pairs.extend((0..4).map(|_| Pair {
                baseline: 1.0,
                variant: (0.02 * (boot + stream.next_normal())).exp(),
            }));
        }
        for (index, schedule) in [AnalysisSchedule::Units, AnalysisSchedule::Pairs]
            .iter()
            .enumerate()
        {
            let plan = SequentialPlan {
                schedule: *schedule,
                ..sign_only(0.05)
            };
            false_signs[index] += u32::from(decided(plan, &pairs, 4).verdict().is_sign());
        }
    }
    let [units, pairs] = false_signs.map(|it| f64::from(it) / runs as f64);
    assert!(meets_limit(units, runs) && units > 0.03, "{units}");
    assert!(!meets_limit(pairs, runs) && pairs > 0.12, "{pairs}");
}

#[test]
fn intervals_cover_the_truth_when_sampling_stops_at_a_verdict() {
    let runs = 600;
    for (truth, sd) in [
        (0.0, 0.03),
        (0.02, 0.03),
        (0.05, 0.08),
        (0.05, 0.03),
        (0.01, 0.01),
    ] {
        let mut stream = SplitMix64::new(1989);
        let (mut covered, mut by_t) = (0_u32, 0_u32);
        for _ in 0..runs {
            let pairs: Vec<Pair> = (0..48)
                .map(|_| Pair {
                    baseline: 1.0,
                    variant: (truth + sd * stream.next_normal()).exp(),
                })
                .collect();
            let plan = SequentialPlan::new(AnalysisSchedule::Pairs, Direction::HigherIsBetter);
            let found = decided(plan, &pairs, 2);
            let interval = found.interval();
            covered += u32::from(interval.is_some_and(|it| it.contains(f64::exp(truth))));
            let logs: Vec<f64> = found.pairs().iter().map(|it| it.variant.ln()).collect();
            let ordinary = crate::mean_difference(&logs, 0.95).unwrap().interval;
            by_t += u32::from(ordinary.unwrap().contains(truth));
        }
        let [share, by_t] = [covered, by_t].map(|it| f64::from(it) / f64::from(runs));
        // 94%, and two standard errors of the simulation.
        assert!(
            share >= 0.94 - 2.0 * (0.06 * 0.94 / f64::from(runs)).sqrt(),
            "{truth} {sd}: {share}"
        );
        assert!(by_t < share, "{truth} {sd}: {by_t} {share}");
    }
}

/// How often the ordinary 95% intervals of two rows contain their true differences when a run ends at its verdict: of a
/// row that varies as throughput does (the response time), and of one with a correlation of 0.7.
fn coverage_of_rows(schedule: AnalysisSchedule, [truth, sd]: [f64; 2], runs: u32) -> [f64; 2] {
    let (size, most) = match schedule {
        AnalysisSchedule::Pairs => (2, 48),
        AnalysisSchedule::Units => (1, 12),
    };
    let plan = SequentialPlan::new(schedule, Direction::HigherIsBetter);
    let (mut stream, mut covered) = (SplitMix64::new(41), [0_u32; 2]);
    for _ in 0..runs {
        let noise: Vec<[f64; 2]> = (0..most)
            .map(|_| {
                let [own, other] = [stream.next_normal(), stream.next_normal()];
                [own, 0.7 * own + 0.51_f64.sqrt() * other]
            })
            .collect();
        let pair = |[own, _]: &[f64; 2]| Pair {
            baseline: 1.0,
            variant: (truth + sd * own).exp(),
        };
        let pairs: Vec<Pair> = noise.iter().map(pair).collect();
        let count = decided(plan, &pairs, size).pairs().len();
        for (row, covered) in covered.iter_mut().enumerate() {
            let errors: Vec<f64> = noise[..count].iter().map(|it| it[row]).collect();
            let interval = crate::mean_difference(&errors, 0.95).unwrap().interval;
            *covered += u32::from(interval.is_some_and(|it| it.contains(0.0)));
        }
    }
    covered.map(|it| f64::from(it) / f64::from(runs))
}

/// `docs/ledger.md` says so of the ± in LEDGER, COST and STATISTICS.
#[test]
fn ordinary_intervals_of_rows_cover_less_often_when_the_run_ends_at_its_verdict() {
    let mut lowest = [1.0_f64; 2];
    for schedule in [AnalysisSchedule::Pairs, AnalysisSchedule::Units] {
        for at in [
            [0.0, 0.01],
            [0.0, 0.03],
            [0.01, 0.01],
            [0.02, 0.03],
            [0.05, 0.03],
            [0.05, 0.08],
            [0.2, 0.08],
        ] {
            let found = coverage_of_rows(schedule, at, 600);
            lowest = [0, 1].map(|row| lowest[row].min(found[row]));
        }
    }
    let [whole, part] = lowest;
    assert!((0.89..0.935).contains(&whole), "{whole}");
    assert!((0.91..0.95).contains(&part), "{part}");
}

#[test]
fn a_difference_at_the_margin_is_rarely_called_equivalent() {
    let (mut stream, runs) = (SplitMix64::new(87), 800);
    let equivalent = (0..runs).filter(|_| {
        let pairs: Vec<Pair> = (0..48)
            .map(|_| Pair {
                baseline: 1.0,
                variant: 1.02 * (0.02 * stream.next_normal()).exp(),
            })
            .collect();
        let plan = SequentialPlan::new(AnalysisSchedule::Pairs, Direction::HigherIsBetter);
        decided(plan, &pairs, 2).verdict() == SequentialVerdict::Equivalent
    });
    let share = equivalent.count() as f64 / f64::from(runs);
    assert!(
        share <= 0.025 + 2.0 * (0.025 / f64::from(runs)).sqrt(),
        "{share}"
    );
}

/// Shares of studies of 18 comparisons without a difference, correlated by their baseline, 288 pairs in all, with
/// any false sign: in the matrix, and with each comparison at 5%.
fn false_marks(runs: u32) -> [f64; 2] {
    let plans: Vec<SequentialPlan> = vec![sign_only(0.05); 18];
    let template = SequentialMatrix::new(&plans, 0.05).unwrap();
    let (mut stream, mut any) = (SplitMix64::new(18), [0_u32; 2]);
    for _ in 0..runs {
        let baseline: Vec<f64> = (0..48).map(|_| stream.next_normal()).collect();
        let mut matrix = template.clone();
        for _ in 0..288 / 2 {
            let Some(next) = matrix.next_block() else {
                break;
            };
            let sd = [0.01, 0.02, 0.03][next.comparison % 3];
            let from = matrix.comparisons()[next.comparison].units();
            let block = [0, 1].map(|pair| {
                let shared = baseline[from + pair];
                Pair {
                    baseline: 1.0,
                    variant: (sd * 0.5f64.sqrt() * (shared + stream.next_normal())).exp(),
                }
            });
            matrix.push(next.comparison, &block).unwrap();
        }
        any[0] += u32::from(matrix.cells().iter().any(|it| it.verdict.is_sign()));
        let mut alone = matrix.comparisons().iter();
        any[1] += u32::from(alone.any(|it| it.verdict().is_sign()));
    }
    any.map(|it| f64::from(it) / f64::from(runs))
}

#[test]
fn a_matrix_of_18_nulls_has_any_false_sign_in_at_most_five_percent() {
    let runs = 200;
    let [in_matrix, alone] = false_marks(runs);
    let limit = 0.05 + 2.0 * (0.05 * 0.95 / f64::from(runs)).sqrt();
    assert!(in_matrix <= limit, "{in_matrix}");
    assert!(alone > limit, "{alone}");
}
