//! Units that are complete: the pairs of a server start, or a pair if the servers are not restarted.
//!
//! Invariant: a unit is used only if all its timed trials ended, so that the same trials give the same units,
//! whether they are added while they run or afterwards.

use std::collections::BTreeSet;

use pgassay_model::plan::{Plan, PointId};
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_stats as stats;

use super::figures::{geometric_mean, rate_resolution};

/// The rate of a timed trial, in the study's unit.
#[derive(Debug, Clone, Copy)]
struct TrialRate {
    block: u32,
    /// The number of timed trials of its point in its round.
    of_round: u32,
    rate: f64,
    step: f64,
}

/// A unit of a comparison.
#[derive(Debug)]
pub(super) struct CompleteUnit {
    pub(super) blocks: BTreeSet<u32>,
    /// One for each block, in order.
    pub(super) pairs: Vec<stats::Pair>,
    /// The coarsest resolution of the baseline's and of the variant's rates.
    pub(super) steps: [f64; 2],
}

/// The rates of the unit in progress.
#[derive(Debug)]
pub(super) struct UnitInProgress<'a> {
    plan: &'a Plan,
    /// By point.
    rates: Vec<Vec<TrialRate>>,
}

impl<'a> UnitInProgress<'a> {
    pub(super) fn new(plan: &'a Plan) -> Self {
        Self {
            plan,
            rates: vec![Vec::new(); plan.points.len()],
        }
    }

    /// Adds the trials of a block. Those that are not timed do not matter.
    pub(super) fn add_block<'t>(
        &mut self,
        block: u32,
        trials: impl IntoIterator<Item = &'t Trial>,
    ) {
        let timed = trials.into_iter();
        for trial in timed.filter(|it| it.kind == TrialKind::Timed) {
            let id = PointId::new(trial.condition, trial.variant);
            let units = self.plan.point(id).per_transaction() as f64;
            let clients = self.plan.conditions[trial.condition].clients;
            if trial.transactions > 0 {
                self.rates[self.plan.index_of(id)].push(TrialRate {
                    block,
                    of_round: trial
                        .repeats
                        .map_or(self.plan.schedule.timed(), |it| it.saturating_mul(2)),
                    rate: trial.tps() * units,
                    step: rate_resolution(trial, clients),
                });
            }
        }
    }

    /// The unit of a comparison, if it took part in all of it.
    pub(super) fn of(&self, condition: usize, variant: usize) -> Option<CompleteUnit> {
        let sides = [self.plan.baseline_of(variant), variant].map(|variant| {
            let point = self.plan.index_of(PointId::new(condition, variant));
            &self.rates[point]
        });
        let blocks: BTreeSet<u32> = sides[0].iter().map(|it| it.block).collect();
        let mean = |side: usize, block: u32| {
            let of_block = sides[side].iter().filter(|it| it.block == block);
            let planned = of_block.clone().next()?.of_round as usize;
            let is_complete = of_block.clone().count() == planned;
            geometric_mean(of_block.map(|it| it.rate)).filter(|_| is_complete)
        };
        let pair = |block: &u32| {
            Some(stats::Pair {
                baseline: mean(0, *block)?,
                variant: mean(1, *block)?,
            })
        };
        let pairs: Vec<stats::Pair> = blocks.iter().filter_map(pair).collect();
        let steps = sides.map(|rates| rates.iter().map(|it| it.step).fold(0.0, f64::max));
        (pairs.len() == blocks_per_unit(self.plan) as usize).then_some(CompleteUnit {
            blocks,
            pairs,
            steps,
        })
    }

    /// Begins the next unit.
    pub(super) fn clear(&mut self) {
        self.rates.iter_mut().for_each(Vec::clear);
    }
}

/// Condition and variant of each comparison of a plan.
pub(super) fn compared(plan: &Plan) -> Vec<(usize, usize)> {
    let variants = 1..plan.variants.len();
    (0..plan.conditions.len())
        .flat_map(|condition| variants.clone().map(move |variant| (condition, variant)))
        .collect()
}

/// Number of blocks, and so of pairs, in a unit.
pub fn blocks_per_unit(plan: &Plan) -> u32 {
    if plan.restarts_servers() {
        plan.schedule.blocks_per_server_start
    } else {
        1
    }
}

/// Whether a unit ends with this block, so that an analysis follows and conditions may end.
pub fn ends_unit(plan: &Plan, block: u32) -> bool {
    (block + 1).is_multiple_of(blocks_per_unit(plan))
}
