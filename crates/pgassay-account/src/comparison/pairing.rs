//! Forms pairs from the figures of trials, and computes the verdicts of all comparisons of a study.
//!
//! There is one pair per block and comparison. Verdicts on a fixed number of pairs come from
//! `pgassay_stats::judge`: the probability of any false `faster` or `slower` in the whole study is at most
//! 5%, and so is that of any false `equivalent`. Sequential ones are in `sequential_verdicts.rs`.

use std::collections::BTreeSet;

use pgassay_model::plan::Plan;
use pgassay_stats as stats;
use stats::power::DetectableFactors;

use super::figures::{BlockSummary, METRICS, SERVER_CPU, TPS};
use super::sequential::ALPHA;
use super::{Basis, Comparison, Inconclusive, Ratio, UnitOfAnalysis, Verdict};

/// Power at which the minimum detectable effect is defined.
const POWER: f64 = 0.8;

/// A comparison of a variant with the baseline, before its verdict.
pub(super) struct PendingComparison<'a> {
    pub(super) condition: usize,
    pub(super) variant: usize,
    pub(super) sides: [&'a [BlockSummary]; 2],
    /// The blocks whose pairs it uses, in order.
    pub(super) blocks: Vec<u32>,
}

/// The pairs of one metric, their server starts and resolutions.
pub(super) struct MetricPairs {
    pub(super) figures: Vec<stats::Pair>,
    boots: Vec<u32>,
    pub(super) steps: [f64; 2],
}

/// Compares every variant with its baseline under every condition, as one family. `by_condition` has
/// the figures of each variant.
pub(super) fn compare_all(plan: &Plan, by_condition: &[Vec<Vec<BlockSummary>>]) -> Vec<Comparison> {
    let mut drafts = Vec::new();
    for (condition, variants) in by_condition.iter().enumerate() {
        for (variant, figures) in variants.iter().enumerate().skip(1) {
            let sides = [&variants[plan.baseline_of(variant)], figures];
            let draft = PendingComparison {
                condition,
                variant,
                sides: sides.map(Vec::as_slice),
                blocks: blocks_of_pairs(sides),
            };
            let rate = draft.pairs(TPS).compare(1.0 - ALPHA);
            drafts.extend(rate.map(|rate| (draft, rate)));
        }
    }
    let rates: Vec<&stats::PairComparison> = drafts.iter().map(|(_, rate)| rate).collect();
    let direction = stats::Direction::HigherIsBetter;
    let judged = stats::judge(
        &rates,
        direction,
        stats::EquivalenceMargin::default(),
        ALPHA,
    );
    let family = rates.iter().filter(|it| it.estimate().is_some()).count() as u32;
    let both = drafts.iter().zip(judged);
    both.filter_map(|((draft, rate), judged)| draft.comparison(rate, judged, family))
        .collect()
}

/// The blocks in which all timed trials of both sides ended. If there is none, those that began, so that the
/// figures can be shown.
fn blocks_of_pairs(sides: [&Vec<BlockSummary>; 2]) -> Vec<u32> {
    let ended = |of_side: &[BlockSummary]| -> BTreeSet<u32> {
        let complete = of_side.iter().filter(|it| it.is_complete);
        complete.map(|it| it.block).collect()
    };
    let [before, after] = sides.map(|it| ended(it));
    let complete: Vec<u32> = before.intersection(&after).copied().collect();
    if complete.is_empty() {
        return sides[0].iter().map(|it| it.block).collect();
    }
    complete
}

impl PendingComparison<'_> {
    /// Number of server starts of these blocks. A run that was continued has one more than its plan.
    pub(super) fn server_starts(&self, blocks: &BTreeSet<u32>) -> u32 {
        let figures = self.sides[0].iter();
        let used = figures.filter(|it| blocks.contains(&it.block));
        let starts: BTreeSet<u32> = used.map(|it| it.boot).collect();
        starts.len() as u32
    }

    pub(super) fn pairs(&self, metric: usize) -> MetricPairs {
        let mut found = MetricPairs {
            figures: Vec::new(),
            boots: Vec::new(),
            steps: self.sides.map(|figures| step(figures, metric)),
        };
        for &block in &self.blocks {
            let of_block = |side: usize| self.sides[side].iter().find(|it| it.block == block);
            let Some((before, after)) = of_block(0).zip(of_block(1)) else {
                continue;
            };
            if let (Some(baseline), Some(variant)) = (before.values[metric], after.values[metric]) {
                found.figures.push(stats::Pair { baseline, variant });
                // All trials of a block run on one server start.
                found.boots.push(before.boot);
            }
        }
        found
    }

    fn comparison(
        &self,
        rate: &stats::PairComparison,
        judged: stats::Judged,
        family: u32,
    ) -> Option<Comparison> {
        let estimate = rate.estimate();
        let factors = estimate
            .and_then(|it| DetectableFactors::new(it.units, judged.sign_alpha, POWER).ok())
            .flatten();
        let ratio = |metric: usize| ratio(&self.pairs(metric), judged.level, factors);
        let verdict = verdict(judged.verdict);
        let reason = judged.inconclusive.map(inconclusive);
        let found = self.judged(
            (verdict, reason),
            estimate.map(|it| basis(it, family)),
            ratio,
        )?;
        Some(Comparison {
            // `rate` is at this level.
            tps_uncorrected_95: estimate.and_then(|it| two_ends(&it.interval)),
            ..found
        })
    }

    /// The comparison with this verdict, given the ratio of each metric; `None` without one of throughput or
    /// latency.
    pub(super) fn judged(
        &self,
        (verdict, inconclusive_reason): (Verdict, Option<Inconclusive>),
        basis: Option<Basis>,
        ratio: impl Fn(usize) -> Option<Ratio>,
    ) -> Option<Comparison> {
        Some(Comparison {
            condition: self.condition,
            variant: self.variant,
            verdict,
            inconclusive_reason,
            basis,
            tps_uncorrected_95: None,
            tps_sequential_p_value: None,
            tps: ratio(TPS)?,
            latency_mean: ratio(1)?,
            latency_p50: ratio(2)?,
            latency_p95: ratio(3)?,
            latency_p99: ratio(4)?,
            server_cpu: ratio(SERVER_CPU),
            cost: None,
            counters: Vec::new(),
            ledger: None,
        })
    }
}

