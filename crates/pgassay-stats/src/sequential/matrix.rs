//! Several comparisons that share one error rate, each with its own analyses.
//!
//! Signs and equivalences are two families, each with a probability of any false claim of at most α. Within a
//! family, Holm's procedure (1979) is applied to the sequential p-values after every analysis. These p-values only
//! fall, so marks never vanish, and a decided comparison leaves its α to the others (an equal-weight graphical
//! procedure: Bretz, Maurer, Brannath and Posch, "A graphical approach to sequentially rejective multiple test
//! procedures", 2009). This is valid under any dependence, including a shared baseline. In a single family the
//! step-down argument would fail: a comparison with a true sign could falsely be called equivalent after passing
//! on its α.
//!
//! Which comparison gets the next block may depend on everything seen so far, because the guarantee of each
//! comparison holds at any stopping time.
//!
//! Invariants: the interval of a comparison has the level of its mark, so that both agree: α/(K − r) with r
//! marks for an open one, and that at which it was marked for a decided one. A mark stands, unless the interval
//! becomes empty: then the comparison is unstable. If the sign of an equivalent comparison is claimed as well, the
//! comparison is faster or slower (within the margin).

use std::cmp::Ordering;

use super::boundary::{AnalysisSchedule, CriticalValues, SequentialP};
use super::comparison::{SequentialComparison, SequentialPlan};
use super::futility::{Outlook, units_needed};
use super::path::{LogRange, Moments};
use super::verdict::SequentialVerdict;
use crate::error::StatsError;
use crate::multiplicity::holm_steps;
use crate::pairs::{Interval, Pair};

/// A comparison as part of a matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatrixCell {
    /// The verdict, given all comparisons.
    pub verdict: SequentialVerdict,
    /// The α of the verdict, or of the next one.
    pub alpha: f64,
    /// The interval of B/A at the level 1 − α; `None` before the first analysis, or if it is empty.
    pub interval: Option<Interval>,
    /// The sequential p-value against a ratio of 1, of this comparison alone.
    pub p_value: SequentialP,
    /// Number of pairs.
    pub pairs: usize,
}

/// The comparison that gets the next block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextBlock {
    /// Index of the comparison.
    pub comparison: usize,
    /// About how many more pairs it takes to a verdict; `None` before its first analysis, or if it will probably
    /// have none by its last analysis.
    pub pairs_to_verdict: Option<usize>,
}

/// A verdict that stands.
#[derive(Debug, Clone, Copy)]
struct MatrixMark {
    verdict: SequentialVerdict,
    /// It was made at α divided by this.
    divisor: usize,
}

impl MatrixMark {
    fn is_equivalent(self) -> bool {
        self.verdict == SequentialVerdict::Equivalent
    }
}

/// The comparisons of a study.
#[derive(Debug, Clone)]
pub struct SequentialMatrix {
    alpha: f64,
    comparisons: Vec<SequentialComparison>,
    marks: Vec<Option<MatrixMark>>,
    given_up: Vec<bool>,
    /// Critical values at α/1, α/2 and so on, for the schedules in use.
    levels: Vec<CriticalValues>,
    /// Which comparisons are claimed in the family of signs, and in that of equivalences. A comparison that
    /// continues after its mark can be claimed in both.
    claimed: [Vec<bool>; 2],
    /// What α was divided by when a comparison was claimed to be equivalent.
    equivalent_at: Vec<Option<usize>>,
}

