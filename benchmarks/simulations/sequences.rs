//! Sequential comparisons: error rates, coverage, and how soon they decide.

use pgassay_stats::sequential::{
    AnalysisSchedule, Outlook, SequentialComparison, SequentialPlan, SequentialVerdict,
};
use pgassay_stats::{
    Direction, EquivalenceMargin, FigureVerdict, Interval, Pair, block_order, mean_difference,
    pairs_in_block,
};

use crate::world::Draws;
use crate::{Share, row, studies};

/// The noise of pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Noise {
    Normal,
    /// Student's t with three degrees of freedom.
    HeavyTails,
    /// One in 20 has five times the standard deviation.
    Outliers,
    /// The machine slows down by five standard deviations over the run.
    Drift,
    /// The machine's speed is a random walk with half the standard deviation as its step.
    RandomWalk,
    /// Neighboring pairs are correlated.
    Correlated(f64),
    /// One variant alone has stalls: its times are those of a steady one plus an exponential variate.
    OneSided,
}

/// ln(B/A) of `count` pairs with a standard deviation of 1 (that of the trials' own noise, under drift).
fn pairs(draws: &mut Draws, noise: Noise, count: usize, run: u64) -> Vec<f64> {
    let mut neighbor = draws.normal();
    let own = |draws: &mut Draws| match noise {
        Noise::HeavyTails => draws.t3(),
        Noise::Outliers if draws.chance(0.05) => 5.0 * draws.normal(),
        // With mean 0, for that is the difference in question.
        Noise::OneSided => 1.0 + (1.0 - draws.uniform()).ln(),
        _ => draws.normal(),
    };
    match noise {
        Noise::Drift | Noise::RandomWalk => {
            let mut walk = 0.0;
            let mut logs = Vec::with_capacity(count);
            for block in 0..count.div_ceil(2) {
                let trials: Vec<f64> = (0..4)
                    .map(|place| {
                        walk += 0.5 * draws.normal();
                        let time = (4 * block + place) as f64 / (2 * count) as f64;
                        let disturbed = if noise == Noise::Drift {
                            5.0 * time
                        } else {
                            walk
                        };
                        own(draws) / 2f64.sqrt() + disturbed
                    })
                    .collect();
                let order = block_order(2, run, block as u64);
                let of_block = pairs_in_block(&order, 0, 1);
                logs.extend(of_block.into_iter().map(|(a, b)| trials[b] - trials[a]));
            }
            logs
        }
        Noise::Correlated(share) => (0..count)
            .map(|_| {
                neighbor = share * neighbor + (1.0 - share * share).sqrt() * draws.normal();
                neighbor
            })
            .collect(),
        _ => (0..count).map(|_| own(draws)).collect(),
    }
}

fn pair(log: f64) -> Pair {
    Pair {
        baseline: 1.0,
        variant: log.exp(),
    }
}

fn plan(schedule: AnalysisSchedule, margin: EquivalenceMargin) -> SequentialPlan {
    SequentialPlan {
        margin,
        ..SequentialPlan::new(schedule, Direction::HigherIsBetter)
    }
}

/// The comparison at its end.
fn decided(
    plan: SequentialPlan,
    logs: &[f64],
    size: usize,
    futility: bool,
) -> SequentialComparison {
    let mut running = SequentialComparison::new(plan).expect("it is a level");
    for block in logs.chunks(size) {
        let block: Vec<Pair> = block.iter().map(|log| pair(*log)).collect();
        running.push(&block).expect("figures are positive");
        let is_futile = || Outlook::of(&running).is_some_and(|it| it.is_futile());
        if running.is_finished() || (futility && is_futile()) {
            break;
        }
    }
    running
}

/// The wrong rule: a difference at the first ordinary p-value below 5%, after every pair from the fourth.
fn first_small_p(logs: &[f64]) -> bool {
    let p_value = |count: usize| mean_difference(&logs[..count], 0.95).map(|it| it.p_value);
    (4..=logs.len()).any(|count| p_value(count).is_ok_and(|it| it < 0.05))
}

