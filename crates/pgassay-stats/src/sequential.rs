//! When to stop: planned interim analyses, and Stein's two-stage procedure.
//!
//! "Stop at the first p < 0.05" finds a difference between equal builds in 25% of runs. Interim analyses
//! planned in advance, each with its own small α, keep the overall error rate near 5% and still stop
//! early if the effect is large. The standard plan has interim analyses after 6, 12 and 24 pairs with
//! α = 0.004, 0.012 and 0.038 (a group-sequential design similar to O'Brien and Fleming, 1979). By
//! simulation with a pair SD of 2%: 4.7% false positives; an effect of 1% is detected in 62% of runs,
//! after 22 pairs on average, one of 2% in 99.6% after 15 pairs, one of 5% after 7.
//!
//! Invariants: the interval of an interim analysis has the level 1 − α of that analysis, so that all of
//! them together contain the truth in about 95% of runs (repeated confidence intervals; Jennison and
//! Turnbull, 1989). An interim analysis uses exactly its first n pairs, so the result does not depend on
//! how often it is computed.

use crate::distribution::t_quantile;
use crate::error::{StatsError, check_positive, check_probability};
use crate::pairs::{Interval, Pair, PairComparison, compare, log_ratios, mean_and_sd};
use crate::verdict::{Direction, EquivalenceMargin, FigureVerdict};

/// One planned interim analysis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InterimAnalysis {
    /// Number of pairs after which it takes place.
    pub pairs: usize,
    /// The two-sided α spent in this analysis.
    pub alpha: f64,
}

/// The interim analyses of a study, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct SequentialPlan {
    samples: Vec<InterimAnalysis>,
}

/// What to do next, given the pairs so far.
#[derive(Debug, Clone, PartialEq)]
pub enum NextStep {
    /// Continue to the next interim analysis.
    Continue {
        /// Total number of pairs for the next interim analysis.
        pairs_wanted: usize,
        /// The comparison of all pairs so far, at the level of the next interim analysis; `None` without
        /// pairs. For progress output and interrupted runs; it does not control error rates.
        so_far: Option<PairComparison>,
    },
    /// Stop: the result is final.
    Stop {
        /// The verdict of this interim analysis.
        verdict: FigureVerdict,
        /// The comparison at this interim analysis's level.
        comparison: PairComparison,
        /// Index of the interim analysis that ended the comparison.
        look: usize,
    },
}

impl SequentialPlan {
    /// The standard plan: 6, 12 and 24 pairs with α = 0.004, 0.012 and 0.038.
    pub fn standard() -> Self {
        let samples = [(6, 0.004), (12, 0.012), (24, 0.038)];
        Self {
            samples: samples
                .map(|(pairs, alpha)| InterimAnalysis { pairs, alpha })
                .to_vec(),
        }
    }

    /// A single analysis after `pairs` pairs.
    pub fn fixed(pairs: usize, alpha: f64) -> Result<Self, StatsError> {
        Self::new(vec![InterimAnalysis { pairs, alpha }])
    }

    /// A custom plan; the caller is responsible for its error rates.
    pub fn new(samples: Vec<InterimAnalysis>) -> Result<Self, StatsError> {
        let mut before = 1;
        for (index, look) in samples.iter().enumerate() {
            check_probability("the alpha of an interim analysis", look.alpha)?;
            if look.pairs <= before {
                return Err(StatsError::InvalidInterimAnalysis {
                    index,
                    pairs: look.pairs,
                });
            }
            before = look.pairs;
        }
        if samples.is_empty() {
            return Err(StatsError::InvalidInterimAnalysis { index: 0, pairs: 0 });
        }
        Ok(Self { samples })
    }

    /// The interim analyses, in order.
    pub fn samples(&self) -> &[InterimAnalysis] {
        &self.samples
    }

    /// Maximum number of pairs of this plan.
    pub fn pairs_max(&self) -> usize {
        self.samples.last().map_or(0, |look| look.pairs)
    }

    /// Judges the pairs so far. Ignores pairs beyond the last interim analysis.
    pub fn judge(
        &self,
        pairs: &[Pair],
        direction: Direction,
        band: EquivalenceMargin,
    ) -> Result<NextStep, StatsError> {
        let last = self.samples.len() - 1;
        for (index, look) in self.samples.iter().enumerate() {
            let level = 1.0 - look.alpha;
            let Some(seen) = pairs.get(..look.pairs) else {
                let so_far = if pairs.is_empty() {
                    None
                } else {
                    Some(compare(pairs, level)?)
                };
                return Ok(NextStep::Continue {
                    pairs_wanted: look.pairs,
                    so_far,
                });
            };
            let comparison = compare(seen, level)?;
            let verdict = comparison
                .estimate()
                .map_or(FigureVerdict::Inconclusive, |found| {
                    FigureVerdict::of(&found.interval, direction, band)
                });
            if verdict.is_conclusive() || index == last {
                return Ok(NextStep::Stop {
                    verdict,
                    comparison,
                    look: index,
                });
            }
        }
        unreachable!("a plan has at least one interim analysis, and the last one returns")
    }
}

