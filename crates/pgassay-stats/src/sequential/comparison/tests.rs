use super::*;
use crate::random::SplitMix64;

fn pair(log_ratio: f64) -> Pair {
    Pair {
        baseline: 1.0,
        variant: log_ratio.exp(),
    }
}

fn comparison(schedule: AnalysisSchedule) -> SequentialComparison {
    SequentialComparison::new(SequentialPlan::new(schedule, Direction::HigherIsBetter)).unwrap()
}

fn draw(stream: &mut SplitMix64, mean: f64, sd: f64, count: usize) -> Vec<Pair> {
    (0..count)
        .map(|_| pair(mean + sd * stream.next_normal()))
        .collect()
}

#[test]
fn an_interval_is_the_mean_and_a_tabulated_multiple_of_its_error() {
    let mut running = comparison(AnalysisSchedule::Pairs);
    assert!(running.push(&[pair(0.01), pair(0.03)]).unwrap().is_none());
    assert_eq!(running.interval(), None);
    let found = *running.push(&[pair(0.02), pair(0.04)]).unwrap().unwrap();
    // Mean 0.025; SD √(0.0005/3) = 0.012910, standard error 0.006455, times 7.940.
    assert_eq!((found.units, found.pairs), (4, 4));
    assert!(
        (found.interval.low.ln() - (0.025 - 0.051_252)).abs() < 1e-5,
        "{found:?}"
    );
    assert!((found.interval.high.ln() - (0.025 + 0.051_252)).abs() < 1e-5);
    assert_eq!(found.verdict, SequentialVerdict::Inconclusive);
    assert_eq!(found.p_value, SequentialP::ABOVE_TABLE);
    assert_eq!(running.interval(), Some(found.interval));
    assert!(!running.is_finished());
}

#[test]
fn p_values_agree_with_intervals_at_every_level_and_intersections_never_widen() {
    let mut stream = SplitMix64::new(1989);
    let alphas = [0.1, 0.06, 0.05, 0.01, 0.05 / 18.0, 0.0004, 1e-6];
    for run in 0..40 {
        let schedule = [AnalysisSchedule::Pairs, AnalysisSchedule::Units][run % 2];
        let truth = [0.0, 0.01, 0.03, -0.08][run / 2 % 4];
        let mut running = comparison(schedule);
        let mut before = LogRange::EVERYTHING;
        while !running.is_at_cap() {
            let block = draw(&mut stream, truth, 0.02, 2);
            let Some(found) = running.push(&block).unwrap().copied() else {
                continue;
            };
            for alpha in alphas {
                let excludes = running.side_of(1.0, alpha).unwrap().is_some();
                assert_eq!(
                    running.p_value().or_one() <= alpha,
                    excludes,
                    "{alpha} {found:?}"
                );
                let interval = running.interval_at(alpha).unwrap().unwrap();
                assert_eq!(!interval.contains(1.0), excludes);
                let margin = running.plan().margin;
                let within = interval.low >= margin.low() && interval.high <= margin.high();
                let p_value = running.equivalence_p_value().or_one();
                assert_eq!(p_value <= alpha, within, "{alpha} {found:?}");
            }
            let range = running.range();
            assert!(range.low >= before.low && range.high <= before.high);
            assert_eq!(running.range_at(running.critical()), range);
            before = range;
        }
        assert_eq!(running.analyses().len(), schedule.analyses());
        let p_values = running.analyses().iter().map(|it| it.p_value.or_one());
        assert!(p_values.is_sorted_by(|earlier, later| earlier >= later));
    }
}

#[test]
fn the_result_does_not_depend_on_how_pairs_are_grouped() {
    let pairs = draw(&mut SplitMix64::new(8), 0.01, 0.03, 48);
    let mut found = Vec::new();
    for size in [1, 2, 3, 48] {
        let mut running = comparison(AnalysisSchedule::Pairs);
        for block in pairs.chunks(size) {
            running.push(block).unwrap();
        }
        found.push(running.analyses().to_vec());
    }
    assert!(found.iter().all(|it| it.len() == 23 && *it == found[0]));
}

