//! Comparisons that are judged while their trials run, and end as soon as they have a verdict.
//!
//! An analysis follows each unit: each server start, or every two pairs if the servers are not restarted. The
//! statistics are those of [`pgassay_stats::sequential`]: one interval that is valid at all analyses, and one
//! error rate for all comparisons of the plan.
//!
//! Invariant: the same trials give the same verdicts, whether they are added while they run or all at once
//! afterwards; so a stored run can be judged again. A unit whose trials are not complete is not used.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_model::plan::{Plan, StoppingRule};
use pgassay_model::trial::Trial;
use pgassay_stats as stats;
use stats::sequential::{
    AnalysisSchedule, GateAnswer, MatrixCell, Outlook, SequentialComparison, SequentialMatrix,
    SequentialPlan,
};

use super::gate::ComparisonGate;
use super::units::{UnitInProgress, blocks_per_unit, compared, ends_unit};

/// Probability of any false sign among all comparisons of a study, and of any false equivalence.
pub(super) const ALPHA: f64 = 0.05;

/// The comparisons of a sequential plan, to which blocks are added as they end.
#[derive(Debug)]
pub struct RunningComparisons<'a> {
    plan: &'a Plan,
    /// Condition and variant of each comparison.
    compared: Vec<(usize, usize)>,
    matrix: SequentialMatrix,
    /// What the plan asks of each comparison instead of a verdict; empty if it has no gate.
    gates: Vec<ComparisonGate>,
    unit: UnitInProgress<'a>,
    /// The blocks that are part of each comparison.
    used_blocks: Vec<BTreeSet<u32>>,
}

impl<'a> RunningComparisons<'a> {
    /// The comparisons of a plan, without trials; `None` if its number of pairs is fixed.
    pub fn of(plan: &'a Plan) -> Option<Self> {
        if plan.schedule.stopping != StoppingRule::Sequential {
            return None;
        }
        let compared = compared(plan);
        let plans = vec![sequential_plan(plan, ALPHA); compared.len()];
        // The level is constant and within the table.
        let matrix = SequentialMatrix::new(&plans, ALPHA).ok()?;
        Some(Self {
            plan,
            gates: ComparisonGate::all(plan, &compared),
            matrix,
            unit: UnitInProgress::new(plan),
            used_blocks: vec![BTreeSet::new(); compared.len()],
            compared,
        })
    }