impl SequentialMatrix {
    /// A matrix without pairs: one comparison for each plan. `alpha` is the probability of any false sign, and of
    /// any false equivalence; the plans' own levels are those of the comparisons alone.
    ///
    /// # Errors
    /// `alpha`, or a plan's level, is not in (0, 0.1].
    pub fn new(plans: &[SequentialPlan], alpha: f64) -> Result<Self, StatsError> {
        let mut levels = Vec::new();
        for schedule in [AnalysisSchedule::Pairs, AnalysisSchedule::Units] {
            if plans.iter().any(|plan| plan.schedule == schedule) {
                for divisor in 1..=plans.len() {
                    levels.push(schedule.critical_values(alpha / divisor as f64)?);
                }
            }
        }
        let comparisons = plans.iter().map(|plan| SequentialComparison::new(*plan));
        Ok(Self {
            alpha,
            comparisons: comparisons.collect::<Result<_, _>>()?,
            marks: vec![None; plans.len()],
            given_up: vec![false; plans.len()],
            levels,
            claimed: [vec![false; plans.len()], vec![false; plans.len()]],
            equivalent_at: vec![None; plans.len()],
        })
    }

    /// Adds pairs to a comparison, as [`SequentialComparison::push`] does, and updates all marks.
    ///
    /// # Panics
    /// There is no such comparison.
    pub fn push(&mut self, comparison: usize, pairs: &[Pair]) -> Result<MatrixCell, StatsError> {
        self.push_with_resolution(comparison, pairs, [0.0; 2])
    }

    /// The same for figures with a finite resolution ([`SequentialComparison::push_with_resolution`]).
    ///
    /// # Panics
    /// There is no such comparison.
    pub fn push_with_resolution(
        &mut self,
        comparison: usize,
        pairs: &[Pair],
        steps: [f64; 2],
    ) -> Result<MatrixCell, StatsError> {
        let analysis = self.comparisons[comparison].push_with_resolution(pairs, steps)?;
        if analysis.is_some() {
            self.update_marks();
        }
        Ok(self.cell(comparison))
    }

    fn update_marks(&mut self) {
        let families: [fn(&SequentialComparison) -> SequentialP; 2] = [
            SequentialComparison::p_value,
            SequentialComparison::equivalence_p_value,
        ];
        // Signs first, for a comparison that both families claim at once.
        for (family, p_value) in families.into_iter().enumerate() {
            let unclaimed: Vec<usize> = (0..self.comparisons.len())
                .filter(|index| !self.claimed[family][*index])
                .collect();
            let p_values = unclaimed.iter().map(|index| &self.comparisons[*index]);
            let p_values: Vec<f64> = p_values.map(|it| p_value(it).or_one()).collect();
            let steps = holm_steps(&p_values, self.alpha);
            let claims = unclaimed.iter().zip(steps).filter(|(_, step)| step.claimed);
            for (index, step) in claims {
                self.claimed[family][*index] = true;
                let divisor = (self.alpha / step.alpha).round() as usize;
                if family == 1 {
                    self.equivalent_at[*index] = Some(divisor);
                } else if self.marks[*index].is_none_or(MatrixMark::is_equivalent) {
                    let verdict = self.claimed_sign(*index, divisor);
                    self.marks[*index] = Some(MatrixMark { verdict, divisor });
                }
            }
        }
        for index in 0..self.comparisons.len() {
            if self.marks[index].is_none() {
                self.marks[index] = self.equivalence_mark(index);
            }
        }
    }

    /// The verdict of a comparison whose sign is claimed at α/`divisor`.
    fn claimed_sign(&self, index: usize, divisor: usize) -> SequentialVerdict {
        let range = self.range(index, divisor);
        let plan = self.comparisons[index].plan();
        match range.side_of(0.0) {
            _ if range.is_empty() => SequentialVerdict::Unstable,
            Some(side) => {
                let within_margin = range.is_within(plan.margin.half_width_log());
                let above = side == Ordering::Greater;
                SequentialVerdict::of_sign(plan.direction, above, within_margin)
            }
            None => SequentialVerdict::Equivalent,
        }
    }

