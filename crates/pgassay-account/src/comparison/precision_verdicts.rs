//! The verdicts of a plan with two stages: what follows from its intervals.

use std::collections::BTreeSet;

use pgassay_model::plan::Plan;
use pgassay_model::trial::Trial;
use pgassay_stats as stats;
use stats::sequential::{PrecisionComparison, PrecisionEstimate};

use super::figures::{BlockSummary, TPS};
use super::pairing::{PendingComparison, ratio, two_ends};
use super::precision::{RunningPrecision, first_stage, precision_plan};
use super::units::{blocks_per_unit, compared};
use super::{Basis, Comparison, Inconclusive, Ratio, UnitOfAnalysis, Verdict};

/// Judges every variant against the baseline under every condition; `None` if the plan does not have two stages.
/// `by_condition` has the figures of each variant.
pub(super) fn compare_precisely(
    plan: &Plan,
    trials: &[Trial],
    by_condition: &[Vec<Vec<BlockSummary>>],
) -> Option<Vec<Comparison>> {
    let mut running = RunningPrecision::of(plan)?;
    running.add_blocks(trials);
    let all: BTreeSet<u32> = trials.iter().map(|it| it.block).collect();
    let mut found = Vec::new();
    for (condition, variants) in by_condition.iter().enumerate() {
        for (variant, figures) in variants.iter().enumerate().skip(1) {
            let used = running.used_blocks(condition, variant);
            // Before the first unit, what there is, so that the figures can be shown.
            let blocks = if used.is_empty() { &all } else { &used };
            let draft = PendingComparison {
                condition,
                variant,
                sides: [&variants[plan.baseline_of(variant)], figures],
                blocks: blocks.iter().copied().collect(),
            };
            let estimate = running.estimate(condition, variant);
            let basis = Basis {
                units_needed: running.units_needed(condition, variant).map(|it| it as u32),
                ..basis(plan, &draft, &used)
            };
            let verdict = verdict(estimate.as_ref());
            let of_metric = |metric: usize| of_metric(plan, &draft, metric);
            let judged = draft.judged(verdict, Some(basis), of_metric);
            found.extend(judged.map(|it| Comparison {
                // Those of two stages have no correction for the other comparisons.
                tps_uncorrected_95: estimate.as_ref().and_then(|it| two_ends(&it.interval)),
                ..it
            }));
        }
    }
    Some(found)
}

fn basis(plan: &Plan, draft: &PendingComparison<'_>, used: &BTreeSet<u32>) -> Basis {
    Basis {
        unit: if plan.restarts_servers() {
            UnitOfAnalysis::ServerStart
        } else {
            UnitOfAnalysis::Pair
        },
        units: used.len() as u32 / blocks_per_unit(plan),
        server_starts: draft.server_starts(used),
        comparisons: compared(plan).len() as u32,
        units_max: None,
        first_stage_units: Some(first_stage(plan) as u32),
        units_needed: None,
    }
}

/// A metric's ratio, with an interval whose width comes from the metric's own first stage.
fn of_metric(plan: &Plan, draft: &PendingComparison<'_>, metric: usize) -> Option<Ratio> {
    let two_stages = precision_plan(plan)?;
    let pairs = draft.pairs(metric);
    let mut found = ratio(&pairs, 1.0 - two_stages.alpha, None)?;
    // A metric that is missing in some trials has no units.
    if pairs.figures.len() != draft.blocks.len() {
        return (metric == TPS).then_some(found);
    }
    let mut running = PrecisionComparison::new(two_stages).ok()?;
    for unit in pairs.figures.chunks_exact(blocks_per_unit(plan) as usize) {
        running.push(unit, pairs.steps).ok()?;
    }
    // Units that do not vary have no interval but the one of their resolution.
    let estimate = running.estimate();
    if let Some(estimate) = estimate.filter(|it| it.half_width_log.is_finite()) {
        found.ratio = estimate.ratio();
        (found.low, found.high) = (estimate.interval.low, estimate.interval.high);
        found.widened = estimate.widened_log;
    }
    Some(found)
}

/// What the interval of throughput says. A difference within the margin is one.
fn verdict(estimate: Option<&PrecisionEstimate>) -> (Verdict, Option<Inconclusive>) {
    let Some(estimate) = estimate else {
        return (Verdict::Inconclusive, Some(Inconclusive::OnePair));
    };
    if estimate.interval.low > 1.0 {
        (Verdict::Faster, None)
    } else if estimate.interval.high < 1.0 {
        (Verdict::Slower, None)
    } else if stats::EquivalenceMargin::default().holds(&estimate.interval) {
        (Verdict::Equivalent, None)
    } else if estimate.widened_log > 0.0 {
        (Verdict::Inconclusive, Some(Inconclusive::BelowResolution))
    } else {
        (Verdict::Inconclusive, Some(Inconclusive::Noise))
    }
}
