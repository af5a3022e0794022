//! Comparisons in two stages, for intervals of a wanted half-width.
//!
//! The plan's blocks are the first stage. Its standard deviations give the number of further units
//! ([`pgassay_stats::sequential::PrecisionComparison`]); a condition ends with the comparison that needs most.
//! Nothing ends at a verdict, so no estimate is biased by an early end.
//!
//! Invariants: the same trials give the same intervals, whether they are added while they run or afterwards. With
//! K comparisons, each interval has the level 1 − 5%/K: all of them cover the truth in 95% of runs, and so any
//! verdict that follows from them is wrong in at most 5%.

use std::collections::BTreeSet;

use pgassay_model::plan::{Plan, StoppingRule};
use pgassay_model::trial::Trial;
use pgassay_stats as stats;
use stats::sequential::{PrecisionComparison, PrecisionEstimate, PrecisionPlan};

use super::sequential::ALPHA;
use super::units::{UnitInProgress, blocks_per_unit, compared, ends_unit};

/// The comparisons of a plan with two stages, to which blocks are added as they end.
#[derive(Debug)]
pub struct RunningPrecision<'a> {
    plan: &'a Plan,
    /// Condition and variant of each comparison.
    compared: Vec<(usize, usize)>,
    comparisons: Vec<PrecisionComparison>,
    unit: UnitInProgress<'a>,
    /// The blocks that are part of each comparison.
    used_blocks: Vec<BTreeSet<u32>>,
    /// Units that ended, whether or not a comparison took part in all of each.
    units: usize,
}

impl<'a> RunningPrecision<'a> {
    /// The comparisons of a plan, without trials; `None` if it does not have two stages.
    pub fn of(plan: &'a Plan) -> Option<Self> {
        if plan.schedule.stopping != StoppingRule::Precision {
            return None;
        }
        let compared = compared(plan);
        let comparison = PrecisionComparison::new(precision_plan(plan)?).ok()?;
        Some(Self {
            plan,
            comparisons: vec![comparison; compared.len()],
            unit: UnitInProgress::new(plan),
            used_blocks: vec![BTreeSet::new(); compared.len()],
            units: 0,
            compared,
        })
    }

    /// Adds the trials of a block. Those that are not timed do not matter.
    pub fn add_block<'t>(&mut self, block: u32, trials: impl IntoIterator<Item = &'t Trial>) {
        self.unit.add_block(block, trials);
        if !ends_unit(self.plan, block) {
            return;
        }
        for (index, &(condition, variant)) in self.compared.iter().enumerate() {
            let unit = self.unit.of(condition, variant);
            // Rates of trials with transactions are positive, so their ratios exist.
            let added = unit.filter(|unit| {
                let running = &mut self.comparisons[index];
                running.push(&unit.pairs, unit.steps).is_ok()
            });
            self.used_blocks[index].extend(added.into_iter().flat_map(|unit| unit.blocks));
        }
        self.unit.clear();
        self.units = (block + 1) as usize / blocks_per_unit(self.plan) as usize;
    }

    /// Adds the trials of a whole run, block by block.
    pub fn add_blocks(&mut self, trials: &[Trial]) {
        let blocks: BTreeSet<u32> = trials.iter().map(|it| it.block).collect();
        for block in blocks {
            self.add_block(block, trials.iter().filter(|it| it.block == block));
        }
    }

    /// Number of units of the first stage.
    pub fn first_stage(&self) -> usize {
        first_stage(self.plan)
    }

    /// Units that ended so far.
    pub fn units(&self) -> usize {
        self.units
    }

    /// Whether the first stage has ended.
    pub fn has_first_stage(&self) -> bool {
        self.units >= self.first_stage()
    }

    /// The number of units after which a condition ends: those of its comparison that needs most. A comparison
    /// that no number of units makes narrow enough, or that lacks trials of the first stage, needs no more.
    pub fn units_of(&self, condition: usize) -> usize {
        let of_condition = |index: &usize| self.compared[*index].0 == condition;
        let indices = (0..self.compared.len()).filter(of_condition);
        let complete = indices.map(|index| &self.comparisons[index]);
        let complete = complete.filter(|it| it.has_first_stage());
        let needed = complete.filter_map(PrecisionComparison::units_needed);
        needed.max().unwrap_or(0).max(self.first_stage())
    }

    /// The conditions in which there is still something to measure. To be asked after a unit.
    pub fn open_conditions(&self) -> BTreeSet<usize> {
        let all = 0..self.plan.conditions.len();
        all.filter(|condition| self.units < self.units_of(*condition))
            .collect()
    }

    /// The intervals so far: of every comparison with at least two units.
    pub fn estimates(&self) -> impl Iterator<Item = PrecisionEstimate> {
        let all = self.comparisons.iter();
        all.filter_map(PrecisionComparison::estimate)
    }

    /// Whether the resolution of the rates of a comparison is too coarse for the wanted half-width.
    pub fn is_too_coarse(&self) -> bool {
        let mut all = self.comparisons.iter();
        all.any(|it| it.has_first_stage() && it.units_needed().is_none())
    }

    /// The interval of a comparison so far; `None` with fewer than two units.
    pub(super) fn estimate(&self, condition: usize, variant: usize) -> Option<PrecisionEstimate> {
        self.comparisons[self.index(condition, variant)?].estimate()
    }

    /// How many units a comparison needs; `None` if unknown.
    pub(super) fn units_needed(&self, condition: usize, variant: usize) -> Option<usize> {
        self.comparisons[self.index(condition, variant)?].units_needed()
    }

    /// The blocks that a comparison uses: those of complete units.
    pub(super) fn used_blocks(&self, condition: usize, variant: usize) -> BTreeSet<u32> {
        let index = self.index(condition, variant);
        index.map_or_else(BTreeSet::new, |index| self.used_blocks[index].clone())
    }

    fn index(&self, condition: usize, variant: usize) -> Option<usize> {
        self.compared
            .iter()
            .position(|it| *it == (condition, variant))
    }
}

/// Number of units of the first stage.
pub(super) fn first_stage(plan: &Plan) -> usize {
    (plan.schedule.blocks / blocks_per_unit(plan)) as usize
}

/// The plan of each comparison; `None` without a wanted half-width.
pub(super) fn precision_plan(plan: &Plan) -> Option<PrecisionPlan> {
    let comparisons = compared(plan).len().max(1);
    Some(PrecisionPlan {
        first_stage: first_stage(plan),
        half_width_log: (plan.schedule.half_width_percent? / 100.0).ln_1p(),
        alpha: ALPHA / comparisons as f64,
    })
}