    /// The mark of a comparison that is claimed to be equivalent, once the interval that is shown with it is within
    /// the margin.
    fn equivalence_mark(&self, index: usize) -> Option<MatrixMark> {
        let divisor = self.equivalent_at[index]?;
        let margin_log = self.comparisons[index].plan().margin.half_width_log();
        let range = self.range(index, self.equivalence_divisor(index, divisor));
        let verdict = if range.is_empty() {
            SequentialVerdict::Unstable
        } else if range.is_within(margin_log) {
            SequentialVerdict::Equivalent
        } else {
            return None;
        };
        Some(MatrixMark { verdict, divisor })
    }

    /// What α is divided by for the interval that is shown with an equivalence. It contains 1: if it does not at the
    /// level of this claim, it is shown at that of a sign, since the sign is not claimed.
    fn equivalence_divisor(&self, index: usize, divisor: usize) -> usize {
        let [signs, _] = self.open();
        match self.range(index, divisor).side_of(0.0) {
            Some(_) if !self.claimed[0][index] => divisor.max(signs),
            _ => divisor,
        }
    }

    /// The comparisons, each with its own verdict and interval, which have no correction for the others.
    pub fn comparisons(&self) -> &[SequentialComparison] {
        &self.comparisons
    }

    /// A comparison, judged together with all others.
    ///
    /// # Panics
    /// There is no such comparison.
    pub fn cell(&self, comparison: usize) -> MatrixCell {
        let running = &self.comparisons[comparison];
        let mark = self.marks[comparison];
        let divisor = match mark {
            None => self.open_max(),
            Some(mark) if mark.is_equivalent() => {
                self.equivalence_divisor(comparison, mark.divisor)
            }
            Some(mark) => mark.divisor,
        };
        let range = self.range(comparison, divisor);
        let verdict = mark.map_or(SequentialVerdict::Inconclusive, |mark| mark.verdict);
        let alpha = self.alpha / divisor as f64;
        let is_analyzed = !running.analyses().is_empty();
        MatrixCell {
            verdict: verdict.updated(range, running.plan().margin),
            alpha,
            interval: range.to_interval(alpha).filter(|_| is_analyzed),
            p_value: running.p_value(),
            pairs: running.pairs().len(),
        }
    }

    /// All comparisons, in their order.
    pub fn cells(&self) -> Vec<MatrixCell> {
        (0..self.comparisons.len())
            .map(|index| self.cell(index))
            .collect()
    }

    /// The comparison that gets the next block: first every one up to its first analysis, then the one that is
    /// probably nearest to its verdict. `None` if none is open.
    pub fn next_block(&self) -> Option<NextBlock> {
        let open: Vec<usize> = (0..self.comparisons.len())
            .filter(|index| self.is_open(*index))
            .collect();
        let units = |index: &usize| self.comparisons[*index].units();
        let is_new = |index: &&usize| self.comparisons[**index].analyses().is_empty();
        if let Some(new) = open.iter().filter(is_new).min_by_key(|index| units(index)) {
            return Some(NextBlock {
                comparison: *new,
                pairs_to_verdict: None,
            });
        }
        let with_rest = open
            .iter()
            .map(|index| (self.units_to_verdict(*index), *index));
        let (rest, nearest) = with_rest.min_by_key(|(rest, index)| {
            let pairs = rest.map_or(usize::MAX, |rest| self.in_pairs(*index, rest));
            (pairs, units(index))
        })?;
        let running = &self.comparisons[nearest];
        let left = running.plan().schedule.cap() - running.units();
        let rest = rest.filter(|rest| *rest <= left);
        Some(NextBlock {
            comparison: nearest,
            pairs_to_verdict: rest.map(|rest| self.in_pairs(nearest, rest)),
        })
    }

    /// Gives a comparison no further blocks, for example because it is futile. Its interval stays valid.
    ///
    /// # Panics
    /// There is no such comparison.
    pub fn give_up(&mut self, comparison: usize) {
        self.given_up[comparison] = true;
    }