/// Shares of comparisons without a difference that get a sign: by the rule, and by the wrong one.
pub fn false_signs(noise: Noise, unit: usize, runs: u32) -> (Share, Share) {
    let mut draws = Draws::new(16);
    let (mut by_rule, mut by_p) = (0, 0);
    let schedule = if unit > 1 {
        AnalysisSchedule::Units
    } else {
        AnalysisSchedule::Pairs
    };
    for run in 0..runs {
        let logs = pairs(&mut draws, noise, 48, u64::from(run));
        let plan = plan(schedule, EquivalenceMargin::none());
        let found = decided(plan, &logs[..schedule.cap() * unit], unit.max(2), false);
        by_rule += usize::from(found.verdict().is_sign());
        by_p += usize::from(run < runs / 4 && first_small_p(&logs));
    }
    (Share::of(by_rule, runs), Share::of(by_p, runs / 4))
}

/// False signs if each start has an effect of its own with this share of the pairs' standard deviation, four pairs
/// a start: pairs and starts as units.
fn false_signs_of_starts(boot_sd: f64, runs: u32) -> [Share; 2] {
    let mut draws = Draws::new(12);
    let mut hits = [0; 2];
    for _ in 0..runs {
        let mut logs = Vec::with_capacity(48);
        for _ in 0..12 {
            let boot = boot_sd * draws.normal();
            logs.extend((0..4).map(|_| boot + draws.normal()));
        }
        for (index, schedule) in [AnalysisSchedule::Pairs, AnalysisSchedule::Units]
            .into_iter()
            .enumerate()
        {
            let plan = plan(schedule, EquivalenceMargin::none());
            hits[index] += usize::from(decided(plan, &logs, 4, false).verdict().is_sign());
        }
    }
    hits.map(|it| Share::of(it, runs))
}

fn error_rates(runs: u32) {
    println!(
        "False *faster* or *slower* of a comparison without a difference, up to 48 pairs or 12 units.\n"
    );
    row(&["noise", "unit", "the rule", "first p < 0.05"]);
    row(&["---"; 4]);
    let chance = 2.0 * (0.05 * 0.95 / f64::from(runs)).sqrt();
    for (name, noise, unit, limit) in [
        ("normal", Noise::Normal, 1, 0.055),
        ("heavy tails (t3)", Noise::HeavyTails, 1, 0.055),
        ("one outlier in 20", Noise::Outliers, 1, 0.055),
        ("linear drift", Noise::Drift, 1, 0.055),
        ("random walk", Noise::RandomWalk, 1, 0.055),
        (
            "neighbors correlated −0.2",
            Noise::Correlated(-0.2),
            1,
            0.055,
        ),
        ("neighbors correlated +0.1", Noise::Correlated(0.1), 1, 1.0),
        ("neighbors correlated +0.1", Noise::Correlated(0.1), 4, 0.07),
        ("neighbors correlated +0.2", Noise::Correlated(0.2), 1, 1.0),
        ("neighbors correlated +0.2", Noise::Correlated(0.2), 4, 0.09),
        ("normal", Noise::Normal, 4, 0.055),
        ("stalls of one variant alone", Noise::OneSided, 1, 1.0),
        ("stalls of one variant alone", Noise::OneSided, 4, 0.1),
    ] {
        let (by_rule, by_p) = false_signs(noise, unit, runs);
        // The wrong rule has no units.
        let (unit, by_p_shown) = if unit > 1 {
            ("4 pairs", String::new())
        } else {
            ("pair", by_p.to_string())
        };
        row(&[name, unit, &by_rule.to_string(), &by_p_shown]);
        assert!(by_rule.0 <= limit + chance, "{noise:?} {by_rule}");
        assert!(
            noise == Noise::Correlated(-0.2) || by_p.0 > 0.15,
            "the wrong rule must fail"
        );
    }
    println!("\nServer starts with an effect of their own, four pairs each.\n");
    row(&["SD of starts", "pairs as units", "starts as units"]);
    row(&["---"; 3]);
    for boot_sd in [0.0, 0.25, 0.5, 1.0] {
        let [by_pairs, by_starts] = false_signs_of_starts(boot_sd, runs);
        row(&[
            &boot_sd.to_string(),
            &by_pairs.to_string(),
            &by_starts.to_string(),
        ]);
        assert!(by_starts.0 <= 0.055 + chance, "{boot_sd}");
        assert!(
            boot_sd < 0.5 || by_pairs.0 > 0.1,
            "pairs as units must fail"
        );
    }
}

/// A rule that decides one comparison from its 48 pairs: the verdict, and after how many pairs.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    Sequential {
        schedule: AnalysisSchedule,
        futility: bool,
    },
    /// 6, 12 and 24 pairs at 0.4%, 1.2% and 3.8%.
    Three,
    Fixed(usize),
}