/// Stein's first stage: the total number of pairs for an interval with the desired half-width.
///
/// Stein (1945), "A two-sample test for a linear hypothesis whose power is independent of the
/// variance": n = max(pilot, ⌈(t·s/d)²⌉) with s and its degrees of freedom from the pilot.
/// `half_width_log` is on the log scale (0.005 is about ±0.5%).
pub fn stein_pairs(pilot: &[Pair], half_width_log: f64, level: f64) -> Result<usize, StatsError> {
    check_positive("the half-width", half_width_log)?;
    let (quantile, pilot_sd) = pilot_spread(pilot, level)?;
    let needed = (quantile * pilot_sd / half_width_log).powi(2).ceil() as usize;
    Ok(needed.max(pilot.len()))
}

/// Stein's second stage: the interval of B/A from all pairs, of which the first `pilot_pairs` are the
/// pilot.
///
/// Uses only the pilot's standard deviation, because it determined the number of pairs; including the
/// later pairs' would lose the nominal coverage.
pub fn stein_interval(
    pairs: &[Pair],
    pilot_pairs: usize,
    level: f64,
) -> Result<Interval, StatsError> {
    let pilot = pairs
        .get(..pilot_pairs)
        .ok_or(StatsError::InvalidInterimAnalysis {
            index: 0,
            pairs: pilot_pairs,
        })?;
    let (quantile, pilot_sd) = pilot_spread(pilot, level)?;
    let (mean, _) = mean_and_sd(&log_ratios(pairs)?);
    let half_width = quantile * pilot_sd / (pairs.len() as f64).sqrt();
    Ok(Interval {
        low: (mean - half_width).exp(),
        high: (mean + half_width).exp(),
        level,
    })
}