    /// Whether [`SequentialMatrix::give_up`] was called for a comparison.
    ///
    /// # Panics
    /// There is no such comparison.
    pub fn is_given_up(&self, comparison: usize) -> bool {
        self.given_up[comparison]
    }

    /// What to expect of the rest of a comparison at its levels in the matrix: that of a sign, and that of an
    /// equivalence. `None` if it is decided, and before there is enough to judge by.
    ///
    /// # Panics
    /// There is no such comparison.
    pub fn outlook(&self, comparison: usize) -> Option<Outlook> {
        if self.marks[comparison].is_some() {
            return None;
        }
        let running = &self.comparisons[comparison];
        let plan = running.plan();
        let levels = self.open().map(|open| self.level(plan.schedule, open));
        let margin_log = plan.margin.half_width_log();
        let is_decided = |[sign, equivalence]: [LogRange; 2]| {
            sign.side_of(0.0).is_some() || equivalence.is_within(margin_log)
        };
        let goals = |mean: f64| self.goals(comparison, mean);
        Outlook::of_question(running, levels, is_decided, goals)
    }

    /// Whether a comparison still gets blocks: it has no verdict, is not given up, and has an analysis left.
    ///
    /// # Panics
    /// There is no such comparison.
    pub fn is_open(&self, index: usize) -> bool {
        let running = &self.comparisons[index];
        let is_waiting = self.marks[index].is_none() && !self.given_up[index];
        is_waiting && !running.is_at_cap() && !self.range(index, self.open_max()).is_empty()
    }

    /// About how many more units an open comparison takes to a verdict, possibly more than it has left. `None` if more
    /// than 100,000.
    ///
    /// # Panics
    /// There is no such comparison.
    pub fn units_to_verdict(&self, index: usize) -> Option<usize> {
        let running = &self.comparisons[index];
        let moments = Moments::of(running.unit_logs());
        let goals = self.goals(index, moments.mean());
        let schedule = running.plan().schedule;
        let needed = units_needed(schedule, running.units(), moments.sd(), &goals)?;
        Some(needed - running.units())
    }

    /// What half-width a sign and an equivalence need, and their critical values.
    fn goals(&self, index: usize, mean: f64) -> [(f64, &CriticalValues); 2] {
        let plan = self.comparisons[index].plan();
        let to_margin = plan.margin.half_width_log() - mean.abs();
        let [signs, equivalences] = self.open().map(|open| self.level(plan.schedule, open));
        [(mean.abs(), signs), (to_margin, equivalences)]
    }

    fn in_pairs(&self, index: usize, units: usize) -> usize {
        let running = &self.comparisons[index];
        (units * running.pairs().len()).div_ceil(running.units().max(1))
    }

    /// Comparisons that are not claimed in the family of signs, and in that of equivalences; at least 1.
    fn open(&self) -> [usize; 2] {
        let open = |claimed: &Vec<bool>| claimed.iter().filter(|it| !**it).count().max(1);
        self.claimed.each_ref().map(open)
    }

    /// The larger number of open comparisons of both families.
    fn open_max(&self) -> usize {
        let [signs, equivalences] = self.open();
        signs.max(equivalences)
    }

    fn range(&self, index: usize, divisor: usize) -> LogRange {
        let running = &self.comparisons[index];
        running.range_at(self.level(running.plan().schedule, divisor))
    }