    /// Adds the trials of a block. Those that are not timed do not matter.
    pub fn add_block<'t>(&mut self, block: u32, trials: impl IntoIterator<Item = &'t Trial>) {
        self.unit.add_block(block, trials);
        if ends_unit(self.plan, block) {
            for index in 0..self.compared.len() {
                self.add_unit(index);
            }
            self.unit.clear();
        }
    }

    /// Adds the trials of a whole run, block by block.
    pub fn add_blocks(&mut self, trials: &[Trial]) {
        let blocks: BTreeSet<u32> = trials.iter().map(|it| it.block).collect();
        for block in blocks {
            self.add_block(block, trials.iter().filter(|it| it.block == block));
        }
    }

    /// Adds the unit that has ended to a comparison, if the comparison took part in all of it.
    fn add_unit(&mut self, index: usize) {
        let (condition, variant) = self.compared[index];
        let Some(unit) = self.unit.of(condition, variant) else {
            return;
        };
        // Rates of trials with transactions are positive, so their ratios exist.
        if !self.matrix.comparisons()[index].is_at_cap()
            && self
                .matrix
                .push_with_resolution(index, &unit.pairs, unit.steps)
                .is_ok()
        {
            self.used_blocks[index].extend(unit.blocks);
        }
    }

    /// Ends comparisons that will probably have no verdict, and returns the conditions in which there is
    /// still something to measure. To be asked after a unit.
    pub fn open_conditions(&mut self) -> BTreeSet<usize> {
        for index in 0..self.compared.len() {
            let running = &self.matrix.comparisons()[index];
            let is_hopeless = self
                .gates
                .get(index)
                .is_some_and(|it| it.is_hopeless(running));
            if is_hopeless || self.outlook(index).is_some_and(|it| it.is_futile()) {
                self.matrix.give_up(index);
            }
        }
        let open = (0..self.compared.len()).filter(|index| self.is_open(*index));
        open.map(|index| self.compared[index].0).collect()
    }

    /// About how many more units each open condition takes until the first of its open comparisons has a verdict, the
    /// nearest first. `None` if that is unknown: before each was analyzed, and with a gate, which asks another
    /// question.
    pub fn units_to_verdict(&self) -> Option<Vec<(usize, usize)>> {
        if !self.gates.is_empty() {
            return None;
        }
        let mut rest: BTreeMap<usize, usize> = BTreeMap::new();
        for index in (0..self.compared.len()).filter(|index| self.is_open(*index)) {
            if self.matrix.comparisons()[index].analyses().is_empty() {
                return None;
            }
            let units = self.matrix.units_to_verdict(index).unwrap_or(usize::MAX);
            let of_condition = rest.entry(self.compared[index].0).or_insert(units);
            *of_condition = units.min(*of_condition);
        }
        let mut rest: Vec<_> = rest.into_iter().collect();
        rest.sort_by_key(|(condition, units)| (*units, *condition));
        Some(rest)
    }

    /// How many analyses there were of all comparisons together.
    pub fn analyses(&self) -> usize {
        let all = self.matrix.comparisons().iter();
        all.map(|it| it.analyses().len()).sum()
    }

    /// How many comparisons have a verdict, or an answer for the gate, and how many there are.
    pub fn decided(&self) -> (usize, usize) {
        let all = self.compared.len();
        let decided = (0..all).filter(|index| match self.gate_answer(*index) {
            Some(answer) => answer != GateAnswer::Inconclusive,
            None => self.matrix.cell(*index).verdict.is_conclusive(),
        });
        (decided.count(), all)
    }

    fn is_open(&self, index: usize) -> bool {
        match self.gate_answer(index) {
            Some(answer) => {
                let running = &self.matrix.comparisons()[index];
                let is_waiting =
                    answer == GateAnswer::Inconclusive && !self.matrix.is_given_up(index);
                let is_unstable = self.gates[index].is_unstable(running);
                is_waiting && !is_unstable && !running.is_at_cap()
            }
            None => self.matrix.is_open(index),
        }
    }

    /// The gate's answer for a comparison; `None` if the plan has no gate.
    fn gate_answer(&self, index: usize) -> Option<GateAnswer> {
        let running = &self.matrix.comparisons()[index];
        self.gates.get(index).map(|it| it.answer(running))
    }

    /// The comparisons as a gate judges them; empty if the plan has no gate.
    pub fn gated(&self) -> Vec<GatedComparison> {
        let running = self.matrix.comparisons().iter();
        let all = self.compared.iter().zip(&self.gates).zip(running);
        all.map(|((&(condition, variant), gate), running)| {
            let last = running.analyses().last();
            let interval = gate.interval(running);
            GatedComparison {
                condition,
                variant,
                answer: gate.answer(running),
                ratio: last.map(|it| {
                    let ratio = gate.relative(it.ratio());
                    interval.map_or(ratio, |it| it.clamped(ratio))
                }),
                interval,
                is_relative: gate.is_relative(),
                pairs: running.pairs().len(),
            }
        })
        .collect()
    }

    /// The comparisons, as condition, variant and state.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, usize, &SequentialComparison)> {
        let running = self.matrix.comparisons().iter();
        let all = self.compared.iter().zip(running);
        all.map(|(&(condition, variant), running)| (condition, variant, running))
    }

    /// The comparison of a variant with the baseline under a condition, given all others.
    pub fn cell(&self, condition: usize, variant: usize) -> Option<MatrixCell> {
        Some(self.matrix.cell(self.index(condition, variant)?))
    }

    /// B/A of throughput so far, within the interval; `None` before the first analysis.
    pub fn ratio(&self, condition: usize, variant: usize) -> Option<f64> {
        let index = self.index(condition, variant)?;
        let last = self.matrix.comparisons()[index].analyses().last()?;
        let interval = self.matrix.cell(index).interval;
        Some(interval.map_or(last.ratio(), |it| it.clamped(last.ratio())))
    }

    /// A comparison without a correction for the others, at 95%; `None` before its first analysis.
    pub(super) fn alone(&self, condition: usize, variant: usize) -> Option<&SequentialComparison> {
        let index = self.index(condition, variant)?;
        let running = &self.matrix.comparisons()[index];
        (!running.analyses().is_empty()).then_some(running)
    }

    /// How many units a comparison without a verdict would take, with the noise so far.
    pub(super) fn units_needed(&self, condition: usize, variant: usize) -> Option<usize> {
        let index = self.index(condition, variant)?;
        if let Some(outlook) = self.outlook(index) {
            let pairs = outlook.pairs_needed?;
            return Some(pairs.div_ceil(blocks_per_unit(self.plan) as usize));
        }
        // Too few units to judge its chance, as after a time limit, but enough for a standard deviation.
        let running = &self.matrix.comparisons()[index];
        let is_estimable =
            self.gates.is_empty() && self.matrix.is_open(index) && !running.analyses().is_empty();
        let more = is_estimable.then(|| self.matrix.units_to_verdict(index))??;
        Some(running.units() + more)
    }

    /// The blocks that a comparison uses: those of complete units, up to its last analysis.
    pub(super) fn used_blocks(&self, condition: usize, variant: usize) -> &BTreeSet<u32> {
        static NONE: BTreeSet<u32> = BTreeSet::new();
        self.index(condition, variant)
            .map_or(&NONE, |index| &self.used_blocks[index])
    }

    fn outlook(&self, index: usize) -> Option<Outlook> {
        match self.gates.get(index) {
            Some(gate) => gate.outlook(&self.matrix.comparisons()[index]),
            None => self.matrix.outlook(index),
        }
    }

    fn index(&self, condition: usize, variant: usize) -> Option<usize> {
        self.compared
            .iter()
            .position(|it| *it == (condition, variant))
    }
}