#[test]
fn the_first_verdict_stands_and_gains_its_margin_later() {
    let mut running = comparison(AnalysisSchedule::Pairs);
    let mut stream = SplitMix64::new(17);
    let mut first = None;
    while !running.is_at_cap() {
        running.push(&draw(&mut stream, 0.014, 0.008, 2)).unwrap();
        if running.is_finished() {
            first = first.or(Some(running.verdict()));
        }
    }
    assert_eq!(
        first,
        Some(SequentialVerdict::Faster {
            within_margin: false
        })
    );
    assert_eq!(
        running.verdict(),
        SequentialVerdict::Faster {
            within_margin: true
        }
    );
    // An equivalence stands as well, although the interval excludes 1 in the end.
    let mut running = comparison(AnalysisSchedule::Pairs);
    while !running.is_at_cap() {
        running.push(&draw(&mut stream, 0.004, 0.006, 2)).unwrap();
    }
    assert_eq!(running.verdict(), SequentialVerdict::Equivalent);
    assert!(running.p_value().value().is_some_and(|it| it < 0.05));
}

#[test]
fn contradicting_intervals_are_unstable() {
    let mut running = comparison(AnalysisSchedule::Pairs);
    let mut stream = SplitMix64::new(3);
    running.push(&draw(&mut stream, 0.2, 0.001, 8)).unwrap();
    assert_eq!(
        running.verdict(),
        SequentialVerdict::Faster {
            within_margin: false
        }
    );
    running.push(&draw(&mut stream, -0.3, 0.001, 40)).unwrap();
    assert_eq!(running.verdict(), SequentialVerdict::Unstable);
    assert!(running.is_finished() && running.interval().is_none());
    assert_eq!(running.analyses().last().unwrap().narrowed, None);
    assert_eq!(running.side_of(1.0, 0.05).unwrap(), None);
}

#[test]
fn pairs_of_a_unit_count_as_their_mean() {
    let mut running = comparison(AnalysisSchedule::Units);
    for boot in [0.10, 0.12, 0.11, 0.13] {
        running
            .push(&[pair(boot - 0.05), pair(boot + 0.05)])
            .unwrap();
    }
    let found = running.analyses()[0];
    assert_eq!((found.units, found.pairs), (4, 8));
    assert!((found.mean_log - 0.115).abs() < 1e-12);
    assert!((found.unit_sd_log - 0.012_910).abs() < 1e-6);
    assert!(running.verdict().is_sign() && running.rank_check().is_some());
}

#[test]
fn constant_and_coarse_pairs_do_not_decide_by_themselves() {
    let mut running = comparison(AnalysisSchedule::Pairs);
    running.push(&[pair(0.1); 8]).unwrap();
    assert!(running.analyses()[0].is_constant());
    assert_eq!(running.verdict(), SequentialVerdict::Inconclusive);
    assert_eq!(running.interval().map(|it| it.low), Some(0.0));
    // With steps of 10% on either side, pairs that vary by less are widened by both.
    let pairs = draw(&mut SplitMix64::new(5), 0.1, 0.001, 8);
    let mut fine = comparison(AnalysisSchedule::Pairs);
    fine.push(&pairs).unwrap();
    assert!(fine.verdict().is_sign());
    let mut coarse = comparison(AnalysisSchedule::Pairs);
    coarse.push_with_resolution(&pairs, [0.1; 2]).unwrap();
    assert_eq!(coarse.verdict(), SequentialVerdict::Inconclusive);
    assert_eq!(coarse.p_value(), SequentialP::ABOVE_TABLE);
    let widened = coarse.analyses()[0].widened_log;
    assert!((widened - 0.2).abs() < 1e-12);
}

#[test]
fn invalid_pairs_change_nothing() {
    let mut running = comparison(AnalysisSchedule::Pairs);
    running
        .push(&draw(&mut SplitMix64::new(1), 0.0, 0.05, 47))
        .unwrap();
    assert!(matches!(
        running.push(&[pair(0.0), pair(0.0)]),
        Err(StatsError::BeyondCap {
            units: 47,
            more: 2,
            cap: 48
        })
    ));
    assert!(running.push(&[pair(f64::NAN)]).is_err() && running.push(&[]).is_err());
    assert_eq!((running.units(), running.is_at_cap()), (47, false));
    running.push(&[pair(0.0)]).unwrap();
    assert!(running.is_at_cap());
}