impl MetricPairs {
    /// `None` without pairs, or if figures have no ratio (a cost of 0).
    fn compare(&self, level: f64) -> Option<stats::PairComparison> {
        let background = stats::PairContext {
            boots: &self.boots,
            steps: self.steps,
        };
        stats::compare_in_context(&self.figures, background, level).ok()
    }
}

/// The coarsest resolution among a side's trials: a bound must hold for each of them.
fn step(figures: &[BlockSummary], metric: usize) -> f64 {
    debug_assert!(metric < METRICS);
    let steps = figures.iter().map(|figures| figures.steps[metric]);
    steps.fold(0.0, f64::max)
}

pub(super) fn ratio(
    pairs: &MetricPairs,
    level: f64,
    factors: Option<DetectableFactors>,
) -> Option<Ratio> {
    let by_pair: Vec<f64> = pairs
        .figures
        .iter()
        .map(|pair| pair.variant / pair.baseline)
        .collect();
    Some(match pairs.compare(level)? {
        stats::PairComparison::Descriptive { ratio } => Ratio {
            ratio,
            low: ratio,
            high: ratio,
            confidence_level: level,
            pair_sd: 0.0,
            minimum_detectable_effect: None,
            minimum_detectable_effect_range: None,
            widened: 0.0,
            ranks_disagree: false,
            by_pair,
        },
        stats::PairComparison::Estimated(estimate) => {
            let detectable = factors.map(|factors| factors.of(estimate.unit_sd_log));
            Ratio {
                ratio: estimate.ratio,
                low: estimate.interval.low,
                high: estimate.interval.high,
                confidence_level: level,
                pair_sd: estimate.pair_sd_log,
                minimum_detectable_effect: detectable
                    .map(|it| it.effect_log + estimate.widened_log),
                minimum_detectable_effect_range: detectable
                    .map(|it| [it.low_log, it.high_log].map(|log| log + estimate.widened_log)),
                widened: estimate.widened_log,
                ranks_disagree: estimate.rank.agreement == stats::RankAgreement::Disagrees,
                by_pair,
            }
        }
    })
}

/// The ends of an interval; `None` if it has not two.
pub(super) fn two_ends(interval: &stats::Interval) -> Option<[f64; 2]> {
    let ends = [interval.low, interval.high];
    ends.iter().all(|it| it.is_finite()).then_some(ends)
}

fn basis(estimate: &stats::Estimate, family: u32) -> Basis {
    Basis {
        unit: match estimate.unit {
            stats::UnitOfIndependence::Pair => UnitOfAnalysis::Pair,
            stats::UnitOfIndependence::ServerStart => UnitOfAnalysis::ServerStart,
        },
        units: estimate.units as u32,
        server_starts: estimate.boots as u32,
        comparisons: family,
        units_max: None,
        first_stage_units: None,
        units_needed: None,
    }
}

fn verdict(verdict: stats::FigureVerdict) -> Verdict {
    match verdict {
        stats::FigureVerdict::Faster => Verdict::Faster,
        stats::FigureVerdict::Slower => Verdict::Slower,
        stats::FigureVerdict::Equivalent => Verdict::Equivalent,
        stats::FigureVerdict::Inconclusive => Verdict::Inconclusive,
    }
}

fn inconclusive(reason: stats::InconclusiveReason) -> Inconclusive {
    match reason {
        stats::InconclusiveReason::OnePair => Inconclusive::OnePair,
        stats::InconclusiveReason::Noise => Inconclusive::Noise,
        stats::InconclusiveReason::RanksDisagree => Inconclusive::RanksDisagree,
        stats::InconclusiveReason::BelowResolution => Inconclusive::BelowResolution,
    }
}