/// An ordinary verdict of the first `count` pairs.
fn ordinary(logs: &[f64], count: usize, level: f64) -> FigureVerdict {
    let mean = mean_difference(&logs[..count], level).expect("there are pairs");
    let interval = mean.interval.expect("there are several");
    let interval = Interval {
        low: interval.low.exp(),
        high: interval.high.exp(),
        level,
    };
    FigureVerdict::of(
        &interval,
        Direction::HigherIsBetter,
        EquivalenceMargin::default(),
    )
}

/// Whether the verdict is right (faster, or equivalent without an effect), the pairs, and whether the interval at
/// the end covers the truth.
fn run(rule: Rule, logs: &[f64], truth: f64) -> (bool, usize, bool) {
    let is_right = |verdict: FigureVerdict| match verdict {
        FigureVerdict::Faster => truth > 0.0,
        FigureVerdict::Equivalent => truth.abs() < 0.02f64.ln_1p() - 1e-9,
        _ => false,
    };
    match rule {
        Rule::Sequential { schedule, futility } => {
            let plan = plan(schedule, EquivalenceMargin::default());
            let size = schedule.step();
            let found = decided(plan, &logs[..schedule.cap()], size, futility);
            let is_right = match found.verdict() {
                SequentialVerdict::Faster { .. } => truth > 0.0,
                SequentialVerdict::Equivalent => is_right(FigureVerdict::Equivalent),
                _ => false,
            };
            let covers = found.interval().is_some_and(|it| it.contains(truth.exp()));
            (is_right, found.units(), covers)
        }
        Rule::Three => {
            for (count, alpha) in [(6, 0.004), (12, 0.012), (24, 0.038)] {
                let verdict = ordinary(logs, count, 1.0 - alpha);
                if verdict.is_conclusive() || count == 24 {
                    return (is_right(verdict), count, true);
                }
            }
            unreachable!("24 is the last")
        }
        Rule::Fixed(count) => {
            // A true difference of 2% cannot be equivalent, so a right verdict is its sign here, too.
            (is_right(ordinary(logs, count, 0.95)), count, true)
        }
    }
}

impl Rule {
    fn of_pairs(futility: bool) -> Self {
        Self::Sequential {
            schedule: AnalysisSchedule::Pairs,
            futility,
        }
    }

    fn of_units(futility: bool) -> Self {
        Self::Sequential {
            schedule: AnalysisSchedule::Units,
            futility,
        }
    }
}

struct Race {
    right: Share,
    mean: f64,
    median: usize,
    covered: Share,
}

fn race(rule: Rule, noise: Noise, truth: f64, sd: f64, runs: u32) -> Race {
    let mut draws = Draws::new(5);
    let (mut right, mut covered, mut used) = (0, 0, Vec::new());
    for number in 0..runs {
        let logs = pairs(&mut draws, noise, 48, u64::from(number));
        let logs: Vec<f64> = logs.iter().map(|it| truth + sd * it).collect();
        let (is_right, pairs, covers) = run(rule, &logs, truth);
        right += usize::from(is_right);
        covered += usize::from(covers);
        used.push(pairs);
    }
    used.sort_unstable();
    Race {
        right: Share::of(right, runs),
        mean: used.iter().sum::<usize>() as f64 / f64::from(runs),
        median: used[used.len() / 2],
        covered: Share::of(covered, runs),
    }
}

/// True effect in percent, and standard deviation of the pairs in percent.
const CASES: [(f64, f64); 13] = [
    (2.0, 1.0),
    (2.0, 3.0),
    (2.0, 8.0),
    (5.0, 1.0),
    (5.0, 3.0),
    (5.0, 8.0),
    (20.0, 3.0),
    (20.0, 8.0),
    (0.0, 1.0),
    (0.0, 3.0),
    (0.0, 8.0),
    (1.0, 1.0),
    (1.0, 3.0),
];

