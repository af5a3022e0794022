//! The verdicts of a plan that was decided sequentially.

use std::collections::BTreeSet;

use pgassay_model::plan::Plan;
use pgassay_model::trial::Trial;
use pgassay_stats as stats;
use stats::sequential::{MatrixCell, SequentialComparison, SequentialVerdict};

use super::figures::{BlockSummary, TPS};
use super::pairing::{MetricPairs, PendingComparison, ratio, two_ends};
use super::sequential::{RunningComparisons, sequential_plan};
use super::units::blocks_per_unit;
use super::{Basis, Comparison, Inconclusive, Ratio, UnitOfAnalysis, Verdict};

/// Judges every variant against the baseline under every condition; `None` if the number of pairs is fixed.
/// `by_condition` has the figures of each variant.
pub(super) fn compare_sequentially(
    plan: &Plan,
    trials: &[Trial],
    by_condition: &[Vec<Vec<BlockSummary>>],
) -> Option<Vec<Comparison>> {
    let mut running = RunningComparisons::of(plan)?;
    let blocks: BTreeSet<u32> = trials.iter().map(|it| it.block).collect();
    running.add_blocks(trials);
    let mut found = Vec::new();
    for (condition, variants) in by_condition.iter().enumerate() {
        for (variant, figures) in variants.iter().enumerate().skip(1) {
            let used = running.used_blocks(condition, variant);
            let draft = PendingComparison {
                condition,
                variant,
                sides: [&variants[plan.baseline_of(variant)], figures],
                // Before the first unit, what there is, so that the figures can be shown.
                blocks: if used.is_empty() {
                    blocks.iter().copied().collect()
                } else {
                    used.iter().copied().collect()
                },
            };
            let judged = SequentialJudgment {
                plan,
                running: &running,
                draft,
            };
            found.extend(judged.comparison());
        }
    }
    Some(found)
}

struct SequentialJudgment<'a> {
    plan: &'a Plan,
    running: &'a RunningComparisons<'a>,
    draft: PendingComparison<'a>,
}

impl SequentialJudgment<'_> {
    fn comparison(&self) -> Option<Comparison> {
        let (condition, variant) = (self.draft.condition, self.draft.variant);
        let cell = self.running.cell(condition, variant)?;
        let used = self.running.used_blocks(condition, variant);
        let ratio = |metric: usize| self.ratio(metric, &cell);
        let widened = ratio(TPS)?.widened;
        let verdict = verdict(&cell, widened);
        let found = self.draft.judged(verdict, Some(self.basis(used)), ratio)?;
        let alone = self.running.alone(condition, variant);
        Some(Comparison {
            tps_uncorrected_95: alone.and_then(|it| two_ends(&it.interval()?)),
            tps_sequential_p_value: alone
                .filter(|it| it.verdict() != SequentialVerdict::Unstable)
                .map(|it| it.p_value().or_one()),
            ..found
        })
    }

    fn basis(&self, used: &BTreeSet<u32>) -> Basis {
        let (condition, variant) = (self.draft.condition, self.draft.variant);
        let each = blocks_per_unit(self.plan);
        let comparisons = self.plan.conditions.len() * (self.plan.variants.len() - 1);
        Basis {
            unit: if self.plan.restarts_servers() {
                UnitOfAnalysis::ServerStart
            } else {
                UnitOfAnalysis::Pair
            },
            units: used.len() as u32 / each,
            server_starts: self.draft.server_starts(used),
            comparisons: comparisons as u32,
            units_max: Some(self.plan.schedule.blocks / each),
            first_stage_units: None,
            units_needed: self
                .running
                .units_needed(condition, variant)
                .map(|it| it as u32),
        }
    }

    /// A metric's ratio with an interval that is valid although the data decided when to stop.
    fn ratio(&self, metric: usize, cell: &MatrixCell) -> Option<Ratio> {
        let pairs = self.draft.pairs(metric);
        let mut found = ratio(&pairs, 1.0 - cell.alpha, None)?;
        // A metric that is missing in some trials has no units.
        if pairs.figures.len() != self.draft.blocks.len() {
            return None;
        }
        let Some(running) = self.sequential(&pairs, cell.alpha) else {
            return Some(found);
        };
        let Some(last) = running.analyses().last() else {
            return Some(found);
        };
        let of_matrix = cell.interval.filter(|_| metric == TPS);
        // An unstable comparison has no interval but that of its last analysis.
        let interval = of_matrix
            .or_else(|| running.interval())
            .unwrap_or(last.interval);
        // Units that do not vary have no interval but the one of their resolution.
        if interval.is_bounded() {
            found.ratio = interval.clamped(last.ratio());
            (found.low, found.high) = (interval.low, interval.high);
        }
        Some(found)
    }

    fn sequential(&self, pairs: &MetricPairs, alpha: f64) -> Option<SequentialComparison> {
        let mut running = SequentialComparison::new(sequential_plan(self.plan, alpha)).ok()?;
        for unit in pairs.figures.chunks(blocks_per_unit(self.plan) as usize) {
            if !running.is_at_cap() {
                running.push_with_resolution(unit, pairs.steps).ok()?;
            }
        }
        Some(running)
    }
}

fn verdict(cell: &MatrixCell, widened: f64) -> (Verdict, Option<Inconclusive>) {
    let is_analyzed = cell.interval.is_some();
    match cell.verdict {
        SequentialVerdict::Faster { .. } => (Verdict::Faster, None),
        SequentialVerdict::Slower { .. } => (Verdict::Slower, None),
        SequentialVerdict::Equivalent => (Verdict::Equivalent, None),
        SequentialVerdict::Unstable => (Verdict::Inconclusive, Some(Inconclusive::Unstable)),
        SequentialVerdict::Inconclusive => {
            let reason = match is_analyzed {
                false => Inconclusive::TooFewPairs,
                true if widened > 0.0 => Inconclusive::BelowResolution,
                true => Inconclusive::Noise,
            };
            (Verdict::Inconclusive, Some(reason))
        }
    }
}