/// A comparison as a gate judges it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GatedComparison {
    /// Index into the plan's conditions.
    pub condition: usize,
    /// Index into the plan's variants.
    pub variant: usize,
    /// Whether the variant is slower than the limit.
    pub answer: GateAnswer,
    /// Throughput of the variant relative to the baseline; if the gate compares with an earlier run, relative
    /// to this ratio then. `None` before the first analysis.
    pub ratio: Option<f64>,
    /// Its interval at the level of the gate; `None` before the first analysis, or if the comparison is
    /// unstable.
    pub interval: Option<stats::Interval>,
    /// Whether ratio and interval are relative to an earlier run's.
    pub is_relative: bool,
    /// Number of pairs.
    pub pairs: usize,
}

/// The plan of one comparison: its analyses, and the level of its interval alone.
pub(super) fn sequential_plan(plan: &Plan, alpha: f64) -> SequentialPlan {
    let schedule = if plan.restarts_servers() {
        AnalysisSchedule::Units
    } else {
        AnalysisSchedule::Pairs
    };
    SequentialPlan {
        alpha,
        ..SequentialPlan::new(schedule, stats::Direction::HigherIsBetter)
    }
}

/// What a sequential plan can find out, in words: `assuming that ratios vary by 2% (SD) between server starts:
/// 20% after about 4 server starts, 5% after 7, …`.
/// `None` if the number of pairs is fixed.
pub fn decidable_effects(plan: &Plan) -> Option<String> {
    let comparisons = plan.conditions.len() * (plan.variants.len() - 1);
    if plan.schedule.stopping != StoppingRule::Sequential || comparisons == 0 {
        return None;
    }
    let strictest = sequential_plan(plan, ALPHA / comparisons as f64);
    let effects = stats::sequential::DecidableEffects::new(&strictest, UNIT_SD_USUAL, &EFFECTS);
    Some(effects.ok()?.to_string())
}

/// About how many units a sequential plan takes until it knows the sign of a difference of this many percent, with the
/// same noise; `None` if it rarely finds it, with a gate, or with a fixed number of pairs.
pub fn units_to_sign(plan: &Plan, percent: f64) -> Option<usize> {
    let schedule = &plan.schedule;
    let comparisons = plan.conditions.len() * (plan.variants.len() - 1);
    let is_gate = schedule.gate_limit_percent.is_some();
    if schedule.stopping != StoppingRule::Sequential || comparisons == 0 || is_gate {
        return None;
    }
    let strictest = sequential_plan(plan, ALPHA / comparisons as f64);
    let effect_log = (percent / 100.0).ln_1p();
    let found = stats::sequential::Prospect::new(&strictest, UNIT_SD_USUAL, effect_log);
    found.ok()?.units_median
}

/// The standard deviation of units that the announcement of a run assumes, and its effects in percent.
pub(super) const UNIT_SD_USUAL: f64 = 0.02;
const EFFECTS: [f64; 4] = [20.0, 5.0, 2.0, 1.0];