    /// The critical values at α/`divisor`.
    fn level(&self, schedule: AnalysisSchedule, divisor: usize) -> &CriticalValues {
        let has_schedule = |it: &&CriticalValues| it.schedule() == schedule;
        let mut of_schedule = self.levels.iter().filter(has_schedule);
        of_schedule
            .nth(divisor - 1)
            .expect("there is a level for every number of open comparisons")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;
    use crate::verdict::Direction;

    fn plans(count: usize) -> Vec<SequentialPlan> {
        let plan = SequentialPlan::new(AnalysisSchedule::Pairs, Direction::HigherIsBetter);
        vec![plan; count]
    }

    fn block(stream: &mut SplitMix64, mean: f64, sd: f64) -> [Pair; 2] {
        [0, 1].map(|_| Pair {
            baseline: 1.0,
            variant: (mean + sd * stream.next_normal()).exp(),
        })
    }

    /// Regression: "equivalent (±2%): throughput ×1.008 [1.0003, 1.016]", since equivalences are corrected for fewer
    /// comparisons than signs.
    #[test]
    fn what_is_equivalent_has_an_interval_around_1() {
        let mut stream = SplitMix64::new(11);
        let mut equivalent = 0;
        for _ in 0..400 {
            let mut matrix = SequentialMatrix::new(&plans(2), 0.05).unwrap();
            for (index, mean) in [(0, 0.0), (1, 0.006)] {
                for _ in 0..24 {
                    let pair = |noise: f64| Pair {
                        baseline: 1.0,
                        variant: (mean + 0.01 * noise).exp(),
                    };
                    let block = [(); 2].map(|()| pair(stream.next_normal()));
                    let cell = matrix.push(index, &block).unwrap();
                    if cell.verdict == SequentialVerdict::Equivalent {
                        equivalent += 1;
                        assert!(cell.interval.is_some_and(|it| it.contains(1.0)), "{cell:?}");
                    }
                }
            }
        }
        assert!(equivalent > 1000, "{equivalent}");
    }

    #[test]
    fn every_comparison_gets_four_pairs_and_then_the_nearest_goes_first() {
        let mut matrix = SequentialMatrix::new(&plans(3), 0.05).unwrap();
        let mut stream = SplitMix64::new(4);
        let (means, mut order) = ([0.0, 0.03, 0.2], Vec::new());
        while let Some(next) = matrix.next_block() {
            order.push(next.comparison);
            let pairs = block(&mut stream, means[next.comparison], 0.02);
            matrix.push(next.comparison, &pairs).unwrap();
        }
        assert_eq!(order[..6], [0, 1, 2, 0, 1, 2]);
        let last = |wanted: usize| order.iter().rposition(|index| *index == wanted).unwrap();
        assert!(last(2) < last(1) && last(1) < last(0), "{order:?}");
        let verdicts: Vec<_> = matrix.cells().iter().map(|it| it.verdict).collect();
        assert!(verdicts[1].is_sign() && verdicts[2].is_sign());
        assert_eq!(verdicts[0], SequentialVerdict::Equivalent);
    }

    #[test]
    fn marks_stand_agree_with_their_intervals_and_free_alpha() {
        let mut stream = SplitMix64::new(79);
        for means in [[0.05, 0.0, 0.02, 0.01], [0.0; 4], [0.3, 0.3, -0.1, 0.004]] {
            let mut matrix = SequentialMatrix::new(&plans(4), 0.05).unwrap();
            let mut before = matrix.cells();
            assert!(before.iter().all(|it| (it.alpha - 0.0125).abs() < 1e-12));
            while let Some(next) = matrix.next_block() {
                let pairs = block(&mut stream, means[next.comparison], 0.015);
                let cell = matrix.push(next.comparison, &pairs).unwrap();
                let cells = matrix.cells();
                assert_eq!(cells[next.comparison], cell);
                for (old, new) in before.iter().zip(&cells) {
                    let excludes = new.interval.is_some_and(|it| !it.contains(1.0));
                    assert!(!new.verdict.is_sign() || excludes, "{new:?}");
                    if old.verdict.is_conclusive() {
                        assert_eq!(old.verdict.is_sign(), new.verdict.is_sign());
                        assert!((old.alpha - new.alpha).abs() < 1e-12);
                    } else {
                        assert!(new.alpha >= old.alpha - 1e-12);
                    }
                }
                before = cells;
            }
            let decided = before.iter().filter(|it| it.verdict.is_conclusive());
            let alphas: Vec<f64> = decided.map(|it| it.alpha).collect();
            assert!(alphas.iter().any(|it| *it > 0.013), "{alphas:?}");
        }
    }

    #[test]
    fn given_up_and_exhausted_comparisons_get_no_block() {
        let mut matrix = SequentialMatrix::new(&plans(2), 0.05).unwrap();
        let mut stream = SplitMix64::new(5);
        matrix.give_up(0);
        let mut pairs = 0;
        while let Some(next) = matrix.next_block() {
            assert_eq!(next.comparison, 1);
            matrix.push(1, &block(&mut stream, 0.0, 0.3)).unwrap();
            pairs += 2;
        }
        assert_eq!(pairs, 48);
        assert!(matrix.outlook(1).is_some_and(|it| it.is_futile()));
        assert_eq!(matrix.cell(0).interval, None);
        let none = SequentialMatrix::new(&[], 0.05).unwrap();
        assert_eq!((none.next_block(), none.cells().len()), (None, 0));
    }

    /// Regression: with the signs of all others claimed and none of them equivalent, a comparison was given up since
    /// its sign had little chance at α/18, where α is what it needs.
    #[test]
    fn a_sign_is_not_futile_at_the_level_of_an_equivalence() {
        let plan = SequentialPlan::new(AnalysisSchedule::Units, Direction::HigherIsBetter);
        let mut matrix = SequentialMatrix::new(&[plan; 18], 0.05).unwrap();
        // Standard deviation of the units: 6%.
        let unit = |mean: f64, number: usize| {
            let noise = [0.067, -0.067, 0.053, -0.053, 0.04, -0.04][number];
            [Pair {
                baseline: 1.0,
                variant: (mean + noise).exp(),
            }]
        };
        for index in 1..18 {
            for number in 0..6 {
                matrix.push(index, &unit(0.7, number)).unwrap();
            }
            assert!(matrix.cell(index).verdict.is_sign());
        }
        for number in 0..6 {
            matrix.push(0, &unit(0.056, number)).unwrap();
        }
        let outlook = matrix.outlook(0).unwrap();
        assert!(outlook.chance > 0.5 && !outlook.is_futile(), "{outlook:?}");
        let at_18 = matrix.level(plan.schedule, 18);
        let is_sign = |[range]: [LogRange; 1]| range.side_of(0.0).is_some();
        let goals = |mean: f64| [(mean.abs(), at_18)];
        let outlook = Outlook::of_question(&matrix.comparisons[0], [at_18], is_sign, goals);
        assert!(outlook.is_some_and(|it| it.chance < 0.3), "{outlook:?}");
    }

    #[test]
    fn a_contradiction_is_unstable_and_gets_no_block() {
        let mut matrix = SequentialMatrix::new(&plans(1), 0.05).unwrap();
        let mut stream = SplitMix64::new(6);
        for mean in [0.2; 4].into_iter().chain([-0.3; 20]) {
            matrix.push(0, &block(&mut stream, mean, 0.001)).unwrap();
        }
        let cell = matrix.cell(0);
        assert_eq!(
            (cell.verdict, cell.interval),
            (SequentialVerdict::Unstable, None)
        );
        assert_eq!(matrix.next_block(), None);
    }

    #[test]
    fn units_and_pairs_can_be_mixed() {
        let mut both = plans(2);
        both[1].schedule = AnalysisSchedule::Units;
        let mut matrix = SequentialMatrix::new(&both, 0.05).unwrap();
        let mut stream = SplitMix64::new(7);
        while let Some(next) = matrix.next_block() {
            matrix
                .push(next.comparison, &block(&mut stream, 0.1, 0.02))
                .unwrap();
        }
        assert!(matrix.cells().iter().all(|it| it.verdict.is_sign()));
        assert_eq!(matrix.comparisons()[1].analyses()[0].pairs, 8);
    }
}