fn pilot_spread(pilot: &[Pair], level: f64) -> Result<(f64, f64), StatsError> {
    check_probability("the confidence level", level)?;
    if pilot.len() < 2 {
        return Err(StatsError::InvalidInterimAnalysis {
            index: 0,
            pairs: pilot.len(),
        });
    }
    let (_, pilot_sd) = mean_and_sd(&log_ratios(pilot)?);
    Ok((
        t_quantile(f64::midpoint(1.0, level), (pilot.len() - 1) as f64),
        pilot_sd,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;
    use crate::sampling::normal;

    fn draw(stream: &mut SplitMix64, count: usize, effect: f64, sd: f64) -> Vec<Pair> {
        (0..count)
            .map(|_| Pair {
                baseline: 1.0,
                variant: (effect + sd * normal(stream)).exp(),
            })
            .collect()
    }

    /// Share of runs that end with a verdict in `wanted`, and mean number of pairs.
    fn run_plan(
        effect: f64,
        band: EquivalenceMargin,
        wanted: &[FigureVerdict],
        simulations: u32,
    ) -> (f64, f64) {
        let (plan, mut stream) = (SequentialPlan::standard(), SplitMix64::new(612));
        let (mut hits, mut used) = (0, 0);
        for _ in 0..simulations {
            let pairs = draw(&mut stream, plan.pairs_max(), effect, 0.02);
            let step = plan.judge(&pairs, Direction::HigherIsBetter, band).unwrap();
            let NextStep::Stop { verdict, look, .. } = step else {
                unreachable!()
            };
            hits += u32::from(wanted.contains(&verdict));
            used += plan.samples()[look].pairs;
        }
        (
            f64::from(hits) / f64::from(simulations),
            used as f64 / f64::from(simulations),
        )
    }

    #[test]
    fn equal_builds_are_called_different_in_five_percent() {
        let (share, _) = run_plan(
            0.0,
            EquivalenceMargin::none(),
            &[FigureVerdict::Faster, FigureVerdict::Slower],
            10_000,
        );
        assert!((0.041..=0.053).contains(&share), "{share}");
    }

    #[test]
    fn power_and_length_are_those_of_the_design() {
        let table = [(0.01, 0.62, 22.0), (0.02, 0.996, 15.0), (0.05, 1.0, 7.0)];
        for (effect, power, pairs) in table {
            let (share, used) = run_plan(
                effect,
                EquivalenceMargin::none(),
                &[FigureVerdict::Faster],
                3_000,
            );
            assert!((share - power).abs() < 0.025, "{effect}: power {share}");
            assert!((used - pairs).abs() < 0.9, "{effect}: {used} pairs");
        }
    }

    #[test]
    fn the_margin_saves_pairs_and_is_rarely_wrong() {
        let (same, used) = run_plan(
            0.0,
            EquivalenceMargin::default(),
            &[FigureVerdict::Equivalent],
            2_000,
        );
        assert!(same > 0.9 && used < 22.5, "{same} after {used}");
        // At the edge of the margin, the probability of a false equivalence is at most half the α spent.
        let (wrong, _) = run_plan(
            0.02f64.ln_1p(),
            EquivalenceMargin::default(),
            &[FigureVerdict::Equivalent],
            4_000,
        );
        assert!(wrong < 0.03, "{wrong}");
    }

    #[test]
    fn stopping_at_the_first_small_p_value_would_be_wrong_in_a_quarter() {
        let critical: Vec<f64> = (5..=40)
            .map(|pairs| t_quantile(0.975, f64::from(pairs - 1)))
            .collect();
        let mut stream = SplitMix64::new(3);
        let simulations = 4_000;
        let rejected = (0..simulations)
            .filter(|_| {
                let logs: Vec<f64> = (0..40).map(|_| normal(&mut stream)).collect();
                critical.iter().enumerate().any(|(index, critical)| {
                    let (mean, sd) = mean_and_sd(&logs[..index + 5]);
                    mean.abs() > critical * sd / ((index + 5) as f64).sqrt()
                })
            })
            .count();
        let share = rejected as f64 / f64::from(simulations);
        assert!((0.22..=0.28).contains(&share), "{share}");
    }

    #[test]
    fn the_result_does_not_depend_on_how_often_it_is_computed() {
        let (plan, mut stream) = (SequentialPlan::standard(), SplitMix64::new(8));
        let pairs = draw(&mut stream, 24, 0.03, 0.02);
        let judge = |count: usize| {
            plan.judge(
                &pairs[..count],
                Direction::LowerIsBetter,
                EquivalenceMargin::default(),
            )
            .unwrap()
        };
        assert!(matches!(
            judge(0),
            NextStep::Continue {
                pairs_wanted: 6,
                so_far: None
            }
        ));
        assert!(matches!(
            judge(1),
            NextStep::Continue {
                pairs_wanted: 6,
                so_far: Some(PairComparison::Descriptive { .. })
            }
        ));
        assert!(matches!(
            judge(5),
            NextStep::Continue {
                pairs_wanted: 6,
                so_far: Some(_)
            }
        ));
        let stopped = judge(24);
        let NextStep::Stop { verdict, look, .. } = &stopped else {
            panic!("{stopped:?}")
        };
        assert_eq!(*verdict, FigureVerdict::Slower);
        assert_eq!(judge(plan.samples()[*look].pairs), stopped);
    }

    #[test]
    fn invalid_plans_are_rejected() {
        assert!(SequentialPlan::new(vec![]).is_err() && SequentialPlan::fixed(1, 0.05).is_err());
        assert!(SequentialPlan::fixed(6, 0.0).is_err());
        let shrinking = vec![
            InterimAnalysis {
                pairs: 6,
                alpha: 0.01,
            },
            InterimAnalysis {
                pairs: 6,
                alpha: 0.04,
            },
        ];
        assert_eq!(
            SequentialPlan::new(shrinking),
            Err(StatsError::InvalidInterimAnalysis { index: 1, pairs: 6 })
        );
    }

    #[test]
    fn steins_stages_keep_their_width_and_coverage() {
        let (mut stream, truth, wanted) = (SplitMix64::new(1945), 0.01, 0.006);
        let (simulations, mut covered) = (6_000, 0);
        for _ in 0..simulations {
            let mut pairs = draw(&mut stream, 8, truth, 0.015);
            let all = stein_pairs(&pairs, wanted, 0.95).unwrap();
            let rest = draw(&mut stream, all - 8, truth, 0.015);
            pairs.extend(rest);
            let interval = stein_interval(&pairs, 8, 0.95).unwrap();
            assert!((interval.high / interval.low).ln() / 2.0 <= wanted + 1e-12);
            covered += u32::from(interval.contains(truth.exp()));
        }
        let share = f64::from(covered) / f64::from(simulations);
        assert!((0.942..=0.958).contains(&share), "{share}");
    }
}