fn time_to_verdict(runs: u32) {
    println!(
        "\nRight verdicts (*faster*, without a difference *equivalent*, at 1% either), and the mean (median) number of pairs.\n"
    );
    row(&[
        "truth",
        "pair SD",
        "after every block",
        "pairs",
        "coverage",
        "with futility",
        "pairs",
        "6, 12, 24",
        "pairs",
        "24 fixed",
        "48 fixed",
    ]);
    row(&["---"; 11]);
    let chance = 2.0 * (0.06 * 0.94 / f64::from(runs)).sqrt();
    for (truth, sd) in CASES {
        let of = |rule: Rule, runs: u32| {
            race(
                rule,
                Noise::Normal,
                (truth / 100.0f64).ln_1p(),
                sd / 100.0,
                runs,
            )
        };
        let rule = of(Rule::of_pairs(false), runs);
        let stopped = of(Rule::of_pairs(true), runs / 10);
        let three = of(Rule::Three, runs);
        let pairs = |race: &Race| format!("{:.1} ({})", race.mean, race.median);
        row(&[
            &format!("{truth}%"),
            &format!("{sd}%"),
            &rule.right.to_string(),
            &pairs(&rule),
            &rule.covered.to_string(),
            &stopped.right.to_string(),
            &pairs(&stopped),
            &three.right.to_string(),
            &pairs(&three),
            &of(Rule::Fixed(24), runs).right.to_string(),
            &of(Rule::Fixed(48), runs).right.to_string(),
        ]);
        assert!(rule.covered.0 >= 0.94 - chance, "{truth} {sd}");
    }
    println!("\nThe rule under other noise.\n");
    row(&["noise", "truth", "pair SD", "right", "pairs", "coverage"]);
    row(&["---"; 6]);
    for (name, noise) in [
        ("heavy tails (t3)", Noise::HeavyTails),
        ("one outlier in 20", Noise::Outliers),
    ] {
        for (truth, sd) in [(2.0, 3.0), (5.0, 8.0), (0.0, 3.0)] {
            let of = Rule::of_pairs(false);
            let found = race(of, noise, (truth / 100.0f64).ln_1p(), sd / 100.0, runs);
            row(&[
                name,
                &format!("{truth}%"),
                &format!("{sd}%"),
                &found.right.to_string(),
                &format!("{:.1} ({})", found.mean, found.median),
                &found.covered.to_string(),
            ]);
            assert!(found.covered.0 >= 0.94 - chance, "{noise:?} {truth} {sd}");
        }
    }
}

/// Comparisons by units, for example server starts.
fn units_to_verdict(runs: u32) {
    println!("\nBy units, up to 12 (the SD is that of the units' means).\n");
    row(&[
        "truth",
        "unit SD",
        "right",
        "units",
        "coverage",
        "with futility",
        "units",
    ]);
    row(&["---"; 7]);
    let chance = 2.0 * (0.06 * 0.94 / f64::from(runs)).sqrt();
    for (truth, sd) in [
        (2.0, 1.0),
        (5.0, 3.0),
        (5.0, 8.0),
        (20.0, 8.0),
        (0.0, 1.0),
        (0.0, 3.0),
        (0.0, 8.0),
    ] {
        let of = |rule: Rule, runs: u32| {
            let truth = (truth / 100.0f64).ln_1p();
            race(rule, Noise::Normal, truth, sd / 100.0, runs)
        };
        let rule = of(Rule::of_units(false), runs);
        let stopped = of(Rule::of_units(true), runs / 10);
        row(&[
            &format!("{truth}%"),
            &format!("{sd}%"),
            &rule.right.to_string(),
            &format!("{:.1} ({})", rule.mean, rule.median),
            &rule.covered.to_string(),
            &stopped.right.to_string(),
            &format!("{:.1} ({})", stopped.mean, stopped.median),
        ]);
        assert!(rule.covered.0 >= 0.94 - chance, "{truth} {sd}");
    }
}

pub fn tables(runs: u32) {
    println!("## Sequential verdicts\n");
    error_rates(runs);
    time_to_verdict(runs);
    units_to_verdict(runs);
    studies::tables(runs / 5);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_effect_is_decided_in_a_fraction_of_fixed_pairs() {
        let rule = Rule::of_pairs(false);
        for (truth, sd, most) in [(0.2f64, 0.08, 8), (0.05, 0.03, 10)] {
            let found = race(rule, Noise::Normal, truth.ln_1p(), sd, 200);
            assert!(
                found.median <= most && found.right.0 > 0.97,
                "{} {}",
                found.median,
                found.right
            );
        }
        let fixed = race(Rule::Fixed(24), Noise::Normal, 0.02f64.ln_1p(), 0.03, 400);
        let found = race(rule, Noise::Normal, 0.02f64.ln_1p(), 0.03, 400);
        assert!(
            found.right.0 > fixed.right.0 && found.mean < 24.0,
            "{}",
            found.mean
        );
    }
}
