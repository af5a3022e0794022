//! What a running comparison can still achieve: stopping for futility.
//!
//! A comparison is futile if the chance of any verdict by its last analysis is below 10%. The chance is the
//! predictive power (Spiegelhalter, Freedman and Blackburn, "Monitoring clinical trials: conditional or predictive
//! power?", 1986): each simulated continuation draws a mean and a standard deviation that the units so far allow.
//! With the estimates themselves (conditional power), or judged at every analysis, an unlucky stretch would end
//! too many comparisons that have something to find.
//!
//! The rule is not binding: stopping adds no verdicts, so it changes no guarantee, and the interval stays valid.
//!
//! Invariant: the same units give the same chance, because the continuations are simulated from a fixed seed.

use super::boundary::{AnalysisSchedule, CriticalValues};
use super::comparison::SequentialComparison;
use super::path::{LogRange, Moments, SimulatedPath};
use crate::power::PAIRS_MAX;
use crate::random::{SplitMix64, stream_seed};

/// A comparison is futile if its chance of a verdict is below this.
pub const FUTILE_BELOW: f64 = 0.1;

/// Simulated continuations: the standard error of a chance of 10% is 1.5 points.
const CONTINUATIONS: usize = 400;
/// Seed of the continuations.
const SEED: u64 = 1982;

/// What to expect of the rest of a comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outlook {
    /// The chance of any verdict by the last analysis; 0 after it.
    pub chance: f64,
    /// About how many pairs it would take in all, with the mean and the standard deviation so far; possibly more
    /// than the plan has. `None` if more than 100,000.
    pub pairs_needed: Option<usize>,
    /// Whether futility is judged after this number of units. At every analysis, an unlucky stretch would end too
    /// many comparisons.
    is_judged: bool,
}

impl Outlook {
    /// Of a comparison without a verdict; `None` if there is one, and before there is enough to judge by: ten
    /// pairs, or six units.
    pub fn of(comparison: &SequentialComparison) -> Option<Self> {
        let plan = comparison.plan();
        let margin_log = plan.margin.half_width_log();
        let is_decided =
            |[range]: [LogRange; 1]| range.side_of(0.0).is_some() || range.is_within(margin_log);
        if is_decided([comparison.range()]) {
            return None;
        }
        let critical = comparison.critical();
        let goals = |mean: f64| [(mean.abs(), critical), (margin_log - mean.abs(), critical)];
        Self::of_question(comparison, [critical], is_decided, goals)
    }

