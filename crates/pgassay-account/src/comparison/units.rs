//! Units that are complete: the pairs of a server start, or a pair if the servers are not restarted.
//!
//! Invariant: a unit is used only if all its timed trials ended, so that the same trials give the same units,
//! whether they are added while they run or afterwards.

use std::collections::BTreeSet;

use pgassay_model::plan::{Plan, PointId};
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_stats as stats;

use super::figures::{rate_resolution, timed_of_round};
use super::pooled::PooledRate;

/// The timed trials of a point in a block.
#[derive(Debug, Clone, Copy)]
struct BlockRate {
    block: u32,
    /// How many have ended.
    trials: u32,
    /// How many there are in its round.
    of_round: u32,
    rate: PooledRate,
    /// In the study's unit, for each transaction.
    units: f64,
    /// The coarsest resolution of a trial's rate.
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
    rates: Vec<Vec<BlockRate>>,
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
            let clients = self.plan.conditions[trial.condition].clients;
            if trial.transactions == 0 {
                continue;
            }
            let of_point = &mut self.rates[self.plan.index_of(id)];
            if of_point.last().is_none_or(|it| it.block != block) {
                of_point.push(BlockRate {
                    block,
                    trials: 0,
                    of_round: timed_of_round(self.plan, trial),
                    rate: PooledRate::default(),
                    units: self.plan.point(id).per_transaction() as f64,
                    step: 0.0,
                });
            }
            let last = of_point.last_mut().expect("one was added");
            last.trials += 1;
            last.rate.add(trial);
            last.step = last.step.max(rate_resolution(trial, clients));
        }
    }

    /// The unit of a comparison, if it took part in all of it.
    pub(super) fn of(&self, condition: usize, variant: usize) -> Option<CompleteUnit> {
        let sides = [self.plan.baseline_of(variant), variant].map(|variant| {
            let point = self.plan.index_of(PointId::new(condition, variant));
            &self.rates[point]
        });
        let blocks: BTreeSet<u32> = sides[0].iter().map(|it| it.block).collect();
        let rate = |side: usize, block: u32| {
            let of_block = sides[side].iter().find(|it| it.block == block)?;
            let is_complete = of_block.trials == of_block.of_round;
            is_complete.then(|| of_block.rate.per_second() * of_block.units)
        };
        let pair = |block: &u32| {
            Some(stats::Pair {
                baseline: rate(0, *block)?,
                variant: rate(1, *block)?,
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