    /// Of a comparison without an answer to a question. The answer is given by its intervals with these critical
    /// values. `goals` are distances from the mean; the half-width of an interval must fall below any of them.
    pub(super) fn of_question<'a, const LEVELS: usize, const GOALS: usize>(
        comparison: &SequentialComparison,
        levels: [&CriticalValues; LEVELS],
        is_answered: impl Fn([LogRange; LEVELS]) -> bool,
        goals: impl Fn(f64) -> [(f64, &'a CriticalValues); GOALS],
    ) -> Option<Self> {
        let schedule = comparison.plan().schedule;
        let judged_after: &[usize] = match schedule {
            AnalysisSchedule::Pairs => &[10, 14, 22, 32, 48],
            AnalysisSchedule::Units => &[6, 8, 10, 12],
        };
        let units = comparison.units();
        let ranges = levels.map(|critical| comparison.range_at(critical));
        if units < judged_after[0] || ranges.iter().any(|range| range.is_empty()) {
            return None;
        }
        let moments = Moments::of(comparison.unit_logs());
        let path = SimulatedPath { moments, ranges };
        let mut stream = SplitMix64::new(stream_seed(SEED, &[units as u64]));
        let answered = (0..CONTINUATIONS).filter(|_| {
            let drift = possible_drift(&moments, &mut stream);
            let answer = |ranges| is_answered(ranges).then_some(());
            let found = path.first_answer(&mut stream, levels, drift, answer);
            found.is_some()
        });
        let chance = answered.count() as f64 / CONTINUATIONS as f64;
        let needed = units_needed(schedule, units, moments.sd(), &goals(moments.mean()));
        let pairs_per_unit = comparison.pairs().len() as f64 / units as f64;
        Some(Self {
            chance,
            pairs_needed: needed.map(|it| (it as f64 * pairs_per_unit).round() as usize),
            is_judged: judged_after.contains(&units),
        })
    }

    /// Whether stopping is advised: after 10, 14, 22 and 32 pairs, or 6, 8 and 10 units, and at the last analysis.
    pub fn is_futile(&self) -> bool {
        self.is_judged && self.chance < FUTILE_BELOW
    }
}

/// A mean and a standard deviation that the units so far allow: from the posterior distribution with the usual
/// prior, whose intervals are the t-interval and that of chi-square.
fn possible_drift(moments: &Moments, stream: &mut SplitMix64) -> [f64; 2] {
    let df = moments.count() - 1;
    let chi_square: f64 = (0..df).map(|_| stream.next_normal().powi(2)).sum();
    let scale = (df as f64 / chi_square).sqrt();
    let mean = moments.mean() + scale * moments.std_err() * stream.next_normal();
    [mean, scale * moments.sd()]
}

/// About how many units there must be in all, more than `units`, for an interval with a half-width below one of
/// the distances in `goals`. Beyond the last analysis, the critical value of that analysis is used.
pub(super) fn units_needed(
    schedule: AnalysisSchedule,
    units: usize,
    unit_sd_log: f64,
    goals: &[(f64, &CriticalValues)],
) -> Option<usize> {
    let planned = (0..schedule.analyses())
        .map(|analysis| (analysis, schedule.units_at(analysis)))
        .filter(|(_, at)| *at > units);
    for (analysis, at) in planned {
        let std_err = unit_sd_log / (at as f64).sqrt();
        if goals
            .iter()
            .any(|(distance, critical)| critical.values()[analysis] * std_err < *distance)
        {
            return Some(at);
        }
    }
    let beyond = goals.iter().filter_map(|(distance, critical)| {
        let last = critical.values().last()?;
        let needed = (last * unit_sd_log / distance).powi(2);
        (*distance > 0.0 && needed <= PAIRS_MAX as f64).then_some(needed)
    });
    let least = beyond.fold(f64::INFINITY, f64::min);
    let steps = (least / schedule.step() as f64).ceil();
    steps
        .is_finite()
        .then(|| (steps as usize * schedule.step()).max(units + schedule.step()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::Pair;
    use crate::sequential::{SequentialPlan, SequentialVerdict};
    use crate::verdict::Direction;

    fn draw(stream: &mut SplitMix64, mean: f64, sd: f64) -> [Pair; 2] {
        [0, 1].map(|_| Pair {
            baseline: 1.0,
            variant: (mean + sd * stream.next_normal()).exp(),
        })
    }

    fn comparison(schedule: AnalysisSchedule) -> SequentialComparison {
        SequentialComparison::new(SequentialPlan::new(schedule, Direction::LowerIsBetter)).unwrap()
    }

    /// Share of runs with a verdict, and the mean number of pairs, with and without the rule.
    fn with_and_without(mean: f64, sd: f64, runs: u32) -> [(f64, f64); 2] {
        let mut stream = SplitMix64::new(9);
        let mut sums = [(0.0, 0.0); 2];
        for _ in 0..runs {
            let mut running = comparison(AnalysisSchedule::Pairs);
            let mut stopped = None;
            while !running.is_finished() {
                running.push(&draw(&mut stream, mean, sd)).unwrap();
                if stopped.is_none() && Outlook::of(&running).is_some_and(|it| it.is_futile()) {
                    stopped = Some(running.units());
                }
            }
            let is_decided = running.verdict() != SequentialVerdict::Inconclusive;
            sums[0].0 += f64::from(u8::from(is_decided && stopped.is_none()));
            sums[0].1 += stopped.unwrap_or(running.units()) as f64;
            sums[1].0 += f64::from(u8::from(is_decided));
            sums[1].1 += running.units() as f64;
        }
        sums.map(|(decided, pairs)| (decided / f64::from(runs), pairs / f64::from(runs)))
    }

    #[test]
    fn a_hopeless_comparison_stops_early_and_a_good_one_does_not() {
        let [(_, pairs), (_, without)] = with_and_without(0.0, 0.08, 60);
        assert!(
            without > 44.0 && pairs < 36.0,
            "{pairs} instead of {without}"
        );
        let [(found, _), (without, _)] = with_and_without(0.02, 0.03, 60);
        assert!(
            without > 0.9 && without - found < 0.05,
            "{found} instead of {without}"
        );
    }

    #[test]
    fn the_chance_is_repeatable_and_none_before_there_is_enough() {
        let mut stream = SplitMix64::new(2);
        let mut running = comparison(AnalysisSchedule::Pairs);
        for _ in 0..4 {
            running.push(&draw(&mut stream, 0.0, 0.08)).unwrap();
            assert_eq!(Outlook::of(&running), None);
        }
        running.push(&draw(&mut stream, 0.0, 0.08)).unwrap();
        assert!(Outlook::of(&running).is_some());
        assert_eq!(Outlook::of(&running), Outlook::of(&running.clone()));
        while !running.is_at_cap() {
            running.push(&draw(&mut stream, 0.0, 0.08)).unwrap();
        }
        let outlook = Outlook::of(&running).unwrap();
        assert!(outlook.chance <= 0.0 && outlook.is_futile());
        assert!(
            outlook.pairs_needed.is_some_and(|it| it > 48),
            "{outlook:?}"
        );
        let mut decided = comparison(AnalysisSchedule::Units);
        for _ in 0..8 {
            decided.push(&draw(&mut stream, 0.5, 0.01)).unwrap();
        }
        assert_eq!(Outlook::of(&decided), None);
    }

    #[test]
    fn pairs_needed_are_those_at_which_the_interval_is_narrow_enough() {
        let schedule = AnalysisSchedule::Pairs;
        let critical = schedule.critical_values(0.05).unwrap();
        let needed = |units: usize, sd: f64, distance: f64| {
            units_needed(schedule, units, sd, &[(distance, &critical)])
        };
        // 4.476 · 3% / √8 = 4.75%, and 5.540 · 3% / √6 = 6.79%.
        assert_eq!(needed(0, 0.03, 0.048), Some(8));
        assert_eq!(needed(8, 0.03, 0.048), Some(10));
        // 2.538 · 8% / 2% = 10.15, squared 103.06.
        assert_eq!(needed(10, 0.08, 0.02), Some(104));
        assert_eq!(needed(10, 0.08, 0.0), None);
        assert_eq!(needed(10, 0.08, -0.01), None);
        assert_eq!(needed(10, 0.08, 1e-6), None);
    }
}
